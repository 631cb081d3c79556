"""How a run is set going."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.runtime import RunControl

from gateway.store.checkpoints import RunMemory, new_memory


@dataclass(slots=True)
class Outset:
    """How a run is set going: with messages, or with answers on the checkpoints of its pause."""

    memory: RunMemory = field(default_factory=new_memory)
    messages: list[BaseMessage] = field(default_factory=list)
    answers: Mapping[str, Any] | None = None
    live: bool = True
    """Whether anybody reads tokens as they come; if not, models are not asked to stream."""
    progress: bool = False
    """Whether the reader asked for what is outside the standard (`runs.progress`)."""
    again: bool = False
    """The run failed after these answers: it may be past its interrupts."""
    further: bool = False
    """It goes on from its checkpoints, which need no answer."""
    control: RunControl = field(default_factory=RunControl)

    def start_no_more(self) -> None:
        """No further node starts, in whatever graph or thread of the run. To cancel its task alone
        is not enough: a node may take the cancellation for something else and end as if nothing
        was."""
        self.control.request_drain()

    def again_from_its_last_step(self) -> Outset:
        """The same run after it raised: from its last finished step, or from its beginning if it
        has none."""
        if self.answers is not None:
            return replace(self, again=True)
        return replace(self, further=self.memory.has_checkpoints)
