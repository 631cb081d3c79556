"""The rows of what this process moves: first requests together with others', endings fenced."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.errors import LeaseLost
from gateway.runs import endings
from gateway.runs.endings import Draft, Keep
from gateway.runs.execution import Execution
from gateway.runs.lease import Leases
from gateway.runs.rounds import patiently
from gateway.store.batch import Batch
from gateway.store.db import AlreadyThere, Database, fetch_one
from gateway.store.responses import (
    Ending,
    NewResponse,
    arrive,
    finish_first,
    forget_first,
    open_first,
)


class Rows:
    """Writes the rows of the responses of one process; one per coordinator."""

    def __init__(self, database: Database, leases: Leases, keep: Keep) -> None:
        self.database = database
        self.leases = leases
        self.keep = keep
        self.openings = Batch[NewResponse, None](self._write_openings)
        self.completions = Batch[Ending, bool](self._write_completions)
        self.arrivals = Batch[tuple[NewResponse, Ending], bool](self._write_arrivals)

    async def commit(self, execution: Execution, end: Draft) -> None:
        """Store the ending; while the database is away, try again: the work is done and must not
        be lost.

        A commit whose answer was lost may have happened: then the fence says that the lease is
        lost, and the row that it is ours.
        """

        async def stored() -> None:
            try:
                await self._store(execution, end)
            except LeaseLost:
                if not await self._is_stored(execution, end):
                    raise

        await patiently(stored)

    async def _store(self, execution: Execution, end: Draft) -> None:
        """One try. The lease is not renewed meanwhile: the fence consumes it, which must not look
        lost."""
        if execution.opening is not None:
            await asyncio.wait([execution.opening])
        alone = execution.lease is None and execution.conversation is None
        if alone and not end.asked and not execution.acted:
            await self._store_completion(execution, end)
            return
        with self.leases.paused(execution.lease):
            await endings.store_ending(self.database, execution, end, self.keep)

    async def _store_completion(self, execution: Execution, end: Draft) -> None:
        if execution.unopened is not None and execution.stored:
            arrival = execution.unopened(end.body)
            ending = endings.ending_of(execution, end, self.keep)
            written = await self.arrivals.add((arrival, ending))
        elif execution.unopened is not None and execution.opening is None:
            return  # nobody knew of it, and nothing is kept
        elif execution.kept:
            row = endings.ending_of(execution, end, self.keep)
            written = await self.completions.add(row)
        else:
            async with self.database.connection() as conn:
                written = await forget_first(conn, execution.response_id, execution.lease_id)
        if not written:
            raise LeaseLost("This response was ended by another process.")

    async def _is_stored(self, execution: Execution, end: Draft) -> bool:
        async with self.database.connection() as conn:
            row = await fetch_one(
                conn, "response", tenant=execution.current.tenant, id=execution.response_id
            )
        if row is None:  # recovery would have left one
            first = execution.lease is None and not end.asked
            return first and not execution.kept
        return bool(row["body"] == end.body.decode())

    async def _write_openings(self, rows: Sequence[NewResponse]) -> Sequence[None]:
        try:
            async with self.database.connection() as conn:
                await open_first(conn, rows, self.leases.owner)
        except AlreadyThere:
            if len(rows) > 1:
                raise  # they are tried one by one
            # Ids are new: a commit was not heard of, and this is the second try.
        return [None] * len(rows)

    async def _write_completions(self, rows: Sequence[Ending]) -> Sequence[bool]:
        async with self.database.connection() as conn:
            cursor = await finish_first(conn, rows, self.leases.owner)
            written = {row["id"] for row in await cursor.fetchall()}
        return [row.id in written for row in rows]

    async def _write_arrivals(self, rows: Sequence[tuple[NewResponse, Ending]]) -> Sequence[bool]:
        async with self.database.connection() as conn:
            cursor = await arrive(conn, rows, self.leases.owner)
            written = {row["id"] for row in await cursor.fetchall()}
        return [row.id in written for row, _ in rows]
