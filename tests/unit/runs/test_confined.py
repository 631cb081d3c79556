"""Tasks of a run: what they may not do to the process is tested with a server; this is the rest."""

from __future__ import annotations

import asyncio
import gc

from gateway.human.run import CurrentRun, RunSettings, enter_run
from gateway.runs.confined import confine_graphs


async def test_a_task_that_is_cancelled_before_it_began_leaves_nothing() -> None:
    """Warnings are errors here: a coroutine that nobody awaited would be one."""
    confine_graphs(asyncio.get_running_loop())
    enter_run(
        CurrentRun(
            run_id="run_1",
            response_id="resp_1",
            tenant="default",
            requester="anna",
            settings=RunSettings(),
        )
    )
    task = asyncio.create_task(asyncio.sleep(60))
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    del task
    gc.collect()
