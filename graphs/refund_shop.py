"""The refund's outside world: two small systems, each a table in the gateway's PostgreSQL.

`refund_demo.payments` stands for a payment provider. It is somewhere else and may be called twice
for one refund, so, as real ones do, it takes an idempotency key and counts by it.
`refund_demo.outbox` is the shop's own: what is in it goes to customers, and is written in the
transaction that records the effect. So the two show the two ways to do something once.
"""

from __future__ import annotations

from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import DictRow

from gateway import database
from graphs.tables import make_tables

_TABLES = """
CREATE SCHEMA IF NOT EXISTS refund_demo;
CREATE TABLE refund_demo.payments (
    idempotency_key text PRIMARY KEY,
    order_id        text NOT NULL,
    amount          numeric NOT NULL,
    calls           integer NOT NULL DEFAULT 1,
    paid_at         timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE refund_demo.outbox (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    order_id        text NOT NULL,
    message         text NOT NULL,
    written_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
"""


async def open_shop() -> None:
    """Make the tables if they are not there."""
    await make_tables("refund_demo.outbox", _TABLES)


async def pay_back(order: str, amount: str, idempotency_key: str) -> dict[str, Any]:
    """The provider's API: pays `amount` (EUR), once per key; the payment, new or known."""
    async with database().connection() as conn:
        await conn.execute(
            "INSERT INTO refund_demo.payments AS known (idempotency_key, order_id, amount)"
            " VALUES (%s, %s, %s)"
            " ON CONFLICT (idempotency_key) DO UPDATE SET calls = known.calls + 1",
            (idempotency_key, order, amount),
        )
    return {"payment": idempotency_key, "order": order, "amount": amount}


async def write_to_customer(conn: AsyncConnection[DictRow], order: str, message: str) -> None:
    """A message for the customer of an order, in the caller's transaction."""
    await conn.execute(
        "INSERT INTO refund_demo.outbox (order_id, message) VALUES (%s, %s)", (order, message)
    )
