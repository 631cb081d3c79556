"""The document, put together from the routes that are there and what is known of them."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from gateway.http.openapi.operations import OPERATIONS, spelled
from gateway.http.openapi.requests import REQUESTS
from gateway.http.openapi.resources import RESOURCES


def describe(app: FastAPI, *, guarded: bool) -> None:
    """Let `app` tell its document: made when it is first asked for, then kept. `guarded` if it asks
    for credentials."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, guarded)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to extend it


def _document(app: FastAPI, guarded: bool) -> dict[str, Any]:
    document = get_openapi(
        title=app.title,
        version=version("fermata-gateway"),
        description=app.description,
        routes=app.routes,
    )
    for path, methods in document["paths"].items():
        for method, told in methods.items():
            operation = OPERATIONS.get((method, path))
            if operation is not None:
                more = spelled(operation, guarded=guarded)
                in_path = [one for one in told.get("parameters", ()) if one["in"] == "path"]
                told.update(more, parameters=[*in_path, *more.get("parameters", ())])
    document["components"] = {"schemas": {**REQUESTS, **RESOURCES}}
    if guarded:
        bearer = {"type": "http", "scheme": "bearer"}
        document["components"]["securitySchemes"] = {"bearer": bearer}
        document["security"] = [{"bearer": []}]
    return document
