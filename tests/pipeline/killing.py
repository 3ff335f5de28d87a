"""Runs a pipeline in a child that dies at one event, then in one that takes it up; at an event of each kind after each.

    python -m tests.pipeline.killing FOLDER sqlite|folder

Prints how many events and kills there are, and at which of them the end was another one: what the run returned, what
is saved, what stages left, or work that was done again although it had been saved.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart

from context_compiler.pipeline import Event, Outcome, RunConfig, SQLiteRuns, Stage, resume_pipeline, run_pipeline
from context_compiler.pipeline.checkpoint import SMALL
from context_compiler.pipeline.stores.files import in_folder
from tests.pipeline.resuming import LONG, scripted, told

EPOCH = datetime.fromtimestamp(0, UTC)
LARGE = "0123456789" * (SMALL // 50)
"""A fifth of what a folder writes anew at each step; then only changes are appended."""


async def no_wait(seconds: float) -> None:
    await asyncio.sleep(0)


def files(folder: Path) -> dict[str, Any]:
    """What stages left, but for times."""
    names = ("status.json", "prompt.md", "response.md")
    contents: dict[str, Any] = {
        str(path.relative_to(folder)): path.read_text() for name in names for path in (folder / "run").rglob(name)
    }
    for path in (folder / "run").rglob("artifacts/*.json"):
        contents[str(path.relative_to(folder))] = json.loads(path.read_text())["data"]
    return contents


def exchange(name: str) -> list[ModelMessage]:
    asked = ModelRequest(parts=[UserPromptPart(f"{name}?", timestamp=EPOCH)])
    return [asked, ModelResponse(parts=[TextPart(f"{name}.")], timestamp=EPOCH)]


class Witness:
    """Notes events and work; kills its process at an event."""

    def __init__(self, folder: Path, kill_at: int) -> None:
        self.events: list[str] = []
        self.repeated: list[str] = []
        """Work that was done again although an event had said that it is saved."""
        self._kill_at, self._notes = kill_at, folder / "notes"
        self._saved = set(self._notes.read_text().splitlines()) if self._notes.exists() else set[str]()
        self._last: dict[str | None, str] = {}

    def hear(self, event: Event) -> None:
        self.events.append(event.kind)
        node = {"checkpoint_saved": event.node, "parallel_branch_completed": event.branch}.get(event.kind)
        if node in self._last:
            with self._notes.open("a") as notes:
                notes.write(f"{self._last[node]}\n")
        if len(self.events) == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    async def work(self, stage: Stage) -> Outcome:
        done = f"{stage.node.name} {stage.visit} {stage.context.get('internal.lineage.attempt')}"
        self._last[stage.node.name] = done
        self.repeated += {done} & self._saved
        if stage.session is not None:
            stage.keep("heard", len(stage.session.messages))
            stage.session.add(stage.node.name, exchange(stage.node.name))
        outcome = await scripted()["codergen"](stage)
        return replace(outcome, context_updates={**outcome.context_updates, f"large.{stage.node.name}": LARGE})


async def one(where: str, folder: Path, kill_at: int) -> None:
    witness = Witness(folder, kill_at)
    runs = folder / "runs.db" if where == "sqlite" else None
    handlers = {"codergen": witness.work}
    config = RunConfig(
        runs=runs,
        logs_root=folder / "run",
        on_event=witness.hear,
        sleep=no_wait,
        handlers=handlers,
        resume_threads="restore",
    )
    if kill_at >= 0:
        result = await run_pipeline(LONG, config, run_id="r")
    else:
        result = await resume_pipeline("r" if runs else folder / "run", config)
    store = SQLiteRuns(runs) if runs else in_folder(folder / "run")
    saved = await store.load("r")
    await store.close()
    end = [told(result.state), saved and told(saved), files(folder), witness.repeated, witness.events]
    (folder / "result.json").write_text(json.dumps(end, sort_keys=True))


def moments(events: list[str]) -> list[int]:
    """An event of each kind after each kind, from 1: the middle one, so that much is saved and much is left."""
    positions: dict[tuple[str, ...], list[int]] = {}
    for index in range(len(events)):
        positions.setdefault(tuple(events[max(index - 1, 0) : index + 1]), []).append(index + 1)
    return sorted(some[len(some) // 2] for some in positions.values())


def forked(where: str, folder: Path, kill_at: int) -> int:
    """The signal that ended a child."""
    folder.mkdir(exist_ok=True)
    child = os.fork()
    if child == 0:
        asyncio.run(one(where, folder, kill_at))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(base: Path, where: str) -> None:
    (base / "whole").mkdir()
    asyncio.run(one(where, base / "whole", 0))  # in this process, so that children begin with everything loaded
    gc.freeze()
    *wanted, events = json.loads((base / "whole" / "result.json").read_text())
    wrong: list[Any] = []
    for kill_at in (chosen := moments(events)):
        folder = base / str(kill_at)
        ends = forked(where, folder, kill_at), forked(where, folder, -1)
        end = json.loads((folder / "result.json").read_text())[:-1] if ends == (-9, 0) else None
        wrong += [] if end == wanted else [(kill_at, ends)]
    print(json.dumps({"events": len(events), "kills": len(chosen), "wrong": wrong}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
