"""Ids that nobody can guess: knowing one is never enough, but guessing one must not be a start."""

from __future__ import annotations

import secrets


def new_id(prefix: str) -> str:
    """`resp_…`, `msg_…`, `fc_…`, `call_…`: the prefix and 160 random bits as 40 hex digits.

    OpenAI bounds call ids at 64 characters; this stays well below with any prefix in use.
    """
    return f"{prefix}_{secrets.token_hex(20)}"
