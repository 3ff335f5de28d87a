"""Threads and processes that share one record: every request of each must be on it."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel

from benchmarks.campaign.case import Case, rotation
from context_compiler import ContextCompiler, SQLiteStore, View

WORKERS, REQUESTS = 8, 1_000
TURNS = 40
"""Turns of one conversation, so that histories have a realistic length."""


class Worker:
    """An agent that sends one request after the other."""

    def __init__(self, ours: ContextCompiler, name: str) -> None:
        model = FunctionModel(lambda messages, info: ModelResponse(parts=[TextPart("It is done, as was asked. " * 12)]))
        self.agent: Agent[Any, Any] = Agent(model, capabilities=[ours])
        self.name = name

    def work(self, requests: int) -> None:
        """Send the given number of requests, in conversations of `TURNS` turns."""
        history: list[ModelMessage] = []
        for number in range(requests):
            talk = f"{self.name}-{number // TURNS}"
            history = history if number % TURNS else []
            result = self.agent.run_sync(f"{talk} question {number}", message_history=history, conversation_id=talk)
            history = result.all_messages()


def _compiler(path: Path, views: list[View], errors: list[Exception]) -> ContextCompiler:
    return ContextCompiler(
        budget=1_500, model="none", store=path, system=None, on_view=views.append, on_error=errors.append
    )


def _late(views: list[View]) -> int:
    """Count requests that were not yet recorded when they were sent; this is reported, and they are saved later."""
    return sum(view.record is None or view.record.id is None for view in views)


def threads(case: Case) -> None:
    """Run threads of one process, each with `run_sync`, on one compiler."""
    requests = _requests(case)
    views, errors = list[View](), list[Exception]()
    ours = _compiler(case.folder / "context.db", views, errors)
    workers = [threading.Thread(target=Worker(ours, f"t{number}").work, args=(requests,)) for number in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    case.check(
        len(views) == WORKERS * requests, "requests without a view", f"{len(views)} views of {WORKERS} × {requests}"
    )
    asyncio.run(ours.aclose())
    _check_file(case, "threads", requests, _late(views), f"{errors[:1]!r}")


def _requests(case: Case) -> int:
    return max(8, int(REQUESTS * min(1.0, case.scale)))


def _check_file(case: Case, what: str, requests: int, late: int, said: str) -> None:
    """Check that every request is on the record in the end, late ones too."""
    asked = WORKERS * requests
    case.count(f"requests of {WORKERS} {what}", asked)
    case.count("requests recorded late", late)
    store = SQLiteStore(case.folder / "context.db")
    rows, defects = asyncio.run(_read(store))
    told = f"{what}: {rows} rows of {WORKERS} × {requests}, {late} late: {said}"
    case.count("requests unrecorded", max(0, asked - rows - 1))
    case.check(rows >= asked, "requests unrecorded", told)
    case.check(asked - late <= rows <= asked, "acknowledged and lost", told)
    case.check(not defects, "defects that verify finds", lambda: str(defects[:2]))


async def _read(store: SQLiteStore) -> tuple[int, tuple[str, ...]]:
    try:
        return len(await store.views()), await store.verify()
    finally:
        await store.close()


def processes(case: Case) -> None:
    """Run processes that begin together, on one file that does not exist yet."""
    requests = _requests(case)
    held, go = os.pipe()
    children = [_forked(lambda name=name: _process(case.folder, name, requests, held, go)) for name in range(WORKERS)]
    os.close(held)
    os.close(go)  # lets all of them begin
    for child in children:
        os.waitpid(child, 0)
    said = [(case.folder / f"p{name}").read_text() for name in range(WORKERS)]
    late = sum(int(text.partition(" ")[0]) for text in said)
    _check_file(case, "processes", requests, late, str(said))


def _forked(work: Callable[[], None]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        work()
    finally:
        os._exit(0)


def _process(folder: Path, name: int, requests: int, held: int, go: int) -> None:
    logging.disable(logging.CRITICAL)
    os.close(go)
    os.read(held, 1)
    views, errors = list[View](), list[Exception]()
    try:
        ours = _compiler(folder / "context.db", views, errors)
        Worker(ours, f"p{name}").work(requests)
        asyncio.run(ours.aclose())
    except BaseException as error:
        errors.append(RuntimeError(f"{type(error).__name__}: {error}"))
    (folder / f"p{name}").write_text(f"{_late(views)} late, {len(views)} views, {errors[:1]!r}")


share = rotation(threads, processes)
