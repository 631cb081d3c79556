"""The composition root: pool, leases, coordinator and routes; it owns what lives as long as the
process."""

from __future__ import annotations

import asyncio
import gc
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from types import FrameType

from fastapi import FastAPI
from starlette.exceptions import HTTPException

from gateway.errors import FermataError, StartupError, Unavailable
from gateway.http import (
    chat,
    conversations,
    health,
    interrupts,
    items,
    measuring,
    metrics,
    models,
    openapi,
    responses,
    socket,
)
from gateway.http.auth import Authenticated, authenticator_of, methods_of
from gateway.http.envelope import on_fermata_error, on_http_exception
from gateway.http.middleware import RequestFacts
from gateway.http.state import Gateway
from gateway.runs.catalog import load_graphs, serve_graphs
from gateway.runs.confined import confine_graphs
from gateway.runs.coordinator import Coordinator
from gateway.runs.endings import Keep
from gateway.runs.graph import Graph
from gateway.runs.lease import Leases
from gateway.runs.pickup import start_for_ever
from gateway.runs.recovery import recover_for_ever, sweep_for_ever
from gateway.settings import OPEN, Settings
from gateway.store.db import DatabaseAway, migrate, open_database

logger = logging.getLogger("fermata")

MIGRATION_RETRY = 1.0  # seconds
PARENT_LOOK = 0.5  # seconds


def create_app(settings: Settings, graphs: Mapping[str, Graph], *, alone: bool = False) -> FastAPI:
    """The ASGI application that serves `graphs`; `settings.database_url` must be set. `alone`:
    this process does nothing else.

    Raises `StartupError` for settings that would let others in by mistake."""
    methods = methods_of(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with _running(settings, graphs) as gateway:
            app.state.gateway = gateway
            if alone:
                spare_the_collector()
            yield

    app = FastAPI(
        title="Fermata", lifespan=lifespan, redirect_slashes=False, docs_url=None, redoc_url=None
    )
    for routes in (
        responses,
        socket,
        items,
        measuring,
        conversations,
        chat,
        interrupts,
        models,
        metrics,
        health,
    ):
        app.include_router(routes.router)
    app.router.routes.insert(0, responses.CREATE)
    openapi.describe(app, guarded=OPEN not in methods)
    app.add_exception_handler(FermataError, on_fermata_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_middleware(Authenticated)
    app.add_middleware(RequestFacts, observe=metrics.measured)
    return app


def spare_the_collector() -> None:
    """For a process that only serves, once it has loaded its graphs: what is there stays, and is
    not looked through for garbage again and again; a request makes thousands of objects that go
    with it, so the default of some hundreds is no reason to look either. Garbage in cycles waits
    longer for it. Measured: a tenth of a short request."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


def worker_app() -> FastAPI:
    """The application of one worker process, which its parent has told everything by
    environment."""
    settings = Settings.from_env(os.environ)
    start_log(settings.log_level)
    return create_app(settings, load_graphs(settings.graphs), alone=True)


async def work(settings: Settings, graphs: Mapping[str, Graph]) -> None:
    """A process without HTTP: recovery, background responses and sweeps, until SIGTERM or
    SIGINT."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with _running(settings, graphs, http=False):
        spare_the_collector()
        await ended.wait()


def start_log(level: str) -> None:
    """Log lines to stderr, from `level` on."""
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # the welcome says what matters


@asynccontextmanager
async def _running(
    settings: Settings, graphs: Mapping[str, Graph], *, http: bool = True
) -> AsyncIterator[Gateway]:
    if settings.database_url is None:
        raise StartupError("create_app needs settings.database_url; `fermata serve` can embed one.")
    confine_graphs(asyncio.get_running_loop())
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(
            open_database(
                settings.database_url,
                size=settings.pool_size,
                prepared=settings.prepared_statements,
                patience=settings.lease_ttl,
            )
        )
        keep = Keep(
            wait=settings.interrupt_ttl,
            response=settings.response_retention,
            effects=settings.effect_retention,
            events=settings.event_retention,
        )
        leases = Leases(database, settings.lease_ttl)
        coordinator = Coordinator(database, leases, await serve_graphs(graphs), keep)
        authenticator = authenticator_of(settings, database) if http else None
        gateway = Gateway(settings, coordinator, int(time.time()), authenticator)
        await stack.enter_async_context(_background(gateway))
        stack.push_async_callback(coordinator.close, settings.shutdown_grace)
        if not http:
            yield gateway
            return
        with _closing_on_signal(coordinator, settings):
            yield gateway


@contextmanager
def _closing_on_signal(coordinator: Coordinator, settings: Settings) -> Iterator[None]:
    """Close as soon as SIGTERM or SIGINT comes, beside the server, which waits for its streams:
    so these end with a last event, and the grace counts once."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may listen to signals
        return
    loop, closing = asyncio.get_running_loop(), set[asyncio.Task[None]]()

    def close() -> None:
        closing.add(asyncio.create_task(coordinator.close(settings.shutdown_grace)))

    servers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def heard(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(close)
        server = servers[signal.Signals(number)]
        if callable(server):
            server(number, frame)

    for number in servers:
        signal.signal(number, heard)
    try:
        yield
    finally:
        for number, server in servers.items():
            signal.signal(number, server)


@asynccontextmanager
async def _background(gateway: Gateway) -> AsyncIterator[None]:
    """The process's own loops; they end with it."""
    settings, coordinator = gateway.settings, gateway.coordinator
    watch = None
    if settings.workers > 1:
        watch = asyncio.create_task(_end_with_parent())
    await _migrate_once(gateway)

    async def work() -> None:
        while not gateway.migrated:
            await asyncio.sleep(MIGRATION_RETRY)
            await _migrate_once(gateway)
        async with coordinator.leases.beating(), asyncio.TaskGroup() as group:
            group.create_task(coordinator.watch_for_ever())
            group.create_task(recover_for_ever(coordinator))
            group.create_task(sweep_for_ever(coordinator, settings.sweep_interval))
            if settings.background_runs:
                group.create_task(start_for_ever(coordinator, settings.background_runs))

    task = asyncio.create_task(work())
    try:
        yield
    finally:
        tasks = [task, *([watch] if watch is not None else [])]
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _end_with_parent() -> None:
    """A worker whose parent was killed has no database any more and keeps the port: it ends too."""
    parent = multiprocessing.parent_process()
    while parent is not None and os.getppid() == parent.pid:  # noqa: ASYNC110  # the system tells nobody
        await asyncio.sleep(PARENT_LOOK)
    os.kill(os.getpid(), signal.SIGTERM)


async def _migrate_once(gateway: Gateway) -> None:
    """Bring the schema up to date; a database that is away is tried again later, a newer one is
    refused."""
    dsn = gateway.settings.database_direct_url or gateway.settings.database_url or ""
    try:
        await migrate(dsn)
        await gateway.coordinator.leases.beat()
    except (DatabaseAway, Unavailable) as error:
        logger.warning("%s", error)
    else:
        gateway.migrated = True
