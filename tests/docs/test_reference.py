"""The reference says what the code says: nothing is missing, and nothing is made up."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from gateway import async_effect, effect, errors
from gateway.__main__ import main
from gateway.app import create_app
from gateway.runs.run import RunStatus
from gateway.settings import SETTINGS, Settings
from gateway.store.checkpoints import TABLES
from gateway.store.statements import SQL
from tests.docs.pages import DOCS, ROOT, pages, rows, section

REFERENCE = DOCS / "reference"
EFFECTS = REFERENCE / "effects.md"
AUDIT, ERRORS, HTTP, SCHEMA = (
    REFERENCE / f"{name}.md" for name in ("audit", "errors", "http", "schema")
)


# --- settings --------------------------------------------------------------------------------


def test_every_setting_has_its_row_and_its_default() -> None:
    table = (REFERENCE / "settings.md").read_text()
    documented = [(row[0], row[1]) for row in rows(table) if row[0].startswith("FERMATA_")]
    assert documented == [(one.variable, one.default or "not set") for one in SETTINGS]


def test_the_command_s_help_lists_every_setting_with_its_default(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    told = capsys.readouterr().out
    for one in SETTINGS:
        default = "" if one.default is None else f" [{one.default}]"
        assert f"{one.variable:30} {one.description}{default}\n" in told


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_no_page_names_a_setting_that_is_none(page: Path) -> None:
    named = set(re.findall(r"\bFERMATA_[A-Z_]*[A-Z]\b", page.read_text()))
    assert named <= {one.variable for one in SETTINGS} | {"FERMATA_TEST"}


# --- errors ----------------------------------------------------------------------------------


def test_every_error_has_its_row() -> None:
    documented = {row[0]: tuple(row[1:]) for row in rows(ERRORS.read_text()) if len(row) == 5}
    assert documented == {
        kind.__name__: (
            str(kind.status),
            kind.code,
            kind.type,
            "no" if kind.retry_after is None else str(kind.retry_after),
        )
        for kind in (errors.FermataError, *subclasses(errors.FermataError))
    }


def subclasses(kind: type[errors.FermataError]) -> Iterator[type[errors.FermataError]]:
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:  # others are told by one of these
            yield child
            yield from subclasses(child)


def test_every_finer_code_is_documented_and_used() -> None:
    documented = {row[0] for row in rows(ERRORS.read_text()) if len(row) == 2}
    used = set(codes_in_code())
    classes = {kind.code for kind in subclasses(errors.FermataError)} | {"server_error"}
    patterns = {code for code in used if "*" in code}
    matched = {
        code
        for code in documented
        for pattern in patterns
        if re.fullmatch(pattern.replace("*", r"\w+"), code)
    }
    assert used - patterns - classes <= documented
    assert documented <= used | matched | classes
    assert all(any(re.fullmatch(p.replace("*", r"\w+"), c) for c in matched) for p in patterns)


def codes_in_code() -> Iterator[str]:
    """Every code that an error is raised with; the variable part of one is `*`."""
    for file in (ROOT / "gateway").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                yield from (spelled(value) for value in code_arguments(node))


def code_arguments(call: ast.Call) -> list[ast.expr]:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    given = [one.value for one in call.keywords if one.arg == "code"]
    if name == "refuse":
        given += call.args[2:3]
    # A run that went with its client: nobody is left to be told.
    return [one for one in given if is_text(one) and spelled(one) != "cancelled"]


def is_text(value: ast.expr) -> bool:
    constant = isinstance(value, ast.Constant) and isinstance(value.value, str)
    return constant or isinstance(value, ast.JoinedStr)


def spelled(value: ast.expr) -> str:
    if isinstance(value, ast.JoinedStr):
        return "".join(spelled(part) if is_text(part) else "*" for part in value.values)
    assert isinstance(value, ast.Constant)
    return str(value.value)


# --- routes ----------------------------------------------------------------------------------


def test_every_route_is_documented_and_there() -> None:
    documented = {(row[0], row[1]) for row in rows(HTTP.read_text()) if row[0].startswith("/")}
    served = create_app(Settings.from_env({}), {}).openapi()["paths"]
    assert documented == {
        (path, method.upper()) for path, methods in served.items() for method in methods
    }


# --- the audit -------------------------------------------------------------------------------


def test_every_event_of_the_audit_is_documented_and_written_somewhere() -> None:
    documented = {row[0] for row in rows(section(AUDIT, "Events"))}
    statements = "\n".join(SQL.values())
    sources = "".join(file.read_text() for file in (ROOT / "gateway").rglob("*.py"))
    # The first text of what is inserted is the event; else it is a parameter, told in Python.
    inserted = re.findall(r"INSERT INTO fermata\.audit [^;']*?SELECT ([^;']*?)'(\w+)'", statements)
    told = {event for before, event in inserted if "%(event)s" not in before}
    told |= set(re.findall(r"""(?:Recorded\(|\bevent"?[:=] ?)"([a-z_]+)\"""", sources))
    assert told <= documented
    assert all(f"'{event}'" in statements or f'"{event}"' in sources for event in documented)
    assert len(told) > 10


# --- the schema ------------------------------------------------------------------------------


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database_url) as opened:
        yield opened


SHORT_TYPES = {"timestamp with time zone": "timestamptz"}


def test_every_table_and_column_is_documented_and_there(connection: psycopg.Connection) -> None:
    found: dict[str, list[tuple[str, str]]] = {}
    for table, column, kind in connection.execute(
        "SELECT table_name, column_name, data_type FROM information_schema.columns"
        " WHERE table_schema = 'fermata' ORDER BY table_name, ordinal_position"
    ):
        found.setdefault(table, []).append((column, SHORT_TYPES.get(kind, kind)))
    documented = {
        table: [(row[0], row[1]) for row in rows(section(SCHEMA, f"`fermata.{table}`"))]
        for table in re.findall(r"^## `fermata\.(\w+)`$", SCHEMA.read_text(), re.MULTILINE)
    }
    assert documented == found


def test_every_index_is_documented_and_there(connection: psycopg.Connection) -> None:
    found = connection.execute(
        "SELECT indexname FROM pg_indexes LEFT JOIN pg_constraint ON conname = indexname"
        " WHERE schemaname = 'fermata' AND conname IS NULL"
    )
    documented = {row[0] for row in rows(section(SCHEMA, "Indexes"))}
    assert documented == {name for (name,) in found}


def test_langgraph_s_tables_are_those_that_are_there(connection: psycopg.Connection) -> None:
    found = connection.execute(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
    )
    documented = {row[0] for row in rows(section(SCHEMA, "LangGraph's tables"))}
    assert documented == {name for (name,) in found} == {*TABLES, "checkpoint_migrations"}


def test_the_states_of_a_run_are_explained() -> None:
    lifecycle = (DOCS / "explanation" / "run-lifecycle.md").read_text()
    assert [row[0] for row in rows(lifecycle)] == [str(status) for status in RunStatus]


# --- effects ---------------------------------------------------------------------------------


def test_every_option_of_an_effect_has_its_row() -> None:
    documented = [
        (row[0], row[1].strip("`"))
        for row in rows(section(EFFECTS, "`effect`, `async_effect`"))
        if len(row) == 3
    ]
    for function in (effect, async_effect):
        parameters = inspect.signature(function).parameters.values()
        assert documented == [(one.name, spelled_default(one.default)) for one in parameters]


def spelled_default(default: object) -> str:
    if default is inspect.Parameter.empty:
        return ""
    if isinstance(default, timedelta):
        return f"{default.total_seconds():g} s"
    return repr(default)


def test_every_effect_error_and_event_is_named() -> None:
    raised = section(EFFECTS, "`effect`, `async_effect`")
    assert all(f"`{kind.__name__}`" in raised for kind in subclasses(errors.EffectError))
    documented = {row[0] for row in rows(section(EFFECTS, "On record"))}
    sources = ("runs/ledger.py", "store/effects.py")
    code = "".join((ROOT / "gateway" / source).read_text() for source in sources)
    assert documented == set(re.findall(r'"(effect_[a-z]+)"', code))
