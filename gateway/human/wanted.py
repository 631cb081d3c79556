"""An effect and what its author said about it, checked before anything is claimed. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeAlias

from langgraph.errors import GraphBubbleUp

from gateway.human.ledger import ANYTHING, Effect, Failed, Outcome, Released, Uncertain
from gateway.wire.encoding import canonical, to_jsonable

LONGEST_KEY = 1024
"""Bytes of UTF-8."""


@dataclass(frozen=True, slots=True)
class Approval:
    """The approved answer that an effect needs: to the question `question` (its name, or the action
    that it is about), and about exactly `of`: the payload that was approved, or after an edit the
    edited value. Without `of`, all answers of that name must have approved."""

    question: str
    of: Any = ANYTHING


OnUncertain: TypeAlias = Literal["stop", "retry"] | Callable[..., Any]
Failure: TypeAlias = Literal["uncertain", "release", "record"]
OnFailure: TypeAlias = Failure | Callable[[Exception], Failure]

_UNCERTAIN_WORDS, _FAILURE_WORDS = ("stop", "retry"), ("uncertain", "release", "record")


@dataclass(frozen=True, slots=True)
class Wanted:
    """An effect and what its author said about it."""

    effect: Effect
    call: Callable[..., Any]
    arguments: Mapping[str, Any]
    on_uncertain: OnUncertain
    on_failure: OnFailure
    approval: Approval | None
    patience: float

    @classmethod
    def of(
        cls,
        key: str,
        call: Callable[..., Any],
        arguments: Mapping[str, Any] | None,
        on_uncertain: OnUncertain,
        on_failure: OnFailure,
        approval: str | Approval | None,
        patience: timedelta,
    ) -> Wanted:
        """Raises `ValueError` for a key or a word that cannot be, and `RunFailed` for arguments
        that have no JSON form."""
        _require_key(key)
        _require_word("on_uncertain", on_uncertain, _UNCERTAIN_WORDS)
        _require_word("on_failure", on_failure, _FAILURE_WORDS)
        given = dict(arguments or {})
        plain = to_jsonable(given, f"effect({key!r}).arguments")
        digest = hashlib.sha256(canonical(plain)).digest()
        needed = Approval(approval) if isinstance(approval, str) else approval
        return cls(
            Effect(key, plain, digest),
            call,
            given,
            on_uncertain,
            on_failure,
            needed,
            patience.total_seconds(),
        )

    def outcome_of(self, error: BaseException) -> Outcome:
        """What the call's exception means. What the author did not foresee is uncertain."""
        said: Any = self.on_failure
        if not isinstance(error, Exception) or isinstance(error, GraphBubbleUp):
            return Uncertain()
        if callable(said):
            said = said(error)
            _require_word("on_failure", said, _FAILURE_WORDS)
        if said == "record":
            return Failed(type(error).__name__, str(error))
        return Released() if said == "release" else Uncertain()


def _require_key(key: object) -> None:
    if not isinstance(key, str) or not key.isprintable():
        raise ValueError(f"effect({key!r}): a key is a text of printable characters.")
    if not 0 < len(key.encode()) <= LONGEST_KEY:
        raise ValueError(f"effect({key[:40]!r}…): a key has 1 to {LONGEST_KEY} bytes.")


def _require_word(name: str, given: object, words: tuple[str, ...]) -> None:
    if not callable(given) and given not in words:
        raise ValueError(f"effect({name}={given!r}): {', '.join(map(repr, words))} or a function.")
