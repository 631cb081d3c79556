"""The database goes away, comes back, or hides behind a pooler: C23, C24, C25."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psycopg

from gateway.store.embedded import running
from tests.acceptance.chaos_graphs import transfers
from tests.acceptance.server import Server, serving
from tests.acceptance.test_chaos import GRAPHS, answering, ask, post, text
from tests.postgres.pooler import pooled

SOON = 60.0  # seconds
FAST = {"fsync": "off"}


def test_C23_every_connection_is_terminated_while_runs_wait(
    database_url: str, tmp_path: Path
) -> None:
    (tmp_path / "state").mkdir()
    with serving(database_url, tmp_path, GRAPHS, LOG_LEVEL="critical") as server:
        paused = [ask(server, f"C23 {number}") for number in range(3)]
        for asked in paused:
            with psycopg.connect(database_url) as connection:
                ended = connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                ).fetchall()
            assert len(ended) > 1
            done = post(server, answering(asked))
            assert done.status_code == 200, done.text
            assert done.json()["status"] == "completed"
    assert len(transfers(tmp_path / "state" / "bank.jsonl")) == 3


def test_C24_behind_a_transaction_mode_pooler(database_url: str, tmp_path: Path) -> None:
    """Two replicas share three backends, so that nearly every transaction meets another one."""
    (tmp_path / "state").mkdir()
    with pooled(database_url, size=3) as pooler:
        direct = {"DATABASE_DIRECT_URL": database_url, "LEASE_TTL": "2s", "SWEEP_INTERVAL": "500ms"}
        with (
            serving(pooler.url, tmp_path, GRAPHS, **direct) as first,
            serving(pooler.url, tmp_path, GRAPHS, **direct) as second,
            ThreadPoolExecutor(8) as pool,
        ):
            keys = [f"C24 {number} with receipt" for number in range(16)]
            outcomes = list(pool.map(lambda key: through(first, second, key), keys))
            log = first.log
    assert outcomes == [f"receipt of {key}" for key in keys]
    assert sorted(transfers(tmp_path / "state" / "bank.jsonl")) == sorted(keys)
    assert pooler.transactions > 100
    assert "prepared statement" not in log
    assert "ERROR" not in log


def through(first: Server, second: Server, key: str) -> str:
    """Asked by one, answered through the other, asked again there, answered here."""
    again = post(second, answering(ask(first, key))).json()
    return text(post(first, {**answering(again, "home"), "stream": False}).json())


def test_C25_down_at_the_start_then_up_then_away_then_back(tmp_path: Path) -> None:
    data, state = tmp_path / "postgresql", tmp_path / "gateway" / "state"
    state.mkdir(parents=True)
    with running(data, FAST) as url:
        pass  # it has been there once: its address is known
    server = Server(url, state.parent, {"FERMATA_LEASE_TTL": "2s", "FERMATA_LOG_LEVEL": "critical"})
    server.graphs = GRAPHS
    try:
        server.start(ready=False)
        assert_away(server)
        with running(data, FAST):
            until(lambda: readiness(server) == 200)
            paused = ask(server, "C25")
        until(lambda: readiness(server) == 503)
        assert_away(server)
        with running(data, FAST):
            until(lambda: readiness(server) == 200)
            done = post(server, answering(paused))
            assert done.status_code == 200, done.text
            assert text(done.json()) == "receipt of C25"
    finally:
        server.close()
    assert transfers(state / "bank.jsonl") == ["C25"]


def assert_away(server: Server) -> None:
    assert readiness(server) == 503
    assert httpx.get(f"{server.url}/healthz").status_code == 200
    refused = post(server, {"model": "transfer", "input": "too early", "stream": True})
    assert refused.status_code == 503
    assert int(refused.headers["Retry-After"]) > 0
    assert refused.json()["error"]["code"] == "service_unavailable"


def readiness(server: Server) -> int:
    return httpx.get(f"{server.url}/readyz", timeout=30).status_code


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)
