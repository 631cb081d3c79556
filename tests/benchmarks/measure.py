"""Runs a case and keeps the figures."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import psutil

Run: TypeAlias = Callable[[], Awaitable[int]]
WARM_UP: Final = 3


class RunFailed(Exception):
    """A run that did not end as its case demands; the message is the counted reason."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One case, one subject, one round. Seconds throughout."""

    runs: int
    units: int
    seconds: float
    cpu: float | None
    times: tuple[float, ...]  # of the runs that succeeded, ascending
    failures: Mapping[str, int]

    @property
    def succeeded(self) -> int:
        return len(self.times)

    @property
    def rate(self) -> float:
        return self.units / self.seconds

    @property
    def cpu_ms(self) -> float | None:
        """Milliseconds of CPU for each unit; None where nobody knows."""
        return 1000 * self.cpu / self.units if self.cpu is not None and self.units else None

    def quantile_ms(self, share: float) -> float | None:
        if not self.times:
            return None
        return 1000 * self.times[min(len(self.times) - 1, int(share * len(self.times)))]


async def measure(
    run: Run, *, runs: int, concurrency: int, cpu: Callable[[], float] | None
) -> Measured:
    """Runs `run` so many times; it answers how many units it was. A failed run is not repeated."""
    # Failures are not looked at here: they show in what follows.
    warm_up = (run() for _ in range(min(WARM_UP, runs, concurrency)))
    await asyncio.gather(*warm_up, return_exceptions=True)
    left = iter(range(runs))
    units: list[int] = []
    times: list[float] = []
    failures: Counter[str] = Counter()

    async def worker() -> None:
        for _ in left:
            started = time.perf_counter()
            try:
                units.append(await run())
            except RunFailed as reason:
                failures[str(reason)] += 1
            else:
                times.append(time.perf_counter() - started)

    cpu_before = cpu() if cpu else 0.0
    started = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(min(concurrency, runs))))
    seconds = time.perf_counter() - started
    used = cpu() - cpu_before if cpu else None
    return Measured(runs, sum(units), seconds, used, tuple(sorted(times)), failures)


def cpu_of(pid: int) -> Callable[[], float]:
    """CPU seconds so far of a process and its children: a gateway with workers is several."""
    process = psutil.Process(pid)

    def seconds() -> float:
        spent = [each.cpu_times() for each in (process, *process.children(recursive=True))]
        return float(sum(times.user + times.system for times in spent))

    return seconds
