"""What is to be done: actions with their arguments, and how they are read from words.

The reading stands where a model would: it proposes, and decides nothing. What it proposes is
validated like anybody else's proposal, and so is what a reviewer makes of it.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

Environment: TypeAlias = Literal["sandbox", "production", "archive"]


class Action(BaseModel):
    """What all actions are: arguments that are validated, whoever wrote them."""

    model_config = ConfigDict(extra="forbid")
    verb: ClassVar[str]
    changes: ClassVar[bool] = True
    """Whether it does anything to the world; what only reads needs no ticket and no key."""

    @property
    def target(self) -> str:
        """What is acted on; part of the operation's key."""
        return str(next(iter(self.model_dump().values())))

    @abstractmethod
    def words(self) -> str:
        """The action as people read it."""


class ReadTicket(Action):
    verb, changes = "read", False
    ticket: str = Field(pattern=r"^INC-\d+$")

    def words(self) -> str:
        return f"read ticket {self.ticket}"


class SearchKnowledge(Action):
    verb, changes = "search", False
    words_to_find: str = Field(min_length=1, max_length=200)

    def words(self) -> str:
        return f"search the knowledge base for {self.words_to_find}"


class RestartService(Action):
    verb = "restart"
    service: str = Field(pattern=r"^[a-z][a-z0-9-]*$")
    environment: Environment

    def words(self) -> str:
        return f"restart {self.service} {_place(self.environment)}"


class ResetCredential(Action):
    verb = "reset"
    user: str = Field(pattern=r"^user-\d+$")
    revoke_sessions: bool = False

    def words(self) -> str:
        more = " and revoke all sessions" if self.revoke_sessions else ""
        return f"reset the password of {self.user}{more}"


class DisableAccount(Action):
    verb = "disable"
    user: str = Field(pattern=r"^user-\d+$")

    def words(self) -> str:
        return f"disable the account of {self.user}"


class DeleteData(Action):
    verb = "delete"
    data: str = Field(pattern=r"^[a-z][a-z0-9-]*$")
    environment: Environment

    def words(self) -> str:
        return f"delete {self.data} {_place(self.environment)}"


def _place(environment: str) -> str:
    return "in production" if environment == "production" else f"in the {environment}"


ACTIONS: Mapping[str, type[Action]] = {
    "read_ticket": ReadTicket,
    "search_knowledge": SearchKnowledge,
    "restart_service": RestartService,
    "reset_credential": ResetCredential,
    "disable_account": DisableAccount,
    "delete_data": DeleteData,
}


class Proposal(BaseModel):
    """An action that is proposed for a ticket, in one of its versions."""

    action: str
    arguments: dict[str, Any]
    ticket: str = ""
    version: int = 0

    @property
    def asked(self) -> Action:
        """The action itself. Raises pydantic's `ValidationError` for arguments that cannot be."""
        return ACTIONS[self.action].model_validate(self.arguments)

    @property
    def key(self) -> str:
        """The business operation: `reset:INC-42:user-123:proposal-v2`."""
        asked = self.asked
        return f"{asked.verb}:{self.ticket}:{asked.target}:proposal-v{self.version}"


# --- reading words ----------------------------------------------------------------------------

_TICKET = re.compile(r"\bINC-\d+\b")
_PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("read_ticket", re.compile(r"\bread (?:the )?(?:ticket )?(?P<ticket>INC-\d+)", re.I)),
    ("search_knowledge", re.compile(r"\bsearch\b.*\bfor (?P<words_to_find>[^.?!]+)", re.I)),
    (
        "restart_service",
        re.compile(
            r"\brestart (?P<service>[a-z][a-z0-9-]*)"
            r" in (?:the )?(?P<environment>sandbox|production)",
            re.I,
        ),
    ),
    ("reset_credential", re.compile(r"\breset\b.*?\b(?P<user>user-\d+)", re.I)),
    ("disable_account", re.compile(r"\bdisable\b.*?\b(?P<user>user-\d+)", re.I)),
    (
        "delete_data",
        re.compile(
            r"\bdelete (?:the )?(?P<environment>archive|production) data"
            r" (?P<data>[a-z][a-z0-9-]*)",
            re.I,
        ),
    ),
)


def read(text: str) -> Proposal | None:
    """What the text asks for, or None; its version is not known yet."""
    for action, pattern in _PATTERNS:
        if found := pattern.search(text):
            arguments: dict[str, Any] = {
                name: value if name == "ticket" else value.lower().strip()
                for name, value in found.groupdict().items()
            }
            if action == "reset_credential":
                arguments["revoke_sessions"] = "revoke" in text.lower()
            ticket = next(iter(_TICKET.findall(text)), "")
            return Proposal(action=action, arguments=arguments, ticket=ticket)
    return None
