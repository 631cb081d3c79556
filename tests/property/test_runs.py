"""The life of runs, model-checked: any interleaving of requests, nodes, crashes and takeovers.

The model knows for each run what a client was told and what must follow from it. The replicas know
nothing of the model; what they do is held against it after every step:

- an accepted answer stands: its repeat gets the same response, anything else is refused;
- the money of a key moves once, however many runs, replays and zombies are at it, and only if
  somebody approved;
- what a stopped or lost process does when it wakes changes nothing;
- a run that ended leaves no checkpoints and no lease, and every accepted answer comes to its end.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gateway.errors import FermataError, ResponseInProgress
from tests.integration.api import calls, texts
from tests.openresponses import Json
from tests.property.replicas import Observer, Replica, Visit, World, soon

T = TypeVar("T")

NUMBERS = st.integers(0, 5)
"""Which one of those that there are."""

KEYS = ("A", "B")
SAID = ("approve", "reject")
ENDED = ("cancelled", "expired", "late", "failed")
MOST_TAKEOVERS = 3
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""No shrinking: an example takes a second, and what it did is printed step by step."""
_numbers = count(1)


def nth(some: Sequence[T], number: int) -> T:
    return some[number % len(some)]


@dataclass(eq=False)
class Question:
    """A question as its client knows it."""

    response_id: str
    call_id: str
    accepted: str | None = None
    carrier: str | None = None
    """The response that carries the accepted answer."""
    reply: Json | None = None
    """What came of it, once that is known."""


@dataclass(eq=False)
class Run:
    """A run as the model sees it."""

    key: str
    status: str
    """As in the database; starting: it has not asked yet; late: its time is over, nobody swept."""
    first: str = ""  # the response that started it
    questions: list[Question] = field(default_factory=list)
    visit: Visit | None = None
    """The node of the process that may move it."""
    takeovers: int = 0
    deleted: bool = False

    @property
    def question(self) -> Question:
        return self.questions[-1]


class Runs(RuleBasedStateMachine):
    """Two or three replicas, some clients, and whoever pulls the plugs."""

    url = ""

    # --- the loop, the replicas ---

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.tenant = f"t{next(_numbers)}"
        self.world = World()
        self.names = count(1)
        self.replicas: list[Replica] = []
        self.known: list[Run] = []
        self.sql = self.do(Observer(self.url).open())

    def do(self, work: Awaitable[T]) -> T:
        async def run() -> T:
            return await work

        return self.runner.run(run())

    @property
    def alive(self) -> list[Replica]:
        return [one for one in self.replicas if one.state == "alive"]

    def replica(self, number: int) -> Replica:
        return nth(self.alive, number)

    def named(self, name: str) -> Replica:
        return next(one for one in self.replicas if one.name == name)

    def those(self, *statuses: str) -> list[Run]:
        return [run for run in self.known if run.status in statuses and not run.deleted]

    def add_replica(self) -> Replica:
        made = Replica(f"replica-{next(self.names)}", self.tenant, self.sql)
        self.replicas.append(self.do(made.start(self.url, self.world)))
        return made

    @initialize()
    def two_replicas(self) -> None:
        self.add_replica()
        self.add_replica()

    # --- clients ---

    @precondition(lambda self: len(self.known) < 6)
    @rule(key=st.sampled_from(KEYS), slowly=st.booleans(), where=NUMBERS)
    def create(self, key: str, slowly: bool, where: int) -> None:
        replica = self.replica(where)
        text = f"slowly {key}" if slowly else key
        # Streamed, so that it is on record before it has ended: its id is told.
        reply = self.do(replica.create(text, stream=slowly))
        run = Run(key, "starting", reply.response_id)
        self.known.append(run)
        if slowly:
            run.visit = self.new_visit(reply.response_id, replica)
        else:
            self.paused(run, self.do(reply.result()))

    def paused(self, run: Run, body: bytes) -> None:
        asked = json.loads(body)
        (call,) = calls(asked)
        run.questions.append(Question(asked["id"], call["call_id"]))
        run.status, run.visit = "waiting", None

    @precondition(lambda self: self.those("waiting", "stalled"))
    @rule(which=NUMBERS, said=st.sampled_from(SAID), where=NUMBERS)
    def answer(self, which: int, said: str, where: int) -> None:
        """To what is open; what failed after its answer is sent that one again."""
        run = nth(self.those("waiting", "stalled"), which)
        said = run.question.accepted or said
        self.accepted(self.replica(where), run, run.question, said)

    @precondition(lambda self: any(run.questions for run in self.known))
    @rule(run=NUMBERS, said=st.sampled_from(SAID), which=st.integers(0, 1), where=NUMBERS)
    def answer_anything(self, run: int, said: str, which: int, where: int) -> None:
        """To the first question or the last, the same as before or another, too early or late."""
        self.answer_to(nth([one for one in self.known if one.questions], run), said, which, where)

    def answer_to(self, run: Run, said: str, which: int, where: int) -> None:
        question = run.questions[min(which, len(run.questions) - 1)]
        replica = self.replica(where)
        if run.deleted or (
            question is run.question and run.status in ENDED and question.accepted is None
        ):
            self.refused(replica, question, said, 400, 404, 410)
        elif question.accepted not in (None, said):
            self.refused(replica, question, said, 400, 410)
        elif question is run.question and run.status in ("waiting", "stalled"):
            self.accepted(replica, run, question, said)
        elif run.status == "late" and question is run.question:
            self.refused(replica, question, said, 410)  # it stalled, and its time is over
        else:
            self.repeated(replica, run, question, said)

    def accepted(self, replica: Replica, run: Run, question: Question, said: str) -> None:
        reply = self.do(self.send(replica, question, said))
        question.accepted, question.carrier, question.reply = said, reply.response_id, None
        run.status, run.takeovers = "running", 0
        run.visit = self.new_visit(reply.response_id, replica)

    def repeated(self, replica: Replica, run: Run, question: Question, said: str) -> None:
        before = self.do(self.rows())
        reply = self.do(self.send(replica, question, said))
        assert reply.response_id == question.carrier
        if question.reply is not None:
            assert json.loads(self.do(reply.result())) == question.reply
        assert self.do(self.rows()) == before

    def refused(self, replica: Replica, question: Question, said: str, *statuses: int) -> None:
        before = self.do(self.rows())
        with pytest.raises(FermataError) as refused:
            self.do(self.send(replica, question, said))
        assert refused.value.status in statuses, refused.value
        assert self.do(self.rows()) == before

    async def send(self, replica: Replica, question: Question, said: str) -> Any:
        output = {"type": "function_call_output", "call_id": question.call_id, "output": said}
        return await replica.create([output], previous_response_id=question.response_id)

    @precondition(lambda self: self.known)
    @rule(run=NUMBERS, where=NUMBERS)
    def cancel(self, run: int, where: int) -> None:
        self.taken_back(nth(self.known, run), self.replica(where), deleting=False)

    @precondition(lambda self: self.known)
    @rule(run=NUMBERS, where=NUMBERS)
    def delete(self, run: int, where: int) -> None:
        self.taken_back(nth(self.known, run), self.replica(where), deleting=True)

    def taken_back(self, run: Run, replica: Replica, *, deleting: bool) -> None:
        asking = run.question.response_id if run.questions else run.first
        work = replica.delete(asking) if deleting else replica.cancel(asking)
        if run.deleted:
            self.fails_with(work, 404)
        elif deleting and run.status in ("running", "starting"):
            self.fails_with(work, 409)
        elif run.status == "running":
            self.changes_nothing(work)
        elif run.status == "starting":
            self.cancel_first(run, replica)
            work.close()
        else:
            self.do(work)
            run.deleted = deleting
            if run.status in ("waiting", "stalled", "late"):
                run.status = "cancelled"

    def cancel_first(self, run: Run, replica: Replica) -> None:
        """A first request ends as cancelled where it runs."""
        assert run.visit is not None
        work = replica.cancel(run.first)
        if run.visit.replica != replica.name:
            self.fails_with(work, 409)
            return
        assert self.do(work)["status"] == "cancelled"
        run.status, run.visit = "cancelled", None

    def changes_nothing(self, work: Awaitable[Any]) -> None:
        """An accepted answer is carried out, whatever a cancellation is told."""
        before = self.do(self.rows())
        with suppress(ResponseInProgress):
            self.do(work)
        assert self.do(self.rows()) == before

    def fails_with(self, work: Awaitable[Any], status: int) -> None:
        before = self.do(self.rows())
        with pytest.raises(FermataError) as refused:
            self.do(work)
        assert refused.value.status == status, refused.value
        assert self.do(self.rows()) == before

    # --- time ---

    @precondition(lambda self: self.those("waiting", "stalled"))
    @rule(which=NUMBERS, swept=st.booleans(), where=NUMBERS)
    def expire(self, which: int, swept: bool, where: int) -> None:
        run = nth(self.those("waiting", "stalled"), which)
        self.do(
            self.sql(
                "UPDATE fermata.runs SET expires_at = now() - interval '1 second' WHERE id ="
                " (SELECT run_id FROM fermata.interrupts WHERE call_id = %s)",
                run.question.call_id,
            )
        )
        run.status = "late"
        if swept:
            self.do(self.replica(where).sweep())
            for one in self.known:
                one.status = "expired" if one.status == "late" else one.status

    # --- nodes ---

    def moving(self) -> list[Run]:
        """Runs whose node can go on: its process is there, if only just."""
        return [
            run
            for run in self.known
            if run.visit is not None
            and not run.visit.told.done()
            and self.named(run.visit.replica).state != "dead"
        ]

    @precondition(lambda self: self.moving())
    @rule(which=NUMBERS, how=st.sampled_from(["finish", "ask", "raise"]))
    def step(self, which: int, how: str) -> None:
        """The node of a run goes on, on the process that has it."""
        self.step_on(nth(self.moving(), which), how)

    def step_on(self, run: Run, how: str) -> None:
        visit = run.visit
        assert visit is not None
        self.go_on(visit, how)
        if self.is_refused_the_effect(run, visit):
            return  # it left the run to whoever may move it
        if run.status == "starting":
            self.ended_first(run)
        elif (visit.node, how) == ("act", "ask"):
            self.ended(run, "completed")
            self.paused(run, json.dumps(run.question.reply).encode())
        else:
            self.ended(run, "failed" if how == "raise" else "completed")
            run.status = "stalled" if how == "raise" else "completed"

    def is_refused_the_effect(self, run: Run, visit: Visit) -> bool:
        stopped = self.named(visit.replica).state == "stopped"
        return stopped and visit.node == "act" and run.question.accepted == "approve"

    def ended_first(self, run: Run) -> None:
        reader = self.replica(0)
        self.paused(run, json.dumps(self.do(reader.read(run.first))).encode())

    def ended(self, run: Run, status: str) -> None:
        """The response that carries the answer has ended so, and is on record."""
        question = run.question
        assert question.carrier is not None
        question.reply = self.do(self.replica(0).read(question.carrier))
        assert question.reply["status"] == status
        run.visit = None

    def go_on(self, visit: Visit, how: str) -> None:
        visit.told.set_result(how)
        self.do(soon(lambda: not self.named(visit.replica).runs(visit.response_id)))

    def about_to_pay(self) -> list[Run]:
        return [
            run
            for run in self.moving()
            if run.visit is not None
            and self.is_held(run)
            and run.visit.node == "act"
            and run.question.accepted == "approve"
            and run.key not in self.world.bank
        ]

    @precondition(lambda self: self.about_to_pay())
    @rule(which=NUMBERS)
    def die_in_the_effect(self, which: int) -> None:
        """kill -9 between effect and record: the money has moved, nobody wrote it down."""
        run = nth(self.about_to_pay(), which)
        visit = run.visit
        assert visit is not None
        if len(self.alive) == 1 and self.named(visit.replica) in self.alive:
            self.add_replica()
        visit.told.set_result("die")
        self.do(soon(lambda: run.key in self.world.bank))
        self.do(self.named(visit.replica).kill())

    def zombies(self) -> list[Visit]:
        current = {id(one.visit) for one in self.known}
        return [
            visit
            for visit in self.world.visits
            if id(visit) not in current and self.named(visit.replica).state != "dead"
        ]

    @precondition(lambda self: self.zombies())
    @rule(which=NUMBERS, how=st.sampled_from(["finish", "ask", "raise"]))
    def a_zombie_goes_on(self, which: int, how: str) -> None:
        """A node of a process that lost its run to another: nothing that it does counts."""
        before = self.do(self.rows())
        self.go_on(nth(self.zombies(), which), how)
        assert self.do(self.rows()) == before

    # --- those who pull the plugs ---

    @precondition(lambda self: len(self.replicas) < 8)
    @rule(where=NUMBERS, how=st.sampled_from(["kill", "stop"]))
    def crash(self, where: int, how: str) -> None:
        if len(self.alive) == 1:
            self.add_replica()
        replica = self.replica(where)
        self.do(replica.kill() if how == "kill" else replica.stop())

    def stopped(self) -> list[Replica]:
        return [one for one in self.replicas if one.state == "stopped"]

    @precondition(lambda self: self.stopped())
    @rule(which=NUMBERS)
    def wake(self, which: int) -> None:
        self.do(nth(self.stopped(), which).wake())

    def lost(self) -> list[Run]:
        """Runs that nobody alive holds."""
        return [run for run in self.known if run.visit and not self.is_held(run)]

    @precondition(lambda self: self.lost())
    @rule(where=NUMBERS)
    def recover(self, where: int) -> None:
        replica, lost = self.replica(where), self.lost()
        self.do(replica.recover())
        for run in lost:
            self.recovered(run, replica)

    def is_held(self, run: Run) -> bool:
        """Whether the lease of this run, or the sign of life of its process, is good."""
        visit = run.visit
        held = visit is not None and not visit.told.done()
        return held and self.named(visit.replica).state == "alive"

    def recovered(self, run: Run, replica: Replica) -> None:
        if run.status == "starting":
            assert self.do(replica.read(run.first))["status"] == "failed"
            run.status, run.visit = "failed", None
            return
        carrier = str(run.question.carrier)
        run.takeovers += 1
        if run.takeovers > MOST_TAKEOVERS:
            self.ended(run, "failed")
            run.status = "stalled"
        else:
            run.visit = self.new_visit(carrier, replica)

    def new_visit(self, response_id: str, replica: Replica) -> Visit:
        def found() -> list[Visit]:
            return [
                visit
                for visit in self.world.visits
                if (visit.response_id, visit.replica) == (response_id, replica.name)
            ]

        self.do(soon(found))
        (visit,) = found()
        return visit

    # --- what always holds ---

    async def rows(self) -> Json:
        """All that a holder could write of this tenant's."""
        found: Json = {}
        for table in ("runs", "responses", "interrupts"):
            found[table] = await self.sql(
                f"SELECT t::text FROM fermata.{table} t WHERE tenant = %s ORDER BY t::text",
                self.tenant,
            )
        for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes"):
            found[table] = await self.sql(
                f"SELECT t::text FROM {table} t WHERE thread_id IN"
                " (SELECT id FROM fermata.runs WHERE tenant = %s) ORDER BY t::text",
                self.tenant,
            )
        return found

    @invariant()
    def money_moves_once_and_only_if_approved(self) -> None:
        for key in KEYS:
            moved = self.world.bank.count(key)
            approved = any(
                run.key == key and one.accepted == "approve"
                for run in self.known
                for one in run.questions[:1]
            )
            assert moved <= int(approved)

    @invariant()
    def the_database_agrees(self) -> None:
        asked = [run for run in self.known if run.questions]
        if not asked:
            return
        rows = self.do(
            self.sql(
                "SELECT i.call_id, i.status AS question, i.answer #>> '{}' AS answer, r.status,"
                " r.expires_at <= now() AS late,"
                " (SELECT count(*) FROM checkpoints c WHERE c.thread_id = r.id) AS checkpoints,"
                " (SELECT count(*) FROM fermata.leases l WHERE l.id = r.id) AS leases"
                " FROM fermata.interrupts i JOIN fermata.runs r ON r.id = i.run_id"
                " WHERE r.tenant = %s",
                self.tenant,
            )
        )
        stored = {row["call_id"]: row for row in rows}
        for run in asked:
            row = stored[run.question.call_id]
            late = row["late"] and row["status"] in ("waiting", "stalled")
            assert ("late" if late else row["status"]) == run.status, (row, run)
            assert bool(row["leases"]) == (run.status == "running")
            kept = run.status in ("waiting", "running", "stalled", "late")
            assert bool(row["checkpoints"]) == kept, (row, run)
            for question in run.questions:
                assert stored[question.call_id]["answer"] == question.accepted

    def teardown(self) -> None:
        """All that was accepted comes to its end, whoever is left."""
        try:
            self.everything_ends()
        finally:
            self.do(self.leave())
            self.runner.close()

    def everything_ends(self) -> None:
        if not self.replicas:
            return
        survivor = self.add_replica()
        for replica in self.replicas:
            if replica is not survivor and replica.state != "dead":
                self.do(replica.stop())
        lost = [run for run in self.known if run.visit]
        self.do(survivor.recover())
        for run in lost:
            self.recovered(run, survivor)
        for run in self.known:
            while run.status in ("running", "stalled"):
                if run.status == "stalled":
                    self.accepted(survivor, run, run.question, str(run.question.accepted))
                self.step_on(run, "finish")
        self.the_database_agrees()
        for run in self.known:
            first = run.questions[0] if run.questions else None
            if run.status == "completed" and first is not None:
                assert self.world.bank.count(run.key) >= int(first.accepted == "approve")
                assert texts(run.question.reply or {})
        open_ones = self.do(
            self.sql(
                "SELECT id FROM fermata.responses WHERE tenant = %s AND completed_at IS NULL",
                self.tenant,
            )
        )
        assert open_ones == []

    async def leave(self) -> None:
        for replica in self.replicas:
            if replica.state != "dead":
                await replica.kill()
        await self.sql.close()


def test_any_interleaving_keeps_the_promises(database_url: str) -> None:
    """P2, P3, P4, P5, P8."""

    class OnThisDatabase(Runs):
        url = database_url

    run_state_machine_as_test(
        OnThisDatabase,
        settings=settings(
            max_examples=12,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
            phases=PHASES,
            report_multiple_bugs=False,
        ),
    )
