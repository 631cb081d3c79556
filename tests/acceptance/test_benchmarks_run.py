"""The benchmarks run; what they measure on a busy machine says nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.benchmarks.ground import Ground
from tests.benchmarks.sweep import Case, measure_sweeps
from tests.benchmarks.turns import measure_turns

_ROOT = Path(__file__).parents[2]


def test_echo_is_measured_beside_the_bare_graphs(server_url: str) -> None:
    command = [
        sys.executable, "-m", "tests.benchmarks", "echo", "--rounds", "1", "--requests", "5",
        "--database-url", server_url,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    echoes = [row for row in _rows(done.stdout) if row[0].startswith("echo")]
    assert len(echoes) == 9  # three concurrencies, three subjects
    assert {row[5] for row in echoes} == {"5/5"}


def test_a_sweep_deletes_what_has_expired_of_the_copied_runs(
    server_url: str, tmp_path: Path
) -> None:
    """The copies are made in SQL, beside the code that a migration changes."""
    told = measure_sweeps(Ground(server_url, prepared=False, folder=tmp_path), 1, [Case(50, 5)])
    assert _rows(told)[-1][:3] == ["50", "5", "5"]


def test_a_turn_is_stored_once_however_long_the_conversation(
    server_url: str, tmp_path: Path
) -> None:
    """Without quadratic cost: the last turn stores what the first did (wall time is not judged)."""
    told = measure_turns(Ground(server_url, prepared=False, folder=tmp_path), 1, 20)
    stored = {row[0]: (float(row[5]), float(row[6])) for row in _rows(told)[2:]}
    for way in ("previous_response_id", "conversation"):
        early, late = stored[way]
        assert late < early * 1.1
    early, late = stored["whole history resent"]
    assert late > early * 5  # the client's own doing: so the figure does show it


def _rows(markdown: str) -> list[list[str]]:
    lines = [line for line in markdown.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
