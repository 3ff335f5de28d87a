"""Configuration of a run: agents, interviewers, limits, storage, retries, and replaceable time and randomness."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
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
from context_compiler.record.store import Store, Tenants
from context_compiler.tokens.prices import Money, cost_of, dollars

Sleep = Callable[[float], Awaitable[None]]
"""Function that waits for a number of seconds."""
Random = Callable[[], float]
"""Function that returns a random number in [0, 1)."""

TRANSIENT = (408, 425, 429)
"""HTTP status codes below 500 that are worth a retry; `is_transient` adds all codes from 500 on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Pauses between attempts, which grow by a factor."""

    initial: float = 0.2
    """Seconds before the second attempt."""
    factor: float = 2.0
    longest: float = 60.0
    """Maximum pause in seconds."""
    jitter: bool = True

    def delay(self, attempt: int, draw: Random = random.random) -> float:
        """Return the seconds to wait after an attempt, counted from 1; jitter multiplies them by 0.5 to 1.5."""
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
"""Maximum attempts and pauses by `retry_policy`."""


def max_attempts(node: Node, graph: Graph) -> int:
    """Maximum attempts of a stage per visit: from its `max_retries`, else its policy, else the graph's default."""
    if node.max_retries is not None:
        return max(0, node.max_retries) + 1
    preset = PRESETS.get(node.text("retry_policy"))
    return preset[0] if preset else max(0, graph.default_max_retries) + 1


def stage_backoff(node: Node, usual: Backoff) -> Backoff:
    """Pauses between the attempts of a stage: from its policy, else `usual`."""
    preset = PRESETS.get(node.text("retry_policy"))
    return preset[1] if preset else usual


def is_transient(error: BaseException) -> bool:
    """True if an error is worth a retry: a busy or unreachable provider, a broken connection, or a timeout."""
    if isinstance(error, ModelHTTPError):
        return error.status_code in TRANSIENT or error.status_code >= 500
    return isinstance(error, ModelAPIError | ConnectionError | TimeoutError | asyncio.IncompleteReadError)


Agents = Agent[Any, Any] | Mapping[str, Agent[Any, Any]] | Callable[[Node], "Agent[Any, Any] | None"]
"""One agent for all stages; agents by stage name, class or `*`; or a function from a stage to its agent."""

Steer = Callable[[Any], "str | None"]
"""Function from the state of a child pipeline to a message for it; None sends no message."""


Journal = Callable[[Callable[[], Awaitable[bool]]], Awaitable[bool]]
"""Function that calls its argument to advance a run by one stage; True once the run has ended."""


async def advance_plainly(advance: Callable[[], Awaitable[bool]]) -> bool:
    """Advance a run by one stage."""
    return await advance()


@dataclass(slots=True, kw_only=True)
class RequestMeter:
    """Counter of the model requests of a run and of their cost."""

    limit: int | None = None
    used: int = 0
    max_cost: Money | None = None
    cost: Decimal = Decimal(0)
    """Cost in US dollars of the requests to models with a known price."""
    unpriced: set[str] = field(default_factory=set[str])
    """Models that received requests and have no known price."""
    counted: set[str] = field(default_factory=set[str])
    """Ids of runs whose earlier requests, including those of other processes, have been added."""
    refused: int = 0
    """Number of requests that a limit prevented."""

    def add(self, report: Mapping[str, Any]) -> None:
        """Add the requests and the cost that an event reports."""
        self.used += int(report.get("requests", 0))
        self.cost += Decimal(str(report.get("cost", 0)))
        self.unpriced.update(report.get("unpriced", ()))

    def charge(self, model: str, usage: Mapping[str, int], provider: str | None = None) -> None:
        """Add the cost of a request, or note that the price of its model is unknown."""
        cost = cost_of(model, usage, provider)
        if cost is None:
            self.unpriced.add(model)
        else:
            self.cost += cost

    def report(self) -> dict[str, Any]:
        """Return the data for an event: the cost in US dollars, and models without a known price."""
        spent = {"cost": float(self.cost)} if self.cost else {}
        return {**spent, "unpriced": sorted(self.unpriced)} if self.unpriced else spent

    @property
    def reached(self) -> str:
        """Message about the limit that has been reached; empty if another request is allowed."""
        if self.limit is not None and self.used >= self.limit:
            return f"the run made {self.used} model requests, which is the limit (max_requests)"
        if self.max_cost is not None and self.cost >= self.max_cost.amount:
            return f"the run cost {dollars(self.cost)}, and its limit is {self.max_cost} (max_cost)"
        return ""

    def refuse(self) -> str:
        """Check the limits before a request and count it if it is refused; return the message as in `reached`."""
        self.refused += bool(self.reached)
        return self.reached


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Configuration of a run. With neither agents nor a model, agent stages are simulated."""

    agents: Agents | None = None
    model: Model | str | None = None
    """Model for stages that name none."""
    simulate: bool = False
    """True to simulate all agent stages, so that no model is called."""
    deps: Any = None
    """Dependencies passed to every agent."""
    model_settings: ModelSettings | None = None
    handlers: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Handlers by type, which add to or replace the built-in ones."""
    interviewer: Interviewer = field(default_factory=AutoApprove)
    """Interviewer that answers the questions of human gates."""
    run_id: str | None = None
    """Id of the run; None generates one."""
    logs_root: str | Path | None = None
    """Folder for the run's files; None writes none."""
    runs: Any = None
    """Storage of runs: a `RunStore`, a `.db` file, a folder of runs, or the address of a PostgreSQL database.

    None uses `logs_root` if that is set, else memory.
    """
    store: str | Path | Store | None = None
    """Record of the requests of each stage; None records in memory."""
    compiler: Mapping[str, Any] | None = field(default_factory=dict[str, Any])
    """Arguments of each stage's `ContextCompiler`; None attaches none."""
    context: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Initial values of the context."""
    workdir: str | Path | None = None
    """Working directory of tool stages."""
    transforms: tuple[Callable[[Graph], Graph], ...] = ()
    """Functions applied to the graph, in order, after the stylesheet and before validation."""
    rules: tuple[Rule, ...] = ()
    """Additional validation rules."""
    backoff: Backoff = field(default_factory=Backoff)
    retryable: Callable[[BaseException], bool] = is_transient
    """Predicate for errors after which a stage may run again."""
    max_visits: int = 100
    """Maximum visits to a stage between two restarts of the run, unless the stage sets its own."""
    max_steps: int = 100_000
    max_loop_restarts: int = 16
    max_duration: float | None = None
    """Maximum total time in seconds that processes work on the run; time between two processes does not count."""
    max_requests: int | None = None
    """Maximum model requests of the run, over all processes that work on it.

    Requests of branches and child pipelines count, and so do failed requests.
    """
    max_cost: Money | None = None
    """Maximum cost of those requests and of compiles, such as `Money(0.50)`.

    Requests in flight when it is reached still finish.

    Requests to models without a known price do not count; a warning and the last event name these models.
    """
    strict_failure_edges: bool | None = None
    """True if a failure may take only edges with a condition, False if it may take any edge.

    None uses the setting of the graph; without one, a failure takes only edges that route by outcome.
    """
    unvisited_gates: bool = False
    """True if a goal gate that never ran counts as unsatisfied."""
    resume_threads: Literal["degrade", "restore"] = "degrade"
    """Resuming at `full`: `degrade` runs the next stage at `summary:high`, `restore` keeps the conversation."""
    steer: Steer | None = None
    on_event: OnEvent | None = None
    journal: Journal = advance_plainly
    """Function that advances the run by one stage; a durable engine records each call as a step."""
    sleep: Sleep = asyncio.sleep
    clock: Callable[[], float] = time.monotonic
    draw: Random = random.random

    def __post_init__(self) -> None:
        for name in ("max_visits", "max_steps", "max_loop_restarts"):
            value: object = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise SettingsError(f"{name}={value!r}: give a whole number, not below 0")
        for name in ("max_duration", "max_requests"):
            limit: object = getattr(self, name)
            whole = name == "max_requests" and isinstance(limit, float)
            if limit is not None and (
                isinstance(limit, bool) or not isinstance(limit, int | float) or whole or not limit > 0
            ):
                raise SettingsError(f"{name}={limit!r}: give a number above 0, or None for no limit")
        if self.max_cost is not None and not isinstance(self.max_cost, Money):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers without types
            raise SettingsError(f"max_cost={self.max_cost!r}: give Money(0.50), or None for no limit")
        if self.resume_threads not in ("degrade", "restore"):
            raise SettingsError(f"resume_threads={self.resume_threads!r}: give 'degrade' or 'restore'")

    @property
    def owner(self) -> str:
        """Owner of the run: that of its compiler or of its record; empty if there is none, or a function names it."""
        owner = (self.compiler or {}).get("owner")
        if owner is None and isinstance(self.store, Tenants):
            owner = self.store.owner
        return owner if isinstance(owner, str) else ""

    @property
    def simulated(self) -> bool:
        """True if agent stages call no model."""
        return self.simulate or (self.agents is None and self.model is None)
