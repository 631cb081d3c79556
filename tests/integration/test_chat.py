"""Chat Completions over the same runs, with the official client and the real pipeline."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import MessagesState
from openai import APIError, AsyncOpenAI, BadRequestError, InternalServerError
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from gateway import Graph, ask_approval
from tests.integration.api import Api, envelope, serving
from tests.integration.small_graphs import EFFECTS, GRAPHS, chain, done, says

USER = {"role": "user", "content": "hello"}
WEATHER: Any = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object"}, "strict": False},
}
ASK_USER: Any = {
    "type": "function",
    "function": {
        "name": "ask_user",
        "parameters": {
            "type": "object",
            "properties": {
                "questions": {"type": "array", "items": {"type": "object"}},
                "allow_other": {"type": "boolean"},
            },
            "required": ["questions"],
        },
    },
}


async def review(state: MessagesState) -> dict[str, Any]:
    answer = ask_approval("review", question="Refund A-1042?")
    done("decided")
    return {"messages": [AIMessage(f"It was {answer.action}.")]}


MORE = {
    "review": Graph(chain(review)),
    "city": Graph(says(AIMessage('{"city": "Köln"}'))),
    "filtered": Graph(says(AIMessage("Ha", response_metadata={"finish_reason": "content_filter"}))),
}


@pytest.fixture(scope="module")
async def api(
    anyio_backend: tuple[str, dict[str, bool]], module_database_url: str
) -> AsyncIterator[Api]:
    async with serving(module_database_url, GRAPHS | MORE) as served:
        yield served


@pytest.fixture
async def client(api: Api) -> AsyncIterator[AsyncOpenAI]:
    async with api.openai() as openai:
        yield openai


async def post(api: Api, model: str, messages: Any = (USER,), **fields: Any) -> Any:
    body = {"model": model, "messages": list(messages), **fields}
    return await api.http.post("/v1/chat/completions", json=body)


async def whole(api: Api, model: str, messages: Any = (USER,), **fields: Any) -> ChatCompletion:
    """A completion, strictly of the SDK's type."""
    answer = await post(api, model, messages, **fields)
    assert answer.status_code == 200, answer.text
    return ChatCompletion.model_validate_json(answer.content, strict=True)


def read_chunks(content: bytes) -> list[ChatCompletionChunk]:
    """The chunks of a stream, each strictly of the SDK's type; the frames are looked at, too."""
    assert content.endswith(b"\n\ndata: [DONE]\n\n")
    frames = content[:-2].split(b"\n\n")
    assert all(frame.startswith(b"data: ") and b"\n" not in frame for frame in frames)
    texts = [frame.removeprefix(b"data: ") for frame in frames[:-1]]
    return [ChatCompletionChunk.model_validate_json(text, strict=True) for text in texts]


async def streamed(
    api: Api, model: str, messages: Any = (USER,), **fields: Any
) -> tuple[dict[str, Any], list[ChatCompletionChunk]]:
    """What a client folds the chunks into, and the chunks."""
    answer = await post(api, model, messages, stream=True, **fields)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    chunks = read_chunks(answer.content)
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    folded: dict[str, Any] = {"content": "", "refusal": "", "tool_calls": []}
    for chunk in chunks:
        for choice in chunk.choices:
            fold(folded, choice)
    return folded, chunks


def fold(folded: dict[str, Any], choice: Any) -> None:
    delta = choice.delta
    assert "finish_reason" not in folded, "nothing comes after the reason"
    folded["content"] += delta.content or ""
    folded["refusal"] += delta.refusal or ""
    for call in delta.tool_calls or ():
        if call.id is not None:
            assert call.index == len(folded["tool_calls"])
            folded["tool_calls"].append({"id": call.id, "name": call.function.name, "args": ""})
        folded["tool_calls"][call.index]["args"] += call.function.arguments
    if choice.finish_reason is not None:
        folded["finish_reason"] = choice.finish_reason


def the_call(completion: ChatCompletion) -> Any:
    (choice,) = completion.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    return call


def answered(completion: ChatCompletion, content: Any) -> list[Any]:
    """The messages that a client sends to answer the one call of a completion."""
    message = completion.choices[0].message.model_dump(exclude_none=True)
    call = the_call(completion)
    return [USER, message, {"role": "tool", "tool_call_id": call.id, "content": content}]


# --- what is said ----------------------------------------------------------------------------


async def test_both_modes_say_the_same(api: Api) -> None:
    completion = await whole(api, "several")
    (choice,) = completion.choices
    assert choice.message.content == "one two three\n\nfour five"
    assert choice.finish_reason == "stop"
    assert completion.id.startswith("chatcmpl-")
    folded, chunks = await streamed(api, "several")
    assert folded["content"] == choice.message.content
    assert folded["finish_reason"] == "stop"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len(chunks) > 5, "tokens leave as they come"


async def test_usage_is_told_in_the_answer_and_when_asked_for_in_the_stream(api: Api) -> None:
    completion = await whole(api, "usage")
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (10, 5)
    assert completion.usage.prompt_tokens_details is not None
    assert completion.usage.prompt_tokens_details.cached_tokens == 4
    assert completion.usage.completion_tokens_details is not None
    assert completion.usage.completion_tokens_details.reasoning_tokens == 2
    _, silent = await streamed(api, "usage")
    assert all(chunk.usage is None and chunk.choices for chunk in silent)
    _, chunks = await streamed(api, "usage", stream_options={"include_usage": True})
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices == []
    assert chunks[-1].usage == completion.usage


@pytest.mark.parametrize(
    ("model", "reason", "content"),
    [("truncation", "length", "Once"), ("filtered", "content_filter", "Ha")],
)
async def test_a_cut_answer_says_why(api: Api, model: str, reason: str, content: str) -> None:
    """C41."""
    choice = (await whole(api, model)).choices[0]
    assert (choice.finish_reason, choice.message.content) == (reason, content)
    folded, _ = await streamed(api, model)
    assert (folded["finish_reason"], folded["content"]) == (reason, content)


async def test_a_refusal_has_its_own_field(api: Api) -> None:
    message = (await whole(api, "refusal")).choices[0].message
    assert (message.content, message.refusal) == (None, "I will not.")
    folded, _ = await streamed(api, "refusal")
    assert (folded["content"], folded["refusal"]) == ("", "I will not.")


async def test_reasoning_is_left_out(api: Api) -> None:
    assert (await whole(api, "reasoning")).choices[0].message.content == "Yes."
    assert (await streamed(api, "reasoning"))[0]["content"] == "Yes."


async def test_the_graph_sees_the_conversation(api: Api) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "developer", "content": [{"type": "text", "text": "and kind"}]},
        USER,
        {"role": "assistant", "content": "let me see", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "rain"}]},
        {"role": "assistant", "content": None, "refusal": "no more"},
        {"role": "user", "name": "Ann", "content": [{"type": "text", "text": "thanks"}]},
    ]
    said = (await whole(api, "remember", messages, tools=[WEATHER])).choices[0].message.content
    assert said == "\n".join(
        [
            "system:be brief",
            "system:and kind",
            "human:hello",
            "ai:let me see calls weather",
            "tool:rain",
            "ai:no more",
            "human:thanks",
        ]
    )


async def test_the_graph_gets_the_settings(api: Api) -> None:
    completion = await whole(
        api, "settings", temperature=0.5, tools=[WEATHER], metadata={"a": "b"}, stop="x", seed=7
    )
    assert completion.choices[0].message.content == "0.5 ['weather'] {'a': 'b'}"


async def test_calls_to_the_client_s_tools_leave_and_their_results_come_back(api: Api) -> None:
    completion = await whole(api, "tool", tools=[WEATHER])
    call = the_call(completion)
    assert (call.id, call.function.name) == ("call_weather", "weather")
    assert json.loads(call.function.arguments) == {"city": "Köln"}
    folded, _ = await streamed(api, "tool", tools=[WEATHER])
    assert folded["content"] == completion.choices[0].message.content == "Let me see."
    assert folded["tool_calls"] == [
        {"id": "call_weather", "name": "weather", "args": call.function.arguments}
    ]
    assert folded["finish_reason"] == "tool_calls"
    history = await whole(api, "remember", answered(completion, "rain"), tools=[WEATHER])
    assert str(history.choices[0].message.content).endswith("tool:rain")


# --- questions -------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_an_interrupt_is_a_tool_call_and_a_tool_message_answers_it(
    api: Api, stream: bool
) -> None:
    if stream:
        folded, _ = await streamed(api, "ask")
        assert folded["finish_reason"] == "tool_calls"
        (call,) = folded["tool_calls"]
        assert folded["content"] == "I will ask you."
        assert json.loads(call["args"])["question"] == "Go on?"
        function = {"name": call["name"], "arguments": call["args"]}
        said = {
            "role": "assistant",
            "content": folded["content"],
            "tool_calls": [{"id": call["id"], "type": "function", "function": function}],
        }
        answer = [USER, said, {"role": "tool", "tool_call_id": call["id"], "content": "yes"}]
        folded, _ = await streamed(api, "ask", answer)
        assert (folded["content"], folded["finish_reason"]) == ("answer: 'yes'", "stop")
        return
    asked = await whole(api, "ask")
    assert the_call(asked).function.name == "go_on"
    completion = await whole(api, "ask", answered(asked, "yes"))
    assert completion.choices[0].message.content == "answer: 'yes'"
    assert completion.choices[0].finish_reason == "stop"


async def test_an_answer_is_taken_once_and_its_repeat_gets_the_same(api: Api) -> None:
    """P2 through Chat Completions."""
    asked = await whole(api, "review")
    first = await whole(api, "review", answered(asked, "approve"))
    assert first.choices[0].message.content == "It was approve."
    again = await whole(api, "review", answered(asked, "approve"))
    assert again == first
    folded, chunks = await streamed(api, "review", answered(asked, "approve"))
    assert chunks[0].id == first.id
    assert folded["content"] == "It was approve."
    refused = await post(api, "review", answered(asked, "reject"))
    error = envelope(refused)
    assert (refused.status_code, error["code"]) == (400, "interrupt_already_answered")
    assert error["param"] == "messages"
    run = await api.sql(
        "SELECT run_id FROM fermata.interrupts WHERE call_id = %s", the_call(asked).id
    )
    assert EFFECTS[run[0]["run_id"]] == ["decided"]


@pytest.mark.parametrize("content", ["Error: Tool not found.", "ok", "", '{"submitted": false}'])
async def test_an_output_is_not_a_decision(api: Api, content: str) -> None:
    asked = await whole(api, "review")
    refused = await post(api, "review", answered(asked, content))
    error = envelope(refused)
    assert (refused.status_code, error["code"]) == (400, "invalid_interrupt_answer")
    assert error["param"] == "messages[2].content"
    through = await whole(api, "review", answered(asked, "approve"))
    assert through.choices[0].message.content == "It was approve."


async def test_all_questions_of_a_batch_are_answered_at_once(api: Api) -> None:
    """C05, C06."""
    asked = await whole(api, "fan")
    calls: Any = asked.choices[0].message.tool_calls
    assert len(calls) == 3
    said = {"role": "assistant", "tool_calls": [call.model_dump() for call in calls]}
    outputs = [
        {"role": "tool", "tool_call_id": call.id, "content": str(n)} for n, call in enumerate(calls)
    ]
    refused = await post(api, "fan", [USER, said, *outputs[:2]])
    assert calls[2].id in envelope(refused)["message"]
    completion = await whole(api, "fan", [USER, said, *reversed(outputs)])
    assert completion.choices[0].message.content == "a=0 b=1 c=2"


async def test_answered_pairs_in_the_history_are_history(api: Api) -> None:
    asked = await whole(api, "review")
    answer = answered(asked, "approve")
    said = (await whole(api, "review", answer)).choices[0].message.model_dump(exclude_none=True)
    later = await whole(api, "review", [*answer, said, {"role": "user", "content": "once more"}])
    assert the_call(later).id != the_call(asked).id


async def test_open_webui_s_card_works_through_chat(api: Api) -> None:
    asked = await whole(api, "review", tools=[ASK_USER])
    call = the_call(asked)
    assert call.function.name == "ask_user"
    (question,) = json.loads(call.function.arguments)["questions"]
    assert [option["label"] for option in question["options"]] == ["Reject", "Approve"]
    picked = {"type": "option", "option_index": 1, "label": "Approve"}
    output = json.dumps({"status": "answered", "answers": {question["id"]: picked}})
    completion = await whole(api, "review", answered(asked, output), tools=[ASK_USER])
    assert completion.choices[0].message.content == "It was approve."


async def test_a_cancelled_card_stays_open(api: Api) -> None:
    asked = await whole(api, "review", tools=[ASK_USER])
    cancelled = answered(asked, "Error: tool call rejected by user.")
    told = await whole(api, "review", cancelled, tools=[ASK_USER])
    assert "still open" in str(told.choices[0].message.content)
    said = {"role": "assistant", "content": told.choices[0].message.content}
    more = [*cancelled, said, {"role": "user", "content": "show it again"}]
    again = await whole(api, "review", more, tools=[ASK_USER])
    assert the_call(again).function.name == "ask_user"
    assert the_call(again).id != the_call(asked).id


async def test_a_question_of_a_response_is_answered_by_chat(api: Api) -> None:
    """One table of answers: the call id names its question, whatever it was asked through."""
    asked = await api.create("review", "hello")
    (call,) = asked["output"]
    function = {"name": call["name"], "arguments": call["arguments"]}
    said = {
        "role": "assistant",
        "tool_calls": [{"id": call["call_id"], "type": "function", "function": function}],
    }
    answer = {"role": "tool", "tool_call_id": call["call_id"], "content": "reject"}
    completion = await whole(api, "review", [USER, said, answer])
    assert completion.choices[0].message.content == "It was reject."


# --- refusals and failures -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"n": 2}, "n", "unsupported_parameter"),
        ({"functions": []}, "functions", "unsupported_parameter"),
        ({"messages": []}, "messages", "empty_array"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id", None),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"model": "unknown"}, "model", "model_not_found"),
    ],
)
async def test_a_refusal_names_the_chat_client_s_own_parameter(
    api: Api, fields: Any, param: str, code: str | None
) -> None:
    body = {"model": "ask", "messages": [USER], **fields}
    answer = await api.http.post("/v1/chat/completions", json=body)
    error = envelope(answer)
    assert error["param"] == param
    assert code is None or error["code"] == code


async def test_an_output_without_its_call_is_refused(api: Api) -> None:
    answer = [USER, {"role": "tool", "tool_call_id": "call_nobody", "content": "x"}]
    error = envelope(await post(api, "ask", answer))
    assert "call_nobody" in error["message"]
    assert error["param"] == "messages"


async def test_two_outputs_of_one_call_are_refused(api: Api) -> None:
    """C07."""
    output = {"role": "tool", "tool_call_id": "call_1", "content": "x"}
    assert envelope(await post(api, "ask", [USER, output, output]))["code"] == "duplicate_call_id"


async def test_a_failure_is_an_error_that_is_not_retried(api: Api) -> None:
    answer = await post(api, "fail")
    assert answer.status_code == 500
    assert answer.headers["x-should-retry"] == "false"
    assert answer.json()["error"]["code"] == "run_failed"
    assert "a secret" not in answer.text


async def test_the_sdk_raises_on_a_failure_in_both_modes(client: AsyncOpenAI) -> None:
    """C32."""
    messages: Any = [USER]
    with pytest.raises(InternalServerError, match="failed in node 'fail'"):
        await client.chat.completions.create(model="fail", messages=messages)
    stream = await client.chat.completions.create(model="fail", messages=messages, stream=True)
    said: list[str] = []
    with pytest.raises(APIError, match="failed in node 'fail'") as caught:
        await read(stream, said)
    assert "".join(said) == "one two three"
    assert caught.value.code == "run_failed"


async def read(stream: AsyncIterator[ChatCompletionChunk], said: list[str]) -> None:
    async for chunk in stream:
        said += [choice.delta.content or "" for choice in chunk.choices]


async def test_a_graph_s_failure_after_an_answer_is_tried_again_by_the_same_request(
    api: Api,
) -> None:
    """C12."""
    asked = await whole(api, "flaky")
    assert (await post(api, "flaky", answered(asked, "yes"))).status_code == 500
    completion = await whole(api, "flaky", answered(asked, "yes"))
    assert completion.choices[0].message.content == "through"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_idempotency_key_names_a_chat_as_well(api: Api, stream: bool) -> None:
    """A chat that is not stored is remembered for its repeat all the same."""
    headers = {"Idempotency-Key": f"chat-{stream}"}
    body = {"model": "usage", "messages": [USER], "stream": stream}
    sent = [
        await api.http.post("/v1/chat/completions", json=body, headers=headers) for _ in range(2)
    ]
    if stream:
        first, again = ({chunk.id for chunk in read_chunks(one.content)} for one in sent)
    else:
        first, again = (one.json() for one in sent)
    assert first == again
    other = {**body, "temperature": 0}
    refused = await api.http.post("/v1/chat/completions", json=other, headers=headers)
    assert refused.status_code == 422


# --- the SDK's helpers -----------------------------------------------------------------------


async def test_the_sdk_s_stream_helper_sees_the_same(client: AsyncOpenAI) -> None:
    messages: Any = [USER]
    async with client.chat.completions.stream(
        model="ask", messages=messages, stream_options={"include_usage": True}
    ) as stream:
        kinds = {event.type async for event in stream}
        final = await stream.get_final_completion()
    assert {"content.delta", "content.done", "tool_calls.function.arguments.done"} <= kinds
    assert final.choices[0].finish_reason == "tool_calls"
    assert final.usage is not None


class City(BaseModel):
    city: str


async def test_parse_gives_the_model_s_type(client: AsyncOpenAI) -> None:
    messages: Any = [USER]
    completion = await client.chat.completions.parse(
        model="city", messages=messages, response_format=City
    )
    assert completion.choices[0].message.parsed == City(city="Köln")


async def test_the_sdk_reads_our_refusals(client: AsyncOpenAI) -> None:
    messages: Any = [USER]
    with pytest.raises(BadRequestError) as caught:
        await client.chat.completions.create(model="ask", messages=messages, n=3)
    assert (caught.value.param, caught.value.code) == ("n", "unsupported_parameter")


async def test_what_is_not_stored_leaves_no_row(api: Api) -> None:
    """OpenAI's default for chat is not to store; with `store` it is a response like any other."""
    completion = await whole(api, "usage")
    assert (await api.get(completion.id.replace("chatcmpl-", "resp_"))).status_code == 404
    stored = await whole(api, "usage", store=True)
    response = await api.get(stored.id.replace("chatcmpl-", "resp_"))
    assert response.status_code == 200
    assert response.json()["output"][0]["content"][0]["text"] == "counted"
