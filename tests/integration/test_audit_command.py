"""`fermata audit`: three runs read as stories, and tampering that is seen."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from gateway.__main__ import main
from gateway.wire import encoding
from graphs import GRAPHS as DEMONSTRATION
from tests.integration.api import calls, output, serving
from tests.integration.people import keys_of
from tests.integration.stories import STORIES
from tests.integration.test_reviewers import Desk
from tests.openresponses import Json


@pytest.fixture
def database(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A database that the command line uses."""
    monkeypatch.setenv("FERMATA_DATABASE_URL", database_url)
    before = signal.getsignal(signal.SIGTERM)
    yield database_url
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def fermata(
    database: str, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs a command; its exit code and what it printed."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["audit", *arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def played(
    database_url: str, model: str, said: str, answers: Sequence[tuple[str, Any]]
) -> tuple[Json, int]:
    """A run that mia asks for and these people answer; what asked, and the last status."""

    async def play() -> tuple[Json, int]:
        async with serving(database_url, {**STORIES, **DEMONSTRATION}, AUTH="keys") as api:
            desk = Desk(api, await keys_of(database_url))
            asked = await desk.create(model, said)
            for who, answer in answers:
                body = {
                    "model": model,
                    "previous_response_id": asked["id"],
                    "input": [output(calls(asked)[0], answer)],
                }
                sent = await api.post(body, headers=desk.headers(who))
        return asked, sent.status_code

    return asyncio.run(play())


def told(text: str) -> str:
    """The story with ids numbered in the order of their appearance, and without its times."""
    numbers: dict[str, str] = {}

    def number(found: re.Match[str]) -> str:
        kind = found[1]
        known = sum(one.startswith(kind) for one in numbers.values())
        return numbers.setdefault(found[0], f"{kind}_{known + 1}")

    text = re.sub(r"\b(run|resp|call)_[0-9a-f]{40}", number, text)
    return re.sub(r"\d{4}-\d\d-\d\d[ T][\d:.]+Z", "TIME", text).strip()


# --- stories ---------------------------------------------------------------------------------

EDIT = {
    "action": "edit",
    "value": {"user": "user-123", "revoke_sessions": False},
    "note": "the reset is enough",
}


def test_an_edited_reset_reads_as_a_story(
    database: str, fermata: Callable[..., tuple[int, str, str]]
) -> None:
    asked, status = played(
        database, "reset", "Reset user-123", [("mia", "approve"), ("bob", json.dumps(EDIT))]
    )
    assert status == 200
    code, out, err = fermata("show", asked["id"])
    assert (code, err) == (0, "")
    assert (
        told(out)
        == """\
run_1 of shop, 7 rows
  1  TIME  requested  by mia  resp_1
       model: reset
       requested_at: TIME
  2  TIME  asked  call_1  resp_1
       name: approve_reset_password
       question: May reset_password run with these arguments?
       action: reset_password
       tier: credential
       payload: {"user":"user-123","revoke_sessions":true}
       expects: approval
       allowed: ["approve","reject","edit","respond"]
       roles: ["manager"]
       four_eyes: true
  3  TIME  refused  by mia  call_1  resp_1
       code: reviewer_not_allowed
       message: This question needs a second person: whoever started the run may not answer it.
       roles: ["manager"]
  4  TIME  answered  by bob  call_1  resp_2
       decision: edit
       note: the reset is enough
       before: {"user":"user-123","revoke_sessions":true}
       after: {"user":"user-123","revoke_sessions":false}
       roles: ["manager"]
  5  TIME  effect_claimed  resp_2
       key: reset:INC-42:user-123
       arguments: {"user":"user-123","revoke_sessions":false}
       attempt: 1
  6  TIME  effect_done  resp_2
       key: reset:INC-42:user-123
       result: {"receipt":"user-123-reset"}
  7  TIME  completed  resp_2"""
    )


def test_a_refused_reset_reads_as_a_story(
    database: str, fermata: Callable[..., tuple[int, str, str]]
) -> None:
    said = json.dumps({"action": "reject", "note": "not by telephone"})
    asked, status = played(database, "reset", "Reset user-123", [("carl", "yes"), ("bob", said)])
    assert status == 200
    code, out, _ = fermata("show", calls(asked)[0]["call_id"])
    assert code == 0
    assert [line.split("TIME  ")[1] for line in told(out).splitlines() if "  TIME  " in line] == [
        "requested  by mia  resp_1",
        "asked  call_1  resp_1",
        "refused  by carl  call_1  resp_1",
        "answered  by bob  call_1  resp_2",
        "completed  resp_2",
    ]
    assert "role 'manager'" in out
    assert "decision: reject\n       note: not by telephone" in out
    assert "effect" not in out


def test_a_refund_reads_as_a_story(
    database: str, fermata: Callable[..., tuple[int, str, str]]
) -> None:
    said = "Refund order ORDER-123"
    asked, status = played(database, "interruptible-approval", said, [("bob", "approve")])
    assert status == 200
    code, out, _ = fermata("show", asked["id"])
    assert code == 0
    key = "run_1:ORDER-123"
    payload = {
        "question": "Refund EUR 49.90 for ORDER-123?",
        "order": "ORDER-123",
        "amount": "49.90",
        "currency": "EUR",
    }
    paid = {"order": "ORDER-123", "amount": "49.90"}
    sent = {
        "order": "ORDER-123",
        "message": "We have refunded EUR 49.90 for your order ORDER-123.",
    }
    assert told(out).splitlines() == [
        "run_1 of shop, 7 rows",
        "  1  TIME  requested  by mia  resp_1",
        "       model: interruptible-approval",
        "       requested_at: TIME",
        "  2  TIME  asked  call_1  resp_1",
        "       name: review_refund",
        "       question: Refund EUR 49.90 for ORDER-123?",
        f"       payload: {encoding.dumps(payload)}",
        "       expects: any",
        "  3  TIME  answered  by bob  call_1  resp_2",
        "       value: approve",
        '       roles: ["manager"]',
        "  4  TIME  effect_claimed  resp_2",
        f"       key: {key}:refund",
        f"       arguments: {encoding.dumps({**paid, 'idempotency_key': f'{key}:refund'})}",
        "       attempt: 1",
        "  5  TIME  effect_done  resp_2",
        f"       key: {key}:refund",
        f"       result: {encoding.dumps({'payment': f'{key}:refund', **paid})}",
        "  6  TIME  effect_done  resp_2",
        f"       key: {key}:notification",
        f"       arguments: {encoding.dumps(sent)}",
        "       result: null",
        "  7  TIME  completed  resp_2",
    ]
    assert said not in out


# --- tampering -------------------------------------------------------------------------------


def tampered(database_url: str, *statements: str) -> None:
    """What a superuser can do who takes the law off the table first."""
    with psycopg.connect(database_url, autocommit=True) as opened:
        opened.execute("ALTER TABLE fermata.audit DISABLE TRIGGER ALL")
        for statement in statements:
            opened.execute(statement)
        opened.execute("ALTER TABLE fermata.audit ENABLE TRIGGER ALL")


SWAP = (
    "UPDATE fermata.audit SET seq = 99 WHERE seq = 3",
    "UPDATE fermata.audit SET seq = 3 WHERE seq = 4",
    "UPDATE fermata.audit SET seq = 4 WHERE seq = 99",
)


@pytest.mark.parametrize(
    ("statements", "told_of"),
    [
        (["UPDATE fermata.audit SET actor = 'anna' WHERE event = 'answered'"],
         "row 4 of run_1: was changed after it was written"),
        (["UPDATE fermata.audit SET details = '{\"decision\":\"approve\"}' WHERE seq = 4"],
         "row 4 of run_1: was changed after it was written"),
        (["UPDATE fermata.audit SET at = at - interval '1 day' WHERE seq = 2"],
         "row 2 of run_1: was changed after it was written"),
        (["DELETE FROM fermata.audit WHERE event = 'refused'"], "row 3 of run_1: missing"),
        (SWAP, "row 3 of run_1: was changed after it was written"),
        (["DELETE FROM fermata.audit WHERE event = 'completed'"],
         "run_1: 'completed' is not on record (resp_1)"),
        (["DELETE FROM fermata.audit WHERE seq >= 4"],
         "run_1: 'answered' is not on record (call_1)"),
        (["DELETE FROM fermata.audit"], "run_1: 'asked' is not on record (call_1)"),
    ],
    ids=["actor", "details", "time", "removed", "swapped", "end", "tail", "all"],
)  # fmt: skip
def test_tampering_is_seen(
    database: str,
    fermata: Callable[..., tuple[int, str, str]],
    statements: Sequence[str],
    told_of: str,
) -> None:
    played(database, "reset", "Reset", [("carl", "yes"), ("bob", json.dumps(EDIT))])
    assert fermata("verify", "--all")[:2] == (
        0, "7 rows: nothing is missing and nothing was changed.\n"
    )  # fmt: skip
    tampered(database, *statements)
    code, out, err = fermata("verify", "--all")
    assert (code, out) == (1, "")
    assert told_of in told(err)
    assert "fermata: The audit is not what was written:" in err


def test_a_tail_cut_off_after_its_run_is_gone_is_seen(
    database: str, fermata: Callable[..., tuple[int, str, str]]
) -> None:
    asked, _ = played(database, "reset", "Reset", [("bob", "reject")])
    with psycopg.connect(database) as opened:
        opened.execute("DELETE FROM fermata.runs")
    assert fermata("verify", asked["id"])[0] == 0
    tampered(database, "DELETE FROM fermata.audit WHERE event = 'completed'")
    code, _, err = fermata("verify", asked["id"])
    assert code == 1
    assert "run_1: 'completed' is not on record (the run is gone)" in told(err)


def test_an_export_kept_elsewhere_shows_what_a_chain_cannot(
    database: str, fermata: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    played(database, "reset", "Reset", [("carl", "yes"), ("bob", "reject")])
    code, out, _ = fermata("export")
    assert code == 0
    assert [json.loads(line)["event"] for line in out.splitlines()] == [
        "requested", "asked", "refused", "answered", "completed"
    ]  # fmt: skip
    kept = tmp_path / "audit.jsonl"
    kept.write_text(out)
    assert fermata("verify", "--against", str(kept))[:2] == (
        0, "5 rows of the file stand in the audit as they were.\n"
    )  # fmt: skip
    # The refusal goes, and whoever took it away computes everything after it anew.
    tampered(database, "DELETE FROM fermata.audit WHERE seq >= 3")
    with psycopg.connect(database) as opened:
        for event, call in (("answered", "call_id"), ("completed", "NULL")):
            opened.execute(
                "INSERT INTO fermata.audit (run_id, tenant, event, call_id, details)"
                f" SELECT run_id, tenant, '{event}', {call}, '{{}}' FROM fermata.audit"
                " WHERE event = 'asked'"
            )
    assert fermata("verify", "--all")[0] == 0
    code, _, err = fermata("verify", "--against", str(kept))
    assert code == 1
    assert told(err).splitlines()[:3] == [
        "row 3 of run_1: is another row than the one that was exported",
        "row 4 of run_1: is another row than the one that was exported",
        "row 5 of run_1: missing; it was there when it was exported",
    ]
    kept.write_text(out.replace('"carl"', '"anna"'))
    assert "row 3 of run_1: was changed in the file" in told(
        fermata("verify", "--against", str(kept))[2]
    )


def test_an_export_begins_where_it_is_told(
    database: str, fermata: Callable[..., tuple[int, str, str]]
) -> None:
    played(database, "reset", "Reset", [("bob", "reject")])
    lines = fermata("export")[1].splitlines()
    third = json.loads(lines[2])["at"]
    assert fermata("export", "--since", third)[1].splitlines() == lines[2:]
    assert fermata("export", "--since", "2999-01-01T00:00")[1] == ""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["show", "run_none"], "Nothing is on record for run_none"),
        (["show", "a\x1b[2Jb"], "Nothing is on record for"),
        (["verify"], "Say what to verify"),
        (["verify", "run_1", "--all"], "Say what to verify"),
        (["verify", "--against", "/nowhere/audit.jsonl"], "cannot be read"),
    ],
)
def test_what_cannot_be_shown_is_said_in_a_sentence(
    fermata: Callable[..., tuple[int, str, str]], arguments: Sequence[str], sentence: str
) -> None:
    code, out, err = fermata(*arguments)
    assert (code, out) == (1, "")
    assert sentence in err
    assert "\x1b" not in err


def test_a_terminal_is_not_told_what_to_do(
    database: str, fermata: Callable[..., tuple[int, str, str]]
) -> None:
    """What people wrote is printed as text, whatever a terminal would make of it."""
    with psycopg.connect(database) as opened:
        opened.execute(
            "SELECT fermata.record('shop', 'run_1', 'asked', NULL, NULL, %s)",
            (json.dumps({"question": "\x9b2J\x1b[2J\n", "\x9b": 1}, ensure_ascii=False),),
        )
    code, out, _ = fermata("show", "run_1")
    assert out.replace("\n", "").isprintable()
    assert "\\u009b2J\\u001b[2J" in out
    assert code == 1  # no run of this id is known, and it has no end
