"""Counts of the process."""

from __future__ import annotations

import pytest

from gateway.runs.meter import BOUNDS, Durations, Meter


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [(0.0, 0), (BOUNDS[0], 0), (0.0051, 1), (BOUNDS[-1], len(BOUNDS) - 1), (1e9, len(BOUNDS))],
)
def test_a_duration_falls_into_the_first_bucket_that_holds_it(seconds: float, bucket: int) -> None:
    """Bounds are inclusive, as Prometheus' `le` is."""
    durations = Durations()
    durations.add(seconds)
    assert [n for n, count in enumerate(durations.buckets) if count] == [bucket]
    assert durations.total == seconds


def test_requests_are_kept_apart() -> None:
    meter = Meter()
    for status in (200, 200, 404):
        meter.request("GET", "/x", status, 0.1)
    assert {key[2]: sum(one.buckets) for key, one in meter.requests.items()} == {200: 2, 404: 1}
