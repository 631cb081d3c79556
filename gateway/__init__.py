"""Fermata serves LangGraph graphs behind the OpenAI Responses API; its interrupts wait durably
for people.

What graph authors import is here; everything else is an inside.
"""

from gateway.human.ask import Answer, ask_approval, ask_choice, ask_text, ask_value
from gateway.human.database import Database, database
from gateway.human.guard import guard
from gateway.human.permit import Permit, permit
from gateway.human.policy import Policy, allow_all, ask_always, by_tier, deny_all
from gateway.human.rules import Decision, Rule, allow, ask, deny
from gateway.human.run import (
    CurrentRun,
    FunctionTool,
    RunSettings,
    current_run,
    current_settings,
)
from gateway.runs.graph import Graph

__all__ = [
    "Answer",
    "CurrentRun",
    "Database",
    "Decision",
    "FunctionTool",
    "Graph",
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
    "by_tier",
    "current_run",
    "current_settings",
    "database",
    "deny",
    "deny_all",
    "guard",
    "permit",
]
