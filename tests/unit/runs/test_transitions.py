"""The status table is closed, and the schema knows the same names."""

from __future__ import annotations

import re
from importlib.resources import files

from gateway.runs.run import TRANSITIONS, RunStatus

FINAL = {RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.EXPIRED}
SCHEMA = files("gateway.store") / "sql" / "migrations" / "0001_foundation.sql"


def check_of(table: str) -> set[str]:
    """The names in the CHECK of the table's `status` column."""
    text = SCHEMA.read_text()
    _, _, body = text.partition(f"CREATE TABLE fermata.{table} (")
    found = re.search(r"CHECK \(status IN \(([^)]*)\)\)", body)
    assert found is not None
    return set(re.findall(r"'(\w+)'", found[1]))


def test_the_table_is_closed_over_the_statuses() -> None:
    assert set(TRANSITIONS) == set(RunStatus)
    for exits in TRANSITIONS.values():
        assert set(exits) <= set(RunStatus)
        assert all(exits.values()), "every transition says why"


def test_final_states_have_no_exits_and_all_others_do() -> None:
    assert {status for status, exits in TRANSITIONS.items() if not exits} == FINAL


def test_every_state_but_the_first_is_entered() -> None:
    entered = {status for exits in TRANSITIONS.values() for status in exits}
    assert entered == set(RunStatus)


def test_no_state_leads_to_itself() -> None:
    assert all(status not in exits for status, exits in TRANSITIONS.items())


def test_every_state_can_reach_an_end() -> None:
    reaching = set(FINAL)
    while more := {one for one, exits in TRANSITIONS.items() if set(exits) & reaching} - reaching:
        reaching |= more
    assert reaching == set(RunStatus)


def test_an_accepted_answer_is_only_left_by_running_or_giving_up() -> None:
    assert set(TRANSITIONS[RunStatus.STALLED]) == {
        RunStatus.RUNNING,
        RunStatus.EXPIRED,
        RunStatus.CANCELLED,
    }
    assert RunStatus.STALLED not in TRANSITIONS[RunStatus.WAITING]


def test_the_schema_holds_the_same_names() -> None:
    assert check_of("runs") == {status.value for status in RunStatus}
