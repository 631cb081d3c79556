"""Which nodes speak live: small node functions, both ways.

`@speaks` marks a node whose tokens may be shown at once, `@silent` one that waits for its update.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
from collections.abc import Callable
from typing import Annotated, Any, TypedDict, cast

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware, ModelRetryMiddleware
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.config import get_stream_writer
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph, add_messages
from langgraph.types import Command, RetryPolicy, StreamWriter, interrupt

from gateway.runs.speech import speaking_nodes

model: Any = GenericFakeChatModel(messages=iter([]))
other: Any = GenericFakeChatModel(messages=iter([]))
prompt = ChatPromptTemplate.from_messages([("human", "{question}")])
chain = prompt | model
parsed = chain | StrOutputParser()
log = logging.getLogger(__name__)
lock = asyncio.Lock()
RULES = ["be brief", "be kind"]

Node = Callable[..., Any]
SPEAKING: list[Any] = []
SILENT: list[Any] = []


def speaks(function: Node) -> Node:
    SPEAKING.append(pytest.param(function, id=function.__name__))
    return function


def silent(function: Node) -> Node:
    SILENT.append(pytest.param(function, id=function.__name__))
    return function


def of_node(function: Any, **options: Any) -> frozenset[str]:
    graph = StateGraph(MessagesState)
    graph.add_node("n", function, **options)
    graph.add_edge(START, "n")
    return speaking_nodes(graph.compile())


@pytest.mark.parametrize("function", SPEAKING)
def test_speaks(function: Node) -> None:
    assert of_node(function) == {"n"}


@pytest.mark.parametrize("function", SILENT)
def test_stays_silent(function: Node) -> None:
    assert of_node(function) == frozenset()


# What speaks.


@speaks
async def at_once(state: MessagesState) -> Any:
    return {"messages": [await model.ainvoke(state["messages"])]}


@speaks
def synchronously(state: MessagesState) -> Any:
    return {"messages": [model.invoke(state["messages"])]}


@speaks
async def bare_message(state: MessagesState) -> Any:
    return {"messages": await model.ainvoke(state["messages"])}


@speaks
async def through_names(state: MessagesState) -> Any:
    """With a docstring, a log line and settings."""
    log.info("answering %d messages", len(state["messages"]))
    bound = model.bind_tools([]).with_config(tags=["x"])
    reply = await bound.ainvoke(["Rules: " + "; ".join(RULES), *state["messages"]])
    update = {"messages": [reply], "count": 1}
    return update  # noqa: RET504  # people write it


@speaks
async def with_config(state: MessagesState, config: RunnableConfig) -> Any:
    reply: BaseMessage = await model.ainvoke(state["messages"], config)
    reply.name = "agent"
    return {"messages": [reply], "thread": config["configurable"]["thread_id"]}


@speaks
async def by_command(state: MessagesState) -> Command[str]:
    reply = cast(AIMessage, await model.ainvoke(state["messages"]))
    return Command(update={"messages": [reply]}, goto="tools" if reply.tool_calls else END)


@speaks
async def appended(state: MessagesState) -> Any:
    messages: list[Any] = [HumanMessage("hint")]
    messages.append(await model.ainvoke(state["messages"]))
    return {"messages": messages}


@speaks
async def set_later(state: MessagesState) -> Any:
    update: dict[str, Any] = {}
    update["messages"] = [await model.ainvoke(state["messages"])]
    return update


@speaks
async def with_others(state: MessagesState) -> Any:
    asked: list[Any] = [HumanMessage("asked")]
    return {"messages": asked + [await model.ainvoke(state["messages"])]}  # noqa: RUF005


@speaks
async def either_model(state: MessagesState) -> Any:
    if len(state["messages"]) > 3:
        reply = await model.ainvoke(state["messages"])
    else:
        reply = await other.ainvoke(state["messages"])
    return {"messages": [reply]}


@speaks
async def early_return(state: MessagesState) -> Any:
    if not state["messages"]:
        return {"messages": [AIMessage("Nothing was asked.")]}
    return {"messages": [await model.ainvoke(state["messages"])]}


@speaks
async def after_a_pause(state: MessagesState) -> Any:
    answer = interrupt({"question": "Shall I?"})
    if answer == "yes":
        return {}
    return {"messages": [await model.ainvoke(f"Explain why not: {json.dumps(answer)}")]}


@speaks
async def with_prompt(state: MessagesState) -> Any:
    return {"messages": [await chain.ainvoke({"question": state["messages"][-1].text})]}


@speaks
async def filled_prompt(state: MessagesState) -> Any:
    filled = prompt.invoke({"question": "Why?"})
    return {"messages": [await model.ainvoke(filled)]}


@speaks
async def constructed_here(state: MessagesState) -> Any:
    llm = GenericFakeChatModel(messages=iter([]))
    return {"messages": [await llm.ainvoke(state["messages"])]}


@speaks
async def gathered(state: MessagesState) -> Any:
    whole = None
    async for chunk in model.astream(state["messages"]):
        whole = chunk if whole is None else whole + chunk
    return {"messages": [whole]}


@speaks
async def gathered_in_place(state: MessagesState, writer: StreamWriter) -> Any:
    whole = AIMessageChunk(content="")
    async for chunk in model.astream(state["messages"]):
        whole += chunk
        writer({"length": len(chunk.content)})
    return {"messages": whole}


@speaks
def gathered_with_if(state: MessagesState) -> Any:
    whole = None
    for chunk in model.stream(state["messages"]):
        if whole is None:  # noqa: SIM108
            whole = chunk
        else:
            whole = whole + chunk
    return {"messages": [whole]}


@speaks
async def tells_progress(state: MessagesState) -> Any:
    tell = get_stream_writer()
    tell({"step": "thinking"})
    async with lock:
        await asyncio.sleep(0)
        reply = await model.ainvoke(state["messages"])
    tell({"step": "done"})
    return {"messages": [reply]}


@speaks
async def raises_on(state: MessagesState) -> Any:
    try:
        reply = await model.ainvoke(state["messages"])
    except ValueError:
        log.exception("no answer")
        raise
    return {"messages": [reply]}


@speaks
async def loops_before(state: MessagesState) -> Any:
    lines = []
    for message in state["messages"]:
        if message.type == "human":
            lines.append(message.text)
    texts = [line.strip() for line in lines if line]
    return {"messages": [await model.ainvoke("\n".join(texts))]}


async def say(llm: Any, text: str) -> BaseMessage:
    return await llm.ainvoke(text)


def shout(text: str) -> str:
    return text.upper() if text else "…"


@speaks
async def by_helpers(state: MessagesState) -> Any:
    reply = await say(model, shout(state["messages"][-1].text))
    return {"messages": [reply]}


@speaks
async def quiet_work_in_a_thread(state: MessagesState) -> Any:
    text = await asyncio.to_thread(shout, "hello")
    return {"messages": [await model.ainvoke(text)]}


class TypedUpdate(TypedDict):
    messages: Annotated[list[Any], add_messages]


@speaks
async def typed_update(state: MessagesState) -> Any:
    return TypedUpdate(messages=[await model.ainvoke(state["messages"])])


@speaks
async def matched(state: MessagesState) -> Any:
    match state["messages"]:
        case [only]:
            reply = await model.ainvoke([only])
        case _:
            reply = await model.ainvoke(state["messages"])
    return {"messages": [reply]}


# What stays silent.


@silent
async def fixed(state: MessagesState) -> Any:
    return {"messages": [AIMessage("fixed")]}


@silent
async def dropped(state: MessagesState) -> Any:
    await model.ainvoke(state["messages"])
    return {}


@silent
async def kept_elsewhere(state: MessagesState) -> Any:
    return {"plan": [await model.ainvoke(state["messages"])]}


@silent
async def thinks_first(state: MessagesState) -> Any:
    plan = await model.ainvoke(state["messages"])
    return {"messages": [await model.ainvoke([plan, *state["messages"]])]}


@silent
async def thinks_after(state: MessagesState) -> Any:
    reply = await model.ainvoke(state["messages"])
    await other.ainvoke([reply])
    return {"messages": [reply]}


@silent
async def nested_thought(state: MessagesState) -> Any:
    return {"messages": [await model.ainvoke([await other.ainvoke("plan")])]}


@silent
async def copied(state: MessagesState) -> Any:
    reply = await model.ainvoke(state["messages"])
    return {"messages": [AIMessage(reply.content)]}


@silent
async def changed(state: MessagesState) -> Any:
    reply = await model.ainvoke(state["messages"])
    reply.content = reply.content.replace("secret", "…")
    return {"messages": [reply]}


@silent
async def text_only(state: MessagesState) -> Any:
    return {"messages": [await parsed.ainvoke({"question": "Why?"})]}


@silent
async def perhaps(state: MessagesState) -> Any:
    reply = await model.ainvoke(state["messages"])
    if "unsafe" in reply.text:
        return {"messages": [AIMessage("I cannot say that.")]}
    return {"messages": [reply]}


@silent
async def perhaps_inline(state: MessagesState) -> Any:
    reply = await model.ainvoke(state["messages"])
    return {"messages": [reply]} if reply.content else {}


@silent
async def tries_again(state: MessagesState) -> Any:
    for _ in range(3):
        reply = await model.ainvoke(state["messages"])
        if reply.content:
            break
    return {"messages": [reply]}


@silent
async def falls_back(state: MessagesState) -> Any:
    try:
        reply = await model.ainvoke(state["messages"])
    except ValueError:
        reply = AIMessage("Sorry.")
    return {"messages": [reply]}


@silent
async def swallows(state: MessagesState) -> Any:
    reply: Any = AIMessage("Sorry.")
    with contextlib.suppress(ValueError):
        reply = await model.ainvoke(state["messages"])
    return {"messages": [reply]}


@silent
async def pauses_after(state: MessagesState) -> Any:
    reply = await model.ainvoke(state["messages"])
    interrupt({"draft": reply.text})
    return {"messages": [reply]}


def ask(text: str) -> Any:
    return interrupt({"question": text})


@silent
async def pauses_in_a_helper(state: MessagesState) -> Any:
    reply = await model.ainvoke(state["messages"])
    ask(reply.text)
    return {"messages": [reply]}


def secretly(text: str) -> str:
    return model.invoke(text).text


@silent
async def helper_thinks(state: MessagesState) -> Any:
    hint = secretly("hint")
    return {"messages": [await model.ainvoke(hint)]}


@silent
async def thinks_in_a_thread(state: MessagesState) -> Any:
    hint = await asyncio.to_thread(secretly, "hint")
    return {"messages": [await model.ainvoke(hint)]}


@silent
async def bound_method_in_a_thread(state: MessagesState) -> Any:
    hint = await asyncio.to_thread(other.invoke, "hint")
    return {"messages": [await model.ainvoke([hint])]}


@silent
async def both_at_once(state: MessagesState) -> Any:
    first, second = await asyncio.gather(model.ainvoke("a"), other.ainvoke("b"))
    return {"messages": [first, second]}


@silent
async def local_helper(state: MessagesState) -> Any:
    def think(text: str) -> Any:
        return other.invoke(text)

    hint = sorted(RULES, key=think)
    return {"messages": [await model.ainvoke(hint)]}


@silent
async def sorts_by_opinion(state: MessagesState) -> Any:
    best = max(RULES, key=lambda rule: len(other.invoke(rule).text))
    return {"messages": [await model.ainvoke(best)]}


@silent
async def from_the_config(state: MessagesState, config: RunnableConfig) -> Any:
    chosen = config["configurable"]["model"]
    return {"messages": [await chosen.ainvoke(state["messages"])]}


@silent
async def stream_is_cut(state: MessagesState) -> Any:
    whole = None
    async for chunk in model.astream(state["messages"]):
        if len(chunk.content) > 3:
            whole = chunk if whole is None else whole + chunk
    return {"messages": [whole]}


@silent
async def stream_is_retold(state: MessagesState) -> Any:
    text = ""
    async for chunk in model.astream(state["messages"]):
        text += chunk.content
    return {"messages": [AIMessage(text)]}


@silent
async def last_chunk_only(state: MessagesState) -> Any:
    async for chunk in model.astream(state["messages"]):
        last = chunk
    return {"messages": [last]}


@silent
async def cleared(state: MessagesState) -> Any:
    update = {"messages": [await model.ainvoke(state["messages"])]}
    update["messages"].clear()
    return update


@silent
async def overwritten(state: MessagesState) -> Any:
    update = {"messages": [await model.ainvoke(state["messages"])]}
    update["messages"] = [AIMessage("…")]
    return update


@silent
async def to_the_parent(state: MessagesState) -> Any:
    reply = await model.ainvoke(state["messages"])
    return Command(graph=Command.PARENT, update={"messages": [reply]}, goto="x")


@silent
async def through_an_agent(state: MessagesState) -> Any:
    result = await AGENT.ainvoke(state)
    return {"messages": [result["messages"][-1]]}


@silent
async def unknown_object(state: MessagesState, config: RunnableConfig) -> Any:
    notes = config["configurable"]["desk"].look_up("x")
    return {"messages": [await model.ainvoke(notes)]}


def retried(function: Node) -> Node:
    @functools.wraps(function)
    async def wrapper(state: MessagesState) -> Any:
        with contextlib.suppress(ValueError):
            return await function(state)
        return await function(state)

    return wrapper


SILENT.append(pytest.param(retried(at_once), id="decorated"))
SILENT.append(pytest.param(lambda state: {"messages": [model.invoke("x")]}, id="lambda"))
SILENT.append(pytest.param(functools.partial(at_once), id="partial"))
SILENT.append(pytest.param(RunnableLambda(dropped), id="runnable_lambda_dropped"))
SPEAKING.append(pytest.param(RunnableLambda(at_once), id="runnable_lambda"))

# Built at run time: there is no source to read.
_unseen: dict[str, Any] = {"model": model}
exec("async def unseen(state):\n    return {'messages': [await model.ainvoke('x')]}", _unseen)
SILENT.append(pytest.param(_unseen["unseen"], id="no_source"))


class Desk:
    def __init__(self, llm: Any) -> None:
        self.llm = llm
        self.rules = RULES

    async def answer(self, state: MessagesState) -> Any:
        return {"messages": [await self.llm.ainvoke([*self.rules, *state["messages"]])]}

    async def __call__(self, state: MessagesState) -> Any:
        return await self.answer(state)

    @property
    def chosen(self) -> Any:
        raise AssertionError("the analysis runs nothing of the author's")

    async def by_property(self, state: MessagesState) -> Any:
        return {"messages": [await self.chosen.ainvoke(state["messages"])]}


SPEAKING.append(pytest.param(Desk(model).answer, id="method"))
SPEAKING.append(pytest.param(Desk(model), id="callable_object"))
SILENT.append(pytest.param(Desk(parsed).answer, id="method_with_a_chain"))
SILENT.append(pytest.param(Desk(model).by_property, id="property"))


def by_closure(llm: Any) -> Node:
    async def answer(state: MessagesState) -> Any:
        return {"messages": [await llm.ainvoke(state["messages"])]}

    return answer


SPEAKING.append(pytest.param(by_closure(model), id="closure"))
SILENT.append(pytest.param(by_closure(object()), id="closure_over_something_else"))


# Graphs.


class CallingModel(GenericFakeChatModel):
    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self


AGENT: Any = create_agent(CallingModel(messages=iter([])), tools=[])


def test_a_node_that_is_tried_again_would_say_it_twice() -> None:
    assert of_node(at_once, retry_policy=RetryPolicy()) == frozenset()


def test_without_a_messages_channel_nothing_speaks() -> None:
    async def answer(state: Any) -> Any:
        return {"messages": [await model.ainvoke("x")]}

    graph = StateGraph(TypedDict("Plan", {"plan": str}))  # type: ignore[arg-type]
    graph.add_node("n", answer)
    graph.add_edge(START, "n")

    assert speaking_nodes(graph.compile()) == frozenset()


def look_up(city: str) -> str:
    """Weather."""
    return city


def test_the_agents_of_langchain_and_langgraph_speak() -> None:
    llm = CallingModel(messages=iter([]))
    gate = HumanInTheLoopMiddleware(interrupt_on={"look_up": True})

    assert speaking_nodes(create_agent(llm, [look_up])) == {"model"}
    assert speaking_nodes(create_agent(llm, [look_up], middleware=[gate])) == {"model"}


@pytest.mark.filterwarnings("ignore:create_react_agent has been moved")
def test_the_agent_of_langgraph_speaks_unless_a_function_chooses_its_model() -> None:
    from langgraph.prebuilt import create_react_agent

    llm = CallingModel(messages=iter([]))

    assert speaking_nodes(create_react_agent(llm, [look_up])) == {"agent"}
    assert speaking_nodes(create_react_agent(lambda state, runtime: llm, [look_up])) == frozenset()


def test_an_agent_whose_model_call_is_wrapped_stays_silent() -> None:
    agent = create_agent(
        CallingModel(messages=iter([])), [look_up], middleware=[ModelRetryMiddleware()]
    )

    assert speaking_nodes(agent) == frozenset()


def test_nodes_of_a_subgraph_speak_under_their_path() -> None:
    inner = StateGraph(MessagesState)
    inner.add_node("think", dropped)
    inner.add_node("answer", at_once)
    inner.add_edge(START, "think")
    inner.add_edge("think", "answer")
    outer = StateGraph(MessagesState)
    outer.add_node("desk", inner.compile())
    outer.add_node("agent", AGENT)
    outer.add_edge(START, "desk")
    outer.add_edge("desk", "agent")

    assert speaking_nodes(outer.compile()) == {"desk:answer", "agent:model"}


def test_a_subgraph_that_keeps_its_messages_stays_silent() -> None:
    inner = StateGraph(MessagesState, output_schema=TypedDict("Out", {"done": bool}))  # type: ignore[arg-type]
    inner.add_node("answer", at_once)
    inner.add_edge(START, "answer")
    outer = StateGraph(MessagesState)
    outer.add_node("desk", inner.compile())
    outer.add_edge(START, "desk")

    assert speaking_nodes(outer.compile()) == frozenset()


@task
async def write(text: str) -> BaseMessage:
    return await model.ainvoke(text)


@task
def write_in_a_thread(text: str) -> BaseMessage:
    return model.invoke(text)


@task
async def write_text(text: str) -> str:
    return (await model.ainvoke(text)).text


@task
async def plan(text: str) -> BaseMessage:
    return await model.ainvoke(text)


def test_functional_entrypoints_and_tasks() -> None:
    @entrypoint()
    async def directly(text: str) -> Any:
        return await model.ainvoke(text)

    @entrypoint()
    async def saved(text: str) -> Any:
        reply = await model.ainvoke(text)
        return entrypoint.final(value={"messages": [reply]}, save=text)

    @entrypoint()
    async def by_task(text: str) -> Any:
        outline = await plan(text)
        return await write(outline.text)

    @entrypoint()
    def by_future(text: str) -> Any:
        return [write_in_a_thread(text).result()]

    @entrypoint()
    async def asks_after(text: str) -> Any:
        reply = await write(text)
        interrupt("publish?")
        return reply

    @entrypoint()
    async def as_text(text: str) -> Any:
        return await write_text(text)

    spoken = [directly, saved, by_task, by_future, asks_after, as_text]
    assert [sorted(speaking_nodes(graph)) for graph in spoken] == [
        ["directly"],
        ["saved"],
        ["write"],
        ["write_in_a_thread"],
        [],
        [],
    ]


async def test_paths_are_those_of_the_streamed_messages() -> None:
    def talking() -> Any:
        return GenericFakeChatModel(messages=iter([AIMessage("hello there")]))

    @task
    async def tell(text: str) -> BaseMessage:
        return await llm.ainvoke(text)

    @entrypoint()
    async def flow(text: str) -> Any:
        return await tell(text)

    inner = StateGraph(MessagesState)
    inner.add_node("answer", by_closure(talking()))
    inner.add_edge(START, "answer")
    outer = StateGraph(MessagesState)
    outer.add_node("desk", inner.compile())
    outer.add_edge(START, "desk")
    llm = talking()

    graphs: list[tuple[Any, Any]] = [(outer.compile(), {"messages": ["hi"]}), (flow, "hi")]
    for graph, given in graphs:
        parts = graph.astream(given, stream_mode="messages", subgraphs=True)
        heard = {(*steps, meta["langgraph_node"]) async for steps, (_, meta) in parts}
        paths = {":".join(step.partition(":")[0] for step in steps) for steps in heard}
        assert speaking_nodes(graph) == paths
