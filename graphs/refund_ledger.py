"""The demo's outside world: refunds and notifications, once per business key, shared by processes.

One JSON line per effect in `demo/refunds.jsonl` under `FERMATA_DATA_DIR` (default `.fermata`). The
file is only ever appended to, under an exclusive lock that covers both the look and the write: two
workers that bring the same key at the same time leave one line. Looking first and writing after,
without the lock, would be the race that this file exists to show the way out of.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


def ledger_path() -> Path:
    """Where the effects are recorded."""
    return Path(os.environ.get("FERMATA_DATA_DIR", ".fermata")) / "demo" / "refunds.jsonl"


def record_once(key: str, effect: str, **details: str) -> bool:
    """Perform `effect` unless `key` was seen before; True if this call performed it.

    `key` names the business operation, not the attempt. The line is on disk before this returns.
    """
    with _locked(ledger_path()) as file:
        if any(entry["key"] == key for entry in _entries(file)):
            return False
        _finish_torn_line(file)
        file.write(json.dumps({"key": key, "effect": effect, **details}) + "\n")
        file.flush()
        os.fsync(file.fileno())
        return True


def effects(path: Path | None = None) -> list[dict[str, str]]:
    """Everything that was ever done, oldest first."""
    with _locked(path or ledger_path()) as file:
        return _entries(file)


@contextmanager
def _locked(path: Path) -> Iterator[IO[str]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released with the file, also when the process dies
        yield file


def _entries(file: IO[str]) -> list[dict[str, str]]:
    file.seek(0)
    return [json.loads(line) for line in file if line.endswith("}\n")]


def _finish_torn_line(file: IO[str]) -> None:
    # A process that died while writing reported nothing as done: its half line does not count, and
    # must not swallow the next one.
    file.seek(0)
    text = file.read()
    if text and not text.endswith("\n"):
        file.write(" torn\n")
