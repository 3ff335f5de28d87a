"""A stage as its handler sees it: what it is, what it may know, and where it leaves what it made."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from context_compiler.errors import PipelineError
from context_compiler.fidelity import Fidelity, fidelity_on_resume, resolve_fidelity, resolve_thread_id
from context_compiler.pipeline.artifacts import ArtifactStore, artifact_id, write_atomically
from context_compiler.pipeline.config import RunConfig
from context_compiler.pipeline.context import ContextStore
from context_compiler.pipeline.graph import Graph, Node
from context_compiler.pipeline.outcome import Outcome
from context_compiler.pipeline.preamble import build_fidelity_preamble
from context_compiler.pipeline.state import RunState
from context_compiler.pipeline.threads import Session

STATUS_FILE = "status.json"
_UNFIT = re.compile(r"[^A-Za-z0-9_.-]")


class Child(Protocol):
    """A pipeline that a stage started, while it runs."""

    @property
    def state(self) -> RunState:
        """Where it stands."""
        ...

    @property
    def running(self) -> bool:
        """Whether it still runs."""
        ...

    def steer(self, message: str) -> None:
        """Leave a message that its next stage finds in the context as `steer.message`."""
        ...

    async def wait(self, sleeping: asyncio.Future[None]) -> None:
        """Until it has ended, or `sleeping` has."""
        ...

    async def stop(self) -> None:
        """End it; its last checkpoint stays."""
        ...


RunBranch: TypeAlias = Callable[[str, int, str, str], Awaitable[RunState]]
"""Runs from a stage, by the edge of that place, in the branch of that name, up to but not including a stage."""
StartChild: TypeAlias = Callable[[Graph, str], Awaitable[Child]]
"""Starts a graph as a run of that id, or goes on with it."""
Emit: TypeAlias = Callable[..., Awaitable[None]]
"""Tells that something happened: its kind, and facts by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One visit to a stage."""

    node: Node
    graph: Graph
    context: ContextStore
    """Values of the run; a handler may read and set them, and also return updates."""
    artifacts: ArtifactStore
    config: RunConfig
    run_id: str
    branch_id: str = ""
    """The branch of a parallel stage it is in; empty: none."""
    folder: Path | None
    """Where its files go; None: nowhere."""
    fidelity: Fidelity
    thread_id: str | None
    """The key of the conversation it continues; None: it begins a fresh one."""
    session: Session | None
    """That conversation."""
    preamble: str
    """What it is told of the run so far; empty at `full`."""
    previous: Outcome | None
    """How the stage before it went."""
    visit: int
    """From 1."""
    branch: RunBranch
    start: StartChild
    emit: Emit

    @property
    def prompt(self) -> str:
        """What it is asked to do: its prompt or label, with `$goal` filled in."""
        return self.graph.with_goal(self.node.prompt or self.node.label)

    def write(self, name: str, text: str) -> None:
        """Leave a file in its folder, if it has one.

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

    def write_status(self, outcome: Outcome) -> None:
        """Leave its outcome where other programs look for it."""
        self.write(STATUS_FILE, json.dumps(outcome.document(), indent=1))

    def clear_status(self) -> None:
        """Take away what an attempt before this one left as its outcome.

        Raises:
            PipelineError: there is something in its place that cannot be taken away.
        """
        if self.folder is None:
            return
        path = self.folder / STATUS_FILE
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise PipelineError(
                f"{path}: {error.strerror or error}; it is in the place of the stage's status"
            ) from error

    def keep(self, name: str, data: Any) -> str:
        """Keep data as an artifact; the reference says stage, visit and `name`, the same after a resume."""
        place = (self.branch_id, self.node.name) if self.branch_id else (self.node.name,)
        return self.artifacts.store(artifact_id(*place, self.visit, name), name, data).reference


HandlerResult: TypeAlias = "Outcome | str | Mapping[str, Any] | None"
"""What a handler may return: an outcome, a text that is a success, plain data of an outcome, or nothing."""


@runtime_checkable
class Handler(Protocol):
    """Runs the stages of one type. A plain function of a stage, async or not, does as well."""

    async def execute(self, stage: Stage) -> HandlerResult:
        """Do the work of a stage. An exception is a failure of the stage, not of the run."""
        ...


HandlerLike: TypeAlias = Handler | Callable[[Stage], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What an engine has to know of a handler; its attributes of these names, where it has them."""

    reads_past: bool = True
    """It wants the preamble."""
    retries: bool = True
    """A status `retry` of it is tried again."""
    keeps_time: bool = False
    """It looks to the stage's `timeout` itself."""


def traits(handler: object) -> Traits:
    """The traits of a handler."""
    names: Sequence[str] = ("reads_past", "retries", "keeps_time")
    return Traits(**{name: getattr(handler, name) for name in names if isinstance(getattr(handler, name, None), bool)})


def folder_name(name: str) -> str:
    """A name as that of a folder: itself where it can be one."""
    fit = _UNFIT.sub("_", name)[:100]
    if fit == name and name.strip("."):
        return name
    return f"{fit.strip('.') or 'stage'}-{blake2b(name.encode('utf-8', 'surrogatepass'), digest_size=4).hexdigest()}"


MODE, THREAD, KEY = "internal.fidelity.mode", "internal.fidelity.thread_key", "thread_key"
OVERRIDE, PREAMBLE, STEER = "internal.resume.fidelity_override_once", "_fidelity_preamble", "steer.message"
PASSING = (PREAMBLE, OVERRIDE, STEER)
"""Keys that are there while a stage runs, and in no checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageInput:
    """What a stage begins with."""

    fidelity: Fidelity
    thread: str | None
    """The key of the conversation it continues; None: it begins a fresh one."""
    context: ContextStore
    preamble: str


def stage_input(
    graph: Graph, state: RunState, node: Node, *, needs_preamble: bool, degrade: bool, inbox: Sequence[str] = ()
) -> StageInput:
    """What a stage begins with.

    Args:
        graph: The graph.
        state: The run before the stage.
        node: The stage.
        needs_preamble: Whether it wants a preamble.
        degrade: Whether a resumed run has lost its conversations, so that `full` is `summary:high` once.
        inbox: What a supervisor says.
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
