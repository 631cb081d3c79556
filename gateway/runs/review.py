"""Who may answer a question. Pure: what the graph's author asked for, and what credentials say.

Identity is a `Principal`, which is made from credentials alone; no body is ever looked at.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.errors import ReviewerNotAllowed
from gateway.runs.principal import Principal


def may_answer(
    *, roles: Iterable[str], four_eyes: bool, requester: str, principal: Principal
) -> None:
    """Raises `ReviewerNotAllowed` unless `principal` may answer what `requester`'s run asks.

    One of `roles` is enough; none means anybody of the tenant. `four_eyes` bars the requester,
    whatever roles they have. The tenant is not judged here: another tenant's question is not found.
    """
    wanted = frozenset(roles)
    if wanted and not wanted & principal.roles:
        names = " or ".join(f"'{role}'" for role in sorted(wanted))
        raise ReviewerNotAllowed(f"This question may only be answered with the role {names}.")
    if four_eyes and principal.subject == requester:
        raise ReviewerNotAllowed(
            "This question needs a second person: whoever started the run may not answer it."
        )


def is_allowed(
    *, roles: Iterable[str], four_eyes: bool, requester: str, principal: Principal
) -> bool:
    """`may_answer` as a question."""
    try:
        may_answer(roles=roles, four_eyes=four_eyes, requester=requester, principal=principal)
    except ReviewerNotAllowed:
        return False
    return True
