"""People with credentials, and graphs that ask them: for the tests of who may do what."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Send
from psycopg import AsyncConnection
from psycopg.rows import dict_row

from gateway import Graph
from gateway.human.ask import ask_approval
from gateway.store.keys import create_key, revoke_key
from tests.integration.small_graphs import Fan, ask, ask_twice, chain, done, gather, last_text

ISSUER, AUDIENCE = "https://issuer.example", "fermata"
SIGNING_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)

PEOPLE: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "mia": ("shop", "mia", ("manager",)),
    "anna": ("shop", "anna", ()),
    "carl": ("shop", "carl", ("clerk",)),
    "bob": ("shop", "bob", ("manager",)),
    "eve": ("rival", "bob", ("manager", "clerk")),
}
"""Tenant, subject and roles of those who have a key."""


async def keys_of(database_url: str) -> dict[str, str]:
    """A key for each of `PEOPLE`, and a revoked one of bob's."""
    keys = {}
    connect = AsyncConnection.connect(database_url, autocommit=True, row_factory=dict_row)
    async with await connect as conn:
        for name, person in PEOPLE.items():
            _, keys[name] = await create_key(conn, *person)
        id, keys["revoked"] = await create_key(conn, *PEOPLE["bob"])
        await revoke_key(conn, id)
    return keys


def token_settings(folder: Path) -> dict[str, str]:
    """Settings for keys and tokens; the issuer's public key is put into `folder`."""
    key = jwt.get_algorithm_by_name("RS256").to_jwk(SIGNING_KEY.public_key(), as_dict=True)
    path = folder / "jwks.json"
    path.write_text(json.dumps({"keys": [{**key, "kid": "one"}]}))
    return {
        "AUTH": "keys,jwt",
        "JWT_ISSUER": ISSUER,
        "JWT_AUDIENCE": AUDIENCE,
        "JWT_JWKS": str(path),
        "JWT_TENANT_CLAIM": "tenant",
    }


def token(key: Any = SIGNING_KEY, algorithm: str = "RS256", **changed: Any) -> str:
    """Dora's, who is a manager of the shop."""
    claims = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "dora",
        "tenant": "shop",
        "roles": ["manager"],
        "exp": time.time() + 600,
        **changed,
    }
    return jwt.encode(claims, key, algorithm, headers={"kid": "one"})


# --- graphs ----------------------------------------------------------------------------------


async def approve(state: MessagesState) -> dict[str, Any]:
    answer = ask_approval(
        "review_refund", question="Refund?", roles={"manager"}, four_eyes=True, payload={"n": 1}
    )
    done("answered")
    return {"messages": [AIMessage(f"{answer.action} by {answer.reviewer}: {answer.note}")]}


async def review_each(item: Any) -> dict[str, Any]:
    answer = ask_approval("review", question=f"Do {item}?", roles={"manager", "clerk"})
    done(item)
    return {"answers": [f"{item}={answer.action} by {answer.reviewer}"]}


def several() -> StateGraph[Any, Any, Any, Any]:
    graph: Any = StateGraph(Fan)
    graph.add_node("review_each", review_each)
    graph.add_node("gather", gather)
    graph.add_conditional_edges(
        START, lambda state: [Send("review_each", one) for one in ("a", "b")], ["review_each"]
    )
    graph.add_edge("review_each", "gather")
    graph.add_edge("gather", END)
    return graph


async def approve_or_fail(state: MessagesState) -> dict[str, Any]:
    answer = ask_approval("review", question="Go on?")
    if done("attempt") == 1:
        raise ValueError("a secret")
    return {"messages": [AIMessage(f"{answer.action} after all")]}


async def say(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(f"{len(state['messages'])}: {last_text(state)}")]}


ASKING = {
    "refund": Graph(chain(approve)),
    "several": Graph(several()),
    "flaky": Graph(chain(approve_or_fail)),
    "twice": Graph(chain(ask_twice)),
    "raw": Graph(chain(ask)),
    "talk": Graph(chain(say)),
}
