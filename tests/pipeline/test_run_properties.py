"""Whatever the graph and whatever its stages answer: a run ends, and one that is taken up ends the same."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from context_compiler.errors import GraphError
from context_compiler.pipeline import Outcome, RunResult, Stage, resume_pipeline, run_pipeline
from context_compiler.pipeline.checkpoint import assemble, state_changes
from context_compiler.pipeline.state import RunState
from tests.pipeline.playing import no_wait
from tests.pipeline.resuming import Stopping, told

NAMES = ("a", "b", "c", "d", "e")
NODE = ("", "goal_gate=true", "retry_target=a", "max_retries=1", "shape=diamond", "fidelity=full", "allow_partial=true")
EDGE = ("", 'condition="outcome=fail"', 'condition="outcome=success"', "weight=2", "label=x", "loop_restart=true")
WORDS = ("success", "success", "success", "fail", "retry", "partial_success", "skipped", "x")


@st.composite
def graphs(draw: st.DrawFn) -> str:
    """A graph of up to five stages and any edges; often one that is refused."""
    some = draw(st.lists(st.sampled_from(NODE), min_size=2, max_size=5))
    names = NAMES[: len(some)]
    ends = st.tuples(st.sampled_from(names), st.sampled_from((*names, "done")), st.sampled_from(EDGE))
    edges = [("start", names[0], ""), (names[-1], "done", ""), *draw(st.lists(ends, max_size=8))]
    edges += list(zip(names, names[1:], ("",) * len(names), strict=False))
    lines = [f"{name} [{attrs}]" for name, attrs in zip(names, some, strict=True)]
    lines += [f"{source}->{target} [{attrs}]" for source, target, attrs in edges]
    return "digraph g { start [shape=Mdiamond]; done [shape=Msquare]; " + "; ".join(lines) + " }"


def answering(seed: int) -> dict[str, Any]:
    """Stages whose answers follow from where the run stands, and from nothing else."""

    def work(stage: Stage) -> Outcome:
        attempt = stage.context.get("internal.lineage.attempt")
        position = f"{seed} {stage.node.name} {stage.visit} {attempt}"
        number = sha256(position.encode()).digest()[0]
        word = WORDS[number % len(WORDS)]
        label = "x" if word == "x" else ""
        status: Any = "success" if label else word
        return Outcome(status=status, preferred_label=label, context_updates={f"seen.{stage.node.name}": position})

    return {"codergen": work}


LIMITS: dict[str, Any] = {"max_visits": 6, "max_loop_restarts": 2, "sleep": no_wait, "run_id": "r"}


async def whole_and_resumed(text: str, seed: int, after: int) -> tuple[RunResult, RunResult] | None:
    options = {"handlers": answering(seed), **LIMITS}
    try:
        whole = await run_pipeline(text, **options)
    except GraphError:
        return None
    runs = Stopping(after)
    try:
        return whole, await run_pipeline(text, runs=runs, **options)
    except KeyError:
        runs.left = -1
        return whole, await resume_pipeline("r", runs=runs, **{**options, "resume_threads": "restore"})


@settings(max_examples=60)
@given(graphs(), st.integers(0, 1_000), st.integers(1, 25))
def test_a_run_ends_and_a_resumed_one_ends_the_same(text: str, seed: int, after: int) -> None:
    both = asyncio.run(whole_and_resumed(text, seed, after))
    if both is not None:
        whole, resumed = both
        assert whole.status in ("success", "fail") and (whole.ok or whole.failure_reason)
        assert told(resumed.state) == told(whole.state)


class Watching(Stopping):
    """Writes every state, or one in so many, as the pieces that changed, and compares them with all pieces."""

    def __init__(self, every: int) -> None:
        super().__init__(-1)
        self.every, self.seen = every, 0
        self.former: RunState | None = None
        self.cells: dict[tuple[str, str], Any] = {}

    async def save(self, state: RunState) -> None:
        self.seen += 1
        if self.seen % self.every == 0:
            self.compare(state)
        await super().save(state)

    def compare(self, state: RunState) -> None:
        gone, new = state_changes(self.former, state)
        for name in gone:
            del self.cells[name]
        self.cells.update({(section, name): body for section, name, body in new})
        fresh = {(section, name): body for section, name, body in state_changes(None, state)[1]}
        for cells in (self.cells, fresh):
            cells[("head", "")]["metadata"]["timestamp"] = cells[("head", "")]["timestamp"] = ""
        assert self.cells == fresh
        assert assemble(
            (section, name, body) for (section, name), body in sorted(fresh.items(), key=lambda item: item[0])
        )
        self.former = state


@settings(max_examples=40)
@given(graphs(), st.integers(0, 1_000), st.sampled_from((1, 1, 2, 3)))
def test_the_changes_between_two_states_are_complete(text: str, seed: int, every: int) -> None:
    try:
        asyncio.run(run_pipeline(text, handlers=answering(seed), runs=Watching(every), **LIMITS))
    except GraphError:
        return
