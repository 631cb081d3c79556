"""The service desk through the unchanged SDK: Anna asks, Mia is a manager, nothing happens twice.

The four failure stories: the process restarts while a person is waited for; Approve is clicked
twice; the policy changes before the approval comes; the reviewer edits. That the worker dies after
the account system has acted is told by tests/acceptance/test_service_desk.py, with kill -9.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, PermissionDeniedError
from openai.types.responses import Response, ResponseFunctionToolCall
from psycopg import AsyncConnection
from psycopg.rows import dict_row

from graphs import GRAPHS, service_desk
from graphs.service_desk import desk
from graphs.service_desk.proposals import read
from tests.integration.listening import listening, sdk
from tests.integration.people import keys_of
from tests.integration.transcripts import play, transcript

MODEL = "service-desk"
SERVED = {MODEL: GRAPHS[MODEL]}
RESET = "Reset the password of user-123 and revoke all sessions, INC-42."
DISABLE = "Disable the account of user-456, INC-44."
RESET_ONLY = {"action": "edit", "value": {"user": "user-123", "revoke_sessions": False}}


@dataclass
class Office:
    """Clients with the credentials of people, and what the database says."""

    people: Mapping[str, AsyncOpenAI]
    database_url: str

    async def ask(self, text: str, by: str = "anna") -> Response:
        return await self.people[by].responses.create(model=MODEL, input=text)

    async def answer(self, paused: Response, answer: Any, by: str = "mia") -> Response:
        output = answer if isinstance(answer, str) else json.dumps(answer)
        said: Any = [
            {"type": "function_call_output", "call_id": the_call(paused).call_id, "output": output}
        ]
        return await self.people[by].responses.create(
            model=MODEL, previous_response_id=paused.id, input=said
        )

    async def sql(self, statement: str, *params: Any) -> list[dict[str, Any]]:
        connect = AsyncConnection.connect(self.database_url, autocommit=True, row_factory=dict_row)
        async with await connect as conn:
            cursor = await conn.execute(statement, params)  # type: ignore[call-overload]
            return list(await cursor.fetchall()) if cursor.description else []

    async def states(self, proposal: str) -> list[tuple[str, str]]:
        """What became of a proposal, and by whom."""
        rows = await self.sql(
            "SELECT state, by FROM service_desk_demo.history WHERE proposal = %s ORDER BY id",
            proposal,
        )
        return [(row["state"], row["by"]) for row in rows]

    async def account(self, user: str) -> dict[str, Any]:
        (row,) = await self.sql("SELECT * FROM service_desk_demo.accounts WHERE id = %s", user)
        return row

    async def restarts(self) -> int:
        (row,) = await self.sql("SELECT sum(restarts) AS sum FROM service_desk_demo.services")
        return int(row["sum"])

    async def messages(self) -> list[str]:
        rows = await self.sql("SELECT message FROM service_desk_demo.notifications ORDER BY id")
        return [row["message"] for row in rows]

    async def set_tier(self, action: str, tier: str) -> None:
        await self.sql(
            "UPDATE service_desk_demo.rules SET tier = %s WHERE action = %s", tier, action
        )

    async def audit(self, response: Response) -> list[dict[str, Any]]:
        return await self.sql(
            "SELECT event, actor, details::text AS details FROM fermata.audit WHERE run_id ="
            " (SELECT run_id FROM fermata.responses WHERE id = %s) ORDER BY seq",
            response.id,
        )


def the_call(response: Response) -> ResponseFunctionToolCall:
    (call,) = [item for item in response.output if item.type == "function_call"]
    return call


def question(response: Response) -> dict[str, Any]:
    return dict(json.loads(the_call(response).arguments))


@asynccontextmanager
async def opened(database_url: str, keys: Mapping[str, str]) -> AsyncIterator[Office]:
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(listening(database_url, SERVED, AUTH="keys"))
        people = {
            name: await stack.enter_async_context(sdk(url, key)) for name, key in keys.items()
        }
        yield Office(people, database_url)


@pytest.fixture
async def office(database_url: str) -> AsyncIterator[Office]:
    async with opened(database_url, await keys_of(database_url)) as one:
        yield one


# --- the tiers --------------------------------------------------------------------------------


async def test_the_conversation_of_the_docstring(office: Office) -> None:
    turns = transcript(desk)
    assert len(turns) == 4
    await play(office.people["anna"], MODEL, turns, reviewer=office.people["mia"])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Read ticket INC-42", "EXECUTED: user-123 cannot log in (open)."),
        ("Search the knowledge base for vpn", "EXECUTED: VPN: first connection."),
        ("Read ticket INC-99", "EXECUTED: there is no such ticket."),
    ],
)
async def test_what_only_reads_runs_at_once(office: Office, text: str, told: str) -> None:
    done = await office.ask(text)
    assert done.output_text.endswith(told)
    assert await office.sql("SELECT * FROM service_desk_demo.history") == []


async def test_a_sandbox_is_restarted_by_policy_and_production_by_a_person(office: Office) -> None:
    done = await office.ask("Restart mail in the sandbox, INC-43")
    assert "EXECUTED restart:INC-43:mail:proposal-v1" in done.output_text
    paused = await office.ask("Restart payments in production, INC-43")
    assert question(paused)["payload"] == {"service": "payments", "environment": "production"}
    assert await office.restarts() == 1
    await office.answer(paused, "approve", by="anna")
    assert await office.restarts() == 2


async def test_a_credential_needs_a_manager_who_did_not_ask(office: Office) -> None:
    paused = await office.ask(RESET, by="mia")
    for somebody in ("mia", "anna", "carl"):
        with pytest.raises(PermissionDeniedError):
            await office.answer(paused, "approve", by=somebody)
    assert (await office.account("user-123"))["resets"] == 0
    done = await office.answer(paused, "approve", by="bob")
    assert done.output_text == (
        "EXECUTED reset:INC-42:user-123:proposal-v1: the password of user-123 was reset and all"
        " sessions were revoked."
    )
    account = await office.account("user-123")
    assert (account["resets"], account["sessions"]) == (1, 0)


async def test_production_data_is_never_deleted(office: Office) -> None:
    stopped = await office.ask("Delete the production data orders, INC-45.")
    assert stopped.output_text.endswith(
        "STOPPED delete:INC-45:orders:proposal-v1: the desk's policy prohibits it."
    )
    assert await office.states("delete:INC-45:orders:proposal-v1") == [
        ("PROPOSED", "anna"),
        ("STOPPED", "anna"),
    ]
    assert len(await office.sql("SELECT * FROM service_desk_demo.data_sets")) == 2


async def test_archived_data_takes_two_people(office: Office) -> None:
    paused = await office.ask("Delete the archive data mails-2019, INC-45.", by="bob")
    with pytest.raises(PermissionDeniedError):
        await office.answer(paused, "approve", by="bob")
    done = await office.answer(paused, "approve")
    assert "mails-2019 was deleted in the archive" in done.output_text


async def test_a_rejection_ends_in_words(office: Office) -> None:
    paused = await office.ask(DISABLE)
    done = await office.answer(paused, {"action": "reject", "note": "Not yet."})
    assert done.output_text == "REJECTED disable:INC-44:user-456:proposal-v1: Not yet."
    assert await office.states("disable:INC-44:user-456:proposal-v1") == [
        ("PROPOSED", "anna"),
        ("WAITING_FOR_APPROVAL", "anna"),
        ("REJECTED", "mia"),
    ]
    assert not (await office.account("user-456"))["disabled"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Hello", desk.HELP),
        ("Reset the password of user-123", "For which ticket? Please name it, as in INC-42."),
        ("Reset the password of user-123, INC-99", "STOPPED: there is no ticket INC-99."),
    ],
)
async def test_what_cannot_be_proposed(office: Office, text: str, told: str) -> None:
    assert (await office.ask(text)).output_text == told


async def test_the_target_must_be_there_in_this_tenant(office: Office) -> None:
    for somebody in ("anna", "eve"):
        await office.ask("Read ticket INC-42", by=somebody)  # opens the desk of their tenant
    await office.sql("DELETE FROM service_desk_demo.accounts WHERE tenant = 'shop'")
    done = await office.answer(await office.ask(DISABLE), "approve")
    assert done.output_text.endswith("there is no such target here.")
    assert not (await office.account("user-456"))["disabled"], "the rival's"


# --- the failure stories ----------------------------------------------------------------------


async def test_the_process_restarts_while_a_person_is_waited_for(database_url: str) -> None:
    keys = await keys_of(database_url)
    async with opened(database_url, keys) as before:
        paused = await before.ask(DISABLE)
    async with opened(database_url, keys) as after:
        done = await after.answer(paused, "approve")
        assert done.output_text.startswith("EXECUTED disable:INC-44:user-456:proposal-v1")
        assert (await after.account("user-456"))["disables"] == 1
        assert await after.messages() == [
            "Your ticket INC-44: the account of user-456 was disabled."
        ]


async def test_approve_is_clicked_twice(office: Office) -> None:
    paused = await office.ask(DISABLE)
    told = await asyncio.gather(*(office.answer(paused, "approve") for _ in range(5)))
    assert len({(one.id, one.output_text) for one in told}) == 1
    assert (await office.account("user-456"))["disables"] == 1
    assert len(await office.messages()) == 1
    assert await office.states("disable:INC-44:user-456:proposal-v1") == [
        ("PROPOSED", "anna"),
        ("WAITING_FOR_APPROVAL", "anna"),
        ("APPROVED", "mia"),
        ("EXECUTED", "anna"),
    ]


async def test_the_policy_forbids_it_before_the_approval_comes(office: Office) -> None:
    paused = await office.ask(RESET)
    await office.set_tier("reset_credential", "prohibited")
    done = await office.answer(paused, "approve")
    assert done.output_text == (
        "STOPPED reset:INC-42:user-123:proposal-v1: the policy has changed since it was approved:"
        " the desk's policy prohibits it."
    )
    assert (await office.account("user-123"))["resets"] == 0
    assert await office.messages() == []


async def test_the_policy_wants_somebody_else_before_the_approval_comes(office: Office) -> None:
    await office.ask("Read ticket INC-42")
    await office.set_tier("reset_credential", "routine")
    paused = await office.ask(RESET)
    await office.set_tier("reset_credential", "credential")
    again = await office.answer(paused, "approve", by="anna")
    assert (await office.account("user-123"))["resets"] == 0
    with pytest.raises(PermissionDeniedError):
        await office.answer(again, "approve", by="anna")
    done = await office.answer(again, "approve")
    assert done.output_text.startswith("EXECUTED reset:INC-42:user-123:proposal-v1")
    assert (await office.account("user-123"))["resets"] == 1
    assert await office.states("reset:INC-42:user-123:proposal-v1") == [
        ("PROPOSED", "anna"),
        ("WAITING_FOR_APPROVAL", "anna"),
        ("WAITING_FOR_APPROVAL", "anna"),
        ("APPROVED", "mia"),
        ("EXECUTED", "anna"),
    ]


async def test_the_reviewer_edits(office: Office) -> None:
    """Validated, judged by the policy, done under its own key; the audit has both versions."""
    paused = await office.ask(RESET)
    done = await office.answer(paused, RESET_ONLY)
    assert done.output_text == (
        "PROPOSED reset:INC-42:user-123:proposal-v2: reset the password of user-123."
        "EXECUTED reset:INC-42:user-123:proposal-v2: the password of user-123 was reset."
    )
    account = await office.account("user-123")
    assert (account["resets"], account["sessions"]) == (1, 3), "no session was revoked"
    rows = await office.audit(paused)
    (answered,) = [row for row in rows if row["event"] == "answered"]
    before = [row["details"] for row in rows[: rows.index(answered)]]
    assert any('"revoke_sessions":true' in details for details in before)
    assert answered["actor"] == "mia"
    assert '"revoke_sessions":false' in answered["details"]
    key = "reset:INC-42:user-123:proposal-v2"
    effects = [json.loads(one["details"]) for one in rows if one["event"] == "effect_done"]
    (effect,) = [one for one in effects if one["key"] == key]
    assert effect["result"] == {"outcome": "the password of user-123 was reset"}


@pytest.mark.parametrize(
    "value",
    [
        {"user": "user-123", "revoke_sessions": "perhaps"},
        {"user": "root", "revoke_sessions": False},
        {"user": "user-123", "revoke_sessions": False, "force": True},
    ],
)
async def test_an_edit_that_does_not_fit_is_refused_and_the_question_stays(
    office: Office, value: Any
) -> None:
    paused = await office.ask(RESET)
    with pytest.raises(BadRequestError) as refused:
        await office.answer(paused, {"action": "edit", "value": value})
    assert refused.value.code == "invalid_interrupt_answer"
    assert (await office.answer(paused, RESET_ONLY)).output_text.count("EXECUTED") == 1


async def test_an_edit_that_the_policy_forbids_is_not_done(office: Office) -> None:
    paused = await office.ask("Restart payments in production, INC-43")
    await office.sql(
        "UPDATE service_desk_demo.rules SET tier = 'prohibited' WHERE environment = 'sandbox'"
    )
    edit = {"action": "edit", "value": {"service": "mail", "environment": "sandbox"}}
    done = await office.answer(paused, edit)
    assert "STOPPED restart:INC-43:mail:proposal-v1" in done.output_text
    assert await office.restarts() == 0


async def test_the_audit_says_who_asked_who_decided_and_what_was_done(office: Office) -> None:
    rows = await office.audit(await office.answer(await office.ask(DISABLE), "approve"))
    assert (rows[0]["event"], rows[0]["actor"]) == ("requested", "anna")
    assert ("answered", "mia") in [(row["event"], row["actor"]) for row in rows]
    claimed = [row["event"] for row in rows].index("effect_claimed")
    assert rows[claimed + 1]["event"] == "effect_done"


# --- its parts --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "action", "arguments"),
    [
        ("Please RESET user-9's password, INC-1", "reset_credential", {"user": "user-9"}),
        ("restart Mail in the sandbox INC-1", "restart_service", {"service": "mail"}),
        ("delete archive data mails-2019, INC-1", "delete_data", {"environment": "archive"}),
        ("disable user-7, INC-1", "disable_account", {"user": "user-7"}),
    ],
)
def test_what_is_read_from_words(text: str, action: str, arguments: dict[str, Any]) -> None:
    proposal = read(text)
    assert proposal is not None
    assert (proposal.action, proposal.ticket) == (action, "INC-1")
    assert arguments.items() <= proposal.arguments.items()


def test_topology_is_the_story() -> None:
    drawing = service_desk.build().compile().get_graph()
    edges = {(edge.source, edge.target) for edge in drawing.edges}
    assert edges == {
        ("__start__", "propose_action"),
        ("propose_action", "check_policy"),
        ("propose_action", "__end__"),
        ("check_policy", "execute"),
        ("check_policy", "request_approval"),
        ("check_policy", "stop"),
        ("request_approval", "review"),
        ("review", "execute"),
        ("review", "revise"),
        ("review", "stop"),
        ("revise", "check_policy"),
        ("revise", "__end__"),
        ("execute", "record_result"),
        ("execute", "request_approval"),
        ("execute", "stop"),
        ("record_result", "__end__"),
        ("stop", "__end__"),
    }
