"""Running a graph: phases, retries, gates, limits, attempts, and handlers that misbehave."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from context_compiler.errors import GraphError, PipelineError
from context_compiler.pipeline import (
    Backoff,
    Event,
    MemoryRuns,
    Outcome,
    QueueInterviewer,
    Stage,
    Verdict,
    parse_dot,
    run_pipeline,
    validate,
)
from context_compiler.pipeline.retry import PRESETS
from tests.pipeline.playing import Heard, Script, graph, play

OK, FAIL, RETRY = (
    Outcome(),
    Outcome(status="fail", failure_reason="broken"),
    Outcome(status="retry", failure_reason="busy"),
)

SMOKE = """digraph test_pipeline {
    graph [goal="Create a hello world Python script"]
    start     [shape=Mdiamond]
    plan      [shape=box, prompt="Plan how to create a hello world script for: $goal"]
    implement [shape=box, prompt="Write the code based on the plan", goal_gate=true]
    review    [shape=box, prompt="Review the code for correctness"]
    done      [shape=Msquare]
    start -> plan
    plan -> implement
    implement -> review [condition="outcome=success"]
    implement -> plan   [condition="outcome=fail", label="Retry"]
    review -> done      [condition="outcome=success"]
    review -> implement [condition="outcome=fail", label="Fix"]
}"""


async def test_smoke(tmp_path: Path) -> None:
    parsed = parse_dot(SMOKE)
    assert (parsed.goal, len(parsed.nodes), len(parsed.edges)) == ("Create a hello world Python script", 5, 6)
    assert not [one for one in validate(parsed) if one.severity == "ERROR"]

    result = await run_pipeline(parsed, simulate=True, logs_root=tmp_path)

    assert result.ok and "implement" in result.completed
    for name in ("plan", "implement", "review"):
        for file in ("prompt.md", "response.md", "status.json"):
            assert (tmp_path / name / file).is_file()
    assert "Create a hello world Python script" in (tmp_path / "plan" / "prompt.md").read_text()
    assert json.loads((tmp_path / "plan" / "status.json").read_text())["outcome"] == "success"
    checkpoint = json.loads((tmp_path / "checkpoint.json").read_text())
    assert checkpoint["current_node"] == "done"
    assert {"plan", "implement", "review"} <= set(checkpoint["completed_nodes"])


# The cells of the cross-feature matrix that a run is needed for; those of parsing and linting are elsewhere.


async def test_matrix_linear_three_stages_run_to_the_end() -> None:
    result, script = await play(graph("a; b; c; start->a->b->c->done"))
    assert result.ok and script.seen == ["a", "b", "c"]


async def test_matrix_conditions_choose_between_success_and_fail() -> None:
    text = graph(
        'a; b; c; start->a; a->b [condition="outcome=success"]; a->c [condition="outcome=fail"]; b->done; c->done'
    )
    assert (await play(text))[1].seen == ["a", "b"]
    assert (await play(text, {"a": [FAIL]}))[1].seen == ["a", "c"]


async def test_matrix_retries_twice_and_then_gives_up() -> None:
    text = graph("a [max_retries=2]; start->a->done", attrs="strict=1;")
    result, script = await play(text, {"a": [RETRY, RETRY, OK]})
    assert result.ok and script.seen == ["a"] * 3 and result.context["internal.retry_count.a"] == 2
    result, script = await play(text, {"a": [RETRY]}, strict_failure_edges=True)
    assert script.seen == ["a"] * 3
    assert result.failure_reason == "a: max retries exceeded: busy"


async def test_matrix_a_gate_blocks_the_exit_and_lets_a_success_through() -> None:
    text = graph('a [goal_gate=true]; start->a; a->done [label="on"]')
    blocked, _ = await play(text, {"a": [FAIL]})
    assert blocked.failure_reason == "goal gate a unsatisfied and no retry target"
    assert (await play(text, {"a": [OK]}))[0].ok
    partial = Outcome(status="partial_success")
    assert (await play(text, {"a": [partial]}))[0].ok


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
    x = [OK, Outcome(status="partial_success"), OK]
    result, script = await play(text, {"g": [FAIL, OK], "x": x})
    assert result.ok and script.seen.count("g") == 2


async def test_a_gate_that_never_ran_blocks_only_where_that_is_asked() -> None:
    text = graph("a; g [goal_gate=true]; start->a; a->done [weight=1]; a->g; g->done")
    assert (await play(text))[0].ok
    assert not (await play(text, unvisited_gates=True))[0].ok


async def test_matrix_a_person_chooses_the_way() -> None:
    text = graph(
        'h [shape=hexagon label="Ship?"]; a; b; start->h; h->a [label="[Y] Yes"]; h->b [label="[N] No"];'
        "a->done; b->done"
    )
    result, script = await play(text, interviewer=QueueInterviewer(["n"]))
    assert script.seen == ["b"]
    assert (result.context["human.gate.selected"], result.context["human.gate.label"]) == ("N", "No")


async def test_matrix_what_a_stage_leaves_is_seen_by_later_ones() -> None:
    text = graph('a; b; c; start->a->b; b->c [condition="context.color=red"]; b->done; c->done')
    _, script = await play(text, {"a": [Outcome(context_updates={"color": "red"})]})
    assert script.seen == ["a", "b", "c"]


async def test_matrix_a_stylesheet_gives_models_by_shape() -> None:
    sheet = 'model_stylesheet="box { llm_model: small; } #b { llm_model: large; }";'
    _, script = await play(graph("a; b; start->a->b->done", attrs=sheet))
    assert [stage.node.llm_model for stage in script.stages] == ["small", "large"]


async def test_matrix_the_goal_stands_in_prompts() -> None:
    heard = Heard()
    await run_pipeline(graph('a [prompt="Do: $goal" fidelity=truncate]; start->a->done'), model=heard.model)
    assert heard.prompts[0].endswith("Do: Ship it")


async def test_matrix_a_handler_of_ones_own() -> None:
    async def shout(stage: Stage) -> Outcome:
        return Outcome(context_updates={"said": stage.node.text("word").upper()})

    result = await run_pipeline(graph('a [type="my.shout" word="hello"]; start->a->done'), handlers={"my.shout": shout})
    assert result.context["said"] == "HELLO"


async def test_matrix_a_dozen_stages() -> None:
    names = [f"n{number}" for number in range(12)]
    result, script = await play(graph(f"{'; '.join(names)}; start->{'->'.join(names)}->done"))
    assert result.ok and script.seen == names


async def test_a_graph_with_errors_is_not_run() -> None:
    for text in (
        "digraph g { done [shape=Msquare]; }",
        "digraph g { start [shape=Mdiamond]; }",
        graph("lost; start->done"),
    ):
        with pytest.raises(GraphError):
            await run_pipeline(text)


async def test_transforms_come_in_order_and_before_the_check() -> None:
    def widened(given: Any) -> Any:
        node = changed(given.nodes["a"], attrs={**given.nodes["a"].attrs, "prompt": "new"})
        return changed(given, nodes={**given.nodes, "a": node})

    heard = Heard()
    await run_pipeline(graph("a [fidelity=full]; start->a->done"), model=heard.model, transforms=(widened,))
    assert heard.prompts == ["new"]


async def test_partial_success_stands_for_used_up_retries_where_that_is_allowed() -> None:
    text = graph("a [max_retries=1 allow_partial=true]; start->a->done")
    result, _ = await play(text, {"a": [RETRY]})
    assert result.outcomes["a"].status == "partial_success"


async def test_pauses_grow_and_are_jittered() -> None:
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


async def test_a_retry_count_is_the_graphs_where_a_stage_says_nothing_and_zero_is_zero() -> None:
    text = graph("a; b [max_retries=0]; start->a->b->done", attrs="default_max_retries=1;")
    _, script = await play(text, {"a": [RETRY], "b": [RETRY]})
    assert script.seen == ["a", "a", "b"]


# Handlers that misbehave.


@pytest.mark.parametrize("nonsense", [42, ["success"], {"notes": "no status"}, {"outcome": 3}, object()])
async def test_nonsense_is_a_failure_that_says_so(nonsense: object) -> None:
    result, _ = await play(graph("a; start->a->done"), {"a": [lambda stage: nonsense]}, strict_failure_edges=True)
    assert result.status == "fail" and result.failure_reason.startswith("a: ")


async def test_updates_that_are_no_values_are_a_failure() -> None:
    for updates in ({"": 1}, {"a b": 1}, {"x": object()}, {"x": float("nan")}):
        result, _ = await play(graph("a; start->a->done"), {"a": [Outcome(context_updates=updates)]})
        assert result.outcomes["a"].status == "fail" and "refused" in result.outcomes["a"].failure_reason


async def test_a_handler_that_hangs_is_ended_by_its_timeout() -> None:
    async def hang(stage: Stage) -> None:
        await asyncio.sleep(60)

    text = graph('a [type=hang timeout="50ms"]; start->a->done')
    result = await run_pipeline(text, handlers={"hang": hang}, strict_failure_edges=True)
    assert result.failure_reason == "a: timed out after 0.05 s"


async def test_a_handler_that_is_cancelled_from_within_fails_and_the_run_goes_on() -> None:
    result, _ = await play(graph("a; start->a->done"), {"a": [asyncio.CancelledError()]})
    assert result.ok and result.outcomes["a"].failure_reason == "the handler was cancelled"


async def test_cancelling_the_run_leaves_the_last_checkpoint_and_the_run_can_be_taken_up() -> None:
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


async def test_a_handler_that_says_nothing_succeeds_only_with_auto_status() -> None:
    silent = {"codergen": lambda stage: None}
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
    assert "deaf" in caplog.text


# Limits and attempts.


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


async def test_exactly_so_many_restarts_are_allowed() -> None:
    result, script = await play(RESTARTING, {"b": [FAIL]}, max_loop_restarts=3)
    assert script.seen.count("b") == 4 and "max_loop_restarts" in result.failure_reason
    result, script = await play(RESTARTING, {"b": [FAIL]})
    assert script.seen.count("b") == 17


async def test_events_are_numbered_without_a_gap() -> None:
    runs = MemoryRuns()
    await run_pipeline(graph("a; start->a->done"), runs=runs, run_id="r")
    events = await runs.events("r")
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    kinds = [event.kind for event in events if event.kind != "checkpoint_saved"]
    assert kinds == ["run_initialized", *["stage_started", "stage_completed"] * 3, "run_finalized"]


async def test_an_agent_may_answer_with_an_outcome_of_its_own() -> None:
    agent: Any = Agent(TestModel(custom_output_args={"outcome": "fail", "failure_reason": "no"}), output_type=Verdict)
    result = await run_pipeline(graph("a; start->a->done"), agents={"*": agent})
    assert result.outcomes["a"].failure_reason == "no"


async def test_a_run_of_an_id_that_is_there_is_refused() -> None:
    runs = MemoryRuns()
    await run_pipeline(graph("start->done"), runs=runs, run_id="r")
    with pytest.raises(PipelineError, match="already"):
        await run_pipeline(graph("start->done"), runs=runs, run_id="r")
