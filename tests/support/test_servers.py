"""The servers on loopback refuse what OpenAI and Anthropic refuse, and otherwise a normal agent runs on them."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
from contextlib import closing
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError
from pydantic_ai.messages import ModelRequest, ModelResponse, ToolCallPart, UserPromptPart
from pydantic_ai.models import ModelRequestParameters

from tests.support.anthropic_server import AnthropicServer
from tests.support.loopback import Answer, LoopbackServer, Refusal
from tests.support.openai_server import OpenAIServer

Message = dict[str, Any]


def post(server: LoopbackServer, body: object, path: str | None = None) -> tuple[int, dict[str, Any]]:
    """A raw request: status and JSON."""
    port = int(server.base_url.split(":")[2].split("/")[0])
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("POST", path or server.path, raw, {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())


def user(text: Any = "hi") -> Message:
    return {"role": "user", "content": text}


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


def test_openai_says_that_the_context_is_too_long() -> None:
    body = {"model": "gpt-4o", "messages": [user("x" * 400)], "tools": [{"type": "function"}]}
    size = len(json.dumps(body["messages"]) + json.dumps(body["tools"])) // 4
    with OpenAIServer(window=size) as roomy, OpenAIServer(window=size - 1) as tight:
        assert post(roomy, body)[0] == 200
        status, answer = post(tight, body)
    assert status == 400 and answer["error"]["code"] == "context_length_exceeded"
    assert answer["error"]["message"].startswith(f"This model's maximum context length is {size - 1} tokens")
    assert roomy.prompt_tokens == [size] and tight.prompt_tokens == []


def test_anthropic_says_that_the_prompt_is_too_long_and_counts_the_system_text() -> None:
    body = {"model": "claude-sonnet-4-6", "max_tokens": 9, "messages": [HI], "system": "s" * 400}
    with AnthropicServer(window=50) as server:
        status, answer = post(server, body)
    assert (status, answer["error"]["message"]) == (
        400,
        f"prompt is too long: {(402 + len(json.dumps([HI]))) // 4} tokens > 50 maximum",
    )


def test_the_given_counter_counts() -> None:
    with OpenAIServer(count=lambda text: text.count("word"), window=2) as server:
        body = {"model": "gpt-4o", "messages": [user("word word")]}
        assert post(server, body)[1]["usage"]["prompt_tokens"] == 2
        assert post(server, {**body, "messages": [user("word word word")]})[0] == 400


def test_nonsense_and_unknown_paths_are_refused_too() -> None:
    with OpenAIServer() as server:
        assert post(server, b"{not json")[0] == 400
        assert post(server, {}, "/v1/nothing")[0] == 404
        assert post(server, {}, "/v1/chat/completions/more")[0] == 400
        assert post(server, {"messages": [user()]})[1]["error"]["message"] == "you must provide a model parameter"


Provider = type[OpenAIServer] | type[AnthropicServer]


@pytest.fixture(params=[OpenAIServer, AnthropicServer])
def provider(request: pytest.FixtureRequest) -> Provider:
    return request.param


def look(path: str) -> str:
    """Look at a file."""
    return f"saw {path} ünïcode 漢字"


SCRIPT = [[("look", {"path": "a"}), ("look", {"path": "漢字"})], [("look", {"path": "b"})], "all three seen"]


async def test_an_agent_with_tools_runs_plain(provider: Provider) -> None:
    with provider(SCRIPT) as server:
        outcome = await Agent(server.model(), tools=[look], system_prompt="be good").run("go")
    assert outcome.output == "all three seen" and server.statuses == [200, 200, 200]
    assert outcome.usage.input_tokens == sum(server.prompt_tokens)
    made = [part for message in outcome.all_messages() for part in message.parts if isinstance(part, ToolCallPart)]
    assert [part.args_as_dict() for part in made] == [{"path": "a"}, {"path": "漢字"}, {"path": "b"}]
    assert len({part.tool_call_id for part in made}) == 3


async def test_an_agent_with_tools_runs_streamed(provider: Provider) -> None:
    with provider(SCRIPT) as server:
        async with Agent(server.model(), tools=[look]).run_stream("go") as outcome:
            deltas = [delta async for delta in outcome.stream_text(delta=True, debounce_by=None)]
        usage = outcome.usage
    assert "".join(deltas) == "all three seen" and len(deltas) > 1
    assert usage.input_tokens == sum(server.prompt_tokens) and usage.output_tokens > 0
    assert all(body["stream"] for body in server.requests)


async def test_text_and_calls_can_come_together(provider: Provider) -> None:
    with provider([Answer(text="let me look", calls=[("look", {"path": "a"})]), "done"]) as server:
        outcome = await Agent(server.model(), tools=[look]).run("go")
    response = outcome.all_messages()[1]
    assert isinstance(response, ModelResponse)
    assert [part.part_kind for part in response.parts] == ["text", "tool-call"]


async def test_a_script_may_look_at_the_request(provider: Provider) -> None:
    with provider(lambda body: f"{len(body['messages'])} messages") as server:
        agent = Agent(server.model())
        first = await agent.run("one")
        second = await agent.run("two", message_history=first.all_messages())
    assert [first.output, second.output] == ["1 messages", "3 messages"]
    assert len(server.requests) == 2


async def test_a_script_may_refuse(provider: Provider) -> None:
    def refuse(body: dict[str, Any]) -> str:
        raise Refusal("not today", status=418)

    with provider(refuse) as server:
        with pytest.raises(ModelHTTPError, match="not today") as caught:
            await Agent(server.model()).run("go")
    assert caught.value.status_code == 418


async def test_what_a_script_raises_is_raised_at_the_end(provider: Provider) -> None:
    with pytest.raises(AssertionError, match="request 2 came after the script's 1 steps"):
        with provider(["only one"]) as server:
            agent = Agent(server.model())
            await agent.run("go")
            with pytest.raises(ModelAPIError):
                await agent.run("again")


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_overflow_is_known_to_the_host(provider: Provider, streamed: bool) -> None:
    with provider(window=10) as server:
        with pytest.raises(ModelHTTPError) as caught:
            await _go(server, streamed)
    assert type(caught.value).__name__ == "ModelContextWindowExceededError"
    assert server.statuses == [400] and len(server.requests) == 1


async def _go(server: OpenAIServer | AnthropicServer, streamed: bool) -> str:
    agent = Agent(server.model())
    if not streamed:
        return (await agent.run("x" * 100)).output
    async with agent.run_stream("x" * 100) as outcome:
        return await outcome.get_output()


@pytest.mark.parametrize("streamed", [False, True])
async def test_failures_last_as_long_as_told(provider: Provider, streamed: bool) -> None:
    with provider("back again") as server:
        server.fail(503, times=2)
        for _ in range(2):
            with pytest.raises(ModelHTTPError) as caught:
                await _go(server, streamed)
            assert caught.value.status_code == 503
        assert await _go(server, streamed) == "back again"
    assert server.statuses == [503, 503, 200]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_dropped_connection_is_an_error_and_then_over(provider: Provider, streamed: bool) -> None:
    with provider("back again") as server:
        server.drop()
        with pytest.raises(ModelAPIError):
            await _go(server, streamed)
        assert await _go(server, streamed) == "back again"
    assert server.statuses == [0, 200]


async def test_a_stream_can_break_in_the_middle(provider: Provider) -> None:
    with provider("a text of several pieces, long enough to be cut") as server:
        server.drop(after=3)
        pieces: list[str] = []
        with pytest.raises(ModelAPIError):
            async with Agent(server.model()).run_stream("go") as outcome:
                async for piece in outcome.stream_text(delta=True, debounce_by=None):
                    pieces.append(piece)
    assert pieces and "".join(pieces) != "a text of several pieces, long enough to be cut"


async def test_a_hanging_server_can_be_cancelled_and_lets_go(provider: Provider) -> None:
    with provider("back again") as server:
        server.hang()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_go(server, False), 0.2)
        assert await _go(server, False) == "back again"
    assert sorted(server.statuses) == [0, 200]


async def test_a_slow_answer_still_comes(provider: Provider) -> None:
    with provider("late") as server:
        server.hang(0.1)
        assert await _go(server, False) == "late"


def test_one_model_serves_several_event_loops(provider: Provider) -> None:
    with provider("again") as server:
        agent = Agent(server.model())
        assert [asyncio.run(agent.run("go")).output for _ in range(3)] == ["again"] * 3


@pytest.mark.usefixtures("sync_loop")
def test_run_sync_leaves_nothing_open(provider: Provider) -> None:
    with provider("again") as server:
        agent = Agent(server.model())
        assert [agent.run_sync("go").output for _ in range(2)] == ["again"] * 2
    gc.collect()


async def test_many_requests_at_once_are_all_answered(provider: Provider) -> None:
    with provider() as server:
        agent = Agent(server.model())
        await asyncio.gather(*(agent.run(f"number {number}") for number in range(20)))
    assert len(server.requests) == 20 and server.statuses == [200] * 20


async def test_anthropic_counts_tokens_on_request() -> None:
    with AnthropicServer() as server:
        messages: list[Any] = [ModelRequest(parts=[UserPromptPart(content="x" * 400)])]
        usage = await server.model().count_tokens(messages, {}, ModelRequestParameters())
    assert usage.input_tokens > 100 and server.prompt_tokens == []
