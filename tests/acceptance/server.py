"""A gateway as its own process, which tests may kill, stop and start again."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from openai import AsyncOpenAI, OpenAI

from tests.acceptance.zygote import Child, zygote

START_TIMEOUT = 60.0
GRAPHS = "tests.acceptance.serve_graphs:GRAPHS"
_ADDRESS = re.compile(r"http://\S+?:\d+")


@dataclass
class Server:
    """One gateway process; `folder` holds its log and its `FERMATA_DATA_DIR`."""

    database_url: str
    folder: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    graphs: str = GRAPHS
    url: str = ""
    process: Child | None = None

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    @property
    def log_file(self) -> Path:
        return self.folder / "gateway.log"

    def start(self, *, ready: bool = True) -> Server:
        """Listening, and with `ready` able to serve: without a database it only listens."""
        command = ["serve", "--port", "0", "--graphs", self.graphs]
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("a") as log:
            self.process = zygote().start(command, self._environ(), log)
        self.url = self._address()
        if ready:
            self._await_readiness()
        return self

    def restart(self) -> Server:
        """Start again after `kill9` or `terminate`, on the same database, at another address."""
        assert self.process is not None
        assert self.process.poll() is not None, "still running"
        return self.start()

    def kill9(self) -> None:
        self._signal(signal.SIGKILL)
        self._ended(10)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)
        self._ended(60)

    def stop(self) -> None:
        """SIGSTOP: the process freezes with all its connections open, as a paused machine does."""
        self._signal(signal.SIGSTOP)

    def cont(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill9()

    def client(self) -> OpenAI:
        """The unchanged SDK without its retries: what a test sees is what the gateway said."""
        return OpenAI(base_url=self.base_url, api_key="unused", max_retries=0)

    def async_client(self, connections: int = 100) -> AsyncOpenAI:
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        http = httpx.AsyncClient(limits=limits, timeout=120)
        return AsyncOpenAI(
            base_url=self.base_url, api_key="unused", max_retries=0, http_client=http
        )

    def _environ(self) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if not _is_setting(key)}
        return {
            **inherited,
            "FERMATA_DATABASE_URL": self.database_url,
            "FERMATA_DATA_DIR": str(self.folder / "state"),
            **self.environ,
        }

    def _address(self) -> str:
        assert self.process is not None
        for line in self.process.stdout:
            if found := _ADDRESS.search(line):
                return found.group()
        raise AssertionError(f"the gateway did not start:\n{self.log}")

    def _await_readiness(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while httpx.get(f"{self.url}/readyz").status_code != 200:
            assert time.monotonic() < deadline, f"not ready in time:\n{self.log}"
            time.sleep(0.01)

    def _signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def _ended(self, seconds: float) -> None:
        assert self.process is not None
        self.process.wait(seconds)
        self.process.stdout.close()


def _is_setting(name: str) -> bool:
    return name.startswith("FERMATA_")


@contextmanager
def serving(
    database_url: str, folder: Path, graphs: str = GRAPHS, **environ: str
) -> Iterator[Server]:
    """A running gateway; `environ` takes settings by name, as in `POOL_SIZE="5"`."""
    variables = {f"FERMATA_{name}": value for name, value in environ.items()}
    server = Server(database_url, folder, variables, graphs)
    try:
        yield server.start()
    finally:
        server.close()
