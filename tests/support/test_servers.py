"""The servers on loopback refuse what OpenAI and Anthropic refuse, and otherwise a normal agent runs on them."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError
from pydantic_ai.messages import ModelResponse, ToolCallPart

from tests.support.anthropic_server import AnthropicServer
from tests.support.loopback import Answer, Refusal
from tests.support.openai_server import OpenAIServer
from tests.support.posting import post, user

pytestmark = pytest.mark.slow  # these test the tools of the tests


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


async def test_an_error_of_a_script_is_raised_at_the_end(provider: Provider) -> None:
    with pytest.raises(AssertionError, match="request 2 came after the script's 1 steps"):
        with provider(["only one"]) as server:
            agent = Agent(server.model())
            await agent.run("go")
            with pytest.raises(ModelAPIError):
                await agent.run("again")


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_host_recognises_an_overflow(provider: Provider, streamed: bool) -> None:
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
async def test_failures_last_for_the_given_number_of_requests(provider: Provider, streamed: bool) -> None:
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


async def test_a_hanging_request_can_be_cancelled_and_the_next_is_answered(provider: Provider) -> None:
    with provider("back again") as server:
        server.hang()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_go(server, False), 0.2)
        assert await _go(server, False) == "back again"
    assert sorted(server.statuses) == [0, 200]


async def test_a_slow_answer_still_arrives(provider: Provider) -> None:
    with provider("late") as server:
        server.hang(0.1)
        assert await _go(server, False) == "late"


def test_one_model_works_in_several_event_loops(provider: Provider) -> None:
    with provider("again") as server:
        agent = Agent(server.model())
        assert [asyncio.run(agent.run("go")).output for _ in range(3)] == ["again"] * 3


@pytest.mark.usefixtures("sync_loop")
def test_run_sync_leaves_nothing_open(provider: Provider) -> None:
    with provider("again") as server:
        agent = Agent(server.model())
        assert [agent.run_sync("go").output for _ in range(2)] == ["again"] * 2
    gc.collect()


async def test_many_concurrent_requests_are_all_answered(provider: Provider) -> None:
    with provider() as server:
        agent = Agent(server.model())
        await asyncio.gather(*(agent.run(f"number {number}") for number in range(20)))
    assert len(server.requests) == 20 and server.statuses == [200] * 20
