"""The refund approval through a server process and the unchanged SDK, kill -9 included."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any

import httpx
import psycopg
import pytest
from openai import APIConnectionError, APIStatusError, AsyncOpenAI, BadRequestError, OpenAI
from openai.types.responses import Response, ResponseFunctionToolCall, ResponseStreamEvent

from tests.acceptance.server import Server

REFUND = "interruptible-approval"
NOTICE = "I would like to refund EUR 49.90 for ORDER-123. A person has to review this first."
OUTCOMES = {
    "approve": "Refund of EUR 49.90 for ORDER-123 was executed and the customer notified.",
    "reject": "The refund for ORDER-123 was rejected; nothing was executed.",
    "Only 10 EUR please": (
        "Feedback recorded for ORDER-123: Only 10 EUR please; nothing was executed."
    ),
}
CHECKPOINT_TABLES = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")


def ask(client: OpenAI, model: str = REFUND, text: str = "Refund order ORDER-123") -> Response:
    return client.responses.create(model=model, input=text)


def answer(client: OpenAI, paused: Response, output: str) -> Response:
    return client.responses.create(
        model=paused.model, previous_response_id=paused.id, input=outputs(paused, output)
    )


def outputs(paused: Response, output: str) -> Any:
    call_id = the_call(paused).call_id
    return [{"type": "function_call_output", "call_id": call_id, "output": output}]


def the_call(paused: Response) -> ResponseFunctionToolCall:
    (call,) = [item for item in paused.output if item.type == "function_call"]
    return call


def streamed(client: OpenAI, **request: Any) -> tuple[Response, list[ResponseStreamEvent]]:
    with client.responses.create(stream=True, **request) as stream:
        events = list(stream)
    last = events[-1]
    assert last.type == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return last.response, events


def refunds(server: Server) -> list[str]:
    """What really happened, in order: calls of the payment provider, messages to customers."""
    found = rows(
        server.database_url,
        "SELECT effect FROM (SELECT 'refund' AS effect, paid_at AS at"
        " FROM refund_demo.payments, generate_series(1, calls)"
        " UNION ALL SELECT 'notification', written_at FROM refund_demo.outbox) AS happened"
        " ORDER BY at",
    )
    return [effect for (effect,) in found]


def refunds_of(server: Server, paused: Response) -> int:
    """How often the order of this pause was paid."""
    return paid(server, json.loads(the_call(paused).arguments)["payload"]["order"])


def paid(server: Server, order: str) -> int:
    """How often the order was paid."""
    ((calls,),) = rows(
        server.database_url,
        "SELECT coalesce(sum(calls), 0) FROM refund_demo.payments WHERE order_id = %s",
        order,
    ) or [(0,)]
    return int(calls)


def rows(database_url: str, statement: str, *params: Any) -> list[tuple[Any, ...]]:
    """What the statement finds; nothing if nobody has been refunded yet, so that there is no
    table."""
    with psycopg.connect(database_url) as connection:
        try:
            return connection.execute(statement, params).fetchall()  # type: ignore[arg-type]
        except psycopg.errors.UndefinedTable:
            return []


def checkpoint_rows(database_url: str) -> int:
    with psycopg.connect(database_url) as connection:
        counts = [
            connection.execute(f"SELECT count(*) FROM {table}").fetchone()
            for table in CHECKPOINT_TABLES
        ]
    return sum(int(count[0]) for count in counts if count is not None)


@pytest.fixture
def gateway(start_server: Callable[..., Server]) -> Server:
    """A gateway of the test's own: it may be killed, and its effects are counted."""
    return start_server()


@pytest.mark.parametrize("reply", OUTCOMES)
def test_json(client: OpenAI, reply: str) -> None:
    paused = ask(client)
    (call,) = paused.output  # the pause carries only the review call
    assert call.type == "function_call"
    assert (paused.status, call.name, call.status) == ("completed", "review_refund", "completed")
    assert json.loads(call.arguments)["payload"]["order"] == "ORDER-123"

    done = answer(client, paused, reply)
    assert (done.status, done.output_text) == ("completed", OUTCOMES[reply])
    assert done.previous_response_id == paused.id


@pytest.mark.parametrize("reply", OUTCOMES)
def test_stream(client: OpenAI, reply: str) -> None:
    paused, events = streamed(client, model=REFUND, input="Refund order ORDER-123")
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 5, "the notice is streamed, not shown at once"
    assert "".join(event.delta for event in deltas) == NOTICE
    added = [event.item.type for event in events if event.type == "response.output_item.added"]
    assert added == ["message", "function_call"]

    done, events = streamed(
        client, model=REFUND, previous_response_id=paused.id, input=outputs(paused, reply)
    )
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == done.output_text == OUTCOMES[reply]


def test_stream_helper(client: OpenAI) -> None:
    with client.responses.stream(model=REFUND, input="Refund order ORDER-123") as stream:
        for _ in stream:
            pass
        paused = stream.get_final_response()

    assert answer(client, paused, "approve").output_text == OUTCOMES["approve"]


def test_approval_pays_and_notifies_once(gateway: Server) -> None:
    with gateway.client() as client:
        paused = ask(client)
        assert refunds(gateway) == []
        answer(client, paused, "approve")
    assert refunds(gateway) == ["refund", "notification"]


@pytest.mark.parametrize("reply", ["reject", "Only 10 EUR please", "ok", "true", "1"])
def test_nothing_else_pays(gateway: Server, reply: str) -> None:
    with gateway.client() as client:
        done = answer(client, ask(client), reply)
    assert "nothing was executed" in done.output_text
    assert refunds(gateway) == []


def test_resume_by_call_id_alone(client: OpenAI) -> None:
    paused = ask(client)
    history: Any = [{"role": "user", "content": "Refund order ORDER-123"}, the_call(paused)]
    done = client.responses.create(model=REFUND, input=history + outputs(paused, "approve"))

    assert done.output_text == OUTCOMES["approve"]


def test_killed_the_moment_the_call_is_seen(gateway: Server) -> None:
    with gateway.client() as client:
        stream = client.responses.create(model=REFUND, input="Refund order ORDER-123", stream=True)
        response_id, call_id = "", ""
        with contextlib.suppress(APIConnectionError, httpx.HTTPError):
            for event in stream:
                if event.type == "response.created":
                    response_id = event.response.id
                if (
                    event.type == "response.output_item.added"
                    and event.item.type == "function_call"
                ):
                    call_id = event.item.call_id
                    gateway.kill9()
                    break
        stream.close()
    assert call_id

    with gateway.restart().client() as client:
        reply: Any = [{"type": "function_call_output", "call_id": call_id, "output": "approve"}]
        done = client.responses.create(model=REFUND, previous_response_id=response_id, input=reply)
    assert done.output_text == OUTCOMES["approve"]
    assert refunds(gateway) == ["refund", "notification"]


def test_C22_pause_on_one_process_answer_on_another_read_on_a_third(
    start_server: Callable[..., Server],
) -> None:
    first, second, third = start_server(), start_server(), start_server()
    with first.client() as one, second.client() as two, third.client() as three:
        done = answer(two, ask(one), "approve")
        read = three.responses.retrieve(done.id)

    assert done.output_text == OUTCOMES["approve"]
    assert read.output == done.output
    assert refunds(first) == ["refund", "notification"]


async def test_twenty_identical_answers_at_once(start_server: Callable[..., Server]) -> None:
    servers = [start_server(), start_server()]
    with servers[0].client() as client:
        paused = await asyncio.to_thread(ask, client)
    async with servers[0].async_client() as here, servers[1].async_client() as there:
        done = await asyncio.gather(
            *(answer_soon(here if i % 2 else there, paused, "approve") for i in range(20))
        )

    assert {response.id for response in done} == {done[0].id}
    assert all(response.output == done[0].output for response in done)
    assert done[0].output_text == OUTCOMES["approve"]
    assert refunds(servers[0]) == ["refund", "notification"]


async def test_approve_and_reject_at_once(start_server: Callable[..., Server]) -> None:
    servers = [start_server(), start_server()]
    for attempt in range(5):
        with servers[0].client() as client:
            paused = await asyncio.to_thread(ask, client, text=f"Refund order ORDER-{attempt}")
        async with servers[0].async_client() as here, servers[1].async_client() as there:
            results = await asyncio.gather(
                answer_soon(here, paused, "approve"),
                answer_soon(there, paused, "reject"),
                return_exceptions=True,
            )
        won = [result for result in results if isinstance(result, Response)]
        lost = [result for result in results if isinstance(result, BadRequestError)]
        assert (len(won), len(lost)) == (1, 1), results
        assert lost[0].code == "interrupt_already_answered"
        assert refunds_of(servers[0], paused) == int("was executed and" in won[0].output_text)


async def answer_soon(client: AsyncOpenAI, paused: Response, output: str) -> Response:
    return await client.responses.create(
        model=paused.model, previous_response_id=paused.id, input=outputs(paused, output)
    )


def test_a_stale_answer_never_answers_the_next_question(client: OpenAI) -> None:
    first = ask(client, "two-questions")
    second = answer(client, first, "one")
    assert json.loads(the_call(second).arguments)["payload"] == {"question": "second?"}
    assert the_call(second).call_id != the_call(first).call_id

    assert answer(client, first, "one").id == second.id  # a repeat: the first response again
    with pytest.raises(BadRequestError) as refused:
        answer(client, first, "other")
    assert refused.value.code == "interrupt_already_answered"
    with pytest.raises(BadRequestError):  # the old call id, sent to the new question
        client.responses.create(
            model="two-questions", previous_response_id=second.id, input=outputs(first, "one")
        )

    assert answer(client, second, "two").output_text == "first=one second=two"


def test_no_checkpoint_stays_after_completion(gateway: Server) -> None:
    with gateway.client() as client:
        paused = ask(client)
        assert checkpoint_rows(gateway.database_url) > 0
        answer(client, paused, "approve")
    assert checkpoint_rows(gateway.database_url) == 0


def test_no_checkpoint_stays_after_a_final_failure(gateway: Server) -> None:
    with gateway.client() as client:
        failed = ask(client, "failing")
    assert (failed.status, failed.output) == ("failed", [])
    assert failed.error is not None
    assert checkpoint_rows(gateway.database_url) == 0


def test_an_answer_outlives_the_failure_of_its_run(gateway: Server) -> None:
    with gateway.client() as client:
        paused = ask(client, "flaky")
        assert answer(client, paused, "yes").status == "failed"
        assert checkpoint_rows(gateway.database_url) > 0
        assert answer(client, paused, "yes").output_text == "went on with yes"
    recorded = "SELECT split_part(key, ':', 2), status FROM fermata.effects ORDER BY claimed_at"
    assert rows(gateway.database_url, recorded) == [("effect", "done"), ("attempt", "done")]
    assert checkpoint_rows(gateway.database_url) == 0


async def test_C26_500_in_flight_on_a_pool_of_5(start_server: Callable[..., Server]) -> None:
    server = start_server(POOL_SIZE="5", LOG_LEVEL="warning")
    async with server.async_client(500) as client:
        runs = [
            asyncio.ensure_future(client.responses.create(model="sleepy", input="3"))
            for _ in range(500)
        ]
        counted = await asyncio.to_thread(connections_until, server.database_url, runs)
        done = await asyncio.gather(*runs)

    assert [response.output_text for response in done] == ["slept 3"] * 500
    assert 1 <= max(counted) <= 5


def connections_until(database_url: str, runs: list[asyncio.Future[Any]]) -> list[int]:
    """How many connections the gateway had, counted until all runs were done."""
    counted = []
    question = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE application_name = 'fermata' AND datname = current_database()"
    )
    with psycopg.connect(database_url, autocommit=True) as connection:
        while not all(run.done() for run in runs):
            row = connection.execute(question).fetchone()
            assert row is not None
            counted.append(int(row[0]))
            connection.execute("SELECT pg_sleep(0.05)")
    return counted


async def test_a_worker_stopped_past_its_lease_writes_nothing_when_it_wakes(
    start_server: Callable[..., Server],
) -> None:
    frozen, other = start_server(LEASE_TTL="1s"), start_server(LEASE_TTL="1s")
    with frozen.client() as client:
        paused = await asyncio.to_thread(ask, client, "sleepy", "ask")
    async with frozen.async_client() as here, other.async_client() as there:
        lost = asyncio.ensure_future(answer_soon(here, paused, "1.5"))
        await asyncio.sleep(0.5)
        frozen.stop()
        done = await answer_soon(there, paused, "1.5")
        before = await asyncio.to_thread(everything, frozen.database_url)
        frozen.cont()
        with contextlib.suppress(APIConnectionError, APIStatusError):
            assert (await lost).output == done.output
        await asyncio.sleep(1.5)
        after = await asyncio.to_thread(everything, frozen.database_url)

    assert done.output_text == "slept 1.5"
    assert after == before
    assert checkpoint_rows(frozen.database_url) == 0


def everything(database_url: str) -> list[tuple[Any, ...]]:
    """Runs, responses and questions, as they are stored."""
    rows: list[tuple[Any, ...]] = []
    with psycopg.connect(database_url) as connection:
        for table in ("runs", "responses", "interrupts"):
            rows += connection.execute(
                f"SELECT t::text FROM fermata.{table} t ORDER BY 1"
            ).fetchall()
    return rows
