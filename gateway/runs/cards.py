"""Questions that a client draws as its own card (`wire.dialects`): unfolding its answer. Pure.

A card is one function call for several questions. Each question's row names the card's call id in
`card`; a card that came back without a decision is told again under a new id.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gateway.runs.run import AskedQuestion, Previous
from gateway.wire import answers
from gateway.wire.dialects import ASK_USER, StillOpen, read_dialect
from gateway.wire.history import FunctionCall, FunctionCallOutput, Item
from gateway.wire.request import CreateResponse


@dataclass(frozen=True, slots=True)
class LeftOpen:
    """The card came back and nobody had decided. `message` is for the person to read."""

    message: str


def unfold(request: CreateResponse, previous: Previous | None) -> CreateResponse | LeftOpen:
    """The request with a card's output taken apart into one output a question.

    Raises `InvalidInterruptAnswer` if the output is not the card's.
    """
    cards = _cards(previous.questions if previous is not None else ())
    if not cards:
        return request
    items: list[Item] = []
    for index, item in enumerate(request.input):
        batch = cards.get(item.call_id) if isinstance(item, FunctionCallOutput) else None
        if batch is None or not isinstance(item, FunctionCallOutput):
            items.append(_by_question(item, cards))
            continue
        param = f"input[{index}].output"
        texts = read_dialect(
            [one.question for one in batch], answers.output_text(item, param), param
        )
        if isinstance(texts, StillOpen):
            return LeftOpen(texts.message)
        items += [
            FunctionCallOutput(one.call_id, text, item.raw)
            for one, text in zip(batch, texts, strict=True)
        ]
    return replace(request, input=tuple(items))


def last_card(items: Iterable[Item]) -> str | None:
    """The call id of the newest card in a client's own history."""
    found = None
    for item in items:
        if isinstance(item, FunctionCall) and item.name == ASK_USER:
            found = item.call_id
    return found


def _cards(questions: Sequence[AskedQuestion]) -> dict[str, list[AskedQuestion]]:
    cards: dict[str, list[AskedQuestion]] = {}
    for question in questions:
        if question.card is not None:
            cards.setdefault(question.card, []).append(question)
    return cards


def _by_question(item: Item, cards: dict[str, list[AskedQuestion]]) -> Item:
    """The echoed call stands where it stood, under the id of the card's first question."""
    if isinstance(item, FunctionCall) and item.call_id in cards:
        return replace(item, call_id=cards[item.call_id][0].call_id)
    return item
