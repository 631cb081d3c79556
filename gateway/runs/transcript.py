"""From what LangGraph streams to what people see: pure, one object a run.

The rule: items follow message ids. A message that ends up in the root state's `messages` is an
item; what a node only thinks is not shown. A token once sent cannot be taken back, so the tokens
of a model call are passed on live only where it is known beforehand that the message goes into
the state (`runs.speech`, or the graph's author says so). All other messages are shown when the
node's update brings them. The same object serves both modes, so both show the same items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, convert_to_messages

from gateway.runs.events import (
    MessageDone,
    Piece,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCall,
)
from gateway.wire import encoding
from gateway.wire.items import Usage

NOTHING: tuple[Piece, ...] = ()

_CUT_SHORT = {
    "length": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "max_output_tokens": "max_output_tokens",
    "MAX_TOKENS": "max_output_tokens",
    "content_filter": "content_filter",
    "SAFETY": "content_filter",
}


class Transcript:
    """Turns message chunks and root updates into pieces.

    `speaks` says of a node's path ("node", "subgraph:node") whether its tokens are shown live.
    `client_tools` are the names of the tools that the client declared: only calls to those leave.
    `known` are the ids of the messages that the state held before.
    """

    def __init__(
        self, *, speaks: Callable[[str], bool], client_tools: frozenset[str], known: Iterable[str]
    ) -> None:
        self._speaks = speaks
        self._client_tools = client_tools
        self._shown: set[str] = set(known)
        self._live: dict[
            str, str | None
        ] = {}  # message id -> path of the node that speaks it, or None
        self._spoken: dict[str, list[str]] = {}  # live and not yet confirmed: what was said so far
        self._nameless: list[str] = []
        self._counted: set[str | None] = set()
        self.usage: Usage | None = None
        self.incomplete: str | None = None

    @property
    def unconfirmed(self) -> set[str]:
        """Paths of nodes that spoke live although their message never reached the state."""
        return {path for key in self._spoken if (path := self._live[key]) is not None}

    def chunk(self, message: BaseMessage, node: str, ns: Sequence[str]) -> Sequence[Piece]:
        """One element of the `messages` stream: a token, or a whole message that a node
        returned."""
        if not isinstance(message, AIMessage):
            return NOTHING
        if message.usage_metadata is not None:
            self.count(message.usage_metadata, message.id)
        if not isinstance(message, AIMessageChunk) or message.id is None:
            return NOTHING
        key = message.id
        if key not in self._live:
            self._open(key, node, ns)
        if self._live[key] is None:
            return NOTHING
        content = message.content
        if content and isinstance(content, str):
            self._spoken[key].append(content)
            return (TextDelta(key, content),)
        return tuple(self._said(key, message))

    def update(self, update: Any) -> Iterator[Piece]:
        """What a root node wrote: the messages in it are confirmed, and shown if they were not
        yet."""
        for part in update if isinstance(update, list | tuple) else (update,):
            if isinstance(part, Mapping) and "messages" in part:
                yield from self.messages(part["messages"])

    def messages(self, written: Any) -> Iterator[Piece]:
        """Messages in any form that LangGraph takes for the `messages` channel."""
        entries = written if isinstance(written, list) else [written]
        for entry in entries:
            for message in [entry] if isinstance(entry, BaseMessage) else _converted(entry):
                if isinstance(message, AIMessage):
                    yield from self._confirm(message)

    def _open(self, key: str, node: str, ns: Sequence[str]) -> None:
        path = ":".join([*(step.partition(":")[0] for step in ns), node])
        live = key not in self._shown and self._speaks(path)
        self._live[key] = path if live else None
        if live:
            self._spoken[key] = []

    def _said(self, key: str, message: AIMessage) -> Iterator[Piece]:
        for piece in _pieces(key, message):
            if isinstance(piece, TextDelta):
                self._spoken.setdefault(key, []).append(piece.text)
            yield piece

    def _confirm(self, message: AIMessage) -> Iterator[Piece]:
        key = message.id or f"nameless-{len(self._shown)}"
        if key in self._shown or self._was_nameless(message):
            return
        spoken = key if key in self._spoken else self._spoken_as(message.text)
        self._shown.add(key)
        if message.usage_metadata is not None and message.id not in self._counted:
            self.count(message.usage_metadata, message.id)
        if spoken is not None:
            del self._spoken[spoken]
            yield MessageDone(spoken)
        else:
            yield from _pieces(key, message)
            yield MessageDone(key)
        for call in message.tool_calls:
            if call["name"] in self._client_tools:
                arguments = encoding.dumps(call["args"])
                yield ToolCall(call["id"] or "", call["name"], arguments)
        self.incomplete = _cut_short(message)

    def _was_nameless(self, message: AIMessage) -> bool:
        """A tuple or dict becomes a message with an id only in the state; a subgraph's parent, or
        a node that returns all messages, brings it again under that id."""
        if message.id is None:
            self._nameless.append(message.text)
        elif message.text in self._nameless:
            self._nameless.remove(message.text)
            self._shown.add(message.id)
            return True
        return False

    def _spoken_as(self, text: str) -> str | None:
        """A node may put a new message with the model's text into the state: the same item."""
        for key, said in self._spoken.items():
            if text and "".join(said) == text:
                return key
        return None

    def count(self, usage: Mapping[str, Any], message_id: str | None) -> None:
        """Add what a model call used (LangChain's `usage_metadata`) for the message of this id."""
        self._counted.add(message_id)
        more = usage_of(usage)
        self.usage = more if self.usage is None else self.usage + more


def _converted(entry: Any) -> list[BaseMessage]:
    try:
        return convert_to_messages([entry])
    except (ValueError, TypeError, NotImplementedError):
        return []  # RemoveMessage-like instructions and what is no message at all


def _pieces(key: str, message: AIMessage) -> Iterator[Piece]:
    """The pieces of a message's content, or of one chunk's."""
    refusal = message.additional_kwargs.get("refusal")
    if isinstance(refusal, str) and refusal:
        yield RefusalDelta(key, refusal)
    if isinstance(message.content, str):
        if message.content:
            yield TextDelta(key, message.content)
        return
    for block in message.content_blocks:
        yield from _block(key, block)


def _block(key: str, block: Mapping[str, Any]) -> Iterator[Piece]:
    kind = block.get("type")
    if kind == "non_standard":
        block = block.get("value", {})
        kind = block.get("type")
    if kind == "text" and block.get("text"):
        yield TextDelta(key, block["text"])
    elif kind == "reasoning" and block.get("reasoning"):
        yield ReasoningDelta(key, block["reasoning"])
    elif kind == "refusal" and block.get("refusal"):
        yield RefusalDelta(key, block["refusal"])


def _cut_short(message: AIMessage) -> str | None:
    facts = message.response_metadata
    reason = facts.get("finish_reason") or facts.get("stop_reason")
    if reason is None:
        details = facts.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, Mapping) else None
    return _CUT_SHORT.get(reason) if isinstance(reason, str) else None


def usage_of(usage: Mapping[str, Any]) -> Usage:
    """LangChain's `usage_metadata` as ours."""
    inputs = usage.get("input_token_details") or {}
    outputs = usage.get("output_token_details") or {}
    return Usage(
        input_tokens=usage["input_tokens"],
        output_tokens=usage["output_tokens"],
        cached_tokens=inputs.get("cache_read") or 0,
        cache_write_tokens=inputs.get("cache_creation") or 0,
        reasoning_tokens=outputs.get("reasoning") or 0,
    )
