"""A gateway as a process of its own, as it is served in production."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

GRAPHS: Final = "tests.benchmarks.graphs:GRAPHS"
_ROOT: Final = Path(__file__).parents[2]
_ADDRESS: Final = re.compile(r"http://\S+?:\d+")
_READY_SECONDS: Final = 60.0
_END_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Server:
    """`base_url` ends in `/v1`; the children of `pid` belong to the server as well."""

    base_url: str
    pid: int


@contextmanager
def serving(folder: Path, settings: Mapping[str, str]) -> Iterator[Server]:
    """A gateway with these settings (`FERMATA_` left out), ended in order with its workers.

    Raises RuntimeError with its log when it does not come up.
    """
    log = folder / "gateway.log"
    command = [sys.executable, "-m", "gateway", "serve", "--port", "0", "--graphs", GRAPHS]
    with (
        log.open("ab") as errors,
        subprocess.Popen(
            command, cwd=_ROOT, env=_environ(settings), stdout=subprocess.PIPE, stderr=errors
        ) as process,
    ):
        try:
            address = _address(process, log)
            _wait_until_ready(address, process, log)
            yield Server(f"{address}/v1", process.pid)
        finally:
            _end(process)


def _environ(settings: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment, but none of its settings: they are the benchmark's to choose."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("FERMATA_")}
    return inherited | {f"FERMATA_{name}": value for name, value in settings.items()}


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := _ADDRESS.search(line.decode()):
            return found.group()
    raise RuntimeError(f"the gateway did not start:\n{log.read_text(errors='replace')}")


def _wait_until_ready(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """With workers, the address is known before anybody listens."""
    deadline = time.monotonic() + _READY_SECONDS
    while not _is_ready(address):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the gateway is not ready:\n{log.read_text(errors='replace')}")
        time.sleep(0.05)


def _is_ready(address: str) -> bool:
    try:
        return httpx.get(f"{address}/readyz").status_code == 200
    except httpx.TransportError:
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
