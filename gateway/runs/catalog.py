"""What is served: a mapping of model names to `Graph`, or an unchanged `langgraph.json`."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.errors import StartupError
from gateway.runs.graph import Graph, ServedGraph, serve_graph


def load_graphs(where: str) -> dict[str, Graph]:
    """The graphs that `where` names: `module:NAME`, or the path of a `langgraph.json`.

    Modules are found from the current directory as well. Raises `StartupError` saying what is
    missing.
    """
    if where.endswith(".json"):
        return _from_langgraph_json(Path(where))
    module, _, name = where.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    declared = _attribute(_import(module), name or "GRAPHS", where)
    if not isinstance(declared, Mapping) or not declared:
        raise StartupError(f"{where}: expected a mapping of model names to graphs.")
    return {str(model): _as_graph(graph) for model, graph in declared.items()}


async def serve_graphs(declared: Mapping[str, Graph]) -> dict[str, ServedGraph]:
    """Resolve and compile all of them. Raises `StartupError` naming the model that is wrong."""
    return {name: await serve_graph(name, graph) for name, graph in declared.items()}


def _as_graph(declared: Any) -> Graph:
    return declared if isinstance(declared, Graph) else Graph(declared)


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and module.startswith(error.name):
            raise StartupError(f"There is no module {module!r} to serve graphs from.") from error
        raise


def _attribute(module: Any, name: str, where: str) -> Any:
    found = getattr(module, name, None)
    if found is None:
        raise StartupError(f"{where}: the module has no {name!r}.")
    return found


def _from_langgraph_json(path: Path) -> dict[str, Graph]:
    try:
        config = json.loads(path.read_text())
        graphs = dict(config["graphs"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StartupError(
            f"{path}: no readable langgraph.json with 'graphs' ({error})."
        ) from error
    root = path.resolve().parent
    _set_up(config, root)
    return {name: _from_entry(name, entry, root) for name, entry in graphs.items()}


def _set_up(config: Mapping[str, Any], root: Path) -> None:
    """What LangGraph's own server does with `dependencies` and `env`, as far as it concerns
    imports."""
    for entry in (".", *config.get("dependencies", ())):
        folder = (root / entry).resolve()
        if folder.is_dir() and str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    env = config.get("env", {})
    pairs = env.items() if isinstance(env, Mapping) else _env_file(root / env)
    for key, value in pairs:
        os.environ.setdefault(key, str(value))


def _env_file(path: Path) -> list[tuple[str, str]]:
    if not path.is_file():
        return []
    lines = (line.strip().removeprefix("export ") for line in path.read_text().splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return [(key.strip(), value.strip().strip("'\"")) for key, _, value in pairs]


def _from_entry(name: str, entry: Any, root: Path) -> Graph:
    spec = entry if isinstance(entry, str) else entry.get("path", "")
    description = "" if isinstance(entry, str) else entry.get("description") or ""
    place, _, attribute = spec.rpartition(":")
    if not place:
        raise StartupError(f"langgraph.json: graph {name!r} should be 'path/to/file.py:variable'.")
    module = _load_file(root / place, name) if place.endswith(".py") else _import(place)
    return Graph(_attribute(module, attribute, spec), description=description)


def _load_file(path: Path, name: str) -> Any:
    known = f"fermata_graph_{name.replace('-', '_')}"
    spec = importlib.util.spec_from_file_location(known, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise StartupError(f"langgraph.json: there is no file {path} for graph {name!r}.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[known] = module
    spec.loader.exec_module(module)
    return module
