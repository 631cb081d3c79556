"""Fermata serves LangGraph graphs behind the OpenAI Responses API; its interrupts wait durably
for people.

What graph authors import is here; everything else is an inside.
"""

from gateway.human.run import (
    CurrentRun,
    FunctionTool,
    RunSettings,
    current_run,
    current_settings,
)
from gateway.runs.graph import Graph

__all__ = [
    "CurrentRun",
    "FunctionTool",
    "Graph",
    "RunSettings",
    "current_run",
    "current_settings",
]
