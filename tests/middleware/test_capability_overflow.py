"""The provider says that the context is too long: tried once more with less, over real HTTP, plain and streamed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import AgentInfo
from pydantic_ai.usage import UsageLimits

from context_compiler import MemoryStore, View
from context_compiler.middleware.refusals import is_overflow
from tests.recall.test_blocks import past
from tests.support.agents import WAYS, Notes, Talker, compiler, unstamped
from tests.support.anthropic_server import AnthropicServer
from tests.support.builders import answer, assistant, call, exchange, user
from tests.support.histories import long_history, prose
from tests.support.openai_server import OpenAIServer

SERVERS: dict[str, tuple[Any, str]] = {
    "openai": (OpenAIServer, "gpt-4o"),
    "anthropic": (AnthropicServer, "claude-sonnet-4-6"),
}
PAST = long_history(30)
"""About 10,000 tokens as the servers count them."""


def look(path: str) -> str:
    return prose(len(path), 30)


class Overflowing:
    """One agent whose provider refuses what is longer than `window`, and the compiler does not know it."""

    def __init__(self, server: Any, name: str, *, notes: Notes | None = None, **wanted: Any) -> None:
        self.server, self.errors, self.views = server, list[Exception](), list[View]()
        given: dict[str, Any] = {"budget": None, "trigger": 1.0, "on_error": self.errors.append}
        self.ours = compiler(notes, **{**given, "on_view": self.views.append, **wanted})
        self.agent = Agent(server.model(name, profile={"context_window": None}), tools=[look], capabilities=[self.ours])

    async def ask(self, way: str, history: Any = PAST, **given: Any) -> Any:
        return await WAYS[way](self.agent, "and now?", message_history=history, **given)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("provider", SERVERS)
async def test_a_raw_history_that_is_too_long_is_retried_with_less(provider: str, way: str) -> None:
    kind, name = SERVERS[provider]
    with kind("fine", window=7_000) as server:
        talk = Overflowing(server, name)
        done = await talk.ask(way, usage_limits=UsageLimits(request_limit=1))
        assert server.statuses == [400, 200] and done.requests == 1 and not talk.errors
        assert [view.status for view in talk.views] == ["raw", "compiled"]
        assert all(kept is original for kept, original in zip(done.messages, PAST, strict=False))
        more = await talk.ask(way, done.messages)
        assert server.statuses == [400, 200, 200], "what was learnt holds in the next run"
        assert more.requests == 1 and talk.views[-1].status == "cycle"


@pytest.mark.parametrize("way", ["run", "run_stream"])
@pytest.mark.parametrize("provider", SERVERS)
async def test_a_view_that_is_too_long_is_retried_with_less(provider: str, way: str) -> None:
    kind, name = SERVERS[provider]
    notes = Notes()
    with kind("fine", window=1_900) as server:
        talk = Overflowing(server, name, notes=notes, budget=7_000)
        await talk.ask(way, long_history(45))
        assert server.statuses == [400, 200] and not talk.errors
        first, second = (view.status for view in talk.views)
        assert first == "compiled" and second in ("compiled", "cycle") and notes.asked <= 2
        assert talk.views[1].budget <= 0.7 * talk.views[0].budget


@pytest.mark.parametrize("way", ["run", "run_stream", "iter and stream"])
@pytest.mark.parametrize("provider", SERVERS)
async def test_a_second_refusal_is_raised(provider: str, way: str) -> None:
    kind, name = SERVERS[provider]
    with kind("fine", window=100) as server:
        talk = Overflowing(server, name)
        with pytest.raises(ModelHTTPError) as failure:
            await talk.ask(way)
        assert is_overflow(failure.value)
        assert server.statuses == [400, 400]


@pytest.mark.parametrize("provider", SERVERS)
async def test_the_smaller_size_holds_for_the_rest_of_cycle_and_run(provider: str) -> None:
    kind, name = SERVERS[provider]
    steps = iter([[("look", {"path": f"src/{'x' * number}.py"})] for number in range(40)])
    with kind(lambda body: next(steps, "fine"), window=9_500) as server:
        talk = Overflowing(server, name)
        await talk.ask("run", usage_limits=UsageLimits(request_limit=None))
        assert server.statuses == [400] + [200] * 41
        assert max(server.prompt_tokens) <= 9_500
        first, rest = talk.views[0].record, [view.record for view in talk.views[1:]]
        assert first and all(record and record.tokens_sent <= 0.7 * first.tokens_sent for record in rest)


async def test_the_smaller_size_holds_for_a_cycle_even_if_only_its_recall_block_was_cut() -> None:
    window, refused = 10_000, 0

    def answer(messages: list[ModelMessage], info: AgentInfo) -> str | ModelHTTPError:
        nonlocal refused
        if talker.last.tokens <= window:
            return "fine"
        refused += 1
        return ModelHTTPError(400, "m", body={"code": "context_length_exceeded"})

    def question(number: int) -> str:
        return f"What is {', '.join(f'at item {item}' for item in range(number, number + 24, 3))}?"

    talker, views = Talker(answer), list[View]()
    ours = compiler(budget=4_000, trigger=1.0, recall=1.0, store=MemoryStore(), on_view=views.append)
    agent, history = Agent(talker.model, capabilities=[ours]), past(60)
    for number in (30, 40):
        history = (await WAYS["run"](agent, question(number), message_history=history)).messages
    window = 2_900
    for number in (10, 20, 35):
        history = (await WAYS["run"](agent, question(number), message_history=history)).messages
    assert [view.status for view in views] == ["compiled", *["cycle"] * 5], "nothing but the block needed to be cut"
    assert refused == 1, "the next run knows it from the record"
    assert all(0 < view.ledger["tokens"]["recall"] < 1_000 for view in views[3:])


@pytest.mark.parametrize("provider", SERVERS)
async def test_any_other_refusal_is_raised(provider: str) -> None:
    kind, name = SERVERS[provider]
    with kind("fine") as server:
        server.fail(400)
        talk = Overflowing(server, name)
        with pytest.raises(ModelHTTPError):
            await talk.ask("run")
        assert server.statuses == [400] and [view.status for view in talk.views] == ["raw"]


@pytest.mark.parametrize("way", ["run", "run_stream"])
async def test_nothing_is_retried_after_the_first_token(way: str) -> None:
    with OpenAIServer("fine " * 50) as server:
        server.drop(after=3)
        talk = Overflowing(server, "gpt-4o")
        if way == "run":
            await talk.ask(way)
            return
        with pytest.raises(Exception, match=r"(?i)peer closed|incomplete|connection"):
            await talk.ask(way)
        assert len(server.requests) == 1


@pytest.mark.parametrize("way", ["run", "run_stream"])
async def test_a_fallback_model_is_retried_if_one_of_its_models_reports_an_overflow(way: str) -> None:
    with OpenAIServer("fine", window=7_000) as server, OpenAIServer("fine", window=7_000) as other:
        talk = Overflowing(server, "gpt-4o")
        group = FallbackModel(
            server.model("gpt-4o", profile={"context_window": None}),
            other.model("gpt-4o", profile={"context_window": None}),
        )
        agent = Agent(group, tools=[look], capabilities=[talk.ours])
        done = await WAYS[way](agent, "and now?", message_history=PAST)
        assert done.output == "fine"
        assert server.statuses == [400, 200] and other.statuses == [400]


async def test_a_retry_is_the_request_that_the_host_would_send() -> None:
    """A view without tool exchanges has no two requests in a row, and is sent as it is."""
    history = [*long_history(4), user("look"), *exchange(1), user("and then?"), *exchange(2), assistant("done")]
    script = [ModelHTTPError(400, "m", body={"code": "context_length_exceeded"}), "fine"]
    talker, views = Talker(script), list[View]()
    ours = compiler(budget=20_000, tool_history="drop", every_turn=True, recent_turns=3, on_view=views.append)
    await WAYS["run"](Agent(talker.model, tools=[look], capabilities=[ours]), "and now?", message_history=history)
    kinds = [[message.kind for message in view.messages] for view in views]
    assert kinds == [[message.kind for message in sent.messages] for sent in talker.sent] and len(kinds) == 2
    assert all(kind != other for sent in talker.sent for kind, other in pairwise(m.kind for m in sent.messages))


async def test_dropping_tool_exchanges_leaves_no_two_responses_in_a_row() -> None:
    looks = [user("look"), assistant("Let me see.", call("look", "c1")), user(answer("c1")), assistant("it is blue")]
    history = [*long_history(4), *looks, user("and then?"), *exchange(2), assistant("done")]
    talker = Talker(["fine"])
    ours = compiler(budget=20_000, tool_history="drop", every_turn=True, recent_turns=3)
    await WAYS["run"](Agent(talker.model, tools=[look], capabilities=[ours]), "and now?", message_history=history)
    assert all(kind != other for kind, other in pairwise(m.kind for m in talker.last.messages))
    assert "Let me see." in talker.last.text and "it is blue" in talker.last.text


async def test_a_dry_run_is_not_retried() -> None:
    with OpenAIServer("fine", window=7_000) as server:
        talk = Overflowing(server, "gpt-4o", dry_run=True)
        with pytest.raises(ModelHTTPError):
            await talk.ask("run")
        assert server.statuses == [400]


async def test_a_compile_that_is_too_long_for_its_own_model_is_a_failure_like_any_other() -> None:
    """The run's own model writes the notes: its refusal must not be taken for one of the request itself."""

    def step(body: Any) -> Any:
        if "EXTRACTION TEMPLATE" in str(body):
            raise server.overflow(9_000, 5_000)
        return "fine"

    with OpenAIServer(step) as server:
        talk = Overflowing(server, "gpt-4o", budget=4_000, model=None)
        done = await talk.ask("run", long_history(60))
        assert done.output == "fine"
        assert [type(error).__name__ for error in talk.errors] == ["CompileError"]
        assert {*server.statuses[:-1]} == {400} and server.statuses[-1] == 200
        assert [view.status for view in talk.views] == ["fallback"]
        *halves, sent = map(str, server.requests)
        assert all("EXTRACTION TEMPLATE" in half for half in halves) and "EXTRACTION TEMPLATE" not in sent


async def test_a_known_window_is_respected_without_a_refusal() -> None:
    with OpenAIServer("fine", window=6_000, count=lambda text: len(text) // 4) as server:
        talk = Overflowing(server, "gpt-4o")
        agent = Agent(server.model("gpt-4o", profile={"context_window": 6_000}), capabilities=[talk.ours])
        await WAYS["run"](agent, "and now?", message_history=PAST)
        assert server.statuses == [200] and talk.views[0].budget <= 4_800


async def test_the_host_stores_the_same_with_and_without_a_retry() -> None:
    with OpenAIServer("fine", window=7_000) as server:
        withal = await Overflowing(server, "gpt-4o").ask("run")
    with OpenAIServer("fine") as server:
        without = await WAYS["run"](Agent(server.model("gpt-4o"), tools=[look]), "and now?", message_history=PAST)
    for done in (withal, without):
        done.messages[-1].failed_attempts = []  # the host says itself that there was another attempt
        done.messages[-1].provider_details = done.messages[-1].provider_url = None
    assert unstamped(withal.messages) == unstamped(without.messages)


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (400, {"error": {"message": "prompt is too long: 9 tokens > 8 maximum"}}, True),
        (400, {"code": "context_length_exceeded"}, True),
        (413, {"message": "Input is too long for requested model."}, True),
        (413, {"error": {"type": "request_too_large", "message": "Request exceeds the maximum size"}}, True),
        (413, None, True),
        (429, {"error": {"message": "Request too large, please reduce your message size"}}, False),
        (400, {"message": "The input token count (9) exceeds the maximum number of tokens allowed (8)."}, True),
        (400, {"error": "This model's maximum prompt length is 8 but the request contains 9 tokens."}, True),
        (400, {"error": {"message": "Your request exceeded model token limit: 8"}}, True),
        (400, {"error": {"message": "invalid params, context window exceeds limit"}}, True),
        (400, {"error": {"message": "Your input exceeds the context window of this model."}}, True),
        (400, {"error": {"message": "the request exceeds the available context size"}}, True),
        (400, {"error": "The number of tokens to keep is greater than the context length"}, True),
        (400, {"error": {"message": "max_tokens exceeds the limit of 8"}}, False),
        (400, {"message": "messages must alternate"}, False),
        (503, {"code": "context_length_exceeded"}, False),
        (400, None, False),
    ],
)
def test_an_overflow_is_recognised_by_its_message(status: int, body: Any, expected: bool) -> None:
    error = ModelHTTPError(status, "some-model", body=body)
    assert is_overflow(error) is expected
    assert is_overflow(ExceptionGroup("all failed", [ValueError("x"), error])) is expected
    assert not is_overflow(ValueError("context_length_exceeded"))


async def test_any_other_failure_of_the_model_is_raised_unchanged() -> None:
    for script in (ValueError("bug"), ModelHTTPError(503, "m", body="down")):
        agent: Agent[None, str] = Agent(Talker(script).model, capabilities=[compiler(budget=2_000)])
        with pytest.raises(type(script)):
            await agent.run("hello")


async def test_a_stated_window_replaces_the_guess_of_an_earlier_refusal() -> None:
    """The guess was a share of a larger budget, and would be taken of the window again."""
    vague = ModelHTTPError(400, "talker", body={"code": "context_length_exceeded"})
    stated = ModelHTTPError(400, "talker", body={"message": "This model's maximum context length is 900 tokens."})
    views = list[View]()
    talker = Talker(["Fine.", "Fine.", vague, "Fine.", stated, "Done."])
    agent = Agent(talker.model, capabilities=[compiler(budget=8_000, on_view=views.append)])
    history: list[ModelMessage] = []
    for turn, size in enumerate((600, 600, 600, 20)):
        history = (await agent.run(prose(turn, size), message_history=history, conversation_id="c")).all_messages()
    assert [view.status for view in views] == ["raw", "raw", "raw", "compiled", "cycle", "compiled"]
    assert 900 * 0.5 < views[-1].budget < 900
