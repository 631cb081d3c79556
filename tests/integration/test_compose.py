"""compose.yaml against the Compose Specification's schema, and against what it promises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gateway.settings import Settings

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "compose.yaml").read_text())


def gateways(compose: dict[str, Any]) -> dict[str, Any]:
    return {
        name: service
        for name, service in compose["services"].items()
        if service.get("command") == ["fermata", "serve"]
    }


def test_it_is_valid(compose: dict[str, Any]) -> None:
    schema = json.loads((ROOT / "tests" / "compose" / "compose-spec.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.Draft7Validator(schema).validate(compose)


def test_the_schema_would_notice_a_slip(compose: dict[str, Any]) -> None:
    schema = json.loads((ROOT / "tests" / "compose" / "compose-spec.json").read_text())
    wrong = compose | {"services": compose["services"] | {"proxy": {"imagge": "nginx"}}}
    assert list(jsonschema.Draft7Validator(schema).iter_errors(wrong))


def test_its_environment_is_a_valid_start(compose: dict[str, Any]) -> None:
    for service in (*gateways(compose).values(), compose["services"]["migrate"]):
        settings = Settings.from_env(service["environment"])
        assert settings.database_url is not None
        assert settings.host == "0.0.0.0"


def test_two_gateways_wait_for_one_migration_and_that_for_postgresql(
    compose: dict[str, Any],
) -> None:
    services = compose["services"]
    assert len(gateways(compose)) == 2
    for gateway in gateways(compose).values():
        assert gateway["depends_on"]["migrate"]["condition"] == "service_completed_successfully"
        assert any("/readyz" in word for word in gateway["healthcheck"]["test"])
    assert services["migrate"]["command"] == ["fermata", "migrate"]
    assert services["migrate"]["depends_on"]["postgres"]["condition"] == "service_healthy"
    assert services["postgres"]["image"] == "postgres:18"


def test_one_port_leads_to_both_and_never_buffers(compose: dict[str, Any]) -> None:
    published = [name for name, service in compose["services"].items() if "ports" in service]
    assert published == ["proxy"]
    proxy = compose["configs"]["proxy"]["content"]
    for name in gateways(compose):
        assert f"server {name}:8000;" in proxy
    assert "proxy_buffering off;" in proxy


def test_a_stop_leaves_time_for_running_requests(compose: dict[str, Any]) -> None:
    for gateway in gateways(compose).values():
        grace = Settings.from_env(gateway["environment"]).shutdown_grace.total_seconds()
        assert float(gateway["stop_grace_period"].removesuffix("s")) > grace
