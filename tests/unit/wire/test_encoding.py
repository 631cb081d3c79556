"""JSON in and out, with the values of C15 and the broken bodies of C40."""

from __future__ import annotations

import dataclasses
import datetime as dt
import ipaddress
import json
import re
import uuid
from collections import OrderedDict, namedtuple
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import PurePosixPath
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from pydantic import BaseModel, RootModel

from gateway.errors import InvalidRequest, RunFailed
from gateway.wire.encoding import MAX_DEPTH, canonical, dumps, is_finite, line, loads, to_jsonable


class Colour(Enum):
    RED = "red"
    PAIR = (1, Decimal("2.50"))


class Level(IntEnum):
    HIGH = 3


class Word(StrEnum):
    YES = "yes"


class Text(str):
    __slots__ = ()


@dataclasses.dataclass
class Order:
    id: str
    amount: Decimal


class Item(BaseModel):
    name: str
    price: Decimal
    when: dt.date


class Names(RootModel[list[str]]):
    pass


Point = namedtuple("Point", "x y")

PLAIN: list[tuple[object, Any]] = [
    (None, None),
    (True, True),
    (2**70, 2**70),
    (1.5, 1.5),
    ("grüß \ud800", "grüß \ud800"),
    (Text("sub"), "sub"),
    (Decimal("49.90"), "49.90"),
    (dt.datetime(2026, 12, 1, 9, tzinfo=dt.UTC), "2026-12-01T09:00:00+00:00"),
    (dt.date(2026, 12, 1), "2026-12-01"),
    (dt.time(9, 30), "09:30:00"),
    (dt.timedelta(0), "PT0S"),
    (dt.timedelta(days=2), "P2D"),
    (dt.timedelta(days=1, seconds=3600, milliseconds=500), "P1DT3600.5S"),
    (dt.timedelta(seconds=-90), "-PT90S"),
    (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (b"\x00\xff", "AP8="),
    (bytearray(b"a"), "YQ=="),
    (Colour.RED, "red"),
    (Colour.PAIR, [1, "2.50"]),
    (Level.HIGH, 3),
    (Word.YES, "yes"),
    (PurePosixPath("/a/b"), "/a/b"),
    (ipaddress.ip_address("10.0.0.1"), "10.0.0.1"),
    ((1, (2,)), [1, [2]]),
    (Point(1, Decimal(2)), [1, "2"]),
    ({3, 1, 2}, [1, 2, 3]),
    pytest.param(frozenset({"b", "a"}), ["a", "b"], id="frozenset of texts"),
    (OrderedDict(a=1), {"a": 1}),
    (Order("A", Decimal(1)), {"id": "A", "amount": "1"}),
    (
        Item(name="x", price=Decimal("1.10"), when=dt.date(2026, 1, 2)),
        {"name": "x", "price": "1.10", "when": "2026-01-02"},
    ),
    (Names(["a"]), ["a"]),
    (
        {1: "a", 2.5: "b", False: "c", None: "d", Colour.RED: "e", uuid.UUID(int=1): "f"},
        {
            "1": "a",
            "2.5": "b",
            "false": "c",
            "null": "d",
            "red": "e",
            "00000000-0000-0000-0000-000000000001": "f",
        },
    ),
    ({dt.date(2026, 1, 2): Decimal(1)}, {"2026-01-02": "1"}),
]


@pytest.mark.parametrize(("value", "expected"), PLAIN, ids=lambda value: repr(value)[:40])
def test_C15_values_become_plain_json(value: object, expected: Any) -> None:
    converted = to_jsonable(value)
    assert converted == expected
    assert json.loads(dumps(converted)) == expected


def test_messages_of_langchain_become_objects() -> None:
    converted = to_jsonable({"messages": [HumanMessage("hi", id="1")]})
    message = converted["messages"][0]
    assert (message["type"], message["content"], message["id"]) == ("human", "hi", "1")


def _cycle() -> dict[str, Any]:
    cycle: dict[str, Any] = {"a": []}
    cycle["a"].append(cycle)
    return cycle


def _deep() -> list[Any]:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    return deep


REFUSED: list[tuple[object, str]] = [
    ({"items": [0, 1, 2, {"price": float("nan")}]}, "payload.items[3].price is NaN,"),
    ([float("inf")], "payload[0] is Infinity,"),
    (float("-inf"), "payload is -Infinity,"),
    ([Decimal("NaN")], "payload[0] is NaN,"),
    ([Decimal("-Infinity")], "payload[0] is -Infinity,"),
    ({"f": lambda: None}, "payload.f is a function,"),
    ([object()], "payload[0] is a object,"),
    ({"t": int}, "payload.t is a type,"),
    ((n for n in "ab"), "payload is a generator,"),
    (Order("A", Decimal("nan")), "payload.amount is NaN,"),
    (_cycle(), "payload.a[0] contains itself,"),
    ({(1, 2): 3}, "payload has a key of type tuple,"),
    ({float("nan"): 3}, "payload has a key that is NaN,"),
    ({1: "a", "1": "b"}, "payload has two keys that are both '1' in JSON"),
    (_deep(), "is nested deeper than 100 levels"),
]


@pytest.mark.parametrize(("value", "message"), REFUSED, ids=[one[1] for one in REFUSED])
def test_C15_what_json_cannot_hold_is_named(value: object, message: str) -> None:
    with pytest.raises(RunFailed, match=re.escape(message)):
        to_jsonable(value)


def test_a_value_that_stands_in_two_places_is_no_cycle() -> None:
    shared = {"a": 1}
    assert to_jsonable([shared, shared]) == [{"a": 1}, {"a": 1}]


def test_sets_are_ordered_whatever_their_hashes() -> None:
    assert to_jsonable({"b", 1, None, "a"}) == ["a", "b", 1, None]


@pytest.mark.parametrize("value", ["\ud800", 2**70, -(2**200), {"a": "\udc00"}])
def test_values_that_orjson_refuses_survive_a_round_trip(value: Any) -> None:
    assert loads(dumps(value)) == value
    assert loads(canonical({"k": value})) == {"k": value}


def test_lines_hold_no_line_end_of_unicode() -> None:
    text = "a\u2028b\u2029c\u0085d\r\n\v\f\x1c\x1d\x1e e"
    rendered = line({"text": text}).decode()
    assert len(rendered.splitlines()) == 1
    assert json.loads(rendered) == {"text": text}


def test_deep_values_are_written() -> None:
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    assert dumps(deep) == "[" * 300 + "1" + "]" * 300


BROKEN = [
    b"",
    b"{",
    b'{"a":1,}',
    b"nope",
    b"NaN",
    b'{"a":Infinity}',
    b'{"a":-Infinity,"b":"\\ud800"}',
    b"\xff\xfe",
    b'{"a":"\xff"}',
    b"[" * 100_000,
    b"[" * (MAX_DEPTH + 5) + b"]" * (MAX_DEPTH + 5),
    b'["\\ud800",' + b"[" * 500 + b"]" * 500 + b"]",
    b"9" * 5000,
    b'"a\nb"',
]


@pytest.mark.parametrize("body", BROKEN, ids=lambda body: repr(body)[:40])
def test_C40_broken_bodies_are_the_clients_mistake(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        loads(body)
    assert caught.value.error_code == "invalid_json"
    assert len(caught.value.message.splitlines()) == 1
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'\xef\xbb\xbf{"a":1}', {"a": 1}),
        (b'{"a":1180591620717411303424}', {"a": 2**70}),
        (b'["\\ud800"]', ["\ud800"]),
        (b'"\\ud83d\\ude00"', "😀"),
        ("[1.0]", [1.0]),
        (b"[" * MAX_DEPTH + b"]" * MAX_DEPTH, None),
    ],
)
def test_unusual_bodies_are_read(text: bytes | str, value: Any) -> None:
    assert value is None or loads(text) == value
    loads(text)


def test_overflowed_numbers_are_noticed() -> None:
    assert is_finite(loads('{"a":[1.5,2]}'))
    for text in ('{"a":[1e400]}', "[-1E+999]", "[1" + "0" * 400 + ".0]"):
        with pytest.raises(InvalidRequest, match="beyond"):
            loads(text)
    assert not is_finite([float("inf")])
