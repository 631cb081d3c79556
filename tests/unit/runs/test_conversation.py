"""A conversation's items as LangChain messages."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from gateway.errors import InvalidRequest
from gateway.runs.conversation import conversation, without_echoes
from gateway.wire.history import Item, parse_input

IMAGE = "data:image/png;base64,AA=="


def items(*sent: Any) -> tuple[Item, ...]:
    return parse_input(list(sent))


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def call(call_id: str, arguments: Any = '{"n": 1}', name: str = "look_up") -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def output(call_id: str, value: Any = "found") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": value}


def said(*sent: Any, instructions: str | None = None) -> list[BaseMessage]:
    return conversation((), items(*sent), instructions)


def brief(messages: list[BaseMessage]) -> list[tuple[str, Any]]:
    return [(message.type, message.content) for message in messages]


def refusal(history: tuple[Item, ...], *sent: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        conversation(history, items(*sent), None)
    return caught.value


def test_every_role_has_its_message() -> None:
    messages = said(
        {"role": "developer", "content": "d"},
        {"role": "system", "content": "s"},
        user("u"),
        {"role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
    )
    assert [type(one) for one in messages] == [
        SystemMessage,
        SystemMessage,
        HumanMessage,
        AIMessage,
    ]
    assert [one.content for one in messages] == ["d", "s", "u", "a"]


def test_a_string_is_one_user_message() -> None:
    assert brief(conversation((), parse_input("hi"), None)) == [("human", "hi")]


def test_nothing_is_nothing() -> None:
    assert said() == []


def test_instructions_come_first() -> None:
    messages = conversation(items(user("before")), items(user("now")), "be brief")
    assert brief(messages) == [("system", "be brief"), ("human", "before"), ("human", "now")]


def test_history_comes_before_the_request() -> None:
    history = items(user("1"), {"role": "assistant", "content": "2"})
    assert [one.content for one in conversation(history, items(user("3")), None)] == [
        "1",
        "2",
        "3",
    ]


def test_ids_are_kept_and_the_others_minted() -> None:
    messages = said(user("a", id="msg_1"), user("b"), call("c"), output("c"))
    ids = [one.id for one in messages]
    assert ids[0] == "msg_1"
    assert all(ids)
    assert len(set(ids)) == 4


def test_one_text_part_is_plain_text() -> None:
    assert said(user([{"type": "input_text", "text": "hi"}]))[0].content == "hi"


def test_parts_are_standard_content_blocks() -> None:
    (message,) = said(
        user(
            [
                {"type": "input_text", "text": "look"},
                {"type": "input_image", "image_url": IMAGE},
                {"type": "input_image", "image_url": "https://example.com/a.png", "detail": "low"},
                {"type": "input_image", "file_id": "file_1", "image_url": None},
                {"type": "input_file", "file_data": "AA==", "filename": "a.pdf", "file_id": None},
                {"type": "input_file", "file_url": "https://example.com/a.pdf"},
                {"type": "input_audio", "input_audio": {"data": "AA==", "format": "mp3"}},
                {"type": "input_video", "video_url": "https://example.com/v"},
            ]
        )
    )
    blocks = [
        {"type": "text", "text": "look"},
        {"type": "image", "base64": "AA==", "mime_type": "image/png"},
        {"type": "image", "url": "https://example.com/a.png", "extras": {"detail": "low"}},
        {"type": "image", "file_id": "file_1"},
        {
            "type": "file",
            "base64": "AA==",
            "mime_type": "application/pdf",
            "extras": {"filename": "a.pdf"},
        },
        {"type": "file", "url": "https://example.com/a.pdf"},
        {"type": "audio", "base64": "AA==", "mime_type": "audio/mp3"},
        {"type": "video", "url": "https://example.com/v"},
    ]
    assert message.content == blocks
    assert message.content_blocks == blocks  # LangChain's own reading: nothing to translate
    assert message.text == "look"


def test_an_image_that_a_tool_gave_reaches_the_graph() -> None:
    parts = [{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": IMAGE}]
    tool = said(call("a"), output("a", parts))[-1]
    assert tool.content == [
        {"type": "text", "text": "see"},
        {"type": "image", "base64": "AA==", "mime_type": "image/png"},
    ]


def test_a_reasoning_summary_is_part_of_the_message_after_it() -> None:
    def thought(*texts: str) -> dict[str, Any]:
        summary = [{"type": "summary_text", "text": text} for text in texts]
        return {"type": "reasoning", "id": "rs_1", "summary": summary}

    answer, question, turn, _ = said(
        thought("a", "b"),
        {"role": "assistant", "content": "said"},
        thought("nobody's"),
        user("next"),
        {**thought("c"), "id": "rs_2"},
        call("x"),
        output("x"),
    )
    assert answer.content_blocks == [
        {"type": "reasoning", "reasoning": "a\nb"},
        {"type": "text", "text": "said"},
    ]
    assert answer.content == "said"
    assert question.content_blocks == [{"type": "text", "text": "next"}]
    assert turn.content_blocks[0] == {"type": "reasoning", "reasoning": "c"}


def test_what_a_request_adds_to_its_history() -> None:
    history = items(user("1", id="msg_1"), call("a"), output("a"))
    sent = items(
        user("1", id="msg_1"),
        {"type": "item_reference", "id": "msg_1"},
        {"type": "item_reference", "id": "msg_2"},
        call("a", "{}"),
        output("a"),
        user("2"),
        call("b"),
    )
    assert without_echoes(history, sent) == (sent[2], sent[5], sent[6])


def test_the_texts_of_an_assistant_are_joined() -> None:
    parts = [
        {"type": "output_text", "text": "I can"},
        {"type": "refusal", "refusal": "not"},
    ]
    assert said({"role": "assistant", "content": parts})[0].content == "I cannot"


# --- calls -----------------------------------------------------------------------------------


def test_a_call_and_its_output() -> None:
    human, asked, answer = said(user("look"), call("c1"), output("c1"))
    assert isinstance(human, HumanMessage)
    assert isinstance(asked, AIMessage)
    assert asked.tool_calls == [
        {"name": "look_up", "args": {"n": 1}, "id": "c1", "type": "tool_call"}
    ]
    assert isinstance(answer, ToolMessage)
    assert (answer.tool_call_id, answer.name, answer.content) == ("c1", "look_up", "found")


def test_calls_side_by_side_and_the_text_before_them_are_one_turn() -> None:
    turn, first, second = said(
        {"role": "assistant", "content": "Let me see."},
        call("c1"),
        call("c2"),
        output("c1"),
        output("c2"),
    )
    assert isinstance(turn, AIMessage)
    assert turn.content == "Let me see."
    assert [one["id"] for one in turn.tool_calls] == ["c1", "c2"]
    assert isinstance(first, ToolMessage)
    assert isinstance(second, ToolMessage)


def test_calls_one_after_the_other_are_turns_of_their_own() -> None:
    kinds = [one.type for one in said(call("c1"), output("c1"), call("c2"), output("c2"))]
    assert kinds == ["ai", "tool", "ai", "tool"]


@pytest.mark.parametrize(
    ("arguments", "args"),
    [
        ('{"n": 1}', {"n": 1}),
        ("", {"input": ""}),
        ("cut sho", {"input": "cut sho"}),
        ("[1]", {"input": [1]}),
        ({"n": 1}, {"n": 1}),
    ],
)
def test_arguments_are_history_whatever_became_of_them(arguments: Any, args: Any) -> None:
    asked = said(call("c1", arguments), output("c1"))[0]
    assert isinstance(asked, AIMessage)
    assert asked.tool_calls[0]["args"] == args


def test_an_output_in_parts_is_its_text() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert said(call("c1"), output("c1", parts))[1].content == "ab"


def test_the_output_may_answer_a_stored_call() -> None:
    messages = conversation(items(user("look"), call("c1")), items(output("c1")), None)
    assert [one.type for one in messages] == ["human", "ai", "tool"]


def test_a_call_of_the_history_that_is_echoed_is_made_once() -> None:
    """Some clients send previous_response_id, the call and its output."""
    messages = conversation(items(user("look"), call("c1")), items(call("c1"), output("c1")), None)
    calls = [one["id"] for message in messages for one in getattr(message, "tool_calls", [])]
    assert calls == ["c1"]
    assert [one.type for one in messages] == ["human", "ai", "tool"]


def test_a_call_of_the_clients_own_history_without_output_is_left_out() -> None:
    assert brief(said(user("a"), call("c1"), user("b"))) == [("human", "a"), ("human", "b")]


def test_an_output_without_its_call_is_refused() -> None:
    error = refusal((), user("a"), output("c1"))
    assert error.message == "No tool call found for function call output with call_id c1."
    assert (error.status, error.param) == (400, "input")


def test_a_stored_call_without_an_output_is_refused() -> None:
    error = refusal(items(user("a"), call("c1")), user("b"))
    assert error.message == "No tool output found for function call c1."
    assert (error.status, error.param) == (400, "input")


# --- what means nothing to a graph -----------------------------------------------------------


def test_reasoning_and_built_in_tools_are_left_out() -> None:
    messages = said(
        user("a"),
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
    )
    assert brief(messages) == [("human", "a")]


def test_what_history_holds_is_not_said_again() -> None:
    """Clients that name the previous response may echo its items all the same."""
    history = items(user("a", id="msg_1"), {"role": "assistant", "content": "b", "id": "msg_2"})
    echoed = items({"role": "assistant", "content": "b", "id": "msg_2"}, user("c"))
    assert [one.content for one in conversation(history, echoed, None)] == ["a", "b", "c"]


def test_equal_texts_without_ids_are_all_said() -> None:
    assert brief(said(user("a"), user("a"))) == [("human", "a"), ("human", "a")]
