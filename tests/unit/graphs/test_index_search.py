"""Branch and bound: what it calls the best is the best, and it stops."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from graphs.index_advisor.search import BUDGET, Search, begin, is_over, is_proved, learn, next_sets

Savings = list[dict[frozenset[int], float]]
"""For each query what a plan saves that needs these candidates; a query takes its best plan."""


def saved(savings: Savings, chosen: frozenset[int]) -> float:
    return sum(
        max((each for needs, each in plans.items() if needs <= chosen), default=0.0)
        for plans in savings
    )


def searched(savings: Savings, upkeep: list[float]) -> Search:
    everything = frozenset(range(len(upkeep)))
    search = begin(upkeep, -saved(savings, everything))
    tried = []
    while sets := next_sets(search, 5):
        for chosen in sets:
            tried.append(tuple(chosen))
            learn(search, chosen, -saved(savings, frozenset(chosen)))
    assert len(tried) == len(set(tried)) == search["tried"], "no set is tried twice"
    assert is_over(search)
    return search


def best_value(savings: Savings, upkeep: list[float]) -> float:
    numbers = range(len(upkeep))
    return min(
        sum(upkeep[one] for one in chosen) - saved(savings, frozenset(chosen))
        for size in range(len(upkeep) + 1)
        for chosen in combinations(numbers, size)
    )


amounts = st.integers(0, 50).map(float)
plans = st.dictionaries(st.frozensets(st.integers(0, 5), min_size=1, max_size=3), amounts)


@given(st.lists(plans, max_size=4), st.lists(amounts, max_size=6))
def test_the_incumbent_is_the_best_if_it_is_proved(savings: Savings, upkeep: list[float]) -> None:
    search = searched(savings, upkeep)

    assert search["value"] <= 0, "no index at all is a set as well"
    assert search["tried"] <= BUDGET
    if is_proved(search):
        assert search["value"] == best_value(savings, upkeep)
    else:
        assert search["tried"] == BUDGET


def test_five_candidates_are_always_proved() -> None:
    savings: Savings = [{frozenset({0, 4}): 10.0}, {frozenset({1, 2}): 10.0}]
    search = searched(savings, [1.0] * 5)

    assert is_proved(search)
    assert (search["best"], search["value"]) == ([0, 1, 2, 4], -16.0)


def test_the_budget_ends_a_search_that_proves_nothing() -> None:
    free = [0.0] * 12
    search = searched([{frozenset(range(12)): 1.0}], free)  # only all of them together are any good

    assert search["tried"] == BUDGET
    assert not is_proved(search)
    assert search["best"] == []


def test_what_costs_more_than_it_can_bring_is_not_tried() -> None:
    search = begin([100.0, 1.0], floor=-10.0)
    assert next_sets(search, 8) == [[1]]


def test_nothing_to_search_is_over_at_once() -> None:
    search = begin([], 0.0)
    assert is_over(search)
    assert next_sets(search, 8) == []
