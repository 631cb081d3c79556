"""The graphs that `fermata serve` offers by default: pages to read first and to copy from."""

from __future__ import annotations

from gateway import Graph
from graphs import echo, refund, survey

GRAPHS = {
    "interruptible-approval": Graph(
        refund.build(),
        description="Refunds an order after a person has reviewed it. Try: Refund order ORDER-123",
        interrupt_name="review_refund",
        # Said here because the gateway, reading the source, must take the ledger for an unknown.
        live={"announce_review", "review_refund", "notify_customer"},
    ),
    "survey": Graph(
        survey.build(),
        description="Asks three questions at once. Try: I was at your workshop.",
    ),
    "echo": Graph(
        echo.build(),
        description="Answers the last user text; calls a declared function the text asks about.",
    ),
}
