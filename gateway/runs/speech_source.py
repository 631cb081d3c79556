"""A function's source as a tree, the objects its names stand for, and forms people write."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any


class NotUnderstood(Exception):
    """The source does something whose effect on the spoken messages is not known."""


def tree_of(function: Any) -> ast.FunctionDef | ast.AsyncFunctionDef:
    try:
        parsed = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError) as error:
        raise NotUnderstood from error
    if not isinstance(parsed, (ast.FunctionDef, ast.AsyncFunctionDef)):
        raise NotUnderstood
    if parsed.name != function.__code__.co_name:
        raise NotUnderstood
    return parsed


def names_around(function: Any) -> Mapping[str, Any]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {**function.__globals__, **dict(_filled(cells))}


def _filled(cells: Any) -> Iterator[tuple[str, Any]]:
    for name, cell in cells:
        try:
            yield name, cell.cell_contents
        except ValueError:  # assigned after the function was made, and not yet
            yield name, None


def parameters_of(tree: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    arguments = tree.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [argument.arg for argument in every]


def arguments_of(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def imported(statement: ast.Import | ast.ImportFrom, alias: ast.alias) -> Any:
    if isinstance(statement, ast.ImportFrom):
        return getattr(sys.modules.get(statement.module or ""), alias.name, None)
    name = alias.name if alias.asname else alias.name.partition(".")[0]
    return sys.modules.get(name)


def is_jump(statement: ast.stmt) -> bool:
    return isinstance(statement, (ast.Break, ast.Continue))


def raises(handler: ast.ExceptHandler) -> bool:
    return isinstance(handler.body[-1], ast.Raise)


def assigns(statement: ast.stmt, wanted: set[str]) -> bool:
    return any(
        isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in wanted
        for node in ast.walk(statement)
    )


def gathers(statement: ast.stmt, piece: str) -> str | None:
    """The name that this statement adds the piece to, in one of the forms people write."""
    match statement:
        case ast.AugAssign(target=ast.Name(id=whole), op=ast.Add(), value=ast.Name(id=added)):
            return whole if added == piece else None
        case ast.Assign(targets=[ast.Name(id=whole)], value=value):
            return whole if _adds(value, whole, piece) else None
        case ast.If(
            test=ast.Compare(left=ast.Name(id=whole), ops=[ast.Is()]),
            body=[ast.Assign(targets=[ast.Name(id=first)], value=ast.Name(id=added))],
            orelse=[other],
        ):
            rest = gathers(other, piece)
            return whole if (first, added, rest) == (whole, piece, whole) else None
    return None


def _adds(value: ast.expr, whole: str, piece: str) -> bool:
    match value:
        case ast.BinOp(left=ast.Name(id=left), op=ast.Add(), right=ast.Name(id=right)):
            return (left, right) == (whole, piece)
        case ast.IfExp(body=ast.Name(id=only), orelse=ast.BinOp() as added):
            return only == piece and _adds(added, whole, piece)
        case ast.IfExp(body=ast.BinOp() as added, orelse=ast.Name(id=only)):
            return only == piece and _adds(added, whole, piece)
    return False
