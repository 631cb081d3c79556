"""The code of the README, the tutorial and the graphs' pages, word for word, against a gateway
process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.acceptance.server import Server, serving
from tests.docs.pages import ADDRESS, DOCS, README, Block, blocks, without_ids

TUTORIAL = DOCS / "tutorial" / "an-approval-in-two-minutes.md"
MARK = "--- the next block ---"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """As `make serve` starts it: the default graphs, the embedded PostgreSQL; any free port."""
    folder = tmp_path_factory.mktemp("gateway")
    with serving("", folder, graphs="graphs:GRAPHS") as running:
        yield running
        running.terminate()


def run(command: Sequence[str], code: str, server: Server, folder: Path) -> list[str]:
    """What each block prints. Only the address is another, as with `--port`."""
    assert ADDRESS in code
    script = folder / "script"
    script.write_text(code.replace(ADDRESS, server.url))
    environ = {key: value for key, value in os.environ.items() if not key.startswith("OPENAI_")}
    done = subprocess.run(
        [*command, str(script)],
        check=False,
        cwd=folder,
        env={**environ, "PYTHONPATH": "", "no_proxy": "*"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [without_ids(printed).strip() for printed in done.stdout.split(MARK)]


def shown(found: Sequence[Block]) -> list[str]:
    return [without_ids(block.shown or "").strip() for block in found]


def test_the_readme_s_lines_get_an_interrupt_and_answer_it(server: Server, tmp_path: Path) -> None:
    found = blocks(README, "python")
    assert len(found) == 1
    assert len(found[0].code.splitlines()) <= 24
    assert run([sys.executable], found[0].code, server, tmp_path) == shown(found)


def test_the_tutorial_s_python(server: Server, tmp_path: Path) -> None:
    found = blocks(TUTORIAL, "python")
    code = f"\nprint({MARK!r})\n".join(block.code for block in found)
    assert run([sys.executable], code, server, tmp_path) == shown(found)


@pytest.mark.parametrize(
    "page",
    [page for page in sorted((DOCS / "graphs").glob("*.md")) if blocks(page, "python")],
    ids=lambda page: page.stem,
)
def test_the_python_of_a_graph_s_page(server: Server, tmp_path: Path, page: Path) -> None:
    found = blocks(page, "python")
    code = f"\nprint({MARK!r})\n".join(block.code for block in found)
    assert run([sys.executable], code, server, tmp_path) == shown(found)


@pytest.mark.skipif(
    not (shutil.which("curl") and shutil.which("bash")), reason="the page uses bash and curl"
)
def test_the_tutorial_s_curl_lines(server: Server, tmp_path: Path) -> None:
    found = blocks(TUTORIAL, "bash")
    code = f"\necho '{MARK}'\n".join(block.code for block in found)
    assert run(["bash", "-euo", "pipefail"], code, server, tmp_path) == shown(found)
