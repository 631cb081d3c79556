"""The process's settings: read once from `FERMATA_*`, frozen, never looked up again.

`SETTINGS` is the one table of names, defaults and meanings. `Settings.from_env` reads by it, the
command line lists it and `docs/reference/settings.md` is checked against it, so that the three
cannot drift apart.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from gateway.errors import StartupError

PREFIX: Final = "FERMATA_"

OPEN: Final = "open"
KEYS: Final = "keys"
JWT: Final = "jwt"

_DURATION_UNITS: Final[Mapping[str, timedelta]] = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
_DURATION: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")
_DURATION_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
# A century: no wait is longer, and it keeps `now() + interval` far from the end of timestamptz.
_LONGEST: Final = timedelta(days=36525)

_SIZE_UNITS: Final[Mapping[str, int]] = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
}
_SIZE: Final = re.compile(r"(\d+)\s*([KMG]?i?B|)", re.IGNORECASE)

_HEADER: Final = re.compile(r"[A-Za-z0-9-]{1,64}")

_LOG_LEVELS: Final = ("critical", "error", "warning", "info", "debug")
# Tests and wrappers use these beside the settings; they are not the gateway's to read.
_FOREIGN: Final = "FERMATA_TEST_"


def parse_duration(text: str) -> timedelta:
    """`90s`, `24h`, `7d`, `500ms`, `1h30m`; raises ValueError with what is allowed."""
    allowed = "a duration such as 500ms, 90s, 24h, 7d or 1h30m"
    if not _DURATION.fullmatch(text):
        raise ValueError(allowed)
    parts = ((float(number), unit) for number, unit in _DURATION_PART.findall(text))
    try:
        total = sum((number * _DURATION_UNITS[unit] for number, unit in parts), timedelta())
    except OverflowError:
        total = timedelta.max
    if not timedelta() < total <= _LONGEST:
        raise ValueError(f"{allowed}, longer than zero and at most {_LONGEST.days}d")
    return total


def parse_size(text: str) -> int:
    """Bytes: `20971520`, `20MiB` (2**20), `20MB` (10**6); raises ValueError likewise."""
    match = _SIZE.fullmatch(text)
    size = int(match[1]) * _SIZE_UNITS[match[2].upper()] if match else 0
    if size <= 0:
        raise ValueError("a number of bytes above zero, such as 1048576, 10MiB or 500KB")
    return size


def _whole(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        # isascii: int() takes other scripts' digits, underscores and blanks as well.
        if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
            raise ValueError(f"a whole number from {least} to {most}")
        return int(text)

    return parse


def _host(text: str) -> str:
    if not text or any(character.isspace() or character == "/" for character in text):
        raise ValueError("an address or a host name, such as 127.0.0.1, 0.0.0.0 or ::")
    return text


def _dsn(text: str) -> str:
    # Either of libpq's spellings; psycopg judges the rest when it connects.
    if not text.startswith(("postgresql://", "postgres://")) and "=" not in text:
        raise ValueError(
            "a PostgreSQL address, such as postgresql://user:password@host:5432/database"
        )
    return text


def _directory(text: str) -> Path:
    allowed = "the path of a directory (it is created when missing)"
    try:
        path = Path(text).expanduser()
    except RuntimeError:  # the home of a user that does not exist
        raise ValueError(allowed) from None
    if not text or (path.exists() and not path.is_dir()):
        raise ValueError(allowed)
    return path


def _graphs(text: str) -> str:
    module, _, name = text.partition(":")
    is_module = all(part.isidentifier() for part in (*module.split("."), *name.split(".")))
    if not is_module and not text.endswith(".json"):
        raise ValueError("module:NAME of a mapping of graphs, or the path of a langgraph.json")
    return text


def _auth(text: str) -> frozenset[str]:
    ways = frozenset(part.strip().lower() for part in text.split(","))
    if ways != {OPEN} and not ways <= {KEYS, JWT}:
        raise ValueError("open, or one or both of keys and jwt, such as keys,jwt")
    return ways


def _jwks(text: str) -> str:
    if "://" not in text:
        return text
    place = urlsplit(text)
    if place.scheme == "https" or (place.scheme == "http" and is_loopback(place.hostname or "")):
        return text
    # Whoever can change the answer on its way can sign tokens.
    raise ValueError("the path of a file, or an https:// address (http:// on loopback only)")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`; a name other than localhost may be anything."""
    try:
        return host.lower() == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _header(text: str) -> str:
    if not _HEADER.fullmatch(text):
        raise ValueError("the name of an HTTP header, such as X-Fermata-Task")
    return text.lower()


def _log_level(text: str) -> str:
    if text.lower() not in _LOG_LEVELS:
        raise ValueError("one of " + ", ".join(_LOG_LEVELS))
    return text.lower()


def _switch(text: str) -> bool:
    if text.lower() not in ("on", "off"):
        raise ValueError("on or off")
    return text.lower() == "on"


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table: `FERMATA_<name>`, its default as one would write it, what it means."""

    name: str
    default: str | None
    description: str
    parse: Callable[[str], Any]
    secret: bool = False

    @property
    def variable(self) -> str:
        return PREFIX + self.name

    def read(self, environ: Mapping[str, str]) -> Any:
        """The parsed value of this setting, its default when the variable is missing or empty."""
        # An empty variable is how compose files and shells spell "not set".
        text = environ.get(self.variable, "").strip() or self.default
        if text is None:
            return None
        try:
            return self.parse(text)
        except ValueError as error:
            shown = "" if self.secret else f" {text!r}"
            message = f"{self.variable} cannot be{shown or ' what it is'}: it takes {error}."
            raise StartupError(message) from None


SETTINGS: Final[tuple[Setting, ...]] = (
    Setting("HOST", "127.0.0.1", "Address to listen on.", _host),
    Setting("PORT", "8000", "Port to listen on; 0 takes a free one.", _whole(0, 65535)),
    Setting(
        "AUTH",
        None,
        "Who may ask: open (everybody), or keys, jwt or both (keys,jwt). "
        "Unset: open if HOST is loopback; any other HOST is refused.",
        _auth,
    ),
    Setting("JWT_ISSUER", None, "The `iss` that tokens must have; needed for jwt.", str),
    Setting("JWT_AUDIENCE", None, "The `aud` that tokens must have; needed for jwt.", str),
    Setting(
        "JWT_JWKS",
        None,
        "The issuer's public keys: a file, or an https:// address; needed for jwt.",
        _jwks,
    ),
    Setting(
        "JWT_TENANT_CLAIM",
        None,
        "Claim that names the tenant; unset: every token is of the tenant default.",
        str,
    ),
    Setting("JWT_SUBJECT_CLAIM", "sub", "Claim that names the subject.", str),
    Setting(
        "JWT_ROLES_CLAIM",
        "roles",
        "Claim that lists the roles; realm_access.roles looks inside an object.",
        str,
    ),
    Setting(
        "DATABASE_URL",
        None,
        "PostgreSQL to use. Not set: an embedded PostgreSQL in FERMATA_DATA_DIR.",
        _dsn,
        secret=True,
    ),
    Setting(
        "DATABASE_DIRECT_URL",
        None,
        "The same database without a pooler in front, for migrations. "
        "Not set: FERMATA_DATABASE_URL.",
        _dsn,
        secret=True,
    ),
    Setting("DATA_DIR", ".fermata", "Where the embedded PostgreSQL keeps its files.", _directory),
    Setting(
        "GRAPHS",
        "graphs:GRAPHS",
        "What to serve: module:NAME of a mapping of model names to graphs, or the path of a "
        "langgraph.json.",
        _graphs,
    ),
    Setting(
        "PREPARED_STATEMENTS",
        "off",
        "on, off: prepare statements on the server. Only without a transaction-mode pooler in "
        "front; the embedded PostgreSQL always does.",
        _switch,
    ),
    Setting("WORKERS", "1", "Processes that serve the port.", _whole(1, 64)),
    Setting("POOL_SIZE", "10", "Most connections to PostgreSQL per process.", _whole(1, 1000)),
    Setting(
        "INTERRUPT_TTL",
        "7d",
        "How long a question stays open; then its run expires.",
        parse_duration,
    ),
    Setting(
        "RESPONSE_RETENTION",
        "30d",
        "How long a finished response can be retrieved and continued.",
        parse_duration,
    ),
    Setting(
        "EFFECT_RETENTION",
        None,
        "How long the record of a settled effect is kept. Not set: for ever. A key that is "
        "deleted can happen again.",
        parse_duration,
    ),
    Setting(
        "EVENT_RETENTION",
        "24h",
        "How long the stream of a background response can be rejoined after its end.",
        parse_duration,
    ),
    Setting(
        "BACKGROUND_RUNS",
        "50",
        "Most background responses that a process runs at a time; 0: none, workers run them.",
        _whole(0, 10_000),
    ),
    Setting("SWEEP_INTERVAL", "60s", "How often what has expired is looked for.", parse_duration),
    Setting(
        "LEASE_TTL",
        "30s",
        "How long a silent process keeps its runs before another takes them over.",
        parse_duration,
    ),
    Setting(
        "MAX_BODY_BYTES",
        "20MiB",
        "Longest request body, in bytes or as 10MiB; a longer one gets 413.",
        parse_size,
    ),
    Setting(
        "TASK_HEADER",
        None,
        "Request header by which a chat front end names its own tasks (titles, tags, follow-ups), "
        "which never start a run; empty in real turns.",
        _header,
    ),
    Setting(
        "LOG_LEVEL", "info", "Least severe log line: " + ", ".join(_LOG_LEVELS) + ".", _log_level
    ),
    Setting(
        "KEEPALIVE",
        "15s",
        "Silence on a stream after which a comment is sent, so that proxies keep it open.",
        parse_duration,
    ),
    Setting(
        "WEBSOCKET_LIMIT",
        "60m",
        "How long a WebSocket may stay open; then its client is asked to open a new one.",
        parse_duration,
    ),
    Setting(
        "SHUTDOWN_GRACE",
        "30s",
        "How long running requests may finish after SIGTERM.",
        parse_duration,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings, parsed. Field names are the table's names in lower case."""

    host: str
    port: int
    auth: frozenset[str] | None
    jwt_issuer: str | None
    jwt_audience: str | None
    jwt_jwks: str | None
    jwt_tenant_claim: str | None
    jwt_subject_claim: str
    jwt_roles_claim: str
    database_url: str | None
    database_direct_url: str | None
    data_dir: Path
    graphs: str
    prepared_statements: bool
    workers: int
    pool_size: int
    interrupt_ttl: timedelta
    response_retention: timedelta
    effect_retention: timedelta | None
    event_retention: timedelta
    background_runs: int
    sweep_interval: timedelta
    lease_ttl: timedelta
    max_body_bytes: int
    task_header: str | None
    log_level: str
    keepalive: timedelta
    websocket_limit: timedelta
    shutdown_grace: timedelta

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Settings:
        """Reads every `FERMATA_*` of `environ`.

        Raises StartupError for a value that is not allowed and for a name that is not in the table:
        a misspelt setting would otherwise be ignored in silence.
        """
        _refuse_unknown(environ)
        values = {setting.name.lower(): setting.read(environ) for setting in SETTINGS}
        if values["database_direct_url"] is None:
            values["database_direct_url"] = values["database_url"]
        elif values["database_url"] is None:
            raise StartupError(
                "FERMATA_DATABASE_DIRECT_URL needs FERMATA_DATABASE_URL: "
                "without it the embedded PostgreSQL is used, which has no pooler."
            )
        return cls(**values)


def _refuse_unknown(environ: Mapping[str, str]) -> None:
    known = {setting.name: setting.variable for setting in SETTINGS}
    for variable in sorted(environ):
        name = variable.removeprefix(PREFIX)
        if name == variable or name in known or variable.startswith(_FOREIGN):
            continue
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {known[close[0]]}?" if close else f"known are {_listed(known)}."
        raise StartupError(f"{variable} is not a setting: {hint}")


def _listed(known: Mapping[str, str]) -> str:
    return ", ".join(known.values())
