"""Effects on PostgreSQL: two workers and one key, dead and living claimers, replays, approvals."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import MessagesState
from langgraph.types import interrupt

from gateway import (
    Approval,
    Graph,
    Happened,
    RunSettings,
    ask_approval,
    async_effect,
    database,
    effect,
    effect_in_transaction,
)
from gateway.errors import LeaseLost
from gateway.human.ledger import Claim, Done, Effect, Ledger, Released, Standing
from gateway.human.run import CurrentRun
from gateway.runs.lease import Lease, Leases
from gateway.runs.ledger import Effects
from gateway.store.db import Database, open_database
from gateway.store.retention import sweep
from tests.integration.api import Api, calls, output, serving, texts
from tests.integration.small_graphs import chain, last_text
from tests.postgres.proxy import BEFORE, COMMITTED, proxied

OPTIONS: dict[str, Any] = {}
"""What the graph `pay` gives to `async_effect`, by the last user text."""
PAID: dict[str, list[Any]] = {}
"""What was paid, by key."""


@pytest.fixture(autouse=True)
def _nothing_paid() -> None:
    PAID.clear()
    OPTIONS.clear()


async def bank(key: str, amount: int = 1) -> dict[str, Any]:
    """Takes a while, and counts."""
    await asyncio.sleep(0.05)
    PAID.setdefault(key, []).append(amount)
    return {"receipt": len(PAID[key])}


async def pay(state: MessagesState) -> dict[str, Any]:
    key = last_text(state)
    options = {"arguments": {"key": key, "amount": 1}, **OPTIONS}
    receipt = (await async_effect(key, bank, **options))["receipt"]
    return {"messages": [AIMessage(f"receipt {receipt}")]}


async def pay_and_ask(state: MessagesState) -> dict[str, Any]:
    """The effect stands before the question, so its node runs it twice."""
    paid = await pay(state)
    answer = interrupt("content?")
    return {"messages": [*paid["messages"], AIMessage(f"answer {answer}")]}


def pay_in_a_thread(state: MessagesState) -> dict[str, Any]:
    key, thread = last_text(state), threading.get_ident()

    def call(key: str) -> int:
        assert threading.get_ident() == thread
        PAID.setdefault(key, []).append(1)
        return len(PAID[key])

    return {"messages": [AIMessage(f"receipt {effect(key, call, arguments={'key': key})}")]}


async def sync_effect_on_the_loop(state: MessagesState) -> dict[str, Any]:
    effect("never", lambda: None)
    return {}


async def pay_after_approval(state: MessagesState) -> dict[str, Any]:
    """Trusts nobody, itself included: pays whatever the answer says, if the ledger lets it."""
    first, second = {"n": 1}, {"n": 2}
    ask_approval("review", question="Pay 1?", payload=first, editable={"type": "object"})
    if last_text(state) == "two":
        ask_approval("review", question="Pay 2?", payload=second)
    needed = OPTIONS.get("approval", "review")
    paid = await async_effect("approved", bank, arguments={"key": "approved"}, approval=needed)
    return {"messages": [AIMessage(f"receipt {paid['receipt']}")]}


async def raw_approval(state: MessagesState) -> dict[str, Any]:
    interrupt("approve?")
    await async_effect("raw", bank, arguments={"key": "raw"}, approval="interrupt")
    return {}


async def note(connection: Any, text: str) -> int:
    await connection.execute("INSERT INTO notes VALUES (%s)", (text,))
    if OPTIONS.pop("fails", False):
        raise ValueError("before the commit")
    if OPTIONS.pop("cut", False):
        await connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    cursor = await connection.execute("SELECT count(*) AS notes FROM notes")
    return int((await cursor.fetchone())["notes"])


async def write_note(state: MessagesState) -> dict[str, Any]:
    answer = interrupt("what?")
    notes = await effect_in_transaction(f"note:{answer}", note, arguments={"text": answer})
    return {"messages": [AIMessage(f"{notes} notes")]}


async def look_within(state: MessagesState) -> dict[str, Any]:
    async def call() -> int:
        async with database().connection() as connection:
            row = await (await connection.execute("SELECT 7 AS seven")).fetchone()
        return int(row["seven"])

    return {"messages": [AIMessage(str(await async_effect(last_text(state), call)))]}


GRAPHS = {
    "pay": Graph(chain(pay)),
    "pay-and-ask": Graph(chain(pay_and_ask)),
    "pay-in-a-thread": Graph(chain(pay_in_a_thread)),
    "on-the-loop": Graph(chain(sync_effect_on_the_loop)),
    "after-approval": Graph(chain(pay_after_approval)),
    "raw-approval": Graph(chain(raw_approval)),
    "write-note": Graph(chain(write_note)),
    "look-within": Graph(chain(look_within)),
}


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with serving(database_url, GRAPHS) as served:
        yield served


async def ledger_rows(api: Api) -> list[tuple[str, str]]:
    rows = await api.sql("SELECT key, status FROM fermata.effects ORDER BY claimed_at")
    return [(row["key"], row["status"]) for row in rows]


async def audited(api: Api, run_id: str) -> list[str]:
    rows = await api.sql("SELECT event FROM fermata.audit WHERE run_id = %s ORDER BY seq", run_id)
    return [row["event"] for row in rows]


# --- once -------------------------------------------------------------------------------------


async def test_two_workers_and_one_key_at_once(database_url: str) -> None:
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(serving(database_url, GRAPHS)) for _ in range(2)]
        told = await asyncio.gather(*(workers[n % 2].create("pay", "refund:1") for n in range(10)))
    assert [texts(one) for one in told] == [["receipt 1"]] * 10
    assert PAID == {"refund:1": [1]}


async def test_a_replayed_node_is_told_the_recorded_result(api: Api) -> None:
    paused = await api.create("pay-and-ask", "refund:2")
    (call,) = calls(paused)
    done = await api.create("pay-and-ask", [output(call)], previous_response_id=paused["id"])
    assert texts(done) == ["receipt 1", "answer yes"]
    assert PAID == {"refund:2": [1]}


async def test_another_run_with_the_key_is_told_the_recorded_result(api: Api) -> None:
    assert texts(await api.create("pay", "refund:3")) == ["receipt 1"]
    assert texts(await api.create("pay", "refund:3")) == ["receipt 1"]
    assert PAID == {"refund:3": [1]}


async def test_other_arguments_under_the_key_fail_the_run(api: Api) -> None:
    await api.create("pay", "refund:4")
    OPTIONS["arguments"] = {"key": "refund:4", "amount": 2}
    failed = await api.create("pay", "refund:4")
    assert (failed["status"], failed["error"]["code"]) == ("failed", "effect_conflict")
    assert PAID == {"refund:4": [1]}


async def test_sync_nodes_more_than_there_are_threads(api: Api) -> None:
    keys = [f"refund:{n % 20}" for n in range(60)]
    told = await asyncio.gather(*(api.create("pay-in-a-thread", key) for key in keys))
    assert {tuple(texts(one)) for one in told} == {("receipt 1",)}
    assert [len(paid) for paid in PAID.values()] == [1] * 20


async def test_the_sync_form_on_the_loop_fails_the_run_and_claims_nothing(api: Api) -> None:
    failed = await api.create("on-the-loop", "x")
    assert "RuntimeError" in failed["error"]["message"]
    assert await ledger_rows(api) == []


async def test_no_connection_is_held_while_the_call_runs(database_url: str) -> None:
    async with serving(database_url, GRAPHS, POOL_SIZE="1") as api:
        told = await asyncio.gather(*(api.create("look-within", f"key:{n}") for n in range(5)))
    assert [texts(one) for one in told] == [["7"]] * 5


async def test_the_audit_says_what_was_done_and_for_whom(api: Api) -> None:
    run_id = await api.run_of(await api.create("pay", "refund:5"))
    assert await audited(api, run_id) == ["requested", "effect_claimed", "effect_done", "completed"]
    first, claimed, done, _ = await api.sql(
        "SELECT actor, details FROM fermata.audit WHERE run_id = %s ORDER BY seq", run_id
    )
    assert first["actor"] is not None
    assert claimed["details"] == {
        "key": "refund:5",
        "arguments": {"key": "refund:5", "amount": 1},
        "attempt": 1,
    }
    assert done["details"] == {"key": "refund:5", "result": {"receipt": 1}}


# --- a crash between effect and record --------------------------------------------------------


async def crash_before_the_record(api: Api, key: str) -> None:
    """The state that a process leaves which died after the effect and before its record."""
    await api.create("pay", key)
    await api.sql(
        "UPDATE fermata.effects SET status = 'claimed', result = NULL, settled_at = NULL,"
        " owner = 'proc_dead' WHERE key = %s",
        key,
    )


async def test_stop_fails_the_run_and_says_so(api: Api) -> None:
    await crash_before_the_record(api, "refund:6")
    failed = await api.create("pay", "refund:6")
    assert failed["error"]["code"] == "effect_uncertain"
    assert "fermata effects" in failed["error"]["message"]
    assert PAID == {"refund:6": [1]}


async def test_verify_finds_what_was_done(api: Api) -> None:
    await crash_before_the_record(api, "refund:7")
    OPTIONS["on_uncertain"] = lambda key, amount: Happened({"receipt": len(PAID[key])})
    told = [texts(await api.create("pay", "refund:7")) for _ in range(2)]
    assert told == [["receipt 1"]] * 2
    assert PAID == {"refund:7": [1]}


async def test_verify_finds_nothing_and_it_is_done(api: Api) -> None:
    await crash_before_the_record(api, "refund:8")
    PAID.clear()  # the call never reached the bank
    OPTIONS["on_uncertain"] = lambda key, amount: None
    assert texts(await api.create("pay", "refund:8")) == ["receipt 1"]
    assert PAID == {"refund:8": [1]}


async def test_retry_calls_again_under_a_new_claim(api: Api) -> None:
    await crash_before_the_record(api, "refund:9")
    OPTIONS["on_uncertain"] = "retry"
    told = await asyncio.gather(*(api.create("pay", "refund:9") for _ in range(5)))
    assert {tuple(texts(one)) for one in told} == {("receipt 2",)}
    (row,) = await api.sql("SELECT attempts FROM fermata.effects")
    assert row["attempts"] == 2
    assert PAID == {"refund:9": [1, 1]}


async def test_an_exception_stalls_the_run_and_the_same_answer_goes_on(api: Api) -> None:
    """An effect whose outcome is uncertain after an approval: nothing is lost, an operator's word
    later the same request ends well."""
    paused = await api.create("after-approval", "one")
    (call,) = calls(paused)
    await api.sql(
        "INSERT INTO fermata.effects (tenant, key, fingerprint, arguments, status, owner, run_id,"
        " response_id) SELECT tenant, 'approved', sha256('{\"key\":\"approved\"}'), '{}',"
        " 'uncertain', 'proc_dead', run_id, id FROM fermata.responses"
    )
    answer = {"previous_response_id": paused["id"]}
    failed = await api.create("after-approval", [output(call)], **answer)
    assert failed["error"]["code"] == "effect_uncertain"
    await api.sql("DELETE FROM fermata.effects")
    done = await api.create("after-approval", [output(call)], **answer)
    assert texts(done) == ["receipt 1"]


# --- approvals --------------------------------------------------------------------------------


async def answered(api: Api, answer: str, model: str = "after-approval", said: str = "one") -> Any:
    paused = await api.create(model, said)
    (call,) = calls(paused)
    return await api.create(model, [output(call, answer)], previous_response_id=paused["id"])


async def test_an_approved_answer_of_this_run_lets_it_happen(api: Api) -> None:
    assert texts(await answered(api, "approve")) == ["receipt 1"]


@pytest.mark.parametrize("said", ["reject", '{"action": "reject", "note": "approve"}'])
async def test_a_graph_that_ignores_a_rejection_pays_nothing(api: Api, said: str) -> None:
    failed = await answered(api, said)
    assert failed["error"]["code"] == "effect_not_approved"
    assert PAID == {}


async def test_an_edit_approves_its_value_and_not_the_payload(api: Api) -> None:
    edit = '{"action": "edit", "value": {"n": 5}}'
    OPTIONS["approval"] = Approval("review", of={"n": 1})
    assert (await answered(api, edit))["error"]["code"] == "effect_not_approved"
    OPTIONS["approval"] = Approval("review", of={"n": 5})
    assert texts(await answered(api, edit)) == ["receipt 1"]


async def test_an_approval_of_one_thing_is_none_of_another(api: Api) -> None:
    for needed, ends in (
        ("review", "effect_not_approved"),  # one of the two was rejected: which is meant?
        (Approval("review", of={"n": 2}), "effect_not_approved"),
        (Approval("review", of={"n": 1}), None),
    ):
        OPTIONS["approval"] = needed
        second = await answered(api, "approve", said="two")
        (call,) = calls(second)
        done = await api.create(
            "after-approval", [output(call, "reject")], previous_response_id=second["id"]
        )
        assert (done["error"] or {}).get("code") == ends


async def test_free_text_is_no_approval(api: Api) -> None:
    failed = await answered(api, "approve", model="raw-approval")
    assert "ask with ask_approval" in failed["error"]["message"]
    assert PAID == {}


# --- exactly once, in the same database -------------------------------------------------------


@pytest.mark.parametrize("how", ["fails", "cut"])
async def test_what_fails_before_the_commit_never_was(api: Api, how: str) -> None:
    await api.sql("CREATE TABLE notes (text text)")
    paused = await api.create("write-note", "x")
    answer = {"previous_response_id": paused["id"]}
    reply = [output(calls(paused)[0], "hello")]
    OPTIONS[how] = True
    failed = await api.create("write-note", reply, **answer)
    assert failed["status"] == "failed"
    assert await api.sql("SELECT * FROM notes") == []
    assert await ledger_rows(api) == []
    for _ in range(2):
        done = await api.create("write-note", reply, **answer)
        assert texts(done) == ["1 notes"]
    assert await api.sql("SELECT * FROM notes") == [{"text": "hello"}]
    assert await ledger_rows(api) == [("note:hello", "done")]


async def test_in_a_transaction_two_at_once_are_one(api: Api) -> None:
    await api.sql("CREATE TABLE notes (text text)")
    paused = [await api.create("write-note", "x") for _ in range(4)]
    done = await asyncio.gather(
        *(
            api.create(
                "write-note", [output(calls(one)[0], "same")], previous_response_id=one["id"]
            )
            for one in paused
        )
    )
    assert {tuple(texts(one)) for one in done} == {("1 notes",)}
    assert await api.sql("SELECT * FROM notes") == [{"text": "same"}]


# --- the ledger itself ------------------------------------------------------------------------

EFFECT = Effect("key", {"n": 1}, bytes(32))


@asynccontextmanager
async def worker(url: str) -> AsyncIterator[tuple[Database, Leases, Callable[..., Ledger]]]:
    """A process's database, leases and ledger; what it last gives makes a run's ledger."""
    async with open_database(url, size=3) as opened:
        leases = Leases(opened, timedelta(seconds=30))
        await leases.beat()
        effects = Effects(opened, leases.owner)

        def ledger(lease: Lease | None = None, **more: Any) -> Ledger:
            current = CurrentRun("run_1", "resp_1", "tenant", "anna", RunSettings())
            return effects.of_run(replace(current, **more), lease)

        yield opened, leases, ledger
        await effects.close()


async def test_a_run_whose_lease_is_lost_claims_nothing(database_url: str) -> None:
    async with worker(database_url) as (opened, leases, ledger):
        async with opened.transaction() as conn:
            row = await (await leases.acquire(conn, "run_1")).fetchone()
        assert row is not None
        held = ledger(Lease("run_1", row["token"]))
        lost = ledger(Lease("run_1", row["token"] - 1))
        with pytest.raises(LeaseLost):
            await lost.claim(EFFECT, take=True)
        assert isinstance(await held.claim(EFFECT, take=True), Claim)


async def test_a_living_process_keeps_its_claim_and_a_dead_one_loses_it(database_url: str) -> None:
    async with worker(database_url) as (_, dying, first), worker(database_url) as (_, _, second):
        claim = await first().claim(EFFECT, take=True)
        assert isinstance(claim, Claim)
        standing = await second().claim(EFFECT, take=True)
        assert isinstance(standing, Standing)
        assert (standing.status, standing.alive) == ("claimed", True)
        await dying.release_all()
        standing = await second().claim(EFFECT, take=False)
        assert isinstance(standing, Standing)
        assert (standing.status, standing.alive) == ("claimed", False)
        taken = await second().claim(EFFECT, take=True)
        assert isinstance(taken, Claim)
        assert taken.uncertain
        with pytest.raises(LeaseLost):  # it was frozen, not dead: too late
            await first().settle(EFFECT, claim, Done("zombie"))
        await second().settle(EFFECT, taken, Done("second"))
        with pytest.raises(LeaseLost):
            await first().settle(EFFECT, claim, Released())
        found = await second().claim(EFFECT, take=True)
        assert isinstance(found, Standing)
        assert (found.status, found.result) == ("done", "second")


async def test_a_claimer_taken_for_dead_may_still_say_what_became_of_it(database_url: str) -> None:
    async with worker(database_url) as (_, dying, first), worker(database_url) as (_, _, second):
        claim = await first().claim(EFFECT, take=False)
        assert isinstance(claim, Claim)
        await dying.release_all()
        await first().settle(EFFECT, claim, Done(1))
        await first().settle(EFFECT, claim, Done(1))  # a commit whose answer was lost
        found = await second().claim(EFFECT, take=False)
        assert isinstance(found, Standing)
        assert found.status == "done"


async def test_another_tenant_s_key_is_another_key(database_url: str) -> None:
    async with worker(database_url) as (_, _, ledger):
        for run_id, tenant in (("run_1", "one"), ("run_2", "two")):
            mine = ledger(tenant=tenant, run_id=run_id)
            assert isinstance(await mine.claim(EFFECT, take=False), Claim)


async def test_what_cannot_be_recorded_now_is_recorded_when_the_database_is_back(
    database_url: str,
) -> None:
    """The effect has happened and the database is away: the process lives, and says so later."""
    with proxied(database_url) as proxy:
        async with worker(proxy.url) as (_, _, ledger):
            claim = await ledger().claim(EFFECT, take=False)
            assert isinstance(claim, Claim)
            with proxy.trap("settle_effect", BEFORE) as trap:
                settling = asyncio.ensure_future(ledger().settle(EFFECT, claim, Done("late")))
                await asyncio.to_thread(trap.wait)
                with proxy.away():
                    assert not settling.done()
            await settling
            found = await ledger().claim(EFFECT, take=False)
    assert isinstance(found, Standing)
    assert (found.status, found.result) == ("done", "late")


async def test_a_commit_whose_answer_was_lost_is_no_second_record(database_url: str) -> None:
    with proxied(database_url) as proxy:
        async with worker(proxy.url) as (_, _, ledger):
            claim = await ledger().claim(EFFECT, take=False)
            assert isinstance(claim, Claim)
            with proxy.trap("settle_effect", COMMITTED) as trap:
                settling = asyncio.ensure_future(ledger().settle(EFFECT, claim, Done(1)))
                await asyncio.to_thread(trap.wait)
                trap.cut()
                await settling
    async with worker(database_url) as (opened, _, _), opened.connection() as conn:
        rows = await conn.execute("SELECT event FROM fermata.audit ORDER BY seq")
        events = [row["event"] async for row in rows]
    assert events == ["requested", "effect_claimed", "effect_done"]


# --- operators --------------------------------------------------------------------------------


async def fermata(api: Api, *arguments: str) -> tuple[int, str, str]:
    """`fermata effects …` as its own process."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("FERMATA_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "effects", *arguments),
        env={**environ, "FERMATA_DATABASE_URL": api.database_url},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_an_operator_says_that_it_happened(api: Api) -> None:
    await crash_before_the_record(api, "refund:10")
    _, listed, _ = await fermata(api, "list")
    status, _, key, *_ = listed.split("\t")
    assert (status, key) == ("uncertain", "refund:10")
    _, shown, _ = await fermata(api, "show", "refund:10")
    assert '{"key":"refund:10","amount":1}' in shown

    said = await fermata(api, "resolve", "refund:10", "--result", '{"receipt": 9}', "--as", "olga")
    assert said[0] == 0, said
    assert texts(await api.create("pay", "refund:10")) == ["receipt 9"]
    assert PAID == {"refund:10": [1]}
    (row,) = await api.sql(
        "SELECT run_id, details FROM fermata.audit WHERE actor = 'operator:olga'"
    )
    assert row["details"]["result"] == {"receipt": 9}
    assert (await audited(api, row["run_id"]))[-1] == "effect_resolved"

    code, _, err = await fermata(api, "resolve", "refund:10", "--release")
    assert (code, err) == (1, "fermata: The effect refund:10 is done; that stands.\n")


async def test_an_operator_says_that_it_did_not_happen(api: Api) -> None:
    await crash_before_the_record(api, "refund:11")
    PAID.clear()
    assert (await fermata(api, "resolve", "refund:11", "--release"))[0] == 0
    assert texts(await api.create("pay", "refund:11")) == ["receipt 1"]
    assert PAID == {"refund:11": [1]}
    code, _, err = await fermata(api, "show", "refund:12")
    assert (code, err) == (1, "fermata: There is no effect refund:12.\n")


async def test_an_operator_says_nothing_about_what_a_living_process_is_at(api: Api) -> None:
    await api.create("pay", "refund:13")
    await api.sql("UPDATE fermata.effects SET status='claimed', result=NULL, settled_at=NULL")
    code, _, err = await fermata(api, "resolve", "refund:13", "--release")
    assert code == 1
    assert "by a living process" in err


# --- retention --------------------------------------------------------------------------------


async def test_effects_outlive_their_runs_unless_a_retention_is_set(database_url: str) -> None:
    async with serving(database_url, GRAPHS) as api, open_database(database_url, size=1) as opened:
        await api.create("pay", "refund:14")
        await crash_before_the_record(api, "refund:15")
        await api.sql("UPDATE fermata.responses SET expires_at = now()")
        assert (await sweep(opened, timedelta())).deleted_responses == 2
        assert [key for key, _ in await ledger_rows(api)] == ["refund:14", "refund:15"]
        assert (await sweep(opened, timedelta(), timedelta())).deleted_effects == 1
        assert [key for key, _ in await ledger_rows(api)] == ["refund:15"]
