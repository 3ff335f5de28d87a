"""A child pipeline is a run like any other: kept apart, owned, taken up with its own graph, and never left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from context_compiler.errors import PipelineError, RunOwnedError
from context_compiler.pipeline import Event, MemoryRuns, Outcome, Stage, StageStatus, resume_pipeline, run_pipeline
from context_compiler.pipeline.stores import Lost
from tests.pipeline.playing import graph

PARENT = graph(
    'a [type=work]; m [shape=house stack.child_dotfile="child.dot" manager.poll_interval="10ms"]; start->a->m->done'
)
CHILD = graph("inner [type=work]; start->inner->done")


class Work:
    """Says ok, but waits at one stage for as long as it is told to."""

    def __init__(self, at: str = "inner") -> None:
        self.at, self.there, self.go_on = at, asyncio.Event(), asyncio.Event()
        self.runs: list[tuple[str, str]] = []

    async def __call__(self, stage: Stage) -> str:
        self.runs.append((stage.run_id, stage.node.name))
        if stage.node.name == self.at:
            self.there.set()
            await self.go_on.wait()
        return "ok"


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    (tmp_path / "child.dot").write_text(CHILD)
    (tmp_path / "parent.dot").write_text(PARENT)
    return tmp_path / "parent.dot"


PLACES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "logs": lambda folder: {"logs_root": folder / "logs"},
    "folder": lambda folder: {"runs": folder / "runs"},
    "database": lambda folder: {"runs": folder / "runs.db"},
}


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    return PLACES[request.param](tmp_path)


async def stopped(parent: Path, work: Work, **options: Any) -> None:
    """A run that was cancelled while the child waited."""
    task = asyncio.create_task(run_pipeline(parent, handlers={"work": work}, run_id="r", **options))
    await asyncio.wait_for(work.there.wait(), 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    work.go_on.set()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def taken_up(place: dict[str, Any], work: Work) -> Any:
    where = place.get("logs_root", "r")
    return await resume_pipeline(where, handlers={"work": work}, **{key: place[key] for key in place if key == "runs"})


async def test_a_child_has_its_own_folder_and_resumes_after_a_stop_from_any_directory(
    parent: Path, place: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    work = Work()
    monkeypatch.chdir(tmp_path)
    await stopped(Path(parent.name), work, **place)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    result = await taken_up(place, work)
    assert result.ok and result.outcomes["m"].status == "success"
    assert work.runs == [("r", "a"), ("r.m.1", "inner"), ("r.m.1", "inner")]


async def test_a_child_with_a_changed_graph_is_not_resumed(parent: Path, place: dict[str, Any]) -> None:
    work = Work()
    await stopped(parent, work, **place)
    parent.with_name("child.dot").write_text(CHILD.replace("inner", "other"))
    result = await taken_up(place, work)
    assert "belongs to another graph" in result.outcomes["m"].failure_reason


async def test_a_child_is_owned_while_it_runs(parent: Path, tmp_path: Path) -> None:
    work, runs = Work(), tmp_path / "runs.db"
    task = asyncio.create_task(run_pipeline(parent, handlers={"work": work}, run_id="r", runs=runs))
    await asyncio.wait_for(work.there.wait(), 20)
    with pytest.raises(PipelineError, match="under way elsewhere"):
        await resume_pipeline("r.m.1", handlers={"work": work}, runs=runs)
    work.go_on.set()
    assert (await task).ok
    assert (await resume_pipeline("r.m.1", runs=runs)).ok


async def test_a_child_that_stays_owned_by_another_process_fails_its_parent(parent: Path) -> None:
    class Elsewhere(MemoryRuns):
        tries = 0

        @asynccontextmanager
        async def own(self, run_id: str) -> AsyncGenerator[Lost]:
            if run_id == "r.m.1":
                self.tries += 1
                raise RunOwnedError(f"{run_id} is under way elsewhere", patience=0.1)
            async with super().own(run_id) as lost:
                yield lost

    runs = Elsewhere()
    result = await run_pipeline(parent, handlers={"work": Work("none")}, run_id="r", runs=runs)
    assert result.status == "fail" and "r.m.1 is under way elsewhere" in result.failure_reason
    assert runs.tries == 2


async def test_one_supervisor_in_two_branches_has_two_children(parent: Path) -> None:
    work, runs = Work(at=""), MemoryRuns()
    text = graph(
        'p [shape=component]; m [shape=house stack.child_dotfile="child.dot" manager.poll_interval="10ms"];'
        "x [type=work]; y [type=work]; j [shape=tripleoctagon]; start->p; p->x; p->y; x->m; y->m; m->j; j->done"
    )
    parent.write_text(text)
    assert (await run_pipeline(parent, handlers={"work": work}, run_id="r", runs=runs)).ok
    assert sorted(run for run, name in work.runs if name == "inner") == ["r.x.m.1", "r.y.m.1"]


async def test_a_supervisor_whose_branch_was_cancelled_has_another_child_in_the_next_round(parent: Path) -> None:
    runs, begun = list[str](), asyncio.Event()

    async def work(stage: Stage) -> Outcome:
        if stage.node.name == "inner":
            runs.append(stage.run_id)
        elif stage.node.name == "slow" and not begun.is_set():
            begun.set()
            await asyncio.Event().wait()
        elif stage.node.name == "check" and stage.visit == 1:
            await begun.wait()
            return Outcome(status=StageStatus.FAIL)
        return Outcome()

    text = graph(
        'm [shape=house stack.child_dotfile="child.dot" manager.poll_interval="10ms"]; slow [type=work];'
        "p [shape=component error_policy=fail_fast retry_target=p]; check [type=work]; j [shape=tripleoctagon];"
        "start->p; p->m->slow->j; p->check->j; j->done"
    )
    parent.write_text(text)
    assert (await run_pipeline(parent, handlers={"work": work}, run_id="r")).ok
    assert runs == ["r.m.m.1", "r.m@2.m.1"]


async def test_children_with_similar_names_have_separate_files(parent: Path, tmp_path: Path) -> None:
    names, runs = ("a/b", "a_b", "a:b", "x" * 300), tmp_path / "runs.db"
    stages = [f'"{name}" [shape=house stack.child_dotfile="child.dot" manager.poll_interval="10ms"];' for name in names]
    parent.write_text(graph(" ".join(stages) + "start->" + "->".join(f'"{name}"' for name in names) + "->done"))
    ended = await run_pipeline(
        parent, handlers={"work": Work(at="")}, run_id="r", runs=runs, logs_root=tmp_path / "logs"
    )
    assert ended.ok, ended.state.failure_reason
    assert len(list((tmp_path / "logs" / "children").glob("*/checkpoint.json"))) == len(names)


async def test_a_pipeline_that_supervises_itself_ends(parent: Path) -> None:
    parent.write_text(PARENT.replace("child.dot", "parent.dot"))
    runs = MemoryRuns()
    async with asyncio.timeout(60):
        ended = await run_pipeline(parent, handlers={"work": Work(at="")}, run_id="r", runs=runs)
    assert not ended.ok and "nested more than 16 deep" in ended.failure_reason
    assert len(await runs.runs()) == 17


async def test_the_reason_why_a_child_failed_is_reported(parent: Path) -> None:
    class Full(MemoryRuns):
        async def save(self, state: Any) -> None:
            if state.run_id == "r.m.1" and state.current_node == "inner":
                raise PipelineError("the disk is full")
            await super().save(state)

    result = await run_pipeline(parent, handlers={"work": Work(at="")}, run_id="r", runs=Full())
    assert result.outcomes["m"].failure_reason == "Child failed: the disk is full"


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no file without an end here")
async def test_a_child_that_is_not_a_regular_file_is_not_read(parent: Path) -> None:
    (parent.parent / "child.dot").unlink()
    (parent.parent / "child.dot").symlink_to("/dev/zero")
    result = await run_pipeline(parent, handlers={"work": Work(at="")}, run_id="r")
    assert result.outcomes["m"].failure_reason.endswith("child.dot is not a file")


class Slow(MemoryRuns):
    """A store whose child run is let go of only when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.letting, self.go_on, self.released = asyncio.Event(), asyncio.Event(), list[str]()

    @asynccontextmanager
    async def own(self, run_id: str) -> AsyncGenerator[Lost]:
        async with super().own(run_id) as lost:
            try:
                yield lost
            finally:
                if run_id == "r.m.1":
                    self.letting.set()
                    await self.go_on.wait()
                self.released.append(run_id)


async def many_steps() -> None:
    """As many steps of the event loop as whatever is ready needs to come to its next wait."""
    for _ in range(100):
        await asyncio.sleep(0)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_an_ended_child_is_released_completely(parent: Path, cancelled: bool) -> None:
    """Its stage ends as soon as it has seen the last state, and stops what is left of the child."""
    seen, store = asyncio.Event(), Slow()

    def hear(event: Event) -> None:
        if event.kind == "child_observed" and event.data["status"] == "completed":
            seen.set()

    options: dict[str, Any] = {"handlers": {"work": Work(at="")}, "run_id": "r", "on_event": hear}
    running = asyncio.create_task(run_pipeline(parent, runs=store, **options))
    await asyncio.wait_for(seen.wait(), 30)
    await many_steps()  # until the child is stopped
    if cancelled:
        running.cancel()
        await many_steps()
    store.go_on.set()
    await asyncio.wait({running})
    assert running.cancelled() == cancelled and store.released == ["r.m.1", "r"]


async def test_a_stopped_child_is_released_completely_however_often_its_parent_is_cancelled(
    parent: Path,
) -> None:
    work, store = Work(), Slow()
    running = asyncio.create_task(run_pipeline(parent, handlers={"work": work}, run_id="r", runs=store))
    await asyncio.wait_for(work.there.wait(), 30)
    running.cancel()
    await asyncio.wait_for(store.letting.wait(), 30)
    running.cancel()
    await many_steps()
    store.go_on.set()
    await asyncio.wait({running})
    assert running.cancelled() and store.released == ["r.m.1", "r"]
