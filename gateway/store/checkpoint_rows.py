"""A paused run's checkpoints: from memory into LangGraph's tables at the pause, back at the resume.

A run executes on a saver of its own in memory (`store.checkpoints`), whose `storage`, `writes` and
`blobs` hold every value serialised, in the very format of the tables. So values are moved as they
are: LangGraph's PostgreSQL saver would have them read, written and read again (measured: a tenth of
the CPU of a pause and its resume), in a statement each; ours are a part of the statement that
pauses. What is written here, that saver reads, and the other way round; contract tests compare the
two, and so watch the layout of the saver in memory.

The tables are made by LangGraph's saver. One difference is left: it keeps plain values (numbers,
texts) within the checkpoint's JSON, which PostgreSQL refuses if a text holds NUL, and gives back
with other numbers if they are large (1e20 comes as an integer); here every value is a blob.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from langgraph.checkpoint.base import ChannelVersions

from gateway.store.checkpoints import News, RunMemory, StepMemory, new_memory
from gateway.store.db import Connection, Cursor, Row, send
from gateway.store.statements import SQL
from gateway.wire.encoding import dumps

_CHECKPOINTS = ("checkpoint_ns", "checkpoint_ids", "parent_ids", "checkpoints", "metadata")
_BLOBS = ("blob_ns", "blob_channels", "blob_versions", "blob_types", "blobs")
_WRITES = (
    "write_ns",
    "write_ids",
    "write_tasks",
    "write_paths",
    "write_numbers",
    "write_channels",
    "write_types",
    "writes",
)


def checkpoint_columns(run_id: str, memory: RunMemory) -> dict[str, list[Any]]:
    """The run's checkpoints in `memory`, with the values and the pending writes that belong to
    them, as the arrays that the statements take.

    Raises what the serializer raises for a value that cannot be stored."""
    memory.settle()
    rows = _Rows(run_id, memory)
    for ns, kept in memory.storage[run_id].items():
        for id in kept:
            versions = rows.add_checkpoint(ns, id)
            rows.add_blobs(ns, versions)
            rows.add_writes(ns, id)
    return rows.columns


def _step_columns(run_id: str, memory: RunMemory, news: Sequence[News]) -> dict[str, list[Any]]:
    """What of `memory` is new: what a step changed, not the whole state."""
    rows = _Rows(run_id, memory)
    for entry in news:
        if entry.versions is None:
            rows.add_writes(entry.ns, entry.id, task=entry.task)
        else:
            rows.add_checkpoint(entry.ns, entry.id)
            rows.add_blobs(entry.ns, entry.versions)
    return rows.columns


class _Rows:
    """Rows for LangGraph's tables, from what the saver of a run holds; each once. What the saver
    holds no more (`keeps_newest`), or holds of another thread, is left out."""

    def __init__(self, run_id: str, memory: RunMemory) -> None:
        self._run_id = run_id
        self._memory = memory
        self._checkpoints: dict[Any, Sequence[Any]] = {}
        self._blobs: dict[Any, Sequence[Any]] = {}
        self._writes: dict[Any, Sequence[Any]] = {}

    def add_checkpoint(self, ns: str, id: str) -> ChannelVersions:
        """The versions of its channels."""
        kept = self._memory.storage[self._run_id][ns].get(id)
        if kept is None:
            return {}
        load = self._memory.serde.loads_typed
        fields, metadata = load(kept[0]), load(kept[1])
        self._checkpoints[ns, id] = (ns, id, kept[2], dumps(fields), dumps(metadata))
        versions: ChannelVersions = fields["channel_versions"]
        return versions

    def add_blobs(self, ns: str, versions: ChannelVersions) -> None:
        for channel, version in versions.items():
            blob = self._memory.blobs.get((self._run_id, ns, channel, version))
            if blob is not None and blob[0] != "empty":
                self._blobs[ns, channel, version] = (ns, channel, str(version), *blob)

    def add_writes(self, ns: str, id: str, *, task: str | None = None) -> None:
        """Those of one task, or of all."""
        kept = self._memory.writes.get((self._run_id, ns, id), {})
        for (by, number), (_, channel, value, path) in list(kept.items()):
            if task in (None, by):
                row = (ns, id, by, path, number, channel, *value)
                self._writes[ns, id, by, number] = row

    @property
    def columns(self) -> dict[str, list[Any]]:
        """The rows as the arrays that the statements take."""
        return {
            **_columns(_CHECKPOINTS, list(self._checkpoints.values())),
            **_columns(_BLOBS, list(self._blobs.values())),
            **_columns(_WRITES, list(self._writes.values())),
        }


def _columns(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    columns = map(list, zip(*rows, strict=True)) if rows else [[] for _ in names]
    return dict(zip(names, columns, strict=True))


async def save_checkpoints(conn: Connection, run_id: str, memory: RunMemory) -> None:
    """Write the run's checkpoints, in the caller's transaction. Rows of its own finished steps are
    written over; those of an earlier pause must be gone, they would be read as well.

    Raises as `checkpoint_columns`."""
    await send(conn, "save_checkpoints", run_id=run_id, **checkpoint_columns(run_id, memory))


async def save_steps(
    conn: Connection, run_id: str, memory: StepMemory, news: Sequence[News]
) -> None:
    """Write what is new in a `StepMemory`, in the caller's transaction and pipeline."""
    await send(conn, "save_checkpoints", run_id=run_id, **_step_columns(run_id, memory, news))


async def load_checkpoints(conn: Connection, run_id: str) -> RunMemory:
    """The run's checkpoints on a new in-memory saver of their own; empty if there are none."""
    return await loaded(await send_load(conn, run_id), run_id)


async def send_load(conn: Connection, run_id: str) -> Cursor:
    """Ask for what `loaded` gives, in a pipeline ahead of other statements."""
    return await conn.execute(SQL["checkpoints_of"], {"run_id": run_id}, binary=True)


async def loaded(cursor: Cursor, run_id: str) -> RunMemory:
    """The checkpoints that `send_load` asked for."""
    return _restored(run_id, await cursor.fetchall())


def _restored(run_id: str, rows: Iterable[Row]) -> RunMemory:
    memory = new_memory()
    for row in rows:
        ns, value = row["ns"], (row["type"], row["blob"])
        if row["kind"] == "blob":
            memory.blobs[run_id, ns, row["channel"], row["version"]] = value
        elif row["kind"] == "write":
            place, write = (run_id, ns, row["id"]), (row["task_id"], row["number"])
            memory.writes[place][write] = (row["task_id"], row["channel"], value, row["task_path"])
        else:
            _put(memory, run_id, row)
    return memory


def _put(memory: RunMemory, run_id: str, row: Mapping[str, Any]) -> None:
    """A checkpoint that LangGraph's saver wrote holds plain values itself. `true` stands there as
    well for one that has a blob; the blob is what counts."""
    dump = memory.serde.dumps_typed
    ns, fields = row["ns"], dict(row["checkpoint"])
    for channel, value in (fields.pop("channel_values", None) or {}).items():
        version = fields["channel_versions"].get(channel)
        memory.blobs.setdefault((run_id, ns, channel, version), dump(value))
    memory.storage[run_id][ns][row["id"]] = (dump(fields), dump(row["metadata"]), row["parent"])
