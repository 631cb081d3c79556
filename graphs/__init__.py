"""The graphs that `fermata serve` offers by default: pages to read first and to copy from."""

from __future__ import annotations

import os

from gateway import Graph, allow_all, ask_always
from graphs import assistant, echo, expense, refund, service_desk, survey
from graphs.index_advisor import advisor, agent

GRAPHS = {
    "interruptible-approval": Graph(
        refund.build(),
        description="Refunds an order after a person has reviewed it. Try: Refund order ORDER-123",
        interrupt_name="review_refund",
        # Said here because the gateway, reading the source, must take an effect for an unknown.
        live={"announce_review", "review_refund", "notify_customer"},
    ),
    "service-desk": Graph(
        service_desk.build(),
        description="Does what a ticket wants, after a person has approved what is risky."
        " Try: Restart payments in production, INC-43.",
        live={"propose_action", "request_approval", "revise", "record_result", "stop"},
    ),
    "expense-approval": Graph(
        expense.build(),
        description="Pays an expense: a choice, a value, a text and an approval on its way."
        " Try: I spent EUR 1,200 on a laptop.",
    ),
    "index-advisor": Graph(
        advisor.build(),
        description="Finds the indexes that a workload wants, and asks before it creates them."
        " Try: Make the workload cheaper.",
        interrupt_name="apply_indexes",
    ),
    "index-agent": Graph(
        agent.build(ask_always),
        description="Creates and drops indexes, and asks before each. Try: Tune the shop.",
    ),
    "index-agent-alone": Graph(
        agent.build(allow_all),
        description="The same agent under another policy: it asks nobody. Try: Tune the shop.",
    ),
    "survey": Graph(
        survey.build(),
        description="Asks three questions at once. Try: I was at your workshop.",
    ),
    "echo": Graph(
        echo.build(),
        description="Answers the last user text; calls a declared function the text asks about.",
    ),
    **assistant.served(os.environ),
}
