"""What is known of a value while a node's source is followed, and how values combine."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from gateway.runs import speech_names as names

NOTHING: frozenset[str] = frozenset()

Kind = Literal[
    "plain", "message", "piece", "list", "update", "model", "known", "writer", "code", "local"
]
CARRIERS: frozenset[Kind] = frozenset({"message", "list", "update"})


@dataclass(frozen=True)
class Value:
    """What is known of a value; `sources` are the spoken messages that it holds."""

    kind: Kind = "plain"
    sources: frozenset[str] = NOTHING
    thing: Any = None


PLAIN = Value()


@dataclass(frozen=True)
class Path:
    """One way through the code so far."""

    env: Mapping[str, Value]
    heard: frozenset[str] = NOTHING

    def bind(self, name: str, value: Value) -> Path:
        return replace(self, env={**self.env, name: value})


def attribute_of(base: Value, attribute: str) -> Value:
    if base.kind != "known" or base.thing is None:
        return PLAIN
    found = inspect.getattr_static(base.thing, attribute, None)
    if inspect.ismodule(base.thing) or isinstance(base.thing, type):
        found = getattr(base.thing, attribute, None)
    elif inspect.isfunction(found):
        found = found.__get__(base.thing)
    elif isinstance(found, (property, staticmethod, classmethod)):
        return PLAIN  # running a property would be running the author's code at start-up
    return Value("known", thing=found) if found is not None else PLAIN


def is_value(thing: object) -> bool:
    """A piece of plain data from the module, such as a list of prompts or a compiled pattern."""
    if inspect.ismodule(thing):
        return False
    module = type(thing).__module__
    return module in {"builtins", "re", "logging", "collections"} and not callable(thing)


def has_source(thing: object) -> bool:
    plain = getattr(thing, "__func__", thing)
    return inspect.isfunction(plain) and not names.is_quiet(thing)


def constructed(thing: Any, arguments: Mapping[str, Value]) -> Value | None:
    """`Command(update=…)`, a typed state, `entrypoint.final(value=…)`: records that carry."""
    name = (getattr(thing, "__module__", ""), getattr(thing, "__qualname__", ""))
    if name == ("langgraph.types", "Command"):
        return PLAIN if "graph" in arguments else arguments.get("update", PLAIN)
    if name == ("langgraph.func", "entrypoint.final"):
        return arguments.get("value", PLAIN)
    if names.is_record(thing) and "messages" in arguments:
        return update_of(arguments["messages"])
    return None


def quiet_result(thing: Any, arguments: Mapping[str, Value]) -> Value:
    origin = (getattr(thing, "__module__", ""), getattr(thing, "__name__", ""))
    if origin == ("typing", "cast"):
        return arguments.get("1", PLAIN)
    if origin == ("langgraph.config", "get_stream_writer"):
        return Value("writer")
    return PLAIN


def update_of(value: Value) -> Value:
    return Value("update", value.sources) if value.kind in {"message", "list"} else PLAIN


def sum_of(first: Value, second: Value) -> Value:
    """`[…] + […]` keeps what both hold; a sum with a message in it is another message."""
    if "list" in {first.kind, second.kind} and {first.kind, second.kind} <= {"list", "plain"}:
        return Value("list", first.sources | second.sources)
    return PLAIN


def common(first: Value, second: Value) -> Value:
    if first.kind == second.kind and first.kind in CARRIERS:
        return Value(first.kind, first.sources & second.sources)
    return PLAIN


def merged(envs: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
    first, *others = envs
    same = {key: value for key, value in first.items() if all(o.get(key) == value for o in others)}
    return {key: same.get(key, PLAIN) for env in envs for key in env}
