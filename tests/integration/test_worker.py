"""`fermata worker`: recovery and background responses without HTTP, in a process that can die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.acceptance.serve_graphs import GRAPHS
from tests.integration.api import Api, serving, texts
from tests.integration.test_background import polled, queued, until

ROOT = Path(__file__).parents[2]


@contextmanager
def worker(url: str) -> Iterator[subprocess.Popen[str]]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("FERMATA_")}
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "gateway",
            "worker",
            "--graphs",
            "tests.acceptance.serve_graphs:GRAPHS",
        ],
        cwd=ROOT,
        env={**environ, "FERMATA_DATABASE_URL": url, "FERMATA_LEASE_TTL": "2s"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Fermata works on ")
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]  # a pipe, as asked for


async def started(api: Api) -> None:
    """A worker has the response, and its first step (the input) is on record."""
    await until(lambda: api.sql("SELECT 1 FROM fermata.responses WHERE settled > 0"))


async def test_C21_a_worker_that_is_killed_is_followed_by_another(database_url: str) -> None:
    environ = {"BACKGROUND_RUNS": "0", "LEASE_TTL": "1h"}
    async with serving(database_url, GRAPHS, **environ) as api:
        response = await queued(api, "sleepy", "1.5")
        with worker(database_url) as first:
            await started(api)
            first.send_signal(signal.SIGKILL)
        with worker(database_url) as second:
            ended = await polled(api, response)
            assert texts(ended) == ["slept 1.5"]
            (row,) = await api.sql("SELECT takeovers FROM fermata.responses")
            assert row["takeovers"] == 1
            second.send_signal(signal.SIGTERM)
            assert second.wait(20) == 0
        rows = await api.sql(
            "SELECT owner FROM fermata.leases WHERE expires_at < now() + '1 minute'"
        )
        assert len(rows) == 1, "the dead one's sign of life; the other took its own down"
