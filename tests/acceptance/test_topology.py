"""compose.yaml's topology as processes: a migration, its gateways, one port that leads to all."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from openai import AsyncOpenAI

ROOT = Path(__file__).parents[2]
MODEL = "interruptible-approval"
SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
GATEWAYS = [
    name for name, service in SERVICES.items() if service.get("command", [])[1:] == ["serve"]
]


@dataclass
class Gateway:
    process: asyncio.subprocess.Process
    port: int


@dataclass
class RoundRobin:
    """The one port: each connection goes to the next gateway that takes it."""

    backends: list[Gateway]
    served: list[Gateway] = field(default_factory=list)

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in self.backends:
            backend = self.backends.pop(0)
            self.backends.append(backend)
            with suppress(OSError):
                upstream = await asyncio.open_connection("127.0.0.1", backend.port)
                break
        else:
            writer.close()
            return
        self.served.append(backend)
        await asyncio.gather(_copy(reader, upstream[1]), _copy(upstream[0], writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while some := await reader.read(65536):
            writer.write(some)
            await writer.drain()
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


@dataclass(frozen=True)
class Topology:
    url: str
    port: RoundRobin
    database_url: str

    @asynccontextmanager
    async def client(self) -> AsyncIterator[AsyncOpenAI]:
        """A client with connections of its own, so that the proxy chooses anew."""
        async with AsyncOpenAI(base_url=self.url, api_key="none", max_retries=0) as client:
            yield client


def environment(service: str, database_url: str, data_dir: Path) -> Mapping[str, str]:
    """The service's own environment, moved to this machine."""
    outside = {name: value for name, value in os.environ.items() if "FERMATA" not in name}
    moved = {
        "FERMATA_DATABASE_URL": database_url,
        "FERMATA_DATA_DIR": str(data_dir),
        "FERMATA_HOST": "127.0.0.1",
        "FERMATA_PORT": "0",
    }
    return outside | SERVICES[service]["environment"] | moved


async def started(service: str, env: Mapping[str, str]) -> asyncio.subprocess.Process:
    program, *arguments = SERVICES[service]["command"]
    assert program == "fermata"
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gateway",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        env=env,
        cwd=ROOT,
    )


async def port_of(process: asyncio.subprocess.Process) -> int:
    assert process.stdout is not None
    while line := (await process.stdout.readline()).decode():
        if address := re.search(r"http://127\.0\.0\.1:(\d+)", line):
            return int(address[1])
    raise AssertionError(f"the gateway ended with {await process.wait()}")


async def end(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
    with suppress(TimeoutError):
        await asyncio.wait_for(process.communicate(), 20)
        return
    process.kill()
    await process.communicate()


@pytest.fixture
async def topology(empty_database_url: str, tmp_path: Path) -> AsyncIterator[Topology]:
    migration = await started("migrate", environment("migrate", empty_database_url, tmp_path))
    said, _ = await migration.communicate()
    assert migration.returncode == 0, said
    async with AsyncExitStack() as running:
        gateways = []
        for service in GATEWAYS:
            process = await started(service, environment(service, empty_database_url, tmp_path))
            running.push_async_callback(end, process)
            gateways.append(process)
        backends = [Gateway(process, await port_of(process)) for process in gateways]
        port = RoundRobin(backends)
        server = await asyncio.start_server(port, "127.0.0.1", 0)
        running.callback(server.close)
        host, number = server.sockets[0].getsockname()[:2]
        yield Topology(f"http://{host}:{number}/v1", port, empty_database_url)


def payments(topology: Topology) -> int:
    """How often the payment provider was called."""
    with psycopg.connect(topology.database_url) as connection:
        row = connection.execute("SELECT sum(calls) FROM refund_demo.payments").fetchone()
    assert row is not None
    return int(row[0])


async def ask(topology: Topology) -> tuple[str, str]:
    async with topology.client() as client:
        response = await client.responses.create(model=MODEL, input="Refund order ORDER-123")
    (call,) = [item for item in response.output if item.type == "function_call"]
    return response.id, call.call_id


async def approve(topology: Topology, response_id: str, call_id: str) -> Any:
    async with topology.client() as client:
        return await client.responses.create(
            model=MODEL,
            previous_response_id=response_id,
            input=[{"type": "function_call_output", "call_id": call_id, "output": "approve"}],
        )


async def test_asked_by_one_answered_through_the_other(topology: Topology) -> None:
    response_id, call_id = await ask(topology)
    final = await approve(topology, response_id, call_id)
    asked, answered = topology.port.served
    assert asked is not answered
    assert final.status == "completed"
    assert "ORDER-123" in final.output_text
    assert payments(topology) == 1


async def test_the_asking_gateway_is_killed_before_the_answer(topology: Topology) -> None:
    response_id, call_id = await ask(topology)
    (asked,) = topology.port.served
    asked.process.kill()
    await asked.process.wait()
    final = await approve(topology, response_id, call_id)
    assert topology.port.served[-1] is not asked
    assert final.status == "completed"
    assert payments(topology) == 1
    # A repeat of the same answer, as a double click sends it, is told the same.
    again = await approve(topology, response_id, call_id)
    assert again.id == final.id
    assert payments(topology) == 1


async def test_a_stream_passes_the_one_port(topology: Topology) -> None:
    async with topology.client() as client:
        stream = await client.responses.create(
            model=MODEL, input="Refund order ORDER-123", stream=True
        )
        types = [event.type async for event in stream]
    assert types[0] == "response.created"
    assert types[-1] == "response.completed"
    assert "response.output_text.delta" in types
    assert "response.function_call_arguments.done" in types
