"""What a sweep costs, beside how much is stored and how much of it has expired.

A few runs are paused for real; their rows are copied in SQL under new ids. Each sweep is timed in a
fresh process, whose peak memory is its own:

    python -m tests.benchmarks.sweep postgresql://…/database    sweeps once and says how, as JSON
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Final

import psutil
import psycopg
import uvloop
from psycopg import sql

from gateway.store.db import open_database
from gateway.store.retention import sweep
from tests.benchmarks.ground import Ground, name_of
from tests.benchmarks.report import markdown, spread

REAL_RUNS: Final = 20
STORED: Final = 20_000

# What makes a row another run's; all other columns are copied as they are, whatever they become.
_IDS: Final[Mapping[str, frozenset[str]]] = {
    "fermata.runs": frozenset({"id", "response_id"}),
    "fermata.responses": frozenset({"id", "run_id"}),
    "fermata.interrupts": frozenset({"call_id", "run_id", "response_id"}),
    "checkpoints": frozenset({"thread_id"}),
    "checkpoint_blobs": frozenset({"thread_id"}),
    "checkpoint_writes": frozenset({"thread_id"}),
}


@dataclass(frozen=True, slots=True)
class Case:
    """How many runs are stored, and how many of them have expired."""

    stored: int
    expired: int


@dataclass(frozen=True, slots=True)
class Cost:
    """One sweep."""

    deleted: int
    seconds: float
    grown_mib: float  # peak resident memory over that before the sweep


def cases(stored: int) -> Sequence[Case]:
    """Nothing expired; a tenth of much; and growing numbers of which all have."""
    tenth, half = stored // 10, stored // 2
    return (
        Case(stored, 0),
        Case(stored, tenth),
        Case(tenth, tenth),
        Case(half, half),
        Case(stored, stored),
    )


def measure_sweeps(ground: Ground, rounds: int, wanted: Sequence[Case]) -> str:
    """A Markdown table of these cases, measured in turn round after round."""
    costs: dict[Case, list[Cost]] = {case: [] for case in wanted}
    with ground.database() as seed:
        _pause_for_real(ground, seed)
        for _ in range(rounds):
            for case, measured in costs.items():
                with ground.database(template=name_of(seed)) as url:
                    _multiply(url, case)
                    measured.append(_sweep_in_fresh_process(url, case))
    columns = ("paused runs", "expired", "deleted", "sweep ms", "µs a deleted run", "memory MiB")
    return markdown(columns, [_row(case, measured) for case, measured in costs.items()])


def _row(case: Case, costs: Sequence[Cost]) -> Sequence[str]:
    return (
        str(case.stored),
        str(case.expired),
        str(costs[0].deleted),
        spread([1000 * cost.seconds for cost in costs]),
        spread([1e6 * cost.seconds / cost.deleted for cost in costs]) if case.expired else "–",
        spread([cost.grown_mib for cost in costs]),
    )


# -- Making paused runs ----------------------------------------------------------------------------


def _pause_for_real(ground: Ground, url: str) -> None:
    from openai import OpenAI  # late: the processes that sweep import this module too

    with (
        ground.gateway(url, {}) as server,
        OpenAI(base_url=server.base_url, api_key="benchmark") as client,
    ):
        for number in range(REAL_RUNS):
            paused = client.responses.create(model="approval", input=f"Refund order {number}")
            assert paused.output[-1].type == "function_call"


def _multiply(url: str, case: Case) -> None:
    """Copies of the real runs, so many as the case wants, in their place."""
    with psycopg.connect(url, autocommit=True) as conn:
        with conn.transaction():
            for table, ids in _IDS.items():
                _copy_rows(conn, table, ids, -(-case.stored // REAL_RUNS))
            _keep(conn, case)
        conn.execute("VACUUM ANALYZE")
        # Otherwise what the copying left to do would be done while the sweep is timed.
        conn.execute("CHECKPOINT")


def _copy_rows(conn: psycopg.Connection, table: str, ids: frozenset[str], copies: int) -> None:
    """Rows again under `md5(id:number)`: the same function of an id in all tables, so that what
    belonged together does. The real rows are dropped once there are copies."""
    columns = _columns(conn, table)
    name = sql.Identifier(*table.split("."))
    new = sql.SQL(", ").join(
        sql.SQL("md5({} || ':' || n)").format(sql.Identifier(column))
        if column in ids
        else sql.Identifier(column)
        for column in columns
    )
    listed = sql.SQL(", ").join(map(sql.Identifier, columns))
    copy = sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {}, generate_series(1, %s) AS n")
    conn.execute(copy.format(name, listed, new, name), (copies,))


def _columns(conn: psycopg.Connection, table: str) -> list[str]:
    statement = (
        "SELECT attname::text FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
        " AND NOT attisdropped AND attgenerated = '' ORDER BY attnum"
    )
    return [row[0] for row in conn.execute(statement, (table,))]


def _keep(conn: psycopg.Connection, case: Case) -> None:
    """Exactly the case's number of runs, and of these exactly its number expired."""
    conn.execute(
        "CREATE TEMPORARY TABLE kept ON COMMIT DROP AS SELECT id, row_number() OVER (ORDER BY id)"
        " AS number FROM fermata.runs WHERE length(id) = 32 ORDER BY id LIMIT %s",
        (case.stored,),
    )
    for table, column in (
        ("fermata.runs", "id"),
        ("fermata.responses", "run_id"),
        ("checkpoints", "thread_id"),
        ("checkpoint_blobs", "thread_id"),
        ("checkpoint_writes", "thread_id"),
    ):
        delete = sql.SQL("DELETE FROM {} WHERE {} NOT IN (SELECT id FROM kept)")
        conn.execute(delete.format(sql.Identifier(*table.split(".")), sql.Identifier(column)))
    for table, column in (("runs", "id"), ("responses", "run_id")):
        expire = sql.SQL(
            "UPDATE fermata.{} SET expires_at = now() - interval '1 second'"
            " WHERE {} IN (SELECT id FROM kept WHERE number <= %s)"
        )
        conn.execute(expire.format(sql.Identifier(table), sql.Identifier(column)), (case.expired,))


# -- Sweeping them ---------------------------------------------------------------------------------


def _sweep_in_fresh_process(url: str, case: Case) -> Cost:
    command = [sys.executable, "-m", "tests.benchmarks.sweep", url]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    cost = Cost(**json.loads(done.stdout))
    if cost.deleted != case.expired:
        raise RuntimeError(f"{case}: the sweep deleted {cost.deleted} runs")
    return cost


async def _sweep(url: str) -> Cost:
    async with open_database(url, size=1) as database:
        assert await database.reachable(within=30)
        with _memory() as grown:
            started = time.perf_counter()
            # No retention: an expired run's own record goes in the same sweep, so all is counted.
            swept = await sweep(database, timedelta())
            seconds = time.perf_counter() - started
    if not swept.expired_runs == swept.deleted_runs == swept.deleted_responses:
        raise RuntimeError(f"something of a run was left: {swept}")
    return Cost(swept.deleted_runs, seconds, max(grown))


@contextmanager
def _memory() -> Iterator[list[float]]:
    """MiB of resident memory over that at the start, sampled each millisecond; a thread, because
    the loop is busy exactly when memory would grow."""
    process, done = psutil.Process(), threading.Event()
    before = process.memory_info().rss
    grown = [0.0]

    def sample() -> None:
        while not done.wait(0.001):
            grown.append((process.memory_info().rss - before) / 2**20)

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield grown
    finally:
        done.set()
        sampler.join()


if __name__ == "__main__":
    print(json.dumps(asdict(uvloop.run(_sweep(sys.argv[1])))))
