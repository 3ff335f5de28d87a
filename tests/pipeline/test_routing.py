"""Which way a run goes on, in the exact order: condition, label, suggestion, weight, name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from context_compiler.pipeline import (
    CallbackInterviewer,
    Outcome,
    Stage,
    StageStatus,
    parse_dot,
    run_pipeline,
    select_edge,
)
from context_compiler.pipeline.routing import accelerator, normalise_label
from tests.pipeline.playing import Script, graph, play


def taken(edges: str, outcome: Outcome, values: dict[str, object] | None = None) -> str | None:
    edge = select_edge(parse_dot(graph(f"x; a; b; c; start->x; {edges}")), "x", outcome, values or {})
    return edge.target if edge else None


def test_a_condition_that_holds_beats_any_weight() -> None:
    assert taken('x->a [weight=100]; x->b [condition="outcome=success"]', Outcome()) == "b"


def test_if_two_conditions_hold_the_heavier_edge_wins_and_then_the_first_name() -> None:
    both = 'x->c [condition="outcome=success"]; x->b [condition="outcome=success"{}]'
    assert taken(both.format(""), Outcome()) == "b"
    assert taken('x->b [condition="outcome=success"]; x->c [condition="outcome=success" weight=1]', Outcome()) == "c"


def test_a_preferred_label_is_found_without_accelerator_and_capitals() -> None:
    assert taken('x->a; x->b [label="[Y] Yes"]', Outcome(preferred_label=" yes ")) == "b"


def test_the_label_of_an_edge_with_a_condition_is_ignored() -> None:
    assert taken('x->a; x->b [label=yes condition="outcome=fail"]', Outcome(preferred_label="yes")) == "a"


def test_a_suggested_stage_comes_after_the_label() -> None:
    edges = "x->a; x->b [label=yes]; x->c"
    assert taken(edges, Outcome(suggested_next_ids=("nowhere", "c"))) == "c"
    assert taken(edges, Outcome(preferred_label="yes", suggested_next_ids=("c",))) == "b"


def test_weight_breaks_ties_and_then_the_name() -> None:
    assert taken("x->a; x->b [weight=2]", Outcome()) == "b"
    assert taken("x->c; x->b", Outcome()) == "b"


def test_an_edge_whose_condition_fails_is_never_taken() -> None:
    assert taken('x->a [condition="outcome=fail"]', Outcome()) is None


def test_a_condition_reads_the_context_with_and_without_its_prefix() -> None:
    edges = 'x->a; x->b [condition="context.tests=green && tests=green"]'
    assert taken(edges, Outcome(), {"tests": "green"}) == "b"


@pytest.mark.parametrize(
    ("label", "key", "rest"),
    [("[Y] Yes", "Y", "Yes"), ("Y) Yes", "Y", "Yes"), ("Y - Yes", "Y", "Yes"), ("Yes", "", "Yes"), ("[Y]", "", "[Y]")],
)
def test_an_accelerator_is_a_key_in_front_of_a_label(label: str, key: str, rest: str) -> None:
    assert accelerator(label) == (key, rest)
    assert normalise_label(label) == rest.lower()


async def test_a_failure_follows_its_edge_then_its_retry_target_then_ends_the_run() -> None:
    by_edge, script = await play(graph('a; b; start->a; a->b [condition="outcome=fail"]; b->done'), {"a": [fail()]})
    assert by_edge.ok and script.seen == ["a", "b"]

    text = graph('a [THERE]; b; start->b->a; a->done [condition="outcome=success"]')
    by_target, script = await play(text.replace("THERE", "retry_target=b"), {"a": [fail(), Outcome()]})
    assert by_target.ok and script.seen == ["b", "a", "b", "a"]

    fallback = text.replace("THERE", "retry_target=none, fallback_retry_target=b")
    by_fallback, script = await play(fallback, {"a": [fail(), Outcome()]})
    assert by_fallback.ok and script.seen == ["b", "a", "b", "a"]

    nowhere, _ = await play(text.replace("THERE", ""), {"a": [fail()]})
    assert (nowhere.status, nowhere.failure_reason) == ("fail", "a: broken")


def fail() -> Outcome:
    return Outcome(status=StageStatus.FAIL, failure_reason="broken")


async def test_a_failure_takes_a_plain_edge_only_where_graph_or_run_allow_it() -> None:
    text = "a; b; start->a->b->done"
    for attrs, options, ends in (
        ("", {}, "a: broken"),
        ("", {"strict_failure_edges": False}, ""),
        ("strict_failure_edges=false;", {}, ""),
        ("strict_failure_edges=false;", {"strict_failure_edges": True}, "a: broken"),
        ("strict_failure_edges=true;", {}, "a: broken"),
    ):
        result, script = await play(graph(text, attrs=attrs), {"a": [fail()]}, **options)
        assert (result.failure_reason, script.seen) == (ends, ["a"] if ends else ["a", "b"])


async def test_a_run_whose_stages_all_fail_has_failed() -> None:
    result, script = await play(graph("a; b; c; start->a->b->c->done"), dict.fromkeys("abc", [fail()]))
    assert (result.status, result.failure_reason, script.seen) == ("fail", "a: broken", ["a"])


@pytest.mark.parametrize("lenient", [None, False])
async def test_a_retry_target_comes_before_a_plain_edge(lenient: bool | None) -> None:
    text = graph("b; a [retry_target=b]; start->b->a->done")
    result, script = await play(text, {"a": [fail(), Outcome()]}, strict_failure_edges=lenient)
    assert result.ok and script.seen == ["b", "a", "b", "a"]


@pytest.mark.parametrize(
    ("edges", "outcome", "there"),
    [
        ('a->b [condition="outcome=success"]; a->c', {}, "c"),
        ('a->b [condition="context.x=1"]; a->c', {}, ""),
        ("a->b; a->c [label=Mend]", {"preferred_label": "mend"}, "c"),
        ("a->b; a->c", {"suggested_next_ids": ("c",)}, "c"),
    ],
    ids=["else", "no else of outcomes", "label", "suggestion"],
)
async def test_a_failure_takes_an_edge_that_is_meant_for_it(edges: str, outcome: dict[str, Any], there: str) -> None:
    failed = Outcome(status=StageStatus.FAIL, failure_reason="broken", **outcome)
    result, script = await play(graph(f"a; b; c; start->a; {edges}; b->done; c->done"), {"a": [failed]})
    assert script.seen == (["a", there] if there else ["a"]) and result.ok == bool(there)


async def test_a_junction_does_not_turn_a_failure_into_a_success() -> None:
    text = graph('a; b; q [shape=diamond]; start->a->q; q->b [condition="outcome=success"]; b->done')
    assert (await play(text, {"a": [fail()]}))[0].failure_reason == "q: broken"
    assert not (await play(graph("a; q [shape=diamond]; start->a->q->done"), {"a": [fail()]}))[0].ok


async def test_a_failed_gate_goes_to_the_target_of_the_graph_and_must_succeed_before_the_end() -> None:
    text = graph("b; g [goal_gate=true]; start->b->g->done", attrs="retry_target=b;")
    result, script = await play(text, {"g": [fail(), Outcome()]})
    assert result.ok and script.seen == ["b", "g", "b", "g"]


@pytest.mark.parametrize("gate", ["goal_gate=true, ", ""])
async def test_a_stage_that_only_raises_is_given_up_after_growing_pauses(gate: str) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    text = graph(f"b; g [{gate}retry_target=b]; start->b->g->done")
    options = {"sleep": sleep, "draw": lambda: 0.5, "retryable": lambda error: False}
    result, script = await play(text, {"g": [RuntimeError("no key")]}, **options)
    assert result.failure_reason == "g: 5 visits in a row ended in an error: RuntimeError: no key"
    assert script.seen == ["b", "g"] * 5 and slept == [0.2, 0.4, 0.8, 1.6]
    assert (await play(text, {"g": [RuntimeError("busy")] * 3 + [Outcome()]}, **options))[0].ok


@pytest.mark.parametrize("lenient", [True, False])
async def test_a_gate_after_a_stage_that_only_raises_gives_it_up_too(lenient: bool) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    way = "" if lenient else '[condition="outcome=fail"]'
    text = graph(f"h; b; g [goal_gate=true, retry_target=b]; start->h->b; b->g {way}; b->g; g->done")
    options: dict[str, Any] = {"sleep": sleep, "draw": lambda: 0.5, "strict_failure_edges": False if lenient else None}
    unmet = Outcome(status=StageStatus.FAIL, failure_reason="not met")
    broken = {"b": [ConnectionError("down")], "g": [unmet]}
    result, script = await play(text, broken, **options)
    assert result.failure_reason == "b: 5 visits in a row ended in an error: ConnectionError: down"
    assert script.seen == ["h", *["b", "g"] * 5] and slept == [0.2, 0.4, 0.8, 1.6]

    slept.clear()  # a stage that did its work in between: the errors are not why the gate is unmet
    text = graph(
        'b; f; g [goal_gate=true, retry_target=b]; start->b; b->f [condition="outcome=fail"]; b->g; f->g; g->done'
    )
    result, script = await play(text, {**broken, "g": [unmet] * 7 + [Outcome()]}, **options)
    assert result.ok and script.seen == ["b", "f", "g"] * 8 and not slept


def never(error: BaseException) -> bool:
    """No error is worth a retry."""
    return False


LOOPS = {
    "itself": ('a; start->a->done; a->a [condition="outcome=fail"]', ["a"]),
    "wider": ('a; f; start->a->done; a->f [condition="outcome=fail"]; f->a', ["a", "f"]),
    "junction": (
        'a; q [shape=diamond]; start->a->q; q->a [condition="outcome=fail"]; q->done [condition="outcome!=fail"]',
        ["a"],
    ),
    "branches": (
        "p [shape=component]; a; b [type=other]; j [shape=tripleoctagon]; start->p; p->a->j; p->b->j; j->done;"
        'j->p [condition="outcome=fail"]',
        ["a"],
    ),
}


@pytest.mark.parametrize("loop", LOOPS)
async def test_a_loop_through_errors_waits_longer_and_is_given_up_too(loop: str) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def other(stage: Stage) -> Outcome:
        return fail()

    body, visits = LOOPS[loop]
    options: dict[str, Any] = {"sleep": sleep, "draw": lambda: 0.5, "retryable": never}
    broken = {"a": [ConnectionError("down")]}
    script = Script(broken)
    options["handlers"] = {"codergen": script, "other": other}
    result = await run_pipeline(graph(body), **options)
    assert result.failure_reason == "a: 5 visits in a row ended in an error: ConnectionError: down"
    assert script.seen == (visits * 5)[: -(len(visits) - 1) or None] and slept == [0.2, 0.4, 0.8, 1.6]
    options["handlers"] = {"codergen": Script({"a": [ConnectionError("down")] * 4 + [Outcome()]}), "other": other}
    assert (await run_pipeline(graph(body), **options)).ok


async def test_an_edge_that_leads_forward_is_taken_after_any_number_of_errors() -> None:
    text = graph('a; r; start->a->r->done; a->a [condition="outcome=fail && n!=5"]')

    def error(stage: Stage) -> Outcome:
        stage.context.set("n", stage.visit)
        raise ConnectionError("down")

    result, script = await play(text, {"a": [error]}, retryable=never)
    assert result.ok and script.seen == ["a"] * 5 + ["r"]


async def test_a_person_may_decide_on_any_number_of_rounds() -> None:
    text = graph('a; h [shape=hexagon]; start->a->done; a->h [condition="outcome=fail"]; h->a [label="[A] again"]')
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    broken = {"a": [ConnectionError("down")] * 8 + [Outcome()]}
    options: dict[str, Any] = {"retryable": never, "sleep": sleep}
    person = CallbackInterviewer(lambda question: "a")
    result, script = await play(text, broken, interviewer=person, **options)
    assert result.ok and script.seen == ["a"] * 9 and not slept
    result, script = await play(text, broken, **options)  # nobody decides
    assert script.seen == ["a"] * 5 and "5 visits in a row" in result.failure_reason


async def test_a_restart_after_an_error_waits_longer_each_time() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    text = graph('a; b; start->a->b->done; a->a [condition="outcome=fail" loop_restart=true]')
    options: dict[str, Any] = {"sleep": sleep, "draw": lambda: 0.5, "max_loop_restarts": 3}
    result, script = await play(text, {"a": [ConnectionError("down")]}, **options)
    assert script.seen == ["a"] * 4 and slept == [0.2, 0.4, 0.8] and "max_loop_restarts" in result.failure_reason


async def test_a_tool_that_exits_with_an_error_is_tried_again(tmp_path: Path) -> None:
    command = f"echo x >> {tmp_path}/tries; test $(wc -l < {tmp_path}/tries) -ge 3"
    text = graph(f't [shape=parallelogram tool_command="{command}" max_retries=N]; start->t->done')
    once, _ = await play(text.replace("N]", "1]"))
    assert once.failure_reason == "t: exit code 1" and once.retries == {"t": 1}
    assert (await play(text.replace("N]", "1]")))[0].ok


async def test_a_dead_end_lists_the_available_edges() -> None:
    result, _ = await play(graph('a; b; start->a; a->b [condition="preferred_label=x"]; b->done'))
    assert result.failure_reason == "a: no edge is open after success; there are b [preferred_label=x]"


async def test_a_junction_passes_on_the_outcome_of_the_stage_before_it() -> None:
    text = graph(
        'a; b; c; q [shape=diamond]; start->a->q; q->b [condition="outcome=success"]; q->c [condition="outcome=fail"];'
        "b->done; c->done"
    )
    _, script = await play(text, {"a": [fail()]})
    assert script.seen == ["a", "c"]


async def test_an_unknown_status_word_counts_as_success_and_as_a_label() -> None:
    text = graph('a; b; c; start->a; a->b [condition="outcome=skip_it"]; a->c; b->done; c->done')
    _, script = await play(text, {"a": [{"outcome": "skip_it"}]})
    assert script.seen == ["a", "b"]
    _, script = await play(
        graph("a; b; c; start->a; a->b [label=zeta]; a->c; b->done; c->done"), {"a": [{"outcome": "zeta"}]}
    )
    assert script.seen == ["a", "b"]


async def test_a_label_is_not_left_for_the_stages_after() -> None:
    text = graph("a; b; c; d; start->a->b; b->c [label=yes]; b->d [weight=1]; c->done; d->done")
    result, script = await play(text, {"a": [Outcome(preferred_label="yes")]})
    assert script.seen == ["a", "b", "d"] and "preferred_label" not in result.context


@pytest.mark.parametrize("how", ["text", "status file", "object"])
async def test_an_answer_of_an_agent_cannot_leave_the_edges_of_the_graph(how: str, tmp_path: Path) -> None:
    said = '{"outcome": "success", "go_to": "done"}'

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if how == "status file":
            (tmp_path / "a" / "status.json").write_text(said)
        if how == "object":
            return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, {"go_to": "done"})])
        return ModelResponse(parts=[TextPart(said)])

    agent: Agent[None, Any] = Agent(FunctionModel(answer), output_type=Outcome if how == "object" else str)
    text = graph("a [prompt=a]; gate [shape=hexagon]; start->a->gate->done")
    result = await run_pipeline(text, agents=agent, logs_root=tmp_path)
    assert result.completed == ("start", "a", "gate", "done")


async def test_an_agent_cannot_set_values_of_people_or_the_graph() -> None:
    said = '{"outcome": "success", "context_updates": {"graph.goal": "x", "human.gate.selected": "Yes", "found": 3}}'
    agent: Agent[None, Any] = Agent(FunctionModel(lambda messages, info: ModelResponse(parts=[TextPart(said)])))
    result = await run_pipeline(graph("a [prompt=a]; start->a->done"), agents=agent)
    assert result.context["found"] == 3 and result.context.get("graph.goal") != "x"
    assert "human.gate.selected" not in result.context
    assert result.outcomes["a"].notes.endswith("(not an agent's to set: graph.goal, human.gate.selected)")
