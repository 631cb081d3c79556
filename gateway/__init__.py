"""Fermata serves LangGraph graphs behind the OpenAI Responses API; its interrupts wait durably
for people.

What graph authors import is here; everything else is an inside.
"""

from gateway.errors import (
    EffectConflict,
    EffectError,
    EffectFailed,
    EffectInProgress,
    EffectNotApproved,
    EffectUncertain,
)
from gateway.human.ask import Answer, ask_approval, ask_choice, ask_text, ask_value
from gateway.human.database import Database, database
from gateway.human.effects import Happened, async_effect, effect, effect_in_transaction
from gateway.human.guard import guard
from gateway.human.permit import Permit, permit
from gateway.human.policy import Policy, allow_all, ask_always, by_tier, deny_all
from gateway.human.rehearsal import MemoryLedger, effects_in_memory
from gateway.human.rules import Decision, Rule, allow, ask, deny
from gateway.human.run import CurrentRun, FunctionTool, RunSettings, current_run, current_settings
from gateway.human.wanted import Approval
from gateway.runs.graph import Graph

__all__ = [
    "Answer",
    "Approval",
    "CurrentRun",
    "Database",
    "Decision",
    "EffectConflict",
    "EffectError",
    "EffectFailed",
    "EffectInProgress",
    "EffectNotApproved",
    "EffectUncertain",
    "FunctionTool",
    "Graph",
    "Happened",
    "MemoryLedger",
    "Permit",
    "Policy",
    "Rule",
    "RunSettings",
    "allow",
    "allow_all",
    "ask",
    "ask_always",
    "ask_approval",
    "ask_choice",
    "ask_text",
    "ask_value",
    "async_effect",
    "by_tier",
    "current_run",
    "current_settings",
    "database",
    "deny",
    "deny_all",
    "effect",
    "effect_in_transaction",
    "effects_in_memory",
    "guard",
    "permit",
]
