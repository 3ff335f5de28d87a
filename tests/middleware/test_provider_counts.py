"""`counter="provider"`: a provider on loopback counts what is about to be sent, and the first request is right too."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent, models
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.usage import UsageLimits

from context_compiler import ContextCompiler, Money, View, build_compiling_history_processor, compile_view
from context_compiler.errors import SettingsError
from context_compiler.tokens import TokenCounter
from tests.support.agents import NOTES, Notes, Talker
from tests.support.anthropic_server import AnthropicServer
from tests.support.bedrock_server import BedrockServer
from tests.support.google_server import GoogleServer
from tests.support.histories import long_history, prose
from tests.support.loopback import Refusal
from tests.support.responses_server import ResponsesServer

OURS = TokenCounter()
BUDGET = 3_000
FITTING = 8
"""Turns of a history that fits by our count, and not by that of the servers here."""


def look(path: str) -> str:
    """Read a file."""
    return prose(len(path), 80)


def dear(text: str) -> int:
    """A tokenizer that takes 1.7 times as many tokens as o200k, and 300 for the framing."""
    return int(1.7 * OURS.text(text)) + 300


SERVERS: dict[str, tuple[Any, str, str]] = {
    "anthropic": (AnthropicServer, "claude-sonnet-4-6", "/count_tokens"),
    "openai": (ResponsesServer, "gpt-5", "/input_tokens"),
}


class Seen:
    """A server, an agent that talks to it, and what was counted and sent."""

    def __init__(self, server: Any, name: str, **wanted: Any) -> None:
        self.server, self.views, self.errors = server, list[View](), list[Exception]()
        defaults: dict[str, Any] = {"model": "none", "store": None, "system": None, "budget": BUDGET}
        told = {"counter": "provider", "on_view": self.views.append, "on_error": self.errors.append}
        self.compiler = ContextCompiler(**defaults | told | wanted)
        self.agent = Agent(
            server.model(name), tools=[look], capabilities=[self.compiler], instructions="You are a patient clerk."
        )

    @property
    def counts(self) -> int:
        """How often the server was asked to count."""
        return len(self.server.requests) - len(self.server.prompt_tokens)

    @property
    def off(self) -> list[float]:
        """Tokens on the record against the server's own, of each request."""
        records = [view.record for view in self.views if view.record is not None]
        pairs = zip(records, self.server.prompt_tokens, strict=True)
        return [record.tokens_sent / truth - 1 for record, truth in pairs]


@pytest.mark.parametrize("turns", [1, FITTING, 60])
@pytest.mark.parametrize("provider", SERVERS)
async def test_the_first_request_of_a_process_is_counted_right_and_within_its_budget(provider: str, turns: int) -> None:
    kind, name, _ = SERVERS[provider]
    with kind("done", count=dear) as server:
        seen = Seen(server, name, trigger=1.0)
        result = await seen.agent.run("and now?", message_history=long_history(turns))
    assert seen.off == [0.0] and server.prompt_tokens[0] <= BUDGET and not seen.errors
    assert 1 <= seen.counts <= 2
    assert result.usage.requests == 1 and result.usage.input_tokens == server.prompt_tokens[0]


@pytest.mark.parametrize("turns", [1, FITTING, 60])
@pytest.mark.parametrize("cloud", [False, True])
async def test_google_counts_instructions_and_tools_too(cloud: bool, turns: int) -> None:
    pytest.importorskip("google.genai")
    with GoogleServer("done", count=dear, cloud=cloud) as server:
        seen = Seen(server, "gemini-2.5-pro", trigger=1.0)
        await seen.agent.run("and now?", message_history=long_history(turns))
    assert seen.off == [pytest.approx(0.0, abs=0.005)] and server.prompt_tokens[0] <= BUDGET
    assert not seen.errors and 1 <= seen.counts <= 2
    assert ("patient clerk" in str(server.requests[0]["contents"])) is not cloud
    assert "patient clerk" not in str(server.requests[-1]["contents"])


@pytest.mark.parametrize("turns", [1, FITTING, 60])
async def test_bedrock_counts_the_first_request(turns: int) -> None:
    pytest.importorskip("boto3")
    with BedrockServer("done", count=dear) as server:
        seen = Seen(server, "us.anthropic.claude-sonnet-4-5-20250929-v1:0", trigger=1.0)
        await seen.agent.run("and now?", message_history=long_history(turns))
    assert seen.off == [0.0] and server.prompt_tokens[0] <= BUDGET
    assert not seen.errors and 1 <= seen.counts <= 2


@pytest.mark.parametrize("provider", SERVERS)
async def test_without_provider_counts_the_first_request_of_a_dense_tokenizer_exceeds_the_budget(provider: str) -> None:
    kind, name, _ = SERVERS[provider]
    with kind("done", count=dear) as server:
        seen = Seen(server, name, counter=None, trigger=1.0)
        await seen.agent.run("and now?", message_history=long_history(FITTING))
    assert server.prompt_tokens[0] > BUDGET and seen.off[0] < -0.1 and seen.counts == 0


async def test_a_budget_in_money_is_kept_by_the_count_of_the_provider() -> None:
    with AnthropicServer("done", count=dear) as server:
        seen = Seen(server, "claude-sonnet-4-6", trigger=1.0, budget=Money("0.009"))
        await seen.agent.run("and now?", message_history=long_history(60))
    assert BUDGET - 2 <= seen.views[0].budget <= BUDGET and server.prompt_tokens[0] <= BUDGET and seen.off == [0.0]


async def test_the_provider_counts_once_per_compile_and_not_in_between() -> None:
    with AnthropicServer(lambda body: prose(len(str(body)), 150), count=dear) as server:
        seen, history = Seen(server, "claude-sonnet-4-6", budget=9_000, trigger=0.8), list[ModelMessage]()
        for turn in range(20):
            done = await seen.agent.run(f"Question {turn}: {prose(turn, 150)}", message_history=history)
            history = done.all_messages()
    advances = sum(view.status == "compiled" for view in seen.views)
    assert 2 <= advances < len(seen.views) // 2 and advances < seen.counts <= advances + 2
    counted = [off for off, view in zip(seen.off, seen.views, strict=True) if view.status == "compiled"]
    assert max(server.prompt_tokens) <= 9_000 and set(counted) == {0.0} and seen.off[0] == 0.0


@pytest.mark.parametrize("budget, rate, framing", [(1_100, 1.3, 0), (1_500, 0.8, 346), (2_500, 1.7, 300)])
async def test_no_request_exceeds_its_budget_by_the_count_of_the_provider(
    budget: int, rate: float, framing: int
) -> None:
    steps = iter(range(1_000))

    def answer(body: Any) -> Any:
        step = next(steps)
        return prose(step, 20 + step % 7 * 9) if step % 3 else [("look", {"path": "a" * (step % 5 + 1)})]

    with AnthropicServer(answer, count=lambda text: int(rate * OURS.text(text)) + framing) as server:
        seen, history = Seen(server, "claude-sonnet-4-6", budget=budget, trigger=1.0), list[ModelMessage]()
        for turn in range(12):
            done = await seen.agent.run(f"Question {turn}: {prose(turn, 30)}", message_history=history)
            history = done.all_messages()
    assert max(server.prompt_tokens) <= budget and not seen.errors
    assert {view.status for view in seen.views} == {"raw", "compiled", "cycle"}
    assert "Question 11" in str(server.requests[-1]["messages"])


async def test_a_view_that_has_grown_over_the_budget_is_cut_back_whether_or_not_a_model_answers() -> None:
    rate = 1.1
    with AnthropicServer("done", count=lambda text: int(rate * OURS.text(text))) as server:
        seen = Seen(
            server, "claude-sonnet-4-6", budget=8_000, trigger=1.0, recall=0, model=Notes(ValueError("bug")).model
        )
        history = (await seen.agent.run("and now?", message_history=long_history(9))).all_messages()
        rate = 1.6
        await seen.agent.run(prose(1, 900), message_history=history)
    assert max(server.prompt_tokens) <= 8_000 and not seen.errors


async def test_fixed_overhead_of_a_provider_is_separated_from_its_tokens_per_text() -> None:
    """Taken for tokens, what is added would leave next to nothing of a small room."""
    question = f"Question: {prose(5, 20)}"
    options: dict[str, Any] = {"count": lambda text: int(2.5 * OURS.text(text)) + 300}  # pyright: ignore
    with AnthropicServer("done", **options) as server:
        await Seen(server, "claude-sonnet-4-6", counter=None).agent.run(question)
        budget = server.prompt_tokens[0] + 250
    with AnthropicServer([[("look", {"path": "a" * 40})], "done"], **options) as server:
        seen = Seen(server, "claude-sonnet-4-6", budget=budget, trigger=1.0)
        await seen.agent.run(question, message_history=long_history(4))
    assert max(server.prompt_tokens) <= budget and not seen.errors
    assert all(question in str(view.messages) for view in seen.views) and len(seen.views) == 2


async def test_requests_after_a_refusal_are_counted_even_if_they_are_small() -> None:
    steps = iter(range(9))

    def answer(body: Any) -> Any:
        if not (step := next(steps)):
            raise Refusal("prompt is too long: 9 tokens > 8 maximum")
        return [("look", {"path": "a" * step})] if step < 8 else "done"

    with AnthropicServer(answer, count=lambda text: OURS.text(text) + 6_000) as server:
        seen = Seen(server, "claude-sonnet-4-6", trigger=1.0, budget=20_000, recall=0)
        await seen.agent.run("and now?", message_history=long_history(60))
    refused, *later = server.prompt_tokens
    assert max(later) <= 0.7 * refused and len(later) == 8 and not seen.errors
    assert {view.status for view in seen.views} == {"compiled", "cycle"}


async def test_a_refused_request_is_cut_by_the_count_of_its_provider_once() -> None:
    refuses = iter([True, False])

    def answer(body: Any) -> Any:
        if next(refuses):
            raise Refusal("prompt is too long")
        return "done"

    with AnthropicServer(answer, count=dear) as server:
        seen = Seen(server, "claude-sonnet-4-6", budget=20_000)
        await seen.agent.run("and now?", message_history=long_history(2))
    refused, retried = server.prompt_tokens
    assert [view.status for view in seen.views] == ["raw", "compiled"] and not seen.errors
    assert 0.4 * refused < retried <= 0.7 * refused


async def test_a_smallest_view_within_the_budget_by_the_count_of_the_provider_is_accepted() -> None:
    with AnthropicServer("done", count=lambda text: OURS.text(text) // 4) as server:
        seen = Seen(server, "claude-sonnet-4-6", budget=130)
        await seen.agent.run(f"And now? {prose(1, 300)}", message_history=long_history(3))
    assert server.prompt_tokens[0] <= 130 and seen.views[0].status == "compiled"
    assert "lost its middle" in str(*seen.errors)


async def test_a_short_history_is_sent_whole_if_the_provider_counts_less_than_usual() -> None:
    budget = 900 + 140 * hasattr(models, "lookalike_note_announcement")  # a text of the host's beside the instructions
    with AnthropicServer("done", count=lambda text: OURS.text(text) // 2) as server:
        seen = Seen(server, "claude-sonnet-4-6", budget=budget, trigger=1.0)
        await seen.agent.run("and now?", message_history=long_history(2))
    assert 0.8 * budget < seen.views[0].record.tokens_exact <= budget  # pyright: ignore[reportOptionalMemberAccess]
    assert seen.views[0].status == "raw" and server.prompt_tokens[0] <= budget and seen.counts == 2


async def test_a_fallback_view_is_limited_by_the_ratio_of_its_cycle() -> None:
    def notes(number: int) -> str:
        if number > 1:
            raise ZeroDivisionError
        return NOTES

    rate = 2.5
    with AnthropicServer("done", count=lambda text: int(rate * OURS.text(text))) as server:
        seen = Seen(server, "claude-sonnet-4-6", budget=24_000, trigger=1.0, model=Notes(notes).model)
        history = (await seen.agent.run("and now?", message_history=long_history(180))).all_messages()
        rate = 1.0
        for turn in range(12):
            prompt = f"Question {turn}: {prose(turn, 180 if turn < 11 else 1_800)}"
            history = (await seen.agent.run(prompt, message_history=history)).all_messages()
    assert [view.status for view in seen.views] == ["compiled", *["cycle"] * 11, "fallback"]
    assert max(view.tokens_sent for view in seen.views) <= 24_000 and len(seen.errors) == 1


async def test_provider_counts_do_not_count_as_requests_or_tokens_of_limits() -> None:
    with AnthropicServer("done", count=dear) as server:
        seen = Seen(server, "claude-sonnet-4-6")
        limits = UsageLimits(request_limit=1, input_tokens_limit=BUDGET)
        await seen.agent.run("and now?", message_history=long_history(60), usage_limits=limits)
    assert seen.counts == 2 and server.statuses == [200, 200, 200]


@pytest.mark.parametrize("fault", ["status", "hang", "drop"])
async def test_a_provider_that_fails_to_count_is_reported_once_and_the_run_continues(fault: str) -> None:
    with AnthropicServer("done", count=dear) as server:
        seen = Seen(server, "claude-sonnet-4-6", timeout=0.3, trigger=1.0)
        {"status": lambda: server.fail(500), "hang": server.hang, "drop": server.drop}[fault]()
        history = (await seen.agent.run("and now?", message_history=long_history(60))).all_messages()
        await seen.agent.run("thanks", message_history=history)
    assert [type(error) for error in seen.errors] == [SettingsError] and seen.counts <= 1
    assert "claude-sonnet-4-6 did not count, so we do" in str(seen.errors[0])
    assert [view.status for view in seen.views] == ["compiled", "cycle"]


async def test_a_model_that_cannot_count_is_reported_once() -> None:
    errors = list[Exception]()
    made: dict[str, Any] = {"model": "none", "store": None, "system": None, "budget": 900}
    agent = Agent(
        Talker("done").model, capabilities=[ContextCompiler(counter="provider", on_error=errors.append, **made)]
    )
    for _ in range(2):
        assert (await agent.run("and now?", message_history=long_history(20))).output == "done"
    assert [type(error) for error in errors] == [SettingsError] and "FunctionModel" in str(errors[0])


async def test_a_history_processor_uses_the_local_counter_and_reports_it() -> None:
    errors = list[Exception]()
    processor = build_compiling_history_processor(
        "extractive", budget=900, store=None, system=None, counter="provider", on_error=errors.append
    )
    agent = Agent(Talker("done").model, capabilities=[ProcessHistory(processor)])
    assert (await agent.run("and now?", message_history=long_history(20))).output == "done"
    assert len(errors) == 1 and "does not see the whole request" in str(errors[0])


@pytest.mark.parametrize("given", ["o200k", "", "Provider"])
def test_another_value_of_counter_is_refused(given: Any) -> None:
    with pytest.raises(SettingsError, match="counter"):
        ContextCompiler(counter=given)


async def test_provider_counts_are_refused_without_an_agent() -> None:
    with pytest.raises(SettingsError, match="which only an agent"):
        await compile_view(long_history(3), counter="provider")  # pyright: ignore[reportArgumentType]


async def test_the_refusal_of_a_count_is_not_quoted_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    class Refusing(FunctionModel):
        async def count_tokens(self, messages: list[ModelMessage], *rest: Any) -> Any:
            raise ModelHTTPError(400, "kiln", body={"detail": [{"input": str(messages)}]})

    errors = list[Exception]()
    options: dict[str, Any] = {"counter": "provider", "model": "none", "store": None, "on_error": errors.append}
    ours = ContextCompiler(system=None, **options)
    model = Refusing(lambda messages, info: ModelResponse(parts=[TextPart("ok")]))
    await Agent(model, capabilities=[ours]).run("my password is hunter2")
    assert "ModelHTTPError" in caplog.text and "hunter2" not in caplog.text and "hunter2" not in str(errors)
    assert isinstance(errors[0].__cause__, ModelHTTPError)
