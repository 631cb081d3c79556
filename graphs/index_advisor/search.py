"""Branch and bound over sets of indexes: which set makes the workload cheapest. Pure; plain data.

The value of a set is what it changes: the cost of the workload with it and its own upkeep, less
the cost without it. The best is the lowest; the empty set has 0 and is the first incumbent.

More indexes never make the planner's best plan dearer, so no set is worth more than all candidates
together, upkeep aside (the `floor`). A set whose upkeep on top of that is no better than the
incumbent is not tried, nor is any larger one. When nothing is left to try, the incumbent is the
best there is; when the budget is spent before that, it is the best that was found.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import TypedDict

BUDGET = 48
"""How many sets are tried at most."""


class Search(TypedDict):
    """Where the search stands; a set is a list of candidates' numbers, ascending.

    `upkeep` is that of each candidate, `open` the sets to try, as a heap by their bounds.
    """

    upkeep: list[float]
    floor: float
    open: list[tuple[float, list[int]]]
    best: list[int]
    value: float
    tried: int


def begin(upkeep: Sequence[float], floor: float) -> Search:
    """A search over as many candidates as there are upkeeps; `floor` is the cost of the workload
    with all of them, less the cost with none."""
    search = Search(upkeep=list(upkeep), floor=floor, open=[], best=[], value=0.0, tried=0)
    _extend(search, [])
    return search


def next_sets(search: Search, most: int) -> list[list[int]]:
    """The most promising sets, taken out to be tried; none when the search is over."""
    found: list[list[int]] = []
    while search["open"] and len(found) < min(most, BUDGET - search["tried"]):
        bound, chosen = heapq.heappop(search["open"])
        if bound < search["value"]:  # the incumbent may be better than when it was put here
            found.append(chosen)
    return found


def learn(search: Search, chosen: list[int], cost: float) -> None:
    """`cost` is that of the workload with the chosen, less that without."""
    value = cost + _upkeep(search, chosen)
    search["tried"] += 1
    if value < search["value"]:
        search["best"], search["value"] = chosen, value
    _extend(search, chosen)


def is_over(search: Search) -> bool:
    """Nothing is left to try, or the budget is spent."""
    return is_proved(search) or search["tried"] >= BUDGET


def is_proved(search: Search) -> bool:
    """No set that was not tried can be better than the incumbent."""
    return all(bound >= search["value"] for bound, _ in search["open"])


def _extend(search: Search, chosen: list[int]) -> None:
    """Open the sets with one candidate more; each set is reached in one way only."""
    for candidate in range(chosen[-1] + 1 if chosen else 0, len(search["upkeep"])):
        larger = [*chosen, candidate]
        bound = search["floor"] + _upkeep(search, larger)
        if bound < search["value"]:
            heapq.heappush(search["open"], (bound, larger))


def _upkeep(search: Search, chosen: Sequence[int]) -> float:
    return sum(search["upkeep"][candidate] for candidate in chosen)
