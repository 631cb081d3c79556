"""What we rely on in LangGraph, so that an upgrade tells what changed (design: LangGraph).

Small graphs on its in-memory saver; where checkpoints are copied, a real PostgreSQL.
"""

from __future__ import annotations

import asyncio
import operator
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.errors import GraphDrained, UnknownInterruptError
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.pregel._loop import PregelLoop
from langgraph.pregel.protocol import StreamProtocol
from langgraph.runtime import DEFAULT_RUNTIME, RunControl
from langgraph.types import Command, Interrupt, Send, interrupt
from psycopg import AsyncConnection, sql
from psycopg.rows import dict_row

from gateway.runs.drive import STRICT_RESUME
from gateway.runs.hearing import RUNTIME, STREAM
from gateway.store.checkpoint_rows import load_checkpoints, save_checkpoints
from gateway.store.checkpoints import TABLES, RunMemory, new_memory

HEX_ID = re.compile(r"[0-9a-f]{32}")


class State(TypedDict):
    said: Annotated[list[str], operator.add]


def fresh() -> dict[str, Any]:
    return {"said": []}


class Run:
    """A graph on one in-memory saver and thread, driven as the gateway drives it."""

    def __init__(self, graph: Any, memory: InMemorySaver | None = None, *, strict: bool = True):
        self.memory = memory or InMemorySaver()
        self.graph = graph.copy({"checkpointer": self.memory})
        self.config: Any = {"configurable": {"thread_id": "run_1", STRICT_RESUME: strict}}

    async def go(self, value: Any, **config: Any) -> Any:
        settings = {"configurable": {**self.config["configurable"], **config}}
        return await self.graph.ainvoke(value, settings, durability="exit")

    async def answer(self, answers: dict[str, Any]) -> Any:
        return await self.go(Command(resume=answers))

    async def pending(self) -> list[Interrupt]:
        return list((await self.graph.aget_state(self.config)).interrupts)

    async def pending_ids(self) -> list[str]:
        return [one.id for one in await self.pending()]

    async def next(self) -> tuple[str, ...]:
        return tuple((await self.graph.aget_state(self.config)).next)

    async def rows(self) -> tuple[int, int]:
        """Checkpoints, and pending writes of the newest."""
        found = [one async for one in self.memory.alist(self.config)]
        return len(found), len(found[0].pending_writes or ()) if found else 0


def chain(*nodes: Any) -> Any:
    """A compiled graph of these nodes, one after the other."""
    graph: Any = StateGraph(State)
    names = [node.__name__ for node in nodes]
    for name, node in zip(names, nodes, strict=True):
        graph.add_node(name, node)
    for start, end in zip([START, *names], [*names, END], strict=True):
        graph.add_edge(start, end)
    return graph.compile()


def ask(question: str) -> dict[str, Any]:
    return {"said": [f"{question}={interrupt(question)}"]}


def two_questions(state: State) -> dict[str, Any]:
    first = interrupt("first")
    second = interrupt("second")
    return {"said": [f"{first},{second}"]}


def one_question(state: State) -> dict[str, Any]:
    return ask("only")


def speak(state: State) -> dict[str, Any]:
    return {"said": ["spoken"]}


def fan_out(count: int = 3) -> Any:
    """`count` tasks of one node, each with a question of its own."""
    graph: Any = StateGraph(State)
    graph.add_node("each", ask)
    graph.add_conditional_edges(
        START, lambda state: [Send("each", f"q{n}") for n in range(count)], ["each"]
    )
    graph.add_edge("each", END)
    return graph.compile()


def loop_of_three() -> Any:
    graph: Any = StateGraph(State)
    graph.add_node("each", lambda state: ask(f"q{len(state['said'])}"))
    graph.add_edge(START, "each")
    graph.add_conditional_edges(
        "each", lambda state: END if len(state["said"]) == 3 else "each", [END, "each"]
    )
    return graph.compile()


def with_subgraph() -> Any:
    """A root graph whose second node is a subgraph with two questions in two nodes."""
    inner: Any = StateGraph(State)
    inner.add_node("inner_1", lambda state: ask("inner 1"))
    inner.add_node("inner_2", lambda state: ask("inner 2"))
    inner.add_edge(START, "inner_1")
    inner.add_edge("inner_1", "inner_2")
    outer: Any = StateGraph(State)
    outer.add_node("before", lambda state: {"said": ["before"]})
    outer.add_node("inner", inner.compile())
    outer.add_edge(START, "before")
    outer.add_edge("before", "inner")
    return outer.compile()


# --- ids -------------------------------------------------------------------------------------


async def test_an_id_is_a_hash_and_the_second_question_of_a_node_has_another() -> None:
    run = Run(chain(two_questions))
    await run.go(fresh())
    (first,) = await run.pending_ids()
    assert HEX_ID.match(first)
    await run.answer({first: 1})
    (second,) = await run.pending_ids()
    assert second != first


async def test_the_same_question_has_the_same_id_until_it_is_answered() -> None:
    run = Run(fan_out(2))
    await run.go(fresh())
    before = await run.pending_ids()
    await run.answer({before[0]: "x"})
    assert await run.pending_ids() == before[1:]


async def test_every_task_of_a_fan_out_has_an_id_of_its_own() -> None:
    run = Run(fan_out(3))
    await run.go(fresh())
    pending = await run.pending()
    assert [one.value for one in pending] == ["q0", "q1", "q2"]
    assert len({one.id for one in pending}) == 3


# --- strict resume ---------------------------------------------------------------------------


async def test_without_strict_a_stale_id_answers_the_next_question() -> None:
    """Why strict is needed; when this fails, LangGraph has become safe by itself."""
    run = Run(chain(two_questions), strict=False)
    await run.go(fresh())
    (first,) = await run.pending_ids()
    await run.answer({first: "one"})
    result = await run.answer({first: "again"})
    assert result["said"] == ["one,again"]


async def test_C03_strict_refuses_a_stale_id_before_anything_is_written() -> None:
    run = Run(chain(two_questions))
    await run.go(fresh())
    (first,) = await run.pending_ids()
    await run.answer({first: "one"})
    before, rows = await run.pending_ids(), await run.rows()
    with pytest.raises(UnknownInterruptError):
        await run.answer({first: "again"})
    assert (await run.pending_ids(), await run.rows()) == (before, rows)
    assert (await run.answer({before[0]: "two"}))["said"] == ["one,two"]


@pytest.mark.parametrize("resume", [{}, {"0" * 32: "x"}, "a scalar"])
async def test_strict_refuses_unknown_ids_empty_maps_and_scalars_for_several(resume: Any) -> None:
    run = Run(fan_out(2))
    await run.go(fresh())
    before = await run.pending_ids()
    with pytest.raises((UnknownInterruptError, RuntimeError)):
        await run.go(Command(resume=resume))
    assert await run.pending_ids() == before


async def test_strict_refuses_a_finished_thread() -> None:
    run = Run(chain(one_question))
    await run.go(fresh())
    (only,) = await run.pending_ids()
    await run.answer({only: "x"})
    with pytest.raises(UnknownInterruptError):
        await run.answer({only: "x"})


async def test_strict_is_off_at_an_older_checkpoint() -> None:
    """Why the gateway never names one: the effect runs again."""
    effects: list[str] = []

    def act(state: State) -> dict[str, Any]:
        effects.append("done")
        return {"said": []}

    run = Run(chain(one_question, act))
    await run.go(fresh())
    at = (await run.graph.aget_state(run.config)).config["configurable"]["checkpoint_id"]
    (only,) = await run.pending_ids()
    await run.answer({only: "one"})
    await run.go(Command(resume={only: "one"}), checkpoint_id=at)
    assert effects == ["done", "done"]


# --- answers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, False, "", 0, {}, [], "\u0000", {"a": [1]}])
async def test_C14_any_value_passes_in_a_map(value: Any) -> None:
    seen: list[Any] = []

    def node(state: State) -> dict[str, Any]:
        seen.append(interrupt("?"))
        return {"said": ["done"]}

    run = Run(chain(node))
    await run.go(fresh())
    (only,) = await run.pending_ids()
    assert (await run.answer({only: value}))["said"] == ["done"]
    assert seen == [value]


async def test_C14_a_bare_none_crashes() -> None:
    """Why a null answer goes as `{id: None}`."""
    run = Run(chain(one_question))
    await run.go(fresh())
    with pytest.raises(UnboundLocalError):
        await run.go(Command(resume=None))


async def test_a_partial_map_keeps_what_was_answered_and_asks_the_rest_again() -> None:
    entered: list[str] = []

    def each(item: Any) -> dict[str, Any]:
        entered.append(item)
        return ask(item)

    graph: Any = StateGraph(State)
    graph.add_node("each", each)
    graph.add_conditional_edges(
        START, lambda state: [Send("each", one) for one in ("a", "b", "c")], ["each"]
    )
    run = Run(graph.compile())
    await run.go(fresh())
    ids = {one.value: one.id for one in await run.pending()}
    entered.clear()
    await run.answer({ids["b"]: "B"})
    assert sorted(entered) == ["a", "b", "c"]  # the others' code before their interrupt ran again
    assert [one.value for one in await run.pending()] == ["a", "c"]
    entered.clear()
    result = await run.answer({ids["c"]: "C", ids["a"]: "A"})
    assert sorted(entered) == ["a", "c"]
    assert result["said"] == ["a=A", "b=B", "c=C"]


async def test_C17_interrupt_before_pauses_without_an_interrupt_and_goes_on_with_none() -> None:
    graph: Any = StateGraph(State)
    graph.add_node("act", lambda state: {"said": ["acted"]})
    graph.add_edge(START, "act")
    run = Run(graph.compile(checkpointer=InMemorySaver(), interrupt_before=["act"]))
    await run.go(fresh())
    assert (await run.next(), await run.pending()) == (("act",), [])
    assert (await run.go(None))["said"] == ["acted"]


# --- exit durability -------------------------------------------------------------------------


async def test_a_finished_run_leaves_one_checkpoint_and_a_pause_its_interrupts() -> None:
    def step(state: State) -> dict[str, Any]:
        return {"said": ["step"]}

    done = Run(chain(step))
    await done.go(fresh())
    assert await done.rows() == (1, 0)
    paused = Run(fan_out(3))
    await paused.go(fresh())
    checkpoints, writes = await paused.rows()
    assert checkpoints == 1
    assert writes >= 3


async def test_a_failure_in_a_later_node_goes_on_there_with_none() -> None:
    """The gateway's retry after a failure: the answered node and what followed it are kept."""
    calls: list[str] = []

    def effect(state: State) -> dict[str, Any]:
        calls.append("effect")
        return {"said": ["effect"]}

    def fails_once(state: State) -> dict[str, Any]:
        calls.append("fails_once")
        if calls.count("fails_once") == 1:
            raise ValueError("once")
        return {"said": ["through"]}

    run = Run(chain(one_question, effect, fails_once))
    await run.go(fresh())
    (only,) = await run.pending_ids()
    with pytest.raises(ValueError, match="once"):
        await run.answer({only: "yes"})
    assert (await run.pending_ids(), await run.next()) == ([], ("fails_once",))
    assert (await run.go(None))["said"] == ["only=yes", "effect", "through"]
    assert calls == ["effect", "fails_once", "fails_once"]


async def test_a_failure_in_the_asking_node_is_resumed_with_the_same_map() -> None:
    calls: list[Any] = []

    def asks_and_fails_once(state: State) -> dict[str, Any]:
        calls.append(interrupt("?"))
        if len(calls) == 1:
            raise ValueError("once")
        return {"said": ["through"]}

    run = Run(chain(asks_and_fails_once))
    await run.go(fresh())
    (only,) = await run.pending_ids()
    with pytest.raises(ValueError, match="once"):
        await run.answer({only: "yes"})
    assert await run.pending_ids() == [only]
    assert (await run.answer({only: "yes"}))["said"] == ["through"]
    assert calls == ["yes", "yes"]


# --- checkpoints copied to PostgreSQL and back -----------------------------------------------


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[AsyncConnection[dict[str, Any]]]:
    async with await AsyncConnection.connect(
        url, autocommit=True, row_factory=dict_row
    ) as connection:
        yield connection


async def moved(url: str, memory: InMemorySaver) -> InMemorySaver:
    """The checkpoints of `memory` after they were written to PostgreSQL and read by another."""
    async with connected(url) as conn:
        await save(conn, memory)
    async with connected(url) as conn:
        return await load_checkpoints(conn, "run_1")


async def save(conn: AsyncConnection[dict[str, Any]], memory: InMemorySaver) -> None:
    """Write `memory`, and nothing else, to PostgreSQL."""
    for table in TABLES:
        await conn.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(table)))
    async with conn.transaction():
        await save_checkpoints(conn, "run_1", as_ours(memory))


def as_ours(memory: InMemorySaver) -> RunMemory:
    """What `memory` holds, on a saver of ours."""
    if isinstance(memory, RunMemory):
        return memory
    ours = new_memory()
    ours.storage, ours.writes, ours.blobs = memory.storage, memory.writes, memory.blobs
    return ours


def appended(state: list[Any] | None, writes: Sequence[list[Any]]) -> list[Any]:
    return [*(state or ()), *(one for write in writes for one in write)]


class Kinds(TypedDict, total=False):
    said: Annotated[list[str], operator.add]
    messages: Annotated[list[Any], DeltaChannel(appended)]
    text: str
    number: int
    part: float
    flag: bool
    nothing: None
    never: str
    zero: bytes
    when: datetime


def many_kinds(state: Kinds) -> dict[str, Any]:
    return {
        "messages": [AIMessage("hello", id="1")],
        "text": "Grüße 🙂",
        "number": 7,
        "part": 0.1,
        "flag": True,
        "nothing": None,
        "zero": b"a\0b",
        "when": datetime(2026, 11, 30, 12, tzinfo=UTC),
    }


def fan_out_of_kinds() -> Any:
    graph: Any = StateGraph(Kinds)
    graph.add_node("many_kinds", many_kinds)
    graph.add_node("each", ask)
    graph.add_edge(START, "many_kinds")
    graph.add_conditional_edges(
        "many_kinds", lambda state: [Send("each", f"q{n}") for n in range(12)], ["each"]
    )
    graph.add_edge("each", END)
    return graph.compile()


PAUSING = pytest.mark.parametrize(
    "graph",
    [chain(two_questions), fan_out(12), with_subgraph(), fan_out_of_kinds()],
    ids=["two questions of one node", "a fan-out", "a subgraph", "values of many kinds"],
)


@PAUSING
async def test_langgraphs_saver_reads_what_we_write(database_url: str, graph: Any) -> None:
    run = Run(graph)
    await run.go(fresh())
    async with connected(database_url) as conn:
        await save(conn, run.memory)
        read = [one async for one in AsyncPostgresSaver(conn).alist(run.config)]
        assert told(read) == told(run.memory.list(run.config))
        resumed = run.graph.copy({"checkpointer": AsyncPostgresSaver(conn)})
        state = await resumed.aget_state(run.config)
    assert [one.id for one in state.interrupts] == await run.pending_ids()
    assert state.values == (await run.graph.aget_state(run.config)).values


@PAUSING
async def test_we_read_what_langgraphs_saver_wrote(database_url: str, graph: Any) -> None:
    """Every pause, and every step of a background run, was written through it once."""
    run = Run(graph)
    async with connected(database_url) as conn:
        for table in TABLES:
            await conn.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(table)))
        run.graph = run.graph.copy({"checkpointer": AsyncPostgresSaver(conn)})
        await run.graph.ainvoke(fresh(), run.config, durability="sync")
        written = [one async for one in AsyncPostgresSaver(conn).alist(run.config)]
        memory = await load_checkpoints(conn, "run_1")
    assert told(memory.list(run.config)) == told(written)
    resumed = Run(graph, memory)
    assert await resumed.pending_ids() == [
        one.id for task in (await run_state(database_url, run)).tasks for one in task.interrupts
    ]


async def run_state(url: str, run: Run) -> Any:
    async with connected(url) as conn:
        graph = run.graph.copy({"checkpointer": AsyncPostgresSaver(conn)})
        return await graph.aget_state(run.config)


def told(tuples: Iterable[CheckpointTuple]) -> list[Any]:
    """What savers say of a thread, in an order that they share."""
    return sorted(
        (
            [
                one.config["configurable"],
                one.checkpoint,
                one.metadata,
                one.parent_config,
                sorted(one.pending_writes or (), key=repr),
            ]
            for one in tuples
        ),
        key=lambda one: (one[0]["checkpoint_ns"], one[0]["checkpoint_id"]),
    )


async def test_a_text_that_json_columns_refuse_is_kept(database_url: str) -> None:
    """LangGraph's saver keeps short texts in a JSON column, which takes no NUL."""
    graph: Any = StateGraph(Kinds)
    graph.add_node("writes", lambda state: {"text": "a\0b"})
    graph.add_node("asks", lambda state: {"said": [interrupt("?")]})
    graph.add_edge(START, "writes")
    graph.add_edge("writes", "asks")
    run = Run(graph.compile())
    await run.go({})
    copied = Run(run.graph, await moved(database_url, run.memory))
    assert (await copied.graph.aget_state(copied.config)).values["text"] == "a\0b"


async def test_checkpoints_written_over_earlier_ones_count(database_url: str) -> None:
    """A background run has rows of its steps when it pauses."""
    run = Run(chain(two_questions))
    await run.go(fresh())
    async with connected(database_url) as conn:
        await save(conn, run.memory)
        await run.answer(dict.fromkeys(await run.pending_ids(), "one"))
        await save_checkpoints(conn, "run_1", as_ours(run.memory))
        copied = Run(run.graph, await load_checkpoints(conn, "run_1"))
    assert await copied.pending_ids() == await run.pending_ids()


@pytest.mark.parametrize(
    ("graph", "batches", "said"),
    [
        (chain(two_questions), [["first"], ["second"]], ["first!,second!"]),
        (loop_of_three(), [["q0"], ["q1"], ["q2"]], ["q0=q0!", "q1=q1!", "q2=q2!"]),
        (fan_out(3), [["q0", "q1", "q2"]], ["q0=q0!", "q1=q1!", "q2=q2!"]),
        (
            with_subgraph(),
            [["inner 1"], ["inner 2"]],
            ["before", "before", "inner 1=inner 1!", "inner 2=inner 2!"],
        ),
    ],
    ids=["two questions of one node", "a loop of three", "a fan-out", "a subgraph"],
)
async def test_a_run_resumes_from_its_copy(
    database_url: str, graph: Any, batches: list[list[str]], said: list[str]
) -> None:
    run = Run(graph)
    result = await run.go(fresh())
    for batch in batches:
        run = Run(graph, await moved(database_url, run.memory))
        pending = await run.pending()
        assert [one.value for one in pending] == batch
        result = await run.answer({one.id: f"{one.value}!" for one in pending})
    assert result["said"] == said
    assert await run.pending() == []


async def test_a_partly_answered_fan_out_resumes_from_its_copy(database_url: str) -> None:
    run = Run(fan_out(3))
    await run.go(fresh())
    ids = await run.pending_ids()
    run = Run(run.graph, await moved(database_url, run.memory))
    await run.answer({ids[1]: "b"})
    run = Run(run.graph, await moved(database_url, run.memory))
    assert await run.pending_ids() == [ids[0], ids[2]]
    result = await run.answer({ids[2]: "c", ids[0]: "a"})
    assert result["said"] == ["q0=a", "q1=b", "q2=c"]


async def test_C03_a_copy_refuses_a_stale_id_as_the_original_does(database_url: str) -> None:
    run = Run(chain(two_questions))
    await run.go(fresh())
    (first,) = await run.pending_ids()
    run = Run(run.graph, await moved(database_url, run.memory))
    await run.answer({first: "one"})
    run = Run(run.graph, await moved(database_url, run.memory))
    with pytest.raises(UnknownInterruptError):
        await run.answer({first: "again"})


@pytest.mark.parametrize("where", ["the same node", "a later node"])
async def test_C12_a_failed_run_goes_on_from_its_copy(database_url: str, where: str) -> None:
    calls: list[str] = []

    def fail_once(name: str) -> None:
        calls.append(name)
        if where == name and calls.count(name) == 1:
            raise ValueError(name)

    def asks(state: State) -> dict[str, Any]:
        answer = interrupt("?")
        fail_once("the same node")
        return {"said": [answer]}

    def follows(state: State) -> dict[str, Any]:
        fail_once("a later node")
        return {"said": ["done"]}

    run = Run(chain(asks, follows))
    await run.go(fresh())
    (only,) = await run.pending_ids()
    run = Run(run.graph, await moved(database_url, run.memory))
    with pytest.raises(ValueError, match=where):
        await run.answer({only: "yes"})
    run = Run(run.graph, await moved(database_url, run.memory))
    still = await run.pending_ids()
    assert still == ([only] if where == "the same node" else [])
    result = await (run.answer({only: "yes"}) if still else run.go(None))
    assert result["said"] == ["yes", "done"]
    assert calls.count("a later node") == (1 if still else 2)


async def test_a_cheap_saver_is_like_one_that_was_constructed() -> None:
    cheap, constructed = new_memory(), InMemorySaver()
    assert vars(cheap).keys() == vars(constructed).keys() | {"late", "keeps_newest"}
    for name, value in vars(constructed).items():
        kind = dict if isinstance(value, dict) else type(value)
        assert isinstance(getattr(cheap, name), kind), name
    results = []
    for memory in (cheap, constructed):
        run = Run(with_subgraph(), memory)
        await run.go(fresh())
        for _ in range(2):
            result = await run.answer(dict.fromkeys(await run.pending_ids(), "x"))
        results.append((result, await run.rows(), await run.pending()))
    assert results[0] == results[1]


async def test_what_nobody_reads_is_never_serialised() -> None:
    memory = new_memory()
    run = Run(chain(speak), memory)
    await run.go(fresh())
    assert len(memory.late) == 1
    assert not memory.storage["run_1"][""]
    (saved,) = memory.list(run.config)
    assert saved.checkpoint["channel_values"]["said"] == ["spoken"]
    assert not memory.late


async def test_a_checkpoint_cannot_be_changed_once_it_was_read() -> None:
    memory = new_memory()
    await Run(chain(speak), memory).go(fresh())
    values = memory.late[0][1]["channel_values"]
    (before,) = memory.list(None)
    values["said"].append("later")
    (after,) = memory.list(None)
    assert before == after


async def test_cheap_savers_share_nothing() -> None:
    one, other = new_memory(), new_memory()
    await Run(chain(one_question), one).go(fresh())
    assert await Run(chain(one_question), one).pending()
    assert not other.storage
    assert not other.writes
    assert not other.blobs
    assert not await Run(chain(one_question), other).pending()


# --- streaming -------------------------------------------------------------------------------


def model(*texts: str) -> GenericFakeChatModel:
    return GenericFakeChatModel(messages=iter(AIMessage(text) for text in texts))


async def streamed(graph: Any, value: Any) -> list[Any]:
    run = Run(graph)
    stream = run.graph.astream(
        value,
        run.config,
        stream_mode=["messages", "updates"],
        version="v2",
        subgraphs=True,
        durability="exit",
    )
    return [part async for part in stream]


def messages_graph(node: Any) -> Any:
    graph: Any = StateGraph(MessagesState)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    return graph.compile()


async def test_tokens_come_with_their_node_and_the_whole_message_only_as_an_update() -> None:
    fake = model("one two three")

    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await fake.ainvoke(state["messages"])]}

    parts = await streamed(messages_graph(node), {"messages": [("user", "hi")]})
    chunks = [part["data"] for part in parts if part["type"] == "messages"]
    assert "".join(message.text for message, _ in chunks) == "one two three"
    assert {facts["langgraph_node"] for _, facts in chunks} == {"node"}
    assert all(isinstance(message, AIMessageChunk) for message, _ in chunks)
    (update,) = [part["data"] for part in parts if part["type"] == "updates"]
    (whole,) = update["node"]["messages"]
    assert {message.id for message, _ in chunks} == {whole.id}


async def test_a_returned_message_is_streamed_whole_and_old_ones_are_not() -> None:
    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [*state["messages"], AIMessage("new", id="2")]}

    old = AIMessage("old", id="1")
    parts = await streamed(messages_graph(node), {"messages": [old]})
    whole = [part["data"][0] for part in parts if part["type"] == "messages"]
    assert [message.id for message in whole] == ["2"]
    assert not isinstance(whole[0], AIMessageChunk)


async def test_the_tokens_of_thoughts_are_streamed_as_well() -> None:
    """Why the gateway must know which nodes speak."""
    fake = model("a thought")

    async def node(state: MessagesState) -> dict[str, Any]:
        await fake.ainvoke("think")
        return {"messages": [AIMessage("said")]}

    parts = await streamed(messages_graph(node), {"messages": []})
    texts = [part["data"][0].text for part in parts if part["type"] == "messages"]
    assert "thought" in "".join(texts)


async def test_interrupts_come_as_an_update_of_the_root() -> None:
    parts = await streamed(with_subgraph(), fresh())
    found = [
        (part["ns"], one.value)
        for part in parts
        if part["type"] == "updates" and "__interrupt__" in part["data"]
        for one in part["data"]["__interrupt__"]
    ]
    assert ((), "inner 1") in found
    assert all(value == "inner 1" for _, value in found)


# --- steps on record -------------------------------------------------------------------------


async def test_what_a_step_said_is_streamed_before_its_checkpoint_and_the_next_step_waits() -> None:
    """A background run writes both in one transaction, before the next step starts: sync durability
    awaits `aput`, and whoever reads the stream has all that the finished step gave by then."""
    happened: list[str] = []

    class Saver(InMemorySaver):
        async def aput(self, config: Any, checkpoint: Any, metadata: Any, versions: Any) -> Any:
            for _ in range(5):
                await asyncio.sleep(0)  # the next step would start meanwhile
            happened.append(f"put {metadata['step']}")
            return self.put(config, checkpoint, metadata, versions)

    async def one(state: State) -> dict[str, Any]:
        happened.append("one starts")
        return {"said": ["one"]}

    async def two(state: State) -> dict[str, Any]:
        happened.append("two starts")
        return {"said": ["two"]}

    graph: Any = StateGraph(State)
    graph.add_node("one", one)
    graph.add_node("too", one)
    graph.add_node("two", two)
    for start, end in (
        (START, "one"),
        (START, "too"),
        ("one", "two"),
        ("too", "two"),
        ("two", END),
    ):
        graph.add_edge(start, end)
    compiled = graph.compile(checkpointer=Saver())
    parts = compiled.astream(
        fresh(),
        {"configurable": {"thread_id": "run_1"}},
        stream_mode=["messages", "updates"],
        version="v2",
        subgraphs=True,
        durability="sync",
    )
    async for part in parts:
        happened += [f"read {node}" for node in part["data"]]
    assert sorted(happened[2:6]) == ["one starts", "one starts", "read one", "read too"]
    assert happened[:2] == ["put -1", "put 0"]
    assert happened[6:] == ["put 1", "two starts", "read two", "put 2"]


# --- subgraphs that are heard without being waited for ---------------------------------------


async def in_a_thread(state: State) -> dict[str, Any]:
    """A subgraph of a sync node is run in a thread."""
    return await asyncio.to_thread(with_subgraph().invoke, state)


@pytest.mark.parametrize(
    "graph", [with_subgraph(), chain(speak, in_a_thread), fan_out(2), chain(speak, one_question)]
)
async def test_a_stream_in_the_config_hears_what_subgraphs_true_tells(graph: Any) -> None:
    """The two private keys; when this fails, `subgraphs=True` is the way to hear them."""
    wanted = [part async for part in parts_of(graph, {}, subgraphs=True)]
    heard: list[Any] = []
    hearing = {STREAM: StreamProtocol(heard.append, {"updates"}), RUNTIME: DEFAULT_RUNTIME}
    own = [part async for part in parts_of(graph, hearing, subgraphs=False)]
    assert shapes(own) == shapes(part for part in wanted if not part["ns"])
    nested = [{"ns": ns, "data": data} for ns, kind, data in heard if ns and kind == "updates"]
    assert shapes(nested) == shapes(part for part in wanted if part["ns"])


def parts_of(graph: Any, more: dict[str, Any], *, subgraphs: bool) -> Any:
    return Run(graph).graph.astream(
        fresh(),
        {"configurable": {"thread_id": "run_1", STRICT_RESUME: True, **more}},
        stream_mode=["updates"],
        version="v2",
        subgraphs=subgraphs,
        durability="exit",
    )


def shapes(parts: Iterable[Any]) -> list[Any]:
    """Where and what, without the ids that LangGraph makes up anew in each run."""
    return [
        ([step.partition(":")[0] for step in part["ns"]], list(part["data"]), said(part["data"]))
        for part in parts
    ]


def said(update: dict[str, Any]) -> Any:
    return [
        [one.value for one in written] if node == "__interrupt__" else written
        for node, written in update.items()
    ]


# --- durability ------------------------------------------------------------------------------


async def two_subgraphs(state: State) -> dict[str, Any]:
    for name in ("first", "second"):
        await chain(asking(name)).ainvoke(fresh())
    return {"said": ["both"]}


def asking(name: str) -> Any:
    async def question(state: State) -> dict[str, Any]:
        return ask(name)

    return question


@pytest.mark.parametrize(("durability", "third"), [("exit", ["first"]), ("async", [])])
async def test_exit_durability_asks_again_what_an_ended_subgraph_asked(
    durability: Any, third: list[str]
) -> None:
    """Why a run that has asked goes on with `async`; when this fails for `exit`, that will do."""
    run = Run(chain(two_subgraphs))
    await run.graph.ainvoke(fresh(), run.config, durability="exit")
    asked = []
    for _ in range(2):
        (pending,) = await run.pending()
        asked.append(pending.value)
        answer = Command(resume={pending.id: "yes"})
        await run.graph.ainvoke(answer, run.config, durability=durability)
    assert asked == ["first", "second"]
    assert [one.value for one in await run.pending()] == third


async def test_sync_durability_waits_for_what_a_subgraph_without_checkpointer_never_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Why `runs.hearing` gives it something to wait for; when this fails, nothing is needed."""
    inner: Any = StateGraph(State)
    inner.add_node("one", speak)
    inner.add_edge(START, "one")
    outer: Any = StateGraph(State)
    outer.add_node("inner", inner.compile(checkpointer=False))
    outer.add_edge(START, "inner")
    run = Run(outer.compile())
    assert (await run.graph.ainvoke(fresh(), run.config, durability="sync"))["said"]
    monkeypatch.delattr(PregelLoop, "_put_checkpoint_fut")
    with pytest.raises(AttributeError, match="_put_checkpoint_fut"):
        await run.graph.ainvoke(fresh(), run.config, durability="sync")


async def test_a_drained_run_starts_no_further_node_in_any_graph() -> None:
    """A public promise of LangGraph's, on which the end of a cancelled run stands."""
    control, began = RunControl(), []

    async def first(state: State) -> dict[str, Any]:
        began.append("first")
        control.request_drain()
        return {}

    async def second(state: State) -> dict[str, Any]:
        began.append("second")
        return {}

    async def calls(state: State) -> Any:
        return await chain(first, second).ainvoke(state)

    run = Run(chain(calls))
    with pytest.raises(GraphDrained):
        await run.graph.ainvoke(fresh(), run.config, control=control)
    assert began == ["first"]
