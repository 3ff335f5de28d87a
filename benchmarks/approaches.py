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

Capabilities = Callable[[int], list[Any]]
"""Function that builds the capabilities of an agent with a budget."""

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
    """Reasons why it cannot do a job, by job (`view`, `session`)."""

    @property
    def version(self) -> str:
        """Version of its package; empty if it needs none."""
        return installed(self.package) if self.package else ""


HOMES = {
    name: home
    for home, names in {
        "ours": "ours ours-unseen ours-live ours-live-full ours-live-bland ours-live-good ours-live-economy "
        "ours-live-off",
        "baselines": "everything tail head-tail random oracle bm25 bm25-3 host",
        "harness": "harness-window harness-window-quarter harness-clear harness-tiered harness-summary",
        "summarization": "summarization-window summarization-summary",
        "langchain": "langchain-trim",
        "llamaindex": "llamaindex-buffer llamaindex-memory",
    }.items()
    for name in names.split()
}
"""Approaches in the order of the tables, each with its module in `benchmarks.peers`."""

ONLY = {
    **dict.fromkeys(("bm25", "bm25-3", "ours-unseen"), {"sets"}),
    **dict.fromkeys(("ours-live-bland", "ours-live-good", "ours-live-off"), {"lived"}),
    "ours-live": {"lived", "sessions"},
    "ours-live-full": {"sessions"},
    "ours-live-economy": {"lived", "sessions"},
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
        if home not in PACKAGES:
            raise
        version = installed(PACKAGES[home])
        return Missing(name, version if version == NOT_INSTALLED else f"{PACKAGES[home]} {version}: {error}")
    return next(approach for approach in module.APPROACHES if approach.name == name)


NOT_INSTALLED = "not installed"


def installed(package: str) -> str:
    """Return the installed version of a distribution, or `NOT_INSTALLED`."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return NOT_INSTALLED


def attached(capabilities: Capabilities) -> View:
    """Return a view that is the first request of an agent with these capabilities."""

    async def view(messages: list[ModelMessage], budget: int) -> Sequence[ModelMessage]:
        return await LiveSession(capabilities(budget)).request(messages)

    return view


def attached_approach(
    name: str, title: str, setup: str, one_view: Capabilities | None, live: Capabilities | None = None, **more: Any
) -> Approach:
    """Build an approach from the capabilities with which an agent makes one view, and those of a session."""
    capabilities = live or one_view
    assert capabilities is not None
    return Approach(
        name=name,
        title=title,
        setup=setup,
        view=attached(one_view) if one_view is not None else None,
        session=lambda budget: LiveSession(capabilities(budget)),
        **more,
    )


def summarising_approach(
    name: str, title: str, setup: str, summaries: Callable[[Model, int], list[Any]], package: str
) -> Approach:
    """Build an approach whose capabilities ask a model for summaries."""
    return Approach(
        name=name,
        title=title,
        setup=f"{setup}, with a model that answers with recorded summaries",
        package=package,
        summarising=summaries,
        dashes={"view": NEEDS_A_MODEL, "session": NEEDS_A_MODEL},
    )
