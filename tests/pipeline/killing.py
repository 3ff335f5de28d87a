"""Runs a pipeline in a child that dies at one event, then in one that takes it up; once for every event.

    python -m tests.pipeline.killing FOLDER graph|workflow sqlite|folder [STEP]

Prints how many events there are, and at which of them the end was another one.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from context_compiler.pipeline import Event, RunConfig, resume_pipeline, run_pipeline
from tests.pipeline.playing import prompt_of
from tests.pipeline.resuming import LONG, scripted, told

WORKFLOW = Path(__file__).parents[2] / "examples" / "release_notes.md"


async def no_wait(seconds: float) -> None:
    await asyncio.sleep(0)


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """What follows from the prompt alone."""
    prompt = prompt_of(messages)
    notes = "COMPILER TASK" in prompt
    return ModelResponse(
        parts=[TextPart("- Notes." if notes else f"Did it: {prompt[-40:]}. " + "It was a lot of work. " * 60)]
    )


def given(what: str, folder: Path) -> tuple[Any, dict[str, Any]]:
    """What is run, and with what."""
    if what == "graph":
        return LONG, {"handlers": scripted()}
    model = FunctionModel(answer, model_name="prepared")
    return WORKFLOW, {"model": model, "store": folder / "context.db", "compiler": {"system": None}}


def files(folder: Path) -> dict[str, Any]:
    """What stages left, but for times."""
    names = ("status.json", "prompt.md", "response.md")
    found: dict[str, Any] = {
        str(path.relative_to(folder)): path.read_text() for name in names for path in (folder / "run").rglob(name)
    }
    for path in (folder / "run").rglob("artifacts/*.json"):
        found[str(path.relative_to(folder))] = json.loads(path.read_text())["data"]
    return found


def compiled(folder: Path) -> list[Any]:
    """What was compiled, as the record tells: for which conversation, with what."""
    if not (folder / "context.db").exists():
        return []
    query = """SELECT session_id, template_name, status FROM context_summaries
               JOIN sessions ON sessions.id = context_summaries.session ORDER BY session_id"""
    with closing(sqlite3.connect(folder / "context.db")) as db:
        return [list(row) for row in db.execute(query)]


async def one(what: str, where: str, folder: Path, kill_at: int) -> None:
    left = kill_at

    def listen(event: Event) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    runs = folder / "runs.db" if where == "sqlite" else None
    source, options = given(what, folder)
    config = RunConfig(runs=runs, logs_root=folder / "run", on_event=listen, sleep=no_wait, **options)
    if kill_at >= 0:
        result = await run_pipeline(source, config, run_id="r")
    else:
        result = await resume_pipeline("r" if runs else folder / "run", config)
    end = [told(result.state), files(folder), compiled(folder), -left]
    (folder / "result.json").write_text(json.dumps(end, sort_keys=True))


def forked(what: str, where: str, folder: Path, kill_at: int) -> int:
    """The signal that ended a child."""
    folder.mkdir(exist_ok=True)
    child = os.fork()
    if child == 0:
        asyncio.run(one(what, where, folder, kill_at))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(base: Path, what: str, where: str, step: int = 1) -> None:
    (base / "whole").mkdir()
    asyncio.run(one(what, where, base / "whole", 0))  # in this process, so that children begin with everything loaded
    *wanted, events = json.loads((base / "whole" / "result.json").read_text())
    wrong: list[Any] = []
    for kill_at in range(1, events + 1, step):
        folder = base / str(kill_at)
        ends = forked(what, where, folder, kill_at), forked(what, where, folder, -1)
        end = json.loads((folder / "result.json").read_text())[:3] if ends == (-9, 0) else None
        wrong += [] if end == wanted else [(kill_at, ends)]
    print(json.dumps({"events": events, "compiled": len(wanted[2]), "wrong": wrong}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], *map(int, sys.argv[4:5]))
