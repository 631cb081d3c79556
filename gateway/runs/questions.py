"""What an interrupt asks: by its mark, its schema or its shape.

    of `ask_approval` and its kind         → that question
    `action_requests`, `review_configs`    → an approval with a decision for each action
    `"type": "tool_approval"`              → an approval of one action
    a breakpoint                           → an approval of the nodes that run next
    with a `response_schema`               → a value that fits it
    any other                              → raw: whatever JSON or text comes back

The second and the third are LangChain's HumanInTheLoopMiddleware, by turn and `per_call`.
A value that only resembles one of LangChain's is raw: better too few promises than wrong ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from gateway.errors import RunFailed
from gateway.human.ask import MARK, question_in
from gateway.runs.events import Breakpoint
from gateway.wire import schema
from gateway.wire.checks import is_function_name
from gateway.wire.encoding import Json, to_jsonable
from gateway.wire.questions import DECISIONS, Action, Question


class Asking(Protocol):
    """An interrupt as LangGraph surfaces it: what the node passed, and the schema of its answer."""

    @property
    def value(self) -> Any: ...

    @property
    def response_schema(self) -> Any: ...


def question_of(interrupt: Asking, default_name: str) -> Question:
    """What the interrupt asks. `default_name` names the function call if its author did not.

    Raises `RunFailed` if it cannot be told: a payload without a JSON form, a schema that is none.
    """
    if isinstance(interrupt.value, Breakpoint):
        return _breakpoint(interrupt.value)
    return _marked(interrupt.value) or _recognised(interrupt, default_name)


def _breakpoint(stop: Breakpoint) -> Question:
    """Our own form: what comes back says which of the two it is."""
    return Question(
        "approval",
        {"next": list(stop.nodes)},
        f"Run {', '.join(stop.nodes)}?",
        allowed=("approve", "reject"),
        form="fermata",
    )


def _marked(value: Any) -> Question | None:
    try:
        question = question_in(value)
    except (KeyError, TypeError, ValueError) as error:
        raise RunFailed(f"The interrupt marked {MARK!r} is no question: {error!r}") from None
    if question is not None and not is_function_name(question.name or ""):
        raise RunFailed(f"{question.name!r} cannot name a function call")
    return question


def _recognised(interrupt: Asking, name: str) -> Question:
    value = to_jsonable(interrupt.value)
    wanted = _schema(interrupt.response_schema, name)
    actions = _batch(value)
    if actions:
        return _approval(value, actions, name)
    action = _one_call(value, wanted)
    if action is not None and wanted is not None:
        return _call_approval(value, action, wanted, name)
    raw = Question.raw(value)
    if wanted is None:
        return Question("any", raw.payload, raw.question, name=name)
    return Question(
        "value",
        raw.payload,
        raw.question,
        allowed=("respond",),
        schema=wanted,
        name=name,
        form="schema",
    )


def _schema(found: Any, name: str) -> Mapping[str, Json] | None:
    if found is None:
        return None
    plain = to_jsonable(found, "response_schema")
    if not isinstance(plain, dict):
        raise RunFailed(f"{name}: its response_schema is not a JSON Schema object")
    return schema.checked(plain, name)


# --- LangChain's middleware -------------------------------------------------------------------


def _batch(value: Json) -> tuple[Action, ...]:
    """The actions of one interrupt for a whole turn; none if the value is something else."""
    if not isinstance(value, dict) or not {"action_requests", "review_configs"} <= value.keys():
        return ()
    requests, configs = value["action_requests"], value["review_configs"]
    if not isinstance(requests, list) or not isinstance(configs, list):
        return ()
    actions = []
    for position, request in enumerate(requests):
        allowed = _allowed(_config(configs, position, request))
        if not allowed or not isinstance(request.get("args"), dict):
            return ()
        actions.append(_action(request, allowed))
    return tuple(actions)


def _config(configs: Sequence[Json], position: int, request: Json) -> Json:
    """The middleware writes one for each action; one for each name is what its schema allows."""
    if not isinstance(request, dict) or not isinstance(request.get("name"), str):
        return None
    name = request["name"]
    ordered = [*configs[position : position + 1], *configs]
    return next((one for one in ordered if _names(one, name)), None)


def _names(config: Json, name: str) -> bool:
    return isinstance(config, dict) and config.get("action_name") == name


def _allowed(config: Json) -> tuple[str, ...]:
    if not isinstance(config, dict) or not isinstance(config.get("allowed_decisions"), list):
        return ()
    return tuple(one for one in DECISIONS if one in config["allowed_decisions"])


def _action(request: Mapping[str, Json], allowed: tuple[str, ...]) -> Action:
    description = request.get("description")
    text = description if isinstance(description, str) else ""
    return Action(request["name"], request["args"], allowed, text)


def _approval(value: Json, actions: tuple[Action, ...], name: str) -> Question:
    texts = [action.description or f"May {action.name} run?" for action in actions]
    return Question(
        "approval",
        value,
        "\n\n".join(texts),
        allowed=tuple(one for one in DECISIONS if any(one in each.allowed for each in actions)),
        name=name,
        form="hitl",
        actions=actions,
    )


def _one_call(value: Json, wanted: Mapping[str, Json] | None) -> Action | None:
    if wanted is None or not isinstance(value, dict) or value.get("type") != "tool_approval":
        return None
    if not isinstance(value.get("name"), str) or not isinstance(value.get("args"), dict):
        return None
    found = {kind for kind, _ in _decision_schemas(wanted)}
    allowed = tuple(one for one in DECISIONS if one in found)
    return _action(value, allowed) if allowed else None


def _call_approval(value: Json, action: Action, wanted: Mapping[str, Json], name: str) -> Question:
    return Question(
        "approval",
        value,
        action.description or f"May {action.name} run?",
        allowed=action.allowed,
        schema=_arguments_schema(wanted),
        name=name,
        form="hitl_call",
        actions=(action,),
    )


def _decision_schemas(wanted: Mapping[str, Json]) -> Iterator[tuple[Json, Mapping[str, Json]]]:
    """The kinds of decision in a call's `response_schema`, each with its own schema: one object,
    or a union of them."""
    for one in wanted.get("oneOf") or wanted.get("anyOf") or [wanted]:
        branch = _resolved(one, wanted)
        kind = _property(branch, "type").get("const")
        if kind is not None:
            yield kind, branch


def _arguments_schema(wanted: Mapping[str, Json]) -> Mapping[str, Json] | None:
    """What an edit's arguments must fit, as a schema that stands alone."""
    for kind, branch in _decision_schemas(wanted):
        if kind == "edit":
            edited = _resolved(_property(branch, "edited_action"), wanted)
            arguments = _property(edited, "args")
            definitions = {"$defs": wanted["$defs"]} if "$defs" in wanted else {}
            return {**definitions, **arguments}
    return None


def _property(of: Mapping[str, Json], name: str) -> Mapping[str, Json]:
    found = of.get("properties", {}).get(name, {})
    return found if isinstance(found, Mapping) else {}


def _resolved(one: Json, root: Mapping[str, Json]) -> Mapping[str, Json]:
    """The definition that a local reference names, as pydantic writes them."""
    if not isinstance(one, Mapping):
        return {}
    reference = one.get("$ref")
    if not isinstance(reference, str):
        return one
    found = root.get("$defs", {}).get(reference.removeprefix("#/$defs/"), {})
    return found if isinstance(found, Mapping) else {}
