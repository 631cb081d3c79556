from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import StartupError
from gateway.settings import SETTINGS, Settings, parse_duration, parse_size


def test_defaults_without_any_variable() -> None:
    settings = Settings.from_env({"PATH": "/usr/bin"})
    assert settings == Settings(
        host="127.0.0.1",
        port=8000,
        auth=None,
        jwt_issuer=None,
        jwt_audience=None,
        jwt_jwks=None,
        jwt_tenant_claim=None,
        jwt_subject_claim="sub",
        jwt_roles_claim="roles",
        database_url=None,
        database_direct_url=None,
        data_dir=Path(".fermata"),
        graphs="graphs:GRAPHS",
        prepared_statements=False,
        workers=1,
        pool_size=10,
        interrupt_ttl=timedelta(days=7),
        response_retention=timedelta(days=30),
        effect_retention=None,
        event_retention=timedelta(hours=24),
        background_runs=50,
        sweep_interval=timedelta(seconds=60),
        lease_ttl=timedelta(seconds=30),
        max_body_bytes=20 * 2**20,
        task_header=None,
        log_level="info",
        keepalive=timedelta(seconds=15),
        websocket_limit=timedelta(minutes=60),
        shutdown_grace=timedelta(seconds=30),
    )


def test_every_field_has_its_row_and_every_row_its_field() -> None:
    assert [setting.name.lower() for setting in SETTINGS] == [
        field.name for field in fields(Settings)
    ]
    assert all(setting.description.endswith(".") for setting in SETTINGS)


def test_values_are_read() -> None:
    settings = Settings.from_env(
        {
            "FERMATA_HOST": "::",
            "FERMATA_PORT": "0",
            "FERMATA_DATABASE_URL": "postgresql://pooler/fermata",
            "FERMATA_DATABASE_DIRECT_URL": "host=db dbname=fermata",
            "FERMATA_DATA_DIR": "/var/lib/fermata",
            "FERMATA_GRAPHS": "deploy/langgraph.json",
            "FERMATA_POOL_SIZE": "5",
            "FERMATA_INTERRUPT_TTL": "1h30m",
            "FERMATA_MAX_BODY_BYTES": "1MiB",
            "FERMATA_LOG_LEVEL": "WARNING",
        }
    )
    assert settings.host == "::"
    assert settings.port == 0
    assert settings.database_url == "postgresql://pooler/fermata"
    assert settings.database_direct_url == "host=db dbname=fermata"
    assert settings.data_dir == Path("/var/lib/fermata")
    assert settings.graphs == "deploy/langgraph.json"
    assert settings.pool_size == 5
    assert settings.interrupt_ttl == timedelta(minutes=90)
    assert settings.max_body_bytes == 2**20
    assert settings.log_level == "warning"


def test_the_direct_address_is_the_address_unless_said_otherwise() -> None:
    settings = Settings.from_env({"FERMATA_DATABASE_URL": "postgresql://db/fermata"})
    assert settings.database_direct_url == "postgresql://db/fermata"


def test_a_direct_address_alone_is_refused() -> None:
    with pytest.raises(StartupError, match="FERMATA_DATABASE_DIRECT_URL needs"):
        Settings.from_env({"FERMATA_DATABASE_DIRECT_URL": "postgresql://db/fermata"})


def test_an_empty_variable_is_not_set() -> None:
    assert Settings.from_env({"FERMATA_PORT": "", "FERMATA_DATABASE_URL": " "}).port == 8000


def test_settings_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings.from_env({}).port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("FERMATA_PORT", "http", "a whole number from 0 to 65535"),
        ("FERMATA_PORT", "65536", "a whole number from 0 to 65535"),
        ("FERMATA_PORT", "٨", "a whole number from 0 to 65535"),
        ("FERMATA_POOL_SIZE", "0", "a whole number from 1 to 1000"),
        ("FERMATA_POOL_SIZE", "-1", "a whole number from 1 to 1000"),
        ("FERMATA_HOST", "http://localhost", "an address or a host name"),
        ("FERMATA_AUTH", "off", "open, or one or both of keys and jwt"),
        ("FERMATA_AUTH", "open,keys", "open, or one or both of keys and jwt"),
        ("FERMATA_JWT_JWKS", "http://issuer.example/jwks", "https://"),
        ("FERMATA_JWT_JWKS", "file:///etc/jwks", "https://"),
        ("FERMATA_INTERRUPT_TTL", "7", "a duration such as"),
        ("FERMATA_INTERRUPT_TTL", "7 days", "a duration such as"),
        ("FERMATA_LEASE_TTL", "0s", "longer than zero"),
        ("FERMATA_LEASE_TTL", "-30s", "a duration such as"),
        ("FERMATA_RESPONSE_RETENTION", "999999999999d", "at most 36525d"),
        ("FERMATA_MAX_BODY_BYTES", "0", "a number of bytes above zero"),
        ("FERMATA_MAX_BODY_BYTES", "20 bytes", "a number of bytes above zero"),
        ("FERMATA_TASK_HEADER", "x task", "the name of an HTTP header"),
        ("FERMATA_LOG_LEVEL", "verbose", "one of critical, error, warning, info, debug"),
        ("FERMATA_GRAPHS", "graphs/refund.py", "module:NAME"),
        ("FERMATA_DATA_DIR", __file__, "the path of a directory"),
    ],
)
def test_a_bad_value_is_refused_with_its_name_and_what_is_allowed(
    name: str, value: str, allowed: str
) -> None:
    with pytest.raises(StartupError) as refusal:
        Settings.from_env({name: value})
    assert name in str(refusal.value)
    assert repr(value) in str(refusal.value)
    assert allowed in str(refusal.value)


def test_a_bad_database_address_is_not_repeated() -> None:
    with pytest.raises(StartupError) as refusal:
        Settings.from_env({"FERMATA_DATABASE_URL": "mysql://user:secret@db/fermata"})
    assert "FERMATA_DATABASE_URL" in str(refusal.value)
    assert "postgresql://" in str(refusal.value)
    assert "secret" not in str(refusal.value)


def test_a_misspelt_name_is_refused_with_the_right_one() -> None:
    with pytest.raises(StartupError, match=r"FERMATA_INTERUPT_TTL .* mean FERMATA_INTERRUPT_TTL\?"):
        Settings.from_env({"FERMATA_INTERUPT_TTL": "7d"})


def test_an_unknown_name_is_refused_with_all_names() -> None:
    with pytest.raises(StartupError) as refusal:
        Settings.from_env({"FERMATA_XYZZY": "1"})
    assert all(setting.variable in str(refusal.value) for setting in SETTINGS)


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("500ms", timedelta(milliseconds=500)),
        ("90s", timedelta(seconds=90)),
        ("24h", timedelta(hours=24)),
        ("7d", timedelta(days=7)),
        ("1h30m", timedelta(minutes=90)),
        ("1.5h", timedelta(minutes=90)),
        ("1d2h3m4s5ms", timedelta(days=1, hours=2, minutes=3, seconds=4, milliseconds=5)),
    ],
)
def test_durations(text: str, duration: timedelta) -> None:
    assert parse_duration(text) == duration


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("1B", 1), ("500KB", 500_000), ("10MiB", 10 * 2**20), ("1 gib", 2**30)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused_with_a_sentence(text: str) -> None:
    for setting in SETTINGS:
        try:
            Settings.from_env({setting.variable: text})
        except StartupError as refusal:
            assert setting.variable in str(refusal)  # noqa: PT017 (any input: most are fine)
