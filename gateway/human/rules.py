"""The rules that a policy is made of: decisions, the conditions under which they hold, and what is
wrong with those that somebody misspelt (`StartupError`).

Whatever stops a rule from being evaluated is a doubt: a line in the list that evaluation is given.
A condition in doubt counts as met, so that the caller sees what the rule would have decided.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from difflib import get_close_matches
from enum import Enum
from types import MappingProxyType
from typing import Any, Literal, Never, TypeAlias

from pydantic import BaseModel

from gateway.errors import StartupError

_log = logging.getLogger(__name__)

Verdict: TypeAlias = Literal["allow", "ask", "deny"]
Arguments: TypeAlias = Mapping[str, Any]
Condition: TypeAlias = Mapping[str, Any] | Callable[[Arguments], bool]
Outcome: TypeAlias = "Decision | str | Callable[..., Any]"
"""A decision, `allow`, `ask` or `deny` themselves or their names, the name of a tier, or a function
that takes the arguments and returns one of these."""
Rules: TypeAlias = "Outcome | Rule | Sequence[Outcome | Rule]"


@dataclass(frozen=True, slots=True)
class Decision:
    """The judgement of one action.

    `reason` is why it is denied, for the model to read; `note` is for the reviewer: why a rule
    could not be evaluated. `editable` False takes no edits, a model is what an edit must fit.
    """

    verdict: Verdict
    reason: str = ""
    note: str = ""
    tier: str | None = None
    roles: frozenset[str] = frozenset()
    four_eyes: bool = False
    expires_in: timedelta | None = None
    on_expiry: str | None = None
    editable: bool | type[BaseModel] = True
    question: str | None = None


def allow() -> Decision:
    """Run it at once."""
    return Decision("allow")


def deny(reason: str = "") -> Decision:
    """Never run it; the model reads `reason`."""
    if not isinstance(reason, str):
        raise StartupError(f"deny(reason) takes a text, not {reason!r}.")
    return Decision("deny", reason=reason)


def ask(
    *,
    roles: Collection[str] = (),
    four_eyes: bool = False,
    expires_in: timedelta | float | None = None,
    on_expiry: str | None = None,
    editable: bool | type[BaseModel] = True,
    question: str | None = None,
    **misspelt: Never,
) -> Decision:
    """Ask a person who has one of `roles` (none given: anybody of the tenant).

    `four_eyes`: not the one who started the run. `expires_in`: a timedelta or seconds. `on_expiry`:
    "reject", or None to let the run expire; silence never approves. `question` may name arguments:
    "Reset the password of {user}?".
    """
    for name in misspelt:
        raise StartupError(f"ask() has no argument {name!r}{near(name, _ASK_ARGUMENTS)}")
    if on_expiry not in {None, "reject"}:
        raise StartupError(
            f"ask(on_expiry={on_expiry!r}): only 'reject' can be decided by nobody"
            f"{near(on_expiry, ['reject'])}"
        )
    if not isinstance(four_eyes, bool):
        raise StartupError(f"ask(four_eyes={four_eyes!r}): True or False.")
    if not (isinstance(editable, bool) or _is_model(editable)):
        raise StartupError(f"ask(editable={editable!r}): True, False or a pydantic model.")
    if not (question is None or isinstance(question, str)):
        raise StartupError(f"ask(question={question!r}): a text.")
    return Decision(
        "ask",
        roles=_roles(roles),
        four_eyes=four_eyes,
        expires_in=_duration(expires_in),
        on_expiry=on_expiry,
        editable=editable,
        question=question,
    )


_ASK_ARGUMENTS = [name for name in inspect.signature(ask).parameters if name != "misspelt"]
WORDS: dict[str, Callable[[], Decision]] = {"allow": allow, "ask": ask, "deny": deny}


@dataclass(frozen=True, slots=True)
class Rule:
    """`then`, if `when` applies: a function of the arguments that returns True or False, or the
    wanted values by argument (a value, or a function of the argument's value; all must hold)."""

    then: Outcome
    when: Condition | None = None

    def __post_init__(self) -> None:
        if isinstance(self.when, Mapping):
            if not self.when:
                raise StartupError("Rule(when={}): name an argument, or leave `when` out.")
            object.__setattr__(self, "when", MappingProxyType(dict(self.when)))
        elif not (self.when is None or callable(self.when)):
            raise StartupError(f"Rule(when={self.when!r}): a mapping or a function.")
        conditions = self.when.values() if isinstance(self.when, Mapping) else [self.when]
        for condition in conditions:
            _refuse_async(condition, "Rule(when=…)")


# --- evaluating a rule -------------------------------------------------------------------------


def applies(when: Condition | None, arguments: Arguments, doubts: list[str]) -> bool:
    """Whether the rule is to be looked at: its condition holds, or nobody can tell."""
    if when is None:
        return True
    if not isinstance(when, Mapping):
        return _holds(when, arguments, doubts)
    return all(_argument_fits(name, wanted, arguments, doubts) for name, wanted in when.items())


def _argument_fits(name: str, wanted: Any, arguments: Arguments, doubts: list[str]) -> bool:
    if name not in arguments:
        doubts.append(f"the argument {name!r} is missing")
        return True
    if callable(wanted):
        return _holds(wanted, arguments[name], doubts)
    return _holds(lambda given: _same(given, wanted), arguments[name], doubts)


def _holds(condition: Callable[[Any], Any], given: Any, doubts: list[str]) -> bool:
    held = call(condition, given, doubts)
    if isinstance(held, bool):
        return held
    if held is not FAILED:
        doubts.append(f"a condition returned {type(held).__name__}, not True or False")
    return True


def _same(given: Any, wanted: Any) -> bool:
    """Equal, where True is not 1, and an enum's member is its value, as in JSON."""
    given = given.value if isinstance(given, Enum) else given
    wanted = wanted.value if isinstance(wanted, Enum) else wanted
    return isinstance(given, bool) == isinstance(wanted, bool) and bool(given == wanted)


FAILED = object()


def call(function: Callable[..., Any], given: Any, doubts: list[str]) -> Any:
    """What the author's function makes of the arguments. The reviewer reads only the error's type:
    its text may hold what is not for them."""
    try:
        return function() if _is_word(function) else function(given)
    except Exception as error:  # noqa: BLE001  # whatever it is, the action was not allowed
        _log.warning("A rule of the policy raised", exc_info=True)
        doubts.append(f"a rule raised {type(error).__name__}")
        return FAILED


def decision_of(given: Any) -> Decision | None:
    """The decision that a rule's word, its function or itself stands for; None if it is none."""
    if isinstance(given, str) and given in WORDS:
        return WORDS[given]()
    if _is_word(given):
        return given()  # type: ignore[no-any-return]  # it is one of WORDS
    return given if isinstance(given, Decision) else None


def _is_word(given: Any) -> bool:
    return any(given is word for word in WORDS.values())


# --- checking what the author wrote --------------------------------------------------------------


def read_rules(place: str, given: Any, tiers: Collection[str]) -> tuple[Rule, ...]:
    """The rules that the author gave for `place`. Raises `StartupError` for what is no rule."""
    if isinstance(given, (list, tuple)):
        if not given:
            raise StartupError(f"The policy's {place} has no rules.")
        return tuple(_rule(place, one, tiers) for one in given)
    return (_rule(place, given, tiers),)


def _rule(place: str, given: Any, tiers: Collection[str]) -> Rule:
    rule = given if isinstance(given, Rule) else Rule(given)
    then: Any = rule.then
    if isinstance(then, str) and then not in tiers:
        if then not in WORDS:
            raise StartupError(
                f"The policy's {place} names {then!r}, which is neither a decision nor a tier"
                f"{near(then, [*WORDS, *tiers])}"
            )
    elif not (isinstance(then, (str, Decision)) or callable(then)) or _is_model(then):
        raise StartupError(f"The policy's {place} has {then!r}, which is no rule.")
    _refuse_async(then, f"The policy's {place}")
    found = decision_of(then)
    return rule if found is None else replace(rule, then=found)


def _refuse_async(given: Any, place: str) -> None:
    """A coroutine is true whatever it would return."""
    called = getattr(given, "__call__", None)  # noqa: B004  # its code is wanted
    if inspect.iscoroutinefunction(given) or inspect.iscoroutinefunction(called):
        raise StartupError(f"{place}: {given!r} is async; rules are plain functions.")


def _roles(given: Any) -> frozenset[str]:
    if isinstance(given, str):
        raise StartupError(f"ask(roles={given!r}): a set of names, {{{given!r}}}.")
    try:
        roles = frozenset(given)
    except TypeError as error:
        raise StartupError(f"ask(roles={given!r}): a set of names.") from error
    for role in roles:
        if not (isinstance(role, str) and role):
            raise StartupError(f"ask(roles=…): the name of a role is a text, not {role!r}.")
    return roles


def _duration(given: timedelta | float | None) -> timedelta | None:
    """A timedelta, of a timedelta or seconds above zero."""
    if given is None:
        return None
    try:
        duration = given if isinstance(given, timedelta) else timedelta(seconds=given)
    except (TypeError, ValueError, OverflowError):
        duration = timedelta()
    if isinstance(given, bool) or duration <= timedelta():
        raise StartupError(f"ask(expires_in={given!r}): a timedelta or seconds above zero.")
    return duration


def _is_model(given: Any) -> bool:
    return isinstance(given, type) and issubclass(given, BaseModel)


def near(name: object, names: Iterable[str]) -> str:
    """The end of a sentence about a misspelt name."""
    close = get_close_matches(str(name), list(names), n=1)
    return f"; did you mean {close[0]!r}?" if close else "."
