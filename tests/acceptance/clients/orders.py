"""An order of a test's own in the refund demo: what it says, and how often it was paid."""

from __future__ import annotations

from dataclasses import dataclass

from tests.acceptance.server import Server
from tests.acceptance.test_refund import paid


@dataclass(frozen=True)
class Order:
    """`id` is what the test puts into its request."""

    id: str
    server: Server

    @property
    def notice(self) -> str:
        return f"I would like to refund EUR 49.90 for {self.id}. A person has to review this first."

    @property
    def executed(self) -> str:
        return f"Refund of EUR 49.90 for {self.id} was executed and the customer notified."

    @property
    def rejected(self) -> str:
        return f"The refund for {self.id} was rejected; nothing was executed."

    def paid(self) -> int:
        return paid(self.server, self.id)
