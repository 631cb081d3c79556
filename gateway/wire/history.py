"""What stands in `input`: messages, calls and their outputs, parsed once into frozen types.

Clients resend what they got, from us or from OpenAI, so every item type that OpenAI's API knows is
taken; the ones that mean nothing to a graph are kept as they are (`Opaque`). A type that nobody
knows is refused, because dropping it silently could change the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gateway.errors import InvalidRequest
from gateway.wire import checks, compaction
from gateway.wire.encoding import Json, dumps

ROLES = ("user", "assistant", "system", "developer")

TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
"""All of them are just text to a graph; clients mix them up, and Open Responses allows it."""

OPAQUE_TYPES = (
    "additional_tools",
    "apply_patch_call",
    "apply_patch_call_output",
    "code_interpreter_call",
    "compaction_trigger",
    "computer_call",
    "computer_call_output",
    "configuration_update",
    "custom_tool_call",
    "custom_tool_call_output",
    "file_search_call",
    "image_generation_call",
    "local_shell_call",
    "local_shell_call_output",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
    "mcp_list_tools",
    "program",
    "program_output",
    "shell_call",
    "shell_call_output",
    "tool_search_call",
    "tool_search_output",
    "web_search_call",
)
"""Every other input item type of the OpenAI SDK (3.57)."""


# --- the types -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of content. `text` holds the text of text parts and of refusals, else None.

    `raw` is the part as it was sent: images, files, audio and video are in it.
    """

    type: str
    raw: Mapping[str, Json]
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """What somebody said; `role` is one of `ROLES`."""

    role: str
    parts: tuple[Part, ...]
    raw: Mapping[str, Json]
    id: str | None = None

    @property
    def text(self) -> str:
        """The texts of its parts, one after the other."""
        return "".join(part.text for part in self.parts if part.text is not None)


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call that the client echoes; `arguments` may have been rewritten by it."""

    call_id: str
    name: str
    arguments: str
    raw: Mapping[str, Json]
    id: str | None = None


@dataclass(frozen=True, slots=True)
class FunctionCallOutput:
    """An answer. `output` is the string, or the joined text of the parts if a list was sent.

    `parts` is empty if a string was sent; `answers.output_text` refuses parts that are not text.
    """

    call_id: str
    output: str
    raw: Mapping[str, Json]
    parts: tuple[Part, ...] = ()
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What a model thought: the paragraphs of its summary; what is encrypted is not opened here."""

    summary: tuple[str, ...]
    raw: Mapping[str, Json]
    encrypted_content: str | None = None
    id: str | None = None


@dataclass(frozen=True, slots=True)
class ItemReference:
    """Stands for the stored item of this id."""

    id: str
    raw: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Compaction:
    """A history in one item (`wire.compaction`). An entry is an item of it, or the place of a
    message that stands before the compaction."""

    entries: tuple[Item | str, ...]
    raw: Mapping[str, Json]
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Opaque:
    """An item of OpenAI's built-in tools: history that is kept, and that graphs may ignore."""

    type: str
    raw: Mapping[str, Json]
    id: str | None = None


Item: TypeAlias = (
    Message | FunctionCall | FunctionCallOutput | Reasoning | ItemReference | Compaction | Opaque
)


# --- parsing ---------------------------------------------------------------------------------


def parse_input(value: Json, path: str = "input") -> tuple[Item, ...]:
    """The whole `input`: a string is one user message."""
    if isinstance(value, str):
        return (_user_text(value),)
    if not isinstance(value, list):
        checks.wrong_type(value, path, "a string or an array of items")
    items = tuple(parse_item(one, f"{path}[{n}]") for n, one in enumerate(value))
    _refuse_two_outputs_of_one_call(items, path)
    return items


def parse_item(value: Json, path: str) -> Item:
    """One item. Raises `InvalidRequest` naming the place, below `path`, of what is wrong."""
    fields = checks.mapping(value, path)
    kind = _item_type(fields, path)
    parse = _PARSERS.get(kind)
    if parse is not None:
        return parse(fields, path)
    if kind in OPAQUE_TYPES:
        return Opaque(kind, fields, _id(fields, path))
    raise checks.unknown(kind, f"{path}.type", (*_PARSERS, *OPAQUE_TYPES))


def _user_text(text: str) -> Message:
    part = {"type": "input_text", "text": text}
    raw = {"type": "message", "role": "user", "content": [part]}
    return Message("user", (Part("input_text", part, text),), raw)


def _item_type(fields: Mapping[str, Json], path: str) -> str:
    kind = checks.optional(fields, "type", path, checks.string)
    if kind is not None:
        return kind
    if "role" in fields:
        return "message"
    return "item_reference" if fields.keys() <= {"id", "type"} and fields else _no_type(path)


def _no_type(path: str) -> str:
    checks.missing(f"{path}.type")


def _refuse_two_outputs_of_one_call(items: tuple[Item, ...], path: str) -> None:
    seen: set[str] = set()
    for n, item in enumerate(items):
        if not isinstance(item, FunctionCallOutput):
            continue
        if item.call_id in seen:
            message = f"There are two outputs for function call {item.call_id} in one input."
            checks.refuse(f"{path}[{n}].call_id", message, "duplicate_call_id")
        seen.add(item.call_id)


def _id(fields: Mapping[str, Json], path: str) -> str | None:
    return checks.optional(fields, "id", path, checks.string)


def _message(fields: Mapping[str, Json], path: str) -> Message:
    role = checks.required(fields, "role", path, checks.one_of(*ROLES))
    content = checks.required(fields, "content", path, checks.anything)
    kind = "output_text" if role == "assistant" else "input_text"
    return Message(role, _parts(content, f"{path}.content", kind), fields, _id(fields, path))


def _parts(content: Json, path: str, text_type: str) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Part(text_type, {"type": text_type, "text": content}, content),)
    if not isinstance(content, list):
        checks.wrong_type(content, path, "a string or an array of content parts")
    return tuple(_part(one, f"{path}[{n}]") for n, one in enumerate(content))


def _part(value: Json, path: str) -> Part:
    fields = checks.mapping(value, path)
    kind = checks.required(fields, "type", path, _PART_TYPE)
    if kind in TEXT_PARTS:
        return Part(kind, fields, checks.required(fields, "text", path, checks.string))
    if kind == "refusal":
        return Part(kind, fields, checks.required(fields, "refusal", path, checks.string))
    for name in _PART_STRINGS[kind]:
        checks.optional(fields, name, path, checks.string)
    if all(fields.get(name) is None for name in _PART_SOURCES[kind]):
        checks.missing(f"{path}.{_PART_SOURCES[kind][0]}")
    return Part(kind, fields)


_PART_SOURCES = {
    "input_image": ("image_url", "file_id"),
    "input_file": ("file_data", "file_url", "file_id"),
    "input_audio": ("input_audio", "data"),
    "input_video": ("video_url",),
}
"""Where the content of a part may stand: one of these must be there."""

_PART_STRINGS = {
    "input_image": ("image_url", "file_id", "detail"),
    "input_file": ("file_data", "file_url", "file_id", "filename"),
    "input_audio": ("data", "format"),
    "input_video": ("video_url",),
}

_PART_TYPE = checks.one_of(*TEXT_PARTS, "refusal", *_PART_SOURCES)


def _function_call(fields: Mapping[str, Json], path: str) -> FunctionCall:
    arguments = fields.get("arguments")
    return FunctionCall(
        call_id=checks.required(fields, "call_id", path, _CALL_ID),
        name=checks.required(fields, "name", path, checks.text_of(1, 1024)),
        # History, whatever became of it: some clients rewrite arguments, some send an object.
        arguments=arguments if isinstance(arguments, str) else dumps(arguments or {}),
        raw=fields,
        id=_id(fields, path),
    )


def _function_call_output(fields: Mapping[str, Json], path: str) -> FunctionCallOutput:
    call_id = checks.required(fields, "call_id", path, _CALL_ID)
    output = checks.required(fields, "output", path, checks.anything)
    if isinstance(output, str):
        return FunctionCallOutput(call_id, output, fields, (), _id(fields, path))
    if not isinstance(output, list):
        checks.wrong_type(output, f"{path}.output", "a string or an array of content parts")
    parts = _parts(output, f"{path}.output", "input_text")
    text = "".join(part.text for part in parts if part.text is not None)
    return FunctionCallOutput(call_id, text, fields, parts, _id(fields, path))


_CALL_ID = checks.text_of(1, 1024)
"""Ours have 45 characters; those of other providers, in a history of theirs, may be longer."""


def _reasoning(fields: Mapping[str, Json], path: str) -> Reasoning:
    summary = checks.optional(fields, "summary", path, checks.array) or []
    return Reasoning(
        summary=tuple(_summary(one, f"{path}.summary[{n}]") for n, one in enumerate(summary)),
        raw=fields,
        encrypted_content=checks.optional(fields, "encrypted_content", path, checks.string),
        id=_id(fields, path),
    )


def _summary(value: Json, path: str) -> str:
    return checks.required(checks.mapping(value, path), "text", path, checks.string)


def _item_reference(fields: Mapping[str, Json], path: str) -> ItemReference:
    return ItemReference(checks.required(fields, "id", path, checks.text_of(1, 1024)), fields)


def _compaction(fields: Mapping[str, Json], path: str) -> Compaction:
    where = f"{path}.encrypted_content"
    packed = checks.required(fields, "encrypted_content", path, checks.anything)
    entries = tuple(_entry(one, where) for one in compaction.unpack(packed, where))
    return Compaction(entries, fields, _id(fields, path))


def _entry(value: Json, where: str) -> Item | str:
    if isinstance(value, str):
        return value
    try:
        item = parse_item(value, where)
    except InvalidRequest:
        item = None
    if item is None or isinstance(item, Compaction | ItemReference):
        checks.refuse(where, f"Invalid '{where}': this compaction is damaged.")
    return item


_PARSERS: dict[str, Callable[[Mapping[str, Json], str], Item]] = {
    "message": _message,
    "function_call": _function_call,
    "function_call_output": _function_call_output,
    "reasoning": _reasoning,
    "item_reference": _item_reference,
    "compaction": _compaction,
}


# --- compactions -----------------------------------------------------------------------------


def unfolded(items: Iterable[Item]) -> list[Item]:
    """The items with every compaction replaced by the history that it carries. A message whose
    place it holds moves there."""
    history: list[Item] = []
    for item in items:
        if isinstance(item, Compaction):
            history = _in_place(history, item)
        else:
            history.append(item)
    return history


def _in_place(before: Sequence[Item], compacted: Compaction) -> list[Item]:
    wanted = {entry for entry in compacted.entries if isinstance(entry, str)}
    rest: list[Item] = []
    found: dict[str, list[Item]] = {}
    for item in before:
        place = compaction.place_of(item.role, item.parts) if isinstance(item, Message) else None
        if place in wanted and place is not None:
            found.setdefault(place, []).append(item)
        else:
            rest.append(item)
    for entry in compacted.entries:
        if not isinstance(entry, str):
            rest.append(entry)
        elif found.get(entry):
            rest.append(found[entry].pop(0))
    return rest + [item for left in found.values() for item in left]
