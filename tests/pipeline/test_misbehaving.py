"""Whatever a handler does, its stage ends in an outcome: nonsense, silence, hanging, cancellation."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from context_compiler.errors import PipelineError
from context_compiler.pipeline import (
    Event,
    MemoryRuns,
    Outcome,
    Stage,
    StageStatus,
    run_pipeline,
)
from tests.pipeline.playing import Script, graph, play

LONG_S = 10.0

OK, FAIL, RETRY = (
    Outcome(),
    Outcome(status=StageStatus.FAIL, failure_reason="broken"),
    Outcome(status=StageStatus.RETRY, failure_reason="busy"),
)


@pytest.mark.parametrize("nonsense", [42, ["success"], {"notes": "no status"}, {"outcome": 3}, object()])
async def test_an_invalid_result_is_a_failure_with_a_reason(nonsense: object) -> None:
    def answer(stage: Stage) -> object:
        return nonsense

    result, _ = await play(graph("a; start->a->done"), {"a": [answer]}, strict_failure_edges=True)
    assert result.status == "fail" and result.failure_reason.startswith("a: ")


@pytest.mark.parametrize(
    "said",
    [{"notes": None}, {"notes": 5}, {"preferred_label": None}, {"preferred_label": 3}, {"context_updates": None}],
)
async def test_empty_fields_of_an_outcome_are_accepted_and_numbers_become_text(said: dict[str, Any]) -> None:
    def answer(stage: Stage) -> Outcome:
        return Outcome(**said)

    result, _ = await play(graph("a; start->a->done"), {"a": [answer]})
    assert result.ok and result.outcomes["a"].status == "success"


async def test_an_outcome_accepts_an_exception_as_reason_and_one_name_as_suggestion() -> None:
    reason: Any = ValueError("red")
    result, _ = await play(graph("a; start->a->done"), {"a": [Outcome(status=StageStatus.FAIL, failure_reason=reason)]})
    assert result.outcomes["a"].failure_reason == "red"
    name: Any = "c"
    text = graph("a; b; c; start->a; a->b; a->c; b->done; c->done")
    _, script = await play(text, {"a": [Outcome(suggested_next_ids=name)]})
    assert script.seen == ["a", "c"]


async def test_invalid_context_updates_are_a_failure() -> None:
    for updates in ({"": 1}, {"a b": 1}, {"x": object()}, {"x": float("nan")}):
        result, _ = await play(graph("a; start->a->done"), {"a": [Outcome(context_updates=updates)]})
        assert result.outcomes["a"].status == "fail" and "refused" in result.outcomes["a"].failure_reason


async def test_a_handler_that_hangs_is_ended_by_its_timeout() -> None:
    async def hang(stage: Stage) -> None:
        await asyncio.sleep(60)

    text = graph('a [type=hang timeout="50ms"]; start->a->done')
    result = await run_pipeline(text, handlers={"hang": hang}, strict_failure_edges=True)
    assert result.failure_reason == "a: timed out after 0.05 s"


async def test_a_plain_handler_that_hangs_is_ended_by_its_timeout() -> None:
    free = threading.Event()

    def hang(stage: Stage) -> str:
        free.wait(LONG_S)
        return "too late"

    text = graph('a [type=hang timeout="50ms"]; start->a->done')
    result = await run_pipeline(text, handlers={"hang": hang}, strict_failure_edges=True)
    free.set()
    assert result.failure_reason == "a: timed out after 0.05 s"


async def test_a_plain_handler_holds_up_no_other_branch_and_has_the_context_variables_of_the_run() -> None:
    free = threading.Event()
    said = ContextVar("said", default="nothing")

    def wait(stage: Stage) -> Any:
        assert free.wait(LONG_S)
        return answer(said.get())

    async def answer(text: str) -> str:
        return text

    async def let_go(stage: Stage) -> str:
        free.set()
        return "done"

    said.set("hello")
    text = graph(
        "p [shape=component max_parallel=2]; f [shape=tripleoctagon]; a [type=wait]; b [type=free]; "
        "start->p; p->a->f; p->b->f; f->done"
    )
    result = await run_pipeline(text, handlers={"wait": wait, "free": let_go})
    assert [branch["notes"] for branch in result.context["parallel.results"]] == ["hello", "done"]


async def test_an_exception_of_any_kind_in_a_plain_handler_fails_its_stage(caplog: pytest.LogCaptureFixture) -> None:
    reasons = {
        KeyError("k"): "KeyError: 'k'",
        StopIteration(1): "RuntimeError: coroutine raised StopIteration",
        asyncio.CancelledError(): "the handler was cancelled",
    }
    for error, reason in reasons.items():

        def fail(stage: Stage, error: BaseException = error) -> None:
            raise error

        text = graph('a; start->a; a->done [condition="outcome=fail"]')
        result = await asyncio.wait_for(run_pipeline(text, handlers={"codergen": fail}), LONG_S)
        assert result.outcomes["a"].failure_reason == reason
    assert not caplog.records


async def test_a_handler_cancelled_from_within_fails_and_the_run_continues() -> None:
    text = graph('a; start->a; a->done [condition="outcome=fail"]')
    result, _ = await play(text, {"a": [asyncio.CancelledError()]})
    assert result.ok and result.outcomes["a"].failure_reason == "the handler was cancelled"


async def test_cancelling_the_run_keeps_the_last_checkpoint_and_the_run_can_be_resumed() -> None:
    runs = MemoryRuns()
    entered = asyncio.Event()

    async def hang(stage: Stage) -> None:
        entered.set()
        await asyncio.sleep(60)

    text = graph("a; b [type=hang]; start->a->b->done")
    handlers = {"hang": hang, "codergen": Script()}
    task = asyncio.create_task(run_pipeline(text, handlers=handlers, runs=runs, run_id="r"))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    state = await runs.load("r")
    assert state is not None and (state.current_node, state.next_node, state.ended) == ("a", "b", False)
    assert (await runs.events("r"))[-1].data["status"] == "cancelled"
    async with runs.own("r"):
        pass


async def test_a_handler_without_a_result_succeeds_only_with_auto_status() -> None:
    def say_nothing(stage: Stage) -> None:
        pass

    silent = {"codergen": say_nothing}
    assert not (await run_pipeline(graph("a; start->a->done"), handlers=silent, strict_failure_edges=True)).ok
    result = await run_pipeline(graph("a [auto_status=true]; start->a->done"), handlers=silent)
    assert result.outcomes["a"].notes == "auto-status: handler completed without writing status"


async def test_a_status_file_of_the_stage_decides(tmp_path: Path) -> None:
    def write(stage: Stage) -> None:
        stage.write("status.json", '{"outcome": "fail", "preferred_next_label": "x", "failure_reason": "red"}')

    text = graph("a [auto_status=true]; b; start->a; a->b [label=x]; a->done; b->done")
    result = await run_pipeline(text, handlers={"codergen": write}, logs_root=tmp_path)
    assert result.outcomes["a"].failure_reason == "red" and "b" in result.completed


async def test_a_listener_that_fails_does_not_stop_a_run(caplog: pytest.LogCaptureFixture) -> None:
    def listen(event: Event) -> None:
        raise ValueError("deaf")

    assert (await run_pipeline(graph("a; start->a->done"), on_event=listen)).ok
    assert "on_event failed: ValueError" in caplog.text and "deaf" not in caplog.text


async def test_a_folder_in_place_of_the_status_file_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "a" / "status.json").mkdir(parents=True)
    with pytest.raises(PipelineError, match="status.json"):
        await play(graph("a; start->a->done"), logs_root=tmp_path)
