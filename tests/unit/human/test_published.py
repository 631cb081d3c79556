"""What a graph publishes: metadata's strings become typed values, or name what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from gateway import Graph, RunSettings, current_settings
from gateway.errors import InvalidRequest, StartupError
from gateway.human.published import PublishedSettings
from gateway.human.run import CurrentRun, enter_run
from gateway.runs.graph import serve_graph
from tests.integration.small_graphs import GRAPHS


class Tone(Enum):
    FORMAL = "formal"
    PLAIN = "plain"


class Shipping(BaseModel):
    country: str


class Everything(BaseModel):
    text: str = "-"
    count: int = Field(1, ge=1, le=9)
    ratio: float = 0.5
    loud: bool = False
    tone: Tone = Tone.PLAIN
    level: Literal[1, 2, 3] = 1
    budget: Decimal = Decimal(0)
    until: date | None = None
    limit: int | None = None
    either: int | str = 0
    tags: list[str] = []
    shipping: Shipping | None = None
    anything: Any = None
    kind: str = Field("a", alias="x-kind")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("text", "12", "12"),
        ("text", "null", "null"),
        ("count", "3", 3),
        ("ratio", "2", 2.0),
        ("loud", "true", True),
        ("loud", "yes", True),
        ("tone", "formal", Tone.FORMAL),
        ("level", "2", 2),
        ("budget", "1.10", Decimal("1.10")),
        ("until", "2026-12-01", date(2026, 12, 1)),
        ("limit", "7", 7),
        ("limit", "null", None),
        ("either", "7", "7"),
        ("tags", '["a", "b"]', ["a", "b"]),
        ("shipping", '{"country": "AT"}', Shipping(country="AT")),
        ("anything", "[1]", "[1]"),
    ],
)
def test_a_text_is_read_as_its_field_says(name: str, text: str, value: object) -> None:
    found = PublishedSettings.of(Everything).parse({name: text})

    assert getattr(found, name) == value
    assert type(getattr(found, name)) is type(value)


def test_fields_go_by_their_aliases_and_other_metadata_is_its_clients_own() -> None:
    found = PublishedSettings.of(Everything).parse({"x-kind": "b", "chat_id": "17"})

    assert found == Everything(**{"x-kind": "b"})


@pytest.mark.parametrize(
    ("metadata", "param", "says"),
    [
        ({"count": "three"}, "metadata.count", "valid integer"),
        ({"count": "10"}, "metadata.count", "less than or equal to 9"),
        ({"loud": "maybe"}, "metadata.loud", "valid boolean"),
        ({"tone": "rude"}, "metadata.tone", "'formal' or 'plain'"),
        ({"tags": "a, b"}, "metadata.tags", "valid list"),
        ({"tags": '["a", 1]'}, "metadata.tags", "(at 1)"),
        ({"shipping": "{}"}, "metadata.shipping", "(at country)"),
        ({"count": "1" * 400}, "metadata.count", ""),
        ({"tags": "[" * 500}, "metadata.tags", "valid list"),
    ],
)
def test_a_wrong_one_names_itself(metadata: dict[str, str], param: str, says: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        PublishedSettings.of(Everything).parse(metadata)

    assert refused.value.param == param
    assert says in refused.value.message
    assert len(refused.value.message.splitlines()) == 1


def test_a_required_one_is_missed_by_its_name() -> None:
    with pytest.raises(InvalidRequest, match=r"Missing required parameter: 'metadata\.country'"):
        PublishedSettings.of(Shipping).parse({})


def test_a_model_may_forbid_what_it_does_not_know() -> None:
    class Strict(BaseModel):
        model_config = ConfigDict(extra="forbid")

    with pytest.raises(InvalidRequest) as refused:
        PublishedSettings.of(Strict).parse({"chat\nid": "17"})

    assert refused.value.param == r"metadata.'chat\nid'"


def test_what_a_validator_says_is_told() -> None:
    class Judged(BaseModel):
        low: int = 0
        high: int = 9

        @field_validator("low")
        @classmethod
        def _even(cls, value: int) -> int:
            if value % 2:
                raise ValueError("even numbers only")
            return value

        @model_validator(mode="after")
        def _ordered(self) -> Judged:
            if self.low > self.high:
                raise ValueError("low is above high")
            return self

    settings = PublishedSettings.of(Judged)
    with pytest.raises(InvalidRequest, match="even numbers only") as one:
        settings.parse({"low": "1"})
    with pytest.raises(InvalidRequest, match="low is above high") as both:
        settings.parse({"low": "10"})

    assert (one.value.param, both.value.param) == ("metadata.low", "metadata")


def _unwritable() -> type[BaseModel]:
    class Unwritable(BaseModel):
        call: Callable[[], int] | None = None

    return Unwritable


def _unreachable() -> type[BaseModel]:
    class Unreachable(BaseModel):
        x: int = Field(0, alias="x" * 65)

    return Unreachable


@pytest.mark.parametrize("model", [dict, Shipping(country="AT"), _unwritable(), _unreachable()])
async def test_what_cannot_be_published_refuses_the_start(model: Any) -> None:
    with pytest.raises(StartupError, match=r"Graph\(settings="):
        await serve_graph("x", Graph(GRAPHS["ask"].graph, settings=model))


def test_outside_of_a_run_a_node_gets_the_defaults() -> None:
    assert current_settings(Everything) == Everything()


async def test_another_graphs_model_is_a_mistake_that_says_so() -> None:
    run = CurrentRun("run_1", "resp_1", "tenant", "subject", RunSettings(), Shipping(country="AT"))
    enter_run(run)

    assert current_settings(Shipping) is run.published
    with pytest.raises(TypeError, match="does not publish Everything"):
        current_settings(Everything)
