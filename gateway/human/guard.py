"""LangChain tools behind a policy.

    agent = create_agent(model, guard([read_ticket, reset_password], policy))

A guarded tool has the name, the description and the schema of its tool, and holds it: there is no
way to the tool but past the policy. What is allowed runs; what is asked about interrupts the run
with the typed approval; what is denied or rejected comes back to the model as a `ToolMessage` with
status "error", so that it can go on. The arguments that are judged and shown are the validated
ones. Those that LangGraph injects are neither judged, shown nor edited; they reach the tool.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_type_hints, overload

from langchain_core.messages import AIMessage, ToolCall, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import set_config_context
from langchain_core.tools import ArgsSchema, BaseTool, Tool, ToolException
from langgraph.prebuilt import ToolRuntime
from pydantic import BaseModel, PrivateAttr, ValidationError

from gateway.errors import StartupError
from gateway.human.permit import Editable, permit
from gateway.human.policy import Policy
from gateway.human.rules import Arguments


@overload
def guard(tools: BaseTool, policy: Policy) -> BaseTool: ...
@overload
def guard(tools: Sequence[BaseTool], policy: Policy) -> list[BaseTool]: ...
def guard(tools: BaseTool | Sequence[BaseTool], policy: Policy) -> BaseTool | list[BaseTool]:
    """The tool, or the tools, behind the policy.

    Raises `StartupError` if a rule looks at an argument that its tool has not.
    """
    if not isinstance(policy, Policy):
        raise StartupError(f"guard(tools, policy): {policy!r} is no Policy.")
    if isinstance(tools, Sequence):
        return [guard(tool, policy) for tool in tools]
    if not isinstance(tools, BaseTool):
        raise StartupError(f"guard(tools, policy): {tools!r} is no LangChain tool; see @tool.")
    policy.check_arguments(tools)
    return GuardedTool(tools, policy)


class GuardedTool(BaseTool):
    """A tool that runs only with the policy's leave. Made by `guard`."""

    _inner: BaseTool = PrivateAttr()
    _policy: Policy = PrivateAttr()

    def __init__(self, inner: BaseTool, policy: Policy) -> None:
        # Callbacks stay with the inner tool, which calls them when it runs.
        mirrored = {
            name: getattr(inner, name) for name in BaseTool.model_fields if name != "callbacks"
        }
        super().__init__(**{**mirrored, "args_schema": _schema(inner)})
        self._inner = inner
        self._policy = policy

    @property
    def func(self) -> Any:
        """What ToolNode reads the annotations of, to see what it has to inject: what the tool's
        function wants, and for the guard the state that the call came from."""
        inner = getattr(self._inner, "func", None) or getattr(self._inner, "coroutine", None)
        wanted = get_type_hints(inner, include_extras=True) if inner else {}
        return _annotated({_RUNTIME: ToolRuntime, **wanted})  # of several, ToolNode takes the last

    @property
    def args(self) -> dict[str, Any]:
        return self._inner.args

    @property
    def tool_call_schema(self) -> ArgsSchema:
        if isinstance(self.args_schema, dict):
            return super().tool_call_schema
        return self._inner.tool_call_schema

    @property
    def _injected_args_keys(self) -> frozenset[str]:
        return self._inner._injected_args_keys

    def get_input_schema(self, config: RunnableConfig | None = None) -> Any:
        return self._inner.get_input_schema(config)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Runs the tool, or interrupts, or returns the refusal; `input` is a tool call or its
        arguments."""
        passed = _in_context(config, self._pass, *_opened(input))
        if isinstance(passed, ToolMessage):
            return passed
        return self._inner.invoke(_closed(input, passed), config, **kwargs)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """See `invoke`."""
        passed = _in_context(config, self._pass, *_opened(input))
        if isinstance(passed, ToolMessage):
            return passed
        return await self._inner.ainvoke(_closed(input, passed), config, **kwargs)

    def run(self, tool_input: Any, *args: Any, **kwargs: Any) -> Any:
        """See `invoke`."""
        call_id = kwargs.get("tool_call_id")
        passed = _in_context(kwargs.get("config"), self._pass, tool_input, call_id)
        if isinstance(passed, ToolMessage):
            return passed
        return self._inner.run(passed, *args, **kwargs)

    async def arun(self, tool_input: Any, *args: Any, **kwargs: Any) -> Any:
        """See `invoke`."""
        call_id = kwargs.get("tool_call_id")
        passed = _in_context(kwargs.get("config"), self._pass, tool_input, call_id)
        if isinstance(passed, ToolMessage):
            return passed
        return await self._inner.arun(passed, *args, **kwargs)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("A guarded tool runs through invoke, ainvoke, run or arun.")

    def _pass(self, given: str | dict[str, Any], call_id: str | None) -> Any:
        """The input that the tool may run with, or the `ToolMessage` that refuses."""
        runtime = None
        if isinstance(given, dict):
            runtime = next((one for one in given.values() if isinstance(one, ToolRuntime)), None)
            given = {key: value for key, value in given.items() if key != _RUNTIME}
        written = given if isinstance(given, dict) else {next(iter(self.args), "input"): given}
        hidden = {key: value for key, value in written.items() if key not in self._shown(written)}

        def read(edit: Mapping[str, Any]) -> Arguments:
            return self._shown(self._validated({**self._shown(edit), **hidden}, call_id))

        try:
            arguments = read(written)
        except ValidationError as error:
            return self._message(_invalid(self._inner, error), call_id)
        alone = runtime is None or not _is_one_of_many(runtime)
        leave = permit(
            self._policy,
            self.name,
            arguments,
            editable=_editable(self),
            read=read,
            may_ask=alone,
        )
        if not leave:
            hint = "" if alone or leave.decision.verdict == "deny" else _CALL_IT_ALONE
            return self._message(leave.refusal + hint, call_id)
        return given if leave.edit is None else {**self._shown(leave.edit), **hidden}

    def _shown(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Without what is injected. ToolNode also injects into any argument called `runtime`."""
        return {
            name: value
            for name, value in self._inner._filter_injected_args(dict(arguments)).items()
            if not isinstance(value, ToolRuntime)
        }

    def _validated(self, arguments: Mapping[str, Any], call_id: str | None) -> dict[str, Any]:
        """As the tool's function would get them; LangChain knows no public way to ask."""
        parsed = self._inner._parse_input(dict(arguments), call_id)
        assert isinstance(parsed, dict)  # given a dict
        return parsed

    def _message(self, text: str, call_id: str | None) -> ToolMessage:
        if call_id is None:
            raise ToolException(text)  # no model called, so there is none to tell
        return ToolMessage(text, tool_call_id=call_id, name=self.name, status="error")


_RUNTIME = "fermata_runtime"

_CALL_IT_ALONE = " Call it again, and nothing else with it."


def _annotated(annotations: Mapping[str, Any]) -> Any:
    def function(**arguments: Any) -> None: ...

    function.__annotations__ = dict(annotations)
    return function


def _is_one_of_many(runtime: ToolRuntime[Any, Any]) -> bool:
    """Whether other calls are made in the same task of the graph.

    LangGraph gives the answers of a task to its interrupts in the order in which they happen, and
    ToolNode makes the calls of one task in parallel threads: the approval of one would now and then
    run another. `create_agent` sends each call to a task of its own.
    """
    path = (runtime.config.get("metadata") or {}).get("langgraph_path")
    sent = path is not None and path[:1] == ("__pregel_push",)
    return not sent and any(
        any(call["id"] == runtime.tool_call_id for call in calls) and len(calls) > 1
        for calls in _calls(runtime.state)
    )


def _calls(state: Any) -> Iterator[Sequence[ToolCall]]:
    """The tool calls of each message, wherever the state keeps messages."""
    fields = state if isinstance(state, Mapping) else getattr(state, "__dict__", {"": state})
    for value in fields.values():
        for message in value if isinstance(value, list) else ():
            if isinstance(message, AIMessage):
                yield message.tool_calls


_ONE_TEXT = {
    "type": "object",
    "properties": {"__arg1": {"type": "string"}},
    "required": ["__arg1"],
}
"""What LangChain tells models of a `Tool` without a schema; it looks at the class for that."""


def _schema(inner: BaseTool) -> ArgsSchema | None:
    plain = isinstance(inner, Tool) and inner.args_schema is None
    return _ONE_TEXT if plain else inner.args_schema


def _editable(tool: BaseTool) -> Editable:
    """What an edit must fit, for the reviewer's form; the tool's own validators come after it."""
    schema = tool.tool_call_schema
    if isinstance(schema, dict):
        return schema
    return schema if issubclass(schema, BaseModel) else None  # None: the models of pydantic 1


def _invalid(inner: BaseTool, error: ValidationError) -> str:
    """What the tool itself would say of bad arguments. Raises if it would raise."""
    told = inner.handle_validation_error
    if not told:
        raise error
    if callable(told):
        return told(error)
    return told if isinstance(told, str) else "Tool input validation error"


def _opened(given: Any) -> tuple[Any, str | None]:
    """A tool call's arguments and id; or the arguments, as they were given without a call."""
    if isinstance(given, dict) and given.get("type") == "tool_call":
        return dict(given["args"]), given["id"]
    return given, None


def _closed(given: Any, arguments: Any) -> Any:
    """The input again, with these arguments."""
    if isinstance(given, dict) and given.get("type") == "tool_call":
        return {**given, "args": arguments}
    return arguments


def _in_context(config: RunnableConfig | None, function: Any, *args: Any) -> Any:
    """As LangChain runs tools: LangGraph's interrupt finds the run through the context, which a
    thread of somebody's own has not inherited."""
    if config is None:
        return function(*args)
    with set_config_context(config) as context:
        return context.run(function, *args)
