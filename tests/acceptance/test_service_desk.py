"""The account system accepts, the worker dies before anything is recorded: one disable, one
message. With kill -9, two replicas and the unchanged SDK."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
from openai import APIConnectionError, OpenAI

from gateway import Graph
from graphs import service_desk
from graphs.service_desk.systems import Systems
from tests.acceptance.server import Server, serving
from tests.integration.people import keys_of

MODEL = "service-desk"
KEY = "disable:INC-44:user-456:proposal-v1"
FUSE = "FERMATA_TEST_FUSE"
"""Names a file: the process that finds it is killed once the account system has accepted."""


class MortalSystems(Systems):
    """The real systems; the worker dies right after they have done it."""

    async def perform(
        self, action: str, tenant: str, arguments: Mapping[str, Any], request_id: str
    ) -> dict[str, Any]:
        done = await super().perform(action, tenant, arguments, request_id)
        burn(Path(os.environ[FUSE]))
        return done


def burn(fuse: Path) -> None:
    if fuse.exists():
        fuse.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


GRAPHS = {MODEL: Graph(service_desk.build(MortalSystems()))}


def client(server: Server, key: str) -> OpenAI:
    return OpenAI(base_url=server.base_url, api_key=key, max_retries=0)


def test_the_worker_dies_after_the_account_system_has_accepted(
    database_url: str, tmp_path: Path
) -> None:
    keys = asyncio.run(keys_of(database_url))
    fuse = tmp_path / "fuse"
    settings = {"AUTH": "keys", "LEASE_TTL": "1s", "TEST_FUSE": str(fuse)}
    served = f"{__name__}:GRAPHS"
    with (
        serving(database_url, tmp_path / "one", served, **settings) as dying,
        serving(database_url, tmp_path / "two", served, **settings) as other,
    ):
        with client(dying, keys["anna"]) as anna:
            paused = anna.responses.create(
                model=MODEL, input="Disable the account of user-456, INC-44."
            )
        (call,) = [item for item in paused.output if item.type == "function_call"]
        answer: Any = {
            "model": MODEL,
            "previous_response_id": paused.id,
            "input": [
                {"type": "function_call_output", "call_id": call.call_id, "output": "approve"}
            ],
        }
        fuse.touch()
        with client(dying, keys["mia"]) as mia, pytest.raises(APIConnectionError):
            mia.responses.create(**answer)
        dying.kill9()  # it has ended by itself; this waits for that
        assert not fuse.exists()
        assert state(database_url) == ((1, [], "claimed"))

        with client(other, keys["mia"]) as mia:
            done = mia.responses.create(**answer)
    assert done.output_text == f"EXECUTED {KEY}: the account of user-456 was disabled."
    assert state(database_url) == (
        1,
        ["Your ticket INC-44: the account of user-456 was disabled."],
        "done",
    )


def state(database_url: str) -> tuple[int, list[str], str]:
    """How often the account was disabled, what was told, and what the ledger says."""
    with psycopg.connect(database_url) as connection:
        ((disables,),) = connection.execute(
            "SELECT disables FROM service_desk_demo.accounts WHERE id = 'user-456'"
        ).fetchall()
        told = connection.execute("SELECT message FROM service_desk_demo.notifications").fetchall()
        ((status,),) = connection.execute(
            "SELECT status FROM fermata.effects WHERE key = %s", (KEY,)
        ).fetchall()
    return disables, [message for (message,) in told], status
