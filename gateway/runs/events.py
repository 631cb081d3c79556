"""What happens in a run, as the pipeline sees it: the union between LangGraph and the wire.

`runs.graph` makes these, the coordinator hands them to the wire's writer. `message_id` is
LangGraph's; the writer gives items their own ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from gateway.wire.encoding import Json
from gateway.wire.items import Usage

BREAKPOINT = "breakpoint:"
"""What the interrupt id of a breakpoint starts with."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of a message that people may see."""

    message_id: str
    text: str


@dataclass(frozen=True, slots=True)
class RefusalDelta:
    """A piece of a model's refusal."""

    message_id: str
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of a reasoning summary."""

    message_id: str
    text: str


@dataclass(frozen=True, slots=True)
class MessageDone:
    """Nothing more comes for this message, and its reasoning. `cut`: it was not through."""

    message_id: str
    cut: bool = False


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call to a tool that the client declared; the client runs it."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Progress:
    """Something outside the standard, for clients that ask for it (`runs.progress`)."""

    name: str
    payload: Json


@dataclass(frozen=True, slots=True)
class PendingInterrupt:
    """One interrupt that the graph waits on; `value` is what the node passed to `interrupt`."""

    interrupt_id: str
    value: Any
    response_schema: Any = None


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """Where `interrupt_before` or `interrupt_after` stopped the graph: the value of an interrupt
    that no node raised. `nodes` run next if somebody approves."""

    nodes: tuple[str, ...]

    @property
    def interrupt_id(self) -> str:
        """LangGraph gives a breakpoint none; this cannot be one of its hashes."""
        return f"{BREAKPOINT}{','.join(self.nodes)}"


@dataclass(frozen=True, slots=True)
class Paused:
    """The graph waits for people. `interrupts` is never empty."""

    interrupts: tuple[PendingInterrupt, ...]
    usage: Usage | None


@dataclass(frozen=True, slots=True)
class Completed:
    """The graph is through. `incomplete` names why the answer was cut short, if it was."""

    usage: Usage | None
    incomplete: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The graph raised. `message` is fit for the client; the traceback is in the log.

    `final`: trying again cannot help, whatever was answered.
    """

    message: str
    code: str = "run_failed"
    usage: Usage | None = None
    final: bool = False
    refused_answer: bool = False
    """LangGraph itself refused the answer, by the model of the question: that stays open."""


Piece: TypeAlias = TextDelta | RefusalDelta | ReasoningDelta | MessageDone | ToolCall | Progress
Outcome: TypeAlias = Paused | Completed | Failed
RunEvent: TypeAlias = Piece | Outcome
