"""What is told of an exception that ended a graph."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from langgraph.types import Interrupt
from pydantic import ValidationError

from gateway.errors import FermataError, RunFailed
from gateway.wire import encoding

_TASK_NOTE = re.compile(r"During task with name '([^']+)'")


def explained(error: Exception, interrupts: Iterable[Interrupt]) -> Exception:
    """LangGraph says "Type is not msgpack serializable: Interrupt"; people want to know which
    value."""
    for interrupt in interrupts:
        try:
            encoding.to_jsonable(interrupt.value)
        except RunFailed as unfit:
            return unfit
        place = _beyond_64_bits(interrupt.value, "payload")
        if place is not None:
            return RunFailed(f"{place} is an integer beyond 64 bits, which cannot be stored.")
    return error


def _beyond_64_bits(value: Any, place: str) -> str | None:
    if isinstance(value, int):
        return place if not -(2**63) <= value < 2**64 else None
    entries: Iterable[tuple[str, Any]] = ()
    if isinstance(value, Mapping):
        entries = ((f"{place}.{key}", inner) for key, inner in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        entries = ((f"{place}[{index}]", inner) for index, inner in enumerate(value))
    found = (_beyond_64_bits(inner, inner_place) for inner_place, inner in entries)
    return next((hit for hit in found if hit is not None), None)


def reasons(error: BaseException) -> str:
    """What a validator says about an answer: about what the reviewer sent, so no secret."""
    if isinstance(error, ValidationError):
        return "; ".join(
            f"{'.'.join(map(str, one['loc'])) or 'value'}: {one['msg']}"
            for one in error.errors(include_url=False, include_context=False, include_input=False)
        )
    return str(error)


def told(error: Exception) -> tuple[str, str]:
    """What a client may know of a failure: where and what kind. An exception's own text may hold
    secrets."""
    if isinstance(error, FermataError):
        return error.message, error.error_code
    notes = "\n".join(getattr(error, "__notes__", ()))
    task = _TASK_NOTE.search(notes)
    where = f" in node '{task[1]}'" if task else ""
    return f"The graph failed{where} with {type(error).__name__}.", "run_failed"
