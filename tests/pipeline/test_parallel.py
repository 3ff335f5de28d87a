"""Branches really run, at once and apart from each other; how they are joined, and what is known of them after."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from context_compiler.errors import GraphError
from context_compiler.pipeline import Event, Outcome, Stage, StageStatus, parse_dot, run_pipeline
from context_compiler.pipeline.graph import join_stage
from tests.pipeline.playing import Heard, Script, graph, play

OK, FAIL = Outcome(), Outcome(status=StageStatus.FAIL, failure_reason="broken")
PARTIAL, SKIPPED = Outcome(status=StageStatus.PARTIAL_SUCCESS), Outcome(status=StageStatus.SKIPPED)


def fan(attrs: str = "", *, join: str = "", names: str = "abc") -> str:
    edges = "; ".join(f"p->{name}->j" for name in names)
    return graph(
        f"p [shape=component {attrs}]; {'; '.join(names)}; j [shape=tripleoctagon {join}]; start->p; {edges}; j->done"
    )


async def test_all_branches_run_and_then_the_join() -> None:
    result, script = await play(fan())
    assert result.ok and sorted(script.seen) == ["a", "b", "c"]
    assert result.completed == ("start", "a", "b", "c", "p", "j", "done")
    rows = result.context["parallel.results"]
    assert [(row["branch_id"], row["target_node"], row["status"]) for row in rows] == [
        *(("a", "a", "success"), ("b", "b", "success"), ("c", "c", "success")),
    ]
    counts = {key: result.context[f"parallel.{key}"] for key in ("branch_count", "success_count", "fail_count")}
    assert counts == {"branch_count": 3, "success_count": 3, "fail_count": 0}


async def test_branches_run_concurrently_up_to_the_limit() -> None:
    running, most = 0, 0

    async def work(stage: Stage) -> Outcome:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return OK

    await run_pipeline(fan(names="abcdef"), handlers={"codergen": work})
    assert most == 4
    most = 0
    await run_pipeline(fan("max_parallel=2", names="abcdef"), handlers={"codergen": work})
    assert most == 2


async def test_a_branch_sees_nothing_of_another_and_the_run_sees_only_results() -> None:
    seen: dict[str, Any] = {}

    async def work(stage: Stage) -> Outcome:
        before = stage.context.get("shared")
        before.append(stage.node.name)
        stage.context.set("shared", before)
        await asyncio.sleep(0.005)
        seen[stage.node.name] = (stage.context.get("shared"), stage.context.get("work.branch_id"))
        return Outcome(context_updates={"mine": stage.node.name})

    result = await run_pipeline(fan(names="ab"), handlers={"codergen": work}, context={"shared": []})
    assert seen == {"a": (["a"], "a"), "b": (["b"], "b")}
    assert result.context["shared"] == [] and "mine" not in result.context
    rows = result.context["parallel.results"]
    assert [row["context_updates"] for row in rows] == [{"mine": "a", "shared": ["a"]}, {"mine": "b", "shared": ["b"]}]


@pytest.mark.parametrize(
    ("policy", "outcomes", "expected"),
    [
        ("", (OK, FAIL, OK), "partial_success"),
        ("", (FAIL, FAIL, FAIL), "fail"),
        ("", (SKIPPED, FAIL, FAIL), "fail"),
        ("", (SKIPPED, SKIPPED, SKIPPED), "success"),
        ("wait_all", (OK, PARTIAL, OK), "success"),
        ("all_success", (OK, PARTIAL, OK), "success"),
        ("all_success", (OK, FAIL, OK), "fail"),
        ("any_success", (FAIL, FAIL, OK), "success"),
        ("any_success", (FAIL, FAIL, FAIL), "fail"),
        ("first_success", (OK, FAIL, FAIL), "success"),
        ("first_success", (FAIL, FAIL, FAIL), "fail"),
        ("quorum", (OK, OK, FAIL), "success"),
        ("quorum", (OK, FAIL, FAIL), "fail"),
        ("quorum quorum_count=1", (OK, FAIL, FAIL), "success"),
        ("quorum quorum_count=99", (OK, OK, FAIL), "fail"),
        ("quorum quorum_fraction=0.9", (OK, OK, FAIL), "fail"),
        ("quorum quorum_ratio=0.3", (OK, FAIL, FAIL), "success"),
        ("k_of_n k=2", (OK, OK, FAIL), "success"),
        ("k_of_n k=3", (OK, OK, FAIL), "fail"),
        ("k_of_n", (OK, FAIL, FAIL), "success"),
        ("ignore", (FAIL, FAIL, FAIL), "success"),
        ("wait_all error_policy=ignore", (OK, FAIL, OK), "success"),
        ("wait_all error_policy=ignore", (FAIL, FAIL, FAIL), "success"),
    ],
)
async def test_join_policies(policy: str, outcomes: tuple[Outcome, ...], expected: str) -> None:
    attrs = f"join_policy={policy}" if policy else ""
    result, _ = await play(fan(attrs), {name: [one] for name, one in zip("abc", outcomes, strict=True)})
    assert result.outcomes["p"].status == expected


async def test_an_unknown_policy_is_refused_before_the_run() -> None:
    with pytest.raises(GraphError, match="join_policy"):
        await play(fan("join_policy=most"))


async def test_a_failed_join_ends_the_run_or_goes_to_its_retry_target() -> None:
    result, _ = await play(fan("join_policy=all_success"), {"b": [FAIL]})
    assert result.failure_reason == "p: all_success is not met; b: b: broken" or "b" in result.failure_reason
    result, script = await play(fan("join_policy=all_success retry_target=p"), {"b": [FAIL, OK]})
    assert result.ok and script.seen.count("b") == 2


async def test_the_first_success_does_not_wait_for_the_others() -> None:
    async def work(stage: Stage) -> Outcome:
        if stage.node.name != "b":
            await asyncio.sleep(3_600)
        return OK

    result = await asyncio.wait_for(
        run_pipeline(fan("join_policy=first_success"), handlers={"codergen": work}), timeout=300
    )
    assert [row["status"] for row in result.context["parallel.results"]] == ["skipped", "success", "skipped"]
    assert result.context["parallel.fan_in.best_id"] == "b"


async def test_fail_fast_stops_the_other_branches() -> None:
    async def work(stage: Stage) -> Outcome:
        if stage.node.name != "b":
            await asyncio.sleep(3_600)
        return FAIL

    text = fan("error_policy=fail_fast")
    result = await asyncio.wait_for(run_pipeline(text, handlers={"codergen": work}), timeout=300)
    assert [row["status"] for row in result.context["parallel.results"]] == ["skipped", "fail", "skipped"]
    assert result.failure_reason == "j: no branch succeeded"


def joined(at: str, *, attrs: str = "", more: str = "") -> str:
    """Two branches that join at a stage that is no fan-in."""
    return graph(f"p [shape=component {attrs}]; a; b; start->p; p->a->{at}; p->b->{at}; {more}")


@pytest.mark.parametrize(("join", "more"), [("done", ""), ("c", "c; c->done"), ("q", "q [shape=diamond]; q->done")])
async def test_no_successful_branch_is_a_failure_at_every_join(join: str, more: str) -> None:
    every = {"a": [FAIL], "b": [FAIL]}
    result, script = await play(joined(join, more=more), every)
    assert result.status == "fail" and "no branch succeeded" in result.failure_reason
    assert "c" not in script.seen
    assert (await play(joined(join, more=more), {"a": [FAIL]}))[0].ok
    assert (await play(joined(join, more=more, attrs="error_policy=ignore"), every))[0].ok
    assert (await play(joined(join, more=more), every, strict_failure_edges=False))[0].ok
    result, script = await play(joined(join, more=more, attrs="retry_target=p"), {"a": [FAIL, OK], "b": [FAIL]})
    assert result.ok and script.seen[:4] == ["a", "b", "a", "b"]


async def test_a_failure_of_all_branches_follows_its_failure_edge() -> None:
    every = {name: [FAIL] for name in "ab"}
    ways = 'q [shape=diamond]; c; q->c [condition="outcome=fail"]; q->done [condition="outcome!=fail"]; c->done'
    result, script = await play(joined("q", more=ways), every)
    assert result.ok and script.seen == ["a", "b", "c"]
    text = fan(names="ab").replace("j->done", 'c; j->c [condition="outcome=fail"]; j->done; c->done')
    result, script = await play(text, every)
    assert result.ok and script.seen == ["a", "b", "c"]


async def test_results_of_an_earlier_round_hide_no_failure_of_the_parallel_stage() -> None:
    async def work(stage: Stage) -> Outcome:
        if stage.visit > 1:
            await asyncio.sleep(3_600)
        return OK

    text = fan("timeout=100ms").replace("j->done", 'j->p [condition="context.again!=no"]; j->done')
    result = await asyncio.wait_for(run_pipeline(text, handlers={"codergen": work}), timeout=300)
    assert result.failure_reason == "p: timed out after 0.1 s"


async def test_a_branch_that_raises_is_a_branch_that_failed() -> None:
    result, _ = await play(fan(), {"b": [RuntimeError("boom")]})
    assert [row["status"] for row in result.context["parallel.results"]] == ["success", "fail", "success"]
    assert "boom" in result.context["parallel.results"][1]["failure_reason"]


async def test_results_are_in_the_order_of_names() -> None:
    async def work(stage: Stage) -> Outcome:
        await asyncio.sleep({"a": 0.03, "b": 0.02, "c": 0.0}[stage.node.name])
        return OK

    result = await run_pipeline(fan(), handlers={"codergen": work})
    assert [row["branch_id"] for row in result.context["parallel.results"]] == ["a", "b", "c"]
    assert result.completed == ("start", "a", "b", "c", "p", "j", "done")


async def test_a_branch_has_stages_loops_and_junctions_of_its_own() -> None:
    text = graph(
        "p [shape=component]; a; a2; b; q [shape=diamond]; j [shape=tripleoctagon]; start->p->a->q;"
        'q->a2 [condition="outcome=success"]; q->a [condition="outcome=fail"]; a2->j; p->b->j; j->done'
    )
    result, script = await play(text, {"a": [FAIL, OK]})
    assert result.ok and [name for name in script.seen if name != "b"] == ["a", "a", "a2"]
    assert result.state.visits["a"] == 2


async def test_parallel_stages_can_be_nested() -> None:
    text = graph(
        "p [shape=component]; q [shape=component]; a; b; c; k [shape=tripleoctagon]; j [shape=tripleoctagon];"
        "start->p; p->q; q->a->k; q->b->k; k->j; p->c->j; j->done"
    )
    result, script = await play(text)
    assert result.ok and sorted(script.seen) == ["a", "b", "c"]
    assert result.context["parallel.branch_count"] == 2


def test_branches_meet_at_the_nearest_common_join() -> None:
    nested = parse_dot(
        graph(
            "p [shape=component]; a; b; m; j [shape=tripleoctagon]; k [shape=tripleoctagon];"
            "start->p; p->a->m; p->b->m; m->j->k->done"
        )
    )
    assert join_stage(nested, "p") == "j"
    assert join_stage(parse_dot(graph("p; a; b; m; start->p; p->a->m; p->b->m; m->done")), "p") == "m"
    assert join_stage(parse_dot(graph("p; a; b; start->p->a; p->b; b->done")), "p") is None


async def test_a_gate_in_a_branch_counts_at_the_end() -> None:
    text = fan().replace("a; b; c;", "a [goal_gate=true]; b; c;")
    result, _ = await play(text, {"a": [FAIL]})
    assert result.failure_reason == "goal gate a unsatisfied and no retry target: broken"


@pytest.mark.parametrize("failing", ["a", "b"])
async def test_a_gate_that_two_branches_share_counts_as_failed_if_it_failed_in_any(failing: str) -> None:
    text = graph(
        "p [shape=component]; a; b; g [goal_gate=true]; j [shape=tripleoctagon];start->p; p->a->g; p->b->g; g->j->done"
    )

    def gate(stage: Stage) -> Outcome:
        return FAIL if stage.branch_id == failing and stage.visit == 1 else OK

    result, _ = await play(text, {"g": [gate]})
    assert result.failure_reason == "goal gate g unsatisfied and no retry target: broken"
    result, script = await play(text.replace("a;", "a; graph [retry_target=p];", 1), {"g": [gate]})
    assert result.ok and script.seen.count("g") == 4


async def test_branches_of_a_thread_do_not_see_each_other() -> None:
    heard = Heard()
    text = graph(
        "node [fidelity=full thread_id=t]; one [prompt=one]; p [shape=component]; a [prompt=a]; b [prompt=b];"
        "j [shape=tripleoctagon]; two [prompt=two]; start->one->p; p->a->j; p->b->j; j->two->done"
    )
    await run_pipeline(text, model=heard.model)
    said = {prompt: len(request) for prompt, request in zip(heard.prompts, heard.requests, strict=True)}
    assert said == {"one": 1, "a": 3, "b": 3, "two": 3}


# The join.


async def test_the_best_is_ranked_by_status_then_score_then_name() -> None:
    scored = Outcome(context_updates={"score": 5})
    result, _ = await play(fan(), {"a": [PARTIAL], "b": [OK], "c": [scored]})
    keys = ("best_id", "best_outcome", "best_score", "candidate_count", "method")
    best = {key: result.context[f"parallel.fan_in.{key}"] for key in keys}
    assert best == {"best_id": "c", "best_outcome": "success", "best_score": 5, "candidate_count": 3, "method": "rank"}


async def test_a_join_fails_only_when_every_branch_did() -> None:
    result, _ = await play(fan(), {name: [FAIL] for name in "abc"})
    assert result.outcomes["j"].failure_reason == "every branch failed"
    result, _ = await play(fan(), {name: [FAIL] for name in "ab"})
    assert result.outcomes["j"].status == "success"


async def test_a_join_without_branches_fails() -> None:
    result, _ = await play(graph("j [shape=tripleoctagon]; start->j->done"))
    assert result.outcomes["j"].failure_reason == "No parallel results to evaluate"


async def test_an_agent_ranks_at_a_join_with_a_prompt_and_the_rule_ranks_if_it_fails() -> None:
    heard = Heard({"]": "b"})
    result = await run_pipeline(fan(join='prompt="Pick one."'), model=heard.model)
    assert (result.context["parallel.fan_in.best_id"], result.context["parallel.fan_in.method"]) == ("b", "agent")
    assert "Pick one." in heard.prompts[-1] and '"branch_id": "a"' in heard.prompts[-1]
    heard = Heard({"]": "all of them: a, b, c"})
    result = await run_pipeline(fan(join='prompt="Pick one."'), model=heard.model)
    assert (result.context["parallel.fan_in.best_id"], result.context["parallel.fan_in.method"]) == ("a", "rank")


async def test_events_of_branches_name_their_branch() -> None:
    events: list[Event] = []
    await run_pipeline(fan(names="ab"), handlers={"codergen": Script()}, on_event=events.append)
    kinds = [event.kind for event in events if event.kind.startswith("parallel")]
    assert kinds[0] == "parallel_started" and kinds[-1] == "parallel_completed"
    assert {event.branch for event in events if event.node in ("a", "b")} == {"a", "b"}


async def test_a_branch_that_leads_back_to_its_own_parallel_stage_fails() -> None:
    text = graph(
        "i; p [shape=component]; a [retry_target=i]; b [retry_target=i]; j [shape=tripleoctagon];"
        "start->i->p; p->a->j; p->b->j; j->done"
    )
    result, script = await play(text, {"a": [FAIL], "b": [FAIL]}, max_visits=8)
    assert result.status == "fail" and script.seen.count("i") == 3
    assert "the branch leads back to p" in result.context["parallel.results"][0]["failure_reason"]


async def test_a_junction_at_the_start_of_a_branch_knows_nothing_of_an_earlier_round() -> None:
    text = graph(
        "p [shape=component retry_target=p]; d [shape=diamond]; a; b; j [shape=tripleoctagon];"
        "start->p; p->d; d->a; a->j; p->b; b->j; j->done"
    )
    result, script = await play(text, {"a": [FAIL, OK], "b": [FAIL, OK]})
    assert result.ok and sorted(script.seen) == ["a", "a", "b", "b"]


async def test_a_branch_reports_context_whose_names_begin_like_those_of_the_run() -> None:
    given = {"outcome_reason": "flaky", "last_commit": "abc", "mine": 1}
    result, _ = await play(fan(names="ab"), {"a": [Outcome(context_updates={**given, "last_stage": "a"})]})
    assert result.context["parallel.results"][0]["context_updates"] == given
