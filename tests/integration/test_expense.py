"""The expense claim through the unchanged SDK: each kind of question, and what is paid."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import psycopg
import pytest
from langchain_core.messages import HumanMessage
from openai import APIStatusError, AsyncOpenAI
from openai.types.responses import Response, ResponseFunctionToolCall

from graphs import expense

LIMITS = '{"without_approval": 500, "at_most": 5000}'
PAYMENT = {"amount": "1200.00", "cost_centre": "it", "reason": "The old one is broken."}


class Claim:
    """One claim, question by question, and what the bank and the ledger know of it."""

    def __init__(self, client: AsyncOpenAI, database_url: str) -> None:
        self.client = client
        self.database_url = database_url
        self.response: Response

    async def made(self, text: str = "I spent EUR 1,200 on a laptop.") -> Claim:
        self.response = await self.client.responses.create(model="expense-approval", input=text)
        return self

    async def answered(self, *outputs: str) -> Claim:
        for output in outputs:
            self.response = await self.answer(self.call, output)
        return self

    async def answer(self, call: ResponseFunctionToolCall, output: str) -> Response:
        """Found by the call's id alone, as by a client that keeps nothing else."""
        given: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": output}]
        return await self.client.responses.create(model="expense-approval", input=given)

    async def refused(self, call: ResponseFunctionToolCall, output: str) -> tuple[int, str | None]:
        with pytest.raises(APIStatusError) as error:
            await self.answer(call, output)
        return error.value.status_code, error.value.code

    @property
    def call(self) -> ResponseFunctionToolCall:
        (call,) = [item for item in self.response.output if item.type == "function_call"]
        return call

    @property
    def asked(self) -> dict[str, Any]:
        return {"name": self.call.name, **json.loads(self.call.arguments)}

    @property
    def paid(self) -> list[tuple[str, str]]:
        """Key, without the run's id, and amount of each payment of this run."""
        with psycopg.connect(self.database_url) as connection:
            made = connection.execute("SELECT to_regclass('expense_demo.payments')").fetchone()
            if made == (None,):
                return []
            rows = connection.execute(
                "SELECT replace(idempotency_key, run_id || ':', ''), amount::text"
                " FROM expense_demo.payments JOIN fermata.responses"
                " ON starts_with(idempotency_key, run_id || ':') WHERE id = %s",
                (self.response.id,),
            )
            return [(key, amount) for key, amount in rows]


@pytest.fixture
def claim(demos: AsyncOpenAI, module_database_url: str) -> Claim:
    return Claim(demos, module_database_url)


async def test_each_question_says_what_it_expects(claim: Claim) -> None:
    asked = [(await claim.made()).asked]
    for output in ("it", LIMITS, "The old one is broken."):
        asked.append((await claim.answered(output)).asked)

    assert [(one["name"], one["expects"]) for one in asked] == [
        ("cost_centre", "choice"),
        ("limits", "value"),
        ("reason", "text"),
        ("approve_expense", "approval"),
    ]
    assert asked[0]["options"][0] == {"value": "it", "label": "Equipment"}
    assert asked[1]["schema"]["required"] == ["without_approval", "at_most"]
    assert asked[3]["allowed"] == ["approve", "reject", "edit"]
    assert asked[3]["payload"] == PAYMENT


async def test_within_the_limits_nobody_is_asked_for_an_approval(claim: Claim) -> None:
    await (await claim.made("I spent EUR 480.50 on a monitor.")).answered("Equipment", LIMITS)

    assert claim.response.output_text == "EUR 480.50 was paid from Equipment."
    assert claim.paid == [("disburse", "480.50")]


async def test_an_approval_pays_what_was_claimed(claim: Claim) -> None:
    await (await claim.made()).answered("it", LIMITS, PAYMENT["reason"], "approve")

    assert claim.response.output_text == "EUR 1200.00 was paid from Equipment."
    assert claim.paid == [("disburse", "1200.00")]


@pytest.mark.parametrize("amount", ["1000.00", "100.00"])
async def test_an_edited_amount_is_paid_under_its_own_key(claim: Claim, amount: str) -> None:
    await (await claim.made()).answered("it", LIMITS, PAYMENT["reason"])
    edit = {"action": "edit", "value": {**PAYMENT, "amount": amount, "cost_centre": "training"}}
    await claim.answered(json.dumps(edit))

    assert claim.response.output_text == f"EUR {amount} was paid from Training."
    assert claim.paid == [(f"disburse:{amount}", amount)]


async def test_an_edit_is_judged_by_the_limits_again(claim: Claim) -> None:
    await (await claim.made()).answered("it", LIMITS, PAYMENT["reason"])
    await claim.answered(json.dumps({"action": "edit", "value": {**PAYMENT, "amount": "9000.00"}}))

    assert claim.response.output_text.startswith("That is more than EUR 5000")
    assert claim.paid == []


async def test_a_rejection_pays_nothing(claim: Claim) -> None:
    await (await claim.made()).answered("it", LIMITS, PAYMENT["reason"])
    await claim.answered('{"action": "reject", "note": "Use the old one."}')

    assert claim.response.output_text == (
        "The claim was rejected (Use the old one.); nothing was paid."
    )
    assert claim.paid == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Pay me.", "How much was it?"),
        ("I spent EUR 12,000 on a car.", "That is more than EUR 5000"),
    ],
)
async def test_what_cannot_be_decided_ends(claim: Claim, text: str, said: str) -> None:
    await claim.made(text)
    if not claim.response.output_text:
        await claim.answered("travel", LIMITS)

    assert claim.response.output_text.startswith(said)
    assert claim.paid == []


async def test_an_answer_to_a_resolved_wait_is_refused(claim: Claim) -> None:
    first = (await claim.made()).call
    second = (await claim.answered("it")).call
    assert first.call_id != second.call_id

    assert await claim.refused(first, "travel") == (400, "interrupt_already_answered")
    same = await claim.answer(first, "it")
    assert same.id == claim.response.id, "the same answer again is told the same response"
    assert claim.asked["name"] == "limits"


async def test_an_answer_to_a_superseded_wait_is_refused(claim: Claim) -> None:
    """What the model's validator refuses is asked again: a new wait, which the old answer is not
    taken for."""
    first = (await (await claim.made()).answered("it")).call
    upside_down = '{"without_approval": 500, "at_most": 100}'
    second = (await claim.answered(upside_down)).call
    assert (second.name, second.call_id != first.call_id) == ("limits", True)
    assert "at_most is below without_approval" in claim.asked["question"]

    assert await claim.refused(first, LIMITS) == (400, "interrupt_already_answered")
    assert (await claim.answered(LIMITS)).asked["name"] == "reason"


async def test_an_answer_to_a_withdrawn_wait_is_refused(claim: Claim) -> None:
    asked = (await claim.made()).call
    await claim.client.responses.delete(claim.response.id)

    assert (await claim.refused(asked, "it"))[0] == 410


async def test_two_different_decisions_at_once_pay_at_most_once(claim: Claim) -> None:
    call = (await (await claim.made()).answered("it", LIMITS, PAYMENT["reason"])).call
    edit = json.dumps({"action": "edit", "value": {**PAYMENT, "amount": "900.00"}})
    both = await asyncio.gather(
        claim.answer(call, "approve"), claim.answer(call, edit), return_exceptions=True
    )

    assert sum(isinstance(one, APIStatusError) for one in both) == 1
    (claim.response,) = [one for one in both if isinstance(one, Response)]
    assert len(claim.paid) == 1


@pytest.mark.parametrize(
    ("question", "refused"),
    [
        (0, "Marketing"),
        (1, '{"without_approval": -1, "at_most": 5}'),
        (1, "500"),
        (2, "  "),
        (3, "ok"),
        (3, '{"action": "edit", "value": {"amount": "900.00"}}'),
        (3, json.dumps({"action": "edit", "value": {**PAYMENT, "amount": 900}})),
    ],
)
async def test_what_is_no_answer_is_refused(claim: Claim, question: int, refused: str) -> None:
    await (await claim.made()).answered(*["it", LIMITS, PAYMENT["reason"]][:question])

    assert await claim.refused(claim.call, refused) == (400, "invalid_interrupt_answer")


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("EUR 1,200 for a laptop", "1200.00"),
        ("EUR 5", "5.00"),
        ("it was EUR 12,345.67.", "12345.67"),
        ("EUR 480.5", ""),
        ("EUR 1,2", ""),
        ("1200", ""),
    ],
)
def test_the_amount_in_the_text(text: str, amount: str) -> None:
    assert expense.amount_in([HumanMessage(text)]) == amount


def test_the_topology_is_the_story() -> None:
    drawing = expense.build().compile().get_graph()
    assert {(edge.source, edge.target) for edge in drawing.edges} == {
        ("__start__", "read_claim"),
        ("read_claim", "pick_cost_centre"),
        ("read_claim", "__end__"),
        ("pick_cost_centre", "set_limits"),
        ("set_limits", "give_reason"),
        ("set_limits", "disburse"),
        ("set_limits", "__end__"),
        ("give_reason", "approve"),
        ("approve", "disburse"),
        ("approve", "__end__"),
        ("disburse", "__end__"),
    }
