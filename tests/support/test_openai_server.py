"""A server on loopback refuses what OpenAI refuses, and says so in its words."""

from __future__ import annotations

import json

import pytest

from tests.support.openai_server import OpenAIServer
from tests.support.posting import Message, post, user

pytestmark = pytest.mark.slow  # these test the tools of the tests


def calls(*ids: str) -> Message:
    made = [{"id": ident, "type": "function", "function": {"name": "look", "arguments": "{}"}} for ident in ids]
    return {"role": "assistant", "content": None, "tool_calls": made}


def result(ident: str) -> Message:
    return {"role": "tool", "tool_call_id": ident, "content": "seen"}


OPENAI_REFUSES: dict[str, tuple[list[Message] | None, str]] = {
    "no messages at all": (None, "Missing required parameter"),
    "an empty list": ([], "empty array"),
    "no user message": ([{"role": "system", "content": "be good"}], "role 'user' is required"),
    "an unknown role": ([user(), {"role": "robot", "content": "beep"}], "Invalid value: 'robot'"),
    "an empty user text": ([user("")], "must not be empty"),
    "an empty user list": ([user([])], "must not be empty"),
    "an empty text part": ([user([{"type": "text", "text": ""}])], "empty string"),
    "an unknown content part": ([user([{"type": "smell"}])], "Invalid value: 'smell'"),
    "an assistant without content": ([user(), {"role": "assistant", "content": None}], "expected a string, got null"),
    "an orphaned result": ([user(), result("a")], "must be a response to a preceeding message"),
    "a result for another id": ([user(), calls("a"), result("b")], "must be a response to a preceeding message"),
    "a result two turns late": (
        [user(), calls("a"), result("a"), user(), result("a")],
        "must be a response to a preceeding message",
    ),
    "an unanswered call": ([user(), calls("a")], "did not have response messages: a"),
    "half of a parallel call": ([user(), calls("a", "b"), result("a"), user()], "did not have response messages: b"),
    "a user between call and result": ([user(), calls("a"), user(), result("a")], "did not have response messages"),
    "two results for one id": ([user(), calls("a"), result("a"), result("a")], "was already answered"),
    "one id twice in a message": ([user(), calls("a", "a"), result("a")], "Duplicate value for 'id'"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", OPENAI_REFUSES)
def test_openai_refuses(case: str, stream: bool) -> None:
    messages, reason = OPENAI_REFUSES[case]
    with OpenAIServer() as server:
        status, body = post(server, {"model": "gpt-4o", "messages": messages, "stream": stream})
    assert status == 400 and server.statuses == [400]
    assert body["error"]["type"] == "invalid_request_error"
    assert reason in body["error"]["message"]
    assert set(body["error"]) == {"message", "type", "param", "code"}


def test_openai_accepts_a_whole_conversation() -> None:
    messages = [
        {"role": "system", "content": "x"},
        user(),
        calls("a", "b"),
        result("b"),
        result("a"),
        user([{"type": "text", "text": "go"}]),
    ]
    again = [calls("a"), result("a"), {"role": "assistant", "content": ""}]
    with OpenAIServer("fine") as server:
        status, body = post(server, {"model": "gpt-4o", "messages": messages + again})
    assert (status, body["choices"][0]["message"]["content"]) == (200, "fine")


def test_openai_reports_a_context_that_is_too_long() -> None:
    body = {"model": "gpt-4o", "messages": [user("x" * 400)], "tools": [{"type": "function"}]}
    size = len(json.dumps(body["messages"]) + json.dumps(body["tools"])) // 4
    with OpenAIServer(window=size) as roomy, OpenAIServer(window=size - 1) as tight:
        assert post(roomy, body)[0] == 200
        status, answer = post(tight, body)
    assert status == 400 and answer["error"]["code"] == "context_length_exceeded"
    assert answer["error"]["message"].startswith(f"This model's maximum context length is {size - 1} tokens")
    assert roomy.prompt_tokens == [size] and tight.prompt_tokens == []
