"""Follows a model's message through a node's source, from the call to the return.

A small abstract interpreter over the AST. It runs every path through the function with values that
say only what matters: is this the message of a model call, a list or an update that holds one, a
model, or something else. A *source* is where tokens come from: "" for a model called by the
function itself (its helpers included), the task's name for a LangGraph `@task`, which streams on
its own.

A source may speak if on every path on which it was heard its message is in what is returned. It is
mute if it was heard twice, dropped, changed, or if the function may pause after it (the node's
update would come with a later response). Whatever the interpreter does not know ends the analysis
with `NotUnderstood`, and then nothing of the function speaks: a call whose target cannot be
resolved, a model called in a loop or under an `except`, a decorated function, one without source.

Names are resolved against the function's real globals, closure and bound object, so `model` is the
model it is, and a helper is followed into its own source. Nothing of the author's is executed.
Statements are here, expressions and calls in `speech_expressions`.
"""

from __future__ import annotations

import ast
import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gateway.runs.speech_expressions import Expressions, Verdict
from gateway.runs.speech_source import (
    NotUnderstood,
    arguments_of,
    assigns,
    gathers,
    imported,
    is_jump,
    raises,
)
from gateway.runs.speech_values import CARRIERS, NOTHING, PLAIN, Kind, Path, Value, merged, sum_of

_MOST_PATHS = 64


def carried_sources(function: Callable[..., Any], *, final_value: bool) -> frozenset[str]:
    """The sources whose message surely is in the update that `function` returns.

    With `final_value` (a functional entrypoint) the message may be returned bare, or in a list.
    """
    verdict = Verdict()
    wanted: frozenset[Kind] = CARRIERS if final_value else frozenset({"update"})
    try:
        ends = Code.of(function, verdict, depth=0).run({})
    except (NotUnderstood, RecursionError):
        return NOTHING
    heard: frozenset[str] = NOTHING
    for value, path in ends:
        carried = value.sources if value.kind in wanted else NOTHING
        verdict.mute |= path.heard - carried
        heard |= path.heard
    return heard - verdict.mute


class Code(Expressions):
    """One function's source, with what its names stand for."""

    def task_sources(self, function: Callable[..., Any]) -> frozenset[str]:
        return carried_sources(function, final_value=True)

    def block(self, body: Sequence[ast.stmt], paths: list[Path]) -> list[Path]:
        for statement in body:
            method = getattr(self, f"on_{type(statement).__name__.lower()}", None)
            if method is None:
                raise NotUnderstood
            paths = [after for path in paths for after in method(statement, path)]
            if len(paths) > _MOST_PATHS:
                raise NotUnderstood
        return paths

    def on_expr(self, statement: ast.Expr, path: Path) -> list[Path]:
        return [self.value(statement.value, path)[1]]

    def on_pass(self, statement: ast.stmt, path: Path) -> list[Path]:
        return [path]

    on_global = on_nonlocal = on_pass

    def on_import(self, statement: ast.Import | ast.ImportFrom, path: Path) -> list[Path]:
        for alias in statement.names:
            name = alias.asname or alias.name.partition(".")[0]
            path = path.bind(name, Value("known", thing=imported(statement, alias)))
        return [path]

    on_importfrom = on_import

    def on_functiondef(self, statement: ast.FunctionDef, path: Path) -> list[Path]:
        return [path.bind(statement.name, Value("local"))]

    on_asyncfunctiondef = on_classdef = on_functiondef

    def on_return(self, statement: ast.Return, path: Path) -> list[Path]:
        value, path = self.value(statement.value, path) if statement.value else (PLAIN, path)
        self.ends.append((value, path))
        return []

    def on_raise(self, statement: ast.Raise, path: Path) -> list[Path]:
        if statement.exc is not None:
            self.value(statement.exc, path)
        return []

    def on_assert(self, statement: ast.Assert, path: Path) -> list[Path]:
        return [self.value(statement.test, path)[1]]

    def on_assign(self, statement: ast.Assign, path: Path) -> list[Path]:
        value, path = self.value(statement.value, path)
        for target in statement.targets:
            path = self.assign(target, value, path)
        return [path]

    def on_annassign(self, statement: ast.AnnAssign, path: Path) -> list[Path]:
        if statement.value is None:
            return [path]
        value, path = self.value(statement.value, path)
        return [self.assign(statement.target, value, path)]

    def on_augassign(self, statement: ast.AugAssign, path: Path) -> list[Path]:
        value, path = self.value(statement.value, path)
        if not isinstance(statement.target, ast.Name):
            return [self.assign(statement.target, PLAIN, path)]
        old = path.env.get(statement.target.id, PLAIN)
        return [path.bind(statement.target.id, sum_of(old, value))]

    def on_if(self, statement: ast.If, path: Path) -> list[Path]:
        path = self.value(statement.test, path)[1]
        return self.block(statement.body, [path]) + self.block(statement.orelse, [path])

    def on_match(self, statement: ast.Match, path: Path) -> list[Path]:
        path = self.value(statement.subject, path)[1]
        paths = [path]
        for case in statement.cases:
            inside = path
            for node in ast.walk(case.pattern):
                captured = getattr(node, "name", None) or getattr(node, "rest", None)
                inside = inside.bind(captured, PLAIN) if captured else inside
            paths += self.block(case.body, [inside])
        return paths

    def on_while(self, statement: ast.While, path: Path) -> list[Path]:
        path = self.silent(statement.test, path)
        return self.loop(statement.body, statement.orelse, path)

    def on_for(self, statement: ast.For | ast.AsyncFor, path: Path) -> list[Path]:
        stream = self.streamed(statement.iter, path)
        if stream is not None:
            return [self.gathered(statement, stream)]
        if isinstance(statement, ast.AsyncFor):
            raise NotUnderstood
        path = self.silent(statement.iter, path)
        return self.loop(
            statement.body, statement.orelse, self.assign(statement.target, PLAIN, path)
        )

    on_asyncfor = on_for

    def loop(self, body: list[ast.stmt], orelse: list[ast.stmt], path: Path) -> list[Path]:
        """A body that says nothing, run any number of times: what it assigns is not relied on."""
        # Once more with what the first pass left behind, so that a carried message would be seen.
        for _ in range(2):
            after = self.block([item for item in body if not is_jump(item)], [path])
            if any(end.heard != path.heard for end in after):
                raise NotUnderstood
            path = replace(path, env=merged([path.env, *(end.env for end in after)]))
        return self.block(orelse, [path])

    def on_try(self, statement: ast.Try, path: Path) -> list[Path]:
        if any(
            isinstance(node, ast.Return) for step in statement.finalbody for node in ast.walk(step)
        ):
            raise NotUnderstood
        ended = len(self.ends)
        tried = self.block(statement.body, [path])
        spoke = any(end.heard != path.heard for end in tried) or any(
            end.heard != path.heard for _, end in self.ends[ended:]
        )
        if spoke and not all(raises(handler) for handler in statement.handlers):
            raise NotUnderstood  # half a message may have been streamed when it was caught
        tried = self.block(statement.orelse, tried)
        for handler in statement.handlers:
            caught = path.bind(handler.name, PLAIN) if handler.name else path
            tried += self.block(handler.body, [caught])
        return self.block(statement.finalbody, tried) if statement.finalbody else tried

    def on_with(self, statement: ast.With | ast.AsyncWith, path: Path) -> list[Path]:
        swallows = False
        for item in statement.items:
            swallows |= self.suppresses(item.context_expr, path)
            path = self.silent(item.context_expr, path)
            if item.optional_vars is not None:
                path = self.assign(item.optional_vars, PLAIN, path)
        after = self.block(statement.body, [path])
        if swallows and any(end.heard != path.heard for end in after):
            raise NotUnderstood
        return after

    on_asyncwith = on_with

    def suppresses(self, expression: ast.expr, path: Path) -> bool:
        """Whether an exception ends in this context; one of unknown make is not entered at all."""
        if isinstance(expression, ast.Call):
            return self.value(expression.func, path)[0].thing is contextlib.suppress
        thing = self.value(expression, path)[0].thing
        if type(thing).__module__.partition(".")[0] not in sys.stdlib_module_names or thing is None:
            raise NotUnderstood
        return False

    # `async for chunk in model.astream(…)`: the pieces add up to the message.

    def streamed(self, iterable: ast.expr, path: Path) -> Path | None:
        match iterable:
            case ast.Call(func=ast.Attribute(value=owner, attr="astream" | "stream")):
                if not self.is_model(owner, path):
                    raise NotUnderstood
                for argument in arguments_of(iterable):
                    path = self.silent(argument, path)
                return self.hear("", path)
        return None

    def gathered(self, loop: ast.For | ast.AsyncFor, path: Path) -> Path:
        if not isinstance(loop.target, ast.Name) or loop.orelse:
            raise NotUnderstood
        piece = loop.target.id
        gathering = {name for step in loop.body if (name := gathers(step, piece))}
        rest = [step for step in loop.body if not gathers(step, piece)]
        if len(gathering) != 1 or any(assigns(step, gathering) for step in rest):
            raise NotUnderstood
        after = self.block(rest, [path.bind(piece, Value("piece"))])
        if any(end.heard != path.heard for end in after):
            raise NotUnderstood
        env = merged([path.env, *(end.env for end in after)])
        whole = {name: Value("message", frozenset({""})) for name in gathering}
        return replace(path, env={**env, **whole})
