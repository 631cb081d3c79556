"""Nothing lost, nothing twice: a gateway is killed, stopped, cut off at every point of an answer.

Three replicas on one database. The client talks to the first, whose way to the database leads
through a proxy; whatever happens to it, the other two must finish the run, or leave it as it was.
P3, P4, P5, C20.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.acceptance.chaos_graphs import (
    AFTER_THE_RECORD,
    BEFORE_THE_EFFECT,
    BEFORE_THE_RECORD,
    transfers,
)
from tests.acceptance.http_proxy import holding_back
from tests.acceptance.points import VARIABLE, Points
from tests.acceptance.server import Server, serving
from tests.acceptance.zygote import zygote
from tests.postgres.proxy import COMMIT, COMMITTED, DatabaseProxy, proxied

GRAPHS = "tests.acceptance.chaos_graphs:GRAPHS"
SETTINGS = {"LEASE_TTL": "1s", "POOL_SIZE": "4", "LOG_LEVEL": "warning"}
HELD_BY_THE_NODE = (BEFORE_THE_EFFECT, BEFORE_THE_RECORD, AFTER_THE_RECORD)
TRIES = ("refused", "taken_over", "effect_claimed")
"""What the audit may tell besides: how often it was tried."""
_keys = count(1)

Json = dict[str, Any]


@dataclass
class Replicas:
    """A victim behind a proxy, two survivors, and what the tests see of them."""

    database_url: str
    folder: Path
    proxy: DatabaseProxy
    points: Points
    survivors: list[Server]

    @contextmanager
    def victim(self) -> Iterator[Server]:
        with serving(self.proxy.url, self.folder, GRAPHS, **self.settings) as server:
            yield server

    @property
    def settings(self) -> dict[str, str]:
        return {**SETTINGS, VARIABLE.removeprefix("FERMATA_"): str(self.points.folder)}

    def fermata(self, *arguments: str) -> int:
        """The exit code of a command."""
        with (self.folder / "command.log").open("a") as log:
            environ = {**os.environ, "FERMATA_DATABASE_URL": self.database_url}
            return zygote().run(arguments, environ, log)

    def transfers(self, key: str) -> int:
        return transfers(self.folder / "state" / "bank.jsonl").count(key)

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database_url) as connection:
            return connection.execute(statement.encode(), values).fetchall()


@pytest.fixture(scope="module")
def replicas(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Replicas]:
    folder = tmp_path_factory.mktemp("replicas")
    with proxied(module_database_url) as proxy, ExitStack() as stack:
        made = Replicas(module_database_url, folder, proxy, Points(folder / "points"), [])
        made.points.folder.mkdir()
        (folder / "state").mkdir()
        for _ in range(2):
            survivor = serving(module_database_url, folder, GRAPHS, **made.settings)
            made.survivors.append(stack.enter_context(survivor))
        yield made


# --- a client -------------------------------------------------------------------------------------


def post(server: Server | str, body: Json, timeout: float = 60) -> httpx.Response:
    url = server if isinstance(server, str) else server.url
    return httpx.post(f"{url}/v1/responses", json=body, timeout=timeout)


def ask(server: Server, key: str) -> Json:
    answer = post(server, {"model": "transfer", "input": key})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def answering(paused: Json, said: str = "approve") -> Json:
    """The request that answers."""
    (call,) = [item for item in paused["output"] if item["type"] == "function_call"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": said}
    return {"model": "transfer", "previous_response_id": paused["id"], "input": [output]}


def text(response: Json) -> str:
    return "".join(
        part["text"]
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
    )


def assert_settled(replicas: Replicas, key: str, paused: Json, done: Json) -> None:
    """One effect, the final answer retrievable everywhere, and nothing of the run left behind."""
    assert (done["status"], text(done)) == ("completed", f"receipt of {key}")
    assert replicas.transfers(key) == 1
    for survivor in replicas.survivors:
        read = httpx.get(f"{survivor.url}/v1/responses/{done['id']}").json()
        assert read == done
        repeated = post(survivor, answering(paused))
        assert repeated.json() == done
        other = post(survivor, answering(paused, "reject"))
        assert other.json()["error"]["code"] == "interrupt_already_answered"
    ((run_id, status),) = replicas.rows(
        "SELECT id, status FROM fermata.runs"
        " WHERE id = (SELECT run_id FROM fermata.responses WHERE id = %s)",
        paused["id"],
    )
    assert status == "completed"
    for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes"):
        assert replicas.rows(f"SELECT count(*) FROM {table} WHERE thread_id = %s", run_id) == [(0,)]
    assert replicas.rows("SELECT count(*) FROM fermata.leases WHERE id = %s", run_id) == [(0,)]
    assert_on_record(replicas, run_id)
    open_ones = "SELECT count(*) FROM fermata.responses WHERE run_id = %s AND completed_at IS NULL"
    assert replicas.rows(open_ones, run_id) == [(0,)]


def assert_on_record(replicas: Replicas, run_id: str) -> None:
    """The audit alone tells what was asked, answered and done, each once, and is whole."""
    events = [
        event
        for (event,) in replicas.rows(
            "SELECT event FROM fermata.audit WHERE run_id = %s ORDER BY seq", run_id
        )
    ]
    told = [event for event in events if event not in TRIES]
    assert told == ["requested", "asked", "answered", "effect_done", "completed"]
    verified = replicas.fermata("audit", "verify", run_id)
    assert verified == 0, "the chain of the audit is broken"


# --- points -----------------------------------------------------------------------------------


@dataclass
class Held:
    """A gateway that stands still at a point. `release` lets it go on, `cut` loses what it said to
    the database, or its connections if it said nothing."""

    wait: Callable[[], None]
    release: Callable[[], None]
    cut: Callable[[], None]


def at_statement(name: str, when: str) -> Callable[[Replicas], AbstractContextManager[Held]]:
    @contextmanager
    def hold(replicas: Replicas) -> Iterator[Held]:
        with replicas.proxy.trap(name, when) as trap:
            yield Held(trap.wait, trap.release, trap.cut)

    return hold


def in_node(name: str) -> Callable[[Replicas], AbstractContextManager[Held]]:
    @contextmanager
    def hold(replicas: Replicas) -> Iterator[Held]:
        points = replicas.points
        points.arm(name)

        def release() -> None:
            points.release(name)

        def cut() -> None:
            replicas.proxy.cut()
            points.release(name)

        yield Held(lambda: points.wait(name), release, cut)

    return hold


POINTS = {
    "before the answer is stored": at_statement("accept_answers", COMMIT),
    "after the answer is stored": at_statement("accept_answers", COMMITTED),
    **{name: in_node(name) for name in HELD_BY_THE_NODE},
    "before the final commit": at_statement("end_resume", COMMIT),
    "after the final commit": at_statement("end_resume", COMMITTED),
}
at_every_point = pytest.mark.parametrize("point", POINTS)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as made:
        yield made


def new_key(point: str) -> str:
    return f"{point} {next(_keys)}"


@at_every_point
def test_P3_C20_killed(replicas: Replicas, pool: ThreadPoolExecutor, point: str) -> None:
    key, second = new_key(point), replicas.survivors[0]
    with replicas.victim() as victim:
        paused = ask(victim, key)
        with POINTS[point](replicas) as held:
            lost = pool.submit(post, victim, answering(paused))
            held.wait()
            victim.kill9()
        assert isinstance(lost.exception(), httpx.HTTPError)
        done = post(second, answering(paused)).json()
    assert_settled(replicas, key, paused, done)


@at_every_point
def test_P3_cut_off(replicas: Replicas, pool: ThreadPoolExecutor, point: str) -> None:
    """The connection breaks, the process lives: it tells what happened, or 503, and a repeat
    does."""
    key = new_key(point)
    with replicas.victim() as victim:
        paused = ask(victim, key)
        with POINTS[point](replicas) as held:
            answer: Future[httpx.Response] = pool.submit(post, victim, answering(paused))
            held.wait()
            held.cut()
            told = answer.result()
        if told.status_code == 503:
            assert int(told.headers["Retry-After"]) > 0
            told = post(victim, answering(paused))
        assert told.status_code == 200, told.text
        assert_settled(replicas, key, paused, told.json())


@at_every_point
def test_P4_stopped_across_a_takeover(
    replicas: Replicas, pool: ThreadPoolExecutor, point: str
) -> None:
    """SIGSTOP, a survivor finishes the run, SIGCONT: the zombie writes nothing."""
    key, second = new_key(point), replicas.survivors[0]
    with replicas.victim() as victim:
        paused = ask(victim, key)
        with POINTS[point](replicas) as held:
            late: Future[httpx.Response] = pool.submit(post, victim, answering(paused))
            held.wait()
            victim.stop()
            done = post(second, answering(paused)).json()
            before = everything(replicas)
            victim.cont()
            held.release()
            told = late.result()
            if told.status_code == 200:
                assert told.json() == done
            assert everything(replicas) == before
    assert_settled(replicas, key, paused, done)


def everything(replicas: Replicas) -> list[tuple[Any, ...]]:
    """Runs, responses and questions, as they are stored."""
    return [
        row
        for table in ("runs", "responses", "interrupts")
        for row in replicas.rows(f"SELECT t::text FROM fermata.{table} t ORDER BY 1")
    ]


@pytest.mark.parametrize(
    ("word", "stream"),
    [(b"HTTP/1.1 200", False), (b"event: response.completed", True), (b"data: [DONE]", True)],
    ids=["JSON", "the last event", "DONE"],
)
@pytest.mark.parametrize("how", ["killed", "cut off"])
def test_P3_before_the_last_byte(
    replicas: Replicas, pool: ThreadPoolExecutor, how: str, word: bytes, stream: bool
) -> None:
    key, second = new_key(f"before {word!r}"), replicas.survivors[0]
    with replicas.victim() as victim:
        paused = ask(victim, key)
        with holding_back(word, victim.url) as http:
            lost = pool.submit(post, http.url, {**answering(paused), "stream": stream})
            http.wait()
            if how == "killed":
                victim.kill9()
            http.cut()
            assert isinstance(lost.exception(), httpx.HTTPError)
        done = post(second, answering(paused)).json()
    assert_settled(replicas, key, paused, done)


def test_C21_killed_right_after_a_background_request_was_accepted(replicas: Replicas) -> None:
    replicas.points.arm("waiting")
    with replicas.victim() as victim:
        body = {"model": "waiting", "input": "hi", "background": True}
        accepted = post(victim, body).json()
        victim.kill9()
    assert accepted["status"] in ("queued", "in_progress")
    deadline = time.monotonic() + 60
    while (read := retrieved(replicas.survivors[0], accepted["id"]))["status"] != "completed":
        assert read["status"] in ("queued", "in_progress"), read
        if (replicas.points.folder / "waiting.held").exists():
            replicas.points.release("waiting")  # somebody has taken it up
        assert time.monotonic() < deadline, read
        time.sleep(0.05)
    assert text(read) == "waited"


def retrieved(server: Server, response_id: str) -> Json:
    return dict(httpx.get(f"{server.url}/v1/responses/{response_id}").json())
