"""The chain of an audit, computed apart from the database: what it shows and what it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import pytest

from gateway.store.chain import AuditRow, digest, faults, from_line, seed, to_line

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)


def chain(run_id: str = "run_1", count: int = 4) -> list[AuditRow]:
    """An honest chain."""
    made: list[AuditRow] = []
    for seq in range(1, count + 1):
        row = AuditRow(
            run_id, seq, "shop", "asked", None, f"call_{seq}", "bob",
            NOON + timedelta(seconds=seq), b"", b"", f'{{"n" : {seq}}}',
        )  # fmt: skip
        row = replace(row, previous=made[-1].hash if made else seed(row))
        made.append(replace(row, hash=digest(row)))
    return made


def found(rows: Sequence[AuditRow]) -> list[str]:
    return [
        fault for before, row in pairwise([None, *rows]) if row for fault in faults(before, row)
    ]


def test_an_honest_chain_has_no_fault_nor_have_two() -> None:
    assert found(chain() + chain("run_2")) == []


@pytest.mark.parametrize(
    "change",
    [
        {"actor": "anna"},
        {"actor": None},
        {"event": "answered"},
        {"tenant": "rival"},
        {"response_id": "resp_1"},
        {"call_id": None},
        {"details": '{"n": 2}'},
        {"at": NOON},
    ],
)
def test_a_change_is_seen_where_it_was_made(change: dict[str, Any]) -> None:
    rows = chain()
    rows[1] = replace(rows[1], **change)
    assert found(rows) == ["row 2 of run_1: was changed after it was written"]


def test_a_change_with_its_hash_computed_anew_breaks_the_row_after_it() -> None:
    rows = chain()
    changed = replace(rows[1], actor="anna")
    rows[1] = replace(changed, hash=digest(changed))
    assert found(rows) == ["row 3 of run_1: does not follow what stands before it"]


@pytest.mark.parametrize(
    ("kept", "told"),
    [
        ([1, 2, 3], "row 1 of run_1: missing"),
        ([0, 3], "rows 2 to 3 of run_1: missing"),
        ([0, 1, 3], "row 3 of run_1: missing"),
    ],
)
def test_what_was_removed_is_missed(kept: list[int], told: str) -> None:
    rows = chain()
    assert found([rows[n] for n in kept]) == [told]


def test_a_removed_row_whose_place_was_taken_is_seen() -> None:
    one, _, three, four = chain()
    rows = [one, replace(three, seq=2), replace(four, seq=3)]
    assert found(rows) == [
        "row 2 of run_1: does not follow what stands before it",
        "row 2 of run_1: was changed after it was written",
        "row 3 of run_1: was changed after it was written",
    ]


def test_two_rows_that_changed_places_are_seen() -> None:
    one, two, three, four = chain()
    assert found([one, replace(three, seq=2), replace(two, seq=3), four])


def test_a_chain_is_no_other_run_s_nor_another_tenant_s() -> None:
    moved = [replace(row, run_id="run_2") for row in chain()]
    assert "row 1 of run_2: does not follow what stands before it" in found(moved)
    given = [replace(row, tenant="rival") for row in chain()]
    assert "row 1 of run_1: does not follow what stands before it" in found(given)


def test_a_tail_that_was_cut_off_is_not_seen_here() -> None:
    """The limit that the reference names: an export kept elsewhere shows it."""
    assert found(chain()[:-1]) == []


def test_a_line_gives_the_row_back_whatever_the_row_holds() -> None:
    (row,) = chain(count=1)
    odd = replace(
        row,
        actor='é "x",\\"details\\":{}',
        at=datetime(2026, 12, 1, 9, 0, 0, 1, tzinfo=timezone(timedelta(hours=5, minutes=30))),
        details='{"a" : "\\u0000\\ud800", "details":{},"n":1180591620717411303424}',
    )
    odd = replace(odd, hash=digest(odd))
    again = from_line(to_line(odd) + "\n")
    assert again == odd
    assert digest(again) == odd.hash


@pytest.mark.parametrize("line", ["", "{}", '{"a": 1,"details":{}}', '{"run_id": 1,"details":'])
def test_what_is_no_line_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="no row of an audit"):
        from_line(line)
