"""Readers of JSON values: each takes a value and its path, gives the typed value or raises.

The error names one parameter, in one line, as OpenAI's does: `input[3].content[0].type`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, TypeVar

from gateway.errors import InvalidRequest
from gateway.wire.encoding import Json, loads

T = TypeVar("T")
Check = Callable[[Json, str], T]
"""`check(value, path)`; never called with a missing value."""

_NAMES = {str: "a string", bool: "a boolean", int: "an integer", float: "a number"}
_NAMES |= {dict: "an object", list: "an array", type(None): "null"}

_FUNCTION_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def body(sent: bytes | str | dict[str, Json]) -> dict[str, Json]:
    """The object that a request's body is. Raises `InvalidRequest` for all else."""
    fields = sent if isinstance(sent, dict) else loads(sent)
    if not isinstance(fields, dict):
        raise InvalidRequest("The body must be a JSON object.", code="invalid_type")
    return fields


def by_table(
    fields: Mapping[str, Json], table: Mapping[str, Check[Any]]
) -> tuple[dict[str, Any], dict[str, Json]]:
    """The values of the fields that the table reads, and the fields that it does not know, as they
    are; null is as if it had not been sent."""
    values: dict[str, Any] = {}
    extra: dict[str, Json] = {}
    for key, value in fields.items():
        if value is None:
            continue
        check = table.get(key)
        if check is None:
            extra[key] = value
        else:
            values[key] = check(value, key)
    return values, extra


def refuse(path: str, message: str, code: str = "invalid_value") -> NoReturn:
    """Raises `InvalidRequest` with `path` as the parameter."""
    raise InvalidRequest(message, param=path, code=code)


def wrong_type(value: Json, path: str, wanted: str) -> NoReturn:
    got = _NAMES.get(type(value), "something else")
    refuse(path, f"Invalid type for '{path}': expected {wanted}, but got {got}.", "invalid_type")


def missing(path: str) -> NoReturn:
    refuse(path, f"Missing required parameter: '{path}'.", "missing_required_parameter")


def unknown(value: str, path: str, allowed: Iterable[str]) -> InvalidRequest:
    """The refusal of a word that is not one of `allowed`, for the caller to raise."""
    names = ", ".join(f"'{name}'" for name in allowed)
    message = f"Invalid value: {shown(value)}. Supported values are: {names}."
    return InvalidRequest(message, param=path, code="invalid_value")


def shown(value: str) -> str:
    """A client's own text inside our message: quoted, short, in one line."""
    text = value if len(value) <= 64 else value[:63] + "…"
    return "'" + text.encode("unicode_escape").decode("ascii") + "'"


def string(value: Json, path: str) -> str:
    if not isinstance(value, str):
        wrong_type(value, path, "a string")
    return value


def boolean(value: Json, path: str) -> bool:
    if not isinstance(value, bool):
        wrong_type(value, path, "a boolean")
    return value


def mapping(value: Json, path: str) -> dict[str, Json]:
    if not isinstance(value, dict):
        wrong_type(value, path, "an object")
    return value


def array(value: Json, path: str) -> list[Json]:
    if not isinstance(value, list):
        wrong_type(value, path, "an array")
    return value


def anything(value: Json, path: str) -> Json:
    return value


def text_of(low: int, high: int) -> Check[str]:
    """A string of at least `low` and at most `high` characters."""

    def check(value: Json, path: str) -> str:
        text = string(value, path)
        if len(text) < low:
            refuse(path, f"Invalid '{path}': it is empty.", "empty_string")
        if len(text) > high:
            message = f"Invalid '{path}': it has {len(text)} characters, the most is {high}."
            refuse(path, message, "string_above_max_length")
        return text

    return check


def integer(low: int, high: int | None = None) -> Check[int]:
    """A whole number from `low` to `high`; `true` is none, though Python's bool is an int."""

    def check(value: Json, path: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            wrong_type(value, path, "an integer")
        _bounded(value, path, low, high, "integer")
        return value

    return check


def number(low: float, high: float) -> Check[float]:
    """Any number from `low` to `high`."""

    def check(value: Json, path: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            wrong_type(value, path, "a number")
        _bounded(value, path, low, high, "decimal")
        return float(value)

    return check


def _bounded(value: float, path: str, low: float, high: float | None, kind: str) -> None:
    if value < low:
        refuse(path, f"Invalid '{path}': the least is {low}.", f"{kind}_below_min_value")
    if high is not None and value > high:
        refuse(path, f"Invalid '{path}': the most is {high}.", f"{kind}_above_max_value")


def one_of(*allowed: str) -> Check[str]:
    """One of these words."""

    def check(value: Json, path: str) -> str:
        text = string(value, path)
        if text not in allowed:
            raise unknown(text, path, allowed)
        return text

    return check


def function_name(value: Json, path: str) -> str:
    """A name that OpenAI takes for a function: 1 to 64 letters, digits, `_` or `-`."""
    text = string(value, path)
    if not _FUNCTION_NAME.fullmatch(text):
        message = f"Invalid '{path}': {shown(text)} is not 1 to 64 letters, digits, '_' or '-'."
        refuse(path, message)
    return text


def is_function_name(text: str) -> bool:
    """`function_name` as a question."""
    return _FUNCTION_NAME.fullmatch(text) is not None


def required(fields: Mapping[str, Json], key: str, path: str, check: Check[T]) -> T:
    """The field's value; a field that is not there is `missing`, null is judged by the check."""
    where = f"{path}.{key}" if path else key
    if key not in fields:
        missing(where)
    return check(fields[key], where)


def optional(fields: Mapping[str, Json], key: str, path: str, check: Check[T]) -> T | None:
    """The field's value, or None if it is missing or null."""
    value: Any = fields.get(key)
    return None if value is None else check(value, f"{path}.{key}" if path else key)
