"""A stage ends in an outcome, whatever its handler does: it may raise, hang, be cancelled, or return nonsense.

Only the cancellation of the run itself passes through.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from context_compiler.errors import PipelineError
from context_compiler.pipeline.config import attempts, backoff
from context_compiler.pipeline.outcome import Outcome, StageStatus, failed, outcome_in, outcome_of
from context_compiler.pipeline.stage import STATUS_FILE, Handles, Stage, traits
from context_compiler.resilience import try_await

EXCERPT = 2_000
"""Characters of an answer that are kept as notes."""


async def perform(handler: Handles, stage: Stage) -> tuple[Outcome, int]:
    """Run a stage, again where that may help; its outcome, and how often it was tried again."""
    has = traits(handler)
    most = attempts(stage.node, stage.graph) if has.retries else 1
    pauses = backoff(stage.node, stage.config.backoff)
    marks = len(stage.session.marks) if stage.session else 0
    number = 1
    while True:
        outcome, again = await _once(handler, stage, limit=None if has.keeps_time else stage.node.timeout)
        again = again or (outcome.status is StageStatus.RETRY and has.retries)
        if not again:
            return outcome, number - 1
        if number >= most:
            return _exhausted(stage, outcome), number - 1
        delay = pauses.delay(number, stage.config.draw)
        await stage.emit("stage_retrying", attempt=number, delay=delay, reason=outcome.failure_reason)
        await stage.config.sleep(delay)
        if stage.session:
            stage.session.trim(marks)
        number += 1


def _exhausted(stage: Stage, outcome: Outcome) -> Outcome:
    if outcome.status is not StageStatus.RETRY:
        return outcome
    if stage.node.allow_partial:
        notes = outcome.notes or "retries exhausted, partial accepted"
        return replace(outcome, status=StageStatus.PARTIAL_SUCCESS, notes=notes)
    why = f": {outcome.failure_reason}" if outcome.failure_reason else ""
    return replace(outcome, status=StageStatus.FAIL, failure_reason=f"max retries exceeded{why}")


async def _once(handler: Handles, stage: Stage, *, limit: float | None) -> tuple[Outcome, bool]:
    """One attempt, and whether what it raised may not come again."""
    stage.forget_status()
    patience = asyncio.timeout(limit)
    try:
        async with patience:
            tried = await try_await(_called(handler, stage))
    except TimeoutError:
        if not patience.expired():
            raise
        return failed(f"timed out after {limit:g} s"), False
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return failed("the handler was cancelled"), False
    if tried.error is not None:
        again = not isinstance(tried.error, PipelineError) and stage.config.retryable(tried.error)
        return failed(f"{type(tried.error).__name__}: {tried.error}"[:EXCERPT]), again
    return outcome_from(tried.value, stage), False


async def _called(handler: Handles, stage: Stage) -> Any:
    execute: Any = getattr(handler, "execute", handler)
    answer = execute(stage)
    return await answer if inspect.isawaitable(answer) else answer


def outcome_from(answer: object, stage: Stage) -> Outcome:
    """What an answer of a handler means; nonsense is a failure that says so."""
    if isinstance(answer, Outcome):
        return answer
    if isinstance(answer, str):
        return outcome_in(answer) or Outcome(notes=answer[:EXCERPT])
    if isinstance(answer, Mapping):
        return _read(cast("Mapping[str, Any]", answer), "the handler's answer")
    if answer is not None:
        return failed(f"the handler returned {type(answer).__name__}, which is no outcome")
    written = status_written(stage)
    if written is not None:
        return written
    if stage.node.auto_status:
        return Outcome(notes="auto-status: handler completed without writing status")
    return failed("the handler returned nothing; return an Outcome, or set auto_status")


def status_written(stage: Stage) -> Outcome | None:
    """The outcome that a stage's own work left in its folder; None: it left none."""
    path = stage.folder / STATUS_FILE if stage.folder is not None else None
    if path is None or not path.is_file():
        return None
    try:
        found: Any = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        return failed(f"{path}: the status cannot be read: {error}")
    if not isinstance(found, Mapping):
        return failed(f"{path}: the status is no object")
    return _read(cast("Mapping[str, Any]", found), str(path))


def _read(document: Mapping[str, Any], where: str) -> Outcome:
    try:
        return outcome_of(document)
    except ValueError as error:
        return failed(f"{where}: {error}")
