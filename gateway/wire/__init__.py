"""The Responses protocol, sans-IO: values in, values or bytes out."""
