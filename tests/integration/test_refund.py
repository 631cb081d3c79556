"""The refund's effects, driven by plain LangGraph with a ledger in memory and real tables."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from gateway import effects_in_memory
from gateway.store.db import Database, open_database
from graphs import refund
from graphs.refund_shop import open_shop

CONFIG: Any = {"configurable": {"thread_id": "run-1"}}
ASK: Any = {"messages": [{"role": "user", "content": "Refund order ORDER-123"}]}
APPROVED: Any = {"messages": [], "order": "ORDER-123", "decision": "approved"}
EXECUTED = "Refund of EUR 49.90 for ORDER-123 was executed and the customer notified."


@pytest.fixture
async def shop(database_url: str) -> AsyncIterator[Database]:
    async with open_database(database_url, size=3) as database:
        yield database


async def happened(shop: Database) -> tuple[list[tuple[Any, ...]], list[str]]:
    """The payments (key, order, amount, calls) and the messages."""
    async with shop.connection() as conn:
        paid = await conn.execute("SELECT * FROM refund_demo.payments ORDER BY paid_at")
        payments = [(*tuple(row.values())[:3], row["calls"]) async for row in paid]
        written = await conn.execute("SELECT message FROM refund_demo.outbox ORDER BY id")
        return payments, [row["message"] async for row in written]


async def test_approval_executes_and_notifies(shop: Database) -> None:
    graph = refund.build().compile(checkpointer=InMemorySaver())
    await graph.ainvoke(ASK, CONFIG)
    with effects_in_memory(database=shop) as ledger:
        state = await graph.ainvoke(Command(resume="approve"), CONFIG)
    assert state["messages"][-1].text == EXECUTED
    payments, messages = await happened(shop)
    ((key, order, amount, calls),) = payments
    assert (key, order, str(amount), calls) == ("run-1:ORDER-123:refund", "ORDER-123", "49.90", 1)
    assert messages == ["We have refunded EUR 49.90 for your order ORDER-123."]
    assert list(ledger.results) == ["run-1:ORDER-123:refund", "run-1:ORDER-123:notification"]


async def test_the_notice_is_streamed_once_and_not_again_on_resume(shop: Database) -> None:
    graph = refund.build().compile(checkpointer=InMemorySaver())

    async def nodes_heard(given: Any) -> list[str]:
        parts = graph.astream(given, CONFIG, stream_mode="messages")
        return list(dict.fromkeys([meta["langgraph_node"] async for _, meta in parts]))

    with effects_in_memory(database=shop):
        assert await nodes_heard(ASK) == ["announce_review"]
        assert await nodes_heard(Command(resume="approve")) == ["notify_customer"]


async def test_a_replay_of_the_effects_changes_nothing(shop: Database) -> None:
    with effects_in_memory(database=shop):
        for _ in range(3):
            await refund.execute_refund(APPROVED, CONFIG)
            await refund.notify_customer(APPROVED, CONFIG)
    payments, messages = await happened(shop)
    assert [calls for *_, calls in payments] == [1]
    assert len(messages) == 1


async def test_a_payment_whose_record_was_lost_is_sent_again_and_paid_once(shop: Database) -> None:
    with effects_in_memory(database=shop) as ledger:
        await refund.execute_refund(APPROVED, CONFIG)
        ledger.leave_uncertain("run-1:ORDER-123:refund")
        await refund.execute_refund(APPROVED, CONFIG)
    payments, _ = await happened(shop)
    assert [calls for *_, calls in payments] == [2], "the provider was asked twice, and paid once"


async def test_another_run_on_the_same_order_is_another_operation(shop: Database) -> None:
    with effects_in_memory(database=shop):
        for run in ("run-1", "run-2"):
            await refund.execute_refund(APPROVED, {"configurable": {"thread_id": run}})
    payments, _ = await happened(shop)
    assert len(payments) == 2


async def test_many_may_open_the_shop_at_once(shop: Database) -> None:
    with effects_in_memory(database=shop):
        await asyncio.gather(*(open_shop() for _ in range(6)))
    assert await happened(shop) == ([], [])
