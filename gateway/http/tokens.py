"""JWTs -> Principal: signed by the issuer's published keys, for this audience, not over.

What a token says about its own key is never believed: the algorithms are a fixed list of asymmetric
ones (no `none`, no HS* that would take a public key for a shared secret), the key is looked up by
`kid` among the issuer's keys alone (no `jku`, `x5u` or embedded `jwk`), and a key that names its
algorithm is used with no other.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import jwt

from gateway.errors import StartupError, Unauthenticated, Unavailable
from gateway.runs.principal import ANYBODY, RESERVED, Principal
from gateway.settings import Settings

logger = logging.getLogger("fermata.auth")

ALGORITHMS: Final = frozenset(
    ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
)
LEEWAY: Final = 30.0  # seconds by which the issuer's clock and ours may differ
KEYS_FRESH: Final = 600.0  # seconds after which the issuer's keys are read again
KEYS_PAUSE: Final = 10.0  # least seconds between two readings, whatever unknown `kid`s come
FETCH_TIMEOUT: Final = 5.0  # seconds
LONGEST: Final = 16 * 1024
LARGEST_SET: Final = 1024 * 1024

INVALID: Final = "The API key or token is not valid."


class KeySet:
    """The issuer's public keys, from a file or an address; read when needed, kept when that
    fails."""

    def __init__(self, place: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._place = place
        self._clock = clock
        self._reading = asyncio.Lock()
        self._keys: list[Mapping[str, Any]] | None = None
        self._made: dict[tuple[int, str], jwt.PyJWK] = {}
        self._read_at = 0.0
        self._tried_at: float | None = None
        if "://" not in place:
            try:
                self._take(_public_keys(Path(place).read_bytes()))
            except (OSError, ValueError) as error:
                raise StartupError(
                    f"FERMATA_JWT_JWKS: {place} has no keys to read: {error}"
                ) from None

    async def find(self, kid: str | None, algorithm: str) -> jwt.PyJWK | None:
        """The key of this id, for this algorithm; None if the issuer has none.

        Raises `Unavailable` while the keys have never been read.
        """
        if self._keys is None or self._clock() - self._read_at > KEYS_FRESH:
            await self._read()
        found = self._among(kid, algorithm)
        if found is None and await self._read():
            found = self._among(kid, algorithm)
        if self._keys is None:
            raise Unavailable("The issuer's keys cannot be read; try again shortly.")
        return found

    def _among(self, kid: str | None, algorithm: str) -> jwt.PyJWK | None:
        keys = [(n, key) for n, key in enumerate(self._keys or ()) if _fits(key, kid, algorithm)]
        if len(keys) != 1:  # none; or a token without `kid`, which names none of several
            return None
        number, key = keys[0]
        try:
            return self._made.setdefault((number, algorithm), jwt.PyJWK(dict(key), algorithm))
        except (jwt.InvalidKeyError, jwt.PyJWKError):
            return None  # a key of another kind than the algorithm's

    async def _read(self) -> bool:
        """Read the keys, unless that was tried a moment ago; whether they are new."""
        async with self._reading:
            if self._tried_at is not None and self._clock() - self._tried_at < KEYS_PAUSE:
                return False
            self._tried_at = self._clock()
            try:
                self._take(_public_keys(await asyncio.to_thread(_fetch, self._place)))
            except (OSError, ValueError, http.client.HTTPException) as error:
                # The old keys stay: an issuer that is away for a moment locks nobody out.
                logger.warning("the keys at %s cannot be read: %s", self._place, error)
                return False
            return True

    def _take(self, keys: list[Mapping[str, Any]]) -> None:
        self._keys = keys
        self._made.clear()
        self._read_at = self._tried_at = self._clock()


class Tokens:
    """Reads tokens by the settings; `settings` must have issuer, audience and keys."""

    def __init__(self, settings: Settings) -> None:
        assert settings.jwt_jwks is not None  # `methods_of` made sure
        self._issuer = settings.jwt_issuer
        self._audience = settings.jwt_audience
        self._tenant = settings.jwt_tenant_claim
        self._subject = settings.jwt_subject_claim
        self._roles = settings.jwt_roles_claim
        self._keys = KeySet(settings.jwt_jwks)

    async def principal(self, token: str) -> Principal:
        """Whose token it is. Raises `Unauthenticated`."""
        try:
            claims = await self._claims(token)
        except jwt.ExpiredSignatureError:
            raise Unauthenticated("The token has expired.") from None
        except (jwt.PyJWTError, ValueError, RecursionError) as error:
            logger.info("a token was refused: %s", error)
            raise Unauthenticated(INVALID) from None
        return self._mapped(claims)

    async def _claims(self, token: str) -> Mapping[str, Any]:
        if len(token) > LONGEST:
            raise ValueError("it is too long")
        header = jwt.get_unverified_header(token)
        algorithm, kid = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise ValueError("its algorithm is not allowed")
        key = await self._keys.find(kid, algorithm)
        if key is None:
            raise ValueError("the issuer has no such key")
        claims: Mapping[str, Any] = jwt.decode(
            token,
            key,
            algorithms=[algorithm],
            audience=self._audience,
            issuer=self._issuer,
            leeway=LEEWAY,
            options={"require": ["exp", "iss", "aud"]},
        )
        return claims

    def _mapped(self, claims: Mapping[str, Any]) -> Principal:
        tenant = ANYBODY.tenant if self._tenant is None else _claim(claims, self._tenant)
        subject = _claim(claims, self._subject)
        if not is_name(tenant) or not is_subject(subject):
            logger.info("a token was refused: it names no tenant, or no subject that can be one")
            raise Unauthenticated(INVALID)
        return Principal(str(tenant), str(subject), _role_names(_claim(claims, self._roles)))


def is_name(value: object) -> bool:
    """Whether it can name a tenant, a subject or a role: text that PostgreSQL can be asked for."""
    return isinstance(value, str) and 0 < len(value) <= 256 and value.isprintable()


def is_subject(value: object) -> bool:
    """Whether it can name a person or a program: not one of the audit's own actors."""
    return is_name(value) and not str(value).startswith(RESERVED)


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """A claim by its name, or else by its path; namespaced names have dots of their own."""
    if name in claims:
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _role_names(claimed: object) -> frozenset[str]:
    """A list, or names with blanks between, as `scope` has them. Anything else gives no role."""
    names = claimed.split() if isinstance(claimed, str) else claimed
    return frozenset(filter(is_name, names)) if isinstance(names, list) else frozenset()


def _fits(key: Mapping[str, Any], kid: str | None, algorithm: str) -> bool:
    return (kid is None or key.get("kid") == kid) and key.get("alg", algorithm) == algorithm


def _public_keys(text: bytes) -> list[Mapping[str, Any]]:
    """The keys that sign. Raises ValueError if this is no key set."""
    found = json.loads(text)
    keys = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(keys, list):
        raise ValueError('no JSON object with "keys"')  # noqa: TRY004  # about text, not a type
    return [
        key
        for key in keys
        if isinstance(key, dict)
        and key.get("kty") in ("RSA", "EC", "OKP")
        and key.get("use", "sig") == "sig"
    ]


class _StayHere(urllib.request.HTTPRedirectHandler):
    """The address in the settings is the one that is trusted; it leads nowhere else."""

    def redirect_request(self, *_: object, **__: object) -> None:
        return None


def _fetch(place: str) -> bytes:
    """Blocking; for a thread."""
    if "://" not in place:
        return Path(place).read_bytes()
    opener = urllib.request.build_opener(_StayHere)
    with opener.open(place, timeout=FETCH_TIMEOUT) as answer:
        text: bytes = answer.read(LARGEST_SET + 1)
    if len(text) > LARGEST_SET:
        raise ValueError("it is too long")
    return text
