"""A transfer that needs an approval, with a point between any two steps; and its bank.

The bank is a system downstream as they are: it keeps no keys, a second call is a second transfer,
and it can be asked what it did.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

from gateway import Graph, Happened, async_effect
from graphs.fake_chat import FakeChat
from tests.acceptance.points import reach, reach_in_thread

BEFORE_THE_EFFECT = "in the node, before the effect"
BEFORE_THE_RECORD = "between effect and record"
AFTER_THE_RECORD = "after the record, before the checkpoint"

model = FakeChat()


def bank() -> Path:
    return Path(os.environ["FERMATA_DATA_DIR"]) / "bank.jsonl"


def transfer(key: str) -> str:
    """Move the money, whoever asks, however often."""
    with bank().open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps({"key": key, "by": os.getpid()}) + "\n")
        file.flush()
    reach_in_thread(BEFORE_THE_RECORD)
    return f"receipt of {key}"


def transfers(path: Path | None = None) -> list[str]:
    """The keys of all transfers, oldest first."""
    path = path or bank()
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line)["key"] for line in lines]


class Transfer(MessagesState, total=False):
    key: str
    receipt: str


async def announce(state: Transfer) -> dict[str, Any]:
    key = str(state["messages"][-1].text)
    return {"messages": [await model.ainvoke(f"May I transfer {key}?")], "key": key}


async def ask(state: Transfer) -> dict[str, Any]:
    if interrupt({"question": f"Transfer {state['key']}?"}) != "approve":
        return {"receipt": ""}
    await reach(BEFORE_THE_EFFECT)
    receipt = await async_effect(
        f"transfer {state['key']}", transfer, arguments={"key": state["key"]}, on_uncertain=verify
    )
    await reach(AFTER_THE_RECORD)
    return {"receipt": receipt}


def verify(key: str) -> Happened | None:
    """Ask the bank what nobody wrote down."""
    return Happened(f"receipt of {key}") if key in transfers() else None


async def confirm(state: Transfer) -> dict[str, Any]:
    """A second question, for those who want a receipt."""
    if state["key"].endswith("with receipt") and state["receipt"]:
        interrupt({"question": "Where to?"})
    return {}


async def tell(state: Transfer) -> dict[str, Any]:
    said = state["receipt"] or "nothing was transferred"
    return {"messages": [await model.ainvoke(said)]}


def build() -> StateGraph[Any, Any, Any, Any]:
    graph = StateGraph(Transfer)
    for node in (announce, ask, confirm, tell):
        graph.add_node(node)
    for start, end in ((START, "announce"), ("announce", "ask"), ("ask", "confirm")):
        graph.add_edge(start, end)
    graph.add_edge("confirm", "tell")
    graph.add_edge("tell", END)
    return graph


async def wait(state: MessagesState) -> dict[str, Any]:
    await reach("waiting")
    return {"messages": [AIMessage("waited")]}


def waiting() -> StateGraph[Any, Any, Any, Any]:
    graph = StateGraph(MessagesState)
    graph.add_node(wait)
    graph.add_edge(START, "wait")
    graph.add_edge("wait", END)
    return graph


def messages(said: list[Any]) -> Any:
    """Given, so that nothing has to be found out at each start."""
    return {"messages": said}


GRAPHS = {
    "transfer": Graph(build(), input=messages),
    "waiting": Graph(waiting(), input=messages),
}
