"""Whatever a run says, in whatever order: folding the deltas gives the output of the last event."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import RunFailed
from gateway.wire.items import Response, Usage
from gateway.wire.replay import replay
from gateway.wire.request import parse_create
from gateway.wire.told import told_by
from gateway.wire.writer import DONE, Writer
from tests.openresponses import check_stream, read_frames

KEYS = st.sampled_from("abc")
TEXTS = st.one_of(st.text(max_size=8), st.sampled_from(["\ud800", "\u2028\u0085", "\n\n", "\x00"]))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["text", "refusal", "reasoning"]), KEYS, TEXTS),
        st.tuples(st.just("close"), KEYS, st.sampled_from(["completed", "incomplete"])),
        st.tuples(st.just("function_call"), KEYS, TEXTS),
        st.tuples(st.just("extension"), KEYS, TEXTS),
    ),
    max_size=25,
)
ENDS: dict[str, Callable[[Writer], list[bytes]]] = {
    "complete": lambda writer: writer.complete(completed_at=2, usage=Usage(1, 2)),
    "incomplete": lambda writer: writer.incomplete("content_filter"),
    "fail": lambda writer: writer.fail(RunFailed("no")),
}

Step = tuple[str, str, str]


def write(writer: Writer, steps: list[Step], end: str) -> list[bytes]:
    frames = writer.begin()
    for kind, key, text in steps:
        frames += _step(writer, kind, key, text)
    return frames + ENDS[end](writer)


class Model:
    """The output as plainly as it can be said: items in the order of their first appearance."""

    def __init__(self) -> None:
        self.items: list[list[Any]] = []  # [kind, key, open, [[part kind, text], …]]

    def take(self, step: Step) -> None:
        kind, key, text = step
        if kind == "close":
            self._close(key, ("message", "reasoning"))
        elif kind == "function_call":
            self.items.append(["function_call", key, False, [["call", json.dumps({"text": text})]]])
        elif kind != "extension" and text:
            self._write("reasoning" if kind == "reasoning" else "message", key, kind, text)

    def _close(self, key: str, kinds: tuple[str, ...]) -> None:
        for item in self.items:
            if item[1] == key and item[0] in kinds:
                item[2] = False

    def _write(self, kind: str, key: str, part: str, text: str) -> None:
        found = [item for item in self.items if item[:3] == [kind, key, True]]
        if not found:
            self._close(key, ("reasoning",))
            found = [[kind, key, True, []]]
            self.items += found
        parts = found[0][3]
        if not parts or parts[-1][0] != part:
            parts.append([part, ""])
        parts[-1][1] += text

    @property
    def told(self) -> list[Any]:
        return [[kind, parts] for kind, _, _, parts in self.items]


def told(output: list[dict[str, Any]]) -> list[Any]:
    return [[item["type"], _parts(item)] for item in output]


def _parts(item: dict[str, Any]) -> list[list[str]]:
    if item["type"] == "function_call":
        return [["call", item["arguments"]]]
    if item["type"] == "reasoning":
        return [["reasoning", part["text"]] for part in item["summary"]]
    return [
        ["refusal", part["refusal"]] if part["type"] == "refusal" else ["text", part["text"]]
        for part in item["content"]
    ]


def a_writer() -> Writer:
    request = parse_create({"model": "m", "input": "hi"})
    return Writer(Response.of_request(request, "resp_1", 1), extensions=True)


@settings(max_examples=150, deadline=None)
@given(STEPS, st.sampled_from(list(ENDS)))
def test_folding_the_deltas_gives_the_output(steps: list[Step], end: str) -> None:
    writer = a_writer()
    last = check_stream(read_frames(write(writer, steps, end)), validate=False)
    model = Model()
    for step in steps:
        model.take(step)
    assert told(last["output"]) == model.told
    assert json.loads(writer.resource()) == last


@settings(max_examples=60, deadline=None)
@given(STEPS, st.sampled_from(list(ENDS)), st.data())
def test_C34_text_that_is_held_back_is_told_all_the_same(
    steps: list[Step], end: str, data: st.DataObject
) -> None:
    plain, slow = a_writer(), a_writer()
    whole = check_stream(read_frames(write(plain, steps, end)), validate=False)
    frames = slow.begin()
    for step in steps:
        slow.held_back = data.draw(st.booleans())
        frames += _step(slow, *step)
        if data.draw(st.booleans()):
            frames += slow.release()
        slow = slow.fork()
    frames += ENDS[end](slow)
    assert check_stream(read_frames(frames), validate=False) == whole


@settings(max_examples=60, deadline=None)
@given(STEPS, st.sampled_from(list(ENDS)))
def test_a_writer_that_nobody_hears_gives_the_same_resource(steps: list[Step], end: str) -> None:
    heard = a_writer()
    unheard = Writer(heard.response, extensions=True, followed=False)
    write(heard, steps, end)
    assert not any(write(unheard, steps, end))
    assert unheard.resource() == heard.resource()
    assert unheard.resource(only_calls=True) == heard.resource(only_calls=True)


@settings(max_examples=15, deadline=None)
@given(STEPS, st.sampled_from(list(ENDS)))
def test_every_event_is_valid(steps: list[Step], end: str) -> None:
    check_stream(read_frames(write(a_writer(), steps, end)))


@settings(max_examples=50, deadline=None)
@given(STEPS, st.sampled_from(list(ENDS)))
def test_a_replay_gives_the_stored_response(steps: list[Step], end: str) -> None:
    writer = a_writer()
    write(writer, steps, end)
    stored = json.loads(writer.resource())
    frames = list(replay(stored))
    assert frames[-1] == DONE
    assert check_stream(read_frames(frames[:-1]), validate=False) == stored


@settings(max_examples=300)
@given(steps=STEPS, cut=st.integers(0, 25), more=STEPS, end=st.sampled_from(sorted(ENDS)))
def test_another_writer_goes_on_where_one_stopped(
    steps: list[Step], cut: int, more: list[Step], end: str
) -> None:
    """What was told stays, the numbers have no gap, and the deltas still fold to the output."""
    response = Response.of_request(parse_create({"model": "m", "input": "hi"}), "resp_1", 1)
    first = Writer(response)
    frames = first.begin()
    for kind, key, text in steps[:cut]:
        frames += _step(first, kind, key, text)
    told = told_by([b"".join(frames)])
    second = Writer(response)
    second.go_on(told)
    if told.open is not None:
        frames += second.close(told.open.id, "incomplete")
    for kind, key, text in more:
        frames += _step(second, kind, f"{key}2", text)
    frames += ENDS[end](second)
    events = read_frames([*frames, DONE])
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    ids = [item["id"] for item in check_stream(events)["output"]]
    assert len(ids) == len(set(ids))


def _step(writer: Writer, kind: str, key: str, text: str) -> list[bytes]:
    if kind == "function_call":
        return writer.function_call(f"call_{key}", text, json.dumps({"text": text}))
    return list(getattr(writer, kind)(key, text))
