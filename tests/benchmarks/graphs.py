"""The graphs of the benchmarks: plain LangGraph, so that any server can serve them.

`approval` and `sleep` need a checkpointer, because they may pause; `echo` and `stream` take one. No
node touches a disk, a network or a clock it does not have to: what is measured is what is around
the graph.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final, TypeAlias

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

Builder: TypeAlias = StateGraph[Any, Any, Any, Any]

TOKENS: Final = 2000  # that `stream` says
SLEEP_SECONDS: Final = 2.0  # that `sleep` sleeps
ANSWER: Final = "approve"


class Script(BaseChatModel):
    """Streams the same tokens again and again, natively async and without a pause."""

    tokens: tuple[str, ...]

    @property
    def _llm_type(self) -> str:
        return "script"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        whole = AIMessage(content="".join(self.tokens))
        return ChatResult(generations=[ChatGeneration(message=whole)])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        yield from self._chunks()

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in self._chunks():
            yield chunk

    def _chunks(self) -> Iterator[ChatGenerationChunk]:
        for token in self.tokens:
            yield ChatGenerationChunk(message=AIMessageChunk(content=token))
        # The end is a chunk of its own, as with real providers: deltas are exactly the tokens.
        last = AIMessageChunk(content="", chunk_position="last")
        yield ChatGenerationChunk(message=last)


class Refund(MessagesState, total=False):
    """The messages, what the reviewer said, and the effect."""

    decision: str
    refunded: str


_notice = Script(tokens=("Refunding ", "order ", "1001 ", "needs ", "a person's ", "review."))
_thanks = Script(tokens=("Order ", "1001 ", "is ", "refunded; ", "thanks for ", "waiting."))
_long = Script(tokens=tuple(f"word{number} " for number in range(TOKENS)))


async def announce(state: Refund) -> dict[str, Any]:
    return {"messages": [await _notice.ainvoke(state["messages"])]}


async def review(state: Refund) -> dict[str, Any]:
    # `in`: some servers hand the answer over as it came, others wrapped or quoted.
    answer = str(interrupt({"order": "1001", "amount": "49.90", "currency": "EUR"}))
    return {"decision": "approved" if ANSWER in answer else "rejected"}


async def refund(state: Refund) -> dict[str, Any]:
    return {"refunded": "1001"}


async def refund_once(state: Refund) -> dict[str, Any]:
    """The same through Fermata's ledger; the bare graph has none, and does it as it comes."""
    from gateway import async_effect, current_run

    try:
        key = f"refund {current_run().run_id}"
    except LookupError:
        return await refund(state)
    return {"refunded": await async_effect(key, _pay, arguments={"order": "1001"})}


async def _pay(order: str) -> str:
    return order


async def thank(state: Refund) -> dict[str, Any]:
    return {"messages": [await _thanks.ainvoke(state["messages"])]}


async def repeat(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(content=str(state["messages"][-1].text))]}


async def talk(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await _long.ainvoke(state["messages"])]}


async def sleep(state: MessagesState) -> dict[str, Any]:
    """Able to pause, as far as a server can tell; it is never asked to."""
    if str(state["messages"][-1].text) == "ask":
        interrupt({"question": "how long?"})
    await asyncio.sleep(SLEEP_SECONDS)
    return {"messages": [AIMessage(content="slept")]}


def approval(effect: Any) -> Builder:
    graph: Builder = StateGraph(Refund)
    for name, node in (
        ("announce", announce),
        ("review", review),
        ("refund", effect),
        ("thank", thank),
    ):
        graph.add_node(name, node)
    graph.add_edge(START, "announce")
    graph.add_edge("announce", "review")
    graph.add_conditional_edges(
        "review", lambda state: "refund" if state["decision"] == "approved" else END
    )
    graph.add_edge("refund", "thank")
    graph.add_edge("thank", END)
    return graph


def one_node(action: Any) -> Builder:
    graph: Builder = StateGraph(MessagesState)
    graph.add_node("act", action)
    graph.add_edge(START, "act")
    graph.add_edge("act", END)
    return graph


GRAPHS: Mapping[str, Builder] = {
    "approval": approval(refund),
    "effect": approval(refund_once),
    "echo": one_node(repeat),
    "stream": one_node(talk),
    "sleep": one_node(sleep),
}
