"""The `messages` of Chat Completions as the items that stand in `input`, and back to their places.

A message may become several items: an assistant's text and each of its calls. `Placed.place` is the
index of the message, so that an error about an item can name the message that the client sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from gateway.wire import checks
from gateway.wire.encoding import Json
from gateway.wire.history import TEXT_PARTS, FunctionCallOutput, Item, parse_item

ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Placed:
    """An item, and the index of the message that it comes from."""

    item: Item
    place: int


def parse_messages(value: Json, path: str = "messages") -> tuple[Placed, ...]:
    """All items of the messages. Raises `InvalidRequest` naming the one parameter that is wrong."""
    messages = checks.array(value, path)
    if not messages:
        checks.refuse(
            path, f"Invalid '{path}': it is empty, one message is the least.", "empty_array"
        )
    placed = tuple(
        Placed(item, n)
        for n, message in enumerate(messages)
        for item in _items(message, f"{path}[{n}]")
    )
    _refuse_two_outputs_of_one_call(placed, path)
    return placed


def _refuse_two_outputs_of_one_call(placed: tuple[Placed, ...], path: str) -> None:
    seen: set[str] = set()
    for one in placed:
        if not isinstance(one.item, FunctionCallOutput):
            continue
        if one.item.call_id in seen:
            message = f"There are two tool messages for the tool call {one.item.call_id}."
            checks.refuse(f"{path}[{one.place}].tool_call_id", message, "duplicate_call_id")
        seen.add(one.item.call_id)


def _items(value: Json, path: str) -> Iterator[Item]:
    fields = checks.mapping(value, path)
    role = checks.required(fields, "role", path, checks.string)
    if role == "function" or fields.get("function_call") is not None:
        where = f"{path}.role" if role == "function" else f"{path}.function_call"
        message = (
            "The old 'functions' are not supported: a result without an id cannot be matched to "
            "its call. Use 'tools', 'tool_calls' and messages of the role 'tool'."
        )
        checks.refuse(where, message, "unsupported_parameter")
    if role not in ROLES:
        raise checks.unknown(role, f"{path}.role", ROLES)
    if role == "tool":
        yield _output(fields, path)
        return
    calls = checks.optional(fields, "tool_calls", path, checks.array) or []
    message_item = _message(fields, role, path, optional=bool(calls))
    if message_item is not None:
        yield message_item
    for n, call in enumerate(calls):
        yield _call(call, f"{path}.tool_calls[{n}]")


def _output(fields: Mapping[str, Json], path: str) -> Item:
    call_id = checks.required(fields, "tool_call_id", path, checks.text_of(1, 1024))
    content = checks.required(fields, "content", path, checks.anything)
    output = _content(content, f"{path}.content", "input_text")
    return parse_item({"type": "function_call_output", "call_id": call_id, "output": output}, path)


def _message(fields: Mapping[str, Json], role: str, path: str, *, optional: bool) -> Item | None:
    """The message's own content; None for an assistant that only calls tools."""
    kind = "output_text" if role == "assistant" else "input_text"
    content = fields.get("content")
    refusal = checks.optional(fields, "refusal", path, checks.string)
    if content is None and role != "assistant":
        checks.required(fields, "content", path, checks.string)
    parts = _content([] if content is None else content, f"{path}.content", kind)
    if isinstance(parts, str):
        parts = [{"type": kind, "text": parts}] if parts else []
    if refusal:
        parts = [*parts, {"type": "refusal", "refusal": refusal}]
    if not parts and optional:
        return None
    return parse_item({"type": "message", "role": role, "content": parts}, path)


def _call(value: Json, path: str) -> Item:
    fields = checks.mapping(value, path)
    kind = checks.optional(fields, "type", path, checks.string) or "function"
    call_id = checks.required(fields, "id", path, checks.text_of(1, 1024))
    if kind == "custom":
        custom = checks.required(fields, "custom", path, checks.mapping)
        name = checks.required(custom, "name", f"{path}.custom", checks.string)
        arguments: Json = {"input": custom.get("input")}
    elif kind == "function":
        function = checks.required(fields, "function", path, checks.mapping)
        name = checks.required(function, "name", f"{path}.function", checks.text_of(1, 1024))
        arguments = function.get("arguments")
    else:
        raise checks.unknown(kind, f"{path}.type", ("function", "custom"))
    call = {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}
    return parse_item(call, path)


# --- content ---------------------------------------------------------------------------------


def _content(value: Json, path: str, text_type: str) -> str | list[Json]:
    """A string as it is, or the parts as those of Responses."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        checks.wrong_type(value, path, "a string or an array of content parts")
    return [_part(one, f"{path}[{n}]", text_type) for n, one in enumerate(value)]


def _part(value: Json, path: str, text_type: str) -> Json:
    fields = checks.mapping(value, path)
    kind = checks.required(fields, "type", path, checks.string)
    if kind in TEXT_PARTS:
        return {
            "type": text_type,
            "text": checks.required(fields, "text", path, checks.string),
        }
    if kind == "refusal":
        refusal = checks.required(fields, "refusal", path, checks.string)
        return {"type": "refusal", "refusal": refusal}
    if kind not in _PARTS:
        raise checks.unknown(kind, f"{path}.type", ("text", "refusal", *_PARTS))
    return _PARTS[kind](fields, path)


def _image(fields: Mapping[str, Json], path: str) -> Json:
    # Some clients send the address itself, as Responses does.
    image = checks.required(fields, "image_url", path, checks.anything)
    if isinstance(image, str):
        return {"type": "input_image", "image_url": image}
    image, where = checks.mapping(image, f"{path}.image_url"), f"{path}.image_url"
    part = {"type": "input_image", "image_url": checks.required(image, "url", where, checks.string)}
    detail = checks.optional(image, "detail", where, checks.string)
    return part if detail is None else part | {"detail": detail}


def _audio(fields: Mapping[str, Json], path: str) -> Json:
    audio = checks.required(fields, "input_audio", path, checks.mapping)
    where = f"{path}.input_audio"
    data = checks.required(audio, "data", where, checks.string)
    form = checks.optional(audio, "format", where, checks.string)
    return {"type": "input_audio", "input_audio": {"data": data, "format": form}}


def _file(fields: Mapping[str, Json], path: str) -> Json:
    file, where = checks.required(fields, "file", path, checks.mapping), f"{path}.file"
    names = ("file_data", "file_id", "filename")
    sent = {name: checks.optional(file, name, where, checks.string) for name in names}
    if sent["file_data"] is None and sent["file_id"] is None:
        checks.missing(f"{where}.file_data")
    return {"type": "input_file", **{name: one for name, one in sent.items() if one is not None}}


def _video(fields: Mapping[str, Json], path: str) -> Json:
    video = checks.required(fields, "video_url", path, checks.mapping)
    url = checks.required(video, "url", f"{path}.video_url", checks.string)
    return {"type": "input_video", "video_url": url}


_PARTS: Mapping[str, Callable[[Mapping[str, Json], str], Json]] = {
    "image_url": _image,
    "input_audio": _audio,
    "file": _file,
    "video_url": _video,
}
