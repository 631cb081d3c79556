"""Named points in test graphs: a test arms one, and the first process that comes by stops there.

A folder, known to both sides by the environment, holds a file for each armed point. Who stops
renames it, so that whoever takes the run over passes.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "FERMATA_TEST_POINTS"
PATIENCE = 30.0  # seconds until a point that nobody reaches fails the test
_LOOK = 0.005  # seconds


async def reach(name: str) -> None:
    """In a graph: stop here, if the test wants it."""
    if (held := _stopped_at(name)) is not None:
        while held.exists():  # noqa: ASYNC110  # another process's file; nobody tells
            await asyncio.sleep(_LOOK)


def reach_in_thread(name: str) -> None:
    """`reach` for code that blocks."""
    if (held := _stopped_at(name)) is not None:
        while held.exists():
            time.sleep(_LOOK)


def _stopped_at(name: str) -> Path | None:
    folder = os.environ.get(VARIABLE)
    if folder is None:
        return None
    armed, held = Path(folder) / f"{name}.armed", Path(folder) / f"{name}.held"
    try:
        armed.rename(held)
    except FileNotFoundError:
        return None
    return held


@dataclass(frozen=True)
class Points:
    """The test's side."""

    folder: Path

    def arm(self, name: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        # Of a process that was killed there: it would look as if this one stood there already.
        (self.folder / f"{name}.held").unlink(missing_ok=True)
        (self.folder / f"{name}.armed").touch()

    def wait(self, name: str) -> None:
        """Until a process stopped there."""
        deadline = time.monotonic() + PATIENCE
        while not (self.folder / f"{name}.held").exists():
            assert time.monotonic() < deadline, f"nothing came to '{name}'"
            time.sleep(_LOOK)

    def release(self, name: str) -> None:
        """Whoever stopped there goes on."""
        (self.folder / f"{name}.held").unlink()
