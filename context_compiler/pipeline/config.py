"""A stage that fails in passing is tried again, after a pause that grows; what cannot succeed is not."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError
from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings

from context_compiler.errors import SettingsError
from context_compiler.pipeline.check import Rule
from context_compiler.pipeline.graph import Graph, Node
from context_compiler.pipeline.interviewers import AutoApprove, Interviewer
from context_compiler.pipeline.stores import OnEvent
from context_compiler.record.store import Store

Sleep = Callable[[float], Awaitable[None]]
"""Waits for some seconds."""
Random = Callable[[], float]
"""A number from 0 up to 1."""

TRANSIENT = (408, 425, 429)
"""HTTP answers that may be another one next time, beside all from 500 on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How long to wait before each further attempt."""

    initial: float = 0.2
    """Seconds before the second attempt."""
    factor: float = 2.0
    longest: float = 60.0
    jitter: bool = True

    def delay(self, attempt: int, draw: Random = random.random) -> float:
        """Seconds to wait after the attempt of that number, from 1; with jitter from half as long to one and a half."""
        exponent = min(attempt - 1, 64)
        try:
            wait = min(self.initial * self.factor**exponent, self.longest)
        except OverflowError:
            wait = self.longest
        return wait * (0.5 + draw()) if self.jitter else wait


PRESETS = {
    "none": (1, Backoff()),
    "standard": (5, Backoff(initial=0.2, factor=2.0)),
    "aggressive": (5, Backoff(initial=0.5, factor=2.0)),
    "linear": (3, Backoff(initial=0.5, factor=1.0)),
    "patient": (3, Backoff(initial=2.0, factor=3.0)),
}
"""Attempts and pauses under the names that pipelines use for them (`retry_policy`)."""


def max_attempts(node: Node, graph: Graph) -> int:
    """How often a stage may run at one visit: its `max_retries` and one, else its policy's, else the graph's."""
    if node.max_retries is not None:
        return max(0, node.max_retries) + 1
    preset = PRESETS.get(node.text("retry_policy"))
    return preset[0] if preset else max(0, graph.default_max_retries) + 1


def backoff_of(node: Node, usual: Backoff) -> Backoff:
    """The pauses of a stage."""
    preset = PRESETS.get(node.text("retry_policy"))
    return preset[1] if preset else usual


def is_transient(error: BaseException) -> bool:
    """Whether an exception may not come again: a provider that is busy or not reached, a connection, a time-out."""
    if isinstance(error, ModelHTTPError):
        return error.status_code in TRANSIENT or error.status_code >= 500
    return isinstance(error, ModelAPIError | ConnectionError | TimeoutError | asyncio.IncompleteReadError)


Agents = Agent[Any, Any] | Mapping[str, Agent[Any, Any]] | Callable[[Node], "Agent[Any, Any] | None"]
"""One agent for all stages, one a stage (by name, class, or `*` for the rest), or a function that gives it."""

Steer = Callable[[Any], "str | None"]
"""Given the state of a child pipeline, what to tell it; None: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """How a pipeline is run. With neither agents nor a model, agents' stages are simulated."""

    agents: Agents | None = None
    model: Model | str | None = None
    """Runs the stages that name none themselves."""
    simulate: bool = False
    """Ask no model, whatever is given."""
    deps: Any = None
    """Given to every agent."""
    model_settings: ModelSettings | None = None
    handlers: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Handlers by type, beside the built-in ones or instead of them."""
    interviewer: Interviewer = field(default_factory=AutoApprove)
    """Whom human gates ask."""
    run_id: str | None = None
    """None makes a new one."""
    logs_root: str | Path | None = None
    """The folder of the run's files; None writes none."""
    runs: Any = None
    """Where runs are kept: a `RunStore`, a `.db` file or a folder of runs; None keeps it in `logs_root` or memory."""
    store: str | Path | Store | None = None
    """Where what each stage was sent is recorded; None records in memory."""
    compiler: Mapping[str, Any] | None = field(default_factory=dict[str, Any])
    """Arguments of the `ContextCompiler` of each stage; None attaches none."""
    context: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Values that a run begins with."""
    workdir: str | Path | None = None
    """Where tools run."""
    transforms: tuple[Callable[[Graph], Graph], ...] = ()
    """Applied in order after the stylesheet and before the check."""
    rules: tuple[Rule, ...] = ()
    """More rules for the check."""
    backoff: Backoff = field(default_factory=Backoff)
    retryable: Callable[[BaseException], bool] = is_transient
    """Whether a stage that raised this may run again."""
    max_visits: int = 100
    """Visits to one stage in one attempt, where it does not say itself."""
    max_steps: int = 100_000
    max_loop_restarts: int = 16
    strict_failure_edges: bool = False
    """A failure never takes an edge without a condition."""
    unvisited_gates: bool = False
    """A goal gate that never ran counts as not satisfied."""
    resume_threads: Literal["degrade", "restore"] = "degrade"
    """What a resumed run does at `full`: `summary:high` for one stage, or the conversation as it was."""
    steer: Steer | None = None
    on_event: OnEvent | None = None
    sleep: Sleep = asyncio.sleep
    clock: Callable[[], float] = time.monotonic
    draw: Random = random.random

    def __post_init__(self) -> None:
        for name in ("max_visits", "max_steps", "max_loop_restarts"):
            value: object = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise SettingsError(f"{name}={value!r}: give a whole number, not below 0")
        if self.resume_threads not in ("degrade", "restore"):
            raise SettingsError(f"resume_threads={self.resume_threads!r}: give 'degrade' or 'restore'")

    @property
    def simulated(self) -> bool:
        """Whether agents' stages ask no model."""
        return self.simulate or (self.agents is None and self.model is None)
