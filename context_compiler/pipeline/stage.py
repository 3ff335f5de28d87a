"""The stage that a handler receives, and the attempts to run it.

A handler may raise, hang, be cancelled, or return an unusable value; each of these becomes an outcome. Only the
cancellation of the run itself propagates.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

from context_compiler.errors import PipelineError
from context_compiler.fidelity import Fidelity, fidelity_on_resume, resolve_fidelity, resolve_thread_id
from context_compiler.pipeline.artifacts import ArtifactStore, artifact_id, os_errors, write_atomically
from context_compiler.pipeline.config import RequestMeter, RunConfig, max_attempts, stage_backoff
from context_compiler.pipeline.graph import Graph, Node
from context_compiler.pipeline.preamble import build_fidelity_preamble
from context_compiler.pipeline.state import ContextStore, Outcome, RunState, StageStatus, failure, find_outcome
from context_compiler.pipeline.threads import Session
from context_compiler.resilience import call_in_thread, try_await

STATUS_FILE = "status.json"

EXCERPT = 2_000
"""Maximum length in characters of an answer kept as notes."""

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


class Unanswered(BaseException):
    """Stops a run at a human gate because nobody can be asked; the run can be resumed.

    Like a cancellation, it is no `Exception`, so that nothing on the way takes it for a failure of a stage.
    """


class Child:
    """A pipeline that a stage has started."""

    def __init__(
        self,
        work: Coroutine[Any, Any, None],
        owned: AsyncExitStack,
        state: Callable[[], RunState],
        steer: Callable[[str], None],
    ) -> None:
        """Begin the work.

        Args:
            work: Executes the child to its end.
            owned: Releases the ownership of the child when it is closed.
            state: Returns the last saved state.
            steer: Leaves a message for the child's next stage, which gets it as `steer.message` in its context.
        """
        self._owned, self._state, self.steer = owned, state, steer
        self.task = asyncio.create_task(work)

    @property
    def state(self) -> RunState:
        """The last saved state."""
        return self._state()

    @property
    def running(self) -> bool:
        """True while the child runs."""
        return not self.task.done()

    async def wait(self, sleeping: asyncio.Future[None]) -> None:
        """Wait until the child has ended or `sleeping` is done."""
        await asyncio.wait({self.task, sleeping}, return_when=asyncio.FIRST_COMPLETED)

    def raise_if_unanswered(self) -> None:
        """Raise `Unanswered` if the child has stopped because nobody can be asked."""
        if self.task.done() and not self.task.cancelled() and isinstance(error := self.task.exception(), Unanswered):
            raise error

    async def stop(self) -> None:
        """Stop the child, whose last checkpoint remains. If it has ended, wait until it has released its lease."""
        if not self.state.ended and not self.task.cancelling():
            self.task.cancel()
        await asyncio.wait({self.task})  # unlike `gather`, does not pass a cancellation on to the task
        if not self.task.cancelled():
            self.task.exception()
        await self._owned.aclose()  # a task cancelled before its first step has not released it


RunBranch: TypeAlias = Callable[[str, int, str, str], Awaitable[RunState]]
"""Runs a branch, given its first stage, the index of its edge, its name, and the stage at which to stop."""
StartChild: TypeAlias = Callable[[Graph, str], Awaitable[Child]]
"""Starts or resumes a graph as the run with an id."""
Emit: TypeAlias = Callable[..., Awaitable[None]]
"""Emits an event, given its kind and its data as keyword arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One visit to a stage."""

    node: Node
    graph: Graph
    context: ContextStore
    """Values of the run. A handler may set them directly or return updates."""
    artifacts: ArtifactStore
    config: RunConfig
    run_id: str
    branch_id: str = ""
    """Branch of a parallel stage that the visit belongs to; empty outside of branches."""
    branch_key: str = ""
    """The branch and, from the second visit to its parallel stage on, the number of that visit, as in `branch@2`."""
    folder: Path | None
    """Folder for the files of the visit; None if no files are written."""
    fidelity: Fidelity
    thread_id: str | None
    """Key of the conversation that the stage continues or begins; None if other stages do not see its messages."""
    session: Session | None
    """The conversation with that key."""
    preamble: str
    """Text about the run so far; empty at fidelity `full`."""
    previous: Outcome | None
    """Outcome of the stage before; None at the start."""
    visit: int
    """Number of the visit, from 1."""
    attempt: int = 1
    """Number of the attempt within this visit, from 1."""
    requests: RequestMeter
    """Meter of the run's model requests. A handler adds the requests that it makes."""
    branch: RunBranch
    start: StartChild
    emit: Emit

    @property
    def prompt(self) -> str:
        """Instruction of the stage: its prompt or else its label, with `$goal` replaced."""
        return self.graph.with_goal(self.node.prompt or self.node.label)

    @property
    def key(self) -> str:
        """Idempotency key `run/stage/visit/attempt`, unchanged if the attempt is repeated because its process died."""
        return f"{self.visit_key}/{self.attempt}"

    @property
    def visit_key(self) -> str:
        """Idempotency key without the attempt."""
        names = (self.branch_key, self.node.name) if self.branch_key else (self.node.name,)
        return "/".join((self.run_id, *names, str(self.visit)))

    def write(self, name: str, text: str) -> None:
        """Write a file to the folder of the visit, if there is one.

        Raises:
            PipelineError: the file could not be written.
        """
        if self.folder is None:
            return
        path = self.folder / name
        with os_errors(path, "make room, or free it"):
            write_atomically(path, text.encode("utf-8", "surrogatepass"))

    def environment(self) -> dict[str, str]:
        """Environment variables for commands of the stage: `STAGE_KEY` and, if it has a folder, `STAGE_FOLDER`."""
        key = {"STAGE_KEY": self.key.replace("\0", "")}
        if self.folder is None:
            return key
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
        return {**key, "STAGE_FOLDER": str(self.folder.absolute())}

    def write_status(self, outcome: Outcome) -> None:
        """Write the outcome to the status file, for other programs."""
        self.write(STATUS_FILE, json.dumps(outcome.document(), indent=1))

    def clear_status(self) -> None:
        """Remove the status file of an earlier attempt.

        Raises:
            PipelineError: the file cannot be removed.
        """
        if self.folder is None:
            return
        path = self.folder / STATUS_FILE
        with os_errors(path, "the stage needs this path for its status"):
            path.unlink(missing_ok=True)

    def keep(self, name: str, data: Any) -> str:
        """Store data as an artifact and return its reference.

        The reference is made of stage, visit and `name`, so it is the same after a resume.
        """
        names = (self.branch_id, self.node.name) if self.branch_id else (self.node.name,)
        return self.artifacts.store(artifact_id(*names, self.visit, name), name, data).reference


HandlerResult: TypeAlias = "Outcome | str | Mapping[str, Any] | None"
"""Result of a handler: an outcome, an outcome as plain data, the text of a success, or nothing."""


@runtime_checkable
class Handler(Protocol):
    """Runs stages of one type. A function that takes a stage works as a handler too.

    What is plain instead of async runs in a thread of its own, which goes on after a timeout.
    """

    async def execute(self, stage: Stage) -> HandlerResult:
        """Run a stage. An exception fails the stage, not the run."""
        ...


HandlerLike: TypeAlias = Handler | Callable[[Stage], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Properties of a handler, read from its attributes of the same names."""

    reads_past: bool = True
    """The handler uses the preamble."""
    retries: bool = True
    """Outcomes with the status `retry` are retried."""
    retries_failures: bool = False
    """Failures are retried too."""
    keeps_time: bool = False
    """The handler applies the stage's `timeout` itself."""
    may_be_partial: bool = True
    """A stage with `allow_partial` is a partial success if it still wants a retry after the last attempt."""


def traits(handler: object) -> Traits:
    """Read the traits of a handler."""
    values = {name: getattr(handler, name, None) for name in Traits.__dataclass_fields__}
    return Traits(**{name: value for name, value in values.items() if isinstance(value, bool)})


def folder_name(name: str) -> str:
    """Convert a name to a valid folder name; a valid name is unchanged."""
    safe = _UNSAFE.sub("_", name)[:100]
    if safe == name and name.strip("."):
        return name
    return f"{safe.strip('.') or 'stage'}-{blake2b(name.encode('utf-8', 'surrogatepass'), digest_size=4).hexdigest()}"


MODE, THREAD, KEY = "internal.fidelity.mode", "internal.fidelity.thread_key", "thread_key"
OVERRIDE, PREAMBLE, STEER = "internal.resume.fidelity_override_once", "_fidelity_preamble", "steer.message"
TRANSIENT_KEYS = (PREAMBLE, OVERRIDE, STEER)
"""Context keys that exist only while a stage runs, and are not part of checkpoints."""


def stage_input(
    graph: Graph, state: RunState, node: Node, *, needs_preamble: bool, degrade: bool, inbox: Sequence[str] = ()
) -> tuple[Fidelity, str | None, ContextStore, str]:
    """Compute the fidelity, thread, context and preamble of a stage, given the edge actually taken.

    The thread is None if other stages do not see the messages of the stage.

    Args:
        graph: The graph.
        state: The run before the stage.
        node: The stage.
        needs_preamble: True if the handler of the stage uses the preamble.
        degrade: True if conversations are not restored on resume, so that `full` becomes `summary:high` once. Such a
            stage begins its conversation anew with the preamble.
        inbox: Messages from a supervisor.
    """
    edge = graph.edges[state.edge] if state.edge is not None else None
    requested = resolve_fidelity(edge, node, graph)
    fidelity = fidelity_on_resume(requested, state.resumed and degrade and needs_preamble)
    thread = resolve_thread_id(edge, node, graph, state.current_node) if requested is Fidelity.FULL else None
    context = ContextStore.sharing(state.context, state.logs)
    context.apply_updates({"current_node": node.name, MODE: str(fidelity)})
    for key in (THREAD, KEY):
        context.set(key, thread) if thread is not None else context.remove(key)
    if fidelity is not requested:
        context.set(OVERRIDE, str(fidelity))
    preamble = ""
    if needs_preamble and fidelity is not Fidelity.FULL:
        values = context.values()
        preamble = build_fidelity_preamble(fidelity, graph, values, state.completed, node.name, state.logs)
        context.set(PREAMBLE, preamble)
    if inbox:  # after the preamble, which shortens values; agent handlers pass it on in full
        context.set(STEER, "\n".join(inbox))
    return fidelity, thread, context, preamble


async def run_attempts(
    handler: HandlerLike, stage: Stage, *, first: int, begin: Callable[[int], Awaitable[None]]
) -> tuple[Outcome, int]:
    """Run a stage, with retries, and return its outcome and the number of retries.

    Args:
        handler: Handler of the stage.
        stage: The visit.
        first: Number of the first attempt; above 1 if an earlier process died during that attempt.
        begin: Records the number of each further attempt before it begins, so that no other process reuses it.
    """
    handler_traits = traits(handler)
    most = max_attempts(stage.node, stage.graph) if handler_traits.retries else 1
    pauses = stage_backoff(stage.node, stage.config.backoff)
    marks = len(stage.session.marks) if stage.session else 0
    number = first
    while True:
        limit = None if handler_traits.keeps_time else stage.node.timeout
        outcome, is_transient = await _attempt_once(handler, replace(stage, attempt=number), limit=limit)
        asks_again = outcome.status is StageStatus.RETRY and handler_traits.retries
        failed = outcome.status is StageStatus.FAIL and handler_traits.retries_failures
        if not (is_transient or asks_again or failed):
            return outcome, number - 1
        if number >= most:
            partial = stage.node.allow_partial and handler_traits.may_be_partial
            return _exhaust_retries(outcome, partial=partial), number - 1
        delay = pauses.delay(number, stage.config.draw)
        await stage.emit("stage_retrying", attempt=number, delay=delay, reason=outcome.failure_reason)
        number += 1
        await begin(number)
        await stage.config.sleep(delay)
        if stage.session:
            stage.session.trim(marks)


def _exhaust_retries(outcome: Outcome, *, partial: bool) -> Outcome:
    """Turn an outcome `retry` after the last attempt into a partial success if that is allowed, else a failure."""
    if outcome.status is not StageStatus.RETRY:
        return outcome
    if partial:
        notes = outcome.notes or "retries exhausted, partial accepted"
        return replace(outcome, status=StageStatus.PARTIAL_SUCCESS, notes=notes)
    why = f": {outcome.failure_reason}" if outcome.failure_reason else ""
    return replace(outcome, status=StageStatus.FAIL, failure_reason=f"max retries exceeded{why}")


async def _attempt_once(handler: HandlerLike, stage: Stage, *, limit: float | None) -> tuple[Outcome, bool]:
    """Run one attempt, and return its outcome and True if it raised a transient error."""
    stage.clear_status()
    timeout = asyncio.timeout(limit)
    try:
        async with timeout:
            tried = await try_await(_call(handler, stage))
    except TimeoutError:
        if not timeout.expired():
            raise
        return failure(f"timed out after {limit:g} s"), False
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return failure("the handler was cancelled"), False
    if tried.error is not None:
        transient = not isinstance(tried.error, PipelineError) and stage.config.retryable(tried.error)
        kind = type(tried.error).__name__
        return replace(failure(f"{kind}: {tried.error}"[:EXCERPT]), error=kind), transient
    return outcome_from(tried.value, stage), False


async def _call(handler: HandlerLike, stage: Stage) -> Any:
    return await call_in_thread(cast(Any, getattr(handler, "execute", handler)), stage)


def outcome_from(answer: object, stage: Stage) -> Outcome:
    """Convert the result of a handler to an outcome; an unusable result becomes a failure."""
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
    """Read the outcome that an agent or command wrote to the stage's folder; None if there is none."""
    path = stage.folder / STATUS_FILE if stage.folder is not None else None
    if path is None or not path.is_file():
        return None
    try:
        document: Any = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        return failure(f"{path}: the status cannot be read: {error}")
    if not isinstance(document, Mapping):
        return failure(f"{path}: the status is not an object")
    return _parse(cast("Mapping[str, Any]", document), str(path))


def _parse(document: Mapping[str, Any], where: str) -> Outcome:
    try:
        return Outcome.parse(document)
    except ValueError as error:
        return failure(f"{where}: {error}")
