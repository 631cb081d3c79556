"""Words to write JSON Schema with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

Schema: TypeAlias = dict[str, Any]

STRING: Schema = {"type": "string"}
BOOLEAN: Schema = {"type": "boolean"}
INTEGER: Schema = {"type": "integer"}
OBJECT: Schema = {"type": "object"}
ANYTHING: Schema = {}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def text(low: int = 0, high: int | None = None) -> Schema:
    """A string of `low` to `high` characters."""
    most = {} if high is None else {"maxLength": high}
    return {"type": "string", **({"minLength": low} if low else {}), **most}


def whole(low: int, high: int | None = None) -> Schema:
    return {"type": "integer", "minimum": low, **({} if high is None else {"maximum": high})}


def number(low: float, high: float) -> Schema:
    return {"type": "number", "minimum": low, "maximum": high}


def one_of(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


def array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def record(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """An object with these fields; others may stand beside them."""
    fields = {**required, **(optional or {})}
    return {"type": "object", "required": list(required), "properties": fields}


def sendable(
    required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None
) -> Schema:
    """An object that a client sends: null for an optional field counts as not sent."""
    return record(required, {name: nullable(one) for name, one in (optional or {}).items()})


def either(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}
