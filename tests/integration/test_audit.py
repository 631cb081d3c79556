"""P7: everything is on record, in the transaction of what it records, and stays as it was."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import MessagesState
from langgraph.types import interrupt
from psycopg import AsyncConnection, errors

from gateway import Graph, async_effect, current_run
from gateway.store.db import open_database
from gateway.store.retention import sweep
from tests.integration.api import calls, output, serving, whole_audit
from tests.integration.people import ASKING, keys_of
from tests.integration.small_graphs import chain, last_text
from tests.integration.stories import SECRET, STORIES
from tests.integration.test_reviewers import Desk
from tests.openresponses import Json

MONTH = timedelta(days=30)
HELD: dict[str, asyncio.Event] = {}
"""The runs that `hold` holds, until their event is set."""


async def hold(state: MessagesState) -> dict[str, Any]:
    """Do an effect, if the text says so, and wait; then ask, if the text says so."""
    text, run_id = last_text(state), current_run().run_id
    if "act" in text:
        await async_effect(text, lambda: "done")
    HELD[run_id] = asyncio.Event()
    await HELD[run_id].wait()
    return {"messages": [AIMessage(str(interrupt("sure?")))]} if "ask" in text else {}


OWN = {"hold": Graph(chain(hold))}


@pytest.fixture
async def desk(database_url: str) -> AsyncIterator[Desk]:
    async with serving(database_url, {**ASKING, **STORIES, **OWN}, AUTH="keys") as api:
        yield Desk(api, await keys_of(database_url))
    HELD.clear()
    await whole_audit(database_url)


async def rows(desk: Desk, response: Json) -> list[dict[str, Any]]:
    """The audit of the response's run."""
    return await desk.api.sql(
        "SELECT * FROM fermata.audit WHERE run_id ="
        " (SELECT run_id FROM fermata.audit WHERE response_id = %s LIMIT 1) ORDER BY seq",
        response["id"],
    )


async def told(desk: Desk, response: Json) -> list[tuple[str, str | None]]:
    """Event and actor of every row."""
    return [(row["event"], row["actor"]) for row in await rows(desk, response)]


async def last(desk: Desk, response: Json) -> dict[str, Any]:
    return (await rows(desk, response))[-1]


async def answer(
    desk: Desk, asked: Json, value: Any, who: str = "bob", call: Json | None = None
) -> tuple[int, Json]:
    """An answer by previous_response_id; the status and the body."""
    body = {
        "model": asked["model"],
        "previous_response_id": asked["id"],
        "input": [output(call or calls(asked)[0], value)],
    }
    sent = await desk.api.post(body, headers=desk.headers(who))
    return sent.status_code, sent.json()


# --- what is on record -----------------------------------------------------------------------


async def test_a_run_that_only_talks_writes_no_audit(desk: Desk) -> None:
    first = await desk.create("talk")
    await desk.create("talk", previous_response_id=first["id"])
    await desk.api.http.delete(f"/v1/responses/{first['id']}", headers=desk.headers("mia"))
    assert await desk.api.sql("SELECT * FROM fermata.audit") == []


async def test_the_first_row_says_who_asked_which_model_when_through_which_response(
    desk: Desk,
) -> None:
    asked = await desk.create("refund")
    first, second = await rows(desk, asked)
    (opened,) = await desk.api.sql("SELECT * FROM fermata.responses")
    assert (first["event"], first["actor"], first["tenant"]) == ("requested", "mia", "shop")
    assert (first["seq"], first["response_id"]) == (1, asked["id"])
    assert first["details"] == {
        "model": "refund",
        "requested_at": f"{opened['created_at']:%Y-%m-%dT%H:%M:%S.%fZ}",
    }
    assert (second["event"], second["call_id"]) == ("asked", calls(asked)[0]["call_id"])
    assert second["details"] == {
        "name": "review_refund",
        "question": "Refund?",
        "payload": {"n": 1},
        "expects": "approval",
        "allowed": ["approve", "reject"],
        "roles": ["manager"],
        "four_eyes": True,
    }


async def test_an_edit_is_on_record_before_and_after_with_action_tier_and_note(desk: Desk) -> None:
    asked = await desk.create("reset")
    edit = {"user": "user-123", "revoke_sessions": False}
    said = {"action": "edit", "value": edit, "note": "the reset is enough"}
    status, body = await answer(desk, asked, json.dumps(said))
    assert status == 200, body
    _, question, decided, *_ = await rows(desk, asked)
    proposed = {"user": "user-123", "revoke_sessions": True}
    assert question["details"]["action"] == "reset_password"
    assert question["details"]["tier"] == "credential"
    assert question["details"]["payload"] == proposed
    assert (decided["actor"], decided["call_id"]) == ("bob", question["call_id"])
    assert decided["response_id"] == body["id"]
    assert decided["details"] == {
        "decision": "edit",
        "note": "the reset is enough",
        "before": proposed,
        "after": edit,
        "roles": ["manager"],
    }


@pytest.mark.parametrize("store", [True, False])
async def test_a_run_that_acts_without_asking_is_on_record_to_its_end(
    desk: Desk, store: bool
) -> None:
    done = await desk.create("pay", "a", store=store)
    assert await told(desk, done) == [
        ("requested", "mia"), ("effect_claimed", None), ("effect_done", None), ("completed", None)
    ]  # fmt: skip
    details = [row["details"] for row in await rows(desk, done)]
    assert details[0]["model"] == "pay"
    assert details[1]["key"] == "pay:a"
    assert details[2] == {"key": "pay:a", "result": {"receipt": "R-100"}}


async def test_every_reviewer_of_a_batch_is_on_record(desk: Desk) -> None:
    asked = await desk.create("several")
    one, other = calls(asked)
    await desk.answered(one, {"action": "approve"}, who="carl")
    assert await told(desk, asked) == [
        ("requested", "mia"), ("asked", None), ("asked", None), ("answered", "carl")
    ]  # fmt: skip
    await desk.answered(other, {"action": "reject", "note": "no"}, who="bob")
    await desk.polled(asked["id"])
    assert (await told(desk, asked))[3:] == [
        ("answered", "carl"), ("answered", "bob"), ("completed", None)
    ]  # fmt: skip
    answered = [row for row in await rows(desk, asked) if row["event"] == "answered"]
    assert [row["call_id"] for row in answered] == [one["call_id"], other["call_id"]]
    assert [row["details"]["roles"] for row in answered] == [["clerk"], ["manager"]]


async def test_the_second_question_of_a_run_follows_in_the_same_audit(desk: Desk) -> None:
    asked = await desk.create("two")
    _, again = await answer(desk, asked, "yes")
    _, done = await answer(desk, again, "no")
    assert done["status"] == "completed"
    assert [event for event, _ in await told(desk, asked)] == [
        "requested", "asked", "answered", "asked", "answered", "completed"
    ]  # fmt: skip


async def test_a_failure_after_an_answer_and_the_retry_are_on_record(desk: Desk) -> None:
    asked = await desk.create("stumble")
    status, body = await answer(desk, asked, "yes")
    assert (status, body["status"]) == (200, "failed")
    stalled = await last(desk, asked)
    assert (stalled["event"], stalled["response_id"]) == ("stalled", body["id"])
    assert stalled["details"] == {
        "code": body["error"]["code"],
        "message": body["error"]["message"],
    }
    assert "secret" not in str(stalled)
    await answer(desk, asked, "yes")
    assert (await told(desk, asked))[-3:] == [
        ("stalled", None), ("retried", "bob"), ("completed", None)
    ]  # fmt: skip


async def test_silence_is_on_record_as_the_answer_of_nobody(database_url: str) -> None:
    async with serving(database_url, STORIES, AUTH="keys", LEASE_TTL="5s") as api:
        desk = Desk(api, await keys_of(database_url))
        asked = await desk.create("hesitate")
        for table in ("runs", "interrupts"):
            await api.sql(f"UPDATE fermata.{table} SET expires_at = now() - interval '1 minute'")
        await desk.polled(asked["id"])
    assert await told(desk, asked) == [
        ("requested", "mia"), ("asked", None), ("answered", "system:expiry"), ("completed", None)
    ]  # fmt: skip
    decided = (await rows(desk, asked))[2]
    assert decided["details"] == {"decision": "reject"}
    assert (await rows(desk, asked))[1]["details"]["on_expiry"] == "reject"


async def test_a_run_that_waited_too_long_is_on_record_as_expired(desk: Desk) -> None:
    asked = await desk.create("reset")
    await desk.api.sql("UPDATE fermata.runs SET expires_at = now() - interval '1 minute'")
    async with open_database(desk.api.database_url, size=1) as database:
        assert (await sweep(database, MONTH)).expired_runs == 1
    gone = await last(desk, asked)
    assert (gone["event"], gone["actor"]) == ("expired", "system:expiry")
    assert gone["details"] == {"was": "waiting", "open": [calls(asked)[0]["call_id"]]}
    status, error = await answer(desk, asked, "yes")
    assert (status, error["error"]["code"]) == (410, "interrupt_expired")
    late = await last(desk, asked)
    assert (late["event"], late["actor"]) == ("refused", "bob")
    assert late["details"]["code"] == "interrupt_expired"


async def held(desk: Desk) -> str:
    """The id of the response that is held, once its row is there: it has none in its first
    second, if it does no effect."""
    async with asyncio.timeout(20):
        while True:
            rows = await desk.api.sql("SELECT id, run_id FROM fermata.responses")
            if rows and rows[0]["run_id"] in HELD:
                return str(rows[0]["id"])
            await asyncio.sleep(0.02)


async def test_who_stops_a_first_request_that_acted_is_on_record(desk: Desk) -> None:
    request = asyncio.create_task(desk.create("hold", "act"))
    path = f"/v1/responses/{await held(desk)}/cancel"
    stopped = await desk.api.http.post(path, headers=desk.headers("anna"))
    assert stopped.status_code == 200
    assert (await request)["status"] == "cancelled"
    audit = await desk.api.sql("SELECT event, actor FROM fermata.audit ORDER BY seq")
    assert (audit[0]["event"], audit[0]["actor"]) == ("requested", "mia")
    assert (audit[-1]["event"], audit[-1]["actor"]) == ("cancelled", "anna")


@pytest.mark.parametrize("said", ["ask", "act, then ask"])
async def test_a_stranger_does_not_open_the_audit_of_a_run_in_progress(
    desk: Desk, said: str
) -> None:
    """Who asked does; after that a stranger is on record."""
    request = asyncio.create_task(desk.create("hold", said))
    path = f"/v1/responses/{await held(desk)}"
    for method in ("GET", "DELETE"):
        seen = await desk.api.http.request(method, path, headers=desk.headers("eve"))
        assert seen.status_code == 404
    audit = await desk.api.sql("SELECT event FROM fermata.audit ORDER BY seq")
    before = [row["event"] for row in audit]
    (gate,) = HELD.values()
    gate.set()
    asked = await request
    whole = [row["event"] for row in await rows(desk, asked)]
    if said == "ask":
        assert before == []
        assert whole == ["requested", "asked"]
        assert (await desk.api.http.get(path, headers=desk.headers("eve"))).status_code == 404
        assert (await last(desk, asked))["event"] == "refused"
    else:
        assert before[0] == "requested"
        assert before.count("refused") == 2
        assert whole[-1] == "asked"


@pytest.mark.parametrize("method", ["cancel", "delete"])
async def test_what_is_taken_back_is_on_record_with_who_did(desk: Desk, method: str) -> None:
    asked = await desk.create("refund")
    path, headers = f"/v1/responses/{asked['id']}", desk.headers("anna")
    if method == "cancel":
        done = await desk.api.http.post(f"{path}/cancel", headers=headers)
    else:
        done = await desk.api.http.delete(path, headers=headers)
    assert done.status_code == 200
    after = ["cancelled"] if method == "cancel" else ["cancelled", "deleted"]
    assert (await told(desk, asked))[2:] == [(event, "anna") for event in after]
    closed = (await rows(desk, asked))[2]
    assert closed["details"] == {"open": [calls(asked)[0]["call_id"]]}
    await answer(desk, asked, "yes")
    assert (await last(desk, asked))["details"]["code"] == "interrupt_closed"


async def test_the_audit_survives_its_run_and_its_responses(desk: Desk) -> None:
    asked = await desk.create("refund")
    _, done = await answer(desk, asked, "approve")
    before = await rows(desk, asked)
    await desk.api.sql("UPDATE fermata.runs SET expires_at = now() - interval '1 minute'")
    await desk.api.sql("UPDATE fermata.responses SET expires_at = now() - interval '1 minute'")
    async with open_database(desk.api.database_url, size=1) as database:
        swept = await sweep(database, MONTH)
    assert (swept.deleted_runs, swept.deleted_responses) == (1, 2)
    assert await rows(desk, done) == before
    assert [row["event"] for row in before] == ["requested", "asked", "answered", "completed"]


async def test_no_prompt_no_output_and_no_credentials(desk: Desk) -> None:
    """What the client said, what the graph says and who has which key stay out of it."""
    asked = await desk.create("reset", SECRET, instructions=SECRET, metadata={"note": SECRET})
    await answer(desk, asked, "yes", who="eve")
    await answer(desk, asked, "yes", who="mia")
    await answer(desk, asked, "yes", who="bob")
    stumbled = await desk.create("stumble", SECRET)
    await answer(desk, stumbled, "yes")
    text = str(await desk.api.sql("SELECT * FROM fermata.audit ORDER BY run_id, seq"))
    assert "secret" not in text
    assert SECRET not in text
    assert "Reset: " not in text  # what the graph said
    assert not any(key in text or key.split("_")[2] in text for key in desk.keys.values())
    assert "fk_" not in text


async def test_what_people_write_is_kept_as_they_wrote_it(desk: Desk) -> None:
    """NUL and lone surrogates are JSON; PostgreSQL takes neither as text."""
    asked = await desk.create("raw")
    status, _ = await answer(desk, asked, '{"note": "é \\ud800 \\u001b[2J"}')
    assert status == 200
    decided = (await rows(desk, asked))[2]
    assert decided["details"] == {
        "value": {"note": "é \ud800 \x1b[2J"},
        "roles": ["manager"],
    }


# --- in the transaction ----------------------------------------------------------------------


async def test_without_its_audit_nothing_happens(desk: Desk) -> None:
    """P1, P7: a pause, an answer and an end are committed with their rows or not at all."""
    asked = await desk.create("reset")
    await desk.api.sql(
        "CREATE FUNCTION nope() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'no audit today'; END $$;"
    )
    await desk.api.sql(
        "CREATE TRIGGER zzz BEFORE INSERT ON fermata.audit FOR EACH ROW EXECUTE FUNCTION nope()"
    )
    refused = await desk.api.post(
        {"model": "reset", "previous_response_id": asked["id"],
         "input": [output(calls(asked)[0], "yes")]},
        headers=desk.headers("bob"),
    )  # fmt: skip
    assert refused.status_code == 500
    other = await desk.api.post({"model": "reset", "input": "go"}, headers=desk.headers("mia"))
    assert calls(other.json()) == []
    assert other.json()["status"] == "failed"
    await desk.api.sql("DROP TRIGGER zzz ON fermata.audit")
    (run,) = await desk.api.sql("SELECT status FROM fermata.runs")
    assert run["status"] == "waiting"
    assert [event for event, _ in await told(desk, asked)] == ["requested", "asked"]
    status, _ = await answer(desk, asked, "yes")
    assert status == 200


# --- refusals --------------------------------------------------------------------------------


async def both_ways(desk: Desk, asked: Json, value: str, who: str) -> list[tuple[int, str]]:
    """The same answer by `/v1/responses` and by `/v1/interrupts`."""
    (call,) = calls(asked)
    status, body = await answer(desk, asked, value, who)
    other = await desk.answer(call, {"output": value}, who)
    return [
        (status, body["error"]["code"]),
        (other.status_code, other.json()["error"]["code"]),
    ]


@pytest.mark.parametrize(
    ("who", "reason"), [("carl", "role 'manager'"), ("mia", "second person")], ids=["role", "eyes"]
)
async def test_C43_who_may_not_answer_is_on_record(desk: Desk, who: str, reason: str) -> None:
    asked = await desk.create("refund")
    claimed = json.dumps({"action": "approve", "note": "as bob"})
    assert await both_ways(desk, asked, claimed, who) == [(403, "reviewer_not_allowed")] * 2
    refused = (await rows(desk, asked))[2:]
    assert [(row["event"], row["actor"]) for row in refused] == [("refused", who)] * 2
    for row in refused:
        assert row["call_id"] == calls(asked)[0]["call_id"]
        assert row["response_id"] == asked["id"]
        assert row["details"]["code"] == "reviewer_not_allowed"
        assert reason in row["details"]["message"]
    assert refused[0]["details"].get("roles", []) == {"carl": ["clerk"], "mia": ["manager"]}[who]


async def test_C42_what_another_tenant_sends_is_unknown_to_it_and_on_record_here(
    desk: Desk,
) -> None:
    asked = await desk.create("refund")
    (call,) = calls(asked)
    talked = await desk.create("talk")
    nobody_s = {"id": asked["id"][:-4] + "0000", "call_id": call["call_id"][:-4] + "0000"}
    for id, call_id in ((nobody_s["id"], nobody_s["call_id"]), (asked["id"], call["call_id"])):
        answers = [await one for one in attempts(desk, id, call_id, "eve")]
        shown = [(one.status_code, one.text.replace(id[5:], "ID").replace(call_id, "CALL"))
                 for one in answers]  # fmt: skip
        if id == nobody_s["id"]:
            unknown = shown
    assert shown[:-1] == unknown[:-1]
    assert [status for status, _ in shown] == [400, *[404] * 6, 400, 400, 200]
    refused = (await rows(desk, asked))[2:]
    assert {(row["event"], row["actor"], row["tenant"]) for row in refused} == {
        ("refused", None, "shop")
    }
    assert {json.dumps(row["details"]["stranger"]) for row in refused} == {
        json.dumps({"tenant": "rival", "subject": "bob"})
    }
    named = [(row["response_id"], row["call_id"]) for row in refused]
    assert named.count((asked["id"], call["call_id"])) == 5
    assert named.count((asked["id"], None)) == len(named) - 5 == 6
    # Nothing is written where the stranger could look, nor for what nobody has.
    tenants = await desk.api.sql("SELECT DISTINCT tenant FROM fermata.audit")
    assert [row["tenant"] for row in tenants] == ["shop"]
    assert await rows(desk, talked) == []


def attempts(desk: Desk, response_id: str, call_id: str, who: str) -> Sequence[Any]:
    """Every way to name a response or a question."""
    headers = desk.headers(who)
    http, responses, interrupts = desk.api.http, "/v1/responses", "/v1/interrupts"
    answered = {"model": "refund", "input": [output(call_id, "approve")]}
    echo = {"type": "function_call", "call_id": call_id, "name": "x", "arguments": "{}"}
    item = f"msg_{response_id[5:]}0001"
    return [
        desk.api.post({**answered, "previous_response_id": response_id}, headers=headers),
        http.get(f"{responses}/{response_id}", headers=headers),
        http.delete(f"{responses}/{response_id}", headers=headers),
        http.post(f"{responses}/{response_id}/cancel", headers=headers),
        http.get(f"{responses}/{response_id}/input_items", headers=headers),
        http.get(f"{interrupts}/{call_id}", headers=headers),
        http.post(f"{interrupts}/{call_id}/answer", json={"action": "approve"}, headers=headers),
        http.get(f"{interrupts}?after={call_id}", headers=headers),
        desk.api.post(
            {"model": "talk", "input": [{"type": "item_reference", "id": item}]}, headers=headers
        ),
        desk.api.post({"model": "talk", "input": [echo, output(call_id)]}, headers=headers),
    ]


@pytest.mark.parametrize("value", ["sure", '{"action": "edit", "value": {"n": 2}}'])
async def test_what_is_no_answer_is_on_record_without_its_text(desk: Desk, value: str) -> None:
    asked = await desk.create("refund")
    assert await both_ways(desk, asked, value, "bob") == [(400, "invalid_interrupt_answer")] * 2
    refused = (await rows(desk, asked))[2:]
    assert [row["details"]["code"] for row in refused] == ["invalid_interrupt_answer"] * 2
    assert not any("sure" in str(row["details"]) for row in refused)


async def test_another_answer_that_comes_second_is_on_record(desk: Desk) -> None:
    asked = await desk.create("refund")
    await answer(desk, asked, "approve", "bob")
    assert (
        await both_ways(desk, asked, "reject", "bob") == [(400, "interrupt_already_answered")] * 2
    )
    assert [row["details"]["code"] for row in (await rows(desk, asked))[-2:]] == [
        "interrupt_already_answered"
    ] * 2
    # The same answer again is no refusal, and nothing new.
    before = await rows(desk, asked)
    assert (await answer(desk, asked, "approve", "bob"))[0] == 200
    assert await rows(desk, asked) == before


async def test_who_keeps_trying_does_not_fill_the_audit(desk: Desk) -> None:
    asked = await desk.create("refund")
    for _ in range(23):
        assert (await answer(desk, asked, "approve", "carl"))[0] == 403
    await answer(desk, asked, "approve", "anna")
    refused = [row for row in await rows(desk, asked) if row["event"] == "refused"]
    assert [row["actor"] for row in refused] == ["carl"] * 20 + ["anna"]
    assert [row["details"].get("last", False) for row in refused] == [False] * 19 + [True, False]


# --- the law of the table --------------------------------------------------------------------


@pytest.fixture
def table(database_url: str) -> Iterator[psycopg.Connection]:
    """A connection to a database with two rows in its audit."""
    with psycopg.connect(database_url, autocommit=True) as opened:
        opened.execute("SELECT fermata.record('shop', 'run_1', 'asked', NULL, NULL, '{}')")
        yield opened


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE fermata.audit SET actor = 'bob'",
        "UPDATE fermata.audit SET actor = 'bob' WHERE false",
        "DELETE FROM fermata.audit WHERE event = 'refused'",
        "TRUNCATE fermata.audit",
        "TRUNCATE fermata.audit, fermata.runs CASCADE",
        "SET session_replication_role = replica; DELETE FROM fermata.audit",
        "INSERT INTO fermata.audit SELECT * FROM fermata.audit"
        " ON CONFLICT (run_id, seq) DO UPDATE SET actor = 'bob'",
        "MERGE INTO fermata.audit a USING fermata.runs r ON a.run_id = r.id"
        " WHEN MATCHED THEN DELETE",
    ],
)
def test_the_table_takes_rows_and_keeps_them(table: psycopg.Connection, statement: str) -> None:
    """Its owner and a superuser get the same answer; both would have to change the table first."""
    before = table.execute("SELECT * FROM fermata.audit").fetchall()
    with pytest.raises(psycopg.Error, match=r"append-only|computes seq"):
        table.execute(statement)
    assert table.execute("SELECT * FROM fermata.audit").fetchall() == before


@pytest.mark.parametrize("column", ["seq", "at", "previous", "hash"])
def test_place_time_and_hash_are_the_table_s(table: psycopg.Connection, column: str) -> None:
    with pytest.raises(errors.RaiseException, match="computes seq"):
        table.execute(
            f"INSERT INTO fermata.audit (run_id, tenant, event, details, {column})"
            f" SELECT run_id, tenant, event, details, {column} FROM fermata.audit LIMIT 1"
        )


def test_a_run_s_audit_is_one_tenant_s(table: psycopg.Connection) -> None:
    with pytest.raises(errors.RaiseException, match="belongs to another tenant"):
        table.execute("SELECT fermata.record('rival', 'run_1', 'asked', NULL, NULL, '{}')")


async def test_parallel_writers_do_not_fork_the_chain(database_url: str) -> None:
    async def write(number: int) -> None:
        async with await AsyncConnection.connect(database_url) as conn:
            for _ in range(20):
                async with conn.transaction():
                    await conn.execute(
                        "SELECT fermata.record('t', 'run_1', 'effect_done', NULL, NULL, '{}')"
                    )

    await asyncio.gather(*(write(number) for number in range(6)))
    with psycopg.connect(database_url) as conn:
        found = conn.execute(
            "SELECT seq, previous, hash FROM fermata.audit ORDER BY seq"
        ).fetchall()
    assert [seq for seq, _, _ in found] == list(range(1, 122))  # 120, and who asked
    assert [previous for _, previous, _ in found[1:]] == [hash for _, _, hash in found[:-1]]


def test_the_rows_of_a_transaction_that_rolls_back_leave_no_gap(table: psycopg.Connection) -> None:
    written = "SELECT fermata.record('shop', 'run_1', 'effect_done', NULL, NULL, '{}')"
    with table.transaction(force_rollback=True):
        table.execute(written)
    table.execute(written)
    found = table.execute("SELECT seq FROM fermata.audit ORDER BY seq").fetchall()
    assert found == [(1,), (2,), (3,)]
