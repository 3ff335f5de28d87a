"""Runs the shipped workflow through the command line in a child that dies at one moment, then resumes it in another.

    python -m tests.pipeline.workflow.killing FOLDER

The moments are every third line that the command prints, and the middle of every answer of the model. Prints how many
there were, how often a model answered, and at which of them the end was another one.
"""

from __future__ import annotations

import asyncio
import gc
import io
import json
import os
import re
import signal
import sqlite3
import sys
from contextlib import closing, redirect_stdout, suppress
from pathlib import Path
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.test import TestModel

from context_compiler.cli.root import app
from context_compiler.middleware import single_flight
from context_compiler.pipeline import SQLiteRuns
from tests.pipeline.killing import files
from tests.pipeline.playing import prompt_of
from tests.pipeline.resuming import told

WORKFLOW = Path(__file__).parents[3] / "examples" / "release_notes.md"
STEPS = 5
HELPED = 2
DEAD = -signal.SIGKILL


class Mortal(io.TextIOWrapper):
    """Standard output of a process that dies after so many lines; 0: never."""

    left = 0

    def write(self, text: str) -> int:
        """Write, and die if it was the last line of a life."""
        written = super().write(text)
        for _ in range(text.count("\n")):
            self.left -= 1
            if self.left == 0:
                self.flush()
                os.kill(os.getpid(), signal.SIGKILL)
        return written


def answering(folder: Path, last: int) -> Any:
    """How the test model answers here: each whole answer is noted; it dies in the middle of one; 0: in none."""
    whole, asked = TestModel.request, 0

    async def request(self: TestModel, messages: list[ModelMessage], *rest: Any) -> ModelResponse:
        nonlocal asked
        asked += 1
        if asked == last:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = await whole(self, messages, *rest)
        with (folder / "answers").open("a") as noted:
            noted.write("compile\n" if "COMPILER TASK" in prompt_of(messages) else "step\n")
        return answer

    return request


def command(folder: Path, name: str) -> list[str]:
    """`workflow run` or `workflow resume`, with everything it keeps in one folder."""
    places = {"runs": "runs.db", "logs": "run", "db": "context.db", "system": "system"}
    given = [word for option, place in places.items() for word in (f"--{option}", str(folder / place))]
    return ["workflow", name, str(WORKFLOW), "--model", "test", "--events", "--id", "r", *given]


def forked(folder: Path, name: str, *, lines: int = 0, answers: int = 0) -> int:
    """How a command ended that dies after so many lines, or in that answer."""
    folder.mkdir(exist_ok=True)
    child = os.fork()
    if child == 0:
        code = 70
        try:
            TestModel.request = answering(folder, answers)
            sys.stdout = Mortal((folder / f"{name}.jsonl").open("wb"), write_through=True)
            sys.stdout.left = lines
            app(command(folder, name))
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def warm_up(folder: Path) -> None:
    """Run the workflow here, so that children begin with everything loaded."""
    folder.mkdir()
    with redirect_stdout(io.StringIO()), suppress(SystemExit):
        app(command(folder, "run"))
    gc.freeze()


def compiled(folder: Path) -> list[Any]:
    """What was compiled, as the record tells: for which conversation, with what."""
    query = """SELECT session_id, template_name, status FROM context_summaries
               JOIN sessions ON sessions.id = context_summaries.session ORDER BY session_id"""
    with closing(sqlite3.connect(folder / "context.db")) as db:
        return [list(row) for row in db.execute(query)]


def sent(folder: Path) -> list[Any]:
    """What was sent, as the record tells: to which step, how much of how much, with which notes."""
    query = """SELECT DISTINCT session_id, tokens_raw, tokens_sent, body FROM views
               JOIN sessions ON sessions.id = views.session
               LEFT JOIN context_summaries ON context_summaries.id = views.summary
               LEFT JOIN contents ON contents.hash = context_summaries.summary
               ORDER BY session_id, tokens_raw, tokens_sent"""
    with closing(sqlite3.connect(folder / "context.db")) as db:
        return [[str(value) for value in row] for row in db.execute(query)]


async def kept(folder: Path) -> Any:
    """The run as it is kept, but for times."""
    store = SQLiteRuns(folder / "runs.db")
    try:
        state = await store.load("r")
        return state and told(state)
    finally:
        await store.close()


def ended(folder: Path) -> str:
    """All that has to be the same: context and outcomes, what the steps put out, compiles, and what was sent.

    Quotes name the day of a turn, and midnight may come in between, so days are left out.
    """
    results = [asyncio.run(kept(folder)), files(folder), compiled(folder), sent(folder)]
    return re.sub(r"\d{4}-\d\d-\d\d", "some day", repr(results))


def answers(folder: Path, what: str) -> int:
    """How many answers of a kind were whole."""
    return (folder / "answers").read_text().split().count(what)


def tried(folder: Path, wanted: str, **death: int) -> str:
    """What is wrong after a death and a second life; empty: nothing."""
    ends = forked(folder, "run", **death), forked(folder, "resume")
    if ends != (DEAD, 0):
        return f"ended with {ends}"
    if ended(folder) != wanted:
        return "the end was another one"
    if answers(folder, "compile") != HELPED or answers(folder, "step") > STEPS + 1:
        return f"{answers(folder, 'compile')} compiles, {answers(folder, 'step')} answers"
    return ""


def main(base: Path) -> None:
    """Kill it everywhere."""
    single_flight.CLAIM_S = 0.5  # a killed process holds its claim for that long
    warm_up(base / "first")
    assert forked(base / "whole", "run") == 0
    wanted = ended(base / "whole")
    lines = len((base / "whole" / "run.jsonl").read_text().splitlines())
    deaths = [{"lines": n} for n in range(1, lines, 3)] + [{"answers": n} for n in range(1, STEPS + HELPED + 1)]
    results = {str(death): tried(base / f"{index}", wanted, **death) for index, death in enumerate(deaths)}
    whole = [answers(base / "whole", what) for what in ("step", "compile")]
    wrong = {death: said for death, said in results.items() if said}
    print(json.dumps({"deaths": len(deaths), "answers": whole, "wrong": wrong}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
