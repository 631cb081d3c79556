"""The conversations in the docstrings of graphs, and the SDK that plays them.

    user       what the client sends                          (the client declares get_weather)
    assistant  the text of one message
               and its further lines
    call       name("the question", ["its", "options"], {"its": "payload", …})
    output     an answer; several in the order of the calls

`…` stands for any text, and at the end of an object for fields that are not shown. A call shows of
its question what it likes. What is in brackets behind wide blanks is a remark.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from openai import AsyncOpenAI

_LINE = re.compile(r"^ {4}(user|assistant|call|output) +(\S.*)$")
_MORE = re.compile(r"^ {15}( *\S.*)$")
_REMARK = re.compile(r" {3,}\([^()]*\)$")
_LEFT_OUT = re.compile(r",?\s*…(?=\s*[}\]])")


@dataclass
class Line:
    """Who says what."""

    role: str
    text: str


@dataclass
class Turn:
    """What one request brings, and what is told of its response."""

    said: list[Line] = field(default_factory=list)
    told: list[Line] = field(default_factory=list)


def transcript(module: Any) -> list[Turn]:
    """The turns in the module's docstring."""
    lines: list[Line] = []
    for text in (inspect.getdoc(module) or "").splitlines():
        if found := _LINE.match(text):
            lines.append(Line(found[1], _REMARK.sub("", found[2])))
        elif lines and (found := _MORE.match(text)):
            lines[-1].text += f"\n{found[1]}"
    return list(_turns(lines))


def _turns(lines: Sequence[Line]) -> Iterator[Turn]:
    rest = list(lines)
    while rest:
        said = list(takewhile(lambda line: line.role in {"user", "output"}, rest))
        told = list(takewhile(lambda line: line.role in {"assistant", "call"}, rest[len(said) :]))
        assert said, f"somebody answers whom nobody asked: {rest[0]}"
        assert told, f"nobody answers: {said[-1]}"
        yield Turn(said, told)
        rest = rest[len(said) + len(told) :]


async def play(
    client: AsyncOpenAI,
    model: str,
    turns: Iterable[Turn],
    reviewer: AsyncOpenAI | None = None,
    **fields: Any,
) -> Any:
    """Hold the conversation, as streams; each turn must be told as written. The last response.

    `reviewer` sends the answers, if they are not the client's to give.
    """
    response: Any = None
    for turn in turns:
        request = {"previous_response_id": response.id, **fields} if response else fields
        said = _input(turn.said, response)
        answers = any(line.role == "output" for line in turn.said)
        who = reviewer if answers and reviewer is not None else client
        stream = await who.responses.create(model=model, input=said, stream=True, **request)
        async for event in stream:
            response = getattr(event, "response", response)
        assert response.status == "completed", response.error
        _compare(turn.told, response.output)
    return response


def _input(said: Sequence[Line], response: Any) -> Any:
    calls = [item for item in response.output if item.type == "function_call"] if response else []
    outputs = [line.text for line in said if line.role == "output"]
    assert len(outputs) == len(calls), "every call has its output"
    return [
        {"type": "function_call_output", "call_id": call.call_id, "output": output}
        for call, output in zip(calls, outputs, strict=True)
    ] + [{"role": "user", "content": line.text} for line in said if line.role == "user"]


def _compare(told: Sequence[Line], output: Sequence[Any]) -> None:
    happened = [_line(item) for item in output]
    fits = len(told) == len(happened) and all(
        _same(one, item) for one, item in zip(told, output, strict=True)
    )
    assert fits, "\n".join(["told:", *map(str, told), "happened:", *map(str, happened)])


def _line(item: Any) -> Line:
    if item.type == "message":
        return Line("assistant", "".join(part.text for part in item.content))
    return Line("call", f"{item.name}({item.arguments})")


def _same(line: Line, item: Any) -> bool:
    if line.role == "assistant":
        return item.type == "message" and _fits(line.text, _line(item).text)
    name, _, shown = line.text.partition("(")
    assert shown.endswith(")"), line
    if item.type != "function_call" or item.name != name:
        return False
    arguments = json.loads(item.arguments)
    return all(
        _fits(one, _part(one, arguments))
        for one in json.loads(f"[{_LEFT_OUT.sub('', shown[:-1])}]")
    )


def _part(shown: Any, arguments: dict[str, Any]) -> Any:
    """What of a call's arguments is shown by a text, a list, an object."""
    if "expects" not in arguments:
        return arguments  # a client's own tool
    if isinstance(shown, str):
        return arguments["question"]
    if isinstance(shown, dict):
        return arguments["payload"]
    return [one["label"] if isinstance(one, dict) else one for one in arguments["options"]]


def _fits(shown: Any, real: Any) -> bool:
    if isinstance(shown, str) and isinstance(real, str):
        pattern = ".*".join(re.escape(part) for part in shown.split("…"))
        return re.fullmatch(pattern, real, re.DOTALL) is not None
    if isinstance(shown, dict) and isinstance(real, dict):
        return all(key in real and _fits(one, real[key]) for key, one in shown.items())
    if isinstance(shown, list) and isinstance(real, list):
        pairs = zip(shown, real, strict=False)
        return len(shown) == len(real) and all(_fits(*pair) for pair in pairs)
    return bool(shown == real)
