"""The benchmarks run; what they measure on a busy machine says nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def test_the_benchmarks_run(server_url: str) -> None:
    """The sweep as well: it copies rows in SQL, beside the code that a migration changes."""
    rows = _rows(server_url, "echo", "sweep", "--requests", "5", "--stored", "40")
    echoes = [row for row in rows if row[0].startswith("echo")]
    assert len(echoes) == 9  # three concurrencies, three subjects
    assert {row[5] for row in echoes} == {"5/5"}
    stored_expired_deleted = [row[:3] for row in rows if row[0].isdigit()]
    assert stored_expired_deleted == [
        ["40", "0", "0"],
        ["40", "4", "4"],
        ["4", "4", "4"],
        ["20", "20", "20"],
        ["40", "40", "40"],
    ]


def _rows(server_url: str, *arguments: str) -> list[list[str]]:
    command = [
        sys.executable, "-m", "tests.benchmarks", *arguments,
        "--rounds", "1", "--database-url", server_url,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
