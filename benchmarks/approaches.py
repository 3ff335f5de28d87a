"""Every approach turns a history and a budget into the messages of a request, through its own public interface.

An approach lives in a module of `benchmarks.peers`, which is imported when the approach is asked for. One that is not
installed, or cannot do a job, is a dash with a reason. Whoever accepts a tokenizer is given the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module, metadata
from typing import Any

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model

from context_compiler.middleware.replay import LiveSession, Session, View

NEEDS_A_MODEL = "needs a model, and no model answers are recorded for these data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Approach:
    """One way of making the messages of a request."""

    name: str
    title: str
    setup: str = ""
    """How it was set up, for the reader."""
    package: str = ""
    """The distribution it comes with; empty is nothing but Python."""
    ours: bool = False
    knows: bool = False
    """It is told the evidence: the best that whole messages can do."""
    view: View | None = None
    session: Callable[[int], Session] | None = None
    """A fresh session at a budget."""
    summarising: Callable[[Model, int], list[Any]] | None = None
    """Capabilities at a budget that ask a model for summaries."""
    dashes: Mapping[str, str] = field(default_factory=dict[str, str])
    """Why it cannot do a job (`view`, `session`, `compiles`), by job."""

    @property
    def version(self) -> str:
        """Of its package; of nothing, where it has none."""
        return installed(self.package) if self.package else ""


HOMES = {
    "ours": "ours",
    "ours-live": "ours",
    "ours-live-full": "ours",
    "ours-live-bland": "ours",
    "ours-live-good": "ours",
    "ours-live-economy": "ours",
    "ours-live-parity": "ours",
    "ours-live-off": "ours",
    "everything": "baselines",
    "tail": "baselines",
    "head-tail": "baselines",
    "random": "baselines",
    "oracle": "baselines",
    "host": "host",
    "harness-window": "harness",
    "harness-window-quarter": "harness",
    "harness-clear": "harness",
    "harness-tiered": "harness",
    "harness-summary": "harness",
    "summarization-window": "summarization",
    "summarization-summary": "summarization",
    "langchain-trim": "langchain",
    "llamaindex-buffer": "llamaindex",
    "llamaindex-memory": "llamaindex",
}
"""Approaches in the order of the tables, and the module of `benchmarks.peers` where each lives."""

ONLY = {
    "ours-live": {"lived", "sessions", "compiles"},
    "ours-live-full": {"sessions"},
    "ours-live-bland": {"lived"},
    "ours-live-good": {"lived"},
    "ours-live-economy": {"lived", "sessions"},
    "ours-live-parity": {"lived"},
    "ours-live-off": {"lived"},
}
"""Approaches that belong to some measures only. A live agent is measured where it has lived through its history: one
that is handed a whole history and asked at once makes its first view for that very question.
"""

PACKAGES = {
    "harness": "pydantic-ai-harness",
    "summarization": "summarization-pydantic-ai",
    "langchain": "langchain-core",
    "llamaindex": "llama-index-core",
}


@dataclass(frozen=True, slots=True)
class Missing:
    """An approach that is not there, and why."""

    name: str
    reason: str


def load(name: str) -> Approach | Missing:
    """An approach by name.

    Raises:
        KeyError: there is none of that name.
    """
    home = HOMES[name]
    try:
        module = import_module(f"benchmarks.peers.{home}")
    except ImportError as error:
        package = PACKAGES.get(home, "")
        if not package:
            raise
        there = installed(package)
        return Missing(name, "not installed" if there == NOT_INSTALLED else f"{package} {there}: {error}")
    return next(one for one in module.APPROACHES if one.name == name)


NOT_INSTALLED = "not installed"


def installed(package: str) -> str:
    """The version of a distribution that is installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return NOT_INSTALLED


def attached(capabilities: Callable[[int], list[Any]]) -> View:
    """The first request of an agent with these capabilities."""

    async def view(messages: list[ModelMessage], budget: int) -> Sequence[ModelMessage]:
        return await LiveSession(capabilities(budget)).request(messages)

    return view
