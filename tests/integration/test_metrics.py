"""`/metrics`: what is counted, who may read it, and that clients cannot make up series."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families

from gateway import Graph
from gateway.store.keys import create_key
from tests.integration.api import Api, calls, output, serving
from tests.integration.people import approve
from tests.integration.small_graphs import GRAPHS, chain
from tests.integration.sockets import connected

Series = dict[tuple[str, frozenset[str]], float]
"""Samples by name and label values."""


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with serving(database_url, GRAPHS | {"approve": Graph(chain(approve))}) as served:
        yield served


def key(name: str, *labels: str) -> tuple[str, frozenset[str]]:
    return name, frozenset(labels)


async def scraped(api: Api) -> Series:
    """All samples."""
    answer = await api.http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


async def grown(api: Api, before: Series) -> Series:
    """What changed since; counts are the process's, which other tests share."""
    now = await scraped(api)
    grown = {one: value - before.get(one, 0) for one, value in now.items()}
    return {one: value for one, value in grown.items() if value}


async def test_what_happens_is_counted(api: Api) -> None:
    before = await scraped(api)
    await api.create("usage", "x")
    await api.create("fail", "x")
    await api.create("truncation", "x")
    asked = await api.create("ask", "x")
    await api.create("ask", "still open")
    answer = {"model": "ask", "previous_response_id": asked["id"]}
    for _ in range(2):
        await api.post({**answer, "input": [output(calls(asked)[0])]})
    await api.refused({**answer, "input": [output(calls(asked)[0], "no")]})
    after = await grown(api, before)
    assert {one: n for one, n in after.items() if "responses" in one[0]} == {
        key("fermata_responses_total", "completed"): 2,
        key("fermata_responses_total", "failed"): 1,
        key("fermata_responses_total", "incomplete"): 1,
        key("fermata_responses_total", "paused"): 2,
    }
    assert {one: n for one, n in after.items() if "answers" in one[0]} == {
        key("fermata_answers_total", "accepted"): 1,
        key("fermata_answers_total", "repeated"): 1,
        key("fermata_answers_total", "interrupt_already_answered"): 1,
    }
    count = "fermata_http_request_duration_seconds_count"
    assert after[key(count, "POST", "/v1/responses", "200")] == 7
    assert after[key(count, "POST", "/v1/responses", "400")] == 1
    assert after[key("fermata_open", "runs", "waiting")] == 1
    assert after[key("fermata_open", "questions", "pending")] == 1


async def test_an_answer_through_the_reviewers_route_counts_too(api: Api) -> None:
    asked = await api.create("ask", "x")
    before = await scraped(api)
    call_id = calls(asked)[0]["call_id"]
    answer = await api.http.post(f"/v1/interrupts/{call_id}/answer", json={"output": "yes"})
    assert answer.status_code == 200, answer.text
    after = await grown(api, before)
    assert after[key("fermata_answers_total", "accepted")] == 1
    assert after[key("fermata_open", "questions", "pending")] == -1


async def test_buckets_add_up(api: Api) -> None:
    await api.create("usage", "x")
    series = await scraped(api)
    labels = frozenset(("POST", "/v1/responses", "200"))
    name = "fermata_http_request_duration_seconds"
    buckets = [
        value
        for (one, values), value in series.items()
        if one == f"{name}_bucket" and values > labels
    ]
    assert buckets == sorted(buckets)
    assert buckets[-1] == series[key(f"{name}_count", *labels)]
    assert series[key(f"{name}_sum", *labels)] > 0


async def test_clients_make_up_no_series(api: Api) -> None:
    """Every label value is one of ours, or the memory would be anybody's."""
    for n in range(3):
        await api.http.get(f"/made/up/{n}")
        await api.http.request(f"MADEUP{n}", "/v1/responses")
        await api.http.get(f"/v1/responses/resp_{n}")
    text = (await api.http.get("/metrics")).text
    assert "made/up" not in text
    assert "MADEUP" not in text
    assert "resp_" not in text
    assert 'method="GET",route="/v1/responses/{response_id}",status="404"' in text
    assert 'method="GET",route="unknown",status="404"' in text
    assert 'method="other"' in text


async def test_a_connection_is_a_request(api: Api) -> None:
    before = await scraped(api)
    async with connected(api) as socket:
        await socket.create("usage", "x")
        await socket.response()
    after = await grown(api, before)
    count = "fermata_http_request_duration_seconds_count"
    assert after[key(count, "WEBSOCKET", "/v1/responses", "101")] == 1


async def test_the_pool_and_the_database(api: Api) -> None:
    series = await scraped(api)
    assert series[key("fermata_database_up")] == 1
    assert series[key("fermata_pool_connections")] >= 1
    assert series[key("fermata_pool_in_use")] >= 0
    assert series[key("fermata_pool_waiting")] == 0
    assert series[key("fermata_runs_moving")] == 0


async def test_without_a_database_the_process_still_tells(database_url: str) -> None:
    async with serving(database_url, GRAPHS) as api:
        api.app.state.gateway.migrated = False
        series = await scraped(api)
    assert series[key("fermata_database_up")] == 0
    assert not any(name == "fermata_open" for name, _ in series)


async def test_open_metrics_are_told_to_who_asks(api: Api) -> None:
    headers = {"accept": "application/openmetrics-text; version=1.0.0"}
    answer = await api.http.get("/metrics", headers=headers)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert list(open_metrics(answer.text))


async def test_they_take_a_role_of_their_own(database_url: str) -> None:
    """P6: they tell of all tenants."""
    async with serving(database_url, GRAPHS, AUTH="keys") as api:
        database = api.app.state.gateway.coordinator.database
        async with database.connection() as conn:
            _, plain = await create_key(conn, tenant="shop", subject="anna", roles=("manager",))
            _, ours = await create_key(conn, tenant="shop", subject="scraper", roles=("metrics",))
        statuses = [
            (await api.http.get("/metrics", headers=headers)).status_code
            for headers in (
                {},
                {"authorization": f"Bearer {plain}"},
                {"authorization": f"Bearer {ours}"},
            )
        ]
    assert statuses == [401, 403, 200]
