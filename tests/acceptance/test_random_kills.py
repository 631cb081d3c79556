"""Hundreds of kill -9 at random moments: nothing is lost, nothing happens twice.

Clients ask and answer without a pause, and repeat what brought no answer, as clients do; meanwhile
every replica is killed, anywhere in what it does, and started again, over and over. The moments
cannot be reproduced; how long each replica lives, and what people decide can:
FERMATA_TEST_SEED repeats a run, FERMATA_TEST_KILLS says how many kills it has.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psycopg

from tests.acceptance.chaos_graphs import transfers
from tests.acceptance.server import Server
from tests.acceptance.test_chaos import GRAPHS, Json, answering, text
from tests.acceptance.zygote import zygote

KILLS = int(os.environ.get("FERMATA_TEST_KILLS", "201"))
REPLICAS, CLIENTS = 3, 4
SETTINGS = {
    "FERMATA_LEASE_TTL": "1s",
    "FERMATA_POOL_SIZE": "3",
    "FERMATA_SWEEP_INTERVAL": "1s",
    "FERMATA_LOG_LEVEL": "critical",
}
LONGEST_LIFE = 0.9  # seconds
PATIENCE = 120.0  # seconds that a client repeats itself


@dataclass
class Farm:
    """Replicas, each of which is killed and started again, over and over."""

    database_url: str
    folder: Path
    seed: int
    servers: list[Server] = field(default_factory=list)

    def start(self) -> None:
        for _ in range(REPLICAS):
            self.servers.append(Server(self.database_url, self.folder, SETTINGS, GRAPHS).start())

    def haunt(self, number: int) -> int:
        """Kill this replica for its share of times; how often it was."""
        chance, victim, kills = random.Random(f"{self.seed} {number}"), self.servers[number], 0
        while kills < KILLS // REPLICAS:
            time.sleep(chance.uniform(0, LONGEST_LIFE))
            victim.kill9()
            kills += 1
            victim.restart()
        return kills

    def url(self, number: int) -> str:
        return self.servers[number % REPLICAS].url


@dataclass
class Deal:
    """One question, what its client decided, and what came of it."""

    key: str
    decision: str
    paused: Json
    done: Json


class Client:
    """Asks and answers until it is told to stop; each request is sent until it is answered."""

    def __init__(self, number: int, farm: Farm) -> None:
        self.number = number
        self.farm = farm
        self.chance = random.Random(f"{farm.seed} client {number}")
        self.deals: list[Deal] = []

    def work(self, ending: threading.Event) -> list[Deal]:
        while not ending.is_set():
            key = f"{self.number}-{len(self.deals)}"
            decision = self.chance.choice(["approve", "approve", "approve", "reject"])
            paused = self.ask(key)
            done = self.told(answering(paused, decision))
            assert done["status"] == "completed", done
            self.deals.append(Deal(key, decision, paused, done))
        return self.deals

    def ask(self, key: str) -> Json:
        """A first request that died with its process is failed, and asked anew."""
        while True:
            asked = self.told({"model": "transfer", "input": key})
            if asked["status"] == "completed":
                return asked

    def told(self, body: Json) -> Json:
        """The same request, to one replica after the other, until one answers."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            url = self.farm.url(self.chance.randrange(REPLICAS))
            try:
                answer = httpx.post(f"{url}/v1/responses", json=body, timeout=30)
            except httpx.HTTPError:
                time.sleep(0.02)
                continue
            if answer.status_code == 200:
                return dict(answer.json())
            assert answer.status_code in (409, 503), answer.text
            time.sleep(0.05)
        raise AssertionError(f"nobody answered {body} in time")


def test_hundreds_of_kills(database_url: str, tmp_path: Path) -> None:
    """P1, P2, P3, P4, P5, P7, P8, C20."""
    seed = int(os.environ.get("FERMATA_TEST_SEED", random.randrange(10**9)))
    print(f"FERMATA_TEST_SEED={seed} FERMATA_TEST_KILLS={KILLS}")
    (tmp_path / "state").mkdir()
    farm = Farm(database_url, tmp_path, seed)
    with running(farm):
        assert_kept(farm, haunted(farm))


@contextmanager
def running(farm: Farm) -> Iterator[None]:
    farm.start()
    try:
        yield
    finally:
        for server in farm.servers:
            server.close()


def haunted(farm: Farm) -> list[Deal]:
    """What the clients did while replicas died."""
    ending = threading.Event()
    with ThreadPoolExecutor(CLIENTS + REPLICAS) as pool:
        clients = [pool.submit(Client(one, farm).work, ending) for one in range(CLIENTS)]
        killers = [pool.submit(farm.haunt, one) for one in range(REPLICAS)]
        try:
            kills = sum(killer.result() for killer in killers)
        finally:
            ending.set()
        deals = [deal for client in clients for deal in client.result()]
    assert kills == KILLS // REPLICAS * REPLICAS
    print(f"{kills} kills, {len(deals)} answers")
    return deals


def assert_kept(farm: Farm, deals: list[Deal]) -> None:
    assert len(deals) > KILLS / 10, "the clients got hardly anything done"
    moved = transfers(farm.folder / "state" / "bank.jsonl")
    assert sorted(moved) == sorted(deal.key for deal in deals if deal.decision == "approve")
    for deal in deals:
        receipt = (
            f"receipt of {deal.key}" if deal.decision == "approve" else "nothing was transferred"
        )
        assert text(deal.done) == receipt
        read = httpx.get(f"{farm.url(0)}/v1/responses/{deal.done['id']}")
        assert read.json() == deal.done
    assert_nothing_left(farm)
    with (farm.folder / "audit.log").open("a") as log:
        environ = {**os.environ, "FERMATA_DATABASE_URL": farm.database_url}
        assert zygote().run(["audit", "verify", "--all"], environ, log) == 0


def assert_nothing_left(farm: Farm) -> None:
    """Runs that ended have no checkpoints; all others wait for an answer that nobody sent."""
    questions = (
        "SELECT count(*) FROM fermata.runs WHERE status NOT IN ('waiting', 'completed')",
        "SELECT count(*) FROM checkpoints c JOIN fermata.runs r ON r.id = c.thread_id"
        " WHERE r.status <> 'waiting'",
        "SELECT count(*) FROM checkpoints c WHERE NOT EXISTS"
        " (SELECT FROM fermata.runs r WHERE r.id = c.thread_id)",
        "SELECT count(*) FROM fermata.leases l JOIN fermata.runs r ON r.id = l.id",
        "SELECT count(*) FROM fermata.responses WHERE completed_at IS NULL",
    )
    deadline = time.monotonic() + 30  # first requests of the last victims are still being failed
    with psycopg.connect(farm.database_url, autocommit=True) as connection:
        while left := [_count(connection, question) for question in questions]:
            if not any(left):
                return
            assert time.monotonic() < deadline, left
            time.sleep(0.1)


def _count(connection: psycopg.Connection[Any], question: str) -> int:
    row = connection.execute(question.encode()).fetchone()
    assert row is not None
    return int(row[0])
