"""Nodes that end in no ordinary way: their run fails, or ends as it was told; nothing hangs."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import MessagesState
from langgraph.types import interrupt

from gateway import Graph
from tests.integration.api import Api, calls, output, serving
from tests.integration.small_graphs import EFFECTS, chain, done, says
from tests.integration.test_background import polled
from tests.openresponses import Json

SOON = 30.0  # seconds; what hangs hangs for ever
MODES = ["json", "stream", "background"]


class PanicException(BaseException):
    """As PyO3's, which every panic of a Rust extension raises."""


async def panics(state: MessagesState) -> dict[str, Any]:
    raise PanicException("called `Option::unwrap()` on a `None` value")


def panics_in_a_thread(state: MessagesState) -> dict[str, Any]:
    raise PanicException


async def closes(state: MessagesState) -> dict[str, Any]:
    raise GeneratorExit


async def asks_and_panics(state: MessagesState) -> dict[str, Any]:
    interrupt("go on?")
    done("tried")
    raise PanicException


async def ignores(state: MessagesState) -> dict[str, Any]:
    """A node that takes its cancellation for something else."""
    done("began")
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(SOON)
    return {}


async def pay(state: MessagesState) -> dict[str, Any]:
    done("paid")
    return {"messages": [AIMessage("paid")]}


async def pays_inside(state: MessagesState) -> Any:
    return await chain(ignores, pay).compile().ainvoke(state)


def leaves(messages: Any) -> Any:
    sys.exit("no tokenizer here")


OWN = {
    "panics": Graph(chain(panics)),
    "panics-in-a-thread": Graph(chain(panics_in_a_thread)),
    "closes": Graph(chain(closes)),
    "asks-and-panics": Graph(chain(asks_and_panics)),
    "ignores": Graph(chain(ignores, pay)),
    "ignores-inside": Graph(chain(pays_inside)),
    "leaves": Graph(says(AIMessage("hello")), count_tokens=leaves, compact=leaves),
}


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with serving(database_url, OWN, SHUTDOWN_GRACE="1s") as served:
        yield served


async def told(api: Api, model: str, said: Any, mode: str, **more: Any) -> Json:
    async with asyncio.timeout(SOON):
        if mode != "background":
            return await api.told(model, said, stream=mode == "stream", **more)
        return await polled(api, await api.create(model, said, background=True, **more))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("model", ["panics", "panics-in-a-thread", "closes"])
async def test_what_is_no_exception_fails_its_run(api: Api, model: str, mode: str) -> None:
    failed = await told(api, model, "hi", mode)
    assert (failed["status"], failed["error"]["code"]) == ("failed", "run_failed")


async def test_a_panic_leaves_its_conversation_free(api: Api) -> None:
    conversation = (await api.http.post("/v1/conversations", json={})).json()["id"]
    for _ in range(2):
        assert (await told(api, "panics", "hi", "json", conversation=conversation))["error"]


@pytest.mark.parametrize("mode", MODES)
async def test_a_panic_after_an_answer_is_tried_when_it_is_sent_again(api: Api, mode: str) -> None:
    asked = await told(api, "asks-and-panics", "hi", "json")
    said = [output(calls(asked)[0])]
    for times in (1, 2):
        failed = await told(api, "asks-and-panics", said, mode, previous_response_id=asked["id"])
        assert failed["status"] == "failed"
        assert EFFECTS[await api.run_of(asked)] == ["tried"] * times


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["ignores", "ignores-inside"])
async def test_after_a_cancellation_that_a_node_ignored_no_other_node_runs(
    api: Api, model: str, stream: bool
) -> None:
    request = asyncio.create_task(api.told(model, "hi", stream=stream))
    await api.until("SELECT 1 FROM fermata.responses WHERE status = 'in_progress'")
    (row,) = await api.sql("SELECT id, run_id FROM fermata.responses")
    cancelled = await api.http.post(f"/v1/responses/{row['id']}/cancel")
    assert cancelled.json()["status"] == "cancelled"
    assert (await request)["status"] == "cancelled"
    assert EFFECTS[row["run_id"]] == ["began"]


@pytest.mark.parametrize("path", ["input_tokens", "compact"])
async def test_an_exit_outside_of_runs_is_a_failure_too(api: Api, path: str) -> None:
    answer = await api.http.post(f"/v1/responses/{path}", json={"model": "leaves", "input": "hi"})
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "run_failed"
