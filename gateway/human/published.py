"""The run settings that a graph publishes: a pydantic model that clients fill through `metadata`.

Metadata is the one place of a request where every client can put values of its own, but they are
strings. So each field is read as its JSON schema says: one that takes a string gets the text as it
is, any other the JSON value of the text, or the text itself where that is no JSON (pydantic then
reads `yes` for a boolean). `"3"` is 3 for an `int`, "3" for a `str`; `'["a", "b"]'` fills a list.
Keys that the model does not know are its own affair: ignored, allowed or forbidden by its
`model_config["extra"]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.errors import PydanticUserError

from gateway.errors import InvalidRequest, StartupError
from gateway.wire import encoding
from gateway.wire.checks import shown

_LONGEST_KEY = 64
"""Of a key of `metadata`, in characters. Source: OpenAI's API."""


@dataclass(frozen=True, slots=True)
class PublishedSettings:
    """A model, ready to read metadata. `schema` is its JSON Schema, `texts` the keys whose values
    are taken as they are."""

    model: type[BaseModel]
    schema: Mapping[str, Any]
    texts: frozenset[str]

    @classmethod
    def of(cls, model: Any) -> PublishedSettings:
        """Raises `StartupError` for what is no pydantic model, or no client could ever fill."""
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            raise StartupError(f"Graph(settings={model!r}): a pydantic model class please.")
        try:
            schema = model.model_json_schema()
        except PydanticUserError as error:
            raise StartupError(
                f"Graph(settings={model.__name__}): it has no JSON Schema: {error.message}"
            ) from None
        fields: Mapping[str, Any] = schema.get("properties") or {}
        for name in fields:
            if not 0 < len(name) <= _LONGEST_KEY:
                raise StartupError(
                    f"Graph(settings={model.__name__}): {name!r} cannot be a key of metadata,"
                    f" which have 1 to {_LONGEST_KEY} characters."
                )
        texts = (name for name, field in fields.items() if "string" in _types(field, schema))
        return cls(model, schema, frozenset(texts))

    def parse(self, metadata: Mapping[str, str]) -> BaseModel:
        """The settings that `metadata` asks for. Raises `InvalidRequest` naming the one entry that
        is wrong or missing."""
        values = {name: self._value(name, text) for name, text in metadata.items()}
        try:
            return self.model.model_validate(values)
        except ValidationError as error:
            raise _refusal(error) from None

    def _value(self, name: str, text: str) -> Any:
        if name in self.texts or name not in self.schema.get("properties", ()):
            return text
        try:
            return encoding.loads(text)
        except InvalidRequest:
            return text


def _types(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int = 8) -> Iterator[str]:
    """The JSON types that a schema allows, as far as `depth` references and alternatives tell.

    A schema that says nothing allows everything, a string too.
    """
    if depth == 0:
        return
    if reference := schema.get("$ref"):
        named = root.get("$defs", {}).get(str(reference).rpartition("/")[2], {})
        yield from _types(named, root, depth - 1)
        return
    alternatives = [one for key in ("anyOf", "oneOf", "allOf") for one in schema.get(key, ())]
    for one in alternatives:
        yield from _types(one, root, depth - 1)
    kind = schema.get("type")
    if kind is not None:
        yield from [kind] if isinstance(kind, str) else kind
    elif "enum" in schema or "const" in schema:
        values = schema.get("enum") or [schema.get("const")]
        yield from ("string" for value in values if isinstance(value, str))
    elif not alternatives:
        yield "string"


def _refusal(error: ValidationError) -> InvalidRequest:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = [str(step) for step in first["loc"]]
    name = place[0] if place else ""
    param = f"metadata.{name if name.isprintable() else shown(name)}" if name else "metadata"
    if first["type"] == "missing" and len(place) == 1:
        message = f"Missing required parameter: '{param}'."
        return InvalidRequest(message, param=param, code="missing_required_parameter")
    inside = f" (at {'.'.join(place[1:])})" if place[1:] else ""
    return InvalidRequest(f"Invalid '{param}'{inside}: {first['msg']}.", param=param)
