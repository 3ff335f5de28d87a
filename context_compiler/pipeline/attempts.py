"""Runs a handler until it has an outcome: it may raise, hang, be cancelled, or return nonsense.

Only the cancellation of the run itself propagates.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from context_compiler.errors import PipelineError
from context_compiler.pipeline.config import backoff_of, max_attempts
from context_compiler.pipeline.outcome import Outcome, StageStatus, failure, find_outcome, parse_outcome
from context_compiler.pipeline.stage import STATUS_FILE, HandlerLike, Stage, traits
from context_compiler.resilience import try_await

EXCERPT = 2_000
"""Characters of an answer that are kept as notes."""


async def run_attempts(handler: HandlerLike, stage: Stage) -> tuple[Outcome, int]:
    """Run a stage, with retries; its outcome and the number of retries."""
    has = traits(handler)
    most = max_attempts(stage.node, stage.graph) if has.retries else 1
    pauses = backoff_of(stage.node, stage.config.backoff)
    marks = len(stage.session.marks) if stage.session else 0
    number = 1
    while True:
        outcome, again = await _attempt_once(handler, stage, limit=None if has.keeps_time else stage.node.timeout)
        again = again or (outcome.status is StageStatus.RETRY and has.retries)
        again = again or (outcome.status is StageStatus.FAIL and has.retries_failures)
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


async def _attempt_once(handler: HandlerLike, stage: Stage, *, limit: float | None) -> tuple[Outcome, bool]:
    """One attempt: its outcome, and True if the error was transient."""
    stage.clear_status()
    patience = asyncio.timeout(limit)
    try:
        async with patience:
            tried = await try_await(_call(handler, stage))
    except TimeoutError:
        if not patience.expired():
            raise
        return failure(f"timed out after {limit:g} s"), False
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return failure("the handler was cancelled"), False
    if tried.error is not None:
        again = not isinstance(tried.error, PipelineError) and stage.config.retryable(tried.error)
        kind = type(tried.error).__name__
        return replace(failure(f"{kind}: {tried.error}"[:EXCERPT]), error=kind), again
    return outcome_from(tried.value, stage), False


async def _call(handler: HandlerLike, stage: Stage) -> Any:
    execute: Any = getattr(handler, "execute", handler)
    answer = execute(stage)
    return await answer if inspect.isawaitable(answer) else answer


def outcome_from(answer: object, stage: Stage) -> Outcome:
    """Convert the result of a handler to an outcome; anything unusable becomes a failure."""
    if isinstance(answer, Outcome):
        return answer
    if isinstance(answer, str):
        return find_outcome(answer) or Outcome(notes=answer[:EXCERPT])
    if isinstance(answer, Mapping):
        return _parse(cast("Mapping[str, Any]", answer), "the handler's answer")
    if answer is not None:
        return failure(f"the handler returned {type(answer).__name__}, which is not an outcome")
    written = read_status(stage)
    if written is not None:
        return written
    if stage.node.auto_status:
        return Outcome(notes="auto-status: handler completed without writing status")
    return failure("the handler returned nothing; return an Outcome, or set auto_status")


def read_status(stage: Stage) -> Outcome | None:
    """The outcome that the stage's own work wrote to its folder; None if there is none."""
    path = stage.folder / STATUS_FILE if stage.folder is not None else None
    if path is None or not path.is_file():
        return None
    try:
        found: Any = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        return failure(f"{path}: the status cannot be read: {error}")
    if not isinstance(found, Mapping):
        return failure(f"{path}: the status is not an object")
    return _parse(cast("Mapping[str, Any]", found), str(path))


def _parse(document: Mapping[str, Any], where: str) -> Outcome:
    try:
        return parse_outcome(document)
    except ValueError as error:
        return failure(f"{where}: {error}")
