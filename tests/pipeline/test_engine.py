"""Running a graph from end to end: phases, the cells of the cross-feature matrix, events."""

from __future__ import annotations

import json
import re
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from context_compiler.errors import GraphError, PipelineError
from context_compiler.pipeline import (
    Event,
    MemoryRuns,
    Outcome,
    QueueInterviewer,
    Stage,
    StageStatus,
    Verdict,
    parse_dot,
    run_pipeline,
    validate,
)
from context_compiler.pipeline.stores import KINDS
from tests.pipeline.playing import Heard, graph, play

OK, FAIL, RETRY = (
    Outcome(),
    Outcome(status=StageStatus.FAIL, failure_reason="broken"),
    Outcome(status=StageStatus.RETRY, failure_reason="busy"),
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
    assert not [diagnostic for diagnostic in validate(parsed) if diagnostic.severity == "ERROR"]

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
    assert blocked.failure_reason == "goal gate a unsatisfied and no retry target: broken"
    assert (await play(text, {"a": [OK]}))[0].ok
    partial = Outcome(status=StageStatus.PARTIAL_SUCCESS)
    assert (await play(text, {"a": [partial]}))[0].ok


async def test_matrix_a_person_chooses_the_way() -> None:
    text = graph(
        'h [shape=hexagon label="Ship?"]; a; b; start->h; h->a [label="[Y] Yes"]; h->b [label="[N] No"];'
        "a->done; b->done"
    )
    result, script = await play(text, interviewer=QueueInterviewer(["n"]))
    assert script.seen == ["b"]
    assert (result.context["human.gate.selected"], result.context["human.gate.label"]) == ("N", "No")


async def test_matrix_updates_of_a_stage_are_seen_by_later_stages() -> None:
    text = graph('a; b; c; start->a->b; b->c [condition="context.color=red"]; b->done; c->done')
    _, script = await play(text, {"a": [Outcome(context_updates={"color": "red"})]})
    assert script.seen == ["a", "b", "c"]


async def test_matrix_a_stylesheet_gives_models_by_shape() -> None:
    sheet = 'model_stylesheet="box { llm_model: small; } #b { llm_model: large; }";'
    _, script = await play(graph("a; b; start->a->b->done", attrs=sheet))
    assert [stage.node.llm_model for stage in script.stages] == ["small", "large"]


async def test_matrix_the_goal_is_inserted_into_prompts() -> None:
    heard = Heard()
    await run_pipeline(graph('a [prompt="Do: $goal" fidelity=truncate]; start->a->done'), model=heard.model)
    assert heard.prompts[0].endswith("Do: Ship it")


async def test_matrix_a_custom_handler_runs() -> None:
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
    def widened(original: Any) -> Any:
        node = changed(original.nodes["a"], attrs={**original.nodes["a"].attrs, "prompt": "new"})
        return changed(original, nodes={**original.nodes, "a": node})

    heard = Heard()
    await run_pipeline(graph("a [fidelity=full]; start->a->done"), model=heard.model, transforms=(widened,))
    assert heard.prompts == ["new"]


async def test_events_are_numbered_without_a_gap() -> None:
    runs = MemoryRuns()
    await run_pipeline(graph("a; start->a->done"), runs=runs, run_id="r")
    events = await runs.events("r")
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    kinds = [event.kind for event in events if event.kind != "checkpoint_saved"]
    assert kinds == ["run_initialized", *["stage_started", "stage_completed"] * 3, "run_finalized"]


async def test_an_agent_may_return_a_custom_outcome() -> None:
    agent: Any = Agent(TestModel(custom_output_args={"outcome": "fail", "failure_reason": "no"}), output_type=Verdict)
    result = await run_pipeline(graph("a; start->a->done"), agents={"*": agent})
    assert result.outcomes["a"].failure_reason == "no"


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ('**Verdict**: {"outcome": "fail", "failure_reason": "see {x}", "context_updates": {"a": 1}}', "fail"),
        ('Read.\nIn {short}: {"outcome": "fail"}', "fail"),
        ('Red.\n{"outcome": "fail", "notes": ["a is red", "b is red"], "context_updates": "none"}', "fail"),
        ('The service answers {"status": "fail"}', "success"),
        ('It would be {"a": {"outcome": "fail"}}', "success"),
    ],
)
async def test_an_outcome_after_other_text_at_the_end_of_an_answer_counts(text: str, status: str) -> None:
    agent = Agent(TestModel(custom_output_text=text))
    result = await run_pipeline(graph("a; start->a->done"), agents=agent)
    assert (result.status, result.outcomes["a"].status) == (status, status)


async def test_an_existing_run_id_is_refused() -> None:
    runs = MemoryRuns()
    await run_pipeline(graph("start->done"), runs=runs, run_id="r")
    with pytest.raises(PipelineError, match="already"):
        await run_pipeline(graph("start->done"), runs=runs, run_id="r")


async def test_a_word_that_only_begins_like_the_goal_stays() -> None:
    _, script = await play(graph('a [prompt="$goal, $goalpost: $goal"]; start->a->done', goal="Say $goal"))
    assert script.stages[0].prompt == "Say $goal, $goalpost: Say $goal"


async def test_the_last_event_has_the_duration_and_the_artifacts() -> None:
    events: list[Event] = []
    ticks = iter(range(1_000))
    await run_pipeline(graph("a; start->a->done"), simulate=True, on_event=events.append, clock=lambda: next(ticks))
    last = events[-1]
    assert last.kind == "run_finalized" and last.data["duration"] > 0 and last.data["artifact_count"] == 1


def test_every_kind_of_event_is_known_and_documented() -> None:
    root = Path(__file__).parents[2]
    sources = [path.read_text(encoding="utf-8") for path in (root / "context_compiler" / "pipeline").rglob("*.py")]
    emitted = {kind for source in sources for kind in re.findall(r'emit\(\s*"([a-z_]+)"', source)}
    emitted |= {"stage_completed", "stage_failed", "run_resumed"}  # named where they are chosen
    assert emitted == set(KINDS) | {"run_initialized"}
    page = (root / "docs" / "pipelines.md").read_text(encoding="utf-8")
    assert not [kind for kind in KINDS if f"`{kind}`" not in page]


async def test_a_start_or_exit_recognised_by_id_calls_no_model() -> None:
    text = "digraph g { node [shape=box]; Start; a [prompt=a]; end; Start -> a -> end }"
    result, script = await play(text)
    assert result.completed == ("Start", "a", "end") and script.seen == ["a"]
    assert validate(parse_dot(text)) == ()
    result, script = await play(text.replace("Start;", "Start [prompt=hello];"))
    assert script.seen == ["Start", "a"]
