"""JSON Schema for what people answer: the only caller of `jsonschema`.

A schema comes from a graph's author, a value from whoever answers. Nothing is ever fetched: a
schema that refers to another document is refused when the question is made. `format` is checked
where the standard library can (`date`, `uuid`, `ipv4`, `email`…), and an annotation elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jsonschema import SchemaError  # type: ignore[import-untyped]  # it ships no types
from jsonschema.validators import validator_for  # type: ignore[import-untyped]  # as above
from referencing.exceptions import Unresolvable
from referencing.jsonschema import EMPTY_REGISTRY

from gateway.errors import RunFailed
from gateway.wire.encoding import Json

Schema = Mapping[str, Json]


def checked(schema: Schema, whose: str) -> Schema:
    """The schema itself. Raises `RunFailed` if it is none, or needs another document."""
    elsewhere = next(_references_elsewhere(schema), None)
    if elsewhere is not None:
        raise RunFailed(f"{whose}: its schema refers to {elsewhere!r}, which is never fetched.")
    try:
        validator_for(schema).check_schema(schema)
    except (SchemaError, RecursionError) as error:
        reason = getattr(error, "message", "it is nested too deeply")
        raise RunFailed(f"{whose}: its schema is not JSON Schema: {reason[:200]}") from None
    return schema


def misfit(value: Json, schema: Schema, place: str = "value") -> str | None:
    """What is wrong with `value`, in one line that names the place; None if it fits."""
    kind = validator_for(schema)
    validator = kind(schema, registry=EMPTY_REGISTRY, format_checker=kind.FORMAT_CHECKER)
    try:
        error = _deepest(validator.iter_errors(value))
    except RecursionError:
        return f"{place} is nested too deeply for its schema"
    except ArithmeticError:
        return f"{place} has a number that its schema cannot judge"
    except Unresolvable:
        return f"{place} cannot be judged: the question's schema refers to what it does not define"
    if error is None:
        return None
    return f"{_path(place, error.absolute_path)}: {_reason(error)}"


def _deepest(errors: Iterable[Any]) -> Any:
    """Of the alternatives that all failed, the error that got furthest says most."""
    error = next(iter(errors), None)
    while error is not None and error.context:
        error = max(error.context, key=lambda one: len(one.absolute_path))
    return error


def _path(place: str, steps: Iterable[str | int]) -> str:
    return place + "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in steps)


def _reason(error: Any) -> str:
    """The library's message quotes the whole value; people's answers may be long."""
    line = " ".join(str(error.message).split())
    if len(line) <= 160:
        return line
    return f"it does not fit {error.validator!r}: {str(error.validator_value)[:80]}"


def _references_elsewhere(schema: Json) -> Iterator[str]:
    """The targets of its references that are not in itself."""
    level = [schema]
    while level:
        nodes = [node for node in level if isinstance(node, Mapping)]
        for node in nodes:
            for word in ("$ref", "$dynamicRef", "$recursiveRef"):
                target = node.get(word)
                if isinstance(target, str) and not target.startswith("#"):
                    yield target
        lists = [one for one in level if isinstance(one, list)]
        level = [child for node in nodes for child in node.values()]
        level += [child for one in lists for child in one]
