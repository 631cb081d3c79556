"""Graphs whose runs are worth telling: for the tests of the audit."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage
from langgraph.graph import MessagesState
from pydantic import BaseModel

from gateway import Graph, Policy, ask, ask_approval, async_effect, permit
from tests.integration.small_graphs import chain, done, last_text

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
    key = "reset:INC-42:user-123"
    receipt = await async_effect(key, reset_account, arguments=dict(leave.arguments))
    return {"messages": [AIMessage(f"Reset: {receipt['receipt']}.")]}


async def reset_account(user: str, revoke_sessions: bool) -> dict[str, str]:
    """Stands for the account system."""
    done("reset")
    return {"receipt": f"{user}-{'all' if revoke_sessions else 'reset'}"}


async def pay(state: MessagesState) -> dict[str, Any]:
    """Acts and asks nobody."""
    paid = await async_effect(f"pay:{last_text(state)}", receipt, arguments={"cents": 100})
    return {"messages": [AIMessage(paid["receipt"])]}


async def receipt(cents: int) -> dict[str, str]:
    return {"receipt": f"R-{cents}"}


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
    "pay": Graph(chain(pay)),
    "two": Graph(chain(two)),
    "stumble": Graph(chain(wait, stumble)),
}
