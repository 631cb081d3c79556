"""A conversation's items as the LangChain messages that a graph is started with: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from mimetypes import guess_type
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
    ItemReference,
    Message,
    Part,
    Reasoning,
    unfolded,
)
from gateway.wire.ids import is_own_call


def conversation(
    history: Sequence[Item], items: Sequence[Item], instructions: str | None
) -> list[BaseMessage]:
    """The messages of `history` (what is stored) and `items` (what the request adds).

    Instructions come first, as a system message. A call without an output is left out, since no
    model API takes it; so are an output whose call was deleted, and the items of OpenAI's built-in
    tools, which mean nothing to a graph. A reasoning summary is part of the message after it.

    Raises `InvalidRequest` for an output without its call, and a stored call of the client's tools
    without its output.
    """
    everything = _once(unfolded([*history, *items]))
    calls = {item.call_id: item for item in everything if isinstance(item, FunctionCall)}
    outputs = {item.call_id for item in everything if isinstance(item, FunctionCallOutput)}
    _refuse_open_calls(history, outputs)
    _refuse_unknown(items, calls)
    messages: list[BaseMessage] = [SystemMessage(instructions)] if instructions else []
    thoughts: list[str] = []
    for item in everything:
        if isinstance(item, Reasoning):
            thoughts += item.summary
        elif _append(messages, item, calls, outputs):
            _think(messages[-1], thoughts)
            thoughts = []
    for message in messages:
        message.id = message.id or str(uuid4())
    return messages


def without_echoes(history: Sequence[Item], items: Sequence[Item]) -> tuple[Item, ...]:
    """What `items` add to `history`: clients that name the previous response may echo its items all
    the same, or refer to them. What is stored of a request is this, so that a conversation of n
    turns costs n rows of one turn each."""
    held = {(type(item), _identity(item)) for item in history}
    ids = {item.id for item in history if item.id}
    return tuple(
        item
        for item in items
        if not (isinstance(item, ItemReference) and item.id in ids)
        and not (_identity(item) and (type(item), _identity(item)) in held)
    )


def _once(items: Sequence[Item]) -> list[Item]:
    """Each item counts once."""
    seen: set[tuple[type[Item], str]] = set()
    once: list[Item] = []
    for item in items:
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
    """A question that nobody answered is no reason: nobody can any more."""
    for item in history:
        if not isinstance(item, FunctionCall) or is_own_call(item.call_id):
            continue
        if item.call_id not in outputs:
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
) -> bool:
    """Whether the item means something to a graph, and is the end of `messages` now."""
    if isinstance(item, Message):
        messages.append(_message(item))
    elif isinstance(item, FunctionCall) and item.call_id in outputs:
        _append_call(messages, item)
    elif isinstance(item, FunctionCallOutput) and item.call_id in calls:
        name = calls[item.call_id].name
        said = _content(item.parts) if _beyond_text(item.parts) else item.output
        messages.append(ToolMessage(said, tool_call_id=item.call_id, name=name))
    else:
        return False
    return True


def _think(message: BaseMessage, thoughts: Sequence[str]) -> None:
    """A summary of what came before a model's message, where LangChain's `content_blocks` finds it
    and no model API chokes on it: as a block of the content, most would."""
    if thoughts and isinstance(message, AIMessage):
        held = message.additional_kwargs.get("reasoning_content")
        whole = [held, *thoughts] if held else thoughts
        message.additional_kwargs["reasoning_content"] = "\n".join(whole)


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


def _beyond_text(parts: Sequence[Part]) -> bool:
    return any(part.text is None for part in parts)


def _block(part: Part) -> dict[str, Any]:
    """A part as LangChain's standard content block, which its chat models translate for their API.

    Source: `langchain_core.messages.content`.
    """
    if part.text is not None:
        return {"type": "text", "text": part.text}
    raw = {key: value for key, value in part.raw.items() if value is not None and key != "type"}
    kind = part.type.removeprefix("input_")
    if kind == "image":
        extras = {"detail": raw["detail"]} if "detail" in raw else {}
        return _data_block(kind, raw.get("image_url"), raw, extras)
    if kind == "file":
        extras = {"filename": raw["filename"]} if "filename" in raw else {}
        return _data_block(kind, raw.get("file_data") or raw.get("file_url"), raw, extras)
    if kind == "audio":
        inner = raw.get("input_audio")
        sound = inner if isinstance(inner, dict) else raw
        mime = f"audio/{sound.get('format') or 'wav'}"
        return {"type": kind, "base64": sound.get("data", ""), "mime_type": mime}
    return _data_block(kind, raw.get("video_url"), raw, {})


def _data_block(
    kind: str, source: str | None, raw: Mapping[str, Any], extras: Mapping[str, Any]
) -> dict[str, Any]:
    """Bytes inside a data URL (or bare, in `file_data`) as base64; else a URL, or an id of a file
    that only the graph's model can resolve."""
    more = {"extras": dict(extras)} if extras else {}
    if source is None:
        return {"type": kind, "file_id": raw.get("file_id"), **more}
    head, comma, data = source.partition(",")
    if head.startswith("data:") and comma:
        mime = head.removeprefix("data:").partition(";")[0] or "text/plain"
        if head.endswith(";base64"):
            return {"type": kind, "base64": data, "mime_type": mime, **more}
    elif "file_data" in raw:
        mime = guess_type(str(raw.get("filename", "")))[0] or "application/octet-stream"
        return {"type": kind, "base64": source, "mime_type": mime, **more}
    return {"type": kind, "url": source, **more}
