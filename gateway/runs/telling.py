"""From what happens in a run to the frames that tell it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gateway.runs.events import (
    MessageDone,
    Piece,
    Progress,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCall,
)
from gateway.wire.writer import Frames, Writer


def all_written(writer: Writer, pieces: Iterable[Piece]) -> Frames:
    """The frames of several pieces."""
    return [frame for piece in pieces for frame in written(writer, piece)]


def written(writer: Writer, piece: Piece) -> Frames:
    """The frames of one piece, to be sent now. Text is the hot path."""
    if isinstance(piece, TextDelta):
        return writer.text(piece.message_id, piece.text)
    return _WRITERS[type(piece)](writer, piece)


_WRITERS: Mapping[type, Callable[[Writer, Any], Frames]] = {
    MessageDone: lambda writer, piece: writer.close(
        piece.message_id, "incomplete" if piece.cut else "completed"
    ),
    RefusalDelta: lambda writer, piece: writer.refusal(piece.message_id, piece.text),
    ReasoningDelta: lambda writer, piece: writer.reasoning(piece.message_id, piece.text),
    ToolCall: lambda writer, piece: writer.function_call(
        piece.call_id, piece.name, piece.arguments
    ),
    Progress: lambda writer, piece: writer.extension(piece.name, piece.payload),
}
