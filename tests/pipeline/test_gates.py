"""When a stage runs again: after a pause, because a gate is not met, or in a new attempt; and when it does not."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from context_compiler.errors import SettingsError
from context_compiler.pipeline import (
    Backoff,
    Event,
    FileRuns,
    Outcome,
    RunConfig,
    StageStatus,
    resume_pipeline,
    run_pipeline,
)
from context_compiler.pipeline.check import RETRY_POLICIES
from context_compiler.pipeline.config import PRESETS
from context_compiler.tokens.prices import Money
from tests.pipeline.playing import Heard, graph, no_wait, play
from tests.pipeline.resuming import half

OK, FAIL, RETRY = (
    Outcome(),
    Outcome(status=StageStatus.FAIL, failure_reason="broken"),
    Outcome(status=StageStatus.RETRY, failure_reason="busy"),
)


async def test_a_gate_sends_the_run_back_by_the_targets_in_their_order() -> None:
    def text(node: str, graph_attrs: str) -> str:
        return graph(f"a [goal_gate=true {node}]; b; c; start->b->c->a->done", attrs=graph_attrs)

    _, script = await play(text(", retry_target=b", "retry_target=c;"), {"a": [FAIL, OK]})
    assert script.seen == ["b", "c", "a", "b", "c", "a"]
    _, script = await play(text("", "retry_target=c;"), {"a": [FAIL, OK]})
    assert script.seen == ["b", "c", "a", "c", "a"]


async def test_a_gate_that_sent_the_run_back_runs_again_before_it_ends() -> None:
    text = graph(
        'g [goal_gate=true, retry_target=x]; x; start->g->x; x->done [condition="outcome=success"]; x->g [label=again]'
    )
    x = [OK, Outcome(status=StageStatus.PARTIAL_SUCCESS), OK]
    result, script = await play(text, {"g": [FAIL, OK], "x": x})
    assert result.ok and script.seen.count("g") == 2


LAST = 'digraph g { start [shape=Mdiamond]; a [prompt=a]; end [prompt="Deploy it" HERE]; start->a->end }'


@pytest.mark.parametrize(
    ("here", "reason"),
    [("", "end: broken"), ("goal_gate=true", "goal gate end unsatisfied and no retry target: broken")],
)
async def test_a_run_whose_last_stage_does_the_work_and_fails_has_failed(here: str, reason: str) -> None:
    result, script = await play(LAST.replace("HERE", here), {"end": [FAIL]})
    assert (result.status, result.failure_reason, script.seen) == ("fail", reason, ["a", "end"])
    assert (await play(LAST.replace("HERE", here), unvisited_gates=True))[0].ok


async def test_a_last_stage_that_failed_is_repeated_from_its_retry_target() -> None:
    result, script = await play(LAST.replace("HERE", "goal_gate=true retry_target=a"), {"end": [FAIL, OK]})
    assert result.ok and script.seen == ["a", "end", "a", "end"]


async def test_a_gate_that_never_ran_blocks_only_on_request() -> None:
    text = graph("a; g [goal_gate=true]; start->a; a->done [weight=1]; a->g; g->done")
    assert (await play(text))[0].ok
    assert not (await play(text, unvisited_gates=True))[0].ok


async def test_exhausted_retries_become_partial_success_only_if_allowed() -> None:
    text = graph("a [max_retries=1 allow_partial=true]; start->a->done")
    result, _ = await play(text, {"a": [RETRY]})
    assert result.outcomes["a"].status == "partial_success"


async def test_pauses_grow_with_jitter() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    text = graph("a [max_retries=3]; start->a->done")
    await play(text, {"a": [RETRY]}, sleep=sleep, draw=lambda: 0.5)
    assert slept == [0.2, 0.4, 0.8]
    assert Backoff().delay(1, lambda: 0.0) == 0.1
    assert Backoff().delay(100, lambda: 0.5) == 60.0
    assert PRESETS["linear"][1].delay(3, lambda: 0.5) == 0.5


async def test_a_connection_that_fails_is_tried_again_and_a_mistake_is_not() -> None:
    text = graph("a [max_retries=2]; start->a->done")
    _, script = await play(text, {"a": [ConnectionError("reset"), OK]})
    assert script.seen == ["a", "a"]
    result, script = await play(text, {"a": [TypeError("mistake")]})
    assert script.seen == ["a"] and result.outcomes["a"].failure_reason == "TypeError: mistake"


async def test_a_stage_without_a_retry_count_uses_that_of_the_graph_and_zero_is_zero() -> None:
    text = graph("a; b [max_retries=0]; start->a->b->done", attrs="default_max_retries=1;")
    _, script = await play(text, {"a": [RETRY], "b": [RETRY]}, strict_failure_edges=False)
    assert script.seen == ["a", "a", "b"]


async def test_a_loop_ends_at_the_limit_of_visits() -> None:
    text = graph('a; start->a; a->a [condition="outcome=success"]; a->done')
    result, script = await play(text, max_visits=5)
    assert len(script.seen) == 5 and "max_visits" in result.failure_reason
    result, script = await play(text, max_steps=4)
    assert "max_steps" in result.failure_reason
    _, script = await play(text.replace("a;", "a [max_visits=2];", 1))
    assert len(script.seen) == 2


RESTARTING = graph(
    'a; b; start->a->b; b->a [condition="outcome=fail" loop_restart=true fidelity=truncate]; b->done [label=on]'
)


async def test_loop_restart_begins_a_fresh_attempt_at_its_target(tmp_path: Path) -> None:
    events: list[Event] = []
    left = Outcome(context_updates={"color": "red"})
    result, script = await play(
        RESTARTING,
        {"a": [left, OK], "b": [FAIL, OK]},
        on_event=events.append,
        run_id="r",
        logs_root=tmp_path,
        context={"given": 1},
    )
    assert result.ok and script.seen == ["a", "b", "a", "b"]
    second = script.stages[2]
    assert second.run_id == "r:attempt:2" and second.fidelity == "truncate" and second.visit == 1
    assert "color" not in result.context and result.context["given"] == 1
    assert result.context["internal.lineage.root_run_id"] == "r"
    assert result.context["internal.lineage.attempt"] == 2
    assert result.context["internal.lineage.parent_run_id"] == "r"
    assert result.completed == ("a", "b", "done") and result.state.visits == {"a": 1, "b": 1, "done": 1}
    assert (tmp_path / "attempt-2" / "b" / "status.json").is_file()
    ends = [event for event in events if event.kind == "run_finalized"]
    assert [(event.run_id, event.data["status"]) for event in ends] == [("r", "restarted"), ("r:attempt:2", "success")]
    assert ends[0].data["restart_target"] == "a"


async def test_no_more_restarts_than_the_limit_are_allowed() -> None:
    result, script = await play(RESTARTING, {"b": [FAIL]}, max_loop_restarts=3)
    assert script.seen.count("b") == 4 and "max_loop_restarts" in result.failure_reason
    result, script = await play(RESTARTING, {"b": [FAIL]})
    assert script.seen.count("b") == 17


def test_every_policy_of_retries_has_its_pauses() -> None:
    assert set(PRESETS) == RETRY_POLICIES


def test_a_pause_that_is_too_long_to_reckon_with_is_the_longest() -> None:
    assert Backoff(factor=1e9, longest=5.0, jitter=False).delay(60) == 5.0


async def test_a_limit_of_requests_holds_for_all_agents_of_a_run() -> None:
    heard = Heard()
    text = graph("a [prompt=a]; b [prompt=b]; c [prompt=c]; start->a->b->c->done")
    result = await run_pipeline(text, model=heard.model, max_requests=2)
    assert result.failure_reason == "the run made 2 model requests, which is the limit (max_requests)"
    assert result.completed == ("start", "a", "b") and len(heard.requests) == 2
    assert (await run_pipeline(text, model=heard.model, max_requests=3)).ok


async def test_a_limit_of_requests_holds_within_a_stage_and_after_a_resume(tmp_path: Path) -> None:
    def call(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[ToolCallPart("again", {})])

    agent: Agent[None, str] = Agent(FunctionModel(call), tools=[again])
    result = await run_pipeline(graph("a [prompt=a]; start->a->done"), agents=agent, max_requests=4)
    assert result.failure_reason.startswith("a: UsageLimitExceeded")

    heard, text = Heard(), graph("a [prompt=a]; b [prompt=b]; start->a->b->done")
    await half(text, FileRuns(tmp_path), "b", model=heard.model)
    resumed = await resume_pipeline("r", runs=FileRuns(tmp_path), model=heard.model, max_requests=1)
    assert "max_requests" in resumed.failure_reason


async def test_branches_share_a_limit_of_requests_and_failed_requests_count() -> None:
    made = 0

    async def call(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        nonlocal made
        made += 1
        await asyncio.sleep(0)
        return ModelResponse(parts=[ToolCallPart("again", {})])

    async def refuse(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        nonlocal made
        made += 1
        raise ConnectionError("reset")

    branches = "".join(f"b{number} [prompt=b]; p->b{number}->j; " for number in range(4))
    text = graph(f"p [shape=component]; j [shape=tripleoctagon]; start->p; {branches} j->done")
    agent: Agent[None, str] = Agent(FunctionModel(call), tools=[again])
    result = await run_pipeline(text, agents=agent, max_requests=5)
    assert made == 5 and not result.ok
    assert "made 5 model requests" in result.context["parallel.results"][0]["failure_reason"]

    made = 0
    text = graph("a [prompt=a max_retries=9]; start->a->done")
    result = await run_pipeline(text, model=FunctionModel(refuse), max_requests=3, sleep=no_wait)
    assert made == 3 and "made 3 model requests" in result.failure_reason


async def test_requests_of_agents_called_by_a_tool_count_too() -> None:
    helper = Heard()

    async def ask(ctx: RunContext[None]) -> str:
        """Ask another agent, on the same account."""
        return (await Agent(helper.model).run("help", usage=ctx.usage)).output

    def call(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[ToolCallPart("ask", {})])

    agent: Agent[None, str] = Agent(FunctionModel(call), tools=[ask])
    result = await run_pipeline(graph("a [prompt=a]; start->a->done"), agents=agent, max_requests=4)
    assert len(helper.requests) == 2 and "made 4 model requests" in result.failure_reason


def again() -> str:
    """Once more."""
    return "again"


@pytest.mark.parametrize(
    "given", [{"max_duration": 0}, {"max_duration": math.nan}, {"max_requests": 1.5}, {"max_requests": True}]
)
def test_a_limit_must_be_above_zero(given: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="above 0"):
        RunConfig(**given)


def priced(name: str) -> FunctionModel:
    """A model that reports half a million tokens a request."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        usage = RequestUsage(input_tokens=400_000, output_tokens=100_000)
        return ModelResponse(parts=[TextPart("done")], usage=usage, model_name=name)

    return FunctionModel(answer, model_name=name)


async def test_a_run_over_its_cost_limit_ends_after_that_request(tmp_path: Path) -> None:
    text, events = graph("a [prompt=a]; b [prompt=b]; c [prompt=c]; start->a->b->c->done"), list[Event]()
    options: dict[str, Any] = {"model": priced("gpt-5-mini"), "on_event": events.append, "runs": FileRuns(tmp_path)}
    result = await run_pipeline(text, max_cost=Money(0.50), run_id="r", **options)
    assert result.completed == ("start", "a", "b")
    assert result.failure_reason == "the run cost $0.6000, and its limit is $0.5000 (max_cost)"
    assert events[-1].data["cost"] == pytest.approx(0.6) and "unpriced" not in events[-1].data
    whole = await run_pipeline(text, max_cost=Money(1), run_id="s", **options)
    assert whole.ok


async def test_a_model_without_a_price_is_named_and_never_free(caplog: pytest.LogCaptureFixture) -> None:
    events = list[Event]()
    text = graph("a [prompt=a]; b [prompt=b]; start->a->b->done")
    result = await run_pipeline(text, model=priced("nobody-knows-it"), max_cost=Money(0.01), on_event=events.append)
    assert result.ok and events[-1].data["unpriced"] == ["nobody-knows-it"] and "cost" not in events[-1].data
    assert [record.getMessage() for record in caplog.records] == [
        "max_cost=$0.0100: no price is known for nobody-knows-it, so it is not counted"
    ]


@pytest.mark.parametrize("where", ["the stage's compiler", "a context helper"])
async def test_the_compiles_of_a_run_count_towards_its_cost_limit(where: str, tmp_path: Path) -> None:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart("word " * 2_000)], model_name="gpt-5-mini")

    compiler: dict[str, Any] = {"model": priced("gpt-5-mini"), "budget": 4_000, "every_turn": True}
    options: dict[str, Any] = {"model": FunctionModel(answer, model_name="gpt-5-mini"), "compiler": compiler}
    events = list[Event]()
    thread = "fidelity=full thread_id=t" if where == "the stage's compiler" else 'context_helper="chat_compiler"'
    stages = "; ".join(f"{name} [prompt={name} {thread}]" for name in "abcde")
    text = graph(f"{stages}; start->a->b->c->d->e->done")
    options |= {"max_cost": Money(0.25), "runs": FileRuns(tmp_path), "on_event": events.append}
    result = await run_pipeline(text, run_id="r", **options)
    assert "the run cost $0.3" in result.failure_reason and "its limit is $0.2500 (max_cost)" in result.failure_reason
    again = await resume_pipeline("r", runs=FileRuns(tmp_path), model=options["model"], max_cost=Money(0.25))
    assert not again.ok
    reported = sum(
        event.data.get("cost", 0) for event in events if event.kind in ("model_requested", "context_compiled")
    )
    assert 0.3 <= reported < 0.33


@pytest.mark.parametrize("attrs", ["w [goal_gate=true retry_target=done]", "w [goal_gate=true]; retry_target=done"])
async def test_a_gate_that_would_send_the_run_to_its_end_fails_it(attrs: str) -> None:
    result, script = await play(graph(f"{attrs}; start->w->done"), {"w": [FAIL]})
    assert result.status == "fail" and "w" in result.failure_reason and script.seen == ["w"]
