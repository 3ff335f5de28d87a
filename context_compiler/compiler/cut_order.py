"""The cut order: from a whole history down to what fits, whole groups at a time, every drop with its reason.

What is cut is a `Draft`, and what stays of it is a `Selection`. The promise: `reduce` stops at the first step at which
the total is within the target, and the steps are taken in one fixed order that does not depend on the budget. It never
raises; where even the last step does not fit, it says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from context_compiler.compiler.cycle import Cycle, spans
from context_compiler.compiler.policy import LARGE, PROMPT, Limits, Policy
from context_compiler.compiler.steering import NONE, WAITS, Order, Steering, unit
from context_compiler.messages.history import History, superseded_parts
from context_compiler.messages.items import MESSAGE_OVERHEAD, Kind
from context_compiler.messages.prompts import Instruction
from context_compiler.messages.shapes import WHOLE, Shape, largest, price
from context_compiler.messages.turns import Group, Outline, Turn
from context_compiler.record.values import Drop
from context_compiler.tokens import TokenCounter

BRIEF = 2_000
"""Tokens of room; with less a live view of tool work is a brief one."""


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
        """A live view of a session that is not tool work."""
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
    def cut_from_prompts(self) -> int:
        """Exact tokens that the last steps cut from the prompts of this turn, and from system text after them."""
        active, readings = self.draft.outline.active, self.history.readings
        prompts = {f"message {index}" for index in range(active.start, active.stop) if readings[index].prompts}
        steps = (TRUNCATED, PROMPT_CUT)
        return sum(
            drop.tokens
            for drop in self.draft.drops
            if drop.reason == SYSTEM_CUT or (drop.what in prompts and drop.reason in steps)
        )

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


SUMMARY_STEPS = (1_500, 600, 500)
"""Sizes that a planned summary shrinks to, in tokens: medium, low, compact."""

PROMPT_RESERVE, LEAST_RESERVE = 20, 64
"""Reserve that a prompt has to leave: a divisor of the room, and a minimum in tokens, at most a quarter of the room."""

TRUNCATED = "clamped to fit"
"""Reason for what the last steps shorten."""

PROMPT_CUT = "a prompt below a quarter of the room, over budget"
"""Reason for a prompt that is cut to less than it keeps before."""

SYSTEM_CUT = "system text, over budget"
"""Reason for system text that is cut after all prompts."""

SMALLEST = 6
"""The least that the hardest truncation leaves of a part, in tokens."""

Step = Callable[[Draft], Iterator[None]]
"""One step of the cut order: it makes its changes to the draft one by one, oldest first, and hands over after each."""


def truncate_large_parts(draft: Draft) -> Iterator[None]:
    """Any single part above a quarter of the room keeps head and tail; what the user asks now is cut last of all."""
    limit = max(draft.room // 4, SMALLEST)
    active = draft.outline.active.start
    for index, reading in enumerate(draft.history.readings):
        asked = index >= active and reading.asks
        if not asked and draft.here(index) is not None and largest(reading.items) > limit:
            draft.reshape(index, "a part above a quarter of the budget", limit=limit)
    yield


def truncate_large_prompts(draft: Draft) -> None:
    """A prompt that does not fit whole beside what is reserved keeps head and tail, so that the past has room too."""
    active = draft.outline.active
    for index in range(active.start, active.stop):
        reading = draft.history.readings[index]
        if reading.asks and draft.here(index) is not None and not _fits_whole(draft, index):
            draft.reshape(index, "a prompt larger than the budget", limit=int(PROMPT * draft.room))


def _fits_whole(draft: Draft, index: int) -> bool:
    """True if a prompt fits beside what is reserved."""
    most = draft.room - max(draft.room // PROMPT_RESERVE, min(LEAST_RESERVE, draft.room // LARGE))
    return draft.history.readings[index].tokens <= most


def drop_older_turns(draft: Draft) -> Iterator[None]:
    """Turns beyond the recent ones go, oldest first."""
    earlier = draft.outline.turns[:-1]
    many = f"older than the last {draft.recent} turns"
    older = {0: "an earlier turn", 1: "older than the last turn"}.get(draft.recent, many)
    for turn in earlier[: max(0, len(earlier) - draft.recent)]:
        draft.out(range(turn.start, turn.stop), older)
        yield


def stub_tool_exchanges(draft: Draft) -> Iterator[None]:
    """Tool exchanges of earlier turns keep name, key arguments and outcome, oldest first."""
    for index in draft.before_active():
        if draft.history.readings[index].exchanges and index not in draft.spared:
            draft.reshape(index, "tool exchange as a stub", skeleton=True, without=frozenset({Kind.THINKING}))
            yield


def shrink_summary(draft: Draft) -> Iterator[None]:
    """The summary shrinks to medium, low, compact."""
    for size in SUMMARY_STEPS:
        if draft.summary > max(size, draft.notes):
            draft.reserve(size)
            yield


def drop_recent_turns(draft: Draft) -> Iterator[None]:
    """Recent turns go too, oldest first."""
    for turn in draft.outline.turns[:-1]:
        if turn.start not in draft.spared:
            draft.out(range(turn.start, turn.stop), "recent turn, over budget")
            yield


def completed_groups(turn: Turn, history: History) -> tuple[Group, ...]:
    """The groups of a run that are over: without its prompts and without the open exchange at its end."""
    return tuple(
        group
        for group in turn.groups[:-1]
        if not any(history.readings[index].asks for index in range(group.start, group.stop))
    )


def stub_active_exchanges(draft: Draft) -> Iterator[None]:
    """Completed groups of the current run become stubs, oldest first."""
    for group in completed_groups(draft.outline.active, draft.history):
        for index in range(group.start, group.stop):
            draft.reshape(index, "tool exchange of this turn as a stub", skeleton=True)
        yield


def drop_active_groups(draft: Draft) -> Iterator[None]:
    """Then they go, oldest first."""
    for group in completed_groups(draft.outline.active, draft.history):
        draft.out(range(group.start, group.stop), "tool exchange of this turn, over budget")
        yield


def drop_summary(draft: Draft) -> Iterator[None]:
    """The summary goes."""
    draft.reserve(0)
    yield


def release_pins(draft: Draft) -> Iterator[None]:
    """Pinned messages of earlier turns go, oldest first, never half an exchange, where the budget is too small."""
    pins, draft.pins = sorted(draft.pins), frozenset()
    draft.waiting = draft.waiting.union(pins)
    for index in pins:
        if index < draft.outline.active.start:
            earlier = unit(index, draft.outline).intersection(draft.before_active())
            draft.out(sorted(earlier), WAITS)
            yield


def truncate_harder(draft: Draft) -> Iterator[None]:
    """Open results, call arguments, what is tied to them and what came with a prompt are cut, harder each time.

    A prompt keeps a quarter of the room; one that fits whole is not cut at all before the least is left of all else.
    """
    exchange, tied, prompts = _last_to_go(draft)
    whole = [index for index in prompts if _fits_whole(draft, index)]
    least = _least_of_prompts(draft)
    for limit in _halves(draft):
        for indices in (exchange, tied):
            for index in indices:
                draft.reshape(index, TRUNCATED, limit=limit)
            yield
        for index in prompts:
            most = draft.history.readings[index].tokens if index in whole else max(limit, least)
            draft.reshape(index, TRUNCATED, limit=limit, prompt=most)
        yield
    for limit in _halves(draft):
        for index in whole:
            draft.reshape(index, TRUNCATED, limit=SMALLEST, prompt=max(limit, least))
        yield


def truncate_prompts(draft: Draft) -> Iterator[None]:
    """At last the prompts are cut to less than a quarter of the room, harder each time."""
    least = _least_of_prompts(draft)
    for limit in _halves(draft):
        for index in _last_to_go(draft)[2]:
            if limit < least:
                draft.reshape(index, PROMPT_CUT, limit=SMALLEST, prompt=limit)
        yield


def _least_of_prompts(draft: Draft) -> int:
    """Tokens of a prompt's part that holds a quarter of the room."""
    return draft.room // LARGE + MESSAGE_OVERHEAD


def _halves(draft: Draft) -> Iterator[int]:
    """Limits of truncation, each half of the one before."""
    limit = max(draft.room, 2 * SMALLEST)
    while limit > SMALLEST:
        limit = max(limit // 2, SMALLEST)
        yield limit


def _last_to_go(draft: Draft) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """Messages left at the end: results and calls, ties, prompts."""
    active = draft.outline.active
    readings = draft.history.readings
    run = range(active.start, active.stop)
    exchange = [index for index in run if not readings[index].prompts]
    tied = [index for index in draft.before_active() if draft.here(index) is not None]
    return exchange, tied, [index for index in run if readings[index].prompts]


def drop_untruncatable(draft: Draft) -> Iterator[None]:
    """Drop what truncation cannot shorten: thinking first, then compactions and unknown parts."""
    for kinds in ({Kind.THINKING}, {Kind.THINKING, Kind.COMPACTION, Kind.OTHER}):
        for index in range(len(draft.history)):
            if any(item.kind in kinds for item in draft.history.readings[index].items):
                draft.reshape(index, "cannot be shortened, over budget", without=frozenset(kinds))
                yield


def drop_steering_prompts(draft: Draft) -> Iterator[None]:
    """Of several prompts of the current turn the first and the last stay, and so does the open exchange."""
    prompted = [
        group
        for group in draft.outline.active.groups[1:]
        if any(draft.history.readings[index].asks for index in range(group.start, group.stop))
    ]
    for group in prompted[:-1]:
        draft.out(range(group.start, group.stop), "earlier prompt of this turn, over budget")
        yield


def truncate_system_text(draft: Draft) -> Iterator[None]:
    """The system text of others is cut last."""
    for limit in (64, SMALLEST):
        for index, reading in enumerate(draft.history.readings):
            if any(item.kind is Kind.SYSTEM for item in reading.items):
                draft.reshape(index, SYSTEM_CUT, system=limit)
        yield


def relieve_system_text(draft: Draft, limits: Limits, overhead: int) -> Limits:
    """The thresholds once system text of others has been cut to half of the budget that it alone would fill.

    Without this no step would find any room, and cut what the user asks now to next to nothing first.
    """
    if limits.room:
        return limits
    readings, messages = draft.history.readings, draft.history.messages
    texts = [item for reading in readings for item in reading.items if item.kind is Kind.SYSTEM and item.stays]
    if not texts:
        return limits
    limit = max((limits.budget - overhead) // 2 // len(texts), SMALLEST)
    saved = 0
    for index, reading in enumerate(readings):
        if any(item.kind is Kind.SYSTEM and item.stays for item in reading.items):
            draft.reshape(index, "system text that would fill the budget alone", system=limit)
            bare, smaller = Shape(bare=True), Shape(bare=True, system=limit)
            saved += price(messages[index], reading, bare, draft.counter)
            saved -= price(messages[index], reading, smaller, draft.counter)
    return limits.carrying(limits.fixed - saved)


MILD_STEPS: tuple[Step, ...] = (
    drop_older_turns,
    stub_tool_exchanges,
    shrink_summary,
    drop_recent_turns,
    stub_active_exchanges,
    drop_active_groups,
)
"""The steps that only leave out or abridge what is over: all that are taken while the budget itself holds."""

EARLIER_STEPS: tuple[Step, ...] = (drop_older_turns, stub_tool_exchanges, shrink_summary, drop_recent_turns)
"""Those of them that leave the current turn alone."""

CUT_ORDER: tuple[Step, ...] = (
    truncate_large_parts,
    *MILD_STEPS,
    drop_summary,
    release_pins,
    truncate_harder,
    drop_untruncatable,
    drop_steering_prompts,
    truncate_prompts,
    truncate_system_text,
)


def reduce(draft: Draft, target: int, *, steps: Sequence[Step] = CUT_ORDER) -> bool:
    """Take the steps until the total is at most `target` exact tokens; whether it got there.

    Args:
        draft: The view so far; changed in place.
        target: What messages and summary may cost together.
        steps: The part of the cut order to take.
    """
    for step in steps:
        if draft.total <= target:
            return True
        for _ in step(draft):
            if draft.total <= target:
                return True
    return draft.total <= target
