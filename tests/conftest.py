"""A real PostgreSQL for the tests: one server a session, a fresh database a test.

The server is the embedded one, or the one that FERMATA_TEST_DATABASE_URL names (its user must be
allowed to create databases).
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import hypothesis
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from gateway.store.embedded import running
from tests.fuzzing import look_longer

# The machine is shared; a slow example says nothing about the code.
hypothesis.settings.register_profile("fermata", deadline=None)
hypothesis.settings.load_profile("fermata")

_numbers = itertools.count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    """For the tests that can look at any gateway, and look longer: see `make exam`, `make fuzz`."""
    group = parser.getgroup("fermata")
    group.addoption("--base-url", help="an API to examine instead of a gateway of our own: …/v1")
    group.addoption("--api-key", default="unused", help="the key for --base-url")
    group.addoption("--model", default="echo", help="the model at --base-url that is examined")
    group.addoption("--examples", type=int, help="how many made-up requests a test tries")


def pytest_configure(config: pytest.Config) -> None:
    """Before any test module is imported."""
    if examples := config.getoption("--examples"):
        look_longer(examples)


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Async tests run on the loop that serves in production."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="session")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server's maintenance database, in which databases are made and dropped."""
    if given := os.environ.get("FERMATA_TEST_DATABASE_URL"):
        yield given
        return
    # No test pulls the plug of the machine: nothing needs to reach the disk.
    fast = {"fsync": "off", "full_page_writes": "off", "max_connections": "300"}
    with running(tmp_path_factory.mktemp("postgresql"), fast) as url:
        yield url


@pytest.fixture(scope="session")
def migrated_template(server_url: str) -> Iterator[str]:
    """The name of a migrated database; copying it costs about 10 ms, migrating much more."""
    from gateway.store.db import migrate

    with _database(server_url) as url:
        asyncio.run(migrate(url))
        yield _name_of(url)


@pytest.fixture
def database_url(server_url: str, migrated_template: str) -> Iterator[str]:
    """A fresh, migrated database, dropped after the test."""
    with _database(server_url, template=migrated_template) as url:
        yield url


@pytest.fixture(scope="module")
def module_database_url(server_url: str, migrated_template: str) -> Iterator[str]:
    """One migrated database for the tests of a module that count no rows of others."""
    with _database(server_url, template=migrated_template) as url:
        yield url


@pytest.fixture
def empty_database_url(server_url: str) -> Iterator[str]:
    """A fresh database without any table, dropped after the test."""
    with _database(server_url) as url:
        yield url


@contextmanager
def _database(server_url: str, template: str = "template0") -> Iterator[str]:
    name = f"fermata_test_{os.getpid()}_{next(_numbers)}"
    create = sql.SQL("CREATE DATABASE {} TEMPLATE {} ENCODING 'UTF8'")
    # FORCE: a test that failed may have left connections.
    drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(create.format(sql.Identifier(name), sql.Identifier(template)))
        try:
            yield _with_database(server_url, name)
        finally:
            connection.execute(drop.format(sql.Identifier(name)))


def _with_database(url: str, name: str) -> str:
    if "://" in url:
        return urlsplit(url)._replace(path=f"/{name}").geturl()
    return make_conninfo(url, dbname=name)


def _name_of(url: str) -> str:
    return str(psycopg.conninfo.conninfo_to_dict(url)["dbname"])
