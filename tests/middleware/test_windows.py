"""Context windows that the host does not know: stated by a refusal, or by a server on this machine that is asked."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.usage import UsageLimits

from context_compiler import View
from context_compiler.errors import SettingsError
from context_compiler.middleware.windows import LEAST, WINDOWS, Served
from context_compiler.tokens import TokenCounter
from tests.support.agents import WAYS, Talker, compiler, run
from tests.support.histories import long_history, prose
from tests.support.loopback import Refusal
from tests.support.openai_server import OpenAIServer

exact = TokenCounter()
PAST = long_history(30)


class LlamaServer(OpenAIServer):
    """A local server with a tokenizer of its own, which says what it counted and what it takes."""

    def __init__(self, window: int, *, factor: float = 1.2, **given: Any) -> None:
        super().__init__("fine " * 30, window=window, count=lambda text: int(factor * exact.text(text)), **given)

    def overflow(self, tokens: int, window: int) -> Refusal:
        text = f"request ({tokens} tokens) exceeds the available context size ({window} tokens), try increasing it"
        return Refusal(text, kind="exceed_context_size_error", n_prompt_tokens=tokens, n_ctx=window)


def unknown(server: OpenAIServer, name: str = "kiln-7b") -> Any:
    """A model whose window the host does not know."""
    return server.model(name, profile={"context_window": None})


async def talk(server: OpenAIServer, turns: int, **options: Any) -> list[View]:
    """A conversation, each turn with another compiler as in another part of the program."""
    views, history = list[View](), list(PAST)
    for turn in range(turns):
        ours = compiler(**{"budget": None, **options}, on_view=views.append)
        agent = Agent(unknown(server), capabilities=[ours])
        history = (await run(agent, f"Question {turn}: " + prose(turn, 30), message_history=history)).messages
    return views


@pytest.mark.parametrize("window", [1_024, 2_048, 3_072])
@pytest.mark.parametrize("factor", [1.0, 1.3])
async def test_a_refusal_states_the_window_and_no_later_request_is_refused(window: int, factor: float) -> None:
    with LlamaServer(window, factor=factor) as server:
        await talk(server, 4)
        assert server.statuses == [400] + [200] * 4


@pytest.mark.parametrize("way", WAYS)
async def test_the_retry_leaves_room_for_the_answer(way: str) -> None:
    with LlamaServer(4_096) as server:
        agent = Agent(unknown(server), capabilities=[compiler(budget=None)], model_settings={"max_tokens": 2_000})
        await WAYS[way](agent, "and now?", message_history=PAST)
        assert server.statuses == [400, 200] and server.prompt_tokens[0] <= 4_096 - 2_000


async def test_each_request_of_a_run_may_be_retried_once() -> None:
    script = [ModelHTTPError(400, "m", body={"code": "context_length_exceeded"}), [("look", {"path": "a"})]]
    talker = Talker([*script, ModelHTTPError(400, "m", body={"code": "context_length_exceeded"}), "fine"])
    agent = Agent(talker.model, tools=[look], capabilities=[compiler(budget=8_000)])
    assert (await run(agent, "and now?", message_history=PAST)).output == "fine"
    assert all(second.tokens < first.tokens for first, second in pairwise(talker.sent[:2]))


def look(path: str) -> str:
    return prose(len(path), 600)


async def test_a_window_is_known_for_its_address_and_model_alone() -> None:
    with LlamaServer(2_048) as server, LlamaServer(2_048) as other:
        await talk(server, 2)
        await talk(other, 1)
        assert (server.statuses, other.statuses) == ([400, 200, 200], [400, 200])
        ours = compiler(budget=None)
        await run(Agent(unknown(server, "vase-7b"), capabilities=[ours]), "and now?", message_history=PAST)
        assert server.statuses[3:] == [400, 200]


async def test_a_stated_window_is_never_believed_below_the_floor() -> None:
    WINDOWS.learn(Served("http://localhost", "m"), 1)
    assert WINDOWS.of(Served("http://localhost", "m")) == LEAST
    script = ["fine", ModelHTTPError(400, "m", body={"message": "maximum context length is 20 tokens"}), "fine"]
    talker, views = Talker(script), list[View]()
    agent = Agent(talker.model, capabilities=[compiler(budget=8_000, on_view=views.append)])
    for _ in range(2):
        await run(agent, "and now?", message_history=PAST)
    assert all(view.budget > 1_000 for view in views)


FACTS: dict[str, dict[str, Any]] = {
    "llama.cpp": {"/props": {"default_generation_settings": {"n_ctx": 2_048}}},
    "vllm": {"/v1/models": {"data": [{"id": "other", "max_model_len": 99}, {"id": "kiln-7b", "max_model_len": 2_048}]}},
    "one model": {"/v1/models": {"data": [{"id": "a file", "meta": {"n_ctx": 2_048, "n_ctx_train": 131_072}}]}},
}


@pytest.mark.parametrize("kind", FACTS)
async def test_a_server_on_this_machine_is_asked_once_for_its_window(kind: str) -> None:
    with LlamaServer(2_048, facts=FACTS[kind]) as server:
        views = await talk(server, 4)
        assert server.statuses == [200] * 4 and len(server.asked) <= 2
        assert all(view.budget <= 0.8 * 2_048 for view in views)


@pytest.mark.parametrize(
    "answer",
    [
        {"default_generation_settings": {"n_ctx": "2048"}},
        {"default_generation_settings": {"n_ctx": 3}},
        {"default_generation_settings": [2_048]},
        {"default_generation_settings": {"n_ctx_train": 2_048}},
        {"n_ctx": True},
    ],
)
async def test_an_answer_that_names_no_window_changes_nothing(answer: dict[str, Any]) -> None:
    with LlamaServer(64_000, facts={"/props": answer, "/v1/models": {"data": "none"}}) as server:
        views = await talk(server, 1)
        assert [view.budget for view in views] == [32_000]


async def test_a_server_is_not_asked_if_that_is_switched_off_or_the_window_is_known() -> None:
    with LlamaServer(64_000, facts=FACTS["llama.cpp"]) as server:
        await talk(server, 1, probe=False)
        await talk(server, 1, window=64_000)
        agent = Agent(server.model("gpt-4o", profile={"context_window": 64_000}), capabilities=[compiler()])
        await run(agent, "and now?", message_history=PAST)
        assert not server.asked
    with pytest.raises(SettingsError, match="probe"):
        compiler(probe="no")


@pytest.mark.parametrize(
    "address",
    [
        "http://192.0.2.1/v1",
        "https://127.0.0.1/v1",
        "http://localhost.example.com/v1",
        "http://127.0.0.1.example.com/v1",
        "http://0.0.0.0/v1",
        "ftp://127.0.0.1/v1",
        "not an address",
        "",
    ],
)
async def test_nothing_but_this_machine_is_asked(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(*_: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(asyncio, "open_connection", connect)
    await WINDOWS.ask(Served(address, "m"))
    assert WINDOWS.of(Served(address, "m")) is None


async def test_a_server_that_does_not_answer_is_waited_for_at_most_a_second() -> None:
    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(never, "127.0.0.1", 0) as server:
        served = Served(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", "m")
        async with asyncio.timeout(5):
            await WINDOWS.ask(served)
            await WINDOWS.ask(served)
        assert WINDOWS.of(served) is None


@pytest.mark.parametrize(("limit", "budget"), [(None, 8_000), (5_000, 5_000), (50_000, 8_000)])
async def test_the_runs_limit_of_a_request_is_a_ceiling_of_the_budget(limit: int | None, budget: int) -> None:
    talker, views = Talker("fine"), list[View]()
    agent = Agent(talker.model, capabilities=[compiler(budget=8_000, on_view=views.append)])
    limits = UsageLimits(per_request_input_tokens_limit=limit)
    await run(agent, "and now?", message_history=PAST, usage_limits=limits)
    assert [view.budget for view in views] == [budget] and talker.last.tokens <= budget
