"""A paused run's checkpoints: from memory into LangGraph's tables at the pause, back at the resume.

A run executes on a saver of its own in memory (`store.checkpoints`), whose `storage`, `writes` and
`blobs` hold every value serialised, in the very format of the tables. So values are moved as they
are: LangGraph's PostgreSQL saver would have them read, written and read again (measured: a tenth of
the CPU of a pause and its resume), in a statement each; ours are a part of the statement that
pauses. What is written here, that saver reads, and the other way round; contract tests compare the
two, and so watch the layout of the saver in memory.

The tables are made by LangGraph's saver, and the steps of background runs are written by it. One
difference is left: it keeps plain values (numbers, texts) within the checkpoint's JSON, which
PostgreSQL refuses if a text holds NUL; here every value is a blob.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gateway.store.checkpoints import RunMemory, new_memory
from gateway.store.db import SQL, Connection, Cursor, Row, send
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
    load = memory.serde.loads_typed
    saved: list[Sequence[Any]] = []
    wanted: set[tuple[str, str, str, Any]] = set()
    writes: list[Sequence[Any]] = []
    for ns, kept in memory.storage[run_id].items():
        for id, (checkpoint, metadata, parent) in kept.items():
            fields = load(checkpoint)
            saved.append((ns, id, parent, dumps(fields), dumps(load(metadata))))
            wanted |= {(run_id, ns, *pair) for pair in fields["channel_versions"].items()}
            for (task, number), (_, channel, value, path) in memory.writes.get(
                (run_id, ns, id), {}
            ).items():
                writes.append((ns, id, task, path, number, channel, *value))
    blobs = [
        (key[1], key[2], str(key[3]), type, value)
        for key, (type, value) in memory.blobs.items()
        if key in wanted and type != "empty"
    ]
    columns = _columns(_CHECKPOINTS, saved) | _columns(_BLOBS, blobs)
    return columns | _columns(_WRITES, writes)


def _columns(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    columns = map(list, zip(*rows, strict=True)) if rows else [[] for _ in names]
    return dict(zip(names, columns, strict=True))


async def save_checkpoints(conn: Connection, run_id: str, memory: RunMemory) -> None:
    """Write the run's checkpoints, in the caller's transaction. Rows of its own finished steps are
    written over; those of an earlier pause must be gone, they would be read as well.

    Raises as `checkpoint_columns`."""
    await send(conn, "save_checkpoints", run_id=run_id, **checkpoint_columns(run_id, memory))


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
