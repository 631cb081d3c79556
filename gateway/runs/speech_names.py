"""What the things are that a node's code names: models, pauses, and calls that cannot speak.

Duck-typed by module and name where a class is LangGraph's or LangChain's own, so that no private
module is imported; an unknown thing is never one of these.
"""

from __future__ import annotations

import builtins
import collections
import dataclasses
import enum
import inspect
import logging
import re
import sys
from typing import Any, is_typeddict

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import Runnable, RunnableBinding, RunnableSequence
from pydantic import BaseModel

# Methods that run a model (or a chain, an agent, a retriever) on whatever they are called.
RUNNING = frozenset(
    {"invoke", "ainvoke", "stream", "astream", "batch", "abatch", "transform", "atransform"}
    | {"astream_events", "astream_log", "abatch_as_completed", "batch_as_completed"}
    | {"generate", "agenerate", "predict", "apredict", "arun", "acall"}
)
# Methods of a model that give the same model, dressed.
DRESSING = frozenset({"bind", "bind_tools", "with_config"})
# Methods of plain values; an object that calls a model in its `get` or `append` is not believed in.
OF_VALUES = frozenset(
    name
    for kind in (str, bytes, int, float, list, tuple, dict, set, frozenset, re.Pattern, re.Match,
                 collections.deque, logging.Logger)
    for name in dir(kind)
    if not name.startswith("_")
) | {"model_dump", "model_copy", "pretty_repr", "isoformat", "stream_writer"}  # fmt: skip

_QUIET_MODULES = ("langchain_core.messages", "langchain_core.prompts", "langgraph.runtime")
_QUIET_NAMES = frozenset(
    {("langgraph.config", name) for name in ("get_config", "get_store", "get_stream_writer")}
    | {("langgraph.graph.message", "add_messages"), ("typing", "cast")}
)
_CALLS_BACK = frozenset({"eval", "exec", "map", "filter", "__import__", "setattr", "delattr"})


def is_model(thing: object) -> bool:
    """A chat model, also with settings bound to it or a prompt before it; one call, one message."""
    if isinstance(thing, BaseChatModel):
        return True
    if type(thing) is RunnableBinding:
        return is_model(thing.bound)
    if type(thing) is RunnableSequence:
        *before, last = thing.steps
        return all(isinstance(step, BasePromptTemplate) for step in before) and is_model(last)
    return _named(type(thing)) == ("langchain.chat_models.base", "_ConfigurableModel")


def makes_model(thing: object) -> bool:
    """A model's class, or LangChain's `init_chat_model`."""
    if isinstance(thing, type):
        return issubclass(thing, BaseChatModel)
    return _named(thing) == ("langchain.chat_models.base", "init_chat_model")


def is_pause(thing: object) -> bool:
    """LangGraph's `interrupt` and Fermata's questions: the node may end here and run again."""
    module, name = _named(thing)
    return (module, name) == ("langgraph.types", "interrupt") or (
        module.startswith("gateway.human") and name.startswith("ask_")
    )


def is_task(thing: object) -> bool:
    """A function decorated with LangGraph's `@task`; it streams under its own name."""
    return _named(type(thing)) == ("langgraph.func", "_TaskFunction")


def is_record(thing: object) -> bool:
    """A class whose construction runs nothing but the storing of its fields."""
    if not isinstance(thing, type):
        return False
    plain = (BaseMessage, BaseModel, BaseException, enum.Enum, tuple)
    quiet = issubclass(thing, plain) and not issubclass(thing, Runnable)
    return quiet or is_typeddict(thing) or dataclasses.is_dataclass(thing)


def is_quiet(thing: object) -> bool:
    """A callable that surely runs no model, given arguments that do not either."""
    if is_record(thing):
        return True
    if not (isinstance(thing, type) or inspect.isroutine(thing)):
        return (
            False  # an instance says nothing: a `functools.partial` is the standard library's too
        )
    module, name = _named(thing)
    if module == builtins.__name__:
        return name not in _CALLS_BACK
    if (module, name) in _QUIET_NAMES or module.startswith(_QUIET_MODULES):
        return True
    if (module.partition(".")[0], name) == ("gateway", "current_settings"):
        return True
    return module.partition(".")[0] in sys.stdlib_module_names and not module.startswith("__main__")


def may_run(thing: object) -> bool:
    """Whether handing this thing to somebody else's code could make a model speak."""
    if isinstance(thing, (type, BaseMessage)):
        return False
    return isinstance(thing, Runnable) or (callable(thing) and not is_quiet(thing))


def _named(thing: Any) -> tuple[str, str]:
    owner = getattr(thing, "__self__", None)
    module = getattr(thing, "__module__", None)
    if module is None and owner is not None and not inspect.ismodule(owner):
        module = type(owner).__module__  # a built-in method: its object says where it is from
    return str(module or ""), str(getattr(thing, "__name__", ""))
