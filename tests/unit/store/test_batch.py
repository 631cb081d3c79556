"""What asks at the same time goes to PostgreSQL together, and each gets its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.store.batch import LARGEST, TURNS, Batch


class Table:
    """Doubles numbers; remembers what came together, and refuses negative ones."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    async def write(self, numbers: Sequence[int]) -> Sequence[int]:
        await asyncio.sleep(0)
        self.batches.append(list(numbers))
        if min(numbers) < 0:
            raise ValueError(min(numbers))
        return [2 * number for number in numbers]


async def test_what_asks_at_once_goes_together_and_gets_its_own_answer() -> None:
    table = Table()
    batches = Batch[int, int](table.write)
    assert await asyncio.gather(*(batches.add(n) for n in range(5))) == [0, 2, 4, 6, 8]
    assert table.batches == [[0, 1, 2, 3, 4]]


async def test_what_is_nearly_there_comes_along() -> None:
    table = Table()
    batches = Batch[int, int](table.write)

    async def add_later(number: int, turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return await batches.add(number)

    await asyncio.gather(add_later(1, 0), add_later(2, TURNS // 2), add_later(3, 3 * TURNS))
    assert table.batches == [[1, 2], [3]]


async def test_long_turns_are_not_waited_for() -> None:
    table = Table()
    batches = Batch[int, int](table.write, longest=0.0)

    async def add_later() -> int:
        for _ in range(TURNS // 2):
            await asyncio.sleep(0)
        return await batches.add(2)

    await asyncio.gather(batches.add(1), add_later())
    assert table.batches == [[1], [2]]


async def test_no_batch_is_larger_than_the_largest() -> None:
    table = Table()
    batches = Batch[int, int](table.write)
    await asyncio.gather(*(batches.add(n) for n in range(2 * LARGEST + 1)))
    assert [len(one) for one in table.batches] == [LARGEST, LARGEST, 1]


async def test_one_that_is_refused_takes_no_other_with_it() -> None:
    table = Table()
    batches = Batch[int, int](table.write)
    results = await asyncio.gather(*(batches.add(n) for n in (1, -1, 3)), return_exceptions=True)
    assert results[0] == 2
    assert isinstance(results[1], ValueError)
    assert results[2] == 6
    assert await batches.add(4) == 8


async def test_a_caller_that_is_cancelled_takes_no_other_with_it() -> None:
    table = Table()
    batches = Batch[int, int](table.write)
    leaves, stays = asyncio.create_task(batches.add(1)), asyncio.create_task(batches.add(2))
    await asyncio.sleep(0)
    leaves.cancel()
    assert await stays == 4
    assert leaves.cancelled()
