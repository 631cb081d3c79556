"""Measures the gateway over HTTP, beside the floor that the same graphs reach without it.

    make bench                                     everything, three rounds
    make bench ARGS="roundtrip echo --rounds 5"    some of it

Prints Markdown on stdout, progress on stderr. See tests/benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import TypeAlias

import uvloop

from tests.benchmarks.cases import SCENARIOS, Case, Scenario
from tests.benchmarks.client import connect
from tests.benchmarks.floor import in_memory, on_postgres
from tests.benchmarks.ground import Ground, ground
from tests.benchmarks.measure import Measured, cpu_of, measure
from tests.benchmarks.report import table
from tests.benchmarks.sweep import STORED, cases, measure_sweeps
from tests.benchmarks.turns import TURNS, measure_turns

Rounds: TypeAlias = dict[Case, dict[str, list[Measured]]]
ALL = (*SCENARIOS, "sweep", "turns")


@dataclass(frozen=True, slots=True)
class Subject:
    """Who runs the cases: a server behind HTTP, or the bare graphs. `cpu` is unknown for peers."""

    name: str
    run: Callable[[Case], Awaitable[int]]
    cpu: Callable[[], float] | None


def main() -> int:
    options = _options()
    with ground(options.database_url) as base:
        print(_heading(base, options), flush=True)
        http = [name for name in ALL if name in options.scenarios and name in SCENARIOS]
        if http:
            print("\n" + table(_measure_all(base, http, options)), flush=True)
        if "sweep" in options.scenarios:
            _progress("sweep")
            print("\n" + measure_sweeps(base, options.rounds, cases(options.stored)), flush=True)
        if "turns" in options.scenarios:
            _progress("turns")
            print("\n" + measure_turns(base, options.rounds, options.turns), flush=True)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    # Not `choices`: argparse would hold the empty list of "all" against them.
    add("scenarios", nargs="*", help=f"{', '.join(ALL)}; all if none is named")
    add("--rounds", type=int, default=3)
    add("--requests", type=int, help="at most so many runs a case, to try things out")
    add("--stored", type=int, default=STORED, help="paused runs of the sweep")
    add("--turns", type=int, default=TURNS, help="of a conversation")
    add("--workers", type=int, default=1, help="processes of the gateway")
    add("--database-url", help="a PostgreSQL whose user may create databases; not set: embedded")
    add("--peer", action="append", default=[], metavar="NAME=URL", type=_peer,
        help="a running server of the same graphs, URL up to /v1; may be given again")  # fmt: skip
    options = parser.parse_args()
    if unknown := set(options.scenarios) - set(ALL):
        parser.error(f"no scenario {', '.join(sorted(unknown))}; there are {', '.join(ALL)}")
    options.scenarios = options.scenarios or list(ALL)
    return options


def _peer(text: str) -> tuple[str, str]:
    name, _, url = text.partition("=")
    if not url.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError("NAME=URL, as in other=http://127.0.0.1:8700/v1")
    return name, url.rstrip("/")


def _heading(base: Ground, options: argparse.Namespace) -> str:
    command = " ".join(["python -m tests.benchmarks", *sys.argv[1:]])
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    return (
        f"`{command}`: medians of {options.rounds} rounds (lowest..highest);"
        f" {os.cpu_count()} cores,"
        f" load before {load}; Python {platform.python_version()}, PostgreSQL {base.version()},"
        f" LangGraph {version('langgraph')}, gateway with {options.workers} worker(s)."
    )


def _measure_all(base: Ground, names: list[str], options: argparse.Namespace) -> Rounds:
    """Rounds over all scenarios, so that what disturbs the machine for a while disturbs all."""
    results: Rounds = defaultdict(lambda: defaultdict(list))
    for number in range(1, options.rounds + 1):
        for name in names:
            _progress(f"round {number}: {name}")
            _measure_scenario(base, SCENARIOS[name], options, results)
    return results


def _measure_scenario(
    base: Ground, scenario: Scenario, options: argparse.Namespace, results: Rounds
) -> None:
    """A fresh gateway on a fresh database; nothing of an earlier scenario slows it down."""
    settings = {"WORKERS": str(options.workers), **scenario.settings}
    with base.database() as own, base.database() as bare, base.gateway(own, settings) as server:
        gateway = ("Fermata", server.base_url, cpu_of(server.pid))

        async def measure_cases() -> None:
            peers = [(name, url, None) for name, url in options.peer]
            async with _subjects([gateway, *peers], bare, prepared=base.prepared) as subjects:
                for case in scenario.cases:
                    await _measure_case(_at_most(case, options.requests), subjects, results)

        uvloop.run(measure_cases())


@asynccontextmanager
async def _subjects(
    servers: list[tuple[str, str, Callable[[], float] | None]], bare_url: str, *, prepared: bool
) -> AsyncIterator[list[Subject]]:
    async with AsyncExitStack() as stack:
        subjects = [
            Subject(name, (await stack.enter_async_context(connect(url))).run, cpu)
            for name, url, cpu in servers
        ]
        postgres = await stack.enter_async_context(on_postgres(bare_url, prepared=prepared))
        subjects.append(Subject("bare graph in memory", in_memory().run, time.process_time))
        subjects.append(Subject("bare graph on PostgreSQL", postgres.run, time.process_time))
        yield subjects


async def _measure_case(case: Case, subjects: list[Subject], results: Rounds) -> None:
    for subject in subjects:
        measured = await measure(
            lambda run=subject.run: run(case),  # type: ignore[misc]  # bound now, called at once
            runs=case.runs, concurrency=case.concurrency, cpu=subject.cpu,
        )  # fmt: skip
        results[case][subject.name].append(measured)


def _at_most(case: Case, runs: int | None) -> Case:
    return case if runs is None else replace(case, runs=min(runs, case.runs))


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
