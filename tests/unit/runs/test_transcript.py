"""From LangGraph's stream to what people see: items follow message ids."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)

from gateway.runs.events import (
    MessageDone,
    Piece,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCall,
)
from gateway.runs.transcript import Transcript
from gateway.wire.items import Usage


def transcript(
    *, speaking: Iterable[str] = (), tools: Iterable[str] = (), known: Iterable[str] = ()
) -> Transcript:
    return Transcript(
        speaks=frozenset(speaking).__contains__, client_tools=frozenset(tools), known=known
    )


def update(to: Transcript, *messages: Any) -> list[Piece]:
    return list(to.update({"messages": list(messages)}))


def tokens(to: Transcript, key: str, *texts: str, node: str = "speak") -> list[Piece]:
    chunks = (AIMessageChunk(text, id=key) for text in texts)
    return [piece for chunk in chunks for piece in to.chunk(chunk, node, ())]


def text_of(pieces: Iterable[Piece]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, TextDelta))


# --- messages that nodes return --------------------------------------------------------------


def test_a_message_of_the_state_is_said_and_done() -> None:
    pieces = update(transcript(), AIMessage("hello", id="1"))
    assert pieces == [TextDelta("1", "hello"), MessageDone("1")]


def test_only_the_assistant_speaks() -> None:
    others = [
        HumanMessage("a", id="1"),
        SystemMessage("b", id="2"),
        ToolMessage("c", tool_call_id="x", id="3"),
        RemoveMessage(id="4"),
    ]
    assert update(transcript(), *others) == []


@pytest.mark.parametrize(
    "written",
    [
        [("ai", "hello")],
        ("ai", "hello"),
        ("assistant", "hello"),
        [{"role": "assistant", "content": "hello"}],
        {"role": "assistant", "content": "hello"},
        {"type": "ai", "content": "hello"},
        AIMessage("hello"),
        [("user", "not this"), AIMessage("hello"), "nor this"],
    ],
)
def test_messages_may_have_any_form_that_langgraph_takes(written: Any) -> None:
    pieces = list(transcript().update({"messages": written}))
    assert text_of(pieces) == "hello"
    assert sum(isinstance(piece, MessageDone) for piece in pieces) == 1


@pytest.mark.parametrize("written", [None, 3, "text", {"other": 1}, [object()], {"messages": [7]}])
def test_what_is_no_message_says_nothing(written: Any) -> None:
    assert list(transcript().update(written)) == []


def test_a_node_may_write_a_list_of_updates() -> None:
    parts = [{"messages": AIMessage("a", id="1")}, {"x": 1}, {"messages": AIMessage("b", id="2")}]
    assert text_of(transcript().update(parts)) == "ab"


def test_the_full_list_again_says_only_what_is_new() -> None:
    seen = transcript(known=["0"])
    old, first, second = (AIMessage(text, id=str(n)) for n, text in enumerate("abc"))
    assert text_of(update(seen, old, first)) == "b"
    assert text_of(update(seen, old, first, second)) == "c"
    assert update(seen, old, first, second) == []


def test_text_blocks_are_one_message() -> None:
    blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    pieces = update(transcript(), AIMessage(blocks, id="1"))
    assert pieces == [TextDelta("1", "a"), TextDelta("1", "b"), MessageDone("1")]


def test_two_messages_without_id_and_with_the_same_text_are_two() -> None:
    pieces = update(transcript(), {"role": "assistant", "content": "x"}, ("ai", "x"))
    assert text_of(pieces) == "xx"
    assert len({piece.message_id for piece in pieces if isinstance(piece, TextDelta)}) == 2


# --- tokens ----------------------------------------------------------------------------------


def test_a_node_that_speaks_is_heard_token_by_token() -> None:
    heard = transcript(speaking=["speak"])
    assert tokens(heard, "1", "Hel", "", "lo") == [TextDelta("1", "Hel"), TextDelta("1", "lo")]
    assert update(heard, AIMessage("Hello", id="1")) == [MessageDone("1")]
    assert heard.unconfirmed == set()


def test_a_thought_is_not_shown() -> None:
    silent = transcript(speaking=["speak"])
    assert tokens(silent, "1", "hm", "hm", node="think") == []
    assert update(silent) == []
    assert silent.unconfirmed == set()


def test_a_node_that_was_not_known_to_speak_is_heard_at_its_end() -> None:
    late = transcript()
    assert tokens(late, "1", "Hel", "lo") == []
    assert update(late, AIMessage("Hello", id="1")) == [TextDelta("1", "Hello"), MessageDone("1")]


def test_a_speaking_node_that_only_thought_is_named() -> None:
    wrong = transcript(speaking=["speak", "other"])
    tokens(wrong, "1", "hm")
    tokens(wrong, "2", "well", node="other")
    update(wrong, AIMessage("well", id="2"))
    assert wrong.unconfirmed == {"speak"}


def test_the_nodes_of_subgraphs_are_named_by_their_path() -> None:
    asked: list[str] = []
    heard = Transcript(
        speaks=lambda path: bool(asked.append(path)) or True, client_tools=frozenset(), known=()
    )
    chunk = AIMessageChunk("hi", id="1")
    assert list(heard.chunk(chunk, "inner", ("outer:1-2", "middle:3"))) == [TextDelta("1", "hi")]
    assert asked == ["outer:middle:inner"]


def test_two_nodes_interleaved_stay_two_messages() -> None:
    both = transcript(speaking=["a", "b"])
    pieces = [
        *tokens(both, "1", "a1 ", node="a"),
        *tokens(both, "2", "b1 ", node="b"),
        *tokens(both, "1", "a2", node="a"),
        *tokens(both, "2", "b2", node="b"),
        *update(both, AIMessage("b1 b2", id="2")),
        *update(both, AIMessage("a1 a2", id="1")),
    ]
    spoken = {"1": "", "2": ""}
    for piece in pieces:
        if isinstance(piece, TextDelta):
            spoken[piece.message_id] += piece.text
    assert spoken == {"1": "a1 a2", "2": "b1 b2"}
    assert [piece for piece in pieces if isinstance(piece, MessageDone)] == [
        MessageDone("2"),
        MessageDone("1"),
    ]


def test_a_message_wrapped_anew_is_the_same_item() -> None:
    rewrapped = transcript(speaking=["speak"])
    tokens(rewrapped, "run-1", "Hel", "lo")
    assert update(rewrapped, AIMessage("Hello")) == [MessageDone("run-1")]
    assert rewrapped.unconfirmed == set()


def test_a_message_wrapped_anew_with_an_id_of_its_own_is_the_same_item() -> None:
    rewrapped = transcript(speaking=["speak"])
    tokens(rewrapped, "run-1", "Hello")
    assert update(rewrapped, AIMessage("Hello", id="other")) == [MessageDone("run-1")]
    assert update(rewrapped, AIMessage("Hello", id="other")) == []


def test_whole_messages_of_the_messages_stream_wait_for_the_state() -> None:
    whole = transcript(speaking=["speak"])
    assert list(whole.chunk(AIMessage("hello", id="1"), "speak", ())) == []
    assert list(whole.chunk(HumanMessage("hi", id="2"), "speak", ())) == []
    assert text_of(update(whole, AIMessage("hello", id="1"))) == "hello"


def test_tokens_of_a_message_that_was_there_before_are_not_said_again() -> None:
    known = transcript(speaking=["speak"], known=["1"])
    assert tokens(known, "1", "old") == []


# --- tool calls ------------------------------------------------------------------------------


def calling(*names: str, text: str = "") -> AIMessage:
    calls = [{"name": name, "args": {"q": "ä"}, "id": f"call_{name}"} for name in names]
    return AIMessage(text, id="1", tool_calls=calls)


def test_only_calls_to_the_clients_tools_leave() -> None:
    pieces = update(transcript(tools=["weather"]), calling("search", "weather"))
    assert [piece for piece in pieces if isinstance(piece, ToolCall)] == [
        ToolCall("call_weather", "weather", '{"q":"ä"}')
    ]


def test_text_comes_before_its_call() -> None:
    pieces = update(transcript(tools=["weather"]), calling("weather", text="Let me see."))
    assert [type(piece) for piece in pieces] == [TextDelta, MessageDone, ToolCall]


def test_a_call_is_made_once_however_often_its_message_comes() -> None:
    once = transcript(tools=["weather"], speaking=["speak"])
    tokens(once, "1", "Let me see.")
    pieces = update(once, calling("weather", text="Let me see."))
    assert [type(piece) for piece in pieces] == [MessageDone, ToolCall]
    assert update(once, calling("weather", text="Let me see.")) == []


# --- reasoning, refusals ---------------------------------------------------------------------


def test_reasoning_blocks_are_an_item_of_their_own() -> None:
    blocks = [{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "yes"}]
    pieces = update(transcript(), AIMessage(blocks, id="1"))
    assert pieces == [
        ReasoningDelta("1", "hm"),
        TextDelta("1", "yes"),
        MessageDone("1"),
    ]


def test_reasoning_is_streamed() -> None:
    live = transcript(speaking=["speak"])
    parts = [
        AIMessageChunk([{"type": "reasoning", "reasoning": "hm", "index": 0}], id="1"),
        AIMessageChunk([{"type": "text", "text": "yes", "index": 1}], id="1"),
    ]
    pieces = [piece for part in parts for piece in live.chunk(part, "speak", ())]
    assert pieces == [ReasoningDelta("1", "hm"), TextDelta("1", "yes")]
    assert update(live, AIMessage("yes", id="1")) == [MessageDone("1")]


@pytest.mark.parametrize(
    "message",
    [
        AIMessage("", id="1", additional_kwargs={"refusal": "I will not."}),
        AIMessage([{"type": "refusal", "refusal": "I will not."}], id="1"),
    ],
)
def test_a_refusal_is_no_text(message: AIMessage) -> None:
    pieces = update(transcript(), message)
    assert pieces == [RefusalDelta("1", "I will not."), MessageDone("1")]


def test_a_streamed_refusal_is_said_once() -> None:
    live = transcript(speaking=["speak"])
    chunk = AIMessageChunk("", id="1", additional_kwargs={"refusal": "I will not."})
    pieces = list(live.chunk(chunk, "speak", ()))
    whole = AIMessage("", id="1", additional_kwargs={"refusal": "I will not."})
    pieces += update(live, whole)
    assert pieces == [RefusalDelta("1", "I will not."), MessageDone("1")]


# --- truncation ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"finish_reason": "length"}, "max_output_tokens"),
        ({"stop_reason": "max_tokens"}, "max_output_tokens"),
        ({"finish_reason": "MAX_TOKENS"}, "max_output_tokens"),
        ({"incomplete_details": {"reason": "max_output_tokens"}}, "max_output_tokens"),
        ({"finish_reason": "content_filter"}, "content_filter"),
        ({"finish_reason": "stop"}, None),
        ({"stop_reason": "end_turn"}, None),
        ({"incomplete_details": None}, None),
        ({"finish_reason": ["odd"]}, None),
        ({}, None),
    ],
)
def test_C41_a_cut_short_message_says_why(facts: dict[str, Any], reason: str | None) -> None:
    cut = transcript()
    update(cut, AIMessage("Once upon a", id="1", response_metadata=facts))
    assert cut.incomplete == reason


def test_the_last_message_decides() -> None:
    cut = transcript()
    update(cut, AIMessage("a", id="1", response_metadata={"finish_reason": "length"}))
    update(cut, AIMessage("b", id="2", response_metadata={"finish_reason": "stop"}))
    assert cut.incomplete is None


# --- usage -----------------------------------------------------------------------------------

METADATA: Any = {
    "input_tokens": 10,
    "output_tokens": 5,
    "total_tokens": 15,
    "input_token_details": {"cache_read": 4, "cache_creation": 3},
    "output_token_details": {"reasoning": 2},
}


def test_nothing_counted_is_no_usage() -> None:
    nothing = transcript()
    tokens(nothing, "1", "hi")
    assert nothing.usage is None


def test_usage_is_summed_once_a_call() -> None:
    counted = transcript(speaking=["speak"])
    for key in ("1", "2"):
        tokens(counted, key, "hi")
        counted.chunk(AIMessageChunk("", id=key, usage_metadata=METADATA), "speak", ())
        update(counted, AIMessage("hi", id=key, usage_metadata=METADATA))
    assert counted.usage == Usage(20, 10, 8, 6, 4)


def test_thoughts_cost_as_well() -> None:
    thinking = transcript()
    thinking.chunk(AIMessageChunk("hm", id="1", usage_metadata=METADATA), "think", ())
    assert thinking.usage == Usage(10, 5, 4, 3, 2)


def test_usage_without_details_counts() -> None:
    plain = transcript()
    usage: Any = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
    plain.chunk(AIMessage("hi", id="1", usage_metadata=usage), "speak", ())
    assert plain.usage == Usage(1, 2)
