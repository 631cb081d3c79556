"""`/metrics`: what this process counted and what stands in the database, for Prometheus.

Counting is `runs.meter`; prometheus_client only writes it down when it is asked for, so that no
request pays for it. It tells of all tenants, so where credentials are asked for it takes the role
`metrics`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate

from fastapi import APIRouter
from prometheus_client.core import (
    CollectorRegistry,
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from gateway.errors import Forbidden, Unavailable
from gateway.http.auth import principal_of
from gateway.http.state import Gateway, gateway_of
from gateway.runs.meter import BOUNDS, METER, Durations, Meter
from gateway.store.db import Row, fetch

ROLE = "metrics"
WEBSOCKET = "WEBSOCKET"
METHODS = frozenset(("GET", "POST", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS", WEBSOCKET))

router = APIRouter()


@router.get("/metrics", response_model=None)
async def metrics(request: Request) -> Response:
    """Text for Prometheus, or OpenMetrics if it is asked for. Raises `Forbidden`."""
    gateway = gateway_of(request)
    if gateway.authenticator is not None and ROLE not in principal_of(request).roles:
        raise Forbidden(f"The metrics of all tenants take the role '{ROLE}'.")
    registry = CollectorRegistry()
    registry.register(_Told(gateway, METER, await _standing(gateway)))
    encode, media_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(registry), headers={"content-type": media_type})


def measured(scope: Scope, status: int, seconds: float) -> None:
    """Count a request that was answered. Its labels are of ours: what clients make up, as methods
    or paths, would be a series each."""
    route = scope.get("route")
    method = scope.get("method", WEBSOCKET)
    METER.request(
        method if method in METHODS else "other",
        getattr(route, "path", "unknown"),
        status,
        seconds,
    )


async def _standing(gateway: Gateway) -> list[Row] | None:
    """What stands in the database; None if that cannot be told now."""
    if not gateway.migrated:
        return None
    try:
        async with gateway.coordinator.database.connection() as conn:
            return await fetch(conn, "standing")
    except Unavailable:
        return None


class _Told(Collector):
    """All metrics at one moment."""

    def __init__(self, gateway: Gateway, meter: Meter, standing: list[Row] | None) -> None:
        self._gateway = gateway
        self._meter = meter
        self._standing = standing

    def collect(self) -> Iterable[Metric]:
        """What the registry reads."""
        yield from self._of_process()
        yield from self._of_pool()
        yield from self._of_database()

    def _of_process(self) -> Iterator[Metric]:
        meter = self._meter
        yield _counts("responses", "Responses that ended here.", "status", meter.responses)
        yield _counts("answers", "Answers to questions that came here.", "outcome", meter.answers)
        lost = "Runs that this process lost to another."
        yield CounterMetricFamily("fermata_leases_lost", lost, meter.leases_lost)
        went_on = "Responses that were gone on with here after their holder had died."
        yield CounterMetricFamily("fermata_takeovers", went_on, meter.takeovers)
        failed = "First requests that were failed here after their holder had died."
        yield CounterMetricFamily("fermata_orphans_failed", failed, meter.orphans_failed)
        running = self._gateway.coordinator.running_now
        yield GaugeMetricFamily("fermata_runs_moving", "Runs that move here now.", running)
        yield _durations(meter)

    def _of_pool(self) -> Iterator[Metric]:
        size, used, waiting = self._gateway.coordinator.database.usage()
        yield GaugeMetricFamily("fermata_pool_connections", "Connections of the pool.", size)
        yield GaugeMetricFamily("fermata_pool_in_use", "Connections that are in use.", used)
        waits = "Statements that wait for a connection."
        yield GaugeMetricFamily("fermata_pool_waiting", waits, waiting)

    def _of_database(self) -> Iterator[Metric]:
        reached = self._standing is not None
        up = "Whether the database answered; without it, the last series are missing."
        yield GaugeMetricFamily("fermata_database_up", up, int(reached))
        if self._standing is None:
            return
        told = "What is open in the database, the same for all processes that share it."
        family = GaugeMetricFamily("fermata_open", told, labels=["what", "status"])
        for row in self._standing:
            family.add_metric([row["what"], row["status"]], row["count"])
        yield family


def _counts(name: str, told: str, label: str, counted: dict[str, int]) -> Metric:
    family = CounterMetricFamily(f"fermata_{name}", told, labels=[label])
    for value, count in sorted(counted.items()):
        family.add_metric([value], count)
    return family


def _durations(meter: Meter) -> Metric:
    family = HistogramMetricFamily(
        "fermata_http_request_duration_seconds",
        "From a request's beginning to the end of its response, streams included.",
        labels=["method", "route", "status"],
    )
    for (method, route, status), durations in sorted(meter.requests.items()):
        family.add_metric([method, route, str(status)], _buckets(durations), durations.total)
    return family


def _buckets(durations: Durations) -> list[tuple[str, float]]:
    bounds = [*map(str, BOUNDS), "+Inf"]
    return list(zip(bounds, accumulate(durations.buckets), strict=True))
