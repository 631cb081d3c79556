"""Gateways as processes on real databases: one that all tests share, or as many as a test wants."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from openai import OpenAI
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.acceptance.server import Server, serving


@pytest.fixture(scope="session")
def shared_database_url(server_url: str, migrated_template: str) -> Iterator[str]:
    """One database for the tests that neither kill their gateway nor count rows of others."""
    name = f"fermata_shared_{os.getpid()}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        connection.execute(create.format(sql.Identifier(name), sql.Identifier(migrated_template)))
        yield _at(server_url, name)
        drop = sql.SQL("DROP DATABASE {} WITH (FORCE)")
        connection.execute(drop.format(sql.Identifier(name)))


@pytest.fixture(scope="session")
def server(shared_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The gateway that tests share; whoever kills or freezes one takes `start_server`."""
    with serving(shared_database_url, tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with server.client() as openai:
        yield openai


@pytest.fixture
def start_server(database_url: str, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts gateways on one fresh database, with one data directory, as replicas share a disk."""
    with ExitStack() as stack:

        def start(**environ: str) -> Server:
            return stack.enter_context(serving(database_url, tmp_path, **environ))

        yield start


def _at(server_url: str, database: str) -> str:
    if "://" in server_url:
        return urlsplit(server_url)._replace(path=f"/{database}").geturl()
    return make_conninfo(server_url, dbname=database)
