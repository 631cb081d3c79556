"""Expressions and calls of a node's source: each gives a value, and the path with what was heard.

Every `of_…` method evaluates one kind of AST node; a kind without a method is not understood.
"""

from __future__ import annotations

import ast
import builtins
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from langchain_core.prompts import BasePromptTemplate

from gateway.runs import speech_names as names
from gateway.runs.speech_source import (
    NotUnderstood,
    arguments_of,
    names_around,
    parameters_of,
    tree_of,
)
from gateway.runs.speech_values import (
    CARRIERS,
    NOTHING,
    PLAIN,
    Kind,
    Path,
    Value,
    attribute_of,
    common,
    constructed,
    has_source,
    is_value,
    quiet_result,
    sum_of,
    update_of,
)

_DEEPEST_HELPER = 4
# Heard before a helper is probed, so that a pause in it would mute something.
_PROBE = "?"
_MUTATING = frozenset(
    {"clear", "pop", "popitem", "remove", "insert", "update", "setdefault", "reverse", "sort"}
)


@dataclass
class Verdict:
    """What all paths of an analysis, helpers included, have in common."""

    mute: set[str] = field(default_factory=set)


@dataclass
class Expressions(ABC):
    """The half of the interpreter that evaluates; statements run on top of it."""

    tree: ast.FunctionDef | ast.AsyncFunctionDef
    outer: Mapping[str, Any]
    owner: object | None
    verdict: Verdict
    depth: int
    ends: list[tuple[Value, Path]] = field(default_factory=list)

    @abstractmethod
    def block(self, body: Sequence[ast.stmt], paths: list[Path]) -> list[Path]: ...

    @abstractmethod
    def task_sources(self, function: Callable[..., Any]) -> frozenset[str]: ...

    @classmethod
    def of(cls, function: Callable[..., Any], verdict: Verdict, depth: int) -> Self:
        owner = getattr(function, "__self__", None)
        plain = getattr(function, "__func__", function)
        if (
            depth > _DEEPEST_HELPER
            or not inspect.isfunction(plain)
            or hasattr(plain, "__wrapped__")  # a decorator may retry, catch, or call another
        ):
            raise NotUnderstood
        return cls(tree_of(plain), names_around(plain), owner, verdict, depth)

    def run(
        self, given: Mapping[str, Value], heard: frozenset[str] = NOTHING
    ) -> list[tuple[Value, Path]]:
        """Every return's value with the path that led there."""
        parameters = parameters_of(self.tree)
        env = {name: given.get(name, PLAIN) for name in parameters}
        for rest in (self.tree.args.vararg, self.tree.args.kwarg):
            if rest is not None:
                env[rest.arg] = PLAIN
        if self.owner is not None and parameters:
            env[parameters[0]] = Value("known", thing=self.owner)
        if "writer" not in given and "writer" in env:
            env["writer"] = Value("writer")  # LangGraph injects it by this name
        for path in self.block(self.tree.body, [Path(env, heard)]):
            self.ends.append((PLAIN, path))
        return self.ends

    def value(self, expression: ast.expr, path: Path) -> tuple[Value, Path]:
        method = getattr(self, f"of_{type(expression).__name__.lower()}", None)
        if method is None:
            raise NotUnderstood
        result: tuple[Value, Path] = method(expression, path)
        return result

    def silent(self, expression: ast.expr, path: Path) -> Path:
        """Evaluate what must not speak, because it may be skipped or its value is not followed."""
        after = self.value(expression, path)[1]
        if after.heard != path.heard:
            raise NotUnderstood
        return after

    def of_constant(self, expression: ast.Constant, path: Path) -> tuple[Value, Path]:
        return PLAIN, path

    def of_name(self, expression: ast.Name, path: Path) -> tuple[Value, Path]:
        name = expression.id
        if name in path.env:
            return path.env[name], path
        thing = self.outer[name] if name in self.outer else getattr(builtins, name, None)
        return Value("known", thing=thing), path

    def of_await(self, expression: ast.Await, path: Path) -> tuple[Value, Path]:
        return self.value(expression.value, path)

    of_starred = of_await

    def of_attribute(self, expression: ast.Attribute, path: Path) -> tuple[Value, Path]:
        if expression.attr in names.RUNNING:
            raise NotUnderstood  # a bound `invoke` on its way to somebody else's code
        base, path = self.value(expression.value, path)
        return attribute_of(base, expression.attr), path

    def of_namedexpr(self, expression: ast.NamedExpr, path: Path) -> tuple[Value, Path]:
        value, path = self.value(expression.value, path)
        return value, path.bind(expression.target.id, value)

    def of_list(self, expression: ast.List | ast.Tuple | ast.Set, path: Path) -> tuple[Value, Path]:
        sources: frozenset[str] = NOTHING
        kinds: set[Kind] = set()
        for element in expression.elts:
            value, path = self.value(element, path)
            if value.kind in CARRIERS:
                sources |= value.sources
                kinds.add(value.kind)
        return Value("update" if "update" in kinds else "list", sources), path

    of_tuple = of_set = of_list

    def of_dict(self, expression: ast.Dict, path: Path) -> tuple[Value, Path]:
        result = PLAIN
        for key, item in zip(expression.keys, expression.values, strict=True):
            if key is not None:
                path = self.value(key, path)[1]
            value, path = self.value(item, path)
            if key is None:
                result = value if value.kind == "update" else result
            elif isinstance(key, ast.Constant) and key.value == "messages":
                result = update_of(value)
        return result, path

    def of_binop(self, expression: ast.BinOp, path: Path) -> tuple[Value, Path]:
        first, path = self.value(expression.left, path)
        second, path = self.value(expression.right, path)
        adds = isinstance(expression.op, ast.Add)
        return (sum_of(first, second) if adds else PLAIN), path

    def of_ifexp(self, expression: ast.IfExp, path: Path) -> tuple[Value, Path]:
        path = self.value(expression.test, path)[1]
        self.silent(expression.body, path)
        self.silent(expression.orelse, path)
        first = self.value(expression.body, path)[0]
        second = self.value(expression.orelse, path)[0]
        return (first if first == second else common(first, second)), path

    def of_lambda(self, expression: ast.Lambda, path: Path) -> tuple[Value, Path]:
        inside = path
        for argument in expression.args.args:
            inside = inside.bind(argument.arg, PLAIN)
        self.silent(expression.body, inside)
        return Value("code"), path

    def of_parts(self, expression: ast.expr, path: Path) -> tuple[Value, Path]:
        for part in ast.iter_child_nodes(expression):
            path = self.silent(part, path) if isinstance(part, ast.expr) else path
        return PLAIN, path

    of_boolop = of_compare = of_unaryop = of_subscript = of_slice = of_parts
    of_joinedstr = of_formattedvalue = of_parts

    def of_listcomp(self, expression: Any, path: Path) -> tuple[Value, Path]:
        inside = path
        for part in expression.generators:
            if part.is_async:
                raise NotUnderstood
            inside = self.silent(part.iter, inside)
            inside = self.assign(part.target, PLAIN, inside)
            for condition in part.ifs:
                inside = self.silent(condition, inside)
        for key in ("elt", "key", "value"):
            part = getattr(expression, key, None)
            inside = self.silent(part, inside) if part is not None else inside
        return PLAIN, path

    of_setcomp = of_dictcomp = of_generatorexp = of_listcomp

    def assign(self, target: ast.expr, value: Value, path: Path) -> Path:
        match target:
            case ast.Name(id=name):
                return path.bind(name, value)
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value="messages")):
                return path.bind(name, update_of(value))
            case ast.Subscript(value=ast.Name(id=name)) if path.env.get(name, PLAIN).kind != "list":
                return path
            case ast.Attribute(value=owner, attr=attribute):
                self.changes(self.value(owner, path)[0], attribute)
                return path
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                for element in elements:
                    path = self.assign(element, PLAIN, path)
                return path
        raise NotUnderstood

    def changes(self, owner: Value, attribute: str) -> None:
        if owner.sources and attribute != "name":
            raise NotUnderstood  # the message in the state would not be the one that was streamed

    def of_call(self, call: ast.Call, path: Path) -> tuple[Value, Path]:
        if isinstance(call.func, ast.Attribute):
            return self.method(call, call.func, path)
        target = self.value(call.func, path)[0]
        return self.apply(target, call, path)

    def method(self, call: ast.Call, function: ast.Attribute, path: Path) -> tuple[Value, Path]:
        attribute = function.attr
        if attribute in names.RUNNING:
            return self.running(call, function, path)
        base, path = self.value(function.value, path)
        if attribute in names.DRESSING and self.model_like(base):
            return Value("model"), self.given(call, path)[1]
        if base.kind == "message" and attribute == "result" and not arguments_of(call):
            return base, path  # a task's future
        found = attribute_of(base, attribute)
        if found.kind == "known" and callable(found.thing) and not is_value(base.thing):
            return self.apply(found, call, path)
        if base.kind not in {"model", "code", "local"} and attribute in names.OF_VALUES:
            return self.of_value(call, function, path)
        raise NotUnderstood

    def running(self, call: ast.Call, function: ast.Attribute, path: Path) -> tuple[Value, Path]:
        """`model.ainvoke(…)` is heard, filling in a prompt is not; the rest may be anything."""
        base, path = self.value(function.value, path)
        if function.attr not in {"invoke", "ainvoke"}:
            raise NotUnderstood
        for argument in arguments_of(call):
            path = self.silent(argument, path)
        if self.model_like(base):
            return Value("message", frozenset({""})), self.hear("", path)
        if base.kind == "known" and isinstance(base.thing, BasePromptTemplate):
            return PLAIN, path
        raise NotUnderstood

    def of_value(self, call: ast.Call, function: ast.Attribute, path: Path) -> tuple[Value, Path]:
        """A method of a list, a string and the like; adding to a named list is followed."""
        arguments, path = self.given(call, path)
        added = frozenset[str]().union(*(value.sources for value in arguments.values()))
        owner = function.value
        while isinstance(owner, (ast.Attribute, ast.Subscript)):
            owner = owner.value
        old = self.value(owner, path)[0]
        if function.attr in _MUTATING and (added or old.sources):
            raise NotUnderstood
        if function.attr not in {"append", "extend"} or not (added or old.sources):
            return PLAIN, path
        if not isinstance(function.value, ast.Name) or old.kind not in {"list", "plain"}:
            raise NotUnderstood
        return PLAIN, path.bind(function.value.id, Value("list", old.sources | added))

    def apply(self, target: Value, call: ast.Call, path: Path) -> tuple[Value, Path]:
        thing = target.thing
        arguments, path = self.given(call, path, helper=has_source(thing))
        if target.kind == "writer":
            return PLAIN, path
        if target.kind != "known" or thing is None:
            raise NotUnderstood
        if (made := constructed(thing, arguments)) is not None:
            return made, path
        if names.is_quiet(thing):
            return quiet_result(thing, arguments), path
        return self.special(thing, arguments, path)

    def special(self, thing: Any, arguments: Mapping[str, Value], path: Path) -> tuple[Value, Path]:
        if names.makes_model(thing):
            return Value("model"), path
        if names.is_pause(thing):
            self.verdict.mute |= path.heard
            return PLAIN, path
        if names.is_task(thing):
            return self.task(thing, path)
        return self.helper(thing, arguments, path)

    def given(
        self, call: ast.Call, path: Path, *, helper: bool = False
    ) -> tuple[dict[str, Value], Path]:
        """The arguments by position ("0") or name; unseen code gets none that could speak."""
        found: dict[str, Value] = {}
        for index, argument in enumerate(call.args):
            found[str(index)], path = self.value(argument, path)
        for keyword in call.keywords:
            found[keyword.arg or "**"], path = self.value(keyword.value, path)
        for value in found.values():
            could_run = value.kind in {"model", "local"} or names.may_run(value.thing)
            if could_run and not helper and not self.harmless(value.thing):
                raise NotUnderstood
        return found, path

    def harmless(self, thing: Any) -> bool:
        """A function whose own source says nothing and does not pause, whoever calls it."""
        if not has_source(thing):
            return False
        verdict = Verdict()
        ends = type(self).of(thing, verdict, self.depth + 1).run({}, frozenset({_PROBE}))
        return not verdict.mute and all(end.heard == {_PROBE} for _, end in ends)

    def helper(
        self, function: Any, arguments: Mapping[str, Value], path: Path
    ) -> tuple[Value, Path]:
        """Run the helper's source with these arguments; its paths must agree on the result."""
        code = type(self).of(function, self.verdict, self.depth + 1)
        parameters = parameters_of(code.tree)[1 if code.owner is not None else 0 :]
        given = {
            (parameters[int(key)] if key.isdigit() and int(key) < len(parameters) else key): value
            for key, value in arguments.items()
        }
        ends = code.run(given, path.heard)
        if not ends:
            raise NotUnderstood
        heard = frozenset[str]().union(*(end.heard for _, end in ends))
        if any(end.heard != heard for _, end in ends):
            raise NotUnderstood  # spoke on some of its paths only: too clever to follow
        result = ends[0][0]
        for value, _ in ends[1:]:
            result = result if value == result else common(result, value)
        return result, replace(path, heard=heard)

    def task(self, task: Any, path: Path) -> tuple[Value, Path]:
        """A task streams under its own name; it counts if it returns the message itself."""
        name = str(getattr(task, "__name__", ""))
        self.verdict.mute |= path.heard  # the task may pause
        if task.retry_policy or self.task_sources(task.func) != frozenset({""}):
            self.verdict.mute.add(name)
            return PLAIN, path
        return Value("message", frozenset({name})), self.hear(name, path)

    def hear(self, source: str, path: Path) -> Path:
        if source in path.heard:
            self.verdict.mute.add(source)
        return replace(path, heard=path.heard | {source})

    def is_model(self, expression: ast.expr, path: Path) -> bool:
        return self.model_like(self.value(expression, path)[0])

    def model_like(self, value: Value) -> bool:
        return value.kind == "model" or (value.kind == "known" and names.is_model(value.thing))
