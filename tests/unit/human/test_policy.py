"""Policies: what is allowed, asked about and denied, and which mistakes stop the start-up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest
from langchain_core.tools import tool
from pydantic import BaseModel

from gateway.errors import StartupError
from gateway.human.policy import (
    TIERS,
    Policy,
    allow_all,
    ask_always,
    by_tier,
    deny_all,
)
from gateway.human.rules import Decision, Rule, allow, ask, deny


class Environment(Enum):
    SANDBOX = "sandbox"
    PRODUCTION = "production"


def by_amount(arguments: Mapping[str, Any]) -> Any:
    if arguments["amount"] < 10:
        return allow
    return "money" if arguments["amount"] < 1000 else deny("too much")


def broken(arguments: Mapping[str, Any]) -> Any:
    raise RuntimeError("the secret is hunter2")


def wordy(arguments: Mapping[str, Any]) -> Any:
    return "yes"


def cheap(amount: Any) -> Any:
    return amount < 10


MANAGER = ask(roles={"manager"})
MONEY = ask(roles={"finance"}, four_eyes=True, expires_in=timedelta(hours=24), on_expiry="reject")

DESK = Policy(
    tiers={
        "read": allow,
        "sandbox": [Rule(allow, when={"environment": "sandbox"}), MANAGER],
        "credential": MANAGER,
        "money": MONEY,
        "destructive": deny("never"),
        "only_small": Rule(allow, when={"amount": cheap}),
    },
    actions={
        "read_ticket": "read",
        "search": "allow",
        "restart": "sandbox",
        "reset": [
            Rule(deny("not the root account"), when={"user": "root"}),
            Rule(allow, when=lambda given: given["user"].startswith("test-")),
            "credential",
        ],
        "refund": by_amount,
        "small": ["only_small", "money"],
        "small_only": "only_small",
        "drop": "destructive",
        "mail": ask,
        "shout": deny,
        "toggle": Rule(allow, when={"on": True, "room": "hall"}),
        "count": Rule(allow, when={"count": 1}),
        "either": [Rule("read", when={"kind": "a"}), Rule("destructive", when={"kind": "b"})],
        "odd": lambda _: "alow",
        "none": lambda _: None,
        "true": lambda _: True,
        "broken": broken,
        "broken_then_allow": [broken, allow],
        "broken_then_manager": [broken, MANAGER],
        "broken_then_deny": [broken, "destructive"],
        "unsure_allow": [Rule(allow, when=broken), "read"],
        "unsure_deny": [Rule(deny("unsure"), when=broken), allow],
        "unsure_ask": [Rule(MANAGER, when=broken), allow],
        "truthy": Rule(allow, when=wordy),
        "truthy_argument": Rule(allow, when={"x": lambda _: 1}),
        "incomparable": Rule(allow, when={"amount": cheap}),
    },
)


def tiered(decision: Decision, tier: str) -> Decision:
    return Decision(
        **{name: getattr(decision, name) for name in Decision.__slots__} | {"tier": tier}
    )


JUDGEMENTS = [
    # action, arguments, decision: whole ones, so that roles, tiers and reasons are compared too
    ("read_ticket", {}, tiered(allow(), "read")),
    ("read_ticket", {"id": "INC-42"}, tiered(allow(), "read")),
    ("search", {"for": "vpn"}, allow()),
    ("restart", {"environment": "sandbox"}, tiered(allow(), "sandbox")),
    ("restart", {"environment": Environment.SANDBOX}, tiered(allow(), "sandbox")),
    ("restart", {"environment": "production"}, tiered(MANAGER, "sandbox")),
    ("restart", {"environment": Environment.PRODUCTION}, tiered(MANAGER, "sandbox")),
    ("restart", {"environment": "SANDBOX"}, tiered(MANAGER, "sandbox")),
    ("restart", {"environment": ["sandbox"]}, tiered(MANAGER, "sandbox")),
    ("restart", {"environment": None}, tiered(MANAGER, "sandbox")),
    ("reset", {"user": "root"}, deny("not the root account")),
    ("reset", {"user": "test-1"}, allow()),
    ("reset", {"user": "user-123"}, tiered(MANAGER, "credential")),
    ("refund", {"amount": 9}, allow()),
    ("refund", {"amount": Decimal("9.99")}, allow()),
    ("refund", {"amount": 10}, tiered(MONEY, "money")),
    ("refund", {"amount": 1000}, deny("too much")),
    ("small", {"amount": 1}, tiered(allow(), "only_small")),
    ("small", {"amount": 100}, tiered(MONEY, "money")),
    ("small_only", {"amount": 1}, tiered(allow(), "only_small")),
    ("small_only", {"amount": 100}, ask()),  # a tier whose rules do not apply decides nothing
    ("drop", {}, tiered(deny("never"), "destructive")),
    ("mail", {"to": "all"}, ask()),
    ("shout", {}, deny()),
    ("toggle", {"on": True, "room": "hall"}, allow()),
    ("toggle", {"on": True, "room": "cellar"}, ask()),
    ("toggle", {"on": False, "room": "hall"}, ask()),
    ("toggle", {"on": 1, "room": "hall"}, ask()),
    ("toggle", {"on": "true", "room": "hall"}, ask()),
    ("count", {"count": 1}, allow()),
    ("count", {"count": True}, ask()),
    ("either", {"kind": "a"}, tiered(allow(), "read")),
    ("either", {"kind": "b"}, tiered(deny("never"), "destructive")),
    ("either", {"kind": "c"}, ask()),
    # nobody named it
    ("reset_password", {}, ask()),
    ("READ_TICKET", {}, ask()),
    ("read_ticket ", {}, ask()),
    ("read", {}, ask()),  # a tier is no action
    ("allow", {}, ask()),
    ("", {}, ask()),
    ("*", {}, ask()),
]


@pytest.mark.parametrize(("action", "arguments", "decision"), JUDGEMENTS)
def test_judgements(action: str, arguments: Mapping[str, Any], decision: Decision) -> None:
    assert DESK.judge(action, arguments) == decision


DOUBTS = [
    # action, arguments, verdict, who may answer, why nobody could tell
    ("restart", {}, "ask", MANAGER.roles, "the argument 'environment' is missing"),
    ("reset", {}, "deny", (), "the argument 'user' is missing"),
    ("reset", {"user": None}, "ask", MANAGER.roles, "a rule raised AttributeError"),
    ("refund", {}, "ask", (), "a rule raised KeyError"),
    ("refund", {"amount": "9"}, "ask", (), "a rule raised TypeError"),
    ("small", {"amount": "1"}, "ask", MONEY.roles, "a rule raised TypeError"),
    ("toggle", {"on": True}, "ask", (), "the argument 'room' is missing"),
    ("odd", {}, "ask", (), "a rule returned str, which is no decision"),
    ("none", {}, "ask", (), "a rule returned NoneType, which is no decision"),
    ("true", {}, "ask", (), "a rule returned bool, which is no decision"),
    ("broken", {}, "ask", (), "a rule raised RuntimeError"),
    ("broken_then_allow", {}, "ask", (), "a rule raised RuntimeError"),
    ("broken_then_manager", {}, "ask", MANAGER.roles, "a rule raised RuntimeError"),
    ("broken_then_deny", {}, "deny", (), "a rule raised RuntimeError"),
    ("unsure_allow", {}, "ask", (), "a rule raised RuntimeError"),
    ("unsure_deny", {}, "deny", (), "a rule raised RuntimeError"),
    ("unsure_ask", {}, "ask", MANAGER.roles, "a rule raised RuntimeError"),
    ("truthy", {}, "ask", (), "a condition returned str, not True or False"),
    ("truthy_argument", {"x": 1}, "ask", (), "a condition returned int, not True or False"),
    ("incomparable", {"amount": None}, "ask", (), "a rule raised TypeError"),
]


@pytest.mark.parametrize(("action", "arguments", "verdict", "roles", "why"), DOUBTS)
def test_a_doubt_never_allows_and_is_told(
    action: str, arguments: Mapping[str, Any], verdict: str, roles: Any, why: str
) -> None:
    decision = DESK.judge(action, arguments)
    assert (decision.verdict, decision.roles) == (verdict, frozenset(roles))
    assert decision.note == f"The policy for '{action}' could not be evaluated: {why}."


def test_what_a_rule_raised_is_logged_but_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert "hunter2" not in repr(DESK.judge("broken", {}))
    assert "hunter2" in caplog.text


@pytest.mark.parametrize("action", ["read_ticket", "rm -rf", "*", ""])
def test_ready_made(action: str) -> None:
    assert allow_all.judge(action, {}) == allow()
    assert ask_always.judge(action, {}) == ask()
    assert deny_all.judge(action, {}).verdict == "deny"


def test_ready_made_by_tier() -> None:
    policy = by_tier(
        {"look": "read", "restart": "sandbox", "reset": "credential", "drop": "destructive"}
    )
    judged = {
        action: policy.judge(action, {}) for action in ("look", "restart", "reset", "drop", "?")
    }
    assert {action: decision.verdict for action, decision in judged.items()} == {
        "look": "allow", "restart": "ask", "reset": "ask", "drop": "deny", "?": "ask",
    }  # fmt: skip
    assert judged["reset"].four_eyes
    assert not judged["restart"].four_eyes


def test_a_star_speaks_for_those_that_no_rule_names() -> None:
    policy = Policy(
        {
            "*": [Rule(allow, when=lambda given: given.get("dry") is True), MANAGER],
            "refund": Rule(allow, when={"amount": 1}),
            "unsure": broken,
        }
    )
    assert policy.judge("anything", {"dry": True}) == allow()
    assert policy.judge("anything", {}) == MANAGER
    # … and gives those that have rules, of which none applies, at most its question
    assert policy.judge("refund", {"amount": 1}) == allow()
    assert policy.judge("refund", {"amount": 2}) == MANAGER
    assert policy.judge("refund", {"amount": 2, "dry": True}) == ask()
    assert policy.judge("unsure", {}).roles == MANAGER.roles
    assert policy.judge("unsure", {"dry": True}).verdict == "ask"


def test_rules_cannot_change_what_is_judged() -> None:
    def greedy(arguments: Any) -> bool:
        arguments["amount"] = 0
        return True

    arguments = {"amount": 5000}
    assert Policy({"refund": Rule(allow, when=greedy)}).judge("refund", arguments).verdict == "ask"
    assert arguments == {"amount": 5000}


def test_a_policy_is_a_value() -> None:
    actions: dict[str, Any] = {"look": "read"}
    policy = Policy(actions)
    actions["drop"] = allow
    assert policy.judge("drop", {}) == ask()
    with pytest.raises(TypeError):
        policy.actions["drop"] = allow  # type: ignore[index]
    with pytest.raises(AttributeError):
        policy.tiers = {}  # type: ignore[misc]
    assert policy == Policy({"look": "read"})
    assert policy.tiers == TIERS


def test_ask_takes_seconds_and_timedeltas() -> None:
    assert ask(expires_in=60) == ask(expires_in=timedelta(minutes=1))
    assert ask(roles=["manager", "manager"]) == ask(roles=("manager",))


class Edit(BaseModel):
    amount: int


async def async_rule(arguments: Mapping[str, Any]) -> Decision:
    return allow()


class AsyncRule:
    async def __call__(self, arguments: Mapping[str, Any]) -> bool:
        return True


def unsafe(build: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[], Any]:
    """Calls that a type checker would not let pass."""
    return lambda: build(*args, **kwargs)


MISTAKES = [
    # what somebody wrote, what they read
    (
        lambda: Policy({"reset": "credental"}),
        "The policy's action 'reset' names 'credental', which is neither a decision nor a tier; "
        "did you mean 'credential'?",
    ),
    (lambda: Policy({"reset": "alow"}), "did you mean 'allow'?"),
    (lambda: Policy({"reset": "zzz"}), "which is neither a decision nor a tier."),
    (lambda: Policy({"reset": [Rule("rad", when={"x": 1})]}), "did you mean 'read'?"),
    (lambda: Policy(tiers={"low": "alow"}), "The policy's tier 'low' names 'alow'"),
    (lambda: Policy(tiers={"low": "read", "read": allow}), "The policy's tier 'low' names 'read'"),
    (lambda: Policy(tiers={"ask": allow}), "A tier cannot be called 'ask'"),
    (lambda: Policy({"reset": []}), "The policy's action 'reset' has no rules."),
    (unsafe(Policy, {"reset": True}), "The policy's action 'reset' has True, which is no rule."),
    (unsafe(Policy, {"reset": None}), "which is no rule."),
    (unsafe(Policy, {"reset": Edit}), "which is no rule."),
    (unsafe(Policy, {"reset": [[allow]]}), "which is no rule."),
    (unsafe(Policy, {1: allow}), "Policy(actions=…): a name is a text, not 1."),
    (unsafe(Policy, {"": allow}), "Policy(actions=…): a name is a text, not ''."),
    (unsafe(Policy, ["reset"]), "Policy(actions=…) is a mapping"),
    (unsafe(Policy, tiers="read"), "Policy(tiers=…) is a mapping"),
    (lambda: Policy({"reset": async_rule}), "rules are plain functions"),
    (lambda: Policy({"reset": AsyncRule()}), "rules are plain functions"),
    (unsafe(Rule, allow, when=async_rule), "is async; rules are plain functions"),
    (unsafe(Rule, allow, when={"x": AsyncRule()}), "is async; rules are plain functions"),
    (lambda: Rule(allow, when={}), "Rule(when={}): name an argument"),
    (unsafe(Rule, allow, when="x"), "Rule(when='x'): a mapping or a function."),
    (
        lambda: Policy({"reset_pasword": ask}, known={"reset_password", "read"}),
        "The policy has rules for 'reset_pasword', which is no known action; "
        "did you mean 'reset_password'?",
    ),
    (unsafe(ask, role={"manager"}), "ask() has no argument 'role'; did you mean 'roles'?"),
    (unsafe(ask, foureyes=True), "did you mean 'four_eyes'?"),
    (lambda: ask(roles="manager"), "ask(roles='manager'): a set of names, {'manager'}."),
    (unsafe(ask, roles={1}), "the name of a role is a text, not 1."),
    (unsafe(ask, roles={""}), "the name of a role is a text, not ''."),
    (unsafe(ask, roles=5), "ask(roles=5): a set of names."),
    (unsafe(ask, four_eyes="no"), "ask(four_eyes='no'): True or False."),
    (lambda: ask(on_expiry="rejct"), "did you mean 'reject'?"),
    (lambda: ask(on_expiry="approve"), "only 'reject' can be decided by nobody"),
    (lambda: ask(expires_in=0), "a timedelta or seconds above zero"),
    (lambda: ask(expires_in=timedelta(-1)), "a timedelta or seconds above zero"),
    (lambda: ask(expires_in=float("nan")), "a timedelta or seconds above zero"),
    (lambda: ask(expires_in=float("inf")), "a timedelta or seconds above zero"),
    (unsafe(ask, expires_in="1h"), "a timedelta or seconds above zero"),
    (unsafe(ask, expires_in=True), "a timedelta or seconds above zero"),
    (unsafe(ask, editable="yes"), "ask(editable='yes'): True, False or a pydantic model."),
    (unsafe(ask, editable=dict), "True, False or a pydantic model."),
    (unsafe(ask, question=5), "ask(question=5): a text."),
    (unsafe(deny, 5), "deny(reason) takes a text, not 5."),
]


@pytest.mark.parametrize(("build", "message"), MISTAKES)
def test_mistakes_stop_the_start_up(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(StartupError) as caught:
        build()
    assert message in caught.value.message


@tool
def reset_password(user: str, revoke_sessions: bool = False) -> str:
    """Reset a password."""
    return "done"


def test_c44_a_misspelt_key_stops_the_start_up() -> None:
    with pytest.raises(StartupError, match=r"'reset_pasword'.*did you mean 'reset_password'\?"):
        Policy({"reset_pasword": "credential"}, known=[reset_password])
    with pytest.raises(StartupError, match=r"'revoke_session', .*did you mean 'revoke_sessions'\?"):
        Policy({"reset_password": Rule(deny, when={"revoke_session": True})}).check(
            [reset_password]
        )


def test_arguments_of_a_tier_s_conditions_are_checked_too() -> None:
    policy = Policy({"reset_password": "own"}, tiers={"own": Rule(allow, when={"usr": "me"})})
    with pytest.raises(StartupError, match=r"'usr', .*did you mean 'user'\?"):
        policy.check([reset_password])


def test_check_gives_the_policy_back() -> None:
    policy = Policy({"reset_password": Rule(deny, when={"user": "root"}), "*": ask, "look": allow})
    assert policy.check([reset_password, "look"]) is policy
