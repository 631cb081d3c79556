"""The matrix of principals and calls, and how long a revoked key works."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gateway.errors import StartupError, Unauthenticated
from gateway.http.auth import KEY_FRESH, Keys
from gateway.runs.principal import Principal
from gateway.store.db import Database, open_database
from gateway.store.keys import create_key, revoke_key
from tests.integration.api import Api, calls, envelope, output, serving
from tests.integration.people import ASKING, SIGNING_KEY, keys_of, token, token_settings
from tests.openresponses import Json

ROOT = Path(__file__).parents[2]


@dataclass
class Shop:
    api: Api
    keys: dict[str, str]

    def headers(self, who: str) -> dict[str, str]:
        if who == "no key":
            return {}
        sent = self.keys.get(who) or FORGED[who]()
        return {"authorization": f"Bearer {sent}"}

    async def ask(self, model: str = "refund", who: str = "mia") -> Json:
        """A response that waits, asked for by `who`."""
        answer = await self.api.post({"model": model, "input": "Refund"}, headers=self.headers(who))
        assert answer.status_code == 200, answer.text
        return dict(answer.json())


@pytest.fixture(scope="module")
async def shop(
    anyio_backend: Any, module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Shop]:
    settings = token_settings(tmp_path_factory.mktemp("issuer"))
    async with serving(module_database_url, ASKING, **settings) as api:
        yield Shop(api, await keys_of(module_database_url))


# --- principals ------------------------------------------------------------------------------

OTHER_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def _signed_with_the_public_key() -> str:
    public = SIGNING_KEY.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return token(public.hex(), "HS256")


FORGED: dict[str, Callable[[], str]] = {
    "dora": token,
    "garbage": lambda: "garbage",
    "a key that never was": lambda: f"fk_{'0' * 16}_{'0' * 64}",
    "expired token": lambda: token(exp=time.time() - 60),
    "wrong issuer": lambda: token(iss="https://other.example"),
    "wrong audience": lambda: token(aud="other"),
    "another's signature": lambda: token(OTHER_KEY),
    "alg none": lambda: token(None, "none"),
    "HS256 with the public key": _signed_with_the_public_key,
    "no tenant": lambda: token(tenant=None),
}
NOBODY = ["no key", "revoked", *[name for name in FORGED if name != "dora"]]

# --- calls -----------------------------------------------------------------------------------


def post(path: str, body: Callable[[Json], Any]) -> Callable[..., Awaitable[httpx.Response]]:
    async def call(api: Api, asked: Json, headers: dict[str, str]) -> httpx.Response:
        filled = path.format(call=calls(asked)[0]["call_id"])
        return await api.http.post(filled, json=body(asked), headers=headers)

    return call


def get(path: str) -> Callable[..., Awaitable[httpx.Response]]:
    async def call(api: Api, asked: Json, headers: dict[str, str]) -> httpx.Response:
        filled = path.format(id=asked["id"], call=calls(asked)[0]["call_id"])
        return await api.http.get(filled, headers=headers)

    return call


def answering(asked: Json, **fields: Any) -> Json:
    return {"model": "refund", "input": [output(calls(asked)[0], "approve")], **fields}


CALLS: dict[str, Callable[..., Awaitable[httpx.Response]]] = {
    "models": get("/v1/models"),
    "model": get("/v1/models/refund"),
    "create": post("/v1/responses", lambda _: {"model": "talk", "input": "hello"}),
    "retrieve": get("/v1/responses/{id}"),
    "answer by response": post(
        "/v1/responses", lambda asked: answering(asked, previous_response_id=asked["id"])
    ),
    "answer by call": post("/v1/responses", answering),
    "list": get("/v1/interrupts"),
    "look": get("/v1/interrupts/{call}"),
    "review": post("/v1/interrupts/{call}/answer", lambda _: {"action": "approve"}),
    "nowhere": get("/v1/nowhere"),
    "documents": get("/openapi.json"),
}
OK: Any = (200, None)
DENIED: Any = (403, "reviewer_not_allowed")
MISSING: Any = (404, "not_found")
HIDDEN: Any = (400, "previous_response_not_found")
UNCALLED: Any = (400, "invalid_value")

# mia asked; the question wants a manager who is not mia.
MATRIX: dict[str, dict[str, Any]] = {
    "mia": {"answer by response": DENIED, "answer by call": DENIED, "review": DENIED},
    "anna": {"answer by response": DENIED, "answer by call": DENIED, "review": DENIED},
    "carl": {"answer by response": DENIED, "answer by call": DENIED, "review": DENIED},
    "bob": {},
    "dora": {},
    "eve": {
        "retrieve": MISSING, "answer by response": HIDDEN, "answer by call": UNCALLED,
        "look": MISSING, "review": MISSING,
    },
}  # fmt: skip


def expected(who: str, call: str) -> tuple[int, str | None]:
    if call == "nowhere":
        return MISSING  # type: ignore[no-any-return]
    found: tuple[int, str | None] = MATRIX[who].get(call, OK)
    return found


async def is_open(shop: Shop, asked: Json) -> bool:
    rows = await shop.api.sql(
        "SELECT status FROM fermata.interrupts WHERE response_id = %s", asked["id"]
    )
    return [row["status"] for row in rows] == ["pending"]


@pytest.mark.parametrize("call", [call for call in CALLS if call != "documents"])
@pytest.mark.parametrize("who", MATRIX)
async def test_who_may_do_what(shop: Shop, who: str, call: str) -> None:
    asked = await shop.ask()
    answer = await CALLS[call](shop.api, asked, shop.headers(who))
    status, code = expected(who, call)
    assert answer.status_code == status, answer.text
    if status != 200:
        assert envelope(answer)["code"] == code
        assert await is_open(shop, asked)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("who", NOBODY)
async def test_nobody_may_do_nothing(shop: Shop, who: str, call: str) -> None:
    asked = await shop.ask()
    answer = await CALLS[call](shop.api, asked, shop.headers(who))
    assert answer.status_code == 401
    assert envelope(answer)["code"] == "invalid_api_key"
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["x-request-id"]
    assert await is_open(shop, asked)


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_health_asks_for_no_key(shop: Shop, path: str) -> None:
    assert (await shop.api.http.get(path)).status_code == 200


@pytest.mark.parametrize("path", ["/healthz/", "//healthz", "/healthz/../v1/models", "/HEALTHZ"])
async def test_what_only_looks_like_health_does(shop: Shop, path: str) -> None:
    assert (await shop.api.http.get(path)).status_code == 401


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", "Basic {key}", "{key}", "Token {key}", "Bearer {key} {key}"],
)
async def test_headers_that_hold_no_key(shop: Shop, header: str) -> None:
    sent = {"authorization": header.format(key=shop.keys["bob"])}
    answer = await shop.api.http.get("/v1/models", headers=sent)
    assert (answer.status_code, envelope(answer)["code"]) == (401, "invalid_api_key")


async def test_two_headers_are_none(shop: Shop) -> None:
    sent = [("authorization", f"Bearer {shop.keys[who]}") for who in ("bob", "eve")]
    assert (await shop.api.http.get("/v1/models", headers=sent)).status_code == 401


async def test_the_scheme_is_read_in_any_case(shop: Shop) -> None:
    sent = {"authorization": f"bearer  {shop.keys['bob']}"}
    assert (await shop.api.http.get("/v1/models", headers=sent)).status_code == 200


@pytest.mark.parametrize(
    "call", ["retrieve", "answer by response", "answer by call", "look", "review"]
)
async def test_another_tenants_id_and_an_unknown_one_look_the_same(shop: Shop, call: str) -> None:
    asked = await shop.ask()
    ids = [asked["id"], calls(asked)[0]["call_id"]]
    unknown = {"id": "resp_" + "0" * 40, "output": [{**calls(asked)[0]}]}
    unknown["output"][0]["call_id"] = "call_" + "0" * 40
    told = []
    for one in (asked, unknown):
        answer = await CALLS[call](shop.api, one, shop.headers("eve"))
        text = re.sub("|".join([*ids, unknown["id"], unknown["output"][0]["call_id"]]), "ID",
                      answer.text)  # fmt: skip
        kept = {k: v for k, v in answer.headers.items() if k not in
                ("x-request-id", "openai-processing-ms", "content-length")}  # fmt: skip
        told.append((answer.status_code, text, kept))
    assert told[0] == told[1]


async def test_C42_another_tenants_question_stays_as_it_is(shop: Shop) -> None:
    asked = await shop.ask()
    for call in ("answer by response", "answer by call", "look", "review"):
        refused = await CALLS[call](shop.api, asked, shop.headers("eve"))
        assert 400 <= refused.status_code < 500
    assert await is_open(shop, asked)
    assert (await CALLS["review"](shop.api, asked, shop.headers("bob"))).status_code == 200


@pytest.mark.parametrize(
    "claimed",
    [
        {"reviewer": "bob"},
        {"user": "bob", "subject": "bob", "tenant": "shop", "roles": ["manager"]},
        {"metadata": {"reviewer": "bob"}, "principal": {"subject": "bob"}},
    ],
)
async def test_C43_who_somebody_is_stands_in_no_body(shop: Shop, claimed: Json) -> None:
    asked = await shop.ask()
    call = calls(asked)[0]
    path = f"/v1/interrupts/{call['call_id']}/answer"
    body = {"action": "approve", **claimed}
    headers = {**shop.headers("mia"), "x-user": "bob", "openai-organization": "shop"}
    reviewed = await shop.api.http.post(path, json=body, headers=headers)
    fields = {"previous_response_id": asked["id"], **claimed}
    answered = await shop.api.post(answering(asked, **fields), headers=headers)
    for answer in (reviewed, answered):
        assert (answer.status_code, envelope(answer)["code"]) == DENIED
        assert "second person" in envelope(answer)["message"]
    assert await is_open(shop, asked)


# --- keys ------------------------------------------------------------------------------------


class Counting:
    """A database that counts how often it is asked."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.asked = 0

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        self.asked += 1
        async with self.database.connection() as conn:
            yield conn


async def test_a_key_costs_no_round_trip_and_is_dead_soon_after_it_is_revoked(
    database_url: str,
) -> None:
    now = 100.0
    async with open_database(database_url, size=2) as database:
        counting: Any = Counting(database)
        keys = Keys(counting, lambda: now)
        async with database.connection() as conn:
            id, key = await create_key(conn, "shop", "anna", ["clerk"])
        for _ in range(50):
            assert await keys.principal(key) == Principal("shop", "anna", frozenset({"clerk"}))
        assert counting.asked == 1
        with pytest.raises(Unauthenticated):
            await keys.principal(key[:-1] + ("0" if key[-1] != "0" else "1"))
        async with database.connection() as conn:
            assert await revoke_key(conn, id)
        now += KEY_FRESH
        for _ in range(2):
            with pytest.raises(Unauthenticated):
                await keys.principal(key)


async def test_only_a_digest_is_stored(shop: Shop) -> None:
    rows = await shop.api.sql("SELECT k::text AS row FROM fermata.api_keys k")
    stored = "".join(row["row"] for row in rows)
    for key in shop.keys.values():
        assert key.split("_")[1] in stored
        assert key.split("_")[2] not in stored


def fermata(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("FERMATA_")}
    return subprocess.run(
        [sys.executable, "-m", "gateway", *arguments],
        cwd=ROOT,
        env={**environ, "FERMATA_DATABASE_URL": url},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


async def test_keys_from_the_command_line(empty_database_url: str) -> None:
    """On a database without a schema: keys come before the first start."""
    said = ["keys", "create", "--tenant", "shop", "--subject", "anna"]
    made = fermata(empty_database_url, *said, "--role", "manager", "--role", "clerk")
    key = made.stdout.strip()
    assert (made.returncode, made.stdout) == (0, f"{key}\n")
    assert "once" in made.stderr
    assert key not in made.stderr
    id = key.split("_")[1]
    async with open_database(empty_database_url, size=1) as database:
        known = await Keys(database).principal(key)
        assert known == Principal("shop", "anna", frozenset({"manager", "clerk"}))
        assert fermata(empty_database_url, "keys", "revoke", id).returncode == 0
        with pytest.raises(Unauthenticated):
            await Keys(database).principal(key)
    listed = fermata(empty_database_url, "keys", "list").stdout
    assert listed.split("\t")[:4] == [id, "shop", "anna", "clerk,manager"]
    assert "revoked" in listed
    assert key.split("_")[2] not in listed
    posing = fermata(empty_database_url, *said[:-1], "system:expiry")
    assert (posing.returncode, posing.stdout) == (2, "")
    assert "begin no subject" in posing.stderr
    unknown = fermata(empty_database_url, "keys", "revoke", "0" * 16)
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert unknown.stderr.startswith("fermata: There is no key")


def test_a_gateway_for_others_says_who_may_ask(database_url: str) -> None:
    refused = fermata(database_url, "serve", "--host", "0.0.0.0", "--port", "0")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "FERMATA_AUTH" in refused.stderr
    assert "Traceback" not in refused.stderr


async def test_so_does_an_app(database_url: str) -> None:
    with pytest.raises(StartupError, match="FERMATA_AUTH"):
        async with serving(database_url, ASKING, HOST="0.0.0.0"):
            pass


async def test_open_on_loopback_with_a_warning(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(database_url, ASKING) as api:
        assert (await api.create("talk", "hello"))["status"] == "completed"
    assert any("no authentication" in one.message for one in caplog.records)


async def test_a_key_is_503_while_the_database_is_away() -> None:
    async with serving("postgresql://nobody@127.0.0.1:1/none", ASKING, AUTH="keys") as api:
        sent = {"authorization": f"Bearer fk_{'0' * 16}_{'0' * 64}"}
        assert (await api.http.get("/v1/models", headers=sent)).status_code == 503
        assert (await api.http.get("/v1/models")).status_code == 401
        assert (await api.http.get("/healthz")).status_code == 200


def test_the_forged_tokens_are_what_they_say() -> None:
    assert jwt.get_unverified_header(FORGED["alg none"]())["alg"] == "none"
    assert jwt.get_unverified_header(FORGED["HS256 with the public key"]())["alg"] == "HS256"
