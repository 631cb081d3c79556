"""What needs whom: tiers in code, the rules that put actions into them in a table.

So an operator changes a rule without a deployment, and the desk learns of it at its next look:
before it asks, and again before it acts.

    UPDATE service_desk_demo.rules SET tier = 'prohibited' WHERE action = 'reset_credential'
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from gateway import Decision, Policy, Rule, allow, ask, database, deny

TIERS: Mapping[str, Any] = MappingProxyType(
    {
        "automatic": allow,
        "routine": ask(expires_in=timedelta(hours=24), on_expiry="reject"),
        # Two people: the one who asks, and a manager who is not the same.
        "credential": ask(
            roles={"manager"},
            four_eyes=True,
            expires_in=timedelta(hours=24),
            on_expiry="reject",
        ),
        "prohibited": deny("the desk's policy prohibits it"),
    }
)

RULES = (
    ("read_ticket", "", "automatic"),
    ("search_knowledge", "", "automatic"),
    ("restart_service", "sandbox", "automatic"),
    ("restart_service", "production", "routine"),
    ("reset_credential", "", "credential"),
    ("disable_account", "", "credential"),
    ("delete_data", "archive", "credential"),
    ("delete_data", "production", "prohibited"),
)
"""Those that a new desk starts with: action, environment (""; any), tier."""


async def policy_now(tenant: str) -> Policy:
    """The tenant's policy as its rules are at this moment.

    Raises `StartupError` for a rule that names no tier: nothing is allowed by a typing error.
    """
    async with database().connection() as conn:
        rows = await conn.execute(
            "SELECT action, environment, tier FROM service_desk_demo.rules WHERE tenant = %s"
            " ORDER BY action, environment DESC",
            (tenant,),
        )
        actions: dict[str, list[Any]] = defaultdict(list)
        async for row in rows:
            when = {"environment": row["environment"]} if row["environment"] else None
            actions[row["action"]].append(Rule(row["tier"], when=when))
    return Policy(tiers=TIERS, actions=actions)


def kept(decision: Decision) -> dict[str, Any]:
    """A decision as the state of a run keeps it: what an approval was given under."""
    return {
        "verdict": decision.verdict,
        "tier": decision.tier,
        "reason": decision.reason,
        "roles": sorted(decision.roles),
        "four_eyes": decision.four_eyes,
    }


def who(decision: Mapping[str, Any]) -> str:
    """Whose approval it takes, in words."""
    people = " or ".join(f"a {role}" for role in decision["roles"]) or "anybody at the desk"
    return f"{people} who did not ask for it" if decision["four_eyes"] else people
