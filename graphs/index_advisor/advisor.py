"""Searches for the indexes that make the shop's workload cheapest, and asks before it creates any.

    start → measure → search ⟲ → review → apply → report → end
                           └─ nothing found ─→ end   └─ anything but yes ─→ end

Each pass of `search` tries a few sets of indexes and says where it stands, so a client that streams
sees the incumbent improve; `search.py` says why it stops. `review` is nothing but the question.
Only y, yes and apply mean yes, in any case: whatever else arrives creates nothing. `apply` creates
the indexes in one transaction with its entry in the ledger of effects, and `report` measures again.

    user       Make the workload cheaper.
    assistant  The workload costs 13.3. 6 indexes could help it.
    assistant  6 sets tried. Best so far: orders (customer_id); value -7.5.
    assistant  14 sets tried. Best so far: orders (customer_id), orders (status); value -9.3.
    assistant  22 sets tried. No other can be better: customers (email), …; value -9.6.
    call       apply_indexes("PAUSED: apply 3 indexes (value -9.6)?", {"value": -9.6, …})
    output     apply
    assistant  applied=True
               orders of a customer: 9.2 → 1.4
               open orders since December: 2.5 → 0.4
               customer by address: 0.6 → 0.2
               sales by country: 0.9 → 0.9
               together: 13.3 → 3.0
    user       And now?
    assistant  The workload costs 3.0. 3 indexes could help it.
    assistant  0 sets tried. No index is worth its upkeep.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

from gateway import current_run, database, effect_in_transaction
from graphs.index_advisor import shop
from graphs.index_advisor.search import Search, begin, is_over, is_proved, learn, next_sets
from graphs.index_advisor.shop import Index

SETS_A_PASS = 8
YES = frozenset({"y", "yes", "apply"})


class Advice(MessagesState, total=False):
    """The messages, what is searched and where the search stands, and the person's decision.

    The state is kept while a person decides, so it holds plain data: a candidate is its table and
    its columns.
    """

    candidates: list[tuple[str, list[str]]]
    before: list[float]
    search: Search
    approved: bool


async def measure(state: Advice) -> dict[str, Any]:
    """What the workload costs now, and at best, with every index that could help it."""
    async with database().transaction() as conn:
        await shop.make_shop(conn)
        candidates = shop.candidates(await shop.existing(conn))
        before = await shop.costs(conn)
        async with shop.supposing(conn, candidates) as pages:
            floor = sum(await shop.costs(conn)) - sum(before)
    told = f"The workload costs {sum(before):.1f}. {_count(candidates)} could help it."
    return {
        "messages": [AIMessage(told)],
        "candidates": [(index.table, list(index.columns)) for index in candidates],
        "before": before,
        "search": begin([shop.UPKEEP * each for each in pages], floor),
    }


async def search(state: Advice) -> dict[str, Any]:
    """Try some more sets, and say where the search stands."""
    now = deepcopy(state["search"])  # the state is what this pass started from, also if it fails
    async with database().connection() as conn:
        for chosen in next_sets(now, SETS_A_PASS):
            async with shop.supposing(conn, _indexes(state, chosen)):
                cost = sum(await shop.costs(conn))
            learn(now, chosen, cost - sum(state["before"]))
    return {"messages": [AIMessage(_progress(state, now))], "search": now}


def after_search(state: Advice) -> str:
    """Go on until the search is over; ask only if it found something."""
    if not is_over(state["search"]):
        return "search"
    return "review" if state["search"]["best"] else END


async def review(state: Advice) -> dict[str, Any]:
    """Wait for a person; anything but a yes ends here, without an index."""
    answer = interrupt(_question(state))
    if is_yes(answer):
        return {"approved": True}
    said = AIMessage("applied=False\nNo index was created.")
    return {"messages": [said], "approved": False}


def is_yes(answer: Any) -> bool:
    """Whether the words are on the list. `true`, `1`, "ok" and objects are not."""
    return isinstance(answer, str) and answer.strip().lower() in YES


def after_review(state: Advice) -> str:
    """Only a yes leads to an effect."""
    return "apply" if state["approved"] else END


async def apply(state: Advice) -> dict[str, Any]:
    """Create them all or none, once in this run, however often this node runs."""
    await effect_in_transaction(
        f"{current_run().run_id}:apply",
        _create,
        arguments={"indexes": [state["candidates"][one] for one in state["search"]["best"]]},
    )
    return {}


async def _create(conn: shop.Connection, indexes: list[tuple[str, list[str]]]) -> None:
    for table, columns in indexes:
        await shop.create(conn, Index(table, tuple(columns)))


async def report(state: Advice) -> dict[str, Any]:
    """What each query costs, before and after."""
    async with database().connection() as conn:
        after = await shop.costs(conn)
    rows = [*zip([query.name for query in shop.WORKLOAD], state["before"], after, strict=True)]
    rows.append(("together", sum(state["before"]), sum(after)))
    lines = [f"{name}: {old:.1f} → {new:.1f}" for name, old, new in rows]
    return {"messages": [AIMessage("\n".join(["applied=True", *lines]))]}


def _question(state: Advice) -> dict[str, Any]:
    found = state["search"]
    indexes = _indexes(state, found["best"])
    pages = sum(found["upkeep"][candidate] for candidate in found["best"]) / shop.UPKEEP
    value = round(found["value"], 1)
    return {
        "question": f"PAUSED: apply {_count(indexes)} (value {value})?",
        "indexes": [str(index) for index in indexes],
        "value": value,
        "bytes": round(pages) * shop.PAGE,
    }


def _progress(state: Advice, now: Search) -> str:
    tried = f"{now['tried']} sets tried."
    best = ", ".join(map(str, _indexes(state, now["best"])))
    if not is_over(now):
        return f"{tried} Best so far: {best or 'none'}; value {now['value']:.1f}."
    if is_proved(now) and not best:
        return f"{tried} No index is worth its upkeep."
    why = "No other can be better" if is_proved(now) else "That is the budget"
    return f"{tried} {why}: {best or 'none'}; value {now['value']:.1f}."


def _indexes(state: Advice, chosen: list[int]) -> list[Index]:
    named = [state["candidates"][number] for number in chosen]
    return [Index(table, tuple(columns)) for table, columns in named]


def _count(indexes: list[Any]) -> str:
    return "1 index" if len(indexes) == 1 else f"{len(indexes)} indexes"


def build() -> StateGraph[Any, Any, Any, Any]:
    """The graph, without a checkpointer: whoever serves it brings one."""
    graph = StateGraph(Advice)
    graph.add_node(measure)
    graph.add_node(search)
    graph.add_node(review)
    graph.add_node(apply)
    graph.add_node(report)
    graph.add_edge(START, "measure")
    graph.add_edge("measure", "search")
    graph.add_conditional_edges("search", after_search, ["search", "review", END])
    graph.add_conditional_edges("review", after_review, ["apply", END])
    graph.add_edge("apply", "report")
    graph.add_edge("report", END)
    return graph
