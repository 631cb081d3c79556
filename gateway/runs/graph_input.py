"""The input of a graph, made from the messages of a conversation by what its schema asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage
from langgraph.pregel import Pregel
from pydantic import PydanticUserError

from gateway.errors import InvalidRequest, StartupError
from gateway.wire import encoding


def input_schema(name: str, graph: Pregel[Any, Any, Any, Any]) -> Mapping[str, Any]:
    """What the graph takes. LangGraph runs states that pydantic cannot describe, such as one that
    holds a `typing.TypedDict` before Python 3.12; what has messages is given them then."""
    try:
        return graph.get_input_jsonschema()
    except PydanticUserError as error:
        if "messages" in graph.channels:
            return {}
        reason = str(error).partition("\n")[0]
        raise StartupError(
            f"Model {name!r}: what it takes as its input cannot be told ({reason});"
            " say it with Graph(input=…)."
        ) from error


def default_input(schema: Mapping[str, Any], messages: list[BaseMessage]) -> Any:
    """What a graph of this input schema is given for these messages, unless its author said it.

    Raises `InvalidRequest` if the last user text would have to be JSON and is not.
    """
    if schema.get("type") == "string":
        return _last_text(messages)
    if schema.get("type") == "array":
        return messages
    properties = schema.get("properties") or {}
    if not properties or "messages" in properties:
        return {"messages": messages}
    texts = [key for key, value in properties.items() if value.get("type") == "string"]
    text = _last_text(messages)
    if len(texts) == 1 and set(schema.get("required", texts)) <= set(texts):
        return {texts[0]: text}
    return _json_input(text, properties)


def _json_input(text: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    try:
        value = encoding.loads(text)
    except InvalidRequest:
        value = None
    if not isinstance(value, dict):
        raise InvalidRequest(
            f"This graph takes a JSON object with {', '.join(sorted(properties))}"
            " as its last user text.",
            param="input",
        )
    return value


def _last_text(messages: Sequence[BaseMessage]) -> str:
    texts = [message.text for message in messages if isinstance(message, HumanMessage)]
    return texts[-1] if texts else ""
