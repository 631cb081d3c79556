"""Credentials -> Principal. Identity never comes from a body."""

from __future__ import annotations

from starlette.requests import Request

from gateway.runs.principal import ANYBODY, Principal


def principal_of(request: Request) -> Principal:
    """Who asks. Without authentication set up, everybody is one subject of one tenant."""
    return ANYBODY
