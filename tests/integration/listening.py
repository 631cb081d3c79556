"""The gateway in this process, behind a socket: for the unchanged SDK, and for gateways that call
gateways."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import uvicorn
from openai import AsyncOpenAI

from gateway import Graph
from gateway.app import create_app
from gateway.settings import Settings


class _Listener(uvicorn.Server):
    """Tells when it has started, or has failed to."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.decided = asyncio.Event()

    async def startup(self, sockets: list[object] | None = None) -> None:
        try:
            await super().startup(sockets)  # type: ignore[arg-type]
        finally:
            self.decided.set()


@asynccontextmanager
async def listening(
    database_url: str, graphs: Mapping[str, Graph], **environ: str
) -> AsyncIterator[str]:
    """The base URL of a gateway; settings by name: `LEASE_TTL="5s"`."""
    named = {f"FERMATA_{name}": value for name, value in environ.items()}
    settings = Settings.from_env({"FERMATA_DATABASE_URL": database_url, **named})
    config = uvicorn.Config(create_app(settings, graphs), port=0, log_config=None, lifespan="on")
    server = _Listener(config)
    task = asyncio.create_task(server.serve())
    try:
        await server.decided.wait()
        assert server.started, "the gateway did not start; see the log"
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.should_exit = True
        await task


@asynccontextmanager
async def sdk(base_url: str, api_key: str = "unused") -> AsyncIterator[AsyncOpenAI]:
    """The unchanged SDK without its retries: what a test sees is what the gateway said."""
    async with AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        yield client
