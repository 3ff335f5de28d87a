"""What a user asked of a compiler: every argument of `ContextCompiler`, checked, in one value."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from pydantic_ai.models import Model

from context_compiler.compiler.agent import named
from context_compiler.compiler.limits import Asked
from context_compiler.compiler.view import View
from context_compiler.errors import SettingsError
from context_compiler.fidelity import Fidelity
from context_compiler.layers.context import NEEDS
from context_compiler.layers.session import Layers, LayerSource
from context_compiler.messages.failures import ReflectionPolicy
from context_compiler.middleware.config import RECALL, Many, Wishes, chosen, how_many, share
from context_compiler.record.redaction import Redact
from context_compiler.record.store import Store
from context_compiler.settings import Amount, check_amount
from context_compiler.template import Template
from context_compiler.tokens import Count, TokenCounter


def _one_of(*kinds: type[object]) -> Callable[[object], bool]:
    return lambda value: value is None or isinstance(value, kinds)


def _one_of_these(names: Collection[str]) -> Callable[[object], bool]:
    return lambda value: value is None or (isinstance(value, str) and value in names)


def _seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


ALLOWED: dict[str, tuple[Callable[[object], bool], str]] = {
    "template": (lambda value: isinstance(value, str | Template), "a name or a Template"),
    "model": (_one_of(str, Model), "a model or its name"),
    "store": (_one_of(str, Path, Store), "a path or a Store"),
    "vault": (_one_of(str, Path), "a folder"),
    "system": (_one_of(str, Path), "a folder"),
    "vault_name": (lambda value: isinstance(value, str), "a name"),
    "every_turn": (lambda value: isinstance(value, bool), "True or False"),
    "dry_run": (lambda value: isinstance(value, bool), "True or False"),
    "reflections": (_one_of(ReflectionPolicy), "a ReflectionPolicy"),
    "timeout": (_seconds, "seconds above 0"),
    "on_view": (lambda value: value is None or callable(value), "a function"),
    "on_error": (lambda value: value is None or callable(value), "a function"),
    "layers": (lambda value: value is None or isinstance(value, Layers) or callable(value), "a Layers or a function"),
    "role": (_one_of_these(NEEDS), f"one of {', '.join(NEEDS)}"),
    "redact": (lambda value: value is None or callable(value), "a function"),
}
"""What each argument may be, where nobody else looks: a YAML spec hands over anything."""


@dataclass
class Wanted:
    """The arguments of a compiler; nothing is opened or read before the first request."""

    template: str | Template = "chat_compiler"
    """A name, a path inside the roots, or a `Template`."""
    _: KW_ONLY
    budget: Amount | None = None
    """Input tokens of one request, or a share of the window; None is 0.8 of a known window, else 32,000."""
    trigger: Amount | None = None
    """When to cut back, in tokens or as a share of the budget; None is the template's, else the budget."""
    reserve: int | None = None
    """Tokens of a known window that stay free for the answer."""
    window: int | None = None
    """The model's context window in tokens, where the host does not know it."""
    counter: TokenCounter | Count | None = None
    """What counts tokens; None counts o200k exactly."""
    fidelity: Fidelity | str | None = None
    """How much of the past a summary carries; None is the template's."""
    every_turn: bool = False
    """Compile at the first request of every user turn, which moves the prompt-cache prefix once a turn."""
    model: Model | str | None = None
    """The compiler's model; None is the run's own, "none" is no model."""
    store: str | Path | Store | None = "system/context.db"
    """Where the record lives: a path or a `Store`; None keeps it in memory."""
    vault: str | Path | None = None
    """A folder whose `AssistantMD/ContextTemplates/` comes first."""
    system: str | Path | None = "system"
    """A folder whose `ContextTemplates/` comes second."""
    vault_name: str = ""
    """What the vault is called on the record."""
    recent_turns: Many | None = None
    """Turns before the active one to keep if they fit; None is the template's, "all" is all."""
    recent_tool_results: Many | None = None
    """Tool results that a compile sees whole; None is the template's, "all" is all."""
    tool_history: str = "paired"
    """Tool exchanges of kept turns: paired (verbatim), drop, or render (as text)."""
    recall: float = RECALL
    """What the recall blocks of a cycle may take of what lies between its two marks; 0 recalls nothing."""
    reflections: ReflectionPolicy | None = None
    """When a template that asks for `reflections` is told what went wrong; None: the last three failed calls."""
    inject: str = "user"
    """The channel of the summary: user, system or compaction."""
    record: str = "full"
    """What is kept: full, metadata, or off."""
    redact: Redact | None = None
    """Given a text, what of it may be kept on the record."""
    dry_run: bool = False
    """Record and log what would be sent, and send raw history."""
    timeout: float = 60.0
    """Seconds for one compile."""
    on_view: Callable[[View], Any] | None = None
    """Called with every view before it is sent; may be async."""
    on_error: Callable[[Exception], Any] | None = None
    """Called with everything that failed here; may be async."""

    layers: LayerSource | None = None
    """Where the layers of its sessions are: `Layers`, or a function from a session to its state. What `role` needs of
    them stands before each run's prompt."""
    role: str | None = None
    """Which node the agent is: understand, think, act or reply."""

    def check(self) -> None:
        """Refuse wrong values, whoever gave them: a YAML spec hands them over unchecked.

        Raises:
            SettingsError: A value is wrong; the message says what is allowed.
            FidelityError: The fidelity is unknown.
        """
        if (self.layers is None) != (self.role is None):
            raise SettingsError(f"layers={self.layers!r}, role={self.role!r}: give both, or neither")
        for name, (allowed, what) in ALLOWED.items():
            if not allowed(getattr(self, name)):
                raise SettingsError(f"{name}={getattr(self, name)!r}: give {what}")
        self.asked()
        self.wishes()
        chosen("record", self.record)

    def asked(self) -> Asked:
        """The budget as it was asked for."""
        for name in ("reserve", "window"):
            if isinstance(check_amount(getattr(self, name), name=name), float):
                raise SettingsError(f"{name}={getattr(self, name)!r}: give tokens as an int")
        return Asked(
            budget=check_amount(self.budget, name="budget"),
            trigger=check_amount(self.trigger, name="trigger"),
            reserve=self.reserve,
            window=self.window,
        )

    def wishes(self) -> Wishes:
        """How views are to be written."""
        return Wishes(
            template=self.template,
            fidelity=None if self.fidelity is None else Fidelity.parse(self.fidelity, where="fidelity"),
            recent_turns=how_many("recent_turns", self.recent_turns),
            recent_tool_results=how_many("recent_tool_results", self.recent_tool_results),
            tool_history=chosen("tool_history", self.tool_history),
            inject=chosen("inject", self.inject),
            every_turn=self.every_turn,
            recall=share("recall", self.recall),
            reflections=self.reflections or ReflectionPolicy(),
        )

    def compiler_name(self) -> str | None:
        """What the compiler's model is called; None is the run's own."""
        return None if self.model is None else named(self.model)
