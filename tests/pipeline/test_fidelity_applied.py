"""What a fidelity says is what a stage is sent: looked at through the engine, with a model that remembers."""

from __future__ import annotations

import json
from typing import Any

from context_compiler.pipeline import Engine, RunConfig, Stage, parse_dot, run_pipeline
from context_compiler.pipeline.threads import Session
from context_compiler.record.store import MemoryStore
from tests.pipeline.playing import Heard, Script, graph, no_wait, prompt_of
from tests.support.builders import texts_of
from tests.support.histories import prose

GOLDEN = """digraph pipeline {
    // Graph-level default
    default_fidelity="compact"

    start [shape=Mdiamond]

    // Explicit fidelity on a node
    analyze [shape=box prompt="Analyze the codebase" fidelity="summary:medium"]

    // Full fidelity with shared thread
    implement [shape=box prompt="Implement changes" fidelity="full" thread_id="coding"]
    review [shape=box prompt="Review implementation" fidelity="full" thread_id="coding"]

    // Truncate for independent stage
    deploy [shape=box prompt="Deploy to staging" fidelity="truncate"]

    done [shape=Msquare]

    start -> analyze
    analyze -> implement

    // Edge-level fidelity override
    implement -> review [fidelity="full"]
    review -> implement [condition="review_passed == false" fidelity="full"]
    review -> deploy [condition="review_passed == true" fidelity="truncate"]
    deploy -> done
}"""

ANSWERS = {
    "Analyze the codebase": "Two modules, one bug.",
    "Implement changes": ["First try.", "Second try."],
    "Review implementation": [
        'No.\n{"outcome": "success", "context_updates": {"review_passed": false}}',
        'Yes.\n{"outcome": "success", "context_updates": {"review_passed": true}}',
    ],
    "Deploy to staging": "Deployed.",
}


async def test_each_stage_of_the_example_is_sent_the_context_of_its_fidelity() -> None:
    heard, store, events = Heard(ANSWERS), MemoryStore(), []
    result = await run_pipeline(GOLDEN, model=heard.model, store=store, run_id="golden", on_event=events.append)

    assert result.ok
    assert result.completed == (*("start", "analyze", "implement", "review", "implement", "review", "deploy", "done"),)
    modes = [(event.node, event.data["fidelity"]) for event in events if event.kind == "stage_started"]
    assert modes == [
        *(("start", "compact"), ("analyze", "summary:medium"), ("implement", "full"), ("review", "full")),
        *(("implement", "full"), ("review", "full"), ("deploy", "truncate"), ("done", "compact")),
    ]
    assert heard.prompts == [
        "## Pipeline Progress\n\nPipeline: pipeline\nGoal: \nStage: analyze (2/6)\n\n### Recent Activity\n"
        "- start: success\n\n### Active Context\n- none\n\nAnalyze the codebase",
        "Implement changes",
        "Review implementation",
        "Implement changes",
        "Review implementation",
        "Pipeline: pipeline\nGoal: \nRun ID: golden\nCurrent stage: deploy\n\nDeploy to staging",
    ]
    assert [len(request) for request in heard.requests] == [1, 1, 3, 5, 7, 1]


async def test_the_thread_is_one_conversation_from_first_to_last() -> None:
    heard = Heard(ANSWERS)
    await run_pipeline(GOLDEN, model=heard.model)

    last = heard.requests[4]
    said = [
        str(part.content) for message in last for part in message.parts if part.part_kind in ("user-prompt", "text")
    ]
    assert said[0] == "Implement changes"
    assert said[1] == "First try."
    assert said[2] == "Review implementation"
    assert said[5] == "Second try."


async def test_the_request_of_each_stage_is_recorded() -> None:
    heard, store = Heard(ANSWERS), MemoryStore()
    await run_pipeline(GOLDEN, model=heard.model, store=store, run_id="golden")

    requests = {info.session_id: info.requests for info in await store.sessions()}
    assert requests == {"golden/analyze": 1, "golden/implement": 2, "golden/review": 2, "golden/deploy": 1}
    (record,) = await store.views("golden/deploy")
    assert record.view_tip is not None
    (body,) = await store.chain(record.view_tip)
    assert b"Run ID: golden" in body and b"Deploy to staging" in body


async def test_a_request_is_capped_to_the_budget_it_was_given() -> None:
    heard = Heard({"b": "x"})
    text = graph(
        'a [prompt="a" fidelity=full thread_id=t]; b [prompt="b" fidelity=full thread_id=t]; start->a->b->done'
    )
    heard.answers["a"] = ["word " * 4_000]
    store = MemoryStore()
    budget = {"budget": 2_000, "model": "none", "system": None}
    result = await run_pipeline(text, model=heard.model, store=store, compiler=budget, run_id="r")
    assert result.ok
    (record,) = await store.views("r/b")
    assert record.tokens_raw > 4_000 and record.tokens_sent <= 2_000


async def test_the_reference_to_a_large_value_resolves_to_it() -> None:
    large = "word " * 4_000
    heard = Heard({"a": json.dumps({"outcome": "success", "context_updates": {"report": large}})})
    text = graph('a [prompt="a"]; b [prompt="b"]; start->a->b->done')
    result = await run_pipeline(text, model=heard.model)
    assert "artifact://context.report" in heard.prompts[-1] and large not in heard.prompts[-1]
    assert result.state.artifacts["context.report"]["data"] == large


async def test_the_fidelity_of_the_edge_taken_decides() -> None:
    heard = Heard({"a": '{"outcome": "fail"}'})
    text = graph(
        'a [prompt="a"]; b [prompt="b" fidelity="summary:low"]; start->a;'
        'a->b [condition="outcome=success" fidelity=compact]; '
        'a->b [condition="outcome=fail" fidelity=truncate]; b->done'
    )
    await run_pipeline(text, model=heard.model)
    assert heard.prompts[-1].startswith("Pipeline: g\nGoal: Ship it\nRun ID: ")


async def test_the_keys_of_a_thread_are_written_and_cleared() -> None:
    seen: dict[str, dict[str, Any]] = {}

    def look(stage: Stage) -> None:
        keys = ("internal.fidelity.mode", "internal.fidelity.thread_key", "thread_key", "_fidelity_preamble")
        values = stage.context.values()
        seen[stage.node.name] = {key: values[key] for key in keys if key in values}

    script = Script({name: [lambda stage: (look(stage), "ok")[1]] for name in "abc"})
    text = graph("a [fidelity=full thread_id=t]; b [fidelity=truncate]; c [fidelity=full]; start->a->b->c->done")
    result = await run_pipeline(text, handlers={"codergen": script})
    assert seen["a"] == {
        "internal.fidelity.mode": "full",
        "internal.fidelity.thread_key": "t",
        "thread_key": "t",
    }
    assert seen["b"].keys() == {"internal.fidelity.mode", "_fidelity_preamble"}
    assert seen["b"]["_fidelity_preamble"].startswith("Pipeline: g\n")
    assert seen["c"]["thread_key"] == "b"
    assert "_fidelity_preamble" not in result.context and "thread_key" not in result.context


async def test_each_thread_key_is_its_own_conversation() -> None:
    graph_of = parse_dot(graph("a; start->a->done"))
    engine = Engine.__new__(Engine)
    engine._thread_sessions = {}
    node = graph_of.nodes["a"]
    first = engine._get_or_create_session("coding", node)
    assert engine._get_or_create_session("coding", node) is first
    assert engine._get_or_create_session("other", node) is not first


async def test_a_fresh_thread_has_no_preamble_either() -> None:
    heard = Heard()
    await run_pipeline(graph('a [prompt="a"]; b [prompt="b" fidelity=full]; start->a->b->done'), model=heard.model)
    assert heard.prompts[1] == "b"


async def test_a_stage_that_a_run_jumps_back_to_does_not_hear_its_own_last_try() -> None:
    heard = Heard({"work": ["one", "two"], "check": ['{"outcome": "fail"}', '{"outcome": "success"}']})
    text = graph(
        "node [fidelity=full thread_id=t];"
        'work [prompt="work"]; check [prompt="check" retry_target=work]; start->work->check;'
        'check->done [condition="outcome=success"]'
    )
    result = await run_pipeline(text, model=heard.model)
    assert result.ok
    assert [len(request) for request in heard.requests] == [1, 3, 1, 3]


async def test_a_repeated_attempt_is_not_seen_twice() -> None:
    heard = Heard({"work": ['{"outcome": "retry"}', "done"]})
    text = graph('work [prompt="work" fidelity=full max_retries=1]; start->work->done')
    result = await run_pipeline(text, RunConfig(model=heard.model, sleep=no_wait))
    assert result.ok and [len(request) for request in heard.requests] == [1, 1]


async def test_a_preamble_lists_the_results_of_branches() -> None:
    heard = Heard({"left": "Left is fine.", "right": "Right is not."})
    text = graph(
        'p [shape=component]; l [prompt="left"]; r [prompt="right"]; j [shape=tripleoctagon];'
        'after [prompt="after" fidelity="summary:high"]; start->p; p->l->j; p->r->j; j->after->done'
    )
    await run_pipeline(text, model=heard.model)
    last = prompt_of(heard.requests[-1])
    assert "- l: success — Left is fine." in last and "- r: success — Right is not." in last


def test_a_conversation_is_cut_back_to_the_start_of_the_last_stage() -> None:
    session = Session(key="t", marks=[("a", 0), ("b", 2), ("a", 4)], messages=[None] * 6)
    session.cut_back("b")
    assert (session.marks, len(session.messages)) == ([("a", 0)], 2)
    session.cut_back("unknown")
    assert len(session.messages) == 2


async def test_a_rule_in_the_prompt_of_a_stage_is_in_every_later_request_of_its_thread() -> None:
    rule, names = "Never push to the branch main.", [f"step{number}" for number in range(16)]
    stages = "; ".join(
        f'{name} [prompt="{prose(number, 60)}" fidelity=full thread_id=t]' for number, name in enumerate(names)
    )
    first = f'plan [prompt="{rule}" fidelity=full thread_id=t]'
    text = graph(f"{first}; {stages}; start->plan->{'->'.join(names)}->done")
    heard = Heard({"": "It is done, and the next step can begin. " * 12})
    declared = "Speak of the pump as <P-7>."
    result = await run_pipeline(text, model=heard.model, compiler={"budget": 900, "recall": 0, "rules": [declared]})
    shown = [
        "\n".join(text for message in request for part in message.parts for text in texts_of(part))
        for request in heard.requests
    ]
    assert result.ok and len(shown) == 17
    assert [text.count(rule) for text in shown] == [1] * 17 == [text.count(declared) for text in shown]
    assert f"- {rule}" in shown[-1]  # its own message has left the view
