"""A survey: several questions at once, answered together. Served as `survey`; needs no key.

    start → ask  (one `Send` a question, in parallel) → thank → end

Each `Send` is a task of its own, so each question is an interrupt of its own: they leave as the
function calls of one response, a batch. The run moves on when all of them are answered, by one
request that brings an output for each, in any order:

    user       I was at your workshop.
    call       pace("How was the pace?", ["too fast", "just right", "too slow"])
    call       again("Would you come again?", ["yes", "no"])
    call       wish("What was missing?")
    output     just right
    output     yes
    output     A longer break.
    assistant  Thank you. pace: just right; again: yes; wish: A longer break.
"""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Send

from gateway import ask_choice, ask_text


class Question(TypedDict):
    """`name` is the function call's; without options any words are an answer."""

    name: str
    text: str
    options: list[str]


QUESTIONS = [
    Question(name="pace", text="How was the pace?", options=["too fast", "just right", "too slow"]),
    Question(name="again", text="Would you come again?", options=["yes", "no"]),
    Question(name="wish", text="What was missing?", options=[]),
]


class Survey(MessagesState, total=False):
    """The messages, and the answers by the names of their questions."""

    # Tasks that run in parallel all write here: `|` joins what they write.
    answers: Annotated[dict[str, str], operator.or_]


def each_question(state: Survey) -> list[Send]:
    """One task for each question."""
    return [Send("ask", question) for question in QUESTIONS]


def ask(state: Question) -> dict[str, Any]:
    """Ask one question; the tasks beside this one ask the others."""
    name, text, options = state["name"], state["text"], state["options"]
    if options:
        answer = ask_choice(name, question=text, options=options)
    else:
        answer = ask_text(name, question=text)
    return {"answers": {name: answer.value}}


def thank(state: Survey) -> dict[str, Any]:
    """Runs once, when all tasks before it are through."""
    given = state["answers"]
    told = "; ".join(f"{one['name']}: {given[one['name']]}" for one in QUESTIONS)
    return {"messages": [AIMessage(f"Thank you. {told}")]}


def build() -> StateGraph[Any, Any, Any, Any]:
    """The graph, without a checkpointer: whoever serves it brings one."""
    graph = StateGraph(Survey)
    graph.add_node(ask)
    graph.add_node(thank)
    graph.add_conditional_edges(START, each_question, ["ask"])
    graph.add_edge("ask", "thank")
    graph.add_edge("thank", END)
    return graph
