"""What an advance works with: how views are written, a history as it sees it, and what stays after cutting back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from context_compiler.compiler.cycle import Frozen
from context_compiler.compiler.draft import Bench
from context_compiler.compiler.limits import Limits
from context_compiler.fidelity import Fidelity
from context_compiler.messages.failures import ReflectionPolicy
from context_compiler.messages.history import History, Reader
from context_compiler.messages.pins import Pin
from context_compiler.messages.shapes import Shape
from context_compiler.messages.superseded_parts import needless
from context_compiler.messages.turns import Outline, Pairing, outline, turn_index
from context_compiler.template import Template
from context_compiler.tokens import TokenCounter


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How views are written, checked once."""

    template: Template
    extractive: Template
    """What a note says where no model is asked."""
    fidelity: Fidelity
    named: bool
    """The caller named the fidelity, which then caps quotes too."""
    recent_turns: int | None
    """Turns before the active one to keep if they fit; None is all."""
    recent_named: bool
    """The caller said how many, not the template."""
    recent_tool_results: int | None
    reflections: ReflectionPolicy
    """When a template is told what went wrong."""
    tool_history: str
    inject: str
    model: str
    """What the compiler's model is called; "none" is no model."""
    every_turn: bool
    recall: float
    """What recall blocks may take of what lies between the two marks; 0 recalls nothing."""
    refs: bool
    """The agent has a tool that reads what is left out, and markers may name it."""
    prompt_room: int
    scope: str
    """Whose compiles may be shared: what is written around one conversation's question stays in it."""
    config: str


@dataclass(frozen=True, kw_only=True)
class Sight:
    """A raw history, and how its views are written: everything that follows from these two alone."""

    history: History
    pairing: Pairing
    options: Options
    reader: Reader

    @property
    def counter(self) -> TokenCounter:
        """What prices everything."""
        return self.reader.counter

    @cached_property
    def turn(self) -> int:
        """The ordinal of the active user turn."""
        return turn_index(self.history)

    @cached_property
    def outline(self) -> Outline:
        """The history as turns and groups."""
        return outline(self.history, self.pairing)

    @cached_property
    def base(self) -> Mapping[int, Shape]:
        """The shapes of messages with broken parts."""
        shapes = {index: Shape(skip=parts) for index, parts in self.pairing.broken.items()}
        told = self.pairing.told
        return shapes if told is None else {**shapes, told: Shape(tools="render")}

    @cached_property
    def carried(self) -> int:
        """What a view carries for others whatever it leaves out, in exact tokens; without what need not stay."""
        readings = self.history.readings
        idle = (readings[index].items[at] for index, parts in needless(self.history).items() for at in parts)
        return sum(reading.stays for reading in readings) - sum(item.tokens for item in idle)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What stays after cutting back, and what is new among what went."""

    bench: Bench
    options: Options
    limits: Limits
    target: int
    """What messages, note and quotes may cost together, in exact tokens."""
    out: tuple[int, ...]
    span: tuple[int, ...]
    """What is out and not covered by the last model compile."""
    pinned: tuple[Pin, ...]
    previous: Frozen | None
    lasting: bool
    """The view serves more than what is asked now."""

    @property
    def reserve(self) -> int:
        """What note and quotes may cost together at least, in exact tokens; 0 is neither."""
        return self.bench.summary

    @property
    def kept(self) -> int:
        """What the messages cost that stay, in exact tokens."""
        return self.bench.total - self.bench.summary

    @property
    def fits(self) -> bool:
        """Whether what stays is within the target."""
        return self.kept <= self.target

    @property
    def abridged(self) -> bool:
        """Whether something stays in a smaller shape."""
        return any(shape is not None and (shape.skeleton or shape.limit) for shape in self.bench.shapes)

    @property
    def history(self) -> History:
        """The whole raw history."""
        return self.bench.history

    @property
    def counter(self) -> TokenCounter:
        """What prices everything."""
        return self.bench.counter
