"""The index advisor and its agent through the unchanged SDK, on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import psycopg
import pytest
from openai import AsyncOpenAI, BadRequestError
from openai.types.responses import Response, ResponseFunctionToolCall

from gateway import ask_always
from graphs.index_advisor import advisor, agent
from graphs.index_advisor.shop import SCHEMA

FOUND = ["customers (email)", "orders (customer_id)", "orders (status, placed_on)"]
AT_FIRST = {"customers_pkey", "orders_pkey", "orders_note"}
APPLIED = AT_FIRST | {"customers_email", "orders_customer_id", "orders_status_placed_on"}
CREATE = "Create an index on orders (customer_id)."


@pytest.fixture(autouse=True)
def _new_shop(module_database_url: str) -> None:
    with psycopg.connect(module_database_url) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")


@pytest.fixture
def indexes(module_database_url: str) -> Any:
    """The names of the shop's indexes, now."""

    def names() -> set[str]:
        with psycopg.connect(module_database_url) as connection:
            found = connection.execute(
                "SELECT indexname FROM pg_indexes WHERE schemaname = %s", (SCHEMA,)
            )
            return {name for (name,) in found}

    return names


async def ask(client: AsyncOpenAI, model: str, text: str = "Make it cheaper.") -> Response:
    return await client.responses.create(model=model, input=text)


async def answer(client: AsyncOpenAI, paused: Response, *outputs: str) -> Response:
    given: Any = [
        {"type": "function_call_output", "call_id": call.call_id, "output": output}
        for call, output in zip(calls(paused), outputs, strict=True)
    ]
    return await client.responses.create(
        model=paused.model, previous_response_id=paused.id, input=given
    )


def calls(paused: Response) -> list[ResponseFunctionToolCall]:
    return [item for item in paused.output if item.type == "function_call"]


# --- the advisor --------------------------------------------------------------------------------


async def test_the_question_says_the_set_its_value_and_its_size(
    demos: AsyncOpenAI, indexes: Any
) -> None:
    paused = await ask(demos, "index-advisor")

    assert len(paused.output) == 1, "a JSON response of the pause carries only the question"
    (call,) = calls(paused)
    payload = json.loads(call.arguments)["payload"]
    assert call.name == "apply_indexes"
    assert payload.pop("bytes") % 8192 == 0
    assert payload == {
        "question": "PAUSED: apply 3 indexes (value -9.6)?",
        "indexes": FOUND,
        "value": -9.6,
    }
    assert indexes() == AT_FIRST, "what was supposed is not there"


@pytest.mark.parametrize("word", ["y", "Y", "yes", "YES", "apply", "Apply", " yes\n"])
def test_the_words_that_mean_yes(word: str) -> None:
    assert advisor.is_yes(word)


@pytest.mark.parametrize(
    "other",
    ["", "n", "ok", "sure", "approve", "yes please", "apply?", "1", "yeſ", True, 1, None,
     {"action": "approve"}, {"approved": True}, ["yes"]],
)  # fmt: skip
def test_nothing_else_means_yes(other: Any) -> None:
    assert not advisor.is_yes(other)


async def test_a_yes_creates_the_indexes(demos: AsyncOpenAI, indexes: Any) -> None:
    paused = await ask(demos, "index-advisor")
    done = await answer(demos, paused, "Apply")

    assert done.output_text.startswith("applied=True\n")
    assert indexes() == APPLIED


@pytest.mark.parametrize("no", ["approve", "true"])
async def test_everything_else_is_no(demos: AsyncOpenAI, indexes: Any, no: str) -> None:
    paused = await ask(demos, "index-advisor")
    done = await answer(demos, paused, no)

    assert done.output_text == "applied=False\nNo index was created."
    assert indexes() == AT_FIRST


async def test_the_same_yes_twice_is_one_application(
    demos: AsyncOpenAI, indexes: Any, module_database_url: str
) -> None:
    paused = await ask(demos, "index-advisor")
    one, two = await asyncio.gather(answer(demos, paused, "yes"), answer(demos, paused, "yes"))

    assert one.id == two.id
    assert indexes() == APPLIED
    with psycopg.connect(module_database_url) as connection:
        ledger = connection.execute(
            "SELECT effects.status, effects.attempts FROM fermata.effects"
            " JOIN fermata.responses ON effects.key = responses.run_id || ':apply'"
            " WHERE responses.id = %s",
            (paused.id,),
        ).fetchall()
    assert ledger == [("done", 1)]


async def test_two_advisors_at_once_do_not_disturb_each_other(
    demos: AsyncOpenAI, indexes: Any
) -> None:
    both = await asyncio.gather(ask(demos, "index-advisor"), ask(demos, "index-advisor"))
    assert [json.loads(calls(one)[0].arguments)["payload"]["value"] for one in both] == [-9.6, -9.6]

    done = await asyncio.gather(*(answer(demos, one, "yes") for one in both))
    assert {one.output_text.partition("\n")[0] for one in done} == {"applied=True"}
    assert indexes() == APPLIED


async def test_a_stream_shows_the_incumbent_improve(demos: AsyncOpenAI) -> None:
    stream = await demos.responses.create(
        model="index-advisor", input="Make it cheaper.", stream=True
    )
    said = [event.text async for event in stream if event.type == "response.output_text.done"]

    values = [float(text.rpartition(" ")[2].rstrip(".")) for text in said[1:]]
    assert len(values) > 2
    assert values == sorted(values, reverse=True)
    assert values[-1] == -9.6


# --- the agent ----------------------------------------------------------------------------------


async def test_ask_always_asks_for_each_index(demos: AsyncOpenAI, indexes: Any) -> None:
    paused = await ask(demos, "index-agent")
    told = [(call.name, json.loads(call.arguments)["payload"]) for call in calls(paused)]

    assert told == [
        ("approve_create_index", {"table": "orders", "columns": ["customer_id"]}),
        ("approve_create_index", {"table": "orders", "columns": ["status", "placed_on"]}),
        ("approve_drop_index", {"name": "orders_note"}),
    ]
    assert indexes() in (set(), AT_FIRST)

    await answer(demos, paused, "approve", "reject", "yes")
    assert indexes() == {"customers_pkey", "orders_pkey", "orders_customer_id"}


async def test_allow_all_runs_through(demos: AsyncOpenAI, indexes: Any) -> None:
    done = await ask(demos, "index-agent-alone")

    assert calls(done) == []
    assert indexes() == {
        "customers_pkey",
        "orders_pkey",
        "orders_customer_id",
        "orders_status_placed_on",
    }


async def test_an_edit_creates_what_the_reviewer_wrote(demos: AsyncOpenAI, indexes: Any) -> None:
    paused = await ask(demos, "index-agent", CREATE)
    edit = {"action": "edit", "value": {"table": "customers", "columns": ["country", "id"]}}
    done = await answer(demos, paused, json.dumps(edit))

    assert done.output_text.startswith("customers_country_id is there;")
    assert indexes() == AT_FIRST | {"customers_country_id"}


async def test_a_rejection_tells_the_agent_why(demos: AsyncOpenAI, indexes: Any) -> None:
    paused = await ask(demos, "index-agent", CREATE)
    done = await answer(demos, paused, '{"action": "reject", "note": "Not on a Friday."}')

    assert done.output_text == ("The reviewer rejected this call of create_index: Not on a Friday.")
    assert "orders_customer_id" not in indexes()


@pytest.mark.parametrize(
    "refused",
    [
        "apply",
        "ok",
        '{"action": "edit", "value": {"table": "fermata.responses", "columns": ["id"]}}',
        '{"action": "edit", "value": {"table": "orders"}}',
    ],
)
async def test_what_is_no_answer_is_refused_and_the_question_stays(
    demos: AsyncOpenAI, indexes: Any, refused: str
) -> None:
    paused = await ask(demos, "index-agent", CREATE)
    with pytest.raises(BadRequestError) as error:
        await answer(demos, paused, refused)
    assert error.value.code == "invalid_interrupt_answer"

    await answer(demos, paused, "approve")
    assert indexes() == AT_FIRST | {"orders_customer_id"}


async def test_what_postgresql_refuses_the_agent_tells(demos: AsyncOpenAI, indexes: Any) -> None:
    done = await ask(
        demos, "index-agent-alone", "Create an index on orders (price) and drop the index nothing."
    )

    assert 'column "price" does not exist' in done.output_text
    assert "There is no index nothing." in done.output_text
    assert indexes() == AT_FIRST


# --- the topology -------------------------------------------------------------------------------


def test_the_topologies_are_the_stories() -> None:
    assert _edges(advisor) == {
        ("__start__", "measure"),
        ("measure", "search"),
        ("search", "search"),
        ("search", "review"),
        ("search", "__end__"),
        ("review", "apply"),
        ("review", "__end__"),
        ("apply", "report"),
        ("report", "__end__"),
    }
    assert _edges(agent, ask_always) == {
        ("__start__", "think"),
        ("think", "act"),
        ("act", "think"),
        ("think", "__end__"),
    }


def _edges(module: Any, *arguments: Any) -> set[tuple[str, str]]:
    drawing = module.build(*arguments).compile().get_graph()
    return {(edge.source, edge.target) for edge in drawing.edges}
