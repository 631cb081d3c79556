"""The fake model behaves as a real provider does on LangChain's streaming interface."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage

from graphs.fake_chat import FakeChat, tokens_of


class Caller(FakeChat):
    def reply(self, messages: list[BaseMessage], **settings: Any) -> AIMessage:
        call = {"name": "lookup", "args": {"city": "Paris"}, "id": "call_1", "type": "tool_call"}
        return AIMessage(content="Let me see.", tool_calls=[call])


async def streamed(model: FakeChat, text: str, **settings: Any) -> list[AIMessageChunk]:
    chunks = [chunk async for chunk in model.astream(text, **settings)]
    assert all(isinstance(chunk, AIMessageChunk) for chunk in chunks)
    return chunks


@pytest.mark.parametrize("text", ["", " ", "one", "two words", " a\n\n b  c ", "Grüße, 世界 !"])
def test_tokens_joined_are_the_text(text: str) -> None:
    assert "".join(tokens_of(text)) == text


async def test_streams_word_by_word_under_one_id_and_ends_with_usage() -> None:
    chunks = await streamed(FakeChat(), "one two three")

    assert [chunk.content for chunk in chunks] == ["one ", "two ", "three", ""]
    assert len({chunk.id for chunk in chunks}) == 1
    assert [chunk.chunk_position for chunk in chunks] == [None, None, None, "last"]
    assert chunks[-1].usage_metadata == {"input_tokens": 3, "output_tokens": 3, "total_tokens": 6}
    assert all(chunk.usage_metadata is None for chunk in chunks[:-1])


async def test_tool_calls_arrive_in_pieces_and_add_up() -> None:
    chunks = await streamed(Caller(), "Paris?")
    whole = sum(chunks[1:], chunks[0])

    assert len([chunk for chunk in chunks if chunk.tool_call_chunks]) == 2
    assert [(call["name"], call["args"], call["id"]) for call in whole.tool_calls] == [
        ("lookup", {"city": "Paris"}, "call_1")
    ]
    assert whole.response_metadata["finish_reason"] == "tool_calls"


async def test_max_tokens_cuts_and_says_so() -> None:
    whole = await FakeChat().ainvoke("one two three", max_tokens=2)

    assert whole.content == "one two "
    assert whole.response_metadata["finish_reason"] == "length"
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] == 2


def test_invoke_gives_what_the_stream_adds_up_to() -> None:
    message = Caller().invoke("Paris?")

    assert type(message) is AIMessage
    assert (message.content, message.tool_calls[0]["args"]) == ("Let me see.", {"city": "Paris"})
