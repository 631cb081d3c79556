"""What would be a lie: fields whose meaning would be dropped in a way that changes the answer.

They are refused, with the reason; both request forms share them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.wire import checks
from gateway.wire.encoding import Json, canonical


def refuse_lies(raw: Mapping[str, Json]) -> None:
    """Raises `InvalidRequest` for the first field that would be one."""
    for key, (refused, reason) in _LIES.items():
        if raw.get(key) is not None and refused(raw[key]):
            checks.refuse(key, reason, "unsupported_parameter")


_LIES: dict[str, tuple[Any, str]] = {
    "prompt": (
        lambda value: True,
        "'prompt' is not supported: there are no stored prompt templates here. "
        "Send 'instructions' and 'input' instead.",
    ),
    "n": (lambda value: value != 1, "'n' is not supported: a run gives one answer."),
    "generate": (
        lambda value: value is False,
        "'generate': false is not supported: a request always runs its graph.",
    ),
    "prompt_cache_options": (
        lambda value: isinstance(value, dict) and value.get("prewarm") is True,
        "'prompt_cache_options.prewarm' is not supported: a request always runs its graph.",
    ),
    "moderation": (
        lambda value: '"block"' in canonical(value).decode(),
        "'moderation' with a policy that blocks is not supported: nothing would be blocked.",
    ),
}
"""By field: whether this value of it is refused, and what is said."""
