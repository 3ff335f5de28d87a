"""A run with everything in it, and how tests stop one: shared by tests of stopping, killing and going on."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from context_compiler.pipeline import Event, MemoryRuns, Outcome, RunState, Stage, StageStatus, run_pipeline
from context_compiler.pipeline.checkpoint import checkpoint_document, parse_checkpoint
from tests.pipeline.playing import graph

FAIL = Outcome(status=StageStatus.FAIL, failure_reason="broken")

LONG = graph(
    "a [max_retries=2]; b [fidelity=full thread_id=t]; c [fidelity=full thread_id=t];"
    "g [goal_gate=true retry_target=c]; p [shape=component]; x; y; j [shape=tripleoctagon]; h [shape=hexagon]; z;"
    'start->a->b->c->g->p; p->x->j; p->y->j; j->h; h->z [label="[Y] go"]; h->a [label="[N] back"];'
    'z->a [condition="outcome=fail" loop_restart=true]; z->done [condition="outcome!=fail"];'
    'b->b [condition="outcome=retry"]'
)


def scripted() -> dict[str, Any]:
    """Handlers whose answers follow from the state of the run alone, as those of a resumed process must."""

    async def work(stage: Stage) -> Outcome:
        visit, attempt = stage.visit, stage.context.get("internal.lineage.attempt")
        stage.keep("out", f"{stage.node.name} {visit} {attempt}")
        if stage.node.name == "g" and visit == 1:
            return FAIL
        if stage.node.name == "z" and attempt == 1:
            return FAIL
        return Outcome(context_updates={f"seen.{stage.node.name}": visit}, notes=f"visit {visit}")

    return {"codergen": work}


def told(state: RunState) -> dict[str, Any]:
    """What has to be the same; durations and times are not."""
    said = checkpoint_document(state)
    del said["timestamp"]
    said["metadata"] = {key: value for key, value in said["metadata"].items() if key != "timestamp"}
    said["logs"] = [{**entry, "duration": 0} for entry in said["logs"]]
    said["artifacts"] = {id: entry["data"] for id, entry in said["artifacts"].items()}
    return said


class Stopping(MemoryRuns):
    """Dies after so many saves."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    async def save(self, state: RunState) -> None:
        if self.left == 0:
            raise KeyError("killed")
        self.left -= 1
        written = json.dumps(checkpoint_document(state))
        await super().save(parse_checkpoint(json.loads(written), where="memory"))


async def half(text: str, store: Any, stage: str, **options: Any) -> None:
    """Run up to a stage, and die there."""

    async def stop(event: Event) -> None:
        if event.kind == "stage_started" and event.node == stage:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    task = asyncio.create_task(run_pipeline(text, runs=store, run_id="r", on_event=stop, **options))
    with pytest.raises(asyncio.CancelledError):
        await task
