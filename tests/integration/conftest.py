"""A gateway in this process: one that a module's tests share, or one of a test's own."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit

import psycopg
import pytest
from openai import AsyncOpenAI
from psycopg import sql
from psycopg.conninfo import make_conninfo

from graphs import GRAPHS as DEMOS
from tests.integration.api import Api, serving
from tests.integration.listening import listening, sdk
from tests.integration.small_graphs import GRAPHS


@pytest.fixture(scope="module")
def module_database_url(server_url: str, migrated_template: str) -> Iterator[str]:
    """One database for the tests of a module that count no rows of others."""
    name = f"fermata_module_{os.getpid()}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        connection.execute(create.format(sql.Identifier(name), sql.Identifier(migrated_template)))
        yield _at(server_url, name)
        drop = sql.SQL("DROP DATABASE {} WITH (FORCE)")
        connection.execute(drop.format(sql.Identifier(name)))


@pytest.fixture(scope="module")
async def api(
    anyio_backend: tuple[str, dict[str, bool]], module_database_url: str
) -> AsyncIterator[Api]:
    async with serving(module_database_url, GRAPHS) as served:
        yield served


@pytest.fixture(scope="module")
async def demos(
    anyio_backend: tuple[str, dict[str, bool]],
    module_database_url: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[AsyncOpenAI]:
    """The unchanged SDK at a gateway that serves the demonstration graphs over HTTP."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FERMATA_DATA_DIR", str(tmp_path_factory.mktemp("state")))
        async with listening(module_database_url, DEMOS) as url, sdk(url) as client:
            yield client


def _at(server_url: str, database: str) -> str:
    if "://" in server_url:
        return urlsplit(server_url)._replace(path=f"/{database}").geturl()
    return make_conninfo(server_url, dbname=database)
