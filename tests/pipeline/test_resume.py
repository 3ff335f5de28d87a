"""A run that is taken up ends as if it had not stopped; what its stages are told meanwhile; what is refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest

from context_compiler.errors import GraphError, PipelineError
from context_compiler.pipeline import (
    AnswerValue,
    Edge,
    Event,
    Graph,
    MemoryRuns,
    Node,
    Outcome,
    QueueInterviewer,
    Reply,
    RunInfo,
    SQLiteRuns,
    Stage,
    StageStatus,
    resume_pipeline,
    run_pipeline,
)
from context_compiler.pipeline.stores.sql import Statement
from tests.pipeline.conftest import Open
from tests.pipeline.playing import Heard, Script, graph, no_wait
from tests.pipeline.resuming import LONG, Stopping, half, scripted, told


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 9])
async def test_resume_parity_after_every_single_checkpoint(step: int) -> None:
    whole = await run_pipeline(LONG, handlers=scripted(), run_id="r", sleep=no_wait)
    assert whole.ok and whole.state.lineage.attempt == 2
    points = 0
    for after in range(1, 60, step):
        runs = Stopping(after)
        try:
            result = await run_pipeline(LONG, handlers=scripted(), run_id="r", runs=runs, sleep=no_wait)
        except KeyError:
            points += 1
            runs.left = -1
            result = await resume_pipeline("r", handlers=scripted(), runs=runs, sleep=no_wait)
        assert told(result.state) == told(whole.state), f"stopped after {after} checkpoints"
    assert points * step > 20


async def test_completed_stages_do_not_run_again(open_store: Open) -> None:
    text = graph("a; b; c; start->a->b->c->done")
    script, store = Script(), open_store()
    await half(text, store, "b", handlers={"codergen": script})
    await store.close()
    again, store = Script(), open_store()
    result = await resume_pipeline("r", handlers={"codergen": again}, runs=store)
    assert result.ok and again.seen == ["b", "c"] and script.seen == ["a"]
    kinds = [event.kind for event in await store.events("r")]
    assert "run_resumed" in kinds
    numbers = [event.sequence for event in await store.events("r")]
    assert numbers == sorted(set(numbers))
    ended = await resume_pipeline("r", runs=store)
    assert ended.state == result.state
    await store.close()


# Idempotency keys.

PAY = graph("a; pay [max_retries=3]; start->a->pay->done")
PAY_IN_A_BRANCH = graph(
    "p [shape=component]; pay [max_retries=3]; b; j [shape=tripleoctagon]; start->p; p->pay->j; p->b->j; j->done"
)


@pytest.mark.parametrize(("text", "key"), [(PAY, "r/pay/1"), (PAY_IN_A_BRANCH, "r/pay/pay/1")])
async def test_the_interrupted_attempt_is_repeated_with_its_key_and_later_ones_follow_it(
    text: str, key: str, open_store: Open
) -> None:
    store, seen, there = open_store(), list[str](), asyncio.Event()

    async def pay(stage: Stage) -> Outcome:
        if stage.node.name != "pay":
            return Outcome()
        seen.append(stage.key)
        if len(seen) == 2:  # its process dies here
            there.set()
            await asyncio.Event().wait()
        return Outcome(status=StageStatus.RETRY)

    options: dict[str, Any] = {"runs": store, "handlers": {"codergen": pay}, "sleep": no_wait}
    task = asyncio.create_task(run_pipeline(text, run_id="r", **options))
    await asyncio.wait_for(there.wait(), 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await store.close()
    options["runs"] = again = open_store()
    result = await resume_pipeline("r", **options)
    assert [attempt.removeprefix(key) for attempt in seen] == ["/1", "/2", "/2", "/3", "/4"]
    assert result.outcomes["pay"].failure_reason == "max retries exceeded"
    state = await again.load("r")
    assert state is not None and state.attempts == {}
    await again.close()


async def test_an_attempt_whose_number_cannot_be_saved_does_not_start(tmp_path: Path) -> None:
    store, seen = SQLiteRuns(tmp_path / "runs.db"), list[str]()

    async def pay(stage: Stage) -> Outcome:
        seen.append(stage.key)
        await store.database.transact(Statement("ALTER TABLE cells RENAME TO away"))
        return Outcome(status=StageStatus.RETRY)

    text = graph("pay [max_retries=3]; start->pay->done")
    with pytest.raises(PipelineError, match="what was saved before is intact"):
        await run_pipeline(text, runs=store, run_id="r", handlers={"codergen": pay}, sleep=no_wait)
    assert seen == ["r/pay/1/1"]
    await store.close()


# Fidelity degrade-on-resume.

FULL = graph(
    "node [fidelity=full thread_id=t]; a [prompt=a]; b [prompt=b]; c [prompt=c]; start->a->b->c->done",
)


async def test_fidelity_degrades_on_resume_exactly_once() -> None:
    store, heard = MemoryRuns(), Heard()
    await half(FULL, store, "b", model=heard.model)
    events: list[Event] = []
    result = await resume_pipeline("r", runs=store, model=heard.model, on_event=events.append)
    modes = {event.node: event.data["fidelity"] for event in events if event.kind == "stage_started"}
    assert (modes["b"], modes["c"]) == ("summary:high", "full")
    assert heard.prompts[-2].startswith("## Pipeline State (Comprehensive)") and heard.prompts[-2].endswith("\n\nb")
    assert heard.prompts[-1] == "c" and len(heard.requests[-1]) == 3  # after the prompt and the answer of b
    assert "internal.resume.fidelity_override_once" not in result.context


async def test_the_marker_is_there_for_one_stage_and_in_no_checkpoint() -> None:
    store = MemoryRuns()
    await half(FULL, store, "b", handlers={"codergen": Script()})
    seen: dict[str, Any] = {}

    def look(stage: Stage) -> str:
        seen[stage.node.name] = stage.context.get("internal.resume.fidelity_override_once")
        return "ok"

    script = Script({"b": [look], "c": [look]})
    result = await resume_pipeline("r", runs=store, handlers={"codergen": script})
    assert seen == {"b": "summary:high", "c": None}
    assert "internal.resume.fidelity_override_once" not in result.context


async def test_other_modes_do_not_degrade() -> None:
    text = graph("node [fidelity=truncate]; a; b; start->a->b->done")
    store = MemoryRuns()
    await half(text, store, "b", handlers={"codergen": Script()})
    script = Script()
    await resume_pipeline("r", runs=store, handlers={"codergen": script})
    assert script.stages[0].fidelity == "truncate"


async def test_threads_can_be_restored_instead(open_store: Open) -> None:
    store, heard = open_store(), Heard({"a": "first"})
    await half(FULL, store, "c", model=heard.model)
    await store.close()
    store = open_store()
    await resume_pipeline("r", runs=store, model=heard.model, resume_threads="restore")
    last = heard.requests[-1]
    assert len(last) == 5 and heard.prompts[-1] == "c"
    assert str(last[1].parts[0].content) == "first"
    await store.close()


async def test_the_conversation_restored_after_a_jump_back_is_the_new_one(open_store: Open) -> None:
    text = graph(
        "build [prompt=build fidelity=full thread_id=t]; check [type=own retry_target=build];"
        "ship [prompt=ship fidelity=full thread_id=t]; start->build->check->ship->done"
    )

    async def check(stage: Stage) -> Outcome:
        return Outcome(status=StageStatus.FAIL if stage.visit == 1 else StageStatus.SUCCESS)

    store, heard = open_store(), Heard({"build": ["first", "second"]})
    await half(text, store, "ship", model=heard.model, handlers={"own": check})
    await store.close()
    store = open_store()
    await resume_pipeline("r", runs=store, model=heard.model, handlers={"own": check}, resume_threads="restore")
    assert heard.prompts == ["build", "build", "ship"]
    assert str(heard.requests[-1][1].parts[0].content) == "second"
    await store.close()


# What is refused.


async def test_a_run_that_cannot_be_resumed_is_refused_with_the_reason(tmp_path: Path) -> None:
    store, script = MemoryRuns(), {"codergen": Script()}
    with pytest.raises(PipelineError, match="there is no run 'r'"):
        await resume_pipeline("r", runs=store)
    await half(graph("a; b; start->a->b->done"), store, "b", handlers=script)
    with pytest.raises(GraphError, match="belongs to another graph"):
        await resume_pipeline("r", runs=store, pipeline=graph("a; b; start->b->a->done"), handlers=script)
    with pytest.raises(PipelineError, match="run_id mismatch"):
        await resume_pipeline("r", runs=store, run_id="s", handlers=script)
    state = await store.load("r")
    assert state is not None
    await store.save(replace(state, next_node="gone"))
    with pytest.raises(PipelineError, match="no stage 'gone'"):
        await resume_pipeline("r", runs=store, handlers=script)
    await store.save(replace(state, next_node=None))
    with pytest.raises(PipelineError, match="names no next stage"):
        await resume_pipeline("r", runs=store, handlers=script)
    with pytest.raises(PipelineError, match=r"there is no checkpoint\.json"):
        await resume_pipeline(tmp_path)


async def test_a_run_can_be_resumed_from_its_folder(tmp_path: Path) -> None:
    await half(graph("a; b; start->a->b->done"), None, "b", handlers={"codergen": Script()}, logs_root=tmp_path)
    script = Script()
    result = await resume_pipeline(tmp_path, handlers={"codergen": script})
    assert result.ok and script.seen == ["b"] and result.run_id == "r"


async def test_a_damaged_database_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "runs.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(PipelineError, match=r"runs\.db"):
        await resume_pipeline("r", runs=tmp_path / "runs.db")


async def test_a_resumed_run_degrades_at_the_first_stage_with_context() -> None:
    text = graph(
        "node [fidelity=full thread_id=t]; a [prompt=a]; t [shape=parallelogram tool_command=true]; q [shape=diamond];"
        "b [prompt=b]; c [prompt=c]; start->a->t->q->b->c->done"
    )
    store = MemoryRuns()
    await half(text, store, "t", handlers={"codergen": Script()})
    script = Script()
    await resume_pipeline("r", runs=store, handlers={"codergen": script})
    assert [str(stage.fidelity) for stage in script.stages] == ["summary:high", "full"]


@pytest.mark.parametrize(("restore", "before"), [("degrade", 0), ("restore", 2)])
async def test_the_first_stage_after_a_resume_begins_its_thread_anew_and_later_ones_see_it(
    restore: Literal["degrade", "restore"], before: int
) -> None:
    text = graph(
        "node [fidelity=full thread_id=t]; a [prompt=first]; b [prompt=second]; c [prompt=third]; d [prompt=fourth];"
        "start->a->b->c->d->done"
    )
    store, heard = MemoryRuns(), Heard({"first": "one", "second": "two", "third": "three"})
    await half(text, store, "b", model=heard.model)
    heard.requests.clear()
    result = await resume_pipeline("r", runs=store, model=heard.model, resume_threads=restore)
    assert result.ok and [len(request) for request in heard.requests] == [before + 1, before + 3, before + 5]
    said = [str(getattr(part, "content", "")) for message in heard.requests[-1] for part in message.parts]
    assert said[before + 1 :] == ["two", "third", "three", "fourth"]
    assert said[before].endswith("second") and ("- a: success — one" in said[before]) == (restore == "degrade")
    assert [name for name, _ in result.threads["t"].marks] == [*"abcd"[0 if before else 1 :]]


async def test_each_branch_of_a_resumed_parallel_stage_degrades_once() -> None:
    text = graph(
        "node [fidelity=full thread_id=t]; a; p [shape=component max_parallel=1]; b; c; d; j [shape=tripleoctagon];"
        "e; start->a->p; p->b->c->j; p->d->j; j->e->done"
    )
    store = MemoryRuns()
    await half(text, store, "p", handlers={"codergen": Script()})
    script = Script()
    await resume_pipeline("r", runs=store, handlers={"codergen": script})
    modes = {stage.node.name: str(stage.fidelity) for stage in script.stages}
    assert modes == {"b": "summary:high", "c": "full", "d": "summary:high", "e": "full"}


async def test_a_run_is_saved_before_its_first_event_is_sent() -> None:
    store, kept = MemoryRuns(), list[str | None]()

    async def hear(event: Event) -> None:
        state = await store.load("r")
        kept.append(state.next_node if state else None)

    await run_pipeline(graph("a; start->a->done"), runs=store, run_id="r", on_event=hear, handlers=scripted())
    assert kept[0] == "start"


async def test_a_run_stopped_before_its_first_save_is_not_reported_as_unknown() -> None:
    store = MemoryRuns()
    await store.begin(RunInfo(run_id="r", name="", goal="", started_at="", updated_at="", status="running"), {})
    with pytest.raises(PipelineError, match="'r' was stopped before its state was saved: start it under another"):
        await resume_pipeline("r", runs=store)


@pytest.mark.parametrize("where", ["runs.db", "runs"])
async def test_a_run_id_longer_than_a_path_is_accepted(tmp_path: Path, where: str) -> None:
    with pytest.raises(PipelineError, match="there is no run"):
        await resume_pipeline("x" * 5_000, runs=tmp_path / where)
    assert (await run_pipeline(graph("start->done"), runs=tmp_path / where, run_id="y" * 5_000)).ok
    assert (await resume_pipeline("y" * 5_000, runs=tmp_path / where)).ok


@pytest.mark.parametrize("name", ["artifacts", "Artifacts", "children", "attempt-2", "checkpoint.json"])
async def test_a_stage_may_have_the_name_of_a_part_of_the_run_folder(tmp_path: Path, name: str) -> None:
    text = graph(f'"{name}" [prompt=Build]; h [shape=hexagon]; start->"{name}"->h->done')
    folder, nobody = tmp_path / "run", QueueInterviewer([Reply(value=AnswerValue.UNAVAILABLE)])
    await run_pipeline(text, simulate=True, logs_root=folder, run_id="r", interviewer=nobody)
    result = await resume_pipeline(folder, simulate=True)
    assert result.ok and result.completed == ("start", name, "h", "done")


@pytest.mark.parametrize(
    "attrs", [{"prompt": "first\r\nsecond"}, {"quorum_fraction": 2 / 3}, {"quorum_fraction": 1e-9}]
)
async def test_a_graph_made_in_python_can_be_resumed_by_the_id_of_its_run(attrs: dict[str, Any]) -> None:
    given: dict[str, dict[str, Any]] = {
        "start": {"shape": "Mdiamond"},
        "a": attrs,
        "h": {"shape": "hexagon"},
        "done": {"shape": "Msquare"},
    }
    edges = tuple(Edge(source=source, target=target) for source, target in pairwise(given))
    made = Graph(name="g", nodes={name: Node(name=name, attrs=values) for name, values in given.items()}, edges=edges)
    runs, nobody = MemoryRuns(), QueueInterviewer([Reply(value=AnswerValue.UNAVAILABLE)])
    await run_pipeline(made, simulate=True, runs=runs, run_id="r", interviewer=nobody)
    assert (await resume_pipeline("r", simulate=True, runs=runs)).ok
