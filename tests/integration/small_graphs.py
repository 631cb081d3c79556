"""Small graphs for the integration tests: each shows one thing."""

from __future__ import annotations

import asyncio
import json
import operator
from collections import defaultdict
from collections.abc import Iterator
from typing import Annotated, Any, cast

from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Send, interrupt

from gateway import Graph, ask_text, current_run, current_settings

USAGE: Any = {
    "input_tokens": 10,
    "output_tokens": 5,
    "total_tokens": 15,
    "input_token_details": {"cache_read": 4},
    "output_token_details": {"reasoning": 2},
}
PAYLOADS: dict[str, Any] = {}
"""What `ask-any` asks with, by the last user text."""

GATES: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
"""What `gate` waits for, by the last user text."""

EFFECTS: dict[str, list[str]] = {}
"""What the nodes of a run did, by run id."""


def done(what: str) -> int:
    """Note an effect of the current run; how often it has happened."""
    effects = EFFECTS.setdefault(current_run().run_id, [])
    effects.append(what)
    return effects.count(what)


def chain(*nodes: Any, state: Any = MessagesState) -> StateGraph[Any, Any, Any, Any]:
    """These nodes, one after the other."""
    graph: Any = StateGraph(state)
    names = [node.__name__ for node in nodes]
    for name, node in zip(names, nodes, strict=True):
        graph.add_node(name, node)
    for start, end in zip([START, *names], [*names, END], strict=True):
        graph.add_edge(start, end)
    return graph


def says(message: AIMessage) -> StateGraph[Any, Any, Any, Any]:
    """A graph that says this message."""

    async def say(state: MessagesState) -> dict[str, Any]:
        return {"messages": [message.model_copy()]}

    return chain(say)


async def speak(text: str) -> BaseMessage:
    """A model's message, token by token."""
    return await GenericFakeChatModel(messages=iter([AIMessage(text)])).ainvoke("")


class CountedModel(GenericFakeChatModel):
    """Brings its usage as real models do: with the message, or with the last chunk."""

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        result = super()._generate(*args, **kwargs)
        for generation in result.generations:
            cast(AIMessage, generation.message).usage_metadata = USAGE
        return result

    def _stream(self, *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        # The base streams what `_generate` gives, so the usage is told here, once, at the end.
        yield from super()._stream(*args, **kwargs)
        yield ChatGenerationChunk(message=AIMessageChunk("", usage_metadata=USAGE))


def counted_model(text: str) -> CountedModel:
    return CountedModel(messages=iter([AIMessage(text)]))


async def think_and_speak(state: MessagesState) -> dict[str, Any]:
    await counted_model("hm").ainvoke("")
    return {"messages": [await counted_model("so be it").ainvoke("")]}


def last_text(state: MessagesState) -> str:
    return str(state["messages"][-1].text) if state["messages"] else ""


async def first(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await speak("one two three")]}


async def think(state: MessagesState) -> dict[str, Any]:
    await speak("nobody may hear this")
    return {}


async def second(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await speak("four five")]}


async def remember(state: MessagesState) -> dict[str, Any]:
    """Says the whole conversation that it got, one line a message."""
    lines = []
    for message in state["messages"]:
        calls = [call["name"] for call in getattr(message, "tool_calls", [])]
        lines.append(f"{message.type}:{message.text}" + "".join(f" calls {one}" for one in calls))
    return {"messages": [AIMessage("\n".join(lines))]}


async def parrot(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(f"heard: {last_text(state)}")]}


async def count_messages(messages: list[BaseMessage]) -> int:
    return 100 * len(messages) + len(current_settings().tools)


async def sum_up(messages: list[BaseMessage]) -> str:
    await counted_model("in short").ainvoke("")
    return f"{len(messages)} messages were said"


def refuse_all(messages: list[BaseMessage]) -> int:
    raise ValueError("a secret")


async def name_the_user(state: MessagesState) -> dict[str, Any]:
    wanted = current_settings()
    return {"messages": [AIMessage(f"{wanted.safety_identifier} {wanted.user}")]}


async def wait_at_gate(state: MessagesState) -> dict[str, Any]:
    await GATES[last_text(state)].wait()
    return {"messages": [AIMessage("through")]}


async def ask_name(state: MessagesState) -> dict[str, Any]:
    answer = ask_text("name", question="Who are you?")
    return {"messages": [AIMessage(f"hello {answer.value}")]}


async def blocks(state: MessagesState) -> dict[str, Any]:
    """Says what each message is made of, as LangChain reads it."""
    lines = []
    for message in state["messages"]:
        kinds = [
            f"{one['type']} {one.get('mime_type', '')}".strip() for one in message.content_blocks
        ]
        lines.append(f"{message.type}: {'; '.join(kinds)}")
    return {"messages": [AIMessage("\n".join(lines))]}


async def two_tools(state: MessagesState) -> dict[str, Any]:
    """Calls every tool of the client at once, then says what each gave."""
    given = {one.name: one.text for one in state["messages"] if isinstance(one, ToolMessage)}
    if given:
        said = ", ".join(f"{name}: {given[name]}" for name in sorted(given, reverse=True))
        return {"messages": [AIMessage(said)]}
    names = [tool.name for tool in current_settings().tools]
    tool_calls = [{"name": name, "args": {}, "id": f"call_{name}"} for name in names]
    return {"messages": [AIMessage("", tool_calls=tool_calls)]}


async def obey_schema(state: MessagesState) -> dict[str, Any]:
    """An object of the client's JSON schema: the last text for strings, 3 for whole numbers."""
    wanted = current_settings().text_format or {}
    fields = wanted["schema"]["properties"]
    made = {
        name: last_text(state) if field["type"] == "string" else 3 for name, field in fields.items()
    }
    return {"messages": [AIMessage(json.dumps(made))]}


async def announce(state: MessagesState) -> dict[str, Any]:
    done("announced")
    return {"messages": [await speak("I will ask you.")]}


async def ask(state: MessagesState) -> dict[str, Any]:
    answer = interrupt({"question": "Go on?"})
    done("answered")
    return {"messages": [AIMessage(f"answer: {answer!a}")]}


async def ask_any(state: MessagesState) -> dict[str, Any]:
    answer = interrupt(PAYLOADS[last_text(state)])
    return {"messages": [AIMessage(f"answer: {answer!a}")]}


async def ask_twice(state: MessagesState) -> dict[str, Any]:
    one = interrupt("first?")
    two = interrupt("second?")
    return {"messages": [AIMessage(f"{one} {two}")]}


class Fan(MessagesState):
    answers: Annotated[list[str], operator.add]


async def each(item: Any) -> dict[str, Any]:
    answer = interrupt({"item": item})
    done(item)
    return {"answers": [f"{item}={answer}"]}


async def gather(state: Fan) -> dict[str, Any]:
    return {"messages": [AIMessage(" ".join(state["answers"]))]}


def fan_out() -> StateGraph[Any, Any, Any, Any]:
    graph: Any = StateGraph(Fan)
    graph.add_node("each", each)
    graph.add_node("gather", gather)
    graph.add_conditional_edges(
        START, lambda state: [Send("each", one) for one in ("a", "b", "c")], ["each"]
    )
    graph.add_edge("each", "gather")
    return graph


async def effect(state: MessagesState) -> dict[str, Any]:
    done("effect")
    return {}


async def fail_once(state: MessagesState) -> dict[str, Any]:
    if done("attempt") == 1:
        raise ValueError("a secret")
    return {"messages": [AIMessage("through")]}


async def fail(state: MessagesState) -> dict[str, Any]:
    raise ValueError("a secret")


async def settings(state: MessagesState) -> dict[str, Any]:
    wanted = current_settings()
    names = [tool.name for tool in wanted.tools]
    return {"messages": [AIMessage(f"{wanted.temperature} {names} {dict(wanted.metadata)!a}")]}


async def exits(state: MessagesState) -> dict[str, Any]:
    if last_text(state) == "async":
        raise SystemExit(3)
    return {}


def exits_too(state: MessagesState) -> Any:
    raise SystemExit(3)


async def forgetful_subgraph(state: MessagesState) -> Any:
    return await chain(ask).compile(checkpointer=False).ainvoke(state)


CALLS = [
    {"name": "weather", "args": {"city": "Köln"}, "id": "call_weather"},
    {"name": "own_tool", "args": {}, "id": "call_own"},
]
REASONING = [{"type": "reasoning", "reasoning": "Hm."}, {"type": "text", "text": "Yes."}]

GRAPHS: dict[str, Graph] = {
    "several": Graph(chain(first, think, second), description="Says two things."),
    "tool": Graph(says(AIMessage("Let me see.", tool_calls=CALLS))),
    "reasoning": Graph(says(AIMessage(REASONING))),
    "refusal": Graph(says(AIMessage("", additional_kwargs={"refusal": "I will not."}))),
    "truncation": Graph(says(AIMessage("Once", response_metadata={"finish_reason": "length"}))),
    "usage": Graph(says(AIMessage("counted", usage_metadata=USAGE))),
    "model-usage": Graph(chain(think_and_speak)),
    "remember": Graph(chain(remember)),
    "parrot": Graph(chain(parrot)),
    "measured": Graph(chain(remember), count_tokens=count_messages, compact=sum_up),
    "mismeasured": Graph(chain(remember), count_tokens=lambda _: "7", compact=lambda _: 7),  # type: ignore[arg-type,return-value]
    "unmeasured": Graph(chain(remember), count_tokens=refuse_all, compact=refuse_all),
    "safety": Graph(chain(name_the_user)),
    "gate": Graph(chain(wait_at_gate)),
    "ask-text": Graph(chain(ask_name)),
    "blocks": Graph(chain(blocks)),
    "two-tools": Graph(chain(two_tools)),
    "schema": Graph(chain(obey_schema)),
    "settings": Graph(chain(settings)),
    "ask": Graph(chain(announce, ask), interrupt_name="go_on"),
    "ask-any": Graph(chain(ask_any)),
    "ask-settings": Graph(chain(ask, settings)),
    "twice": Graph(chain(ask_twice)),
    "fan": Graph(fan_out()),
    "flaky": Graph(chain(ask, effect, fail_once)),
    "fail": Graph(chain(first, fail)),
    "exits": Graph(chain(exits, exits_too)),
    "exits-in-words": Graph(says(AIMessage("Bye.")), output=exits_too),
    "forgetful": Graph(chain(forgetful_subgraph)),
}
