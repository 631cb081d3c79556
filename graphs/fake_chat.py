"""A chat model without a model: deterministic, needs no key, streams natively async.

It stands where a real `BaseChatModel` would stand, so that the demo graphs read like real ones and
can be copied: replace `FakeChat()` by `init_chat_model("…")` and nothing else changes. Like a real
provider it streams word by word, gives every chunk of one message the same id, reports its usage
with the last chunk, cuts the answer at `max_tokens` with the finish reason "length", and sends the
arguments of a tool call in pieces.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolCallChunk
from langchain_core.messages.ai import UsageMetadata, add_ai_message_chunks
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

# A token is a word with the blanks after it, so that the tokens joined are the text.
_TOKEN = re.compile(r"\s*\S+\s*|\s+")


def tokens_of(text: str) -> list[str]:
    """The pieces in which `text` is streamed; joined they are `text`."""
    return _TOKEN.findall(text)


class FakeChat(BaseChatModel):
    """Says the last message back. Subclasses decide what to say by overriding `reply`."""

    def reply(self, messages: list[BaseMessage], **settings: Any) -> AIMessage:
        """The whole answer; `settings` is what was bound to the model (tools, temperature, …)."""
        return AIMessage(content=str(messages[-1].text))

    @property
    def _llm_type(self) -> str:
        return "fermata-fake-chat"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        first, *rest = [_ai(chunk) for chunk in self._chunks(messages, **kwargs)]
        whole = add_ai_message_chunks(first, *rest)
        return ChatResult(generations=[ChatGeneration(message=_whole(whole))])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        yield from self._chunks(messages, **kwargs)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in self._chunks(messages, **kwargs):
            yield chunk

    def _chunks(
        self, messages: list[BaseMessage], *, max_tokens: int | None = None, **settings: Any
    ) -> Iterator[ChatGenerationChunk]:
        answer = self.reply(messages, **settings)
        tokens = tokens_of(str(answer.text))
        cut = max_tokens is not None and len(tokens) > max_tokens
        for token in tokens[:max_tokens] if cut else tokens:
            yield ChatGenerationChunk(message=AIMessageChunk(content=token))
        for index, call in enumerate(answer.tool_calls):
            for piece in _call_pieces(index, call["id"], call["name"], json.dumps(call["args"])):
                yield ChatGenerationChunk(
                    message=AIMessageChunk(content="", tool_call_chunks=[piece])
                )
        said = max_tokens if cut and max_tokens is not None else len(tokens)
        yield ChatGenerationChunk(
            message=AIMessageChunk(
                content="",
                usage_metadata=_usage(messages, said + len(answer.tool_calls)),
                response_metadata={"finish_reason": _finish_reason(answer, cut)},
                chunk_position="last",
            )
        )


def _call_pieces(
    index: int, call_id: str | None, name: str, arguments: str
) -> Iterator[ToolCallChunk]:
    middle = len(arguments) // 2
    yield ToolCallChunk(
        name=name, args=arguments[:middle], id=call_id, index=index, type="tool_call_chunk"
    )
    yield ToolCallChunk(
        name=None, args=arguments[middle:], id=None, index=index, type="tool_call_chunk"
    )


def _finish_reason(answer: AIMessage, cut: bool) -> str:
    if cut:
        return "length"
    return "tool_calls" if answer.tool_calls else "stop"


def _usage(messages: list[BaseMessage], output_tokens: int) -> UsageMetadata:
    input_tokens = sum(len(tokens_of(str(message.text))) for message in messages)
    return UsageMetadata(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        total_tokens=input_tokens + output_tokens,
    )


def _ai(chunk: ChatGenerationChunk) -> AIMessageChunk:
    return cast("AIMessageChunk", chunk.message)  # nothing else is made here


def _whole(chunk: AIMessageChunk) -> AIMessage:
    return AIMessage(
        content=chunk.content,
        tool_calls=chunk.tool_calls,
        usage_metadata=chunk.usage_metadata,
        response_metadata=chunk.response_metadata,
    )
