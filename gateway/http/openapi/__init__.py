"""The OpenAPI document at `/openapi.json`: what is served, as machines read it.

Routes parse their bodies by hand, so FastAPI knows no more than their paths. What a request may
hold and what comes back stands in `requests` and `resources`, who uses which in `operations`.
Nothing of it is looked at while a request is served: the tests hold it against what is taken and
told, and fuzz every operation by it.
"""

from gateway.http.openapi.document import describe

__all__ = ["describe"]
