"""Migrations, the named statements and what the schema refuses, on a real PostgreSQL."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import errors, sql
from psycopg._queries import MAX_CACHED_STATEMENT_LENGTH
from psycopg.rows import dict_row

from gateway.errors import StartupError
from gateway.store.checkpoints import TABLES
from gateway.store.db import migrate, migrations
from gateway.store.statements import SQL

ROOT = Path(__file__).parents[2]
OURS = {"fermata.runs", "fermata.responses", "fermata.interrupts", "fermata.leases"}
NEWEST = max(version for version, _, _ in migrations())


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection[dict[str, Any]]]:
    with psycopg.connect(database_url, autocommit=True, row_factory=dict_row) as opened:
        yield opened


def tables(url: str) -> set[str]:
    with psycopg.connect(url) as opened:
        rows = opened.execute(
            "SELECT table_schema || '.' || table_name FROM information_schema.tables"
            " WHERE table_schema IN ('public', 'fermata')"
        )
        return {name for (name,) in rows}


def fermata(*arguments: str, url: str) -> subprocess.Popen[str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("FERMATA_")}
    return subprocess.Popen(
        [sys.executable, "-m", "gateway", *arguments],
        cwd=ROOT,
        env={**environ, "FERMATA_DATABASE_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_reader_that_left_gets_no_traceback(database_url: str) -> None:
    """As `fermata effects list | head` does it."""
    process = fermata("migrate", url=database_url)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    told = process.stderr.read()
    assert (process.wait(timeout=60), told) == (128 + signal.SIGPIPE, "")
    process.stderr.close()


# --- migrating -------------------------------------------------------------------------------


def test_eight_processes_migrate_an_empty_database_at_once(empty_database_url: str) -> None:
    started = [fermata("migrate", url=empty_database_url) for _ in range(8)]
    told = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0] * 8, told
    assert {out for out, _ in told} == {f"The schema is at version {NEWEST}.\n"}
    found = tables(empty_database_url)
    assert found >= OURS
    # In `public`, or in a schema of the user's own name: where LangGraph puts them.
    assert {name.partition(".")[2] for name in found} >= set(TABLES)
    with psycopg.connect(empty_database_url) as opened:
        applied = opened.execute("SELECT version FROM fermata.migrations ORDER BY 1").fetchall()
    assert applied == [(version,) for version, _, _ in migrations()]


def test_migrate_does_only_that(empty_database_url: str, tmp_path: Path) -> None:
    """It ends by itself, listens on nothing, starts no PostgreSQL, and needs no graphs."""
    process = fermata("migrate", url=empty_database_url)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert out.count("\n") == 1
    with psycopg.connect(empty_database_url) as opened:
        for table in sorted(OURS):
            found = opened.execute(sql.SQL("SELECT count(*) FROM {}").format(name_of(table)))
            assert found.fetchone() == (0,), table


async def test_migrating_again_changes_nothing(database_url: str) -> None:
    before = tables(database_url)
    assert await migrate(database_url) == NEWEST
    assert tables(database_url) == before


async def test_a_migration_that_came_in_late_is_applied(database_url: str) -> None:
    """Two branches number their migrations; the higher one may be released first."""
    with psycopg.connect(database_url, autocommit=True) as opened:
        opened.execute("DROP TABLE fermata.api_keys")
        opened.execute("DROP INDEX fermata.interrupts_open")
        opened.execute("ALTER TABLE fermata.responses DROP COLUMN follows")
        opened.execute("DELETE FROM fermata.migrations WHERE version = 2")
    assert await migrate(database_url) == NEWEST
    assert "fermata.api_keys" in tables(database_url)


async def test_a_newer_schema_is_refused(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as opened:
        opened.execute(
            "INSERT INTO fermata.migrations (version, name) VALUES (%s, 'later')", (NEWEST + 1,)
        )
    with pytest.raises(StartupError, match=f"version {NEWEST + 1}, newer than"):
        await migrate(database_url)


def test_a_newer_schema_stops_the_command_with_a_sentence(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as opened:
        opened.execute("INSERT INTO fermata.migrations (version, name) VALUES (9999, 'later')")
    process = fermata("migrate", url=database_url)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")
    assert err.startswith("fermata: ")
    assert "9999" in err
    assert "Traceback" not in err


def test_migrations_are_numbered_in_order() -> None:
    found = list(migrations())
    numbers = [version for version, _, _ in found]
    assert numbers == sorted(set(numbers))
    assert len({name for _, name, _ in found}) == len(found)


# --- statements ------------------------------------------------------------------------------

_PARAMETER = re.compile(r"%\((\w+)\)[bst]")

# Values for a plan that depends on them; everything else is NULL, of the type that the
# statement gives it.
VALUES: dict[str, Any] = {
    "batch": 100,
    "limit": 100,
    "retention": timedelta(days=1),
    "ttl": timedelta(seconds=30),
}


def explain(connection: psycopg.Connection[dict[str, Any]], name: str) -> str:
    statement = SQL[name]
    values = {key: VALUES.get(key) for key in _PARAMETER.findall(statement)}
    rows = connection.execute("EXPLAIN " + statement, values).fetchall()
    return "\n".join(row["QUERY PLAN"] for row in rows)


def test_there_are_statements_and_each_has_one_name() -> None:
    files = (ROOT / "gateway" / "store" / "sql").glob("*.sql")
    texts = "\n".join(file.read_text() for file in files)
    names = re.findall(r"^-- name: (\w+)$", texts, re.MULTILINE)
    assert len(names) == len(set(names)) == len(SQL)
    assert set(names) == set(SQL)


def test_psycopg_remembers_what_it_made_of_every_statement() -> None:
    """It does not for longer ones, and parses them anew each time."""
    longest = max(SQL, key=lambda name: len(SQL[name].encode()))
    assert len(SQL[longest].encode()) <= MAX_CACHED_STATEMENT_LENGTH, longest


@pytest.mark.parametrize("name", sorted(SQL))
def test_every_statement_explains(
    connection: psycopg.Connection[dict[str, Any]], name: str
) -> None:
    assert "cost=" in explain(connection, name)


@pytest.mark.parametrize("name", sorted(SQL))
def test_every_statement_names_its_schema(name: str) -> None:
    """Behind a transaction-mode pooler there is no search_path of one's own."""
    found = re.findall(r"\b(?:FROM|INTO|UPDATE|JOIN)\s+(?!ONLY\b)([a-z_.]+)", SQL[name])
    local = set(re.findall(r"(\w+)\s+(?:\([^()]*\)\s+)?AS\s+(?:MATERIALIZED\s+)?\(", SQL[name]))
    functions = {"unnest", "set_config", "generate_series", "json_array_elements"}
    outside = {one for one in found if not one.startswith("fermata.")}
    assert outside <= local | set(TABLES) | functions | {"skip"}, name


@pytest.mark.parametrize(
    ("statement", "index"),
    [
        ("expire_runs", "runs_expiring"),
        ("delete_runs", "runs_ended"),
        ("delete_responses", "responses_expiring"),
        ("delete_effects", "effects_settled"),
        ("orphans", "responses_in_progress"),
        ("claim_queued", "responses_queued"),
        ("trim_events", "responses_logged"),
        ("delete_keys", "idempotency_keys_expiring"),
    ],
)
def test_what_runs_again_and_again_reads_a_partial_index(
    connection: psycopg.Connection[dict[str, Any]], statement: str, index: str
) -> None:
    """A sweep costs what it deletes, recovery what is running; neither what is stored."""
    connection.execute("SET enable_seqscan = off")
    assert index in explain(connection, statement)


@pytest.mark.parametrize(
    "index", ["runs_expiring", "runs_ended", "responses_in_progress", "responses_expiring"]
)
def test_those_indexes_are_partial(
    connection: psycopg.Connection[dict[str, Any]], index: str
) -> None:
    row = connection.execute(
        "SELECT indexdef FROM pg_indexes WHERE schemaname = 'fermata' AND indexname = %s", (index,)
    ).fetchone()
    assert row is not None
    assert " WHERE " in row["indexdef"]


# --- what the schema refuses -----------------------------------------------------------------

RUN: dict[str, Any] = {
    "id": "run_1",
    "tenant": "t",
    "requester": "anna",
    "model": "m",
    "status": "waiting",
    "response_id": "resp_1",
    "settings": "{}",
    "expires_at": "2026-12-01",
}
RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "tenant": "t",
    "run_id": "run_1",
    "model": "m",
    "status": "in_progress",
    "stored": True,
    "lease_id": "proc_1",
    "input": "[]",
    "body": "{}",
}
QUESTION: dict[str, Any] = {
    "call_id": "call_1",
    "tenant": "t",
    "run_id": "run_1",
    "response_id": "resp_1",
    "position": 1,
    "interrupt_id": "a" * 32,
    "name": "ask",
    "question": "{}",
    "status": "pending",
    "expires_at": "2026-12-08",
}
ANSWERED = {"status": "answered", "answer": '"yes"', "answered_at": "2026-12-01"}


def name_of(table: str) -> sql.Identifier:
    return sql.Identifier(*table.split("."))


def insert(connection: psycopg.Connection[dict[str, Any]], table: str, row: dict[str, Any]) -> None:
    connection.execute(
        sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
            sql.Identifier("fermata", table),
            sql.SQL(", ").join(map(sql.Identifier, row)),
            sql.SQL(", ").join(map(sql.Placeholder, row)),
        ),
        row,
    )


def test_good_rows_are_taken(connection: psycopg.Connection[dict[str, Any]]) -> None:
    insert(connection, "runs", RUN)
    insert(connection, "runs", RUN | {"id": "run_2", "status": "running", "expires_at": None})
    insert(connection, "responses", RESPONSE)
    ended = {"status": "completed", "completed_at": "2026-12-01", "lease_id": None}
    insert(connection, "responses", RESPONSE | ended | {"id": "resp_2"})
    insert(connection, "interrupts", QUESTION | ANSWERED)
    insert(connection, "interrupts", QUESTION | {"call_id": "call_2", "position": 2})


@pytest.mark.parametrize(
    ("table", "row"),
    [
        ("runs", RUN | {"status": "paused"}),
        ("runs", RUN | {"status": "running"}),
        ("runs", RUN | {"expires_at": None}),
        ("runs", RUN | {"status": "completed", "expires_at": None}),
        ("responses", RESPONSE | {"status": "waiting"}),
        ("responses", RESPONSE | {"lease_id": None}),
        ("responses", RESPONSE | {"completed_at": "2026-12-01"}),
        ("responses", RESPONSE | {"status": "completed", "lease_id": None}),
        ("interrupts", QUESTION | {"status": "open"}),
        ("interrupts", QUESTION | {"status": "answered"}),
        ("interrupts", QUESTION | {"answer": '"yes"'}),
        ("interrupts", QUESTION | ANSWERED | {"answer": None}),
        ("interrupts", QUESTION | ANSWERED | {"status": "pending"}),
    ],
)
def test_bad_rows_are_refused(
    connection: psycopg.Connection[dict[str, Any]], table: str, row: dict[str, Any]
) -> None:
    insert(connection, "runs", RUN | {"id": "run_of_a_question"})
    if table == "interrupts":
        row = row | {"run_id": "run_of_a_question"}
    with pytest.raises(errors.CheckViolation):
        insert(connection, table, row)


def test_an_interrupt_has_one_open_question(
    connection: psycopg.Connection[dict[str, Any]],
) -> None:
    insert(connection, "runs", RUN)
    insert(connection, "interrupts", QUESTION)
    again = QUESTION | {"call_id": "call_2", "position": 2}
    with pytest.raises(errors.UniqueViolation, match="interrupts_pending"):
        insert(connection, "interrupts", again)
    connection.execute(
        "UPDATE fermata.interrupts SET status = 'answered', answer = '1', answered_at = now()"
    )
    insert(connection, "interrupts", again)


def test_a_question_belongs_to_a_run_and_goes_with_it(
    connection: psycopg.Connection[dict[str, Any]],
) -> None:
    with pytest.raises(errors.ForeignKeyViolation):
        insert(connection, "interrupts", QUESTION)
    insert(connection, "runs", RUN)
    insert(connection, "interrupts", QUESTION)
    connection.execute("DELETE FROM fermata.runs")
    assert connection.execute("SELECT * FROM fermata.interrupts").fetchall() == []


def test_lease_tokens_only_grow(connection: psycopg.Connection[dict[str, Any]]) -> None:
    tokens = []
    for _ in range(3):
        insert(connection, "leases", {"id": "run_1", "owner": "proc_1", "expires_at": "2026-12-01"})
        row = connection.execute("DELETE FROM fermata.leases RETURNING token").fetchone()
        assert row is not None
        tokens.append(row["token"])
    assert tokens == sorted(set(tokens))


def test_what_people_send_can_be_stored(
    connection: psycopg.Connection[dict[str, Any]],
) -> None:
    """json, not jsonb: NUL and lone surrogates are told back as they came."""
    text = r'{"a":"\u0000\ud800","n":1180591620717411303424}'
    insert(connection, "responses", RESPONSE | {"body": text})
    row = connection.execute("SELECT body::text AS body FROM fermata.responses").fetchone()
    assert row == {"body": text}
