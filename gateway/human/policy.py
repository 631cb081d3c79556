"""What may run at once, what a person is asked about, and what never runs.

A `Policy` maps an action and its arguments to a `Decision`. It is a value: checked when it is
built, never changed, and `judge` neither waits nor asks (that is `permit`, next door).

    policy = Policy(
        tiers={"read": allow, "credential": ask(roles={"manager"}), "destructive": deny},
        actions={
            "read_ticket": "read",
            "restart_service": [Rule(allow, when={"environment": "sandbox"}), "credential"],
            "drop_database": "destructive",
        },
    )

The rules of an action are tried in order and the first that applies decides. The rules of the
action "*" speak for the actions that no rule names. Where nothing applies a person is asked, and so
is one when a rule cannot be evaluated (it raised, an argument is missing, it returned something
else): such a doubt makes a decision stricter, never weaker. The rule that failed counts as met if
it would deny or ask, and as not met if it would allow; whatever follows cannot allow any more.
Rejected: denying on doubt, as a typing error in a rule would then stop all work without a person
ever seeing why.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import InitVar, dataclass, field, replace
from types import MappingProxyType
from typing import Any, Protocol

from gateway.errors import StartupError
from gateway.human.rules import (
    WORDS,
    Arguments,
    Decision,
    Outcome,
    Rule,
    Rules,
    allow,
    applies,
    ask,
    call,
    decision_of,
    deny,
    near,
    read_rules,
)

EVERY = "*"


class Tool(Protocol):
    """What `Policy.check` wants to know of a tool; LangChain's have it."""

    name: str

    @property
    def args(self) -> dict[str, Any]: ...


TIERS: Mapping[str, Rules] = MappingProxyType(
    {
        "read": allow,
        "sandbox": ask,
        "credential": ask(four_eyes=True),
        "destructive": deny("It destroys what cannot be brought back."),
    }
)
"""The tiers of a policy that names none."""


def _check_names(kind: str, given: object) -> None:
    if not isinstance(given, Mapping):
        raise StartupError(f"Policy({kind}s=…) is a mapping of names to rules, not {given!r}.")
    for name in given:
        if not (isinstance(name, str) and name):
            raise StartupError(f"Policy({kind}s=…): a name is a text, not {name!r}.")


@dataclass(frozen=True)
class Policy:
    """Rules by action, and tiers: rules with a name.

    Raises `StartupError` about what is misspelt: a decision or tier always, an action when `known`
    (or `check`) tells which there are.
    """

    actions: Mapping[str, Rules] = field(default_factory=dict)
    tiers: Mapping[str, Rules] = field(default_factory=lambda: TIERS)
    known: InitVar[Collection[str | Tool] | None] = None
    _actions: Mapping[str, tuple[Rule, ...]] = field(init=False, repr=False, compare=False)
    _tiers: Mapping[str, tuple[Rule, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self, known: Collection[str | Tool] | None) -> None:
        _check_names("tier", self.tiers)
        _check_names("action", self.actions)
        for word in WORDS.keys() & self.tiers.keys():
            raise StartupError(f"A tier cannot be called {word!r}: it is a decision.")
        tiers = {
            name: read_rules(f"tier {name!r}", given, ()) for name, given in self.tiers.items()
        }
        actions = {
            name: read_rules(f"action {name!r}", given, tiers)
            for name, given in self.actions.items()
        }
        for name, value in (
            ("tiers", self.tiers),
            ("actions", self.actions),
            ("_tiers", tiers),
            ("_actions", actions),
        ):
            object.__setattr__(self, name, MappingProxyType(dict(value)))
        if known is not None:
            self.check(known)

    def check(self, tools: Iterable[str | Tool]) -> Policy:
        """This policy, if `tools` (or names of actions) have all the actions, and the tools among
        them all the arguments, that its rules name; else `StartupError`."""
        tools = list(tools)
        names = [tool if isinstance(tool, str) else tool.name for tool in tools]
        for action in self._actions:
            if action not in {EVERY, *names}:
                raise StartupError(
                    f"The policy has rules for {action!r}, which is no known action"
                    f"{near(action, names)}"
                )
        for tool in tools:
            if not isinstance(tool, str):
                self.check_arguments(tool)
        return self

    def check_arguments(self, tool: Tool) -> None:
        """Raises `StartupError` if a rule of this tool looks at an argument that it has not."""
        for rule in self._actions.get(tool.name, ()):
            tier = self._tiers.get(rule.then, ()) if isinstance(rule.then, str) else ()
            for each in (rule, *tier):
                looked_at = each.when if isinstance(each.when, Mapping) else {}
                for argument in looked_at:
                    if argument not in tool.args:
                        raise StartupError(
                            f"A rule of {tool.name!r} looks at the argument {argument!r}, which "
                            f"the tool has not{near(argument, tool.args)}"
                        )

    def judge(self, action: str, arguments: Arguments) -> Decision:
        """What to do with the action. A function of its two arguments, as long as the rules are:
        it is asked again when a run resumes. Never raises for what a rule does."""
        seen = MappingProxyType(dict(arguments))
        doubts: list[str] = []
        own = self._actions.get(action)
        if own is not None and action != EVERY:
            found = self._first(own, seen, doubts)
            if found is None or (doubts and found.verdict == "allow"):
                found = self._unnamed(seen, doubts, may_allow=False)
        else:
            found = self._unnamed(seen, doubts, may_allow=True)
        if not doubts:
            return found
        note = f"The policy for {action!r} could not be evaluated: {'; '.join(doubts)}."
        return replace(found, note=note)

    def _unnamed(self, arguments: Arguments, doubts: list[str], may_allow: bool) -> Decision:
        """What the rules of "*" say, or that a person is asked."""
        found = self._first(self._actions.get(EVERY, ()), arguments, doubts)
        allowed = may_allow and not doubts
        return found if found and (allowed or found.verdict != "allow") else ask()

    def _first(
        self, rules: Iterable[Rule], arguments: Arguments, doubts: list[str]
    ) -> Decision | None:
        """The decision of the first rule that applies; why one cannot be told goes to `doubts`."""
        for rule in rules:
            problems: list[str] = []
            if applies(rule.when, arguments, problems):
                found = self._outcome(rule.then, arguments, problems)
                doubts += problems
                if found is not None and not (problems and found.verdict == "allow"):
                    return found
        return None

    def _outcome(self, then: Outcome, arguments: Arguments, doubts: list[str]) -> Decision | None:
        if callable(then):
            then = call(then, arguments, doubts)
        if isinstance(then, str) and then in self._tiers:
            found = self._first(self._tiers[then], arguments, doubts)
            return None if found is None else replace(found, tier=then)
        found = decision_of(then)
        if found is None and not doubts:
            doubts.append(f"a rule returned {type(then).__name__}, which is no decision")
        return found


allow_all = Policy({EVERY: allow})
"""Nobody is asked about anything."""
ask_always = Policy()
"""A person is asked about everything."""
deny_all = Policy({EVERY: deny("Nothing may run here.")})


def by_tier(actions: Mapping[str, str], known: Collection[str | Tool] | None = None) -> Policy:
    """The ready-made tiers (`TIERS`): read is allowed, sandbox asked about, credential asked under
    four eyes, destructive denied."""
    return Policy(actions, known=known)
