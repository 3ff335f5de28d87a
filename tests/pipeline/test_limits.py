"""The limits of a run hold over all processes that work on it, and over its children."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from context_compiler.pipeline import (
    Event,
    FileRuns,
    MemoryRuns,
    Outcome,
    RunConfig,
    RunQueue,
    Stage,
    Worker,
    parse_dot,
    resume_pipeline,
    run_pipeline,
)
from context_compiler.tokens.prices import Money
from tests.pipeline.conftest import Open, OpenSQL
from tests.pipeline.playing import graph, no_wait
from tests.pipeline.resuming import half

PRICE = RequestUsage(input_tokens=400_000, output_tokens=100_000)
"""$0.30 a request."""


class Paid:
    """A model that counts its requests, and fails those that it is told to."""

    def __init__(self, failing: Sequence[int] = ()) -> None:
        self.made, self.failing = 0, failing
        self.model = FunctionModel(self._answer, model_name="gpt-5-mini")

    def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.made += 1
        if self.made in self.failing:
            raise ValueError("broken")
        return ModelResponse(parts=[TextPart("done")], usage=PRICE, model_name="gpt-5-mini")


def nested(tmp_path: Path, rest: str) -> str:
    """A graph whose first stage supervises a child, which supervises one that asks an agent."""
    (tmp_path / "inner.dot").write_text(graph("x [prompt=x]; start->x->done"))
    house = 'shape=house "manager.poll_interval"="10ms" stack.child_dotfile'
    (tmp_path / "outer.dot").write_text(graph(f'n [{house}="{tmp_path}/inner.dot"]; start->n->done'))
    return graph(f'm [{house}="{tmp_path}/outer.dot"]; {rest}')


@pytest.mark.parametrize("limit", [{"max_requests": 2}, {"max_cost": Money(0.50)}])
async def test_children_that_have_ended_count_after_a_resume(
    open_store: Open, tmp_path: Path, limit: dict[str, Any]
) -> None:
    paid, store = Paid(), open_store()
    text = nested(tmp_path, "a [prompt=a]; b [prompt=b]; start->m->a->b->done")
    await half(text, store, "a", model=paid.model)
    assert paid.made == 1
    result = await resume_pipeline("r", runs=open_store(), model=paid.model, **limit)
    assert result.completed == ("start", "m", "a") and paid.made == 2
    assert next(iter(limit)) in result.failure_reason
    assert (await store.events("r"))[-1].data["cost"] == pytest.approx(0.6)
    await store.close()


async def test_a_child_in_the_folder_of_its_run_counts_after_a_resume(tmp_path: Path) -> None:
    paid, events = Paid(), list[Event]()
    text = nested(tmp_path, "a [prompt=a]; start->m->a->done")
    options: dict[str, Any] = {"model": paid.model, "max_requests": 2}
    assert (await run_pipeline(text, logs_root=tmp_path / "whole", **options)).ok

    async def stop(event: Event) -> None:
        if event.kind == "stage_started" and event.node == "a":
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await run_pipeline(text, logs_root=tmp_path / "r", on_event=stop, **options)
    result = await resume_pipeline(tmp_path / "r", on_event=events.append, **options)
    assert result.ok and events[-1].data["cost"] == pytest.approx(0.6)


async def test_a_child_continued_within_a_stage_counts_once(tmp_path: Path) -> None:
    paid, tries = Paid(), list[int]()

    async def supervise(stage: Stage) -> Outcome:
        tries.append(stage.attempt)
        child = await stage.start(parse_dot(graph("x [prompt=x]; start->x->done")), f"{stage.run_id}.own")
        await child.wait(asyncio.ensure_future(asyncio.sleep(60)))
        if stage.attempt == 1:
            raise ConnectionError("reset")
        return Outcome()

    text, events = graph("s [type=own max_retries=1]; a [prompt=a]; start->s->a->done"), list[Event]()
    options: dict[str, Any] = {"model": paid.model, "handlers": {"own": supervise}, "sleep": no_wait}
    result = await run_pipeline(text, max_requests=2, on_event=events.append, runs=FileRuns(tmp_path), **options)
    assert result.ok and tries == [1, 2] and paid.made == 2
    assert events[-1].data["cost"] == pytest.approx(0.6)


async def test_requests_of_stages_that_failed_count_after_a_resume(open_store: Open) -> None:
    paid, store = Paid(failing=[1, 2]), open_store()
    text = graph('a [prompt=a]; b; c [prompt=c]; start->a; a->b [condition="outcome=fail"]; a->done; b->c->done')

    async def wait(stage: Stage) -> Outcome:
        return Outcome()

    text = text.replace("b;", "b [type=own];", 1)
    await half(text, store, "b", model=paid.model, handlers={"own": wait})
    assert paid.made == 1
    result = await resume_pipeline("r", runs=open_store(), model=paid.model, handlers={"own": wait}, max_requests=1)
    assert "made 1 model requests" in result.failure_reason and paid.made == 1
    await store.close()


async def test_requests_of_a_stage_that_was_killed_count_after_a_resume(open_store: Open) -> None:
    made, store = 0, open_store()

    async def call(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        nonlocal made
        made += 1
        return ModelResponse(parts=[ToolCallPart("die", {})], usage=PRICE, model_name="gpt-5-mini")

    async def die() -> str:
        """Stop the process."""
        if made == 2:
            task.cancel()
            await asyncio.sleep(60)
        return "alive"

    agent: Agent[None, str] = Agent(FunctionModel(call, model_name="gpt-5-mini"), tools=[die])
    text = graph("a [prompt=a]; start->a->done")
    task = asyncio.ensure_future(run_pipeline(text, agents=agent, runs=store, run_id="r"))
    with pytest.raises(asyncio.CancelledError):
        await task
    result = await resume_pipeline("r", runs=open_store(), agents=agent, max_cost=Money(0.85))
    assert made == 3 and "the run cost $0.9000" in result.failure_reason
    await store.close()


class Clock:
    """Time that only work takes; each process has one that begins anew."""

    def __init__(self, now: float) -> None:
        self.now = now
        self.seen: list[str] = []

    def __call__(self) -> float:
        return self.now

    async def work(self, stage: Stage) -> Outcome:
        """Take 1,000 s."""
        self.seen.append(stage.node.name)
        self.now += 1000
        return Outcome()

    @property
    def options(self) -> dict[str, Any]:
        return {"clock": self, "handlers": {"codergen": self.work}}


async def test_time_is_that_of_all_processes_that_worked_on_a_run(open_store: Open) -> None:
    text, store = graph("a; b; c; start->a->b->c->done"), open_store()
    await half(text, store, "b", max_duration=1500, **Clock(50).options)
    assert (await open_store().events("r"))[-1].data["worked"] == 1000
    clock = Clock(7_000_000)  # the next process begins much later

    async def stop(event: Event) -> None:
        if event.kind == "stage_started" and event.node == "c":
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await resume_pipeline("r", runs=open_store(), max_duration=1500, on_event=stop, **clock.options)
    assert clock.seen == ["b"]
    late = Clock(0)
    result = await resume_pipeline("r", runs=open_store(), max_duration=1500, **late.options)
    assert result.failure_reason == "the run took longer than 1500 s, which is the limit (max_duration)"
    assert late.seen == [] and result.completed == ("start", "a", "b")
    await store.close()


async def test_time_that_a_stopped_stage_took_counts(open_store: Open) -> None:
    clock, store = Clock(0), open_store()

    async def stop(stage: Stage) -> Outcome:
        await clock.work(stage)
        task.cancel()
        await asyncio.sleep(60)
        return Outcome()

    options: dict[str, Any] = {"clock": clock, "handlers": {"codergen": stop}}
    task = asyncio.ensure_future(run_pipeline(graph("a; start->a->done"), runs=store, run_id="r", **options))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await open_store().events("r"))[-1].data["worked"] == 1000
    clock.now, options["handlers"] = 0, {"codergen": clock.work}
    result = await resume_pipeline("r", runs=store, max_duration=1000, **options)
    assert result.failure_reason == "the run took longer than 1000 s, which is the limit (max_duration)"
    assert clock.seen == ["a"]
    await store.close()


@pytest.mark.parametrize(("limit", "status"), [(1000, "fail"), (1500, "success")])
async def test_the_time_limit_of_a_submitted_run_excludes_the_wait_for_a_person(
    open_runs: OpenSQL, limit: int, status: str
) -> None:
    runs, clock, queue = open_runs(), Clock(0), RunQueue(open_runs())
    await queue.submit(graph('a; h [shape=hexagon]; b; start->a->h; h->b [label="[Y] go"]; b->done'), run_id="r")
    config = RunConfig(max_duration=limit, **clock.options)
    await Worker(runs=runs, configure=lambda _: config, poll=0.01, patience=0.0).run(until_empty=True)
    clock.now += 1_000_000
    await queue.answer("r", "y")
    await Worker(runs=runs, configure=lambda _: config, poll=0.01, patience=0.0).run(until_empty=True)
    state = await runs.load("r")
    assert state is not None and state.status == status and clock.seen == ["a", "b"][: 1 + state.ok]
    await queue.runs.close()
    await runs.close()


@pytest.mark.parametrize(
    ("most", "policy", "status"),
    [
        (4, "wait_all", "fail"),
        (5, "wait_all", "success"),
        (4, "first_success", "success"),
        (1, "any_success", "success"),
    ],
)
async def test_branches_without_requests_left_are_not_a_partial_success(most: int, policy: str, status: str) -> None:
    paid = Paid()
    ways = "".join(f"a{number} [prompt=x]; p->a{number}->j;" for number in range(5))
    text = graph(f"p [shape=component join_policy={policy}]; j [shape=tripleoctagon]; {ways} start->p; j->done")
    result = await run_pipeline(text, agents=Agent(paid.model), max_requests=most)
    assert (result.status, paid.made <= most) == (status, True)
    if status == "fail":
        assert result.failure_reason == "the run made 4 model requests, which is the limit (max_requests)"


@pytest.mark.parametrize(("most", "status", "made"), [(1, "fail", 0), (2, "success", 1)])
async def test_a_branch_without_requests_left_runs_again_after_a_resume(most: int, status: str, made: int) -> None:
    paid, store, used, dies = Paid(), MemoryRuns(), asyncio.Event(), True

    async def own(stage: Stage) -> Outcome:
        if stage.node.name == "a":
            stage.requests.used += 1
            used.set()
            if dies:
                await asyncio.Event().wait()
        await used.wait()
        return Outcome()

    async def stop(event: Event) -> None:
        if event.kind == "parallel_branch_completed" and event.branch == "w":
            task.cancel()

    text = graph(
        "p [shape=component]; a [type=own]; w [type=own]; b [prompt=b]; j [shape=tripleoctagon];"
        "start->p; p->a->j; p->w->b->j; j->done"
    )
    options: dict[str, Any] = {"runs": store, "handlers": {"own": own}, "model": paid.model}
    task = asyncio.ensure_future(run_pipeline(text, run_id="r", max_requests=1, on_event=stop, **options))
    with pytest.raises(asyncio.CancelledError):
        await task
    used.clear()
    dies = False
    result = await resume_pipeline("r", max_requests=most, **options)
    assert (result.status, paid.made) == (status, made)
    if status == "fail":
        assert result.failure_reason == "the run made 1 model requests, which is the limit (max_requests)"
