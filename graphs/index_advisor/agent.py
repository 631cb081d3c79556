"""An agent that creates and drops indexes, and the policy that says whether it may alone.

    start → think ⇄ act  (one `Send` a call, in parallel)
                └─ nothing left to do ─→ end

One graph, served twice. As `index-agent` its tools stand behind `ask_always`: every index becomes a
question, which takes approve, reject, and edit with other arguments. As `index-agent-alone` they
stand behind `allow_all`, and it runs through. Which policy holds is the operator's to say: a run
setting would let whoever asks for an index decide as well that nobody is asked.

The model is a script: it reads commands out of the text, or makes a standing plan. Put a real one
in its place and nothing else changes.

    user       Create an index on orders (status, placed_on) and drop the index orders_note.
    assistant  This takes create_index and drop_index.
    call       approve_create_index({"table": "orders", "columns": ["status", "placed_on"]})
    call       approve_drop_index({"name": "orders_note"})
    output     {"action": "edit", "value": {"table": "orders", "columns": ["status"]}}
    output     {"action": "reject", "note": "Support sorts by it."}
    assistant  orders_status is there; the workload costs 11.2 instead of 13.3.
               The reviewer rejected this call of drop_index: Support sorts by it.
"""

from __future__ import annotations

import re
import uuid
from itertools import takewhile
from typing import Annotated, Any, Literal

from langchain_core.messages import AIMessage, BaseMessage, ToolCall, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.prebuilt.tool_node import ToolInvocationError
from langgraph.types import Send
from psycopg import ProgrammingError

from gateway import Policy, current_run, effect_in_transaction, guard
from graphs.fake_chat import FakeChat
from graphs.index_advisor import shop
from graphs.index_advisor.shop import Index

PLAN = (
    "Create an index on orders (customer_id), create an index on orders (status, placed_on)"
    " and drop the index orders_note."
)
"""What the script does when the text names no command."""

CallId = Annotated[str, InjectedToolCallId]
"""The id that the model gave its call: LangGraph fills it in, the model does not see it."""

_CREATE = re.compile(r"create an index on (\w+) \((\w+(?:, \w+)*)\)", re.IGNORECASE)
_DROP = re.compile(r"drop the index (\w+)", re.IGNORECASE)


@tool
async def create_index(
    table: Literal["customers", "orders"], columns: list[str], call: CallId
) -> str:
    """Create an index on a table of the shop, on these columns in this order."""
    return await _once(call, _create, table=table, columns=columns)


@tool
async def drop_index(name: str, call: CallId) -> str:
    """Drop an index of the shop by its name."""
    return await _once(call, _drop, name=name)


async def _once(call: str, change: Any, **arguments: Any) -> str:
    """Change the shop once for this call of the model, and say what that did to the workload."""
    key = f"{current_run().run_id}:{call}"
    return str(await effect_in_transaction(key, change, arguments=arguments))


async def _create(conn: shop.Connection, table: str, columns: list[str]) -> str:
    before, index = await _cost(conn), Index(table, tuple(columns))
    await shop.create(conn, index)
    return f"{index.name} is there; the workload costs {await _cost(conn)} instead of {before}."


async def _drop(conn: shop.Connection, name: str) -> str:
    before = await _cost(conn)
    if not await shop.drop(conn, name):
        return f"There is no index {name}."
    return f"{name} is gone; the workload costs {await _cost(conn)} instead of {before}."


async def _cost(conn: shop.Connection) -> str:
    await shop.make_shop(conn)
    return f"{sum(await shop.costs(conn)):.1f}"


REFUSALS = (ProgrammingError, ToolInvocationError)
"""What PostgreSQL, and a tool's own schema, refuse a call with: the model is told. Any other error
is no answer, and ends the run."""


class Script(FakeChat):
    """A model that decides by the words alone, and tells what its tools returned."""

    def reply(self, messages: list[BaseMessage], **settings: Any) -> AIMessage:
        if isinstance(messages[-1], ToolMessage):
            return AIMessage("\n".join(_results(messages)))
        calls = calls_in(str(messages[-1].text)) or calls_in(PLAN)
        names = " and ".join(dict.fromkeys(call["name"] for call in calls))
        return AIMessage(f"This takes {names}.", tool_calls=calls)


def calls_in(text: str) -> list[ToolCall]:
    """The calls that the commands in the text come to: first what is created, then what is
    dropped."""
    created = [
        {"table": found[1].lower(), "columns": found[2].lower().split(", ")}
        for found in _CREATE.finditer(text)
    ]
    dropped = [{"name": found[1].lower()} for found in _DROP.finditer(text)]
    return [_call("create_index", args) for args in created] + [
        _call("drop_index", args) for args in dropped
    ]


def _call(name: str, args: dict[str, Any]) -> ToolCall:
    return ToolCall(name=name, args=args, id=f"call_{uuid.uuid4().hex}", type="tool_call")


def _results(messages: list[BaseMessage]) -> list[str]:
    last = takewhile(lambda message: isinstance(message, ToolMessage), reversed(messages))
    return [str(message.text) for message in last][::-1]


def build(policy: Policy) -> StateGraph[Any, Any, Any, Any]:
    """The agent under a policy, without a checkpointer: whoever serves it brings one."""
    tools = guard([create_index, drop_index], policy)
    model = Script()  # a real one gets the tools: model.bind_tools(tools)

    async def think(state: MessagesState) -> dict[str, Any]:
        """One call of the model."""
        return {"messages": [await model.ainvoke(state["messages"])]}

    def each_call(state: MessagesState) -> list[Send] | str:
        """A task for each call, so that each question is asked, and answered, for itself."""
        calls = getattr(state["messages"][-1], "tool_calls", [])
        return [Send("act", [call]) for call in calls] or END

    graph = StateGraph(MessagesState)
    graph.add_node(think)
    graph.add_node("act", ToolNode(tools, handle_tool_errors=REFUSALS))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", each_call, ["act", END])
    graph.add_edge("act", "think")
    return graph
