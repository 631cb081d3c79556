"""Graphs whose runs are worth telling: for the tests of the audit."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage
from langgraph.graph import MessagesState
from pydantic import BaseModel

from gateway import Graph, Policy, ask, ask_approval, permit
from tests.integration.small_graphs import chain, done

SECRET = "the prompt is nobody's business"


class Reset(BaseModel):
    user: str
    revoke_sessions: bool


POLICY = Policy(
    tiers={"credential": ask(roles={"manager"}, four_eyes=True)},
    actions={"reset_password": "credential"},
)


async def reset(state: MessagesState) -> dict[str, Any]:
    wanted = {"user": "user-123", "revoke_sessions": True}
    leave = permit(POLICY, "reset_password", wanted, editable=Reset)
    if not leave:
        return {"messages": [AIMessage(leave.refusal)]}
    done(f"reset {leave.arguments}")
    return {"messages": [AIMessage("Reset.")]}


async def hesitate(state: MessagesState) -> dict[str, Any]:
    answer = ask_approval("go_on", question="Go on?", expires_in=3600, on_expiry="reject")
    return {"messages": [AIMessage(answer.action)]}


async def two(state: MessagesState) -> dict[str, Any]:
    one = ask_approval("first", question="First?")
    other = ask_approval("second", question="Second?")
    return {"messages": [AIMessage(f"{one.action} {other.action}")]}


async def stumble(state: MessagesState) -> dict[str, Any]:
    if done("attempt") == 1:
        raise ValueError("a secret of the node's")
    return {"messages": [AIMessage("through")]}


async def wait(state: MessagesState) -> dict[str, Any]:
    ask_approval("go_on", question="Go on?", payload={"what": "on"})
    return {}


STORIES: dict[str, Graph] = {
    "reset": Graph(chain(reset)),
    "hesitate": Graph(chain(hesitate)),
    "two": Graph(chain(two)),
    "stumble": Graph(chain(wait, stumble)),
}
