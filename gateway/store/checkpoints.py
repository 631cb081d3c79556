"""The savers that a run executes on, in memory, and what a background run writes at each step.

A run has an `InMemorySaver` of its own and touches PostgreSQL only when it pauses (measured: 94 %
of the bare graph's throughput, against 16 % on a shared saver); `checkpoint_rows` moves a paused
run's checkpoints there and back, and writes the steps of a background run.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, TypeAlias

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg import AsyncConnection
from psycopg.rows import DictRow

TABLES = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")


_Late: TypeAlias = list[tuple[RunnableConfig, Checkpoint, CheckpointMetadata, ChannelVersions]]


class RunMemory(InMemorySaver):
    """Checkpoints of one run, in this process only: LangGraph's saver, made cheaply.

    Measured on a one-node graph, three things cost more than all that the saver then does. Its
    constructor asks a runtime protocol about its serializer, so new ones are copied from a
    template. LangGraph inspects the signature of `aput_writes` at each start, so it is ready-made.
    And with exit durability a run that completes writes one checkpoint that nobody will read: the
    root's last checkpoint is serialised when it is first read, or by `settle`. Those of subgraphs
    are serialised at once, since a run goes on after them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.late: _Late = []
        """What `aput` was given and nobody has read yet."""
        self.keeps_newest = False
        """Whether only the newest checkpoint of each namespace is kept: a long run must not grow
        with its steps. Delta channels are rebuilt from older ones, so their graphs keep all."""

    @property
    def has_checkpoints(self) -> bool:
        """Whether a run can go on from here."""
        return bool(self.late) or any(self.storage.values())

    def settle(self) -> None:
        """Serialise what waits for it. Raises what the serializer raises for a value that cannot
        be stored."""
        while self.late:
            super().put(*self.late.pop(0))

    def values_of(self, channel: str) -> Iterator[tuple[str, Any]]:
        """Every stored value of `channel`, those of older versions too, each after its namespace;
        `list` would read all the other channels as well. Raises as `settle`."""
        self.settle()
        for (_, ns, name, _), value in self.blobs.items():
            if name == channel and value[0] != "empty":
                yield ns, self.serde.loads_typed(value)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """As the base class, which tells where the checkpoint is by the same three keys."""
        own = config["configurable"]
        if own["checkpoint_ns"]:
            saved = self.put(config, checkpoint, metadata, new_versions)
            if self.keeps_newest:
                self._prune(saved, checkpoint)
            return saved
        if self.keeps_newest and self.late:
            _, older, _, before = self.late.pop()
            self.writes.pop((own["thread_id"], "", older["id"]), None)
            new_versions = {**before, **new_versions}
        self.late.append((config, checkpoint, metadata, new_versions))
        place = {
            "thread_id": own["thread_id"],
            "checkpoint_ns": "",
            "checkpoint_id": checkpoint["id"],
        }
        return {"configurable": place}

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """As the base class."""
        self.settle()
        return super().get_tuple(config)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """As the base class."""
        self.settle()
        return super().list(config, filter=filter, before=before, limit=limit)

    @property
    def aput_writes(self) -> _PutWrites:
        """As the base class: a callable that has its signature ready."""
        return _PutWrites(self)

    def _prune(self, saved: RunnableConfig, checkpoint: Checkpoint) -> None:
        place = saved["configurable"]
        thread, ns, newest = place["thread_id"], place["checkpoint_ns"], place["checkpoint_id"]
        kept = self.storage[thread][ns]
        for older in [id for id in kept if id != newest]:
            del kept[older]
            self.writes.pop((thread, ns, older), None)
        versions = checkpoint["channel_versions"]
        for key in [key for key in self.blobs if key[:2] == (thread, ns)]:
            if versions.get(key[2]) != key[3]:
                del self.blobs[key]


class _PutWrites:
    """`RunMemory.aput_writes`: `inspect.signature` has its answer at once."""

    __slots__ = ("_memory",)
    __signature__ = inspect.signature(InMemorySaver().aput_writes)

    def __init__(self, memory: RunMemory) -> None:
        self._memory = memory

    async def __call__(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        self._memory.put_writes(config, writes, task_id, task_path)


class News(NamedTuple):
    """Where a `StepMemory` has something new: a checkpoint, with the versions of the channels that
    it changed, or what a task wrote on one."""

    ns: str
    id: str
    versions: ChannelVersions | None = None
    task: str | None = None


class StepMemory(RunMemory):
    """A saver for runs that are on record step by step: it knows what it was given since it was
    last asked, and calls `on_step` before the next step starts (with sync durability LangGraph
    waits for `aput`).

    With `prunes` it keeps the newest checkpoint of each namespace only (`keeps_newest`).
    """

    def __init__(self, memory: RunMemory, *, prunes: bool) -> None:
        super().__init__()
        memory.settle()
        self.storage, self.writes, self.blobs = memory.storage, memory.writes, memory.blobs
        self.keeps_newest = prunes
        self.on_step: Callable[[bool], Awaitable[None]] = _nothing
        """Called after each finished step; the argument says whether it was the root graph's."""
        self.on_writes: Callable[[], None] = _no_more
        """Called when a task of an unfinished step has ended."""
        self._news: list[News] = []

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """As the base class; what a finished step left is on record when it returns."""
        saved = self.put(config, checkpoint, metadata, new_versions)
        if self.keeps_newest:
            self._prune(saved, checkpoint)
        own = saved["configurable"]
        self._news.append(News(own["checkpoint_ns"], own["checkpoint_id"], versions=new_versions))
        if metadata.get("source") == "loop":
            await self.on_step(not config["configurable"].get("checkpoint_ns"))
        return saved

    async def aput_writes(  # type: ignore[override]  # a property of the base class, for speed
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """As the base class."""
        self.put_writes(config, writes, task_id, task_path)
        own = config["configurable"]
        place = own.get("checkpoint_ns", ""), own["checkpoint_id"]
        self._news.append(News(*place, task=task_id))
        self.on_writes()

    def take_news(self) -> list[News]:
        """What was put since the last call; `give_back` if it could not be stored."""
        taken, self._news = self._news, []
        return taken

    def give_back(self, news: list[News]) -> None:
        """It is news still."""
        self._news = news + self._news


async def _nothing(root: bool) -> None:
    """Nobody records the steps."""


def _no_more() -> None:
    """Nobody records the writes."""


_TEMPLATE = RunMemory()


def new_memory() -> RunMemory:
    """An empty saver; a contract test holds it against one that was constructed."""
    memory = RunMemory.__new__(RunMemory)
    memory.__dict__.update(_TEMPLATE.__dict__)  # copy.copy takes four times as long
    memory.storage = defaultdict(lambda: defaultdict(dict))
    memory.writes = defaultdict(dict)
    memory.blobs = {}
    memory.stack = ExitStack()
    memory.late = []
    memory.keeps_newest = False
    return memory


async def set_up_checkpoints(conn: AsyncConnection[DictRow]) -> None:
    """Create or migrate LangGraph's tables; the caller holds the migration lock."""
    await AsyncPostgresSaver(conn).setup()
