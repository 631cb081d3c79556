"""An expense claim, with every kind of question on its way. Served as `expense-approval`; no key.

    start → read_claim → pick_cost_centre → set_limits → give_reason → approve → disburse → end
                └─ no amount ─→ end             ├─ within the limits ────────────↗
                                                └─ too much ─→ end        └─ rejected ─→ end

A choice, a typed value, a text and an approval that can be edited: each question is a node of its
own, says what it expects, and is refused what it does not. What was decided is kept in the state
as plain data, and the payment stands behind all of it, under the key of the business operation:

    {run id}:disburse    as claimed        {run id}:disburse:{amount}    as edited

Above the limit the ledger lets it happen only with an approval on record of exactly this payment.

    user       I spent EUR 1,200 on a laptop.
    call       cost_centre("Who pays EUR 1200.00?", ["Equipment", "Travel", "Training"])
    output     Equipment
    call       limits("What may Equipment spend on one claim?")
    output     {"without_approval": 500, "at_most": 5000}
    call       reason("EUR 1200.00 is more than EUR 500. What is it for?")
    output     The old one is broken.
    call       approve_expense("Pay EUR 1200.00 from Equipment?", {"amount": "1200.00", …})
    output     {"action": "edit", "value":
                {"amount": "1000.00", "cost_centre": "it", "reason": "Broken display."}}
    assistant  EUR 1000.00 was paid from Equipment.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Literal, Self

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from pydantic import BaseModel, Field, model_validator

from gateway import (
    Approval,
    ask_approval,
    ask_choice,
    ask_text,
    ask_value,
    async_effect,
    current_run,
    database,
)
from graphs.tables import make_tables

COST_CENTRES = {"it": "Equipment", "travel": "Travel", "training": "Training"}
_TOO_MUCH = "That is more than EUR {}, which nobody may approve; nothing was paid."
_AMOUNT = re.compile(r"EUR\s?(\d{1,3}(?:,\d{3})+|\d{1,7})(\.\d\d)?(?![.,]?\d)")


class Limits(BaseModel):
    """What a cost centre may spend on one claim, in EUR."""

    without_approval: int = Field(ge=0, le=1_000_000)
    at_most: int = Field(ge=0, le=1_000_000)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.at_most < self.without_approval:
            raise ValueError("at_most is below without_approval")
        return self


class Payment(BaseModel):
    """What is approved, and what an edit must be. Money is text: JSON's numbers are not exact."""

    amount: str = Field(pattern=r"^[0-9]{1,7}\.[0-9]{2}$")
    cost_centre: Literal["it", "travel", "training"]
    reason: str = Field(min_length=1)


class Expense(MessagesState, total=False):
    """The messages, the claim as it is filled in, and what was decided: plain data, which waits
    well."""

    payment: dict[str, str]
    limits: dict[str, int]
    decision: Literal["open", "within limits", "approved", "edited", "ended"]


async def read_claim(state: Expense) -> dict[str, Any]:
    """Read the amount; without one there is nothing to decide."""
    amount = amount_in(state["messages"])
    if amount:
        return {"payment": {"amount": amount}, "decision": "open"}
    return _ended("How much was it? Name the amount, as in: I spent EUR 1,200 on a laptop.")


async def pick_cost_centre(state: Expense) -> dict[str, Any]:
    """A choice: the client shows labels, the graph gets a value."""
    answer = ask_choice(
        "cost_centre",
        question=f"Who pays EUR {state['payment']['amount']}?",
        options=[{"value": value, "label": label} for value, label in COST_CENTRES.items()],
    )
    return {"payment": {**state["payment"], "cost_centre": answer.value}}


async def set_limits(state: Expense) -> dict[str, Any]:
    """A typed value: what the model's validator refuses is asked again, with its reason."""
    centre = COST_CENTRES[state["payment"]["cost_centre"]]
    answer = ask_value("limits", question=f"What may {centre} spend on one claim?", schema=Limits)
    limits: Limits = answer.value
    amount = Decimal(state["payment"]["amount"])
    if amount > limits.at_most:
        return _ended(_TOO_MUCH.format(limits.at_most))
    decision = "within limits" if amount <= limits.without_approval else "open"
    return {"limits": limits.model_dump(), "decision": decision}


async def give_reason(state: Expense) -> dict[str, Any]:
    """A text: any words, but some."""
    amount, limit = state["payment"]["amount"], state["limits"]["without_approval"]
    answer = ask_text("reason", question=f"EUR {amount} is more than EUR {limit}. What is it for?")
    return {"payment": {**state["payment"], "reason": answer.value}}


async def approve(state: Expense) -> dict[str, Any]:
    """An approval: yes, no, or another payment instead, which the limits judge again."""
    payment = Payment(**state["payment"])
    answer = ask_approval(
        "approve_expense",
        question=f"Pay EUR {payment.amount} from {COST_CENTRES[payment.cost_centre]}?",
        payload=payment,
        editable=Payment,
    )
    if answer.edited:
        at_most = state["limits"]["at_most"]
        if Decimal(answer.value.amount) > at_most:
            return _ended(_TOO_MUCH.format(at_most))
        return {"payment": answer.value.model_dump(), "decision": "edited"}
    if answer.approved:
        return {"decision": "approved"}
    why = f" ({answer.note})" if answer.note else ""
    return _ended(f"The claim was rejected{why}; nothing was paid.")


async def disburse(state: Expense) -> dict[str, Any]:
    """Pay, once in this run; above the limit only what was approved, to the cent."""
    payment, decision = state["payment"], state["decision"]
    key = f"{current_run().run_id}:disburse"
    key = f"{key}:{payment['amount']}" if decision == "edited" else key
    needed = None if decision == "within limits" else Approval("approve_expense", of=payment)
    await make_tables("expense_demo.payments", _TABLES)
    await async_effect(
        key,
        pay,
        arguments={**payment, "to": current_run().requester, "idempotency_key": key},
        on_uncertain="retry",  # the bank counts by the key as well
        approval=needed,
    )
    centre = COST_CENTRES[payment["cost_centre"]]
    return {"messages": [AIMessage(f"EUR {payment['amount']} was paid from {centre}.")]}


def after_claim(state: Expense) -> str:
    """Only a claim with an amount goes on."""
    return "pick_cost_centre" if state["decision"] == "open" else END


def after_limits(state: Expense) -> str:
    """Small claims are paid, large ones explained and approved, too large ones end here."""
    return {"open": "give_reason", "within limits": "disburse"}.get(state["decision"], END)


def after_approval(state: Expense) -> str:
    """Only what was approved is paid."""
    return "disburse" if state["decision"] in {"approved", "edited"} else END


def _ended(text: str) -> dict[str, Any]:
    return {"messages": [AIMessage(text)], "decision": "ended"}


def amount_in(messages: Sequence[BaseMessage]) -> str:
    """The amount in the last user message, with two decimals, or ""."""
    texts = [str(message.text) for message in messages if isinstance(message, HumanMessage)]
    match = _AMOUNT.search(texts[-1]) if texts else None
    return match[1].replace(",", "") + (match[2] or ".00") if match else ""


_TABLES = """
CREATE SCHEMA IF NOT EXISTS expense_demo;
CREATE TABLE expense_demo.payments (
    idempotency_key text PRIMARY KEY,
    recipient       text NOT NULL,
    amount          numeric NOT NULL,
    cost_centre     text NOT NULL,
    paid_at         timestamptz NOT NULL DEFAULT clock_timestamp()
);
"""


async def pay(
    amount: str, cost_centre: str, to: str, idempotency_key: str, reason: str = ""
) -> None:
    """Stands for the bank: somewhere else, may be called twice, pays once per key."""
    async with database().connection() as conn:
        await conn.execute(
            "INSERT INTO expense_demo.payments (idempotency_key, recipient, amount, cost_centre)"
            " VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING",
            (idempotency_key, to, amount, cost_centre),
        )


def build() -> StateGraph[Any, Any, Any, Any]:
    """The graph, without a checkpointer: whoever serves it brings one."""
    graph = StateGraph(Expense)
    graph.add_node(read_claim)
    graph.add_node(pick_cost_centre)
    graph.add_node(set_limits)
    graph.add_node(give_reason)
    graph.add_node(approve)
    graph.add_node(disburse)
    graph.add_edge(START, "read_claim")
    graph.add_conditional_edges("read_claim", after_claim, ["pick_cost_centre", END])
    graph.add_edge("pick_cost_centre", "set_limits")
    graph.add_conditional_edges("set_limits", after_limits, ["give_reason", "disburse", END])
    graph.add_edge("give_reason", "approve")
    graph.add_conditional_edges("approve", after_approval, ["disburse", END])
    graph.add_edge("disburse", END)
    return graph
