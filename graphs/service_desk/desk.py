"""The graph of the service desk: propose, ask the policy, ask a person, act once, say so.

A manager decides, not the one who asked. Anna asks; Mia answers, first with an edit:

    user       Reset the password of user-123 and revoke all sessions, INC-42.
    assistant  PROPOSED reset:INC-42:user-123:proposal-v1: reset … and revoke all sessions.
    assistant  WAITING_FOR_APPROVAL of a manager who did not ask for it.
    call       approve_reset_credential("May the desk reset the password of user-123 … (INC-42)",
               {"user": "user-123", "revoke_sessions": true})
    output     {"action": "edit", "value": {"user": "user-123", "revoke_sessions": false}}
    assistant  PROPOSED reset:INC-42:user-123:proposal-v2: reset the password of user-123.
    assistant  EXECUTED reset:INC-42:user-123:proposal-v2: the password of user-123 was reset.
    user       Disable the account of user-456, INC-44.
    assistant  PROPOSED disable:INC-44:user-456:proposal-v1: disable the account of user-456.
    assistant  WAITING_FOR_APPROVAL of a manager who did not ask for it.
    call       approve_disable_account("May the desk disable the account of user-456? (INC-44)")
    output     {"action": "reject", "note": "Her last day is Friday."}
    assistant  REJECTED disable:INC-44:user-456:proposal-v1: Her last day is Friday.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal

from langchain_core.messages import BaseMessage, HumanMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from pydantic import ValidationError

from gateway import Approval, ask_approval, async_effect, current_run, effect_in_transaction
from graphs.fake_chat import FakeChat
from graphs.service_desk.policy import kept, policy_now, who
from graphs.service_desk.proposals import ACTIONS, Proposal, read
from graphs.service_desk.systems import (
    Refused,
    Systems,
    look_up,
    note,
    open_desk,
    put_on_record,
    tell,
)

HELP = (
    "I can read a ticket, search the knowledge base, restart a service, reset a password, disable"
    " an account or delete data. Try: Reset the password of user-123 and revoke all sessions,"
    " INC-42."
)
PATIENCE = timedelta(hours=24)

model = FakeChat()


class Desk(MessagesState, total=False):
    """What is proposed (empty: nothing), what the policy says about it, what the reviewer said and
    under which decision, how often somebody was asked, and what came of it. Plain JSON: a wait may
    outlive these classes."""

    proposal: dict[str, Any]
    decision: dict[str, Any]
    answer: dict[str, Any]
    asked: int
    outcome: str
    refused: str


async def propose_action(state: Desk) -> dict[str, Any]:
    """Read what is wanted, validate it, and put it on record."""
    await open_desk(current_run().tenant)
    proposal = read(_last_user_text(state))
    if proposal is None:
        return await _say(HELP, proposal={})
    try:
        changes = proposal.asked.changes
    except ValidationError:
        return await _say(HELP, proposal={})
    if not changes:
        return await _say(f"PROPOSED: {proposal.asked.words()}.", proposal=proposal.model_dump())
    if not proposal.ticket:
        return await _say("For which ticket? Please name it, as in INC-42.", proposal={})
    return await _proposed(proposal, current_run().requester)


async def check_policy(state: Desk) -> dict[str, Any]:
    """Ask the policy, as it is now, about the arguments, as they are now."""
    return {"decision": await _judged(_proposal(state))}


async def request_approval(state: Desk) -> dict[str, Any]:
    """Say who is waited for. A node of its own: the next one runs again when the answer comes."""
    asked, decision = state.get("asked", 0) + 1, state["decision"]
    await _note(state, "WAITING_FOR_APPROVAL", current_run().requester, who(decision), asked)
    said = await _say(f"WAITING_FOR_APPROVAL of {who(decision)}.")
    return {**said, "asked": asked, "answer": {}}


async def review(state: Desk) -> dict[str, Any]:
    """Wait for a person. Nothing else happens here."""
    proposal, decision = _proposal(state), state["decision"]
    answer = ask_approval(
        f"approve_{proposal.action}",
        question=f"May the desk {proposal.asked.words()}? ({proposal.ticket})",
        payload=proposal.arguments,
        editable=ACTIONS[proposal.action],
        roles=decision["roles"],
        four_eyes=decision["four_eyes"],
        expires_in=PATIENCE,
        on_expiry="reject",
        action=proposal.action,
        tier=decision["tier"],
    )
    return {
        "answer": {
            "action": answer.action,
            "note": answer.note or "",
            "reviewer": answer.reviewer or "",
            "edit": answer.value.model_dump() if answer.edited else None,
            "under": decision,
        }
    }


async def revise(state: Desk) -> dict[str, Any]:
    """What the reviewer made of it is a proposal of its own: the next version."""
    answer = state["answer"]
    changed = _proposal(state).model_copy(update={"arguments": answer["edit"]})
    return await _proposed(changed, answer["reviewer"])


async def record_result(state: Desk) -> dict[str, Any]:
    """Tell whoever opened the ticket, put it on record, and say so."""
    proposal = _proposal(state)
    if not proposal.asked.changes:
        return await _say(f"EXECUTED: {state['outcome']}.")
    run = current_run()
    await effect_in_transaction(
        f"{proposal.key}:told",
        tell,
        arguments={
            "tenant": run.tenant,
            "ticket": proposal.ticket,
            "proposal": proposal.key,
            "by": run.requester,
            "outcome": state["outcome"],
        },
    )
    return await _say(f"EXECUTED {proposal.key}: {state['outcome']}.")


async def stop(state: Desk) -> dict[str, Any]:
    """End in words: nothing was done."""
    proposal, answer = _proposal(state), state.get("answer") or {}
    rejected = answer.get("action") == "reject"
    if rejected:
        name, by = "REJECTED", answer["reviewer"]
        reason = answer["note"] or "the reviewer said no"
    else:
        name, by, reason = "STOPPED", current_run().requester, _why(state)
    if not proposal.asked.changes:
        return await _say(f"{name}: {reason}")
    await _note(state, name, by, reason, state.get("asked", 0))
    return await _say(f"{name} {proposal.key}: {reason.rstrip('.')}.")


def _why(state: Desk) -> str:
    if refused := state.get("refused"):
        return refused
    changed = "the policy has changed since it was approved: " if state.get("answer") else ""
    return f"{changed}{state['decision']['reason'] or 'the policy denies it'}"


class Execution:
    """The node that acts, on the systems that it is given."""

    def __init__(self, systems: Systems) -> None:
        self.systems = systems

    async def execute(self, state: Desk) -> dict[str, Any]:
        """Authorise it once more, as an approval is none; then act, once."""
        proposal, answer = _proposal(state), state.get("answer") or {}
        now = await _judged(proposal)
        if now["verdict"] == "deny" or (now["verdict"] == "ask" and answer.get("under") != now):
            return {"decision": now}
        if answer:
            await _note(state, "APPROVED", answer["reviewer"], answer["note"], state["asked"])
        if not proposal.asked.changes:
            found = await look_up(proposal.action, current_run().tenant, proposal.arguments)
            return {"decision": now, "outcome": found}
        try:
            done = await self._once(proposal, asked=now["verdict"] == "ask")
        except Refused as refused:
            return {"decision": now, "refused": str(refused)}
        return {"decision": now, "outcome": done["outcome"]}

    async def _once(self, proposal: Proposal, *, asked: bool) -> Mapping[str, Any]:
        """If the worker dies after the system has acted, whoever comes next asks the system."""
        done: Mapping[str, Any] = await async_effect(
            proposal.key,
            self.systems.perform,
            arguments={
                "action": proposal.action,
                "tenant": current_run().tenant,
                "arguments": proposal.arguments,
                "request_id": proposal.key,
            },
            on_uncertain=self.systems.find,
            on_failure=lambda error: "release" if isinstance(error, Refused) else "uncertain",
            approval=Approval(proposal.action, of=proposal.arguments) if asked else None,
        )
        return done


# --- the way ----------------------------------------------------------------------------------


def after_proposal(state: Desk) -> Literal["check_policy", "__end__"]:
    """There may be nothing to do."""
    return "check_policy" if state["proposal"] else "__end__"


def after_policy(state: Desk) -> Literal["execute", "request_approval", "stop"]:
    """Whoever edited has approved the edit, where the policy asks for the same approval again."""
    decision, answer = state["decision"], state.get("answer") or {}
    if decision["verdict"] == "deny":
        return "stop"
    if decision["verdict"] == "allow" or answer.get("under") == decision:
        return "execute"
    return "request_approval"


def after_review(state: Desk) -> Literal["execute", "revise", "stop"]:
    """Only an approval leads to an effect, and an edit to the policy."""
    action = state["answer"]["action"]
    if action == "approve":
        return "execute"
    return "revise" if action == "edit" else "stop"


def after_execution(state: Desk) -> Literal["record_result", "request_approval", "stop"]:
    """The policy may have changed while the approval waited, and the target may be gone."""
    if state.get("outcome"):
        return "record_result"
    return "request_approval" if _asks_anew(state) else "stop"


def _asks_anew(state: Desk) -> bool:
    return state["decision"]["verdict"] == "ask" and not state.get("refused")


# --- steps of nodes ---------------------------------------------------------------------------


async def _proposed(proposal: Proposal, by: str) -> dict[str, Any]:
    """On record under the next version. The run and the version before are the effect's key: a
    replay is the same proposal."""
    run, asked = current_run(), proposal.asked
    version = await effect_in_transaction(
        f"{run.run_id}:proposal-after-v{proposal.version}",
        put_on_record,
        arguments={
            "tenant": run.tenant,
            "ticket": proposal.ticket,
            "target": asked.target,
            "verb": asked.verb,
            "by": by,
        },
    )
    if version is None:
        return await _say(f"STOPPED: there is no ticket {proposal.ticket}.", proposal={})
    numbered = proposal.model_copy(update={"version": version})
    said = f"PROPOSED {numbered.key}: {asked.words()}."
    return await _say(said, proposal=numbered.model_dump())


async def _judged(proposal: Proposal) -> dict[str, Any]:
    policy = await policy_now(current_run().tenant)
    return kept(policy.judge(proposal.action, proposal.arguments))


async def _note(state: Desk, name: str, by: str, remark: str, asked: int) -> None:
    """The proposal has come to this state; said once for each time that somebody was asked."""
    run, key = current_run(), _proposal(state).key
    await effect_in_transaction(
        f"{key}:{name}:{asked}",
        note,
        arguments={
            "tenant": run.tenant,
            "proposal": key,
            "state": name,
            "by": by,
            "remark": remark,
        },
    )


async def _say(text: str, **more: Any) -> dict[str, Any]:
    reply: BaseMessage = await model.ainvoke(text)
    return {"messages": [reply], **more}


def _proposal(state: Desk) -> Proposal:
    return Proposal.model_validate(state["proposal"])


def _last_user_text(state: Desk) -> str:
    texts = [str(one.text) for one in state["messages"] if isinstance(one, HumanMessage)]
    return texts[-1] if texts else ""


def build(systems: Systems | None = None) -> StateGraph[Any, Any, Any, Any]:
    """The graph, without a checkpointer: whoever serves it brings one."""
    graph = StateGraph(Desk)
    graph.add_node(propose_action)
    graph.add_node(check_policy)
    graph.add_node(request_approval)
    graph.add_node(review)
    graph.add_node(revise)
    graph.add_node("execute", Execution(systems or Systems()).execute)
    graph.add_node(record_result)
    graph.add_node(stop)
    graph.add_edge(START, "propose_action")
    graph.add_conditional_edges("propose_action", after_proposal)
    graph.add_conditional_edges("check_policy", after_policy)
    graph.add_edge("request_approval", "review")
    graph.add_conditional_edges("review", after_review)
    graph.add_conditional_edges("revise", after_proposal)
    graph.add_conditional_edges("execute", after_execution)
    graph.add_edge("record_result", END)
    graph.add_edge("stop", END)
    return graph
