"""The queue of submitted runs, and the questions that their human gates wait for.

Any worker can take a run, and any process can answer a question. A queued run is a stored run that nobody owns, so
workers take over the run of a dead worker in the same way as a new one.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from context_compiler.errors import CheckpointError, PipelineError
from context_compiler.middleware.reports import log_text
from context_compiler.pipeline.config import RunConfig
from context_compiler.pipeline.graph import Graph
from context_compiler.pipeline.interviewers import AnswerValue, Interviewer, Option, Question, QuestionType, Reply
from context_compiler.pipeline.run import abandon_run, begin_run, load_graph, prepare
from context_compiler.pipeline.state import RunState
from context_compiler.pipeline.stores.sql import SQLRuns, Statement, read_body

log = logging.getLogger("context_compiler.pipeline")

MAX_PAUSE_S = 60.0
"""Maximum seconds until a run that was put back may be taken again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A submitted run."""

    run_id: str
    options: Mapping[str, Any]
    """JSON values from which a worker configures the run."""
    state: str
    """`queued`, `running`, `waiting` for an answer, `held` for another scheduler, or `ended`.

    The run of a dead worker stays `running`.
    """
    submitted: float
    """Seconds since 1970 by the clock of the database, like all times here."""
    due: float | None
    """The run must not be taken before this time; None if it has none."""
    worker: str | None
    """The worker that last took the run."""
    takes: int
    """Number of times the run was taken since it last completed a stage."""
    cancelled: str | None
    """Reason for the cancellation; None if the run was not cancelled."""
    trouble: str | None
    """Reason why the run was last put back."""
    damage: str = ""
    """Reason why the options cannot be read; such a run ends as failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Outcome of an attempt to take a run."""

    submission: Submission
    state: RunState | None = None
    """State to continue from; None if the run must not be executed now."""
    change: str
    """`taken`, `put back`, or the status with which the run ended."""
    reason: str = ""
    delay: float = 0.0
    """Seconds until the run may be taken again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingQuestion:
    """A human gate's question that nobody has answered yet."""

    run_id: str
    key: str
    """Idempotency key of the attempt at the gate."""
    stage: str
    text: str
    choices: tuple[Option, ...] = ()
    asked: float
    due: float | None
    free: bool = False
    """True if any text is accepted as an answer."""


class RunQueue:
    """The queue in a run store."""

    def __init__(self, runs: SQLRuns) -> None:
        self.runs = runs

    async def submit(
        self,
        pipeline: Graph | str | Path,
        *,
        run_id: str | None = None,
        context: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        config: RunConfig | None = None,
        held: bool = False,
    ) -> str:
        """Create a run for a worker to take, and return its id. The run is then stored and survives any process.

        Args:
            pipeline: A graph, DOT text, or the path of a DOT file or workflow.
            run_id: Id of the run; None generates one.
            context: Initial values of the context.
            options: JSON values from which a worker configures the run.
            config: Handlers, transforms and rules for checking the graph, the same as the workers use; and the owner.
            held: Leave the run to another scheduler, so that no worker takes it.

        Raises:
            GraphError: the graph cannot be read or has errors.
            PipelineError: the run already exists or could not be saved.
        """
        graph = load_graph(pipeline)
        config = config or RunConfig()
        prepared = prepare(graph, config)
        name = run_id or f"{graph.name or 'run'}-{uuid4().hex[:8]}"
        body = json.dumps(dict(options or {}))
        async with self.runs.own(name):
            await begin_run(graph, prepared, self.runs, name, replace(config, context=context or {}))
            await self._transact(name, Statement(_SUBMIT, (name, body, "held" if held else "queued")))
        return name

    async def find(self, run_id: str) -> Submission | None:
        """Return a submitted run; None if there is no such run in the queue."""
        (rows,) = await self.runs.database.transact(Statement(f"{_FIND} WHERE run = ?", (run_id,)))
        return _parse_submission(rows[0]) if rows else None

    async def open(self) -> list[Submission]:
        """Return the runs that have not ended, oldest first."""
        (rows,) = await self.runs.database.transact(
            Statement(f"{_FIND} WHERE state <> 'ended' ORDER BY submitted, run")
        )
        return [_parse_submission(row) for row in rows]

    async def ready(self, limit: int) -> list[str]:
        """Ids of up to `limit` queued or waiting runs that are due now, oldest first."""
        (rows,) = await self.runs.database.transact(Statement(_READY, (limit,)))
        return [str(row[0]) for row in rows]

    async def candidates(self, limit: int) -> list[str]:
        """Ids of runs that can be taken now: the runs of dead workers, then up to `limit` others, oldest first."""
        running, others = await self.runs.database.transact(Statement(_RUNNING), Statement(_READY, (limit,)))
        names = [str(row[0]) for row in running]
        owned = await self.runs.owned(names)
        return [name for name in names if name not in owned] + [str(row[0]) for row in others]

    async def take(self, run_id: str, worker: str, progress: int, *, held: bool = False) -> Submission | None:
        """Mark a run that the caller owns as taken, and return it; None if it must not be executed now.

        Args:
            run_id: The run.
            worker: Name of the worker that takes the run.
            progress: Number of stages that the run has completed; -1 if unknown.
            held: Take the run even if it is held for another scheduler; it then stays held.
        """
        args = (worker, progress, progress, progress, run_id, int(held))
        *_, rows = await self._transact(run_id, Statement(_TAKE, args))
        return _parse_submission(rows[0]) if rows else None

    async def take_up(self, run_id: str, worker: str, *, most: int, held: bool = False) -> Taken | None:
        """Take a run that the caller owns, and load its state; None if it must not be executed now.

        A run ends in failure if it was cancelled, was taken `most` times without completing a stage, or has a damaged
        state. A run saved by a newer version is put back.
        """
        state, unreadable = None, None
        try:
            state = await self.runs.load(run_id)
            progress = state.sequence if state is not None else 0
        except CheckpointError as error:
            unreadable, progress = error, -1
        taken = await self.take(run_id, worker, progress, held=held)
        if taken is None:
            return None
        if taken.cancelled is not None:
            reason = taken.cancelled
        elif taken.takes > most:
            reason = f"taken {most} times without completing a stage" + (f": {taken.trouble}" if taken.trouble else "")
        elif unreadable is not None and unreadable.newer:
            delay = await self.put_back_for_now(taken, str(unreadable))
            return Taken(submission=taken, change="put back", reason=str(unreadable), delay=delay)
        elif state is None:
            reason = str(unreadable or "its state was never saved")
        elif taken.damage:
            reason = taken.damage
        else:
            return Taken(submission=taken, state=state, change="taken")
        return Taken(submission=taken, change=await self.give_up(run_id, reason), reason=reason)

    async def put_back(self, run_id: str, trouble: str, delay: float) -> None:
        """Put back a run that the caller owns; nobody may take it for `delay` seconds."""
        await self._transact(run_id, Statement(_PUT_BACK, (delay, trouble, run_id)))

    async def put_back_for_now(self, taken: Submission, trouble: str) -> float:
        """Put back a run that the caller owns, with a pause that grows each time; return the pause in seconds."""
        delay = min(MAX_PAUSE_S, 2.0 ** min(taken.takes, 10) / 2)
        await self.put_back(taken.run_id, trouble, delay)
        return delay

    async def give_up(self, run_id: str, reason: str) -> str:
        """End a run that the caller owns as failed, even if its state cannot be read, and return its final status."""
        status = "fail"
        try:
            state = await self.runs.load(run_id)
            if state is None:
                await self.runs.mark_failed(run_id, reason)
            else:
                status = (state if state.ended else await abandon_run(self.runs, state, reason)).status
        except CheckpointError as error:
            await self.runs.mark_failed(run_id, reason if str(error) in reason else f"{reason}: {error}")
        await self.end(run_id)
        return status

    async def park(self, run_id: str, keys: Sequence[str]) -> None:
        """Let a run that the caller owns wait until one of these questions is answered or times out.

        The run's other open questions are deleted: they come from branches that the run no longer waits for.
        """
        marks = ", ".join("?" * len(keys))
        park, answered, drop = (query.replace("KEYS", marks) for query in (_PARK, _ANSWERED, _DROP))
        await self._transact(
            run_id,
            Statement(park, (run_id, *keys, run_id)),  # first, to lock the row of the run, as `answer` does
            Statement(answered, (run_id, run_id, *keys)),
            Statement(drop, (run_id, *keys)),
        )

    async def end(self, run_id: str) -> None:
        """Mark a run that the caller owns as ended, so that nobody takes it again."""
        await self._transact(run_id, Statement("UPDATE queue SET state = 'ended', due = NULL WHERE run = ?", (run_id,)))

    async def cancel(self, run_id: str, reason: str = "cancelled") -> None:
        """Request that a run ends as failed. Its worker does so, or else the next worker that takes the run.

        Raises:
            PipelineError: the run was not submitted, or has ended.
        """
        missing = PipelineError(f"run {run_id!r} was not submitted, or has ended")
        await self.runs.database.transact(Statement(_CANCEL, (reason, run_id), missing=missing))

    async def cancelled(self, run_ids: Sequence[str]) -> dict[str, str]:
        """Return which of these runs were cancelled, each with the reason."""
        if not run_ids:
            return {}
        query = "SELECT run, cancelled FROM queue WHERE cancelled IS NOT NULL AND state <> 'ended'"
        (rows,) = await self.runs.database.transact(Statement(query))
        return {str(run_id): str(reason) for run_id, reason in rows if run_id in run_ids}

    async def ask(self, run_id: str, key: str, question: Question) -> Reply | None:
        """Store a question unless it is already stored, and return its answer; None if nobody has answered yet."""
        body = {
            "stage": question.stage,
            "text": question.text,
            "free": question.type is QuestionType.FREEFORM or not question.options,
            "choices": [[option.key, option.label, option.target] for option in question.options],
        }
        put = Statement(_ASK, (run_id, key, json.dumps(body), question.timeout_seconds))
        _, ((answer, late),) = await self.runs.database.transact(put, Statement(_REPLY, (run_id, key)))
        if answer is not None:
            return question.parse_reply(str(answer))
        return Reply(value=AnswerValue.TIMEOUT) if late else None

    async def questions(self, run_id: str | None = None) -> list[PendingQuestion]:
        """Return the questions of one run, or of all runs, that can be answered now, oldest first."""
        (rows,) = await self.runs.database.transact(Statement(_PENDING))
        asked = [_parse_question(row) for row in rows if run_id in (None, row[0])]
        return [question for question in asked if question is not None]

    async def answer(self, run_id: str, text: str, *, stage: str | None = None) -> PendingQuestion:
        """Answer a question of a run with the key, label or target of a choice, and return the question.

        Raises:
            PipelineError: no question or more than one matches, or the text is not one of the choices.
        """
        questions = [question for question in await self.questions(run_id) if stage in (None, question.stage)]
        if not questions:
            where = f"run {run_id!r}" + (f", stage {stage!r}" if stage else "")
            raise PipelineError(f"{where}: no question is waiting for an answer")
        if len(questions) > 1:
            stages = ", ".join(dict.fromkeys(question.stage for question in questions))
            raise PipelineError(f"run {run_id!r}: {len(questions)} questions are waiting; name the stage: {stages}")
        question = questions[0]
        asked = Question(text=question.text, options=question.choices)
        reply = asked.parse_reply(text)
        if not question.free and reply.option is None:
            raise PipelineError(asked.unclear(reply))
        late = PipelineError(f"run {run_id!r}: the question was answered or timed out meanwhile")
        await self.runs.database.transact(
            Statement(_WAKE, (run_id,)),  # first, to lock the row of a run that is about to wait
            Statement(_ANSWER, (text, run_id, question.key), missing=late),
        )
        return question

    async def end_cancelled(self, run_id: str) -> bool:
        """End a cancelled run if nobody owns it, so that this needs no worker; False if somebody owns it.

        Raises:
            PipelineError: the run could not be saved.
        """
        if run_id in await self.runs.owned([run_id]):
            return False
        async with self.runs.own(run_id):
            submission = await self.find(run_id)
            if submission is not None and submission.cancelled and submission.state != "ended":
                await self.give_up(run_id, submission.cancelled)
        return True

    async def _transact(self, run_id: str, *statements: Statement) -> list[Sequence[Sequence[Any]]]:
        """Execute statements in one transaction, which fails if somebody else owns the run."""
        return await self.runs.database.transact(*self.runs.fence(run_id), *statements)


_SUBMIT = """
INSERT INTO queue (run, options, state, submitted, takes, progress) VALUES (?, ?, ?, NOW, 0, -1)
ON CONFLICT (run) DO NOTHING
"""
_SUBMISSION = "run, options, state, submitted, due, worker, takes, cancelled, trouble"
_FIND = f"SELECT {_SUBMISSION} FROM queue"
_RUNNING = "SELECT run FROM queue WHERE state = 'running' ORDER BY submitted, run"
_READY = """
SELECT run FROM queue WHERE state IN ('queued', 'waiting') AND (due <= NOW OR (due IS NULL AND state = 'queued'))
ORDER BY submitted, run LIMIT ?
"""
_TAKE = f"""
UPDATE queue SET state = CASE WHEN state = 'held' THEN 'held' ELSE 'running' END, worker = ?, due = NULL,
    takes = CASE WHEN progress < ? THEN 1 ELSE takes + 1 END, progress = CASE WHEN progress < ? THEN ? ELSE progress END
WHERE run = ? AND (
    state = 'running' OR (state = 'queued' AND due IS NULL) OR (state IN ('queued', 'waiting') AND due <= NOW)
    OR (state = 'held' AND ? = 1)
) RETURNING {_SUBMISSION}
"""
_PUT_BACK = """
UPDATE queue SET state = CASE WHEN state = 'held' THEN 'held' ELSE 'queued' END, due = NOW + ?, trouble = ?
WHERE run = ? AND state <> 'ended'
"""
_PARK = """
UPDATE queue SET state = 'waiting', takes = 0,
    due = (SELECT min(due) FROM questions WHERE run = ? AND key IN (KEYS)) WHERE run = ? AND state <> 'ended'
"""
_ANSWERED = """
UPDATE queue SET state = 'queued', due = NULL WHERE run = ? AND state = 'waiting'
AND (cancelled IS NOT NULL OR EXISTS (SELECT 1 FROM questions WHERE run = ? AND key IN (KEYS) AND answer IS NOT NULL))
"""
_DROP = "DELETE FROM questions WHERE run = ? AND answer IS NULL AND key NOT IN (KEYS)"
_CANCEL = """
UPDATE queue SET cancelled = ?, state = CASE WHEN state = 'waiting' THEN 'queued' ELSE state END, due = NULL
WHERE run = ? AND state <> 'ended' RETURNING run
"""
_ASK = """
INSERT INTO questions (run, key, body, asked, due) VALUES (?, ?, ?, NOW, NOW + ?) ON CONFLICT (run, key) DO NOTHING
"""
_REPLY = "SELECT answer, coalesce(due <= NOW, 1 = 0) FROM questions WHERE run = ? AND key = ?"
_PENDING = """
SELECT questions.run, key, body, asked, questions.due FROM questions JOIN queue ON queue.run = questions.run
WHERE answer IS NULL AND (questions.due IS NULL OR questions.due > NOW) AND state <> 'ended' ORDER BY asked, key
"""
_WAKE = """
UPDATE queue SET state = CASE WHEN state = 'waiting' THEN 'queued' ELSE state END,
    due = CASE WHEN state = 'waiting' THEN NULL ELSE due END WHERE run = ?
"""
_ANSWER = """
UPDATE questions SET answer = ?
WHERE run = ? AND key = ? AND answer IS NULL AND (due IS NULL OR due > NOW) RETURNING key
"""


def _parse_submission(row: Sequence[Any]) -> Submission:
    fields = dict(zip(_SUBMISSION.split(", "), row, strict=True))
    run_id, body = fields.pop("run"), fields.pop("options")
    try:
        return Submission(run_id=run_id, options=dict(read_body(body)), **fields)
    except (ValueError, TypeError, RecursionError) as error:
        return Submission(run_id=run_id, options={}, damage=f"its options are damaged ({error})", **fields)


def _parse_question(row: Sequence[Any]) -> PendingQuestion | None:
    """Parse a stored question; None if it is damaged, so that the other questions can be answered."""
    run_id, key, body, asked, due = row
    try:
        document: dict[str, Any] = read_body(body)
        choices = tuple(Option(key=choice, label=label, target=target) for choice, label, target in document["choices"])
        stage, text, free = document["stage"], document["text"], document["free"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        log.warning("run %s: a question of it is damaged: %s", run_id, log_text(error))
        return None
    return PendingQuestion(
        run_id=run_id, key=key, stage=stage, text=text, choices=choices, asked=asked, due=due, free=free
    )


OnWait = Callable[[Question, bool], None]
"""Called with a question and True when it begins to wait for an answer, and with False when it stops waiting."""


@dataclass(slots=True, kw_only=True)
class RemoteInterviewer(Interviewer):
    """Stores the questions of a run, and waits until another process answers them."""

    queue: RunQueue
    run_id: str
    poll: float = 1.0
    """Seconds between polls of the store."""
    on_wait: OnWait | None = None

    async def ask(self, question: Question) -> Reply:
        """Wait for the answer, which may already be stored; `AnswerValue.TIMEOUT` if the question times out.

        While the store cannot be reached, this keeps waiting, because a failed look-up is not an answer.
        """
        key, waits = str(question.metadata["key"]), False
        try:
            while True:
                try:
                    reply = await self.queue.ask(self.run_id, key, question)
                except PipelineError as error:
                    log.warning("run %s, stage %s: %s", self.run_id, question.stage, error)
                else:
                    if reply is not None:  # a slow store does not count as waiting for a person
                        return reply
                    if not waits:
                        waits = True
                        self._notify(question, waits=True)
                await asyncio.sleep(self.poll)
        finally:
            if waits:
                self._notify(question, waits=False)

    def _notify(self, question: Question, *, waits: bool) -> None:
        if self.on_wait is not None:
            self.on_wait(question, waits)
