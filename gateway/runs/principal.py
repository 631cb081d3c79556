"""Who sends a request. Made from credentials alone, never from a body."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """A tenant's subject and its roles. Every query is scoped by `tenant`."""

    tenant: str
    subject: str
    roles: frozenset[str] = frozenset()


RESERVED = ("system:", "operator:")
"""How the audit's actors begin that are nobody's credentials; a subject may not pass for one."""

ANYBODY = Principal(tenant="default", subject="anonymous")
"""Whoever asks when no authentication is set up."""
