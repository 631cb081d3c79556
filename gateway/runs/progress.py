"""What clients that ask for it (`Fermata-Events: 1`) are told beside the standard: pure.

fermata:progress    what a node wrote with LangGraph's `get_stream_writer()`, as it is
fermata:step        a node begins or ends: its name and where it is, never what it holds
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from gateway.errors import RunFailed
from gateway.runs.events import Progress
from gateway.wire.encoding import to_jsonable

logger = logging.getLogger("fermata.graph")

MODES: tuple[Literal["custom", "tasks"], ...] = ("custom", "tasks")
"""LangGraph's stream modes that tell it; they are on only if somebody listens."""


def progress(part: Mapping[str, Any]) -> Iterator[Progress]:
    """The events of one part of those modes. What has no JSON form is left out and logged: a
    run does not fail for what is only told on the way."""
    if part["type"] == "tasks":
        yield from _step(part["data"], part["ns"])
        return
    try:
        yield Progress("progress", to_jsonable(part["data"], "progress"))
    except RunFailed as unfit:
        logger.warning("a progress event was left out: %s", unfit.message)


def _step(task: Mapping[str, Any], ns: tuple[str, ...]) -> Iterator[Progress]:
    if task["name"].startswith("__"):  # LangGraph's own
        return
    path = [step.partition(":")[0] for step in ns]
    yield Progress("step", {"node": task["name"], "path": path, "status": _status(task)})


def _status(task: Mapping[str, Any]) -> str:
    if "triggers" in task:
        return "started"
    if task["error"] is not None:
        return "failed"
    return "waiting" if task["interrupts"] else "finished"
