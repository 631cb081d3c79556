"""`/v1/models`: the graphs, as OpenAI lists models; what is ours stands under one extension key."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import ModelNotFound
from gateway.http.body import json_response
from gateway.http.state import Gateway, gateway_of
from gateway.runs.graph import ServedGraph

router = APIRouter()


@router.get("/v1/models", response_model=None)
async def list_models(request: Request) -> Response:
    """All graphs that are served here."""
    gateway = gateway_of(request)
    models = [_model(gateway, graph) for graph in gateway.coordinator.graphs.values()]
    return json_response({"object": "list", "data": models})


@router.get("/v1/models/{model}", response_model=None)
async def retrieve_model(request: Request, model: str) -> Response:
    """One graph: its page, with the schema of its settings and its topology. Raises
    `ModelNotFound`."""
    gateway = gateway_of(request)
    graph = gateway.coordinator.graphs.get(model)
    if graph is None:
        raise ModelNotFound(model)
    page = _model(gateway, graph)
    settings = graph.settings
    page["fermata"] |= {
        "settings": None if settings is None else settings.schema,
        "topology": {"format": "mermaid", "text": graph.drawn()},
    }
    return json_response(page)


def _model(gateway: Gateway, graph: ServedGraph) -> dict[str, Any]:
    own = [] if graph.settings is None else ["settings"]
    return {
        "id": graph.name,
        "object": "model",
        "created": gateway.started_at,
        "owned_by": "fermata",
        "fermata": {
            "description": graph.description,
            "features": ["responses", "streaming", "interrupts", "tools", *own],
            "interrupt_name": graph.declared.interrupt_name,
        },
    }
