"""Configuration of a run: agents, people, limits, places, retries, and stand-ins for the outside world."""

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
from context_compiler.record.store import Store
from context_compiler.tokens.prices import Money, cost_of, dollars

Sleep = Callable[[float], Awaitable[None]]
"""Waits for a number of seconds."""
Random = Callable[[], float]
"""A random number in [0, 1)."""

TRANSIENT = (408, 425, 429)
"""HTTP status codes worth a retry, beside all from 500 on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Pauses between attempts."""

    initial: float = 0.2
    """Seconds before the second attempt."""
    factor: float = 2.0
    longest: float = 60.0
    jitter: bool = True

    def delay(self, attempt: int, draw: Random = random.random) -> float:
        """Seconds to wait after an attempt, counted from 1; jitter scales them by 0.5 to 1.5."""
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
"""Attempts and pauses by the names that pipelines use for them (`retry_policy`)."""


def max_attempts(node: Node, graph: Graph) -> int:
    """Attempts allowed per visit: from `max_retries`, else the stage's policy, else the graph's default."""
    if node.max_retries is not None:
        return max(0, node.max_retries) + 1
    preset = PRESETS.get(node.text("retry_policy"))
    return preset[0] if preset else max(0, graph.default_max_retries) + 1


def backoff_of(node: Node, usual: Backoff) -> Backoff:
    """The pauses of a stage: from its policy, else `usual`."""
    preset = PRESETS.get(node.text("retry_policy"))
    return preset[1] if preset else usual


def is_transient(error: BaseException) -> bool:
    """True for errors worth a retry: a busy or unreachable provider, a broken connection, a time-out."""
    if isinstance(error, ModelHTTPError):
        return error.status_code in TRANSIENT or error.status_code >= 500
    return isinstance(error, ModelAPIError | ConnectionError | TimeoutError | asyncio.IncompleteReadError)


Agents = Agent[Any, Any] | Mapping[str, Agent[Any, Any]] | Callable[[Node], "Agent[Any, Any] | None"]
"""One agent for all stages, agents by name, class or `*`, or a function from a stage to its agent."""

Steer = Callable[[Any], "str | None"]
"""From the state of a child pipeline to a message for it; None sends none."""


Journal = Callable[[Callable[[], Awaitable[bool]]], Awaitable[bool]]
"""Calls a function that advances a run by one stage; True once the run has ended."""


async def advance_plainly(advance: Callable[[], Awaitable[bool]]) -> bool:
    """Advance a run by one stage."""
    return await advance()


@dataclass(slots=True, kw_only=True)
class RequestMeter:
    """Counts the model requests of a run, and what they cost."""

    limit: int | None = None
    used: int = 0
    max_cost: Money | None = None
    cost: Decimal = Decimal(0)
    """In US dollars, of the requests to models whose prices are known."""
    unpriced: set[str] = field(default_factory=set[str])
    """Models that were asked and have no known price."""
    counted: set[str] = field(default_factory=set[str])
    """Runs whose earlier requests have been added, those of other processes included."""
    refused: int = 0
    """Number of requests that a limit prevented."""

    def add(self, report: Mapping[str, Any]) -> None:
        """Add requests from the facts of an event."""
        self.used += int(report.get("requests", 0))
        self.cost += Decimal(str(report.get("cost", 0)))
        self.unpriced.update(report.get("unpriced", ()))

    def charge(self, model: str, usage: Mapping[str, int], provider: str | None = None) -> None:
        """Add the cost of a request; a model without a known price is noted."""
        cost = cost_of(model, usage, provider)
        if cost is None:
            self.unpriced.add(model)
        else:
            self.cost += cost

    def report(self) -> dict[str, Any]:
        """Facts for an event: the cost in US dollars, and models without a known price."""
        spent = {"cost": float(self.cost)} if self.cost else {}
        return {**spent, "unpriced": sorted(self.unpriced)} if self.unpriced else spent

    @property
    def reached(self) -> str:
        """The limit that has been reached; empty if another request may be made."""
        if self.limit is not None and self.used >= self.limit:
            return f"the run made {self.used} model requests, which is the limit (max_requests)"
        if self.max_cost is not None and self.cost >= self.max_cost.amount:
            return f"the run cost {dollars(self.cost)}, and its limit is {self.max_cost} (max_cost)"
        return ""

    def refuse(self) -> str:
        """The limit that prevents a request, which is counted as refused; empty if it may be made."""
        self.refused += bool(self.reached)
        return self.reached


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Configuration of a run. With neither agents nor a model, agent stages are simulated."""

    agents: Agents | None = None
    model: Model | str | None = None
    """For stages that name no model."""
    simulate: bool = False
    """Never call a model."""
    deps: Any = None
    """Passed to every agent."""
    model_settings: ModelSettings | None = None
    handlers: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Handlers by type; they add to or replace the built-in ones."""
    interviewer: Interviewer = field(default_factory=AutoApprove)
    """Answers human gates."""
    run_id: str | None = None
    """None generates one."""
    logs_root: str | Path | None = None
    """Folder for the run's files; None writes none."""
    runs: Any = None
    """Storage of runs: a `RunStore`, a `.db` file, a folder of runs, or the address of a PostgreSQL database.

    None means `logs_root`, else memory.
    """
    store: str | Path | Store | None = None
    """Record of what each stage was sent; None records in memory."""
    compiler: Mapping[str, Any] | None = field(default_factory=dict[str, Any])
    """Arguments of each stage's `ContextCompiler`; None attaches none."""
    context: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Initial values of the context."""
    workdir: str | Path | None = None
    """Working folder of tools."""
    transforms: tuple[Callable[[Graph], Graph], ...] = ()
    """Applied in order after the stylesheet and before the check."""
    rules: tuple[Rule, ...] = ()
    """Additional validation rules."""
    backoff: Backoff = field(default_factory=Backoff)
    retryable: Callable[[BaseException], bool] = is_transient
    """True for errors after which a stage may run again."""
    max_visits: int = 100
    """Default limit of visits to one stage in one attempt."""
    max_steps: int = 100_000
    max_loop_restarts: int = 16
    max_duration: float | None = None
    """Limit in seconds on the total time that processes work on the run; gaps between processes do not count."""
    max_requests: int | None = None
    """Limit on the model requests of all agents of the run, over all processes that worked on it.

    Those of branches and children are included, and failed ones count.
    """
    max_cost: Money | None = None
    """Limit on the cost of those requests, such as `Money(0.50)`; requests under way when it is reached still finish.

    Models without a known price are not counted; a warning and the last event name them.
    """
    strict_failure_edges: bool | None = None
    """Edges a failure may take: with True only those with a condition, with False any.

    None leaves it to the graph; if that does not say, a failure takes only edges that route by outcome.
    """
    unvisited_gates: bool = False
    """A goal gate that never ran counts as unsatisfied."""
    resume_threads: Literal["degrade", "restore"] = "degrade"
    """Resuming at `full`: `summary:high` for one stage, or the former conversation."""
    steer: Steer | None = None
    on_event: OnEvent | None = None
    journal: Journal = advance_plainly
    """Advances the run by one stage; a durable engine makes that a step of its own."""
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
    def simulated(self) -> bool:
        """True if agent stages call no model."""
        return self.simulate or (self.agents is None and self.model is None)
