"""Long conversations over real HTTP: providers that refuse every broken pair accept every view."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_ai import Agent, BinaryContent, ModelRetry, RunContext, Tool
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
    TextPart,
    ThinkingPart,
)
from pydantic_ai.usage import UsageLimits

from context_compiler import View
from tests.support.agents import WAYS, Notes, compiler
from tests.support.anthropic_server import AnthropicServer
from tests.support.histories import answer, assistant, call, exchange, histories, long_history, prose, user
from tests.support.openai_server import OpenAIServer
from tests.support.parts import PNG

SERVERS: dict[str, tuple[Any, str]] = {
    "openai": (OpenAIServer, "gpt-4o"),
    "anthropic": (AnthropicServer, "claude-sonnet-4-6"),
}
NO_LIMIT = UsageLimits(request_limit=None)


def look(path: str) -> str:
    return prose(sum(map(ord, path)), 60)


async def search(ctx: RunContext[None], query: str) -> str:
    if ctx.retry == 0 and "3" in query:
        raise ModelRetry("ask for something else")
    return prose(len(query), 30)


def picture() -> Any:
    return [BinaryContent(PNG.data, media_type="image/png"), "a small picture"]


@cache
def tools() -> list[Tool[Any]]:
    """The tools of all agents; making the schemas of their arguments takes as long as a request."""
    return [Tool(look), Tool(search), Tool(picture)]


class Talk:
    """An agent with tools that talks to one server in turns of several steps, some with calls at once."""

    def __init__(self, server: Any, name: str, **wanted: Any) -> None:
        self.views, self.errors = list[View](), list[Exception]()
        options = {"budget": 1_500, "on_view": self.views.append, "on_error": self.errors.append, **wanted}
        self.ours = compiler(Notes(), **options)
        self.agent = Agent(
            server.model(name),
            tools=tools(),
            capabilities=[self.ours],
            instructions="Be brief.",
            retries=2,
        )
        self.messages: list[ModelMessage] = []

    async def turn(self, way: str, number: int) -> None:
        prompt = f"Question {number}: {prose(number, 40)}"
        done = await WAYS[way](self.agent, prompt, message_history=self.messages, usage_limits=NO_LIMIT)
        self.messages = done.messages


def script() -> Any:
    """Turns of zero to four steps, for as long as anybody asks."""
    count = [0]

    def step(body: Any) -> Any:
        count[0] += 1
        number = count[0]
        calls = [("look", {"path": f"src/file_{number}.py"}), ("search", {"query": f"what {number}"})]
        if number % 5 == 0:
            return prose(number, 50)
        if number % 7 == 0:
            return [*calls, ("picture", {})]
        return calls if number % 3 == 0 else calls[number % 2 :][:1]

    return step


WISHES: list[dict[str, Any]] = [
    {},
    {"tool_history": "drop"},
    {"tool_history": "render"},
    {"inject": "system"},
    {"inject": "compaction"},
]


@pytest.mark.parametrize("provider", SERVERS)
@pytest.mark.parametrize(
    "wanted", [WISHES[0], *(pytest.param(wish, marks=pytest.mark.slow) for wish in WISHES[1:])], ids=str
)
async def test_a_conversation_with_tools_is_accepted_throughout(provider: str, wanted: dict[str, Any]) -> None:
    kind, name = SERVERS[provider]
    with kind(script()) as server:
        talk = Talk(server, name, **wanted)
        for number in range(3):
            await talk.turn("run" if number % 2 else "run_stream", number)
        assert set(server.statuses) == {200} and not server.refusals
    assert {"compiled", "cycle"} <= {view.status for view in talk.views}
    assert {type(error).__name__ for error in talk.errors} <= {"BudgetError"}


@pytest.mark.parametrize(("provider", "budget"), [("openai", 600), ("anthropic", 900)])
async def test_a_very_long_conversation_at_small_budgets(provider: str, budget: int) -> None:
    kind, name = SERVERS[provider]
    with kind(script()) as server:
        talk = Talk(server, name, budget=budget)
        for number in range(10):
            await talk.turn("run" if number % 2 else "run_stream", number)
        assert set(server.statuses) == {200} and len(server.statuses) > 36
    assert {type(error).__name__ for error in talk.errors} <= {"BudgetError"}


NATIVE = {"tool_name": "web_search", "tool_call_id": "n1", "provider_name": "anthropic"}
BROKEN: dict[str, list[ModelMessage]] = {
    "a call that nobody answered": [user("look"), assistant(call("look", "a", path="x")), user("well?")],
    "an answer to no call": [user("look"), assistant("I will"), user(answer("a"), "well?")],
    "an answer twice": [
        user("look"),
        assistant(call("look", "a", path="x")),
        user(answer("a"), answer("a")),
        assistant("so"),
    ],
    "half of two calls": [
        user("look"),
        assistant(call("look", "a", path="x"), call("look", "b", path="y")),
        user(answer("a")),
        assistant("so"),
    ],
    "an answer two turns late": [
        user("look"),
        assistant(call("look", "a", path="x")),
        user("first something else"),
        assistant("as you like"),
        user(answer("a"), "and now?"),
        assistant("so"),
    ],
    "a response first": [assistant("hello"), user("hi"), assistant("ho")],
    "a native return without its call": [
        user("search"),
        ModelResponse(parts=[NativeToolReturnPart(content=[], **NATIVE), TextPart("found")]),
    ],
    "a native call without its return": [
        user("search"),
        ModelResponse(parts=[NativeToolCallPart(args={"query": "x"}, **NATIVE), TextPart("found")]),
    ],
    "thinking alone": [
        user("think"),
        ModelResponse(parts=[ThinkingPart("hm", signature="c2ln", provider_name="anthropic")]),
    ],
    "an id that is used again": [user("look"), *exchange(1), *exchange(1), assistant("so")],
}


ANYWAY = {
    ("openai", "an answer two turns late"),
    ("anthropic", "an answer two turns late"),
    ("anthropic", "an id that is used again"),
    ("anthropic", "thinking alone"),
}
"""Refused with us as without us as long as these turns are not cut: what was said is neither moved nor renamed."""


@pytest.mark.parametrize(
    "where", ["before", *(pytest.param(position, marks=pytest.mark.slow) for position in ("alone", "after"))]
)
@pytest.mark.parametrize("provider", SERVERS)
async def test_a_broken_history_is_accepted(provider: str, where: str) -> None:
    kind, name = SERVERS[provider]
    past = long_history(8)[:-1]
    for case, broken in BROKEN.items():
        if (where != "before" or case == "thinking alone") and (provider, case) in ANYWAY:
            continue
        history = {"alone": broken, "before": [*broken, *past], "after": [*past, *broken]}[where]
        with kind([[("look", {"path": "z"})], "fine"]) as server:
            talk = Talk(server, name)
            talk.messages = history
            await talk.turn("run", 1)
            assert server.statuses == [200, 200], (case, server.refusals)
        assert not talk.errors, case
        assert talk.views[0].status in (("raw", "mended") if where == "alone" else ("compiled",))


@pytest.mark.parametrize("provider", SERVERS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_any_history_is_accepted_at_any_budget(provider: str, data: st.DataObject, sync_loop: Any) -> None:
    kind, name = SERVERS[provider]
    history = data.draw(histories(wire=True, ends="prompt"))
    budget = data.draw(st.integers(300, 4_000))
    with kind([[("look", {"path": "z"})], "fine"]) as server:
        talk = Talk(server, name, budget=budget)
        done = sync_loop.run_until_complete(WAYS["run"](talk.agent, "and now?", message_history=history))
        assert server.statuses == [200, 200], server.refusals
    assert done.output == "fine"
