"""JSON in and out, for values that other JSON codecs trip over.

Reading keeps integers of any size and lone surrogates, and refuses NaN, Infinity and deep nesting.
Writing is orjson, which is the fastest and the strictest: it raises on lone surrogates, on integers
beyond 64 bits and on 254 levels; those rare values go through the standard library instead, as
pure ASCII. `to_jsonable` turns what a graph author may hold in hands into plain JSON values, or
names the place that JSON cannot hold.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import datetime as dt
import json
import math
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, TypeAlias

import orjson
from pydantic import BaseModel, RootModel
from pydantic_core import PydanticSerializationError, from_json, to_jsonable_python

from gateway.errors import InvalidRequest, RunFailed

Json: TypeAlias = Any
"""None, bool, int, float, str, list of Json or dict of str to Json."""

MAX_DEPTH = 200
"""Levels of nesting that are read; pydantic-core's own limit, applied to both of our readers."""

MAX_OWN_DEPTH = 250
"""Levels of what we wrote ourselves: an event holds what a request may hold, some levels deeper."""

MAX_VALUE_DEPTH = 100
"""Levels of a graph's own value; lower, as each costs Python frames in whatever stack we are in."""


# --- writing ---------------------------------------------------------------------------------


def dumps(value: Json) -> str:
    """Compact JSON text of plain JSON values; NaN must have been refused before (`to_jsonable`)."""
    return _dump(value).decode()


def line(value: Json) -> bytes:
    """JSON that any client reads as one line.

    Some SSE readers split on every line end that Unicode knows, so U+0085, U+2028 and U+2029 leave
    escaped, although JSON would allow them as they are.
    """
    text = _dump(value)
    if text.isascii():
        return text
    return (
        text.replace(b"\xe2\x80\xa8", b"\\u2028")
        .replace(b"\xe2\x80\xa9", b"\\u2029")
        .replace(b"\xc2\x85", b"\\u0085")
    )


def canonical(value: Json) -> bytes:
    """The same bytes for the same value: keys sorted. For fingerprints."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def _dump(value: Json) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # a lone surrogate, an int beyond 64 bits, more than 254 levels
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


# --- reading ---------------------------------------------------------------------------------


def loads(text: bytes | str) -> Json:
    """Read a request body. Raises `InvalidRequest` for anything that is not JSON."""
    try:
        return parse(text)
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise InvalidRequest(
            f"We could not parse the JSON body of your request: {reason}.", code="invalid_json"
        ) from None


def parse(text: bytes | str) -> Json:
    """Read JSON strictly; `ValueError` says what is wrong with it."""
    try:
        value = from_json(text, allow_inf_nan=False, cache_strings="keys")
    except (ValueError, TypeError):  # TypeError: a str with a lone surrogate in it
        value = _parse_slowly(text)
    if _may_overflow(text) and not is_finite(value):
        raise ValueError("a number is beyond what JSON readers can hold")
    return value


def read_back(text: bytes | str) -> Json:
    """Read JSON that we wrote ourselves: it was judged then. A history of 200 turns is read in half
    the time without the search for numbers that overflow."""
    try:
        return from_json(text, cache_strings="keys")
    except (ValueError, TypeError):
        return _parse_slowly(text, MAX_OWN_DEPTH)


def _may_overflow(text: bytes | str) -> bool:
    """`1e400` is read as infinity; only texts that look like it are walked."""
    if isinstance(text, str):
        return _HUGE.search(text) is not None
    return _HUGE_BYTES.search(text) is not None


_HUGE = re.compile(r"\d[eE]\+?\d{3}|\d{300}")
_HUGE_BYTES = re.compile(rb"\d[eE]\+?\d{3}|\d{300}")


def _parse_slowly(text: bytes | str, max_depth: int = MAX_DEPTH) -> Json:
    """What the fast reader refuses: lone surrogates and a byte order mark are fine after all."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    if _deeper_than(value, max_depth):
        raise ValueError("it is nested too deeply")
    return value


def _refuse_constant(name: str) -> Json:
    raise ValueError(f"{name} is not JSON")


def _deeper_than(value: Json, limit: int) -> bool:
    level: list[Json] = [value]
    for _ in range(limit + 1):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return False
    return True


def _children(value: Json) -> Iterable[Json]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def is_finite(value: Json) -> bool:
    """False if a number overflowed while it was read (`1e400`): JSON could not give it back."""
    level: list[Json] = [value]
    while level:
        if any(isinstance(one, float) and not math.isfinite(one) for one in level):
            return False
        level = [child for parent in level for child in _children(parent)]
    return True


# --- Python values ---------------------------------------------------------------------------


def to_jsonable(value: object, path: str = "payload") -> Json:
    """Plain JSON values for anything that has an obvious JSON form.

    Raises `RunFailed` naming the place (`payload.items[3].price is NaN, …`) for what has none: the
    graph wrote it, so the run fails and says where to look.
    """
    return _convert(value, path, ())


def _convert(value: object, path: str, above: tuple[int, ...]) -> Json:
    if value is None or type(value) in (str, bool, int):
        return value
    if isinstance(value, float | Decimal):
        return _number(value, path)
    for kind, convert in _SCALARS:
        if isinstance(value, kind):
            return convert(value)
    if isinstance(value, Enum):
        return _convert(value.value, path, above)
    if isinstance(value, str | int):  # their subclasses, once they are known not to be enums
        return str(value) if isinstance(value, str) else int(value)
    return _convert_container(value, path, _enter(value, path, above))


def _number(value: float | Decimal, path: str) -> float | str:
    """A Decimal becomes text, because a float would change the amount."""
    if not math.isfinite(value):
        name = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        raise RunFailed(f"{path} is {name}, which JSON cannot hold")
    return float(value) if isinstance(value, float) else str(value)


def _enter(value: object, path: str, above: tuple[int, ...]) -> tuple[int, ...]:
    """The ids of the containers on the way here; a value that is among them contains itself."""
    if id(value) in above:
        raise RunFailed(f"{path} contains itself, which JSON cannot hold")
    if len(above) >= MAX_VALUE_DEPTH:
        raise RunFailed(f"{path[:200]}… is nested deeper than {MAX_VALUE_DEPTH} levels")
    return (*above, id(value))


def _convert_container(value: object, path: str, above: tuple[int, ...]) -> Json:
    if isinstance(value, list | tuple):
        return [_convert(one, f"{path}[{n}]", above) for n, one in enumerate(value)]
    if isinstance(value, set | frozenset):
        return sorted((_convert(one, f"{path}[*]", above) for one in value), key=canonical)
    if isinstance(value, RootModel):
        return _convert(value.root, path, above)
    fields = _fields(value)
    return _known_to_pydantic(value, path) if fields is None else _object(fields, path, above)


def _fields(value: object) -> Mapping[Any, object] | None:
    if isinstance(value, Mapping):
        return value
    if isinstance(value, BaseModel):  # not model_dump: so that an error's path names the field
        return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def _known_to_pydantic(value: object, path: str) -> str:
    """URLs, IP addresses, patterns and the like: whatever pydantic writes as text."""
    if not isinstance(value, Iterator):  # it would be consumed
        with contextlib.suppress(PydanticSerializationError):
            text = to_jsonable_python(value)
            if isinstance(text, str):
                return text
    raise RunFailed(f"{path} is a {type(value).__qualname__}, which JSON cannot hold")


def _object(value: Mapping[Any, object], path: str, above: tuple[int, ...]) -> Json:
    converted: dict[str, Json] = {}
    for key, one in value.items():
        name = _key(key, path)
        if name in converted:
            raise RunFailed(f"{path} has two keys that are both {name!r} in JSON")
        converted[name] = _convert(one, f"{path}.{name}", above)
    return converted


def _key(key: object, path: str) -> str:
    if isinstance(key, Enum):
        return _key(key.value, path)
    if isinstance(key, str):
        return str(key)
    if key is None or isinstance(key, bool):
        return json.dumps(key)
    if isinstance(key, float | Decimal):
        return str(_number(key, f"{path} has a key that"))
    if isinstance(key, int):
        return str(key)
    for kind, convert in _SCALARS:
        if isinstance(key, kind):
            return str(convert(key))
    raise RunFailed(f"{path} has a key of type {type(key).__qualname__}, which JSON cannot hold")


def _duration(value: dt.timedelta) -> str:
    """ISO 8601 with days and seconds, the units that mean the same everywhere: `P1DT3600S`."""
    sign = "-" if value < dt.timedelta(0) else ""
    value = abs(value)
    fraction = f".{value.microseconds:06d}".rstrip("0").rstrip(".")
    days = f"{value.days}D" if value.days else ""
    time = f"T{value.seconds}{fraction}S" if value.seconds or fraction or not days else ""
    return f"{sign}P{days}{time}"


def _base64(value: bytes | bytearray | memoryview) -> str:
    return base64.b64encode(value).decode()


_SCALARS: tuple[tuple[type | tuple[type, ...], Callable[[Any], str]], ...] = (
    ((dt.datetime, dt.date, dt.time), lambda value: str(value.isoformat())),
    (dt.timedelta, _duration),
    (uuid.UUID, str),
    ((bytes, bytearray, memoryview), _base64),
    (PurePath, str),
)
