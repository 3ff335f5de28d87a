"""A parallel stage that was stopped goes on with the branches that had not ended, and with them alone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from context_compiler.errors import PipelineError
from context_compiler.pipeline import (
    Event,
    MemoryRuns,
    Outcome,
    RunState,
    RunStore,
    Stage,
    StageStatus,
    resume_pipeline,
    run_pipeline,
)
from tests.pipeline.conftest import Open
from tests.pipeline.playing import graph
from tests.pipeline.resuming import told

NESTED = graph(
    "p [shape=component max_parallel=1]; q [shape=component max_parallel=1]; a; b; c; d; e; f;"
    "k [shape=tripleoctagon]; j [shape=tripleoctagon];"
    "start->p; p->a->b->j; p->q; q->c->k; q->d->k; k->e->j; p->f->j; j->done"
)


def working(seen: list[str], *, dies: str = "") -> Mapping[str, Any]:
    """Stages that leave values, large ones too; one of them never ends."""

    async def work(stage: Stage) -> Outcome:
        name = stage.node.name
        seen.append(name)
        if name == dies:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        updates = {f"seen.{name}": stage.visit, "shared": "x" * 10, "given": None, "big": name * 9_000}
        if name == "d":
            return Outcome(status=StageStatus.FAIL, failure_reason="broken", context_updates=updates)
        return Outcome(context_updates={**updates, "score": 3 if name == "f" else 1}, notes=f"did {name}")

    return {"codergen": work}


async def stopped(store: RunStore | None, dies: str, folder: Path | None = None) -> list[str]:
    """Run until one stage has begun, and pull the plug; what has run."""
    seen: list[str] = []
    context = {"given": "before", "kept": [1]}
    task = asyncio.create_task(
        run_pipeline(
            NESTED, handlers=working(seen, dies=dies), runs=store, logs_root=folder, run_id="r", context=context
        )
    )
    while dies not in seen:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return seen


async def whole() -> RunState:
    given = {"given": "before", "kept": [1]}
    return (await run_pipeline(NESTED, handlers=working([]), run_id="r", context=given)).state


@pytest.mark.parametrize(
    ("dies", "again"),
    [
        ("a", ["a", "b", "c", "d", "e", "f"]),
        ("b", ["a", "b", "c", "d", "e", "f"]),
        ("c", ["c", "d", "e", "f"]),
        ("d", ["d", "e", "f"]),
        ("e", ["e", "f"]),
        ("f", ["f"]),
    ],
)
async def test_finished_branches_do_not_run_again_after_a_resume_and_the_result_is_the_same(
    open_store: Open, dies: str, again: list[str]
) -> None:
    store = open_store()
    await stopped(store, dies)
    await store.close()
    seen: list[str] = []
    store = open_store()
    result = await resume_pipeline("r", handlers=working(seen), runs=store)
    assert seen == again
    assert told(result.state) == told(await whole())
    assert result.state.branches == {}
    assert (await store.load("r")) == result.state
    await store.close()


PLANNED = graph(
    "p [shape=component]; q [shape=component max_parallel=1]; plan; c; d; e; f; k [shape=tripleoctagon];"
    "j [shape=tripleoctagon]; start->p; p->plan->q; q->c->k; q->d->k; k->e->j; p->f->j; j->done"
)


@pytest.mark.parametrize(
    ("plan", "again"),
    [
        (Outcome(notes="A", context_updates={"plan": "A"}), ["d", "e", "plan"]),
        (Outcome(notes="A", context_updates={"plan": "B"}), ["c", "d", "e", "plan"]),
        (Outcome(notes="B", context_updates={"plan": "A"}), ["c", "d", "e", "plan"]),
    ],
)
async def test_a_finished_branch_runs_again_if_a_stage_before_it_has_another_result(
    plan: Outcome, again: list[str], open_store: Open
) -> None:
    seen, plans = list[str](), [Outcome(notes="A", context_updates={"plan": "A"}), plan]

    async def work(stage: Stage) -> Outcome:
        seen.append(name := stage.node.name)
        if name == "d" and plans:
            await asyncio.Event().wait()
        return plans.pop(0) if name == "plan" else Outcome()

    store = open_store()
    task = asyncio.create_task(run_pipeline(PLANNED, handlers={"codergen": work}, runs=store, run_id="r"))
    while not {"d", "f"} <= set(seen):
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await store.close()
    seen.clear()
    store = open_store()
    assert (await resume_pipeline("r", handlers={"codergen": work}, runs=store)).ok
    assert sorted(set(seen) - {"f"}) == again
    await store.close()


async def test_a_branch_is_kept_with_the_outcomes_of_its_own_stages_and_no_others() -> None:
    store = MemoryRuns()
    await stopped(store, "f")
    state = await store.load("r")
    assert state is not None
    kept = {key: (sorted(branch["outcomes"]), branch["completed"]) for key, branch in state.branches.items()}
    assert kept == {
        "p.1:a": (["a", "b"], ["a", "b"]),
        "p.1:q": (["c", "d", "e", "k", "q"], ["c", "d", "q", "k", "e"]),
        "q.1:q.c": (["c"], ["c"]),
        "q.1:q.d": (["d"], ["d"]),
    }
    assert state.branches["p.1:q"]["outcomes"]["d"]["failure_reason"] == "broken"


async def test_a_gate_that_must_run_again_is_not_satisfied_by_a_branch_that_was_kept() -> None:
    seen: list[str] = []
    dies = True

    async def work(stage: Stage) -> Outcome:
        seen.append(name := stage.node.name)
        if name == "b" and dies:
            await asyncio.Event().wait()
        return Outcome()

    text = graph(
        "g [goal_gate=true]; p [shape=component]; a; b; j [shape=tripleoctagon];start->g->p; p->a->j; p->b->j; j->done",
    )
    store = MemoryRuns()
    task = asyncio.create_task(run_pipeline(text, handlers={"codergen": work}, runs=store, run_id="r"))
    while not {"a", "b"} <= set(seen):
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    state, dies = await store.load("r"), False
    assert state is not None and list(state.branches) == ["p.1:a"]
    await store.save(replace(state, recheck=("g",)))
    result = await resume_pipeline("r", handlers={"codergen": work}, runs=store)
    assert result.state.recheck == ("g",) and not result.ok


async def test_a_parallel_stage_that_is_visited_again_runs_all_its_branches() -> None:
    seen: list[str] = []

    async def work(stage: Stage) -> Outcome:
        seen.append(stage.node.name)
        return Outcome(status=StageStatus.FAIL if len(seen) == 1 else StageStatus.SUCCESS, failure_reason="broken")

    text = graph(
        "p [shape=component join_policy=all_success retry_target=p]; a; b; j [shape=tripleoctagon];"
        "start->p; p->a->j; p->b->j; j->done"
    )
    result = await run_pipeline(text, handlers={"codergen": work})
    assert result.ok and sorted(seen) == ["a", "a", "b", "b"]


async def test_a_later_round_shares_no_key_with_a_cancelled_branch_even_after_a_crash() -> None:
    keys, begun, dies = list[str](), asyncio.Event(), True

    async def work(stage: Stage) -> Outcome:
        if stage.node.name == "check":
            await begun.wait()
            return Outcome(status=StageStatus.FAIL if stage.visit == 1 else StageStatus.SUCCESS)
        keys.append(stage.key)
        begun.set()
        if dies:
            await asyncio.Event().wait()
        return Outcome()

    text = graph(
        "p [shape=component error_policy=fail_fast retry_target=p]; q [shape=component]; slow; check;"
        "j [shape=tripleoctagon]; start->p; p->q->slow->j; p->check->j; j->done"
    )
    store = MemoryRuns()
    task = asyncio.create_task(run_pipeline(text, handlers={"codergen": work}, runs=store, run_id="r"))
    while len(keys) < 2:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    dies = False
    assert (await resume_pipeline("r", handlers={"codergen": work}, runs=store)).ok
    assert keys == ["r/q.slow/slow/1/1", "r/q@2.slow/slow/1/1", "r/q@2.slow/slow/1/1"]


async def test_a_checkpoint_without_branches_is_read_as_one_that_has_none(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    await stopped(None, "c", tmp_path)
    text = path.read_text()
    assert '"branches": {' in text
    without = text[: text.index(',\n "branches"')] + "\n}"
    path.write_text(without)
    seen: list[str] = []
    assert (await resume_pipeline(tmp_path, handlers=working(seen))).ok
    assert seen == ["a", "b", "c", "d", "e", "f"]


async def test_visits_and_branches_do_not_overwrite_each_others_files(tmp_path: Path) -> None:
    async def work(stage: Stage) -> Outcome:
        where = f"{stage.branch_id or 'main'} {stage.visit}"
        stage.write("note.txt", where)
        again = stage.node.name == "loop" and stage.visit < 3
        return Outcome(preferred_label="again" if again else "on")

    text = graph(
        "loop; p [shape=component]; a; b; both; j [shape=tripleoctagon]; start->loop; loop->loop [label=again];"
        "loop->p [label=on]; p->a->both; p->b->both; both->j->done"
    )
    assert (await run_pipeline(text, handlers={"codergen": work}, logs_root=tmp_path)).ok
    notes = {str(path.parent.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("note.txt")}
    assert notes == {
        **{"loop": "main 1", "loop/visit-2": "main 2", "loop/visit-3": "main 3"},
        **{"a": "a 1", "b": "b 1", "both/branch-a": "a 1", "both/branch-b": "b 1"},
    }
    statuses = {str(path.parent.relative_to(tmp_path)) for path in tmp_path.rglob("status.json")}
    assert {"loop", "loop/visit-2", "loop/visit-3", "both/branch-a"} <= statuses


NESTED_IN_BOTH = "p->a->q; p->b->q; q [shape=component]; q->y->j; q->z->j"
RETRIED_BY_BOTH = "p->a->j; p->b->j; a [retry_target=fix]; b [retry_target=fix]; fix->j"


@pytest.mark.parametrize(
    ("ways", "branches"), [(NESTED_IN_BOTH, ["a.y", "a.z", "b.y", "b.z"]), (RETRIED_BY_BOTH, ["a", "b"])]
)
async def test_no_stage_takes_the_outcome_that_it_left_in_another_branch(
    ways: str, branches: list[str], tmp_path: Path
) -> None:
    begun, taken = list[str](), dict[str, bool]()

    def hear(event: Event) -> None:
        if event.kind == "stage_completed" and event.node in ("y", "z", "fix"):
            taken[event.branch] = event.data["notes"] == "of branch a"

    async def work(stage: Stage) -> Outcome | None:
        name = stage.node.name
        if name in "ab":
            return Outcome(status=StageStatus.FAIL if stage.node.retry_target else StageStatus.SUCCESS)
        begun.append(stage.branch_id)
        while len(begun) < len(branches):
            await asyncio.sleep(0)
        if stage.branch_id.startswith("a"):
            stage.write_status(Outcome(notes="of branch a"))
        await asyncio.sleep(0.01)
        return None

    text = graph(f"node [auto_status=true]; p [shape=component]; j [shape=tripleoctagon]; start->p; {ways}; j->done")
    assert (await run_pipeline(text, handlers={"codergen": work}, logs_root=tmp_path, on_event=hear)).ok
    assert taken == {branch: branch.startswith("a") for branch in branches}


async def test_a_branch_that_could_not_be_saved_still_counts_as_finished() -> None:
    class Busy(MemoryRuns):
        async def save(self, state: RunState) -> None:
            if state.branches:
                raise PipelineError("runs.db: database is locked")
            await super().save(state)

    result = await run_pipeline(NESTED, handlers=working([]), runs=Busy())
    rows = {row["branch_id"]: row["status"] for row in result.context["parallel.results"]}
    assert rows == {"a": "success", "q": "success", "f": "success"}


@pytest.mark.parametrize("kept", [{}, [], "x", {"gone": 1}])
async def test_an_unreadable_saved_branch_is_not_used(kept: Any) -> None:
    store = MemoryRuns()
    await stopped(store, "f")
    state = await store.load("r")
    assert state is not None and len(state.branches) == 4
    await store.save(replace(state, branches={**state.branches, "p.1:a": kept}))
    seen: list[str] = []
    result = await resume_pipeline("r", handlers=working(seen), runs=store)
    assert seen == ["a", "b", "f"] and told(result.state) == told(await whole())
