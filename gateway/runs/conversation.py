"""A conversation's items as the LangChain messages that a graph is started with: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
)

from gateway.errors import InvalidRequest
from gateway.wire import encoding
from gateway.wire.history import (
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Part,
)


def conversation(
    history: Sequence[Item], items: Sequence[Item], instructions: str | None
) -> list[BaseMessage]:
    """The messages of `history` (what is stored) and `items` (what the request adds).

    Instructions come first, as a system message. A call of the client's own history without an
    output is left out, since no model API takes it; reasoning and the items of OpenAI's built-in
    tools mean nothing to a graph.

    Raises `InvalidRequest` for an output without its call, and a stored call without its output.
    """
    everything = _without_echoes(history, items)
    calls = {item.call_id: item for item in everything if isinstance(item, FunctionCall)}
    outputs = {item.call_id for item in everything if isinstance(item, FunctionCallOutput)}
    _refuse_open_calls(history, outputs)
    _refuse_unknown(items, calls)
    messages: list[BaseMessage] = [SystemMessage(instructions)] if instructions else []
    for item in everything:
        _append(messages, item, calls, outputs)
    for message in messages:
        message.id = message.id or str(uuid4())
    return messages


def _without_echoes(history: Sequence[Item], items: Sequence[Item]) -> list[Item]:
    """Clients that name the previous response may echo its items all the same; each counts once."""
    seen: set[tuple[type[Item], str]] = set()
    once: list[Item] = []
    for item in [*history, *items]:
        key = (type(item), _identity(item))
        if key[1] and key in seen:
            continue
        seen.add(key)
        once.append(item)
    return once


def _identity(item: Item) -> str:
    """What makes two items the same one; empty if nothing does."""
    if isinstance(item, FunctionCall | FunctionCallOutput):
        return item.call_id
    return item.id or ""


def _refuse_open_calls(history: Iterable[Item], outputs: set[str]) -> None:
    for item in history:
        if isinstance(item, FunctionCall) and item.call_id not in outputs:
            raise InvalidRequest(
                f"No tool output found for function call {item.call_id}.", param="input"
            )


def _refuse_unknown(items: Iterable[Item], calls: Mapping[str, FunctionCall]) -> None:
    for item in items:
        if isinstance(item, FunctionCallOutput) and item.call_id not in calls:
            raise InvalidRequest(
                f"No tool call found for function call output with call_id {item.call_id}.",
                param="input",
            )


def _append(
    messages: list[BaseMessage],
    item: Item,
    calls: Mapping[str, FunctionCall],
    outputs: set[str],
) -> None:
    if isinstance(item, Message):
        messages.append(_message(item))
    elif isinstance(item, FunctionCall) and item.call_id in outputs:
        _append_call(messages, item)
    elif isinstance(item, FunctionCallOutput):
        name = calls[item.call_id].name
        messages.append(ToolMessage(item.output, tool_call_id=item.call_id, name=name))


def _append_call(messages: list[BaseMessage], item: FunctionCall) -> None:
    """Calls that stand side by side, and the text before them, are one turn of the model."""
    call = ToolCall(name=item.name, args=_arguments(item.arguments), id=item.call_id)
    last = messages[-1] if messages else None
    if isinstance(last, AIMessage):
        last.tool_calls.append(call)
    else:
        messages.append(AIMessage("", tool_calls=[call]))


def _arguments(text: str) -> dict[str, Any]:
    """Clients rewrite arguments in their histories; whatever became of them, it is history."""
    try:
        value = encoding.loads(text)
    except InvalidRequest:
        value = text
    return value if isinstance(value, dict) else {"input": value}


def _message(item: Message) -> BaseMessage:
    if item.role == "assistant":
        return AIMessage(item.text, id=item.id)
    if item.role == "user":
        return HumanMessage(_content(item.parts), id=item.id)
    return SystemMessage(item.text, id=item.id)


def _content(parts: Sequence[Part]) -> str | list[str | dict[Any, Any]]:
    if len(parts) == 1 and parts[0].text is not None:
        return parts[0].text
    return [_block(part) for part in parts]


def _block(part: Part) -> dict[str, Any]:
    """A part in the form that LangChain's chat models share (that of Chat Completions)."""
    if part.text is not None:
        return {"type": "text", "text": part.text}
    raw = {key: value for key, value in part.raw.items() if value is not None and key != "type"}
    if part.type == "input_image":
        url = {"url": raw["image_url"]} if "image_url" in raw else {"file_id": raw.get("file_id")}
        return {"type": "image_url", "image_url": {**url, "detail": raw.get("detail", "auto")}}
    if part.type == "input_file":
        return {"type": "file", "file": raw}
    return {"type": part.type, **raw}
