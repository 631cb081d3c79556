"""Rounds to a Markdown table: medians, with the lowest and the highest round behind them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from tests.benchmarks.cases import Case
from tests.benchmarks.measure import Measured

Results: TypeAlias = Mapping[Case, Mapping[str, Sequence[Measured]]]
"""By case, by subject (the gateway comes first), by round."""

_COLUMNS = (
    "case", "subject", "per second", "unit", "Fermata ÷ this", "succeeded", "p50 ms", "p95 ms",
    "CPU ms a unit",
)  # fmt: skip


def table(results: Results) -> str:
    """A row for every subject of every case; ratios are the medians of the rounds' ratios."""
    rows: list[Sequence[str]] = []
    for case, subjects in results.items():
        gateway = next(iter(subjects.values()))
        rows += [_row(case, name, rounds, gateway) for name, rounds in subjects.items()]
    return markdown(_COLUMNS, rows)


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def spread(values: Sequence[float | None]) -> str:
    """`median (lowest..highest)`; the median alone if there was one round."""
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    if len(known) == 1:
        return _short(known[0])
    return f"{_short(statistics.median(known))} ({_short(min(known))}..{_short(max(known))})"


def _row(
    case: Case, name: str, rounds: Sequence[Measured], gateway: Sequence[Measured]
) -> Sequence[str]:
    ratios = [ours.rate / its.rate for ours, its in zip(gateway, rounds, strict=True) if its.rate]
    return (
        case.title,
        name,
        spread([each.rate for each in rounds]),
        case.unit,
        "" if rounds is gateway else spread(ratios),
        _succeeded(rounds),
        spread([each.quantile_ms(0.5) for each in rounds]),
        spread([each.quantile_ms(0.95) for each in rounds]),
        spread([each.cpu_ms for each in rounds]),
    )


def _succeeded(rounds: Sequence[Measured]) -> str:
    runs, succeeded = sum(each.runs for each in rounds), sum(each.succeeded for each in rounds)
    reasons = sorted({reason for each in rounds for reason in each.failures})
    return f"{succeeded}/{runs}" + (f" ({'; '.join(reasons)})" if reasons else "")


def _short(value: float) -> str:
    """Three digits that count: 12345, 123, 12.3, 1.23, 0.0123."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
