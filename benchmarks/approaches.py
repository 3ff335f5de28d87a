"""Approaches: each turns a history and a budget into the messages of a request, through its own public interface.

An approach is defined in a module of `benchmarks.peers`, which is imported when the approach is loaded. If it is not
installed, or cannot do a job, the table shows a dash and the reason. Approaches that accept a tokenizer get the same
one.
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
    """One way to make the messages of a request."""

    name: str
    title: str
    setup: str = ""
    """Its settings, as shown in the setup table."""
    package: str = ""
    """Distribution that it needs; empty if it needs none."""
    ours: bool = False
    knows: bool = False
    """True if it receives the evidence: the upper bound for whole messages."""
    view: View | None = None
    session: Callable[[int], Session] | None = None
    """Create a new session with a budget."""
    summarising: Callable[[Model, int], list[Any]] | None = None
    """Build capabilities with a budget that ask a model for summaries."""
    dashes: Mapping[str, str] = field(default_factory=dict[str, str])
    """Reasons why it cannot do a job, by job (`view`, `session`, `compiles`)."""

    @property
    def version(self) -> str:
        """Version of its package; empty if it needs none."""
        return installed(self.package) if self.package else ""


HOMES = {
    "ours": "ours",
    "ours-unseen": "ours",
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
    "bm25": "baselines",
    "bm25-3": "baselines",
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
"""Approaches in the order of the tables, each with its module in `benchmarks.peers`."""

ONLY = {
    "bm25": {"sets"},
    "bm25-3": {"sets"},
    "ours-unseen": {"sets"},
    "ours-live": {"lived", "sessions", "compiles", "answers"},
    "ours-live-full": {"sessions"},
    "ours-live-bland": {"lived"},
    "ours-live-good": {"lived"},
    "ours-live-economy": {"lived", "sessions"},
    "ours-live-parity": {"lived"},
    "ours-live-off": {"lived"},
}
"""Measures of the approaches that have only some. A live agent is measured only if it has run its history, because an
agent that receives a whole history and is asked at once makes its first view for that very question.
"""

PACKAGES = {
    "harness": "pydantic-ai-harness",
    "summarization": "summarization-pydantic-ai",
    "langchain": "langchain-core",
    "llamaindex": "llama-index-core",
}


@dataclass(frozen=True, slots=True)
class Missing:
    """An approach that cannot be imported, and the reason."""

    name: str
    reason: str


def load(name: str) -> Approach | Missing:
    """Load an approach by name.

    Raises:
        KeyError: No approach has that name.
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
    """Return the installed version of a distribution, or `NOT_INSTALLED`."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return NOT_INSTALLED


def attached(capabilities: Callable[[int], list[Any]]) -> View:
    """Return a view that is the first request of an agent with these capabilities."""

    async def view(messages: list[ModelMessage], budget: int) -> Sequence[ModelMessage]:
        return await LiveSession(capabilities(budget)).request(messages)

    return view
