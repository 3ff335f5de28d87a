"""Values of an advance: the plan, the draft of a view, and the selection of messages that stay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from context_compiler.compiler.cycle import Cycle, spans
from context_compiler.compiler.policy import Limits, Policy
from context_compiler.compiler.steering import NONE, Order, Steering, pinned
from context_compiler.messages.history import History, Reader, superseded_parts
from context_compiler.messages.instructions import Instruction
from context_compiler.messages.items import MESSAGE_OVERHEAD, Item, Kind
from context_compiler.messages.shapes import WHOLE, Shape, price
from context_compiler.messages.turns import OUTPUT, Outline, Pairing, outline, turn_index
from context_compiler.record.values import Drop
from context_compiler.tokens import TokenCounter

TOOL_WORK = 10
"""Tool work: at least one message in this number calls a tool."""

BRIEF = 2_000
"""Tokens of room; with less a live view of tool work is a brief one."""

LOOPS = 3
"""Responses to a prompt, on average, where turns are long."""

NO_WORK = ("recall_", "compile_context", OUTPUT)
"""Prefixes of tools that look into the past or give the answer, which do not count as tool work."""

SHELLS = ("code_execution", "shell", "bash")
"""Tools of providers that are work, too."""


def _works(item: Item) -> bool:
    name = item.tool or ""
    return item.kind is Kind.CALL and not name.startswith(NO_WORK) and (not item.native or name in SHELLS)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A raw history, and how its views are written: everything that follows from these two alone."""

    history: History
    pairing: Pairing
    policy: Policy
    reader: Reader
    steering: Steering = NONE

    def pinned(self, room: int | None = None) -> frozenset[int]:
        """Positions of the messages that a user has pinned, as far as they fit into their share of a room."""
        return pinned(self.steering, self.history, self.outline, room) if self.steering.pins else frozenset()

    @property
    def counter(self) -> TokenCounter:
        """Token counter."""
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
        unpaired = self.pairing.unpaired
        return shapes if unpaired is None else {**shapes, unpaired: Shape(tools="render")}

    @cached_property
    def prompt_tokens(self) -> int:
        """Exact tokens of the newest prompt; 0 where nobody asked anything."""
        return next((reading.tokens for reading in reversed(self.history.readings) if reading.asks), 0)

    @cached_property
    def recent_tokens(self) -> int:
        """Exact tokens of the turns before the active one that the caller, not the template, wants kept."""
        turns, wanted = self.outline.turns[:-1], self.policy.recent_turns
        newest = turns if wanted is None else turns[max(0, len(turns) - wanted) :]
        if not newest or not self.policy.recent_named:
            return 0
        return self.history.sums[newest[-1].stop] - self.history.sums[newest[0].start]

    @cached_property
    def work(self) -> int:
        """Messages that call a function or a shell; output and recall tools do not count."""
        return sum(any(map(_works, reading.items)) for reading in self.history.readings if reading.exchanges)

    @cached_property
    def tools(self) -> bool:
        """True if one message in `TOOL_WORK` is tool work."""
        return self.work * TOOL_WORK >= len(self.history)

    @cached_property
    def loops(self) -> bool:
        """True if a turn takes several requests on average: text in a turn is then paid for in all of them."""
        prompts = sum(reading.asks for reading in self.history.readings)
        return sum(not reading.request for reading in self.history.readings) >= LOOPS * prompts

    @cached_property
    def carried(self) -> int:
        """Exact tokens that a view carries for the host whatever it leaves out."""
        readings = self.history.readings
        idle = (readings[index].items[at] for index, parts in superseded_parts(self.history).items() for at in parts)
        return sum(reading.stays for reading in readings) - sum(item.tokens for item in idle)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Messages that stay after cutting back, and the new ones among those left out."""

    draft: Draft
    policy: Policy
    limits: Limits
    target: int
    """Limit for messages, summary and quotes together, in exact tokens."""
    out: tuple[int, ...]
    span: tuple[int, ...]
    """Positions that are out and not covered by the last model compile."""
    pinned: tuple[Instruction, ...]
    previous: Cycle | None
    lasting: bool
    """The view serves more than what is asked now."""
    tools: bool
    """The session is mostly tool work."""
    fits: bool
    """True if the kept part is within the budget; if not, there is nothing left to cut."""
    steering: Steering = NONE
    order: Order | None = None
    """The compile that a user asks for; None for one that the thresholds ask for."""

    @property
    def chat(self) -> bool:
        """A live view of a session that is no tool work."""
        return self.lasting and not self.tools

    @property
    def focus(self) -> str:
        """Subject that a user wants kept; empty for none."""
        return self.order.focus if self.order is not None else ""

    @property
    def reserve(self) -> int:
        """Exact tokens reserved for summary and quotes together; 0 means neither."""
        return self.draft.summary

    @property
    def brief(self) -> bool:
        """True in tool work in a small room: a view lasts for a few requests, which are about what is asked now."""
        return self.lasting and self.tools and self.limits.room < BRIEF

    @property
    def kept(self) -> int:
        """Exact tokens of the messages that stay."""
        return self.draft.total - self.draft.summary

    @property
    def abridged(self) -> bool:
        """True if a message stays in a smaller shape."""
        return any(shape is not None and (shape.skeleton or shape.limit) for shape in self.draft.shapes)

    @property
    def history(self) -> History:
        """The whole raw history."""
        return self.draft.history

    @property
    def counter(self) -> TokenCounter:
        """Token counter."""
        return self.draft.counter


LEFT_OUT = "[Earlier messages of this conversation are left out.]"

BETWEEN = "[Messages in between are left out.]"
"""Stands first where a view would otherwise begin with an answer: no provider accepts that."""


BROKEN = "broken: a call without its answer, or an answer without its call"
"""Reason for leaving out parts that no provider accepts."""


def ref(index: int) -> str:
    """The name by which an agent can ask for a message of its history."""
    return f"m{index}"


class Draft:
    """A view being cut to size: a shape and a price for every message, and the running total."""

    def __init__(
        self,
        history: History,
        outline: Outline,
        counter: TokenCounter,
        shapes: Sequence[Shape | None],
        *,
        room: int,
        recent: int,
        refs: bool = False,
    ) -> None:
        """Start from `shapes`, one a message; `None` is out. With `refs`, what is cut says how it can be read."""
        self._refs = refs
        self.history, self.outline, self.counter = history, outline, counter
        self.shapes: list[Shape | None] = list(shapes)
        self._needless = superseded_parts(history)
        self._leads = _leads(history, outline) | _after_dropped(self.shapes)
        self._lead = counter.text(LEFT_OUT) + MESSAGE_OVERHEAD
        self._held: set[int] = set()
        self.pins = frozenset[int]()
        """Messages that a user has pinned: they stay as they are until little else is left."""
        self.waiting = frozenset[int]()
        """Those that are more than their share of the room, and go like any other."""
        self.costs = [self._price(index, shape) for index, shape in enumerate(self.shapes)]
        self.total = sum(self.costs)
        self.room = room
        """Room for messages, in tokens; truncation limits are shares of it."""
        self.spared = range(0)
        """Messages that stay while the budget allows it."""
        self.notes = 0
        """Tokens that stay set aside for note and quotes while the budget allows it."""
        self.recent = recent
        """Turns before the current one to keep if they fit."""
        self.summary = 0
        """Tokens reserved for the summary that is still to be written."""
        self.drops: list[Drop] = []

    def _price(self, index: int, shape: Shape | None) -> int:
        if shape is None:
            return 0
        cost = price(self.history.messages[index], self.history.readings[index], shape, self.counter)
        led = index in self._leads or (index in self.pins and not self.history.readings[index].request)
        return cost + self._lead if cost and led else cost

    def tell(self, indices: Iterable[int], reason: str) -> None:
        """Say of messages that began in a smaller shape what that leaves out, and why."""
        for index in sorted(indices):
            gone = self.history.readings[index].tokens - self.costs[index]
            if self.here(index) is not None and gone > 0:
                self.drops.append(Drop(what=f"message {index}", reason=reason, tokens=gone))

    def put(self, index: int, shape: Shape | None) -> None:
        """Give a message another shape."""
        cost = self._price(index, shape)
        self.total += cost - self.costs[index]
        self.shapes[index], self.costs[index] = shape, cost

    def reserve(self, tokens: int) -> None:
        """Set that much aside for the summary, instead of what was."""
        self.total += tokens - self.summary
        self.summary = tokens

    def here(self, index: int) -> Shape | None:
        """The shape of a message that is still carried for what it says; None when it is out."""
        shape = self.shapes[index]
        return None if shape is None or shape.bare else shape

    def out(self, indices: Iterable[int], reason: str) -> None:
        """Leave messages out, but for what the host would forget; what is tied to one that stays waits for it."""
        wanted = {index for index in indices if self.here(index) is not None and index not in self.pins} | self._held
        ties = self.outline.ties
        self._held = {
            index
            for index in wanted
            if any(other not in wanted and self.here(other) is not None for other in ties.get(index, ()))
        }
        for start, stop in spans(sorted(wanted - self._held)):
            before = self.total
            for index in range(start, stop):
                self.put(index, self._bared(index))
            what = f"messages {start}-{stop - 1}" if stop - start > 1 else f"message {start}"
            self.drops.append(Drop(what=what, reason=reason, tokens=before - self.total))

    def _bared(self, index: int) -> Shape | None:
        """Remainder of a dropped message: the parts that the host keeps its state in."""
        items = self.history.readings[index].items
        shape = self.shapes[index] or WHOLE
        skip = shape.skip | self._needless.get(index, frozenset())
        stays = any(item.stays and at not in skip for at, item in enumerate(items))
        return Shape(skip=skip, bare=True, system=shape.system) if stays else None

    def reshape(self, index: int, reason: str, **changes: object) -> None:
        """Give a message a smaller shape, if it really is smaller; the last one never goes."""
        shape = self.shapes[index]
        if shape is None or index in self.pins:
            return
        if self._refs:
            changes["ref"] = ref(index)
        smaller = replace(shape, **changes)  # pyright: ignore[reportArgumentType] # fields of a shape, by name
        cost = self._price(index, smaller)
        if cost < self.costs[index] and (cost or index < len(self.history) - 1):
            self.drops.append(Drop(what=f"message {index}", reason=reason, tokens=self.costs[index] - cost))
            self.put(index, smaller)

    def before_active(self) -> range:
        """Positions before the current turn."""
        return range(self.outline.active.start)


def _after_dropped(shapes: Sequence[Shape | None]) -> frozenset[int]:
    """Positions after exchanges that are dropped by choice: an answer may then come after another one."""
    return frozenset(at for at, shape in enumerate(shapes, 1) if shape is not None and shape.tools == "drop")


def _leads(history: History, outline: Outline) -> frozenset[int]:
    """Responses with which a view might begin: then a line must stand before it, and is priced here."""
    unprompted = {
        group.start for turn in outline.turns if not history.readings[turn.start].asks for group in turn.groups
    }
    return frozenset(
        index
        for index, reading in enumerate(history.readings)
        if not reading.request and (reading.stays or index in outline.ties or index in unprompted)
    )
