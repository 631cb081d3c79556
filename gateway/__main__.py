"""The command line: `fermata serve`, `worker`, `migrate`, `sweep`, `keys`, `effects`, `audit`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import uvicorn
import uvloop
from uvicorn.supervisors import Multiprocess

from gateway.app import create_app, start_log, work
from gateway.commands import audit, effects
from gateway.commands.connection import with_connection
from gateway.errors import FermataError, StartupError
from gateway.http.auth import methods_of
from gateway.http.state import Gateway
from gateway.http.tokens import is_name, is_subject
from gateway.runs.catalog import load_graphs
from gateway.runs.recovery import log_swept
from gateway.settings import OPEN, SETTINGS, Setting, Settings
from gateway.store import embedded
from gateway.store.db import Connection, migrate, open_database
from gateway.store.keys import ApiKey, create_key, list_keys, revoke_key
from gateway.store.retention import sweep

logger = logging.getLogger("fermata")

REFUND_DEMO = "interruptible-approval"


def main(argv: list[str] | None = None) -> int:
    """Run one command; 0 if it did what it should, 1 with a sentence on stderr if not."""
    arguments = _parser().parse_args(argv)
    try:
        settings = _settings(arguments)
        start_log(settings.log_level)
        # uvicorn raises the signal again once it has shut down; the embedded database is to be
        # ended too.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        with _database(settings) as with_database:
            arguments.run(with_database, arguments)
            sys.stdout.flush()
    except FermataError as error:
        print(f"fermata: {error.message}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # `fermata effects list | head`: whoever read has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nor a complaint at exit
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 130
    return 0


GRAPHS_HELP = "module:NAME, or the path of a langgraph.json (FERMATA_GRAPHS)"


def _meaning(setting: Setting) -> str:
    default = "" if setting.default is None else f" [{setting.default}]"
    return f"{setting.description}{default}"


def _parser() -> argparse.ArgumentParser:
    listed = "\n".join(f"  {one.variable:30} {_meaning(one)}" for one in SETTINGS)
    parser = argparse.ArgumentParser(
        prog="fermata",
        description=__doc__,
        epilog=f"environment:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    serve = commands.add_parser("serve", help="serve graphs over HTTP")
    serve.add_argument("--graphs", help=GRAPHS_HELP)
    serve.add_argument("--host", help="address to listen on (FERMATA_HOST)")
    serve.add_argument("--port", type=int, help="0 takes a free one (FERMATA_PORT)")
    serve.set_defaults(run=_serve)
    worker = commands.add_parser(
        "worker", help="recovery, background responses and sweeps, without HTTP"
    )
    worker.add_argument("--graphs", help=GRAPHS_HELP)
    worker.set_defaults(run=_worker)
    commands.add_parser(
        "migrate", help="bring the database's schema up to date, no more"
    ).set_defaults(run=_migrate)
    commands.add_parser("sweep", help="delete once what has expired").set_defaults(run=_sweep)
    _add_keys(commands.add_parser("keys", help="create, list and revoke API keys"))
    effects.add(commands.add_parser("effects", help="list, show and resolve what graphs did"))
    audit.add(commands.add_parser("audit", help="show, verify and export what happened"))
    return parser


def _add_keys(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="command")
    create = commands.add_parser("create", help="print a new key, this once")
    create.add_argument("--tenant", required=True, type=_name, help="whose runs it may see")
    create.add_argument("--subject", required=True, type=_subject, help="the person or program")
    create.add_argument(
        "--role", action="append", default=[], type=_name, help="may be given several times"
    )
    create.set_defaults(run=_keys_create)
    commands.add_parser("list", help="all keys, without their secrets").set_defaults(run=_keys_list)
    revoke = commands.add_parser("revoke", help="revoke a key, for good")
    revoke.add_argument("id", help="as `list` shows it")
    revoke.set_defaults(run=_keys_revoke)


def _name(text: str) -> str:
    if not is_name(text):
        raise argparse.ArgumentTypeError("a name has 1 to 256 printable characters")
    return text


def _subject(text: str) -> str:
    if not is_subject(_name(text)):
        raise argparse.ArgumentTypeError("'system:' and 'operator:' begin no subject")
    return text


def _settings(arguments: argparse.Namespace) -> Settings:
    environ = dict(os.environ)
    for name in ("graphs", "host", "port"):
        if (value := getattr(arguments, name, None)) is not None:
            environ[f"FERMATA_{name.upper()}"] = str(value)
    return Settings.from_env(environ)


@contextmanager
def _database(settings: Settings) -> Iterator[Settings]:
    """The settings with a database: the one they name, or an embedded one while the block runs."""
    if settings.database_url is not None:
        yield settings
        return
    with embedded.running(settings.data_dir) as dsn:
        yield replace(settings, database_url=dsn, database_direct_url=dsn, prepared_statements=True)


def _serve(settings: Settings, _: argparse.Namespace) -> None:
    methods_of(settings)  # before there are workers, which would only die one by one
    if settings.workers > 1:
        _serve_with_workers(settings)
        return
    app = create_app(settings, load_graphs(settings.graphs), alone=True)
    server = _Server(_config(settings, app))
    server.run()
    if not server.started:
        raise StartupError("The gateway could not start; the log above says why.")


def _worker(settings: Settings, _: argparse.Namespace) -> None:
    graphs = load_graphs(settings.graphs)
    print(f"Fermata works on {', '.join(graphs)}", flush=True)
    uvloop.run(work(settings, graphs))


def _config(settings: Settings, app: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        factory=isinstance(app, str),
        host=settings.host,
        port=settings.port,
        workers=settings.workers,
        loop="uvloop",
        http="httptools",
        ws="websockets-sansio",
        ws_max_size=settings.max_body_bytes,
        log_config=None,
        access_log=False,
        lifespan="on",
        timeout_graceful_shutdown=int(settings.shutdown_grace.total_seconds()) + 5,
        # A node that blocks its process is slow, not dead; the lease decides when it counts as
        # dead.
        timeout_worker_healthcheck=int(settings.lease_ttl.total_seconds()) + 1,
    )


def _serve_with_workers(settings: Settings) -> None:
    """One parent that owns the port and the embedded database, and workers that serve."""
    os.environ.update(
        FERMATA_DATABASE_URL=settings.database_url or "",
        FERMATA_DATABASE_DIRECT_URL=settings.database_direct_url or "",
        FERMATA_GRAPHS=settings.graphs,
        FERMATA_HOST=settings.host,
        FERMATA_PREPARED_STATEMENTS="on" if settings.prepared_statements else "off",
        FERMATA_WORKERS=str(settings.workers),
    )
    graphs = load_graphs(settings.graphs)
    config = _config(settings, "gateway.app:worker_app")
    listening = config.bind_socket()
    host, port = listening.getsockname()[:2]
    welcome = _welcome(f"http://{host}:{port}", list(graphs), OPEN in methods_of(settings))
    print(welcome, flush=True)
    Multiprocess(config, sockets=[listening]).run()


class _Server(uvicorn.Server):
    """Says how to talk to it once it listens."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and not self.should_exit:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            gateway = self._gateway()
            models = list(gateway.coordinator.graphs)
            welcome = _welcome(f"http://{host}:{port}", models, gateway.authenticator is None)
            print(welcome, flush=True)

    def _gateway(self) -> Gateway:
        gateway: Gateway = self.config.app.state.gateway  # type: ignore[union-attr]  # our own app
        return gateway


def _welcome(url: str, models: list[str], open_to_all: bool) -> str:
    refund = REFUND_DEMO in models
    model, text = (REFUND_DEMO, "Refund order ORDER-123") if refund else (models[0], "Hello")
    body = f'{{"model": "{model}", "input": "{text}"}}'
    key = "" if open_to_all else ' -H "Authorization: Bearer $KEY"'
    return "\n".join(
        [
            f"Fermata serves {', '.join(models)}",
            f"at {url}/v1",
            "Try:",
            f"  curl {url}/v1/responses{key} -H 'Content-Type: application/json' -d '{body}'",
        ]
    )


def _migrate(settings: Settings, _: argparse.Namespace) -> None:
    version = asyncio.run(migrate(settings.database_direct_url or ""))
    print(f"The schema is at version {version}.")


def _sweep(settings: Settings, _: argparse.Namespace) -> None:
    asyncio.run(_sweep_once(settings))


async def _sweep_once(settings: Settings) -> None:
    async with open_database(settings.database_url or "", size=1) as database:
        swept = await sweep(
            database,
            settings.response_retention,
            settings.effect_retention,
            events=settings.event_retention,
        )
    log_swept(swept)
    print(
        f"Expired {swept.expired_runs} runs; deleted {swept.deleted_runs} runs"
        f" and {swept.deleted_responses} responses."
    )


def _keys_create(settings: Settings, arguments: argparse.Namespace) -> None:
    async def create(conn: Connection) -> tuple[str, str]:
        return await create_key(conn, arguments.tenant, arguments.subject, arguments.role)

    id, key = asyncio.run(with_connection(settings, create))
    print(f"The key {id} follows; it is shown this once.", file=sys.stderr, flush=True)
    print(key)


def _keys_list(settings: Settings, _: argparse.Namespace) -> None:
    for key in asyncio.run(with_connection(settings, list_keys)):
        print(_key_line(key))


def _key_line(key: ApiKey) -> str:
    made = f"created {key.created_at:%Y-%m-%d}"
    state = made if key.revoked_at is None else f"{made}, revoked {key.revoked_at:%Y-%m-%d}"
    return "\t".join((key.id, key.tenant, key.subject, ",".join(sorted(key.roles)) or "-", state))


def _keys_revoke(settings: Settings, arguments: argparse.Namespace) -> None:
    async def revoke(conn: Connection) -> bool:
        return await revoke_key(conn, arguments.id)

    if not asyncio.run(with_connection(settings, revoke)):
        raise FermataError(f"There is no key {arguments.id}; `fermata keys list` shows all.")
    print(f"The key {arguments.id} is revoked.")


if __name__ == "__main__":
    sys.exit(main())
