"""Credentials without a server: keys, tokens, and what may not start."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gateway.errors import (
    FermataError,
    ReviewerNotAllowed,
    StartupError,
    Unauthenticated,
    Unavailable,
)
from gateway.http.auth import methods_of
from gateway.http.tokens import KEYS_FRESH, KEYS_PAUSE, KeySet, Tokens
from gateway.runs.principal import Principal
from gateway.runs.review import is_allowed, may_answer
from gateway.settings import Settings
from gateway.store.keys import ApiKey, is_key, parse_key

ISSUER, AUDIENCE = "https://issuer.example", "fermata"
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()


def jwk(algorithm: str, key: Any, **fields: Any) -> dict[str, Any]:
    made = jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key(), as_dict=True)
    return {**made, **fields}


KEYS = [
    jwk("RS256", RSA_KEY, kid="rsa"),
    jwk("ES256", EC_KEY, kid="ec", alg="ES256"),
    jwk("EdDSA", ED_KEY, kid="ed", use="sig"),
    jwk("RS256", OTHER_RSA_KEY, kid="for-encryption", use="enc"),
    {"kty": "oct", "kid": "shared", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA"},
]


@pytest.fixture(scope="module")
def jwks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "jwks.json"
    path.write_text(json.dumps({"keys": KEYS}))
    return path


def settings(jwks: object, **named: str) -> Settings:
    environ = {
        "FERMATA_AUTH": "jwt",
        "FERMATA_JWT_ISSUER": ISSUER,
        "FERMATA_JWT_AUDIENCE": AUDIENCE,
        "FERMATA_JWT_JWKS": str(jwks),
    }
    return Settings.from_env(environ | {f"FERMATA_{name}": value for name, value in named.items()})


def claims(**changed: Any) -> dict[str, Any]:
    """Good ones, with some changed, or left out where None."""
    made = {"iss": ISSUER, "aud": AUDIENCE, "sub": "anna", "exp": time.time() + 60, **changed}
    return {name: value for name, value in made.items() if value is not None}


def token(
    key: Any = RSA_KEY, algorithm: str = "RS256", kid: str | None = "rsa", **changed: Any
) -> str:
    headers = {} if kid is None else {"kid": kid}
    return jwt.encode(claims(**changed), key, algorithm, headers=headers)


# --- tokens ----------------------------------------------------------------------------------

GOOD: dict[str, Callable[[], str]] = {
    "RS256": token,
    "PS384 with the same key": lambda: token(algorithm="PS384"),
    "ES256": lambda: token(EC_KEY, "ES256", "ec"),
    "EdDSA": lambda: token(ED_KEY, "EdDSA", "ed"),
    "one audience of several": lambda: token(aud=["other", AUDIENCE]),
    "over since a moment": lambda: token(exp=time.time() - 5),
    "valid in a moment": lambda: token(nbf=time.time() + 5),
}


@pytest.mark.parametrize("made", GOOD.values(), ids=GOOD)
async def test_good_tokens(made: Callable[[], str], jwks: Path) -> None:
    assert await Tokens(settings(jwks)).principal(made()) == Principal("default", "anna")


def unsigned(algorithm: str = "none", kid: object = "rsa") -> str:
    body = jwt.encode(claims(), None, "none").split(".")[1]
    header = jwt.utils.base64url_encode(json.dumps({"alg": algorithm, "kid": kid}).encode())
    return f"{header.decode()}.{body}."


def signed_with_the_public_key(form: PublicFormat, encoding: Encoding) -> str:
    """The classic: the verifier takes the RSA key for a shared secret."""
    import hashlib
    import hmac

    secret = RSA_KEY.public_key().public_bytes(encoding, form)
    header = jwt.utils.base64url_encode(json.dumps({"alg": "HS256", "kid": "rsa"}).encode())
    said = header + b"." + unsigned().split(".")[1].encode()
    signature = jwt.utils.base64url_encode(hmac.digest(secret, said, hashlib.sha256))
    return (said + b"." + signature).decode()


def with_own_key() -> str:
    header = {"kid": "mine", "jwk": jwk("RS256", OTHER_RSA_KEY), "jku": "https://evil.example"}
    return jwt.encode(claims(), OTHER_RSA_KEY, "RS256", headers=header)


def with_a_flipped_bit() -> str:
    head, body, signature = token().split(".")
    raw = bytearray(jwt.utils.base64url_decode(signature))
    raw[0] ^= 1
    return f"{head}.{body}.{jwt.utils.base64url_encode(bytes(raw)).decode()}"


BAD: dict[str, Callable[[], str]] = {
    "garbage": lambda: "garbage",
    "empty parts": lambda: "..",
    "not ASCII": lambda: "ä.ö.ü",
    "too long": lambda: "a" * 20_000,
    "a deep header": lambda: jwt.utils.base64url_encode(b"[" * 5_000).decode() + ".e30.e30",
    "alg none": unsigned,
    "alg None": lambda: unsigned("None"),
    "alg nOnE": lambda: unsigned("nOnE"),
    "alg of no algorithm": lambda: unsigned("RS1"),
    "HS256 with the public PEM": lambda: signed_with_the_public_key(
        PublicFormat.SubjectPublicKeyInfo, Encoding.PEM
    ),
    "HS256 with the public DER": lambda: signed_with_the_public_key(
        PublicFormat.PKCS1, Encoding.DER
    ),
    "HS256 with a shared key of the set": lambda: token(
        "secret-secret-secret-secret-secret", "HS256", "shared"
    ),
    "another key under a known kid": lambda: token(OTHER_RSA_KEY),
    "a key that encrypts": lambda: token(OTHER_RSA_KEY, kid="for-encryption"),
    "an unknown kid": lambda: token(kid="elsewhere"),
    "a kid of another kind": lambda: token(kid="ec"),
    "a kid that is no text": lambda: unsigned("RS256", 7),
    "no kid, several keys": lambda: token(kid=None),
    "its own key in the header": with_own_key,
    "a flipped bit": with_a_flipped_bit,
    "wrong issuer": lambda: token(iss="https://other.example"),
    "no issuer": lambda: token(iss=None),
    "wrong audience": lambda: token(aud="other"),
    "no audience": lambda: token(aud=None),
    "expired": lambda: token(exp=time.time() - 60),
    "no end": lambda: token(exp=None),
    "not valid yet": lambda: token(nbf=time.time() + 60),
    "no subject": lambda: token(sub=None),
    "an empty subject": lambda: token(sub=""),
    "a subject with NUL": lambda: token(sub="an\x00na"),
    "a subject that is half a character": lambda: token(sub="\ud800"),
    "a subject that is a number": lambda: token(sub=7),
    "a subject that passes for silence": lambda: token(sub="system:expiry"),
    "a subject that passes for an operator": lambda: token(sub="operator:root"),
    "a key's prefix": lambda: "fk_" + token(),
}


@pytest.mark.parametrize("made", BAD.values(), ids=BAD)
async def test_bad_tokens(made: Callable[[], str], jwks: Path) -> None:
    with pytest.raises(Unauthenticated) as refusal:
        await Tokens(settings(jwks)).principal(made())
    assert refusal.value.error_code == "invalid_api_key"
    assert "issuer" not in refusal.value.message


async def test_an_expired_token_is_told_only_after_its_signature(jwks: Path) -> None:
    with pytest.raises(Unauthenticated, match="expired"):
        await Tokens(settings(jwks)).principal(token(exp=1))
    with pytest.raises(Unauthenticated, match="not valid"):
        await Tokens(settings(jwks)).principal(token(OTHER_RSA_KEY, exp=1))


@pytest.mark.parametrize(
    ("named", "said", "expected"),
    [
        ({}, {"roles": ["manager", "clerk"]}, Principal("default", "anna", {"manager", "clerk"})),
        ({}, {"roles": "manager clerk"}, Principal("default", "anna", {"manager", "clerk"})),
        ({}, {"roles": ["manager", 7, None, "a\x00"]}, Principal("default", "anna", {"manager"})),
        ({}, {"roles": {"manager": True}}, Principal("default", "anna")),
        ({}, {"role": ["manager"]}, Principal("default", "anna")),
        (
            {"JWT_ROLES_CLAIM": "realm_access.roles"},
            {"realm_access": {"roles": ["manager"]}},
            Principal("default", "anna", {"manager"}),
        ),
        (
            {"JWT_TENANT_CLAIM": "https://shop.example/tenant", "JWT_SUBJECT_CLAIM": "email"},
            {"https://shop.example/tenant": "shop", "email": "anna@shop.example"},
            Principal("shop", "anna@shop.example"),
        ),
    ],
)
async def test_claims_become_a_principal(
    named: dict[str, str], said: dict[str, Any], expected: Principal, jwks: Path
) -> None:
    got = await Tokens(settings(jwks, **named)).principal(token(**said))
    assert got == Principal(expected.tenant, expected.subject, frozenset(expected.roles))


async def test_a_token_without_its_tenant_is_of_no_tenant(jwks: Path) -> None:
    with pytest.raises(Unauthenticated):
        await Tokens(settings(jwks, JWT_TENANT_CLAIM="tenant")).principal(token())


# --- the issuer's keys -----------------------------------------------------------------------


class Issuer:
    """Answers with `keys`, and counts; None is a 500, a string a redirect to it."""

    def __init__(self) -> None:
        self.keys: Any = KEYS
        self.asked = 0
        self.url = ""


@contextmanager
def issuing() -> Iterator[Issuer]:
    issuer = Issuer()

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            issuer.asked += 1
            body = json.dumps({"keys": issuer.keys}).encode()
            if isinstance(issuer.keys, str):
                self.send_response(302)
                self.send_header("Location", issuer.keys)
            else:
                self.send_response(200 if issuer.keys is not None else 500)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Not on stderr."""

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        issuer.url = f"http://127.0.0.1:{server.server_port}/jwks"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield issuer
        server.shutdown()
        thread.join()


async def test_keys_are_read_once_and_again_for_an_unknown_kid_but_not_at_will() -> None:
    now = 100.0
    with issuing() as issuer:
        keys = KeySet(issuer.url, lambda: now)
        found = await asyncio.gather(*(keys.find("rsa", "RS256") for _ in range(20)))
        assert all(found)
        assert issuer.asked == 1
        for _ in range(20):
            assert await keys.find("new", "RS256") is None
        assert issuer.asked == 1
        issuer.keys = [jwk("RS256", OTHER_RSA_KEY, kid="new")]
        now += KEYS_PAUSE
        assert await keys.find("new", "RS256") is not None
        assert issuer.asked == 2
        assert await keys.find("rsa", "RS256") is None  # withdrawn
        assert issuer.asked == 2


async def test_an_issuer_that_is_away_locks_nobody_out_who_was_known() -> None:
    now = 100.0
    with issuing() as issuer:
        keys = KeySet(issuer.url, lambda: now)
        assert await keys.find("rsa", "RS256") is not None
        for broken in (None, "not keys at all", "https://127.0.0.1:1/elsewhere"):
            issuer.keys = broken
            now += KEYS_FRESH + 1
            assert await keys.find("rsa", "RS256") is not None
        assert issuer.asked == 4


async def test_keys_that_were_never_read_are_a_503() -> None:
    with issuing() as issuer:
        issuer.keys = None
        with pytest.raises(Unavailable):
            await KeySet(issuer.url).find("rsa", "RS256")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"keys": {}}', "\xff"])
def test_a_file_without_keys_stops_the_start(text: str, tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(StartupError, match="FERMATA_JWT_JWKS"):
        KeySet(str(path))


def test_a_file_that_is_missing_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="FERMATA_JWT_JWKS"):
        KeySet(str(tmp_path / "none.json"))


# --- what may not start ----------------------------------------------------------------------

TOKEN_SETTINGS = {
    "FERMATA_JWT_ISSUER": ISSUER,
    "FERMATA_JWT_AUDIENCE": AUDIENCE,
    "FERMATA_JWT_JWKS": "https://issuer.example/jwks",
}


@pytest.mark.parametrize(
    ("environ", "methods"),
    [
        ({}, {"open"}),
        ({"FERMATA_HOST": "localhost"}, {"open"}),
        ({"FERMATA_HOST": "127.8.8.8"}, {"open"}),
        ({"FERMATA_HOST": "::1"}, {"open"}),
        ({"FERMATA_HOST": "0.0.0.0", "FERMATA_AUTH": "open"}, {"open"}),
        ({"FERMATA_HOST": "0.0.0.0", "FERMATA_AUTH": "keys"}, {"keys"}),
        ({"FERMATA_AUTH": " JWT , keys ", **TOKEN_SETTINGS}, {"keys", "jwt"}),
    ],
)
def test_who_may_ask(environ: dict[str, str], methods: set[str]) -> None:
    assert methods_of(Settings.from_env(environ)) == methods


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"FERMATA_HOST": "0.0.0.0"}, "FERMATA_AUTH"),
        ({"FERMATA_HOST": "::"}, "FERMATA_AUTH"),
        ({"FERMATA_HOST": "192.168.1.7"}, "FERMATA_AUTH"),
        ({"FERMATA_HOST": "gateway.example"}, "FERMATA_AUTH"),
        ({"FERMATA_AUTH": "jwt"}, "FERMATA_JWT_ISSUER"),
        ({"FERMATA_AUTH": "jwt", "FERMATA_JWT_ISSUER": ISSUER}, "FERMATA_JWT_AUDIENCE"),
        ({"FERMATA_JWT_JWKS": "keys.json"}, "FERMATA_JWT_JWKS"),
        ({"FERMATA_AUTH": "keys", **TOKEN_SETTINGS}, "does not name jwt"),
    ],
)
def test_what_would_be_open_by_mistake_does_not_start(environ: dict[str, str], named: str) -> None:
    with pytest.raises(StartupError, match=named):
        methods_of(Settings.from_env(environ))


# --- keys ------------------------------------------------------------------------------------


def test_a_key_is_its_own_only() -> None:
    parsed = parse_key(f"fk_{'a' * 16}_{'b' * 64}")
    other = parse_key(f"fk_{'a' * 16}_{'c' * 64}")
    assert parsed is not None
    assert other is not None
    key = ApiKey(parsed[0], "shop", "anna", frozenset(), parsed[1])
    assert is_key(key, parsed[1])
    assert not is_key(key, other[1])
    assert not is_key(None, parsed[1])
    assert not is_key(None, bytes(32))
    assert parsed[1].hex() not in repr(key)


@pytest.mark.parametrize(
    "text",
    ["", "fk_", f"fk_{'a' * 16}", f"fk_{'a' * 16}_{'b' * 63}", f"fk_{'A' * 16}_{'b' * 64}",
     f"fk_{'a' * 16}_{'b' * 64}\n", f" fk_{'a' * 16}_{'b' * 64}", "sk-proj-123"],
)  # fmt: skip
def test_what_is_no_key(text: str) -> None:
    assert parse_key(text) is None


# --- who may answer --------------------------------------------------------------------------

ANNA = Principal("shop", "anna", frozenset({"clerk"}))
BOB = Principal("shop", "bob", frozenset({"manager", "clerk"}))


@pytest.mark.parametrize(
    ("roles", "four_eyes", "principal", "named"),
    [
        ((), False, ANNA, None),
        ((), False, BOB, None),
        ((), True, BOB, None),
        ((), True, ANNA, "second person"),
        (("manager",), False, ANNA, "'manager'"),
        (("manager",), False, BOB, None),
        (("manager", "auditor"), False, ANNA, "'auditor' or 'manager'"),
        (("manager", "auditor"), False, BOB, None),
        (("clerk",), True, ANNA, "second person"),
        (("clerk",), True, BOB, None),
        (("Manager",), False, BOB, "'Manager'"),
    ],
)
def test_who_may_answer_what_anna_asked(
    roles: tuple[str, ...], four_eyes: bool, principal: Principal, named: str | None
) -> None:
    facts: dict[str, Any] = {
        "roles": roles, "four_eyes": four_eyes, "requester": "anna", "principal": principal
    }  # fmt: skip
    assert is_allowed(**facts) == (named is None)
    if named is None:
        may_answer(**facts)
        return
    with pytest.raises(ReviewerNotAllowed) as refusal:
        may_answer(**facts)
    error: FermataError = refusal.value
    assert (error.status, error.error_code, error.retry_after) == (
        403,
        "reviewer_not_allowed",
        None,
    )
    assert named in error.message
    assert "anna" not in error.message
