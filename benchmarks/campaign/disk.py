"""Disks that are full, locked, read-only, torn or gone: every request is sent, and the record is sound afterwards."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import shutil
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel

from benchmarks.campaign.case import Case, rotation
from benchmarks.campaign.drawn import Drawn
from benchmarks.campaign.strict import refusals
from context_compiler import ContextCompiler, SQLiteStore, View
from context_compiler.errors import StoreError

TURNS = 12
NOBODY = 65_534
"""User id without root's write permissions."""

ENTERED = all(folder.stat().st_mode & 0o005 == 0o005 for folder in Path(__file__).resolve().parents)
"""True if every user may read this checkout; otherwise root stays root, for which nothing is read-only."""


class Asked:
    """Turns of an agent while the disk fails, with its views and errors."""

    def __init__(self, path: Path, seed: float) -> None:
        self.path, self.drawn = path, Drawn(Random(seed), hostile=0)
        self.views, self.errors, self.broken = list[View](), list[Exception](), list[str]()
        self.history: list[ModelMessage] = []
        self.ours = ContextCompiler(
            budget=1_500,
            model="none",
            store=path,
            system=None,
            on_view=self.views.append,
            on_error=self.errors.append,
        )
        self.agent: Agent[Any, Any] = Agent(FunctionModel(self._answer), capabilities=[self.ours])

    def _answer(self, messages: list[ModelMessage], info: Any) -> ModelResponse:
        self.broken += refusals(messages)
        return ModelResponse(parts=[TextPart(self.drawn.text(200))])

    async def ask(self) -> None:
        """Run one turn."""
        _, prompt = self.drawn.prompt()
        result = await self.agent.run(prompt, message_history=self.history, conversation_id="talk")
        self.history = result.all_messages()

    @property
    def acknowledged(self) -> list[int]:
        """Ids of the rows that were reported as recorded."""
        return [view.record.id for view in self.views if view.record and view.record.id is not None]

    def report(self, turns: int) -> dict[str, Any]:
        """Return plain data for another process."""
        return {
            "turns": turns,
            "views": len(self.views),
            "rows": self.acknowledged,
            "broken": self.broken[:2],
            "errors": [f"{type(error).__name__}: {error}"[:200] for error in self.errors[:20]],
            "foreign": [repr(error) for error in self.errors if not isinstance(error, StoreError)][:2],
        }


Fault = Callable[[Asked, Random], None]


def _child(case: Case, name: str, fault: Fault, *, before: int = 0) -> dict[str, Any]:
    """Run turns in a child process with a disk fault, and return its report."""
    seed, path = case.random.random(), case.folder / "context.db"
    heard, said = os.pipe()
    child = os.fork()
    if child == 0:
        _work(path, seed, fault, before, said)
    os.close(said)
    found = b""
    while more := os.read(heard, 65_536):
        found += more
    os.close(heard)
    os.waitpid(child, 0)
    case.count("disk faults")
    case.count(f"disk faults: {name}")
    return json.loads(found or b"{}")


def _work(path: Path, seed: float, fault: Fault, before: int, said: int) -> None:
    try:
        logging.disable(logging.CRITICAL)
        asked, random, turns = Asked(path, seed), Random(seed), 0

        async def go() -> None:
            nonlocal turns
            for number in range(TURNS):
                if number == before:
                    fault(asked, random)
                await asked.ask()
                turns += 1

        try:
            asyncio.run(go())
        except Exception as error:
            asked.broken.append(f"{type(error).__name__}: {error}")
        os.write(said, json.dumps(asked.report(turns)).encode())
    finally:
        os._exit(0)


def _check(case: Case, name: str, found: dict[str, Any], *, kept: bool = True) -> None:
    at = f"[{name}] "
    case.check(found.get("turns") == TURNS == found.get("views"), "turns that a disk fault stopped", f"{at}{found}")
    case.check(not found.get("broken"), "broken pairs or shapes", f"{at}{found.get('broken')}")
    case.check(not found.get("foreign"), "unexpected errors", f"{at}{found.get('foreign')}")
    lost = TURNS - len(found.get("rows", ()))
    case.count("requests that a disk fault left unrecorded", lost)
    case.check(not lost or found.get("errors"), "unrecorded without a word", f"{at}{lost} requests")
    if kept:
        asyncio.run(_check_record(case, at, found.get("rows", ())))


async def _check_record(case: Case, at: str, rows: Any) -> None:
    path = case.folder / "context.db"
    if not path.exists():
        case.check(not rows, "acknowledged and lost", f"{at}the file is gone")
        return
    store = SQLiteStore(path)
    defects = await store.verify()
    case.check(not defects, "defects that verify finds", f"{at}{defects[:2]}")
    there = {view.id for view in await store.views()}
    case.check(set(rows) <= there, "acknowledged and lost", f"{at}{sorted(set(rows) - there)[:5]} of {len(rows)} rows")
    await store.close()
    after = Asked(path, 0.5)
    await after.ask()
    case.check(not after.errors and after.acknowledged, "errors after a disk fault", f"{at}{after.errors[:1]!r}")


def full(case: Case) -> None:
    """Simulate a full disk: no file can grow beyond a size."""
    most = case.random.randint(1, 60) * 4_096 + case.random.randint(0, 4_095)

    def fault(asked: Asked, random: Random) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    _check(case, "full", _child(case, "full", fault, before=case.random.choice((0, 0, 3, 6))))


def locked(case: Case) -> None:
    """Lock the file by another connection during some turns."""

    def fault(asked: Asked, random: Random) -> None:
        db = sqlite3.connect(asked.path, isolation_level=None)
        db.execute("BEGIN EXCLUSIVE" if random.random() < 0.5 else "BEGIN IMMEDIATE")
        asked.held = db  # pyright: ignore[reportAttributeAccessIssue]

    _check(case, "locked", _child(case, "locked", fault, before=case.random.randint(1, TURNS - 1)))


def read_only(case: Case) -> None:
    """Make the folder read-only, from the beginning or from some turn on."""

    def fault(asked: Asked, random: Random) -> None:
        for path in (*asked.path.parent.iterdir(), asked.path.parent):
            os.chmod(path, 0o555 if path.is_dir() else 0o444)
        if os.getuid() == 0 and ENTERED:
            os.setuid(NOBODY)

    found = _child(case, "read-only", fault, before=case.random.choice((0, 1, 5)))
    for path in (case.folder, *case.folder.iterdir()):
        os.chmod(path, 0o700)
    _check(case, "read-only", found)


def gone(case: Case) -> None:
    """Remove the file, or its folder, while it is open."""

    def fault(asked: Asked, random: Random) -> None:
        if random.random() < 0.5:
            for path in asked.path.parent.glob("context.db*"):
                path.unlink()
        else:
            shutil.rmtree(asked.path.parent, ignore_errors=True)

    _check(case, "gone", _child(case, "gone", fault, before=case.random.randint(1, TURNS - 1)), kept=False)


def in_the_way(case: Case) -> None:
    """Put a folder, or another program's database, in the place of the file."""
    path = case.folder / "context.db"
    if case.random.random() < 0.5:
        path.mkdir()
    else:
        with closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE theirs (a)")
    before = path.read_bytes() if path.is_file() else b""
    _check(case, "in the way", _child(case, "in the way", lambda asked, random: None), kept=False)
    case.check(not path.is_file() or path.read_bytes() == before, "another's file was written", str(path.name))


def torn(case: Case) -> None:
    """Flip bits of the file, or cut off its end, between two programs."""
    found = _child(case, "torn", lambda asked, random: None)
    path, random = case.folder / "context.db", case.random
    data = bytearray(path.read_bytes())
    if random.random() < 0.3:
        del data[random.randrange(len(data)) :]
    else:
        for _ in range(random.choice((1, 8, 64))):
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    for one in case.folder.glob("context.db-*"):
        one.unlink()
    path.write_bytes(bytes(data))
    _check(case, "torn", found, kept=False)
    _check(case, "torn", _child(case, "torn", lambda asked, random: None), kept=False)
    asyncio.run(_verified(case, path))


async def _verified(case: Case, path: Path) -> None:
    """Check that verifying a torn file reports defects, none, or a `StoreError`, and fails in no other way."""
    store = SQLiteStore(path)
    try:
        case.count("torn files in which verify finds defects", bool(await store.verify()))
    except StoreError:
        case.count("torn files that are refused")
    finally:
        await store.close()


fail = rotation(full, locked, read_only, gone, full, in_the_way, torn)
