"""`/healthz`: the process lives. `/readyz`: it can serve, which needs its database."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.errors import Unavailable
from gateway.http.envelope import error_response
from gateway.http.state import gateway_of

router = APIRouter()


@router.get("/healthz", response_model=None)
async def healthz() -> Response:
    """Always 200 while the process answers at all."""
    return JSONResponse({"status": "ok"})


@router.get("/readyz", response_model=None)
async def readyz(request: Request) -> Response:
    """200 if requests can be served, else 503: database away, schema not there yet, shutting
    down."""
    gateway = gateway_of(request)
    coordinator = gateway.coordinator
    if coordinator.closing:
        return error_response(Unavailable("This process is shutting down."))
    alive = gateway.migrated and coordinator.leases.is_alive
    if not alive or not await coordinator.database.reachable():
        return error_response(Unavailable("The database cannot be reached."))
    return JSONResponse({"status": "ready"})
