"""What a measurement stands on: a PostgreSQL, fresh databases on it, gateways as processes."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from gateway.store.embedded import running
from tests.benchmarks.server import Server, serving

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Ground:
    """A PostgreSQL whose user may create databases; `prepared` if statements may be prepared."""

    url: str
    prepared: bool
    folder: Path

    @contextmanager
    def database(self, template: str = "template0") -> Iterator[str]:
        """The address of a fresh database, dropped after the block."""
        name = f"fermata_bench_{os.getpid()}_{next(_numbers)}"
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {} ENCODING 'UTF8'")
        with psycopg.connect(self.url, autocommit=True) as conn:
            conn.execute(create.format(sql.Identifier(name), sql.Identifier(template)))
        try:
            yield _at(self.url, name)
        finally:
            with psycopg.connect(self.url, autocommit=True) as conn:
                drop = sql.SQL("DROP DATABASE {} WITH (FORCE)")
                conn.execute(drop.format(sql.Identifier(name)))

    @contextmanager
    def gateway(self, database_url: str, settings: Mapping[str, str]) -> Iterator[Server]:
        """A gateway on this database that serves the benchmark's graphs."""
        given = {
            "DATABASE_URL": database_url,
            "DATA_DIR": str(self.folder / "state"),
            "PREPARED_STATEMENTS": "on" if self.prepared else "off",
        }
        with serving(self.folder, given | dict(settings)) as server:
            yield server

    def version(self) -> str:
        with psycopg.connect(self.url) as conn:
            return conn.info.parameter_status("server_version") or "of unknown version"


@contextmanager
def ground(database_url: str | None) -> Iterator[Ground]:
    """The PostgreSQL that `database_url` names, or an embedded one as long as the block runs.

    The embedded one is the benchmark's own child, with the settings that the gateway gives it, so
    that its CPU time is never counted as the gateway's.
    """
    with tempfile.TemporaryDirectory(prefix="fermata-bench-") as name:
        folder = Path(name)
        if database_url is not None:
            yield Ground(database_url, prepared=False, folder=folder)
            return
        with running(folder / "postgresql") as url:
            yield Ground(url, prepared=True, folder=folder)


def name_of(url: str) -> str:
    return str(psycopg.conninfo.conninfo_to_dict(url)["dbname"])


def _at(url: str, database: str) -> str:
    if "://" in url:
        return urlsplit(url)._replace(path=f"/{database}").geturl()
    return make_conninfo(url, dbname=database)
