"""What the tests of real clients share: the gateway, and an order for each test."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.acceptance.clients import nodejs
from tests.acceptance.clients.orders import Order
from tests.acceptance.server import Server

_numbers = itertools.count(1000)


@pytest.fixture
def order(server: Server) -> Order:
    """An order that no other test names."""
    return Order(f"ORDER-C{next(_numbers)}", server)


@pytest.fixture(scope="session")
def node_clients() -> Path:
    """A folder from which Node finds the clients."""
    return nodejs.installed()
