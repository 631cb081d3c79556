"""`effect` over a ledger in memory: what is called, how often, and what is told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from gateway import (
    Approval,
    EffectConflict,
    EffectFailed,
    EffectInProgress,
    EffectNotApproved,
    EffectUncertain,
    Happened,
    async_effect,
    database,
    effect,
    effect_in_transaction,
    effects_in_memory,
)
from tests.docs.pages import DOCS, blocks

KEY = "refund:ORDER-123"


class Downstream:
    """Pays, and counts; raises what it was told to, before or after it has paid."""

    def __init__(self, error: Exception | None = None, *, pays: bool = True) -> None:
        self.paid: list[Any] = []
        self.error = error
        self.pays = pays

    async def pay(self, amount: Any = 0) -> dict[str, Any]:
        if self.pays:
            self.paid.append(amount)
        if self.error is not None:
            raise self.error
        return {"receipt": len(self.paid), "amount": amount}

    def pay_now(self, amount: Any = 0) -> dict[str, Any]:
        return asyncio.run(self.pay(amount))


# --- once -------------------------------------------------------------------------------------


async def test_a_replay_is_told_the_recorded_result_and_calls_nothing() -> None:
    bank = Downstream()
    with effects_in_memory() as ledger:
        told = [await async_effect(KEY, bank.pay, arguments={"amount": 5}) for _ in range(3)]
    assert told == [{"receipt": 1, "amount": 5}] * 3
    assert bank.paid == [5]
    assert ledger.results == {KEY: told[0]}


async def test_the_first_result_is_what_a_replay_will_be_told() -> None:
    """Stored as JSON: a Decimal is text the first time as well."""

    async def call(amount: Decimal) -> Any:
        return {"amount": amount, "pair": (1, 2)}

    with effects_in_memory():
        first = await async_effect(KEY, call, arguments={"amount": Decimal("49.90")})
        again = await async_effect(KEY, call, arguments={"amount": Decimal("49.90")})
    assert first == again == {"amount": "49.90", "pair": [1, 2]}


async def test_the_call_gets_the_arguments_as_they_are() -> None:
    seen: list[Any] = []
    with effects_in_memory():

        async def call(**given: Any) -> None:
            seen.append(given)

        await async_effect(KEY, call, arguments={"amount": Decimal("1.50")})
    assert seen == [{"amount": Decimal("1.50")}]


async def test_the_same_key_with_other_arguments_is_an_error() -> None:
    bank = Downstream()
    with effects_in_memory():
        await async_effect(KEY, bank.pay, arguments={"amount": 5})
        with pytest.raises(EffectConflict, match="with other arguments") as refused:
            await async_effect(KEY, bank.pay, arguments={"amount": 6})
    assert refused.value.key == KEY
    assert bank.paid == [5]


async def test_twenty_at_once_call_once() -> None:
    bank = Downstream()

    async def slowly(amount: int) -> Any:
        await asyncio.sleep(0.01)
        return await bank.pay(amount)

    with effects_in_memory():
        told = await asyncio.gather(
            *(async_effect(KEY, slowly, arguments={"amount": 5}) for _ in range(20))
        )
    assert told == [{"receipt": 1, "amount": 5}] * 20
    assert bank.paid == [5]


async def test_who_waits_too_long_for_a_living_one_is_told_so() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def hang() -> str:
        begun.set()
        await go_on.wait()
        return "done"

    with effects_in_memory():
        first = asyncio.ensure_future(async_effect(KEY, hang))
        await begun.wait()
        with pytest.raises(EffectInProgress, match=KEY):
            await async_effect(KEY, hang, patience=timedelta(0))
        go_on.set()
        assert await first == await async_effect(KEY, hang) == "done"


async def test_an_effect_that_has_begun_is_seen_through_when_its_caller_is_cancelled() -> None:
    bank, begun, go_on = Downstream(), asyncio.Event(), asyncio.Event()

    async def slowly() -> Any:
        begun.set()
        await go_on.wait()
        return await bank.pay()

    with effects_in_memory() as ledger:
        caller = asyncio.ensure_future(async_effect(KEY, slowly))
        await begun.wait()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        go_on.set()
        assert await async_effect(KEY, slowly) == {"receipt": 1, "amount": 0}
    assert (bank.paid, ledger.statuses) == ([0], {KEY: "done"})


# --- failures ---------------------------------------------------------------------------------


async def test_an_exception_leaves_the_outcome_uncertain_by_default() -> None:
    bank = Downstream(TimeoutError("no answer"))
    with effects_in_memory() as ledger:
        with pytest.raises(TimeoutError):
            await async_effect(KEY, bank.pay)
        with pytest.raises(EffectUncertain, match="An operator has to decide"):
            await async_effect(KEY, bank.pay)
    assert (bank.paid, ledger.statuses) == ([0], {KEY: "uncertain"})


async def test_a_released_failure_may_be_tried_again() -> None:
    bank = Downstream(ConnectionRefusedError(), pays=False)
    with effects_in_memory() as ledger:
        with pytest.raises(ConnectionRefusedError):
            await async_effect(KEY, bank.pay, on_failure="release")
        assert ledger.statuses == {}
        bank.error, bank.pays = None, True
        assert await async_effect(KEY, bank.pay, on_failure="release")
    assert bank.paid == [0]


async def test_a_recorded_failure_is_told_again() -> None:
    bank = Downstream(ValueError("card 4711 is declined"), pays=False)
    with effects_in_memory():
        for _ in range(2):
            with pytest.raises(EffectFailed) as failed:
                await async_effect(KEY, bank.pay, on_failure="record")
            assert (failed.value.kind, failed.value.reason) == (
                "ValueError",
                "card 4711 is declined",
            )
            assert "4711" not in failed.value.message, "it goes to the client"
            bank.error = None
    assert bank.paid == []


async def test_the_author_may_judge_each_exception() -> None:
    def judge(error: Exception) -> Any:
        return "release" if isinstance(error, ConnectionRefusedError) else "uncertain"

    bank = Downstream(ConnectionRefusedError(), pays=False)
    with effects_in_memory() as ledger:
        with pytest.raises(ConnectionRefusedError):
            await async_effect(KEY, bank.pay, on_failure=judge)
        assert ledger.statuses == {}
        bank.error = TimeoutError()
        with pytest.raises(TimeoutError):
            await async_effect(KEY, bank.pay, on_failure=judge)
        assert ledger.statuses == {KEY: "uncertain"}


async def test_a_judge_that_fails_leaves_it_uncertain() -> None:
    bank = Downstream(TimeoutError())
    with effects_in_memory() as ledger:
        with pytest.raises(ZeroDivisionError):
            await async_effect(KEY, bank.pay, on_failure=lambda error: 1 / 0)
        assert ledger.statuses == {KEY: "uncertain"}
        with pytest.raises(ValueError, match="on_failure='maybe'"):
            await async_effect("other", bank.pay, on_failure=lambda error: "maybe")
    assert ledger.statuses == {KEY: "uncertain", "other": "uncertain"}


async def test_a_result_without_a_json_form_is_never_produced_twice() -> None:
    bank = Downstream()

    async def call() -> Any:
        await bank.pay()
        return {"rate": float("nan")}

    with effects_in_memory():
        for _ in range(2):
            with pytest.raises(EffectFailed) as failed:
                await async_effect(KEY, call)
            assert "result.rate is NaN" in failed.value.reason
    assert bank.paid == [0]


async def test_a_question_within_an_effect_is_refused_clearly() -> None:
    class State(TypedDict):
        done: bool

    async def ask() -> None:
        interrupt("?")

    async def node(state: State) -> State:
        await async_effect(KEY, ask)
        return {"done": True}

    graph = StateGraph(State).add_node(node).add_edge(START, "node").add_edge("node", END)
    with effects_in_memory(), pytest.raises(RuntimeError, match="ask before it"):
        await graph.compile(checkpointer=InMemorySaver()).ainvoke(
            {"done": False}, {"configurable": {"thread_id": "1"}}
        )


# --- uncertain outcomes -----------------------------------------------------------------------


async def test_stop_leaves_an_uncertain_outcome_alone() -> None:
    bank = Downstream()
    with effects_in_memory() as ledger:
        ledger.leave_uncertain(KEY)
        with pytest.raises(EffectUncertain, match="never recorded"):
            await async_effect(KEY, bank.pay)
    assert (bank.paid, ledger.statuses) == ([], {KEY: "uncertain"})


async def test_retry_calls_again() -> None:
    bank = Downstream()
    with effects_in_memory() as ledger:
        ledger.leave_uncertain(KEY)
        told = [await async_effect(KEY, bank.pay, on_uncertain="retry") for _ in range(2)]
    assert (bank.paid, told[0]) == ([0], told[1])


@pytest.mark.parametrize("is_async", [True, False])
async def test_verify_that_finds_it_records_what_it_found(is_async: bool) -> None:
    bank = Downstream()

    async def ask_the_bank(amount: int) -> Happened:
        return Happened({"receipt": 7, "amount": amount})

    def ask_now(amount: int) -> Happened:
        return Happened({"receipt": 7, "amount": amount})

    verify = ask_the_bank if is_async else ask_now
    with effects_in_memory() as ledger:
        ledger.leave_uncertain(KEY)
        told = [
            await async_effect(KEY, bank.pay, arguments={"amount": 5}, on_uncertain=verify)
            for _ in range(2)
        ]
    assert told == [{"receipt": 7, "amount": 5}] * 2
    assert bank.paid == []


async def test_verify_that_does_not_find_it_lets_it_happen() -> None:
    bank = Downstream()
    with effects_in_memory() as ledger:
        ledger.leave_uncertain(KEY)
        assert await async_effect(KEY, bank.pay, on_uncertain=lambda: None)
    assert bank.paid == [0]


@pytest.mark.parametrize("verdict", [True, False, {"receipt": 1}, ConnectionError("away")])
async def test_verify_that_cannot_tell_leaves_it_uncertain(verdict: Any) -> None:
    bank = Downstream()

    def verify() -> Any:
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    with effects_in_memory() as ledger:
        ledger.leave_uncertain(KEY)
        for _ in range(2):
            with pytest.raises(EffectUncertain, match="could not be verified"):
                await async_effect(KEY, bank.pay, on_uncertain=verify, on_failure="release")
    assert (bank.paid, ledger.statuses) == ([], {KEY: "uncertain"})


async def test_verify_is_not_asked_about_what_is_new() -> None:
    bank, asked = Downstream(), []
    with effects_in_memory():
        await async_effect(KEY, bank.pay, on_uncertain=lambda: asked.append(1))
    assert (bank.paid, asked) == ([0], [])


# --- approvals --------------------------------------------------------------------------------


async def test_without_an_approved_answer_nothing_happens() -> None:
    bank = Downstream()
    refused = pytest.raises(EffectNotApproved, match="this run has no answer to it")
    with effects_in_memory(approved={"other"}), refused:
        await async_effect(KEY, bank.pay, approval="review")
    with effects_in_memory(approved={"review"}):
        await async_effect(KEY, bank.pay, approval="review")
    assert bank.paid == [0]


async def test_an_approval_may_have_to_be_about_exactly_this() -> None:
    bank = Downstream()
    with effects_in_memory(approved={"review": {"amount": 5}}):
        with pytest.raises(EffectNotApproved, match="is something else"):
            await async_effect(KEY, bank.pay, approval=Approval("review", of={"amount": 50}))
        await async_effect(KEY, bank.pay, approval=Approval("review", of={"amount": 5}))
    assert bank.paid == [0]


# --- sync -------------------------------------------------------------------------------------


def test_the_sync_form_does_the_same_on_the_calling_thread() -> None:
    threads: list[int] = []

    def call(amount: int) -> int:
        threads.append(threading.get_ident())
        return amount * 2

    with effects_in_memory():
        assert [effect(KEY, call, arguments={"amount": 2}) for _ in range(2)] == [4, 4]
    assert threads == [threading.get_ident()]


async def test_the_sync_form_is_refused_on_the_loop() -> None:
    bank = Downstream()
    with effects_in_memory(), pytest.raises(RuntimeError, match="await async_effect"):
        effect(KEY, bank.pay_now)
    assert bank.paid == []


def test_the_sync_form_takes_no_async_function() -> None:
    bank = Downstream()
    with effects_in_memory():
        with pytest.raises(TypeError, match="await async_effect"):
            effect(KEY, bank.pay)
        with pytest.raises(TypeError, match="await async_effect"):
            effect(KEY, bank.pay_now, on_uncertain=bank.pay)


async def test_sync_nodes_of_an_async_graph() -> None:
    """LangGraph runs them in threads, with the context of the run."""
    bank = Downstream()

    class State(TypedDict):
        receipt: int

    def node(state: State) -> State:
        interrupt("go on?")
        return {"receipt": effect(KEY, bank.pay_now)["receipt"]}

    graph = StateGraph(State).add_node(node).add_edge(START, "node").add_edge("node", END)
    compiled = graph.compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    with effects_in_memory():
        await compiled.ainvoke({"receipt": 0}, config)
        assert await compiled.ainvoke(Command(resume="yes"), config) == {"receipt": 1}
    assert bank.paid == [0]


# --- in a transaction -------------------------------------------------------------------------


class Rows:
    """As much of a database as is used here: rows that a rollback takes back."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    async def execute(self, *statement: Any) -> None:
        self.rows.append(statement)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        yield self

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        before = list(self.rows)
        try:
            yield self
        except BaseException:
            self.rows[:] = before
            raise


async def test_in_a_transaction_the_call_gets_the_connection() -> None:
    rows = Rows()

    async def insert(conn: Rows, row: str) -> int:
        conn.rows.append(row)
        return len(conn.rows)

    async def insert_and_fail(conn: Rows, row: str) -> int:
        conn.rows.append(row)
        raise ValueError("not this one")

    with effects_in_memory(database=rows) as ledger:
        with pytest.raises(ValueError, match="not this one"):
            await effect_in_transaction(KEY, insert_and_fail, arguments={"row": "a"})
        assert (rows.rows, ledger.statuses) == ([], {})
        for _ in range(2):
            assert await effect_in_transaction(KEY, insert, arguments={"row": "a"}) == 1
        for _ in range(2):
            with pytest.raises(EffectFailed):
                await effect_in_transaction(
                    "b", insert_and_fail, arguments={"row": "b"}, on_failure="record"
                )
        async with database().connection() as conn:
            assert conn is rows
    assert rows.rows == ["a"]
    assert ledger.statuses == {KEY: "done", "b": "failed"}


async def test_without_a_database_there_is_no_transaction() -> None:
    async def insert(conn: Any) -> None: ...

    with effects_in_memory(), pytest.raises(LookupError, match="database="):
        await effect_in_transaction(KEY, insert)


# --- what cannot be ---------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["", "a\0b", "line\nbreak", "\ud800", "x" * 1025, "ä" * 513, 7])
async def test_keys_that_cannot_be(key: Any) -> None:
    bank = Downstream()
    with effects_in_memory(), pytest.raises(ValueError, match=r"a key (is|has)"):
        await async_effect(key, bank.pay)
    assert bank.paid == []


@pytest.mark.parametrize("key", ["x" * 1024, "ä" * 512, "reset:INC-42:user-123:proposal-v2"])
async def test_keys_that_can_be(key: str) -> None:
    bank = Downstream()
    with effects_in_memory():
        assert await async_effect(key, bank.pay)


@pytest.mark.parametrize(
    "options", [{"on_uncertain": "again"}, {"on_failure": "ignore"}, {"on_failure": None}]
)
async def test_options_that_cannot_be(options: Any) -> None:
    with effects_in_memory(), pytest.raises(ValueError, match="or a function"):
        await async_effect(KEY, Downstream().pay, **options)


async def test_outside_of_a_run_there_is_no_ledger() -> None:
    with pytest.raises(LookupError, match="effects_in_memory"):
        await async_effect(KEY, Downstream().pay)
    with pytest.raises(LookupError):
        database()


# --- the how-to -------------------------------------------------------------------------------


async def test_the_how_to_s_code_runs() -> None:
    place: dict[str, Any] = {"__name__": "how_to"}
    for block in blocks(DOCS / "how-to" / "do-something-once.md", "python"):
        exec(compile(block.code, "do-something-once.md", "exec", dont_inherit=True), place)
    await place["test_refund"]()
    assert await place["find_payment"]("1", "2", "3") is None

    outbox = Rows()
    with effects_in_memory(database=outbox):
        for _ in range(2):
            await place["notify"]({"messages": []})
    assert len(outbox.rows) == 1
