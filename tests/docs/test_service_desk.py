"""The tutorial of the service desk, word for word: keys, a gateway, a script, then the operator."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.acceptance.server import serving
from tests.docs.pages import ADDRESS, DOCS, ROOT, blocks, without_ids

TUTORIAL = DOCS / "tutorial" / "a-service-desk.md"
FERMATA = ".venv/bin/fermata"
MARK = "--- the next block ---"
_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)")


def told(text: str) -> str:
    """Without what is another each time: ids and times."""
    return _TIME.sub("(a time)", without_ids(text)).strip()


def run(command: Sequence[str], code: str, folder: Path) -> list[str]:
    """What the blocks print, in the directory of the gateway."""
    script = folder / "script"
    script.write_text(code.replace(FERMATA, f"{sys.executable} -m gateway"))
    environ = {name: value for name, value in os.environ.items() if "FERMATA" not in name}
    done = subprocess.run(
        [*command, str(script)],
        check=False,
        cwd=folder,
        env={
            **{name: value for name, value in environ.items() if not name.startswith("OPENAI_")},
            "PYTHONPATH": str(ROOT),
            "FERMATA_DATA_DIR": str(folder / "state"),
            "no_proxy": "*",
        },
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [told(printed) for printed in done.stdout.split(MARK)]


@pytest.mark.skipif(not shutil.which("bash"), reason="the page uses bash")
def test_the_tutorial(tmp_path: Path) -> None:
    before, *operator = blocks(TUTORIAL, "bash")
    python = blocks(TUTORIAL, "python")
    bash = ["bash", "-euo", "pipefail"]

    run(bash, before.code, tmp_path)
    with serving("", tmp_path, graphs="graphs:GRAPHS", AUTH="keys") as server:
        code = f"\nprint({MARK!r})\n".join(block.code for block in python)
        assert ADDRESS in code
        printed = run([sys.executable], code.replace(ADDRESS, server.url), tmp_path)
        server.terminate()
    assert printed == [told(block.shown or "") for block in python]

    code = f"\necho '{MARK}'\n".join(block.code for block in operator)
    printed = run(bash, code, tmp_path)
    assert printed == [told(block.shown or "") for block in operator]
