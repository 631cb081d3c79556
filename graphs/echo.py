"""The smallest served graph: answers the last user text. Served as `echo`; needs no key.

    start → answer → end

When the client declares function tools and its text asks about what one of them does, the first
that fits is called, with arguments filled from its JSON schema; after its output the answer
contains that output. When the client wants JSON of a schema, the answer is such JSON. So `echo` can
stand in for a model in the tests of any client:

    user       What is the weather in Paris?          (the client declares get_weather)
    call       get_weather({"location": "Paris"})
    output     18 degrees, sunny
    assistant  get_weather says: 18 degrees, sunny
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph

from gateway import current_settings
from graphs.fake_chat import FakeChat

_WORD = re.compile(r"[^\W_]+")
# Words that every question and every description may hold say nothing about what a tool does.
_STOP_WORDS = frozenset(
    _WORD.findall(
        "a an and any are as at be by can current do does for from get give given has have how i"
        " if in is it its list make me my of on or please return returns set show tell that the"
        " their this to tool use user what when where which who will with you your"
    )
)
# Schemas may refer to themselves; a client's must not exhaust the stack.
_DEEPEST = 8


class ClientTool(Protocol):
    """A function tool as the client declared it; `parameters` is its JSON schema."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str | None: ...
    @property
    def parameters(self) -> Mapping[str, Any] | None: ...


class EchoChat(FakeChat):
    """A model that decides by words alone: after a tool's output it quotes it, else it may call."""

    def reply(self, messages: list[BaseMessage], **settings: Any) -> AIMessage:
        if messages and isinstance(messages[-1], ToolMessage):
            return AIMessage(content=quote(messages))
        text = last_user_text(messages)
        tool = choose_tool(text, settings.get("tools", ()), settings.get("tool_choice", "auto"))
        if tool is None:
            return AIMessage(content=_in_format(text, settings.get("text_format")))
        arguments = fill(tool.parameters or {}, text)
        call = {"name": tool.name, "args": arguments, "id": f"call_{uuid.uuid4().hex}"}
        return AIMessage(content="", tool_calls=[{**call, "type": "tool_call"}])


model = EchoChat()


async def answer(state: MessagesState) -> dict[str, Any]:
    """One call of the model, with what the client declared."""
    settings = current_settings()
    bound = model.bind(
        tools=settings.tools,
        tool_choice=settings.tool_choice,
        max_tokens=settings.max_output_tokens,
        text_format=settings.text_format,
    )
    return {"messages": [await bound.ainvoke(state["messages"])]}


def _in_format(text: str, text_format: Mapping[str, Any] | None) -> str:
    schema = (text_format or {}).get("schema")
    return json.dumps(fill(schema, text)) if schema else text or "Nothing was said."


def last_user_text(messages: Sequence[BaseMessage]) -> str:
    """The text of the last user message, or "" if nobody said anything."""
    texts = [str(message.text) for message in messages if isinstance(message, HumanMessage)]
    return texts[-1] if texts else ""


def quote(messages: Sequence[BaseMessage]) -> str:
    """The outputs that stand at the end, each with the name of the tool that gave it."""
    names = {
        call["id"]: call["name"]
        for message in messages
        if isinstance(message, AIMessage)
        for call in message.tool_calls
    }
    outputs: list[str] = []
    for message in reversed(messages):
        if not isinstance(message, ToolMessage):
            break
        name = names.get(message.tool_call_id, "The tool")
        outputs.insert(0, f"{name} says: {message.text}")
    return "\n".join(outputs)


def choose_tool(text: str, tools: Sequence[ClientTool], tool_choice: Any) -> ClientTool | None:
    """The tool to call: the first that `text` asks about, within what `tool_choice` allows.

    `tool_choice` is none, auto, required, {"type": "function", "name": …}, or
    {"type": "allowed_tools", "mode": "auto" | "required", "tools": […]}.
    """
    if isinstance(tool_choice, Mapping) and tool_choice.get("type") == "allowed_tools":
        allowed = {entry.get("name") for entry in tool_choice.get("tools", ())}
        tools = [tool for tool in tools if tool.name in allowed]
        tool_choice = tool_choice.get("mode", "auto")
    if tool_choice == "none" or not tools:
        return None
    if isinstance(tool_choice, Mapping) and tool_choice.get("type") == "function":
        return next((tool for tool in tools if tool.name == tool_choice.get("name")), None)
    asked = next((tool for tool in tools if asks_about(text, tool)), None)
    return asked or (tools[0] if tool_choice == "required" else None)


def asks_about(text: str, tool: ClientTool) -> bool:
    """Whether a telling word of the text is in the tool's name or description."""
    return bool(_telling(text) & _telling(f"{tool.name} {tool.description or ''}"))


def _telling(text: str) -> set[str]:
    words = {word.casefold() for word in _WORD.findall(re.sub(r"([a-z])([A-Z])", r"\1 \2", text))}
    return words - _STOP_WORDS


def fill(schema: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Arguments for the object schema: its required properties, or all of them if none is."""
    return _Filler(text, schema.get("$defs") or {}, _proper_names(text)).object(schema)


def _proper_names(text: str) -> Iterator[str]:
    """Capitalised words that do not merely open a sentence ("What is the weather in Paris?")."""
    return iter(re.findall(r"(?<![.!?:]\s)(?<!^)\b[A-Z][\w-]*(?:\s[A-Z][\w-]*)*", text))


@dataclass(frozen=True)
class _Filler:
    text: str
    definitions: Mapping[str, Any]
    names: Iterator[str]
    depth: int = 0

    def object(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        properties: Mapping[str, Any] = schema.get("properties") or {}
        wanted = schema.get("required") or list(properties)
        inner = replace(self, depth=self.depth + 1)
        return {name: inner.value(properties.get(name) or {}) for name in wanted}

    def value(self, schema: Mapping[str, Any]) -> Any:
        schema = self._resolved(schema)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return schema["enum"][0]
        kind = schema.get("type", "string")
        return self._of_kind(kind[0] if isinstance(kind, list) and kind else kind, schema)

    def _of_kind(self, kind: Any, schema: Mapping[str, Any]) -> Any:
        if kind == "object":
            return self.object(schema) if self.depth < _DEEPEST else {}
        if kind == "array":
            inner = replace(self, depth=self.depth + 1)
            return [inner.value(schema.get("items") or {})] if self.depth < _DEEPEST else []
        simple = {"integer": 1, "number": 1, "boolean": True, "null": None}
        return simple[kind] if kind in simple else next(self.names, self.text)

    def _resolved(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        for _ in range(_DEEPEST):
            if isinstance(reference := schema.get("$ref"), str):
                schema = self.definitions.get(reference.rsplit("/", 1)[-1]) or {}
            elif choices := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
                schema = choices[0]
            else:
                return schema
        return {}


def build() -> StateGraph[Any, Any, Any, Any]:
    """The graph, without a checkpointer: whoever serves it brings one."""
    graph = StateGraph(MessagesState)
    graph.add_node(answer)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    return graph
