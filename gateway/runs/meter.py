"""What this process counts: plain numbers, read by `/metrics`.

One for the process, as its leases and its loop are: whoever sees something happen adds it here, for
a tenth of a microsecond, and knows nothing of Prometheus. Everything happens on the loop, so there
is nothing to lock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the buckets of a duration, in seconds; the last bucket has none."""


@dataclass(slots=True)
class Durations:
    """How often something took how long: a count per bucket, and the sum in seconds."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        """One more that took so long."""
        self.buckets[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds


@dataclass(slots=True)
class Meter:
    """Counts since the process began."""

    responses: Counter[str] = field(default_factory=Counter)
    """Responses that ended here, by `paused` or their status."""
    answers: Counter[str] = field(default_factory=Counter)
    """Answers to questions: `accepted`, `repeated`, or the code of their refusal."""
    requests: dict[tuple[str, str, int], Durations] = field(default_factory=dict)
    """HTTP requests by method, route and status, from the first byte in to the last byte out."""
    leases_lost: int = 0
    takeovers: int = 0
    """Responses that this process went on with after their holder had died."""
    orphans_failed: int = 0
    """First requests of dead processes that were failed."""

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """One request is answered."""
        durations = self.requests.get((method, route, status))
        if durations is None:
            durations = self.requests[method, route, status] = Durations()
        durations.add(seconds)


METER = Meter()
