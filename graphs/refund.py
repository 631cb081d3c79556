"""The refund review: a person decides before any money moves. Served as `interruptible-approval`.

    start → announce_review → review_refund → execute_refund → notify_customer → end
                                    └─ rejected, feedback, or nothing to review ─→ end

`announce_review` is a node of its own: LangGraph runs an interrupted node again from its start when
the answer arrives, so a notice streamed beside the `interrupt` would be streamed twice. Nothing of
value happens in `review_refund` either; the effects stand behind it, in nodes that may run twice
without harm: each goes through the gateway's ledger, under the key of its business operation:

    {thread id of the run}:{order}:refund        {thread id of the run}:{order}:notification

Two requests for the same order are two runs and so two operations; the same run, however often it
is replayed, answered or taken over, is one. The payment provider takes the key as well, so a
payment whose outcome got lost is sent again (`retry`); the message to the customer is a row in the
gateway's own database, and is committed with its record. A conversation, as a person sees it:

    user       Refund order ORDER-123
    assistant  I would like to refund EUR 49.90 for ORDER-123. A person has to review this first.
    call       review_refund({"order": "ORDER-123", …})
    output     approve
    assistant  Refund of EUR 49.90 for ORDER-123 was executed and the customer notified.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

from gateway import async_effect, effect_in_transaction
from graphs.fake_chat import FakeChat
from graphs.refund_shop import open_shop, pay_back, write_to_customer

AMOUNT = "49.90"
CURRENCY = "EUR"
_ORDER = re.compile(r"\bORDER-\w+(?:-\w+)*", re.IGNORECASE)

# The words are the whole list: what is not on it is never read as a decision.
APPROVE_WORDS = frozenset({"approve", "approved", "yes", "y"})
REJECT_WORDS = frozenset({"reject", "rejected", "no", "n", "deny"})

model = FakeChat()


@dataclass(frozen=True)
class Review:
    """What the reviewer decided; `feedback` is what they said when it was neither yes nor no."""

    decision: Literal["approved", "rejected", "feedback"]
    feedback: str = ""


class Refund(MessagesState, total=False):
    """The messages, the order under review ("" if none was named) and what became of it."""

    order: str
    decision: str


async def announce_review(state: Refund) -> dict[str, Any]:
    """Say what is about to be reviewed, or ask which order it is about."""
    order = order_in(state["messages"])
    reply = await model.ainvoke(_notice(order))
    return {"messages": [reply], "order": order, "decision": ""}


async def review_refund(state: Refund) -> dict[str, Any]:
    """Wait for a person; anything but an approval ends here, in words and without an effect."""
    if not state["order"]:
        return {}
    review = read_answer(interrupt(_question(state["order"])))
    if review.decision == "approved":
        return {"decision": review.decision}
    reply = await model.ainvoke(_closing(state["order"], review))
    return {"messages": [reply], "decision": review.decision}


async def execute_refund(state: Refund, config: RunnableConfig) -> dict[str, Any]:
    """Pay, once per run and order."""
    order = state["order"]
    key = operation_key(config, order, "refund")
    await open_shop()
    await async_effect(
        key,
        pay_back,
        arguments={"order": order, "amount": AMOUNT, "idempotency_key": key},
        on_uncertain="retry",
    )
    return {}


async def notify_customer(state: Refund, config: RunnableConfig) -> dict[str, Any]:
    """Tell the customer, once per run and order, then the client."""
    order = state["order"]
    key = operation_key(config, order, "notification")
    message = f"We have refunded {CURRENCY} {AMOUNT} for your order {order}."
    await effect_in_transaction(
        key, write_to_customer, arguments={"order": order, "message": message}
    )
    reply = await model.ainvoke(
        f"Refund of {CURRENCY} {AMOUNT} for {order} was executed and the customer notified."
    )
    return {"messages": [reply]}


def after_review(state: Refund) -> str:
    """Only an approval leads to an effect."""
    return "execute_refund" if state["decision"] == "approved" else END


def order_in(messages: list[Any]) -> str:
    """The order that the last user message names, or ""."""
    texts = [str(message.text) for message in messages if isinstance(message, HumanMessage)]
    match = _ORDER.search(texts[-1]) if texts else None
    return match.group().upper() if match else ""


def operation_key(config: RunnableConfig, order: str, effect: str) -> str:
    """The idempotency key of one business operation: this run's `effect` on this order."""
    return f"{config['configurable']['thread_id']}:{order}:{effect}"


def read_answer(answer: Any) -> Review:
    """Read what the client sent: text, or whatever its JSON was.

    Approving or rejecting takes one of the listed words, `{"action"|"type": "approve"|"reject"}` or
    `{"approved": true|false}`. Everything else ("ok", "sure", `1`, `true`, an approval that brings
    a value of its own, contradictions) is feedback: no default means yes.
    """
    decisions = _decisions_in(answer)
    if decisions == {"approved"}:
        return Review("approved")
    if decisions == {"rejected"}:
        return Review("rejected")
    return Review("feedback", _as_text(answer))


def _decisions_in(answer: Any) -> set[str]:
    if isinstance(answer, str):
        return {_word_means(answer, APPROVE_WORDS, REJECT_WORDS)}
    if not isinstance(answer, dict) or answer.get("value") is not None:
        return set()
    found = {
        _word_means(answer[key], frozenset({"approve"}), frozenset({"reject"}))
        for key in ("action", "type")
        if key in answer
    }
    if "approved" in answer:
        found.add(_flag_means(answer["approved"]))
    return found


def _word_means(word: Any, approving: frozenset[str], rejecting: frozenset[str]) -> str:
    folded = word.strip().casefold() if isinstance(word, str) else ""
    if folded in approving:
        return "approved"
    return "rejected" if folded in rejecting else "unclear"


def _flag_means(flag: Any) -> str:
    if flag is True:  # not `== True`, which 1 would pass
        return "approved"
    return "rejected" if flag is False else "unclear"


def _as_text(answer: Any) -> str:
    if isinstance(answer, dict) and isinstance(value := answer.get("value"), str):
        return value
    return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)


def _notice(order: str) -> str:
    if not order:
        return "Which order should be refunded? Please name it, as in: Refund order ORDER-123"
    return (
        f"I would like to refund {CURRENCY} {AMOUNT} for {order}. "
        "A person has to review this first."
    )


def _question(order: str) -> dict[str, Any]:
    return {
        "question": f"Refund {CURRENCY} {AMOUNT} for {order}?",
        "order": order,
        "amount": AMOUNT,
        "currency": CURRENCY,
    }


def _closing(order: str, review: Review) -> str:
    if review.decision == "rejected":
        return f"The refund for {order} was rejected; nothing was executed."
    return f"Feedback recorded for {order}: {review.feedback}; nothing was executed."


def build() -> StateGraph[Any, Any, Any, Any]:
    """The graph, without a checkpointer: whoever serves it brings one."""
    graph = StateGraph(Refund)
    graph.add_node(announce_review)
    graph.add_node(review_refund)
    graph.add_node(execute_refund)
    graph.add_node(notify_customer)
    graph.add_edge(START, "announce_review")
    graph.add_edge("announce_review", "review_refund")
    graph.add_conditional_edges("review_refund", after_review, ["execute_refund", END])
    graph.add_edge("execute_refund", "notify_customer")
    graph.add_edge("notify_customer", END)
    return graph
