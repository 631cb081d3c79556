"""Credentials -> Principal, before any route sees the request. Identity never comes from a body.

`Authenticated` stands before the router and lets nothing pass without a principal but the two
health routes, so that a route cannot forget to ask. `principal_of` reads what it found.

Keys cost no round trip a request: what was found is believed for `KEY_FRESH` seconds, which is
also how long a revoked key may still work.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.errors import FermataError, Forbidden, StartupError, Unauthenticated, Unavailable
from gateway.http.envelope import error_response
from gateway.http.state import Authenticator, Gateway
from gateway.http.tokens import INVALID, Tokens
from gateway.runs.principal import ANYBODY, Principal
from gateway.settings import JWT, KEYS, OPEN, Settings, is_loopback
from gateway.store.db import Database
from gateway.store.keys import PREFIX, ApiKey, find_key, is_key, parse_key

logger = logging.getLogger("fermata.auth")

KEY_FRESH: Final = 5.0  # seconds
OPEN_TO_ALL: Final = frozenset(("/healthz", "/readyz"))
_DENIAL: Final = "websocket.http.response"
_PRINCIPAL: Final = "fermata.principal"
_MISSING: Final = "No API key was sent; it belongs in the header 'Authorization: Bearer …'."


def methods_of(settings: Settings) -> frozenset[str]:
    """How this process authenticates. Raises `StartupError` for what would be open by mistake or
    cannot work."""
    methods = settings.auth
    if methods is None:
        if not is_loopback(settings.host):
            raise StartupError(
                f"FERMATA_HOST={settings.host} lets others in, so FERMATA_AUTH must say who may"
                " ask: keys, jwt, or open if everybody may."
            )
        methods = frozenset((OPEN,))
    named = {
        "FERMATA_JWT_ISSUER": settings.jwt_issuer,
        "FERMATA_JWT_AUDIENCE": settings.jwt_audience,
        "FERMATA_JWT_JWKS": settings.jwt_jwks,
    }
    for variable, value in named.items():
        if JWT in methods and value is None:
            raise StartupError(f"FERMATA_AUTH names jwt, which needs {variable}.")
        if JWT not in methods and value is not None:
            raise StartupError(f"{variable} is set, but FERMATA_AUTH does not name jwt.")
    return methods


class Keys:
    """API keys, from PostgreSQL, remembered for a moment."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._known: dict[str, tuple[float, ApiKey]] = {}

    async def principal(self, credentials: str) -> Principal:
        parsed = parse_key(credentials)
        if parsed is None:
            raise Unauthenticated(INVALID)
        id, digest = parsed
        key = await self._find(id)
        if key is None or not is_key(key, digest):
            raise Unauthenticated(INVALID)
        return Principal(key.tenant, key.subject, key.roles)

    async def _find(self, id: str) -> ApiKey | None:
        known = self._known.get(id)
        if known is not None and self._clock() < known[0]:
            return known[1]
        # Counted from before the look: a key that is revoked meanwhile is not believed for longer.
        until = self._clock() + KEY_FRESH
        async with self._database.connection() as conn:
            key = await find_key(conn, id)
        if key is None:
            # Not remembered: made-up ids would fill the memory, and a look at an index is cheap.
            self._known.pop(id, None)
        else:
            self._known[id] = (until, key)
        return key


class Bearer:
    """Credentials of all methods that are on, told apart by the prefix of keys."""

    def __init__(self, keys: Keys | None, tokens: Tokens | None) -> None:
        self._keys = keys
        self._tokens = tokens

    async def principal(self, credentials: str) -> Principal:
        way = self._keys if credentials.startswith(PREFIX) else self._tokens
        if way is None:
            raise Unauthenticated(INVALID)
        return await way.principal(credentials)


def authenticator_of(settings: Settings, database: Database) -> Authenticator | None:
    """What `settings` ask for; None if everybody may ask, which is said in the log."""
    methods = methods_of(settings)
    if OPEN in methods:
        logger.warning(
            "no authentication: whoever reaches %s:%d may start runs, read them and answer their"
            " questions; FERMATA_AUTH changes that",
            settings.host,
            settings.port,
        )
        return None
    keys = Keys(database) if KEYS in methods else None
    return Bearer(keys, Tokens(settings) if JWT in methods else None)


class Authenticated:
    """Plain ASGI, before the router: what is not a health check has a principal or ends here."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan" and scope["path"] not in OPEN_TO_ALL:
            try:
                scope[_PRINCIPAL] = await identified(HTTPConnection(scope))
            except FermataError as error:
                await _refused(error, scope, receive, send)
                return
        await self.app(scope, receive, send)


async def _refused(error: FermataError, scope: Scope, receive: Receive, send: Send) -> None:
    """The envelope, to a handshake as well if the server can."""
    if scope["type"] == "websocket" and _DENIAL not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008, "reason": error.error_code})
        return
    await error_response(error)(scope, receive, send)


async def identified(connection: HTTPConnection) -> Principal:
    """Whose credentials the request, or the handshake, carries.

    Raises `Unauthenticated`; `Forbidden` for a handshake from another site's page where everybody
    may ask: a browser sends it without asking us first, and lets the page read what comes."""
    gateway: Gateway = connection.app.state.gateway
    if gateway.authenticator is None:
        if connection.scope["type"] == "websocket":
            _refuse_other_sites(connection)
        return ANYBODY
    credentials = _bearer(connection)
    if not gateway.migrated:
        raise Unavailable("The database is not ready yet.")
    return await gateway.authenticator.principal(credentials)


def _refuse_other_sites(connection: HTTPConnection) -> None:
    origin = connection.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != connection.headers.get("host"):
        raise Forbidden("A page of another site may not open a connection here.")


def _bearer(connection: HTTPConnection) -> str:
    """What the one Authorization header holds. Raises `Unauthenticated`."""
    sent = connection.headers.getlist("authorization")
    scheme, _, credentials = sent[0].strip().partition(" ") if len(sent) == 1 else ("", "", "")
    if scheme.lower() != "bearer" or not credentials.strip():
        raise Unauthenticated(_MISSING)
    return credentials.strip()


def principal_of(connection: HTTPConnection) -> Principal:
    """Who asks, by the credentials of the request."""
    principal: Principal = connection.scope[_PRINCIPAL]
    return principal
