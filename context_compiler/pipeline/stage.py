"""A stage as its handler sees it: inputs, results, files, and how much of the past it gets."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from context_compiler.errors import PipelineError
from context_compiler.fidelity import Fidelity, fidelity_on_resume, resolve_fidelity, resolve_thread_id
from context_compiler.pipeline.artifacts import ArtifactStore, artifact_id, write_atomically
from context_compiler.pipeline.config import RequestMeter, RunConfig
from context_compiler.pipeline.context import ContextStore
from context_compiler.pipeline.graph import Graph, Node
from context_compiler.pipeline.outcome import Outcome
from context_compiler.pipeline.preamble import build_fidelity_preamble
from context_compiler.pipeline.state import RunState
from context_compiler.pipeline.threads import Session

STATUS_FILE = "status.json"
_UNFIT = re.compile(r"[^A-Za-z0-9_.-]")


class Child(Protocol):
    """A running pipeline that a stage started."""

    @property
    def state(self) -> RunState:
        """The last saved state."""
        ...

    @property
    def running(self) -> bool:
        """True while it runs."""
        ...

    def steer(self, message: str) -> None:
        """Leave a message for its next stage, as `steer.message` in the context."""
        ...

    async def wait(self, sleeping: asyncio.Future[None]) -> None:
        """Wait until it has ended, or `sleeping` has."""
        ...

    async def stop(self) -> None:
        """Stop it; its last checkpoint remains."""
        ...


RunBranch: TypeAlias = Callable[[str, int, str, str], Awaitable[RunState]]
"""Runs a branch: first stage, index of its edge, name of the branch, stage at which to stop."""
StartChild: TypeAlias = Callable[[Graph, str], Awaitable[Child]]
"""Starts or resumes a graph under a run id."""
Emit: TypeAlias = Callable[..., Awaitable[None]]
"""Emits an event: its kind, and facts by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A visit to a stage."""

    node: Node
    graph: Graph
    context: ContextStore
    """Values of the run; a handler may set them directly, or return updates."""
    artifacts: ArtifactStore
    config: RunConfig
    run_id: str
    branch_id: str = ""
    """Its branch of a parallel stage; empty outside of branches."""
    folder: Path | None
    """Folder for its files; None without files."""
    fidelity: Fidelity
    thread_id: str | None
    """Key of the conversation it continues; None starts a new one."""
    session: Session | None
    """The conversation it continues."""
    preamble: str
    """Text about the run so far; empty at `full`."""
    previous: Outcome | None
    """Outcome of the stage before it."""
    visit: int
    """Number of the visit, from 1."""
    requests: RequestMeter
    """Model requests of the run; a handler that makes some adds them."""
    branch: RunBranch
    start: StartChild
    emit: Emit

    @property
    def prompt(self) -> str:
        """Its instruction: prompt or label, with `$goal` replaced."""
        return self.graph.with_goal(self.node.prompt or self.node.label)

    def write(self, name: str, text: str) -> None:
        """Write a file to its folder, if it has one.

        Raises:
            PipelineError: it could not be written.
        """
        if self.folder is None:
            return
        path = self.folder / name
        try:
            write_atomically(path, text.encode("utf-8", "surrogatepass"))
        except OSError as error:
            raise PipelineError(f"{path}: {error.strerror or error}; make room, or free it") from error

    def environment(self) -> dict[str, str]:
        """Environment variables for commands of the stage: `STAGE_FOLDER`, if it has one, which then exists."""
        if self.folder is None:
            return {}
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
        return {"STAGE_FOLDER": str(self.folder.absolute())}

    def write_status(self, outcome: Outcome) -> None:
        """Write the outcome to the status file, for other programs."""
        self.write(STATUS_FILE, json.dumps(outcome.document(), indent=1))

    def clear_status(self) -> None:
        """Remove the status file of an earlier attempt.

        Raises:
            PipelineError: it cannot be removed.
        """
        if self.folder is None:
            return
        path = self.folder / STATUS_FILE
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise PipelineError(
                f"{path}: {error.strerror or error}; something else is in the place of the stage's status"
            ) from error

    def keep(self, name: str, data: Any) -> str:
        """Store data as an artifact; the reference, from stage, visit and `name`, is the same after a resume."""
        place = (self.branch_id, self.node.name) if self.branch_id else (self.node.name,)
        return self.artifacts.store(artifact_id(*place, self.visit, name), name, data).reference


HandlerResult: TypeAlias = "Outcome | str | Mapping[str, Any] | None"
"""Result of a handler: an outcome, text of a success, an outcome as plain data, or nothing."""


@runtime_checkable
class Handler(Protocol):
    """Runs stages of one type. A plain function of a stage, async or not, works too."""

    async def execute(self, stage: Stage) -> HandlerResult:
        """Run a stage. An exception fails the stage, not the run."""
        ...


HandlerLike: TypeAlias = Handler | Callable[[Stage], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Properties of a handler, from its attributes of the same names."""

    reads_past: bool = True
    """It uses the preamble."""
    retries: bool = True
    """Its status `retry` is retried."""
    retries_failures: bool = False
    """Its failures are retried too."""
    keeps_time: bool = False
    """It applies the stage's `timeout` itself."""


def traits(handler: object) -> Traits:
    """Read the traits of a handler."""
    names: Sequence[str] = ("reads_past", "retries", "retries_failures", "keeps_time")
    return Traits(**{name: getattr(handler, name) for name in names if isinstance(getattr(handler, name, None), bool)})


def folder_name(name: str) -> str:
    """A name as a folder name, unchanged if it is valid."""
    fit = _UNFIT.sub("_", name)[:100]
    if fit == name and name.strip("."):
        return name
    return f"{fit.strip('.') or 'stage'}-{blake2b(name.encode('utf-8', 'surrogatepass'), digest_size=4).hexdigest()}"


MODE, THREAD, KEY = "internal.fidelity.mode", "internal.fidelity.thread_key", "thread_key"
OVERRIDE, PREAMBLE, STEER = "internal.resume.fidelity_override_once", "_fidelity_preamble", "steer.message"
PASSING = (PREAMBLE, OVERRIDE, STEER)
"""Context keys that exist only while a stage runs, never in a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageInput:
    """Input of a stage."""

    fidelity: Fidelity
    thread: str | None
    """Key of the conversation it continues; None starts a new one."""
    context: ContextStore
    preamble: str


def stage_input(
    graph: Graph, state: RunState, node: Node, *, needs_preamble: bool, degrade: bool, inbox: Sequence[str] = ()
) -> StageInput:
    """Input of a stage: fidelity, thread, context and preamble, resolved with the edge actually taken.

    Args:
        graph: The graph.
        state: The run before the stage.
        node: The stage.
        needs_preamble: True if its handler uses the preamble.
        degrade: True if resuming loses conversations, so that `full` becomes `summary:high` once.
        inbox: Messages from a supervisor.
    """
    edge = graph.edges[state.edge] if state.edge is not None else None
    asked = resolve_fidelity(edge, node, graph)
    fidelity = fidelity_on_resume(asked, state.resumed and degrade and needs_preamble)
    thread = resolve_thread_id(edge, node, graph, state.current_node) if fidelity is Fidelity.FULL else None
    context = ContextStore.sharing(state.context, state.logs)
    context.apply_updates({"current_node": node.name, MODE: str(fidelity)})
    for key in (THREAD, KEY):
        context.set(key, thread) if thread is not None else context.remove(key)
    if fidelity is not asked:
        context.set(OVERRIDE, str(fidelity))
    preamble = ""
    if needs_preamble and fidelity is not Fidelity.FULL:
        values = context.values()
        preamble = build_fidelity_preamble(fidelity, graph, values, state.completed, node.name, state.logs)
        context.set(PREAMBLE, preamble)
    if inbox:  # after the preamble, which shows little of a value, or none: whoever asks an agent hands it on whole
        context.set(STEER, "\n".join(inbox))
    return StageInput(fidelity=fidelity, thread=thread, context=context, preamble=preamble)
