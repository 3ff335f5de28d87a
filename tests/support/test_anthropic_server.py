"""A server on loopback refuses what Anthropic refuses, and says so in its words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic_ai.messages import ModelRequest, UserPromptPart
from pydantic_ai.models import ModelRequestParameters

from tests.support.anthropic_server import AnthropicServer
from tests.support.posting import Message, post

pytestmark = pytest.mark.slow  # these test the tools of the tests


def turn(role: str, *blocks: Any) -> Message:
    return {"role": role, "content": list(blocks)}


def text(content: str = "hi") -> Message:
    return {"type": "text", "text": content}


def use(ident: str, kind: str = "tool_use") -> Message:
    return {"type": kind, "id": ident, "name": "look", "input": {}}


def seen(ident: str, kind: str = "tool_result") -> Message:
    return {"type": kind, "tool_use_id": ident, "content": "seen"}


HI = turn("user", text())
MARKED = {**text(), "cache_control": {"type": "ephemeral"}}

ANTHROPIC_REFUSES: dict[str, tuple[list[Message], str]] = {
    "an empty list": ([], "at least one message is required"),
    "an assistant first": ([turn("assistant", text())], 'first message must use the "user" role'),
    "an unknown role": ([HI, turn("system", text())], "messages.1.role"),
    "an empty text block": ([turn("user", text(""))], "text content blocks must be non-empty"),
    "an empty string": ([{"role": "user", "content": ""}], "text content blocks must be non-empty"),
    "a blank text block": ([turn("user", text(" \n"))], "must contain non-whitespace text"),
    "an empty message": ([HI, turn("assistant"), HI], "all messages must have non-empty content"),
    "a trailing space to continue": ([HI, turn("assistant", text("so "))], "cannot end with trailing whitespace"),
    "thinking alone": (
        [HI, turn("assistant", {"type": "thinking", "thinking": "hm", "signature": "s"}), HI],
        "`thinking`",
    ),
    "an orphaned result": ([turn("user", seen("a"))], "unexpected `tool_use_id`"),
    "an unanswered call": ([HI, turn("assistant", use("a"))], "without `tool_result` blocks immediately after: a"),
    "half of a parallel call": ([HI, turn("assistant", use("a"), use("b")), turn("user", seen("a"))], "after: b"),
    "text before the result": (
        [HI, turn("assistant", use("a")), turn("user", text(), seen("a"))],
        "immediately after: a",
    ),
    "a late result": (
        [HI, turn("assistant", use("a")), HI, turn("assistant", text()), turn("user", seen("a"))],
        "after: a",
    ),
    "two results for one id": (
        [HI, turn("assistant", use("a")), turn("user", seen("a"), seen("a"))],
        "each tool_use must have a single result",
    ),
    "one id for two calls": (
        [
            HI,
            turn("assistant", use("a")),
            turn("user", seen("a")),
            turn("assistant", use("a")),
            turn("user", seen("a")),
        ],
        "ids must be unique",
    ),
    "a native result without its call": (
        [HI, turn("assistant", seen("s", "web_search_tool_result"))],
        "server_tool_use",
    ),
    "five cache marks": ([turn("user", *[MARKED] * 5)], "A maximum of 4 blocks"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", ANTHROPIC_REFUSES)
def test_anthropic_refuses(case: str, stream: bool) -> None:
    messages, reason = ANTHROPIC_REFUSES[case]
    with AnthropicServer() as server:
        status, body = post(
            server, {"model": "claude-sonnet-4-6", "max_tokens": 9, "messages": messages, "stream": stream}
        )
    assert status == 400 and body["type"] == "error" and body["error"]["type"] == "invalid_request_error"
    assert reason in body["error"]["message"]


def test_anthropic_accepts_a_whole_conversation() -> None:
    native = turn("assistant", use("s", "server_tool_use"), seen("s", "web_search_tool_result"), use("a"), use("b"))
    messages = [HI, turn("user", MARKED), native, turn("user", seen("b"), seen("a"), text()), turn("assistant", text())]
    with AnthropicServer("fine") as server:
        status, body = post(server, {"model": "claude-sonnet-4-6", "max_tokens": 9, "messages": [*messages, HI]})
    assert (status, body["content"]) == (200, [{"type": "text", "text": "fine"}])


def test_anthropic_takes_system_messages_only_where_the_model_does() -> None:
    messages = [HI, turn("assistant", text()), turn("system", text("new rule")), HI]
    with AnthropicServer() as server:
        statuses = [
            post(server, {"model": model, "max_tokens": 9, "messages": messages})[0]
            for model in ("claude-opus-4-8", "claude-sonnet-4-6")
        ]
    assert statuses == [200, 400]


def test_anthropic_reports_a_prompt_that_is_too_long_and_counts_the_system_text() -> None:
    body = {"model": "claude-sonnet-4-6", "max_tokens": 9, "messages": [HI], "system": "s" * 400}
    with AnthropicServer(window=50) as server:
        status, answer = post(server, body)
    assert (status, answer["error"]["message"]) == (
        400,
        f"prompt is too long: {(402 + len(json.dumps([HI]))) // 4} tokens > 50 maximum",
    )


async def test_anthropic_counts_tokens_on_request() -> None:
    with AnthropicServer() as server:
        messages: list[Any] = [ModelRequest(parts=[UserPromptPart(content="x" * 400)])]
        usage = await server.model().count_tokens(messages, {}, ModelRequestParameters())
    assert usage.input_tokens > 100 and server.prompt_tokens == []
