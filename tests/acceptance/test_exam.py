"""An exam over the Open Responses schema, of our own gateway or of any API: `make exam BASE_URL=…`.

What its public compliance suite asks (basic, phases, streaming, system prompt, tools, images,
turns, compact, WebSocket), and what it leaves out: previous_response_id, function_call_output,
errors.
Everything that comes back is validated by `tests/openresponses`. The examined model must say
something to any text and call a declared tool that it is told to call; `echo` does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect

from tests.acceptance.server import Server
from tests.openresponses import (
    TERMINAL,
    Json,
    check_stream,
    read_frames,
    validate_compaction,
    validate_items,
    validate_resource,
    validate_socket_error,
)

PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwAD"
    "hgGAWjR9awAAAABJRU5ErkJggg=="
)
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The current weather in a place",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string"}},
        "required": ["location"],
        "additionalProperties": False,
    },
    "strict": True,
}
QUESTION = "What is the weather in Paris? Use the tool."


@dataclass(frozen=True)
class Examinee:
    """The API that is examined, and one model of it."""

    base_url: str
    key: str
    model: str
    http: httpx.Client

    def post(self, path: str = "/responses", **body: Any) -> httpx.Response:
        return self.http.post(path, json={"model": self.model, **body})

    def create(self, said: Any, **fields: Any) -> Json:
        answer = self.post(input=said, **fields)
        assert answer.status_code == 200, answer.text
        resource: Json = answer.json()
        validate_resource(resource)
        return resource

    def refused(self, **body: Any) -> tuple[int, Json]:
        answer = self.post(**body)
        assert answer.headers["content-type"] == "application/json"
        return answer.status_code, checked(answer.json())

    @contextmanager
    def socket(self) -> Iterator[ClientConnection]:
        url = f"ws{self.base_url.removeprefix('http')}/responses"
        headers = {"Authorization": f"Bearer {self.key}"}
        with connect(url, additional_headers=headers, close_timeout=5) as connection:
            yield connection

    def turn(self, connection: ClientConnection, said: Any, **fields: Any) -> list[Json]:
        """The events of one turn over a WebSocket."""
        body = {"type": "response.create", "model": self.model, "input": said, **fields}
        connection.send(json.dumps(body))
        events: list[Json] = []
        while not events or events[-1]["type"] not in (*TERMINAL, "error"):
            events.append(json.loads(connection.recv(timeout=30)))
        return events


@pytest.fixture(scope="module")
def examinee(request: pytest.FixtureRequest) -> Iterator[Examinee]:
    url, key = request.config.getoption("--base-url"), request.config.getoption("--api-key")
    if url is None:
        server: Server = request.getfixturevalue("server")
        url = server.base_url
    url, headers = url.rstrip("/"), {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=url, headers=headers, timeout=60) as http:
        yield Examinee(url, key, request.config.getoption("--model"), http)


def checked(body: Json) -> Json:
    """The error of an envelope."""
    error: Json = body["error"]
    assert error.keys() >= {"message", "type", "param", "code"}
    assert error["message"]
    return error


def text(resource: Json) -> str:
    assert resource["status"] == "completed"
    messages = [item for item in resource["output"] if item["type"] == "message"]
    said = "".join(part["text"] for item in messages for part in item["content"])
    assert said
    return said


def call_in(resource: Json) -> Json:
    (call,) = [item for item in resource["output"] if item["type"] == "function_call"]
    assert call["name"] == "get_weather"
    assert isinstance(json.loads(call["arguments"])["location"], str)
    return dict(call)


def output(call_id: str, said: Any = "18 degrees") -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": said}


def user(said: Any) -> Json:
    return {"type": "message", "role": "user", "content": said}


# --- what the public suite asks --------------------------------------------------------------


def test_basic(examinee: Examinee) -> None:
    assert text(examinee.create([user("Say hello in exactly 3 words.")]))


def test_a_string_is_a_message(examinee: Examinee) -> None:
    assert text(examinee.create("Say hello."))


def test_phases(examinee: Examinee) -> None:
    """Assistant messages that say what they were: commentary, or the answer."""
    history = [
        user("Where is Vienna?"),
        {**user("Let me think."), "role": "assistant", "phase": "commentary"},
        {**user("In Austria."), "role": "assistant", "phase": "final_answer"},
        user("And Rome?"),
    ]
    assert text(examinee.create(history))


def test_streaming(examinee: Examinee) -> None:
    answer = examinee.post(input="Count from 1 to 5.", stream=True)

    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.content.endswith(b"data: [DONE]\n\n")
    assert text(check_stream(read_frames(answer.content)))


@pytest.mark.parametrize("role", ["system", "developer"])
def test_system_prompt(examinee: Examinee, role: str) -> None:
    prompt = {**user("You are a pirate."), "role": role}

    assert text(examinee.create([prompt, user("Say hello.")]))


def test_instructions(examinee: Examinee) -> None:
    told = examinee.create("Say hello.", instructions="You are a pirate.")

    assert text(told)
    assert told["instructions"] == "You are a pirate."


@pytest.mark.parametrize("stream", [False, True])
def test_tool_calling(examinee: Examinee, stream: bool) -> None:
    answer = examinee.post(input=QUESTION, tools=[WEATHER], stream=stream)
    told = check_stream(read_frames(answer.content)) if stream else answer.json()
    validate_resource(told)

    assert call_in(told)["status"] == "completed"
    assert told["tools"] == [WEATHER]


def test_images(examinee: Examinee) -> None:
    parts = [
        {"type": "input_text", "text": "What colour is this?"},
        {"type": "input_image", "image_url": PIXEL, "detail": "low"},
    ]
    assert text(examinee.create([user(parts)]))


def test_multi_turn(examinee: Examinee) -> None:
    history = [user("My name is Alice.")]
    history += [*examinee.create(history)["output"], user("What is my name?")]

    assert text(examinee.create(history))


def test_compact(examinee: Examinee) -> None:
    history = [user("My name is Alice."), {**user("Hello Alice."), "role": "assistant"}]
    answer = examinee.post("/responses/compact", input=history)
    assert answer.status_code == 200, answer.text
    validate_compaction(answer.json())

    assert text(examinee.create([*answer.json()["output"], user("What is my name?")]))


def test_websocket_sequential(examinee: Examinee) -> None:
    with examinee.socket() as connection:
        told = [check_stream(examinee.turn(connection, said)) for said in ("Hello.", "Goodbye.")]

    assert all(text(one) for one in told)
    assert told[0]["id"] != told[1]["id"]


def test_websocket_continuation(examinee: Examinee) -> None:
    with examinee.socket() as connection:
        first = check_stream(examinee.turn(connection, QUESTION, tools=[WEATHER], store=False))
        answers = [output(call_in(first)["call_id"])]
        events = examinee.turn(
            connection,
            answers,
            tools=[WEATHER],
            store=False,
            previous_response_id=first["id"],
        )

    assert text(check_stream(events))


def test_websocket_reconnect_with_store_false(examinee: Examinee) -> None:
    """What was not stored is known to its own connection only."""
    with examinee.socket() as connection:
        first = check_stream(examinee.turn(connection, "Hello.", store=False))
    with examinee.socket() as connection:
        (refusal,) = examinee.turn(connection, "Go on.", previous_response_id=first["id"])
        validate_socket_error(refusal)
        after = check_stream(examinee.turn(connection, "Hello again.", store=False))

    assert refusal["error"]["code"] == "previous_response_not_found"
    assert text(after)


def test_websocket_eviction_after_failure(examinee: Examinee) -> None:
    """A turn that fails takes the response that it continued out of the connection's memory."""
    with examinee.socket() as connection:
        first = check_stream(examinee.turn(connection, "Hello.", store=False))
        named = {"previous_response_id": first["id"], "store": False}
        (refusal,) = examinee.turn(connection, [output("call_unknown")], **named)
        (evicted,) = examinee.turn(connection, "Go on.", **named)

    validate_socket_error(refusal)
    assert evicted["error"]["code"] == "previous_response_not_found"


# --- what it leaves out ----------------------------------------------------------------------


def test_previous_response_id(examinee: Examinee) -> None:
    first = examinee.create("My name is Alice.")
    second = examinee.create("What is my name?", previous_response_id=first["id"])
    listed = examinee.http.get(f"/responses/{second['id']}/input_items", params={"order": "asc"})
    validate_items(listed.json())

    assert text(second)
    assert second["previous_response_id"] == first["id"]
    said = [item["content"][0]["text"] for item in listed.json()["data"]]
    assert said == ["My name is Alice.", text(first), "What is my name?"]


def test_a_stored_response_is_as_it_was_told(examinee: Examinee) -> None:
    told = examinee.create("Hello.")

    assert examinee.http.get(f"/responses/{told['id']}").json() == told


def test_an_unstored_one_is_not_there(examinee: Examinee) -> None:
    told = examinee.create("Hello.", store=False)
    answer = examinee.http.get(f"/responses/{told['id']}")

    assert answer.status_code == 404
    checked(answer.json())


def test_a_deleted_one_neither(examinee: Examinee) -> None:
    told = examinee.create("Hello.")
    deleted = examinee.http.delete(f"/responses/{told['id']}")

    assert deleted.json()["deleted"] is True
    assert examinee.http.get(f"/responses/{told['id']}").status_code == 404
    status, error = examinee.refused(input="Go on.", previous_response_id=told["id"])
    assert (status, error["code"]) == (400, "previous_response_not_found")


@pytest.mark.parametrize("named", [True, False], ids=["previous", "history"])
@pytest.mark.parametrize("said", ["18 degrees", [{"type": "input_text", "text": "18 degrees"}]])
def test_function_call_output(examinee: Examinee, named: bool, said: Any) -> None:
    asked = examinee.create(QUESTION, tools=[WEATHER])
    call = call_in(asked)
    history = [] if named else [user(QUESTION), call]
    more = {"previous_response_id": asked["id"]} if named else {}

    assert text(examinee.create([*history, output(call["call_id"], said)], **more))


def test_errors_name_their_parameter(examinee: Examinee) -> None:
    asked = examinee.create(QUESTION, tools=[WEATHER])
    pair: list[tuple[Json, int, str | None]] = [
        ({"input": "x", "previous_response_id": "resp_unknown"}, 400, "previous_response_id"),
        ({"input": [output("call_unknown")]}, 400, "input"),
        ({"input": "x", "previous_response_id": asked["id"]}, 400, "input"),
        ({"input": [{"type": "unheard_of"}]}, 400, "input[0].type"),
        ({"input": "x", "temperature": 3}, 400, "temperature"),
        ({"input": "x", "metadata": {"k": 1}}, 400, "metadata.k"),
        ({}, 400, "input"),
        ({"model": None, "input": "x"}, 400, "model"),
    ]
    for body, status, param in pair:
        found, error = examinee.refused(**body)
        assert (found, error["param"]) == (status, param), body
        assert error["type"] == "invalid_request_error"


def test_an_unknown_model(examinee: Examinee) -> None:
    status, error = examinee.refused(model="no-such-model", input="x")

    assert status in (400, 404)
    assert error["code"] == "model_not_found"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'"x"', b"\xff"])
def test_what_is_no_request(examinee: Examinee, content: bytes) -> None:
    answer = examinee.http.post("/responses", content=content)

    assert answer.status_code == 400
    checked(answer.json())


def test_errors_before_a_stream_are_plain_errors(examinee: Examinee) -> None:
    status, error = examinee.refused(input="x", stream=True, previous_response_id="resp_unknown")

    assert (status, error["code"]) == (400, "previous_response_not_found")
