"""Runs a pipeline in a child that dies at one event, then in one that takes it up; once for every event.

    python -m tests.pipeline.killing FOLDER sqlite|folder [STEP]

Prints how many events there are, and at which of them the end was another one.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from context_compiler.pipeline import Event, RunConfig, resume_pipeline, run_pipeline
from tests.pipeline.resuming import LONG, scripted, told


async def no_wait(seconds: float) -> None:
    await asyncio.sleep(0)


def files(folder: Path) -> dict[str, Any]:
    """What stages left, but for times."""
    names = ("status.json", "prompt.md", "response.md")
    found: dict[str, Any] = {
        str(path.relative_to(folder)): path.read_text() for name in names for path in (folder / "run").rglob(name)
    }
    for path in (folder / "run").rglob("artifacts/*.json"):
        found[str(path.relative_to(folder))] = json.loads(path.read_text())["data"]
    return found


async def one(where: str, folder: Path, kill_at: int) -> None:
    left = kill_at

    def listen(event: Event) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    runs = folder / "runs.db" if where == "sqlite" else None
    config = RunConfig(runs=runs, logs_root=folder / "run", on_event=listen, sleep=no_wait, handlers=scripted())
    if kill_at >= 0:
        result = await run_pipeline(LONG, config, run_id="r")
    else:
        result = await resume_pipeline("r" if runs else folder / "run", config)
    end = [told(result.state), files(folder), -left]
    (folder / "result.json").write_text(json.dumps(end, sort_keys=True))


def forked(where: str, folder: Path, kill_at: int) -> int:
    """The signal that ended a child."""
    folder.mkdir(exist_ok=True)
    child = os.fork()
    if child == 0:
        asyncio.run(one(where, folder, kill_at))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(base: Path, where: str, step: int = 1) -> None:
    (base / "whole").mkdir()
    asyncio.run(one(where, base / "whole", 0))  # in this process, so that children begin with everything loaded
    gc.freeze()
    *wanted, events = json.loads((base / "whole" / "result.json").read_text())
    wrong: list[Any] = []
    for kill_at in range(1, events + 1, step):
        folder = base / str(kill_at)
        ends = forked(where, folder, kill_at), forked(where, folder, -1)
        end = json.loads((folder / "result.json").read_text())[:2] if ends == (-9, 0) else None
        wrong += [] if end == wanted else [(kill_at, ends)]
    print(json.dumps({"events": events, "wrong": wrong}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:4]))
