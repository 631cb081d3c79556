"""A step that runs again: what was told stays, and is not told twice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from gateway.runs.events import MessageDone, Piece, ReasoningDelta, TextDelta, ToolCall
from gateway.runs.retold import Retold
from gateway.wire.items import Response
from gateway.wire.request import parse_create
from gateway.wire.told import told_by
from gateway.wire.writer import Writer


def again(retold: Retold, pieces: Iterable[Piece]) -> list[Piece]:
    return [told for piece in pieces for told in retold.pieces(piece)]


def after(*told: Piece) -> Retold:
    """As if these had been told when the step was cut short."""
    retold = Retold()
    assert again(retold, told) == list(told)
    retold.rewind()
    return retold


def say(key: str, *texts: str) -> list[Piece]:
    return [*(TextDelta(key, text) for text in texts), MessageDone(key)]


def test_what_is_said_again_word_for_word_is_not_told_again() -> None:
    retold = after(*say("1", "one ", "two"))
    assert again(retold, say("2", "one", " two")) == [MessageDone("2")]


def test_what_was_cut_short_is_continued() -> None:
    retold = after(TextDelta("1", "one t"))
    assert again(retold, say("2", "on", "e tw", "o")) == [
        TextDelta("1", "w"),
        TextDelta("1", "o"),
        MessageDone("1"),
    ]
    assert retold.settle() == []


def test_what_was_told_whole_but_not_closed_is_closed() -> None:
    retold = after(TextDelta("1", "one"))
    assert again(retold, say("2", "one")) == [MessageDone("1")]


def test_what_is_said_otherwise_comes_after_the_cut_item() -> None:
    retold = after(TextDelta("1", "one two"))
    assert again(retold, say("2", "one ", "three")) == [
        MessageDone("1", cut=True),
        TextDelta("2", "one three"),
        MessageDone("2"),
    ]


def test_what_nobody_continues_is_cut_when_the_step_is_finished() -> None:
    retold = after(*say("1", "one"), TextDelta("2", "two"))
    assert again(retold, say("3", "one")) == [MessageDone("3")]
    assert retold.settle() == [MessageDone("2", cut=True)]
    assert again(retold, say("4", "one")) == say("4", "one"), "another step may say it again"


def test_a_message_that_ends_before_the_cut_one_is_another() -> None:
    retold = after(TextDelta("1", "one two"))
    assert again(retold, say("2", "one")) == [
        MessageDone("1", cut=True),
        TextDelta("2", "one"),
        MessageDone("2"),
    ]


def test_each_told_message_takes_one_repeat() -> None:
    retold = after(*say("1", "yes"), *say("2", "yes"))
    assert again(retold, [*say("3", "yes"), *say("4", "yes")]) == [
        MessageDone("3"),
        MessageDone("4"),
    ]
    assert again(retold, say("5", "yes")) == say("5", "yes")


def test_a_thought_is_continued_and_ends_where_its_message_begins() -> None:
    retold = after(ReasoningDelta("1", "hm"))
    assert again(retold, [ReasoningDelta("2", "hm, so"), *say("2", "yes")]) == [
        ReasoningDelta("1", ", so"),
        MessageDone("1"),
        TextDelta("2", "yes"),
        MessageDone("2"),
    ]


def test_a_call_of_the_client_s_tool_is_told_once() -> None:
    retold = after(ToolCall("call_1", "weather", '{"a":1,"b":2}'))
    same, other = '{"b": 2, "a": 1}', '{"a": 2}'
    assert again(retold, [ToolCall("call_2", "weather", same)]) == []
    new = ToolCall("call_3", "weather", other)
    assert again(retold, [new]) == [new]


def test_a_third_attempt_is_held_against_both() -> None:
    retold = after(TextDelta("1", "one two"))
    again(retold, [TextDelta("2", "three")])
    retold.rewind()
    assert again(retold, say("3", "three four")) == [TextDelta("2", " four"), MessageDone("2")]


def test_it_is_read_back_from_the_stream() -> None:
    writer = Writer(Response.of_request(parse_create({"model": "m", "input": "hi"}), "resp_1", 1))
    frames = writer.begin()
    frames += [*writer.text("a", "before"), *writer.close("a")]
    settled = len(frames)
    frames += [*writer.text("b", "same"), *writer.close("b"), *writer.text("c", "cu")]
    told = told_by(frames)
    assert told.open is not None
    retold = Retold(told, settled)
    assert again(retold, say("1", "same")) == [MessageDone("1")]
    assert again(retold, say("2", "cut")) == [
        TextDelta(told.open.id, "t"),
        MessageDone(told.open.id),
    ]
    assert again(retold, say("3", "before")) == say("3", "before")


WORDS = st.lists(st.text("ab ", min_size=1, max_size=3), min_size=1, max_size=4)


@given(messages=st.lists(WORDS, max_size=4), cut=st.integers(0, 20))
def test_the_same_again_gives_what_one_attempt_would_have(
    messages: Sequence[Sequence[str]], cut: int
) -> None:
    first = [piece for n, texts in enumerate(messages) for piece in say(f"1{n}", *texts)]
    second = [piece for n, texts in enumerate(messages) for piece in say(f"2{n}", *texts)]
    retold = after(*first[:cut])
    told = again(retold, second)
    assert retold.settle() == []
    said: dict[str, str] = {}
    for piece in [*first[:cut], *told]:
        if isinstance(piece, TextDelta):
            said[piece.message_id] = said.get(piece.message_id, "") + piece.text
    assert sorted(said.values()) == sorted("".join(texts) for texts in messages)
