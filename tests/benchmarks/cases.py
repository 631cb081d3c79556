"""What is measured: scenarios, and the cases of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Case:
    """So many `runs` of one graph, so many at a time."""

    name: str
    model: str
    concurrency: int
    runs: int
    unit: str  # what is counted: a run, or the deltas of a run
    streamed: bool = False
    answers: bool = False  # pauses once and is answered

    @property
    def title(self) -> str:
        return f"{self.name}, {self.concurrency} at once"


@dataclass(frozen=True, slots=True)
class Scenario:
    """Cases that one gateway serves, and its settings (`FERMATA_` left out)."""

    cases: tuple[Case, ...]
    settings: Mapping[str, str] = field(default_factory=dict)


def _round_trip(concurrency: int, runs: int, *, streamed: bool) -> Case:
    name = f"pause and answer ({'SSE' if streamed else 'JSON'})"
    return Case(name, "approval", concurrency, runs, "round trips", streamed, answers=True)


SCENARIOS: Mapping[str, Scenario] = {
    "roundtrip": Scenario(
        tuple(
            _round_trip(concurrency, runs, streamed=streamed)
            for streamed in (False, True)
            for concurrency, runs in ((1, 200), (8, 800), (64, 1280))
        )
    ),
    "guarantees": Scenario(
        tuple(
            Case(
                f"pause and answer, {what} (JSON)",
                model,
                concurrency,
                runs,
                "round trips",
                answers=True,
            )
            for concurrency, runs in ((1, 200), (8, 800))
            for what, model in (("no effect", "approval"), ("one effect", "effect"))
        )
    ),
    "echo": Scenario(
        tuple(
            Case("echo (JSON)", "echo", concurrency, runs, "requests")
            for concurrency, runs in ((1, 600), (8, 1600), (64, 1600))
        )
    ),
    "stream": Scenario(
        tuple(
            Case("stream (SSE)", "stream", concurrency, runs, "deltas", streamed=True)
            for concurrency, runs in ((1, 6), (8, 24))
        )
    ),
    "inflight": Scenario(
        (Case("asleep in flight (JSON)", "sleep", 500, 500, "runs"),),
        settings={"POOL_SIZE": "5"},
    ),
}
