"""What operators do from the command line, a file a noun."""
