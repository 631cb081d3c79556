"""Ids that nobody can guess: knowing one is never enough, but guessing one must not be a start."""

from __future__ import annotations

import re
import secrets


def new_id(prefix: str) -> str:
    """`resp_…`, `msg_…`, `fc_…`, `call_…`: the prefix and 160 random bits as 40 hex digits.

    OpenAI bounds call ids at 64 characters; this stays well below with any prefix in use.
    """
    return f"{prefix}_{secrets.token_hex(20)}"


def item_id(prefix: str, response_id: str, number: int) -> str:
    """The id of a response's item: it holds the response's own, so that a reference to it needs no
    index to be found. As hard to guess as that."""
    return f"{prefix}_{response_id.partition('_')[2]}{number:04x}"


def input_item_id(prefix: str, response_id: str, number: int) -> str:
    """The id of an input item that came without one; found as that of an output item is."""
    return f"{prefix}_{response_id.partition('_')[2]}i{number:04x}"


def response_of_item(id: str) -> str | None:
    """The id of the response that an item of ours belongs to, as its input or its output; None for
    ids of others."""
    match = _ITEM_ID.fullmatch(id)
    return None if match is None else f"resp_{match[1]}"


def is_own_call(call_id: str) -> bool:
    """Whether we gave a call this id: it asks a question. Calls to a client's tools have ids of
    their model."""
    return _CALL_ID.fullmatch(call_id) is not None


_ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{40})i?[0-9a-f]{4,}")
_CALL_ID = re.compile(r"call_[0-9a-f]{40}")
