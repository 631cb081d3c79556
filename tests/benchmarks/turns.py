"""What a turn costs, early and late in a long conversation: a history that were stored or read anew
with each turn would make the late ones dear.

Every way of going on is measured: `previous_response_id`, `conversation`, and the client that sends
its whole history itself, which grows whatever a server does.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from openai import OpenAI

from tests.benchmarks.ground import Ground
from tests.benchmarks.measure import cpu_of
from tests.benchmarks.report import markdown, spread

TURNS: Final = 200
MODEL: Final = "echo"
SAID: Final = "Words of about the length that people type into a chat, and some more. " * 2
WAYS: Final = ("previous_response_id", "conversation", "whole history resent")
SPANS: Final = 10
"""The conversation is told in so many spans of equal length; the first and the last are shown."""


@dataclass(frozen=True, slots=True)
class Talk:
    """One conversation: seconds and server CPU seconds of each turn; at its end, the bytes that
    were stored for each turn (text, before compression) and the seconds that a page of its items
    took."""

    seconds: Sequence[float]
    cpu: Sequence[float]
    stored: Sequence[int]
    page: float


def measure_turns(ground: Ground, rounds: int, turns: int) -> str:
    """A Markdown table: a row a way."""
    talks: dict[str, list[Talk]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, measured in talks.items():
            with ground.database() as url, ground.gateway(url, {}) as server:
                measured.append(_talk(server.base_url, server.pid, url, way, turns))
    columns = (
        "turns go on by", "ms a turn, first tenth", "last tenth", "CPU ms a turn, first tenth",
        "last tenth", "stored KiB a turn, first tenth", "last tenth", "a page of items, ms",
    )  # fmt: skip
    return markdown(columns, [_row(way, measured) for way, measured in talks.items()])


def _talk(base_url: str, pid: int, database_url: str, way: str, turns: int) -> Talk:
    cpu = cpu_of(pid)
    seconds, spent = [], []
    with OpenAI(base_url=base_url, api_key="benchmark") as client:
        named: Mapping[str, Any] = {}
        if way == "conversation":
            named = {"conversation": client.conversations.create().id}
        history: list[Any] = []
        for _ in range(turns):
            said: list[Any] = [{"role": "user", "content": SAID}]
            before, started = cpu(), time.perf_counter()
            told = client.responses.create(model=MODEL, input=[*history, *said], **named)
            seconds.append(time.perf_counter() - started)
            spent.append(cpu() - before)
            if way == "previous_response_id":
                named = {"previous_response_id": told.id}
            elif way != "conversation":
                history += [*said, *told.output]
        started = time.perf_counter()
        client.responses.input_items.list(told.id)
        page = time.perf_counter() - started
    return Talk(seconds, spent, _stored(database_url), page)


def _stored(database_url: str) -> list[int]:
    """Bytes that each response has in the tables, and its items in its conversation."""
    with psycopg.connect(database_url) as conn:
        rows = conn.execute(
            "SELECT length(r.input::text) + length(r.body::text) + coalesce((SELECT"
            " sum(length(i.item::text)) FROM fermata.conversation_items i"
            " WHERE i.conversation_id = r.conversation_id AND i.id IN (SELECT value ->> 'id'"
            " FROM json_array_elements(r.input) UNION SELECT value ->> 'id'"
            " FROM json_array_elements(r.body -> 'output'))), 0)"
            " FROM fermata.responses r ORDER BY r.created_at"
        ).fetchall()
    return [int(stored) for (stored,) in rows]


def _row(way: str, talks: Sequence[Talk]) -> Sequence[str]:
    cells = [way]
    for name, scale in (("seconds", 1000.0), ("cpu", 1000.0), ("stored", 1 / 1024)):
        for part in (0, -1):
            means = [_mean(getattr(talk, name), part) * scale for talk in talks]
            cells.append(spread(means))
    return [*cells, spread([1000 * talk.page for talk in talks])]


def _mean(values: Sequence[float], part: int) -> float:
    span = max(1, len(values) // SPANS)
    some = values[:span] if part == 0 else values[-span:]
    return sum(some) / len(some)
