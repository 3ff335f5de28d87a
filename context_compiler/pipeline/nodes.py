"""A stage of a pipeline, as its source says it."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType

from context_compiler.pipeline.attributes import NODE_SPELLINGS, Attributed

HANDLERS = MappingProxyType(
    {
        "Mdiamond": "start",
        "Msquare": "exit",
        "box": "codergen",
        "hexagon": "wait.human",
        "diamond": "conditional",
        "component": "parallel",
        "tripleoctagon": "parallel.fan_in",
        "parallelogram": "tool",
        "house": "stack.manager_loop",
    }
)
"""Which handler a shape asks for."""

DEFAULT_HANDLER = "codergen"
AGENTS = (DEFAULT_HANDLER, "agent")
"""The handlers that ask an agent what the prompt says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node(Attributed):
    """One stage."""

    name: str
    """Its id in the source."""
    derived: tuple[str, ...] = ()
    """Classes that come from the labels of the subgraphs around it, innermost first."""
    line: int | None = field(default=None, compare=False)
    """Where it is declared first, from 1."""
    column: int | None = field(default=None, compare=False)
    prompt_line: int | None = field(default=None, compare=False)
    """The line at which its prompt begins, where the source keeps a prompt on lines of its own."""

    def spellings(self, name: str) -> tuple[str, ...]:
        """Other names under which a node knows `name`."""
        return NODE_SPELLINGS.get(name, ())

    @property
    def classes(self) -> tuple[str, ...]:
        """Every class, each once: those of the subgraphs around it first, then what `class` says."""
        said = (one.strip() for one in self.text("class").replace(",", " ").split())
        return tuple(dict.fromkeys((*self.derived, *said)))

    @property
    def label(self) -> str:
        """What to show for it; its name where nothing is said."""
        return self.text("label", self.name)

    @property
    def shape(self) -> str:
        """How it is drawn, and with that what runs it."""
        return self.text("shape", "box")

    @property
    def type(self) -> str:
        """The handler that is asked for by name; empty: the shape decides."""
        return self.text("type")

    @property
    def handler(self) -> str:
        """The handler's name: `type`, else by shape, else `codergen`. Whether there is such a one, an engine knows."""
        return self.type or HANDLERS.get(self.shape, DEFAULT_HANDLER)

    @property
    def prompt(self) -> str:
        """What the stage is told; empty: its label."""
        return self.text("prompt")

    @property
    def fidelity(self) -> str:
        """How much of the past it wants; empty: nothing is said here."""
        return self.text("fidelity")

    @property
    def thread_id(self) -> str:
        """Whose conversation it continues at `full`; empty: nothing is said here."""
        return self.text("thread_id")

    @property
    def max_retries(self) -> int | None:
        """Attempts beyond the first; None: the graph's default. An explicit 0 is 0."""
        return self.whole("max_retries")

    @property
    def timeout(self) -> float | None:
        """The longest it may run, in seconds."""
        return self.seconds("timeout")

    @property
    def goal_gate(self) -> bool:
        """Whether the run may end only when this stage succeeded."""
        return self.flag("goal_gate")

    @property
    def auto_status(self) -> bool:
        """Whether a stage that says nothing of its outcome succeeded."""
        return self.flag("auto_status")

    @property
    def allow_partial(self) -> bool:
        """Whether a stage that used up its retries is a partial success."""
        return self.flag("allow_partial")

    @property
    def retry_target(self) -> str:
        """Where to go on after a failure; empty: nowhere."""
        return self.text("retry_target")

    @property
    def fallback_retry_target(self) -> str:
        """Where to go on if there is no `retry_target`."""
        return self.text("fallback_retry_target")

    @property
    def llm_model(self) -> str:
        """The model that runs it; empty: the engine's."""
        return self.text("llm_model")

    @property
    def context_helper(self) -> str:
        """The template with which the outputs before it are compiled for it; empty: none."""
        return self.text("context_helper")

    @property
    def llm_provider(self) -> str:
        """The provider of the model; empty: the engine's."""
        return self.text("llm_provider")

    @property
    def reasoning_effort(self) -> str:
        """`low`, `medium` or `high`; empty: nothing is said."""
        return self.text("reasoning_effort")
