"""The cut order: a fixed sequence of steps that cut a view until it fits, each cut recorded with its reason.

A step (`Step`) is a generator that changes a `Draft` bit by bit, oldest messages first and whole groups at a time.
`reduce` runs the steps in order and stops as soon as the total is within the target. The order does not depend on the
budget. `reduce` never raises; it returns False if even the last step does not suffice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import NamedTuple

from context_compiler.compiler import reasons
from context_compiler.compiler.cycle import Cycle
from context_compiler.compiler.policy import LARGE, SMALL, SMALL_ROOM, Limits, Policy
from context_compiler.compiler.reasons import Reason
from context_compiler.compiler.steering import NONE, Order, Steering, messages_kept_together
from context_compiler.fidelity import Fidelity
from context_compiler.messages.fences import ELLIPSIS, LEFT_OUT
from context_compiler.messages.history import History
from context_compiler.messages.items import MESSAGE_OVERHEAD, Kind
from context_compiler.messages.rules import Rule
from context_compiler.messages.shapes import WHOLE, Shape, largest, price
from context_compiler.messages.spans import spans
from context_compiler.messages.turns import Group, Outline, Turn, has_prompt, is_prompt, superseded_parts
from context_compiler.record.values import Drop
from context_compiler.tokens import TokenCounter


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Result of cutting back: the messages that stay, and those that are left out."""

    draft: Draft
    policy: Policy
    limits: Limits
    target: int
    """Limit for messages, summary and quotes together, in exact tokens."""
    out: tuple[int, ...]
    """Positions that are left out."""
    span: tuple[int, ...]
    """Positions that are left out and not covered by the last summary of a model."""
    rules: tuple[Rule, ...]
    """Rules in force."""
    retired_rules: tuple[str, ...]  # dismissed or replaced, and therefore not quoted
    previous: Cycle | None
    lasting: bool
    """True for a live view, which serves later requests too; False for a one-shot view."""
    tool_work: bool
    """True if the session is tool work."""
    fits: bool
    """True if the kept part is within the budget; if not, nothing is left to cut."""
    steering: Steering = NONE
    order: Order | None = None
    """Compile that a user asks for; None for one that the thresholds require."""

    @property
    def focus(self) -> str:
        """Subject that the user wants kept; empty for none."""
        return self.order.focus if self.order is not None else ""

    @property
    def reserve(self) -> int:
        """Exact tokens reserved for summary and quotes together; 0 for neither."""
        return self.draft.summary

    @property
    def brief(self) -> bool:
        """True for a live view of tool work in a small room: it lasts a few requests, all about the current prompt."""
        return self.lasting and self.tool_work and self.limits.room < SMALL_ROOM

    @property
    def kept(self) -> int:
        """Exact tokens of the messages that stay."""
        return self.draft.total - self.draft.summary

    @property
    def abridged(self) -> bool:
        """True if a message is kept in a smaller shape."""
        return any(shape is not None and (shape.skeleton or shape.limit) for shape in self.draft.shapes)

    @property
    def cut_from_prompts(self) -> int:
        """Exact tokens that the last steps cut from the prompts of this turn and from system text."""
        active, readings = self.draft.outline.active, self.history.readings
        prompts = {index for index in range(active.start, active.stop) if readings[index].has_user_part}
        last = (reasons.TRUNCATION, reasons.SMALL_PROMPT)
        return sum(
            cut.tokens
            for cut in self.draft.cuts
            if cut.reason == reasons.SYSTEM_TEXT or (cut.start in prompts and cut.reason in last)
        )

    @property
    def history(self) -> History:
        """The whole raw history."""
        return self.draft.history

    @property
    def counter(self) -> TokenCounter:
        """Token counter."""
        return self.draft.counter


def ref(index: int) -> str:
    """Reference by which an agent can read a message of its history."""
    return f"m{index}"


def drop_of(start: int, stop: int, reason: str, tokens: int) -> Drop:
    """Drop of a range of messages."""
    what = f"messages {start}-{stop - 1}" if stop - start > 1 else f"message {start}"
    return Drop(what=what, reason=reason, tokens=tokens)


class Cut(NamedTuple):
    """Messages that a step left out, or one message that it shortened."""

    start: int
    stop: int
    reason: Reason
    tokens: int


class Draft:
    """View that is being cut to size: the shape and price of every message, and the running total."""

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
        """Start from one shape for each message; None if it is left out.

        Args:
            history: The raw history.
            outline: Its turns.
            counter: Token counter.
            shapes: Shape of each message.
            room: Tokens for messages; truncation limits are fractions of it.
            recent: Number of turns before the current one to keep if they fit.
            refs: Truncated messages say by which reference they can be read in full.
        """
        self._refs = refs
        self.history, self.outline, self.counter = history, outline, counter
        self.shapes: list[Shape | None] = list(shapes)
        self._needless = superseded_parts(history)
        after_dropped = (after for after, shape in enumerate(shapes, 1) if shape is not None and shape.tools == "drop")
        self._leads = _may_lead(history, outline).union(after_dropped)  # a response may then follow another one
        self._line = counter.text(ELLIPSIS) + MESSAGE_OVERHEAD
        self._lead = counter.text(LEFT_OUT) + MESSAGE_OVERHEAD + self._line  # a tool exchange takes nobody's turn
        self._held: set[int] = set()
        self.pins = frozenset[int]()
        """Pinned messages: they stay unchanged until little else is left."""
        self.waiting = frozenset[int]()
        """Pinned messages beyond their share of the room, which are treated like any other."""
        self.costs = [self._price(index, shape) for index, shape in enumerate(self.shapes)]
        self.total = self.before = sum(self.costs)
        """Tokens now, and before anything was cut."""
        self.room = room
        """Tokens for messages; truncation limits are fractions of it."""
        self.spared = range(0)
        """Messages that stay as long as the budget allows."""
        self.notes = 0
        """Tokens that stay reserved for note and quotes as long as the budget allows."""
        self.recent = recent
        """Number of turns before the current one to keep if they fit."""
        self.summary = 0
        """Tokens reserved for summary and quotes, which are written later."""
        self.cuts: list[Cut] = []
        self.ahead = False
        """True while the view is cut to a threshold, although the budget may have room."""

    def copy(self) -> Draft:
        """Copy that can be cut without changing this draft."""
        other = copy(self)
        other.shapes, other.costs, other.cuts = [*self.shapes], [*self.costs], [*self.cuts]
        return other

    def _price(self, index: int, shape: Shape | None) -> int:
        if shape is None:
            return 0
        cost = price(self.history.messages[index], self.history.readings[index], shape, self.counter)
        led = index in self._leads or (index in self.pins and not self.history.readings[index].request)
        return cost + (self._lead if led else self._line if index in self.pins else 0) if cost else 0

    @property
    def drops(self) -> tuple[Drop, ...]:
        """The cuts as they are recorded."""
        return tuple(drop_of(cut.start, cut.stop, cut.reason.text, cut.tokens) for cut in self.cuts)

    def record_shortened(self, indices: Iterable[int], reason: Reason) -> None:
        """Record drops for messages that started in a smaller shape."""
        for index in sorted(indices):
            gone = self.history.readings[index].tokens - self.costs[index]
            if self.here(index) is not None and gone > 0:
                self.cuts.append(Cut(index, index + 1, reason, gone))

    def put(self, index: int, shape: Shape | None) -> None:
        """Set the shape of a message and update the total."""
        cost = self._price(index, shape)
        self.total += cost - self.costs[index]
        self.shapes[index], self.costs[index] = shape, cost

    def reserve(self, tokens: int) -> None:
        """Set the tokens reserved for summary and quotes."""
        self.total += tokens - self.summary
        self.summary = tokens

    def here(self, index: int) -> Shape | None:
        """Shape of a message whose content is in the view; None if it is left out, even if host parts of it remain."""
        shape = self.shapes[index]
        return None if shape is None or shape.bare else shape

    def drop(self, indices: Iterable[int], reason: Reason) -> None:
        """Leave messages out, except host parts that must stay, and pinned messages.

        A message that is tied to one that stays is held back, and dropped together with it later.
        """
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
                self.put(index, self._host_parts(index))
            self.cuts.append(Cut(start, stop, reason, before - self.total))

    def _host_parts(self, index: int) -> Shape | None:
        """Shape of a dropped message: only the parts in which the host keeps state; None if there are none."""
        items = self.history.readings[index].items
        shape = self.shapes[index] or WHOLE
        skip = shape.skip | self._needless.get(index, frozenset())
        stays = any(item.stays and part not in skip for part, item in enumerate(items))
        return Shape(skip=skip, bare=True, system=shape.system) if stays else None

    def reshape(self, index: int, reason: Reason, **changes: object) -> None:
        """Change fields of a message's shape if that makes it smaller; the last message never disappears."""
        shape = self.shapes[index]
        if shape is None or index in self.pins:
            return
        if self._refs:
            changes["ref"] = ref(index)
        smaller = replace(shape, **changes)  # pyright: ignore[reportArgumentType] # fields of a shape, by name
        cost = self._price(index, smaller)
        if cost < self.costs[index] and (cost or index < len(self.history) - 1):
            self.cuts.append(Cut(index, index + 1, reason, self.costs[index] - cost))
            self.put(index, smaller)

    @property
    def untouchable(self) -> int:
        """Tokens of the messages that no threshold removes: pins, prompts of the current turn, the newest exchange."""
        active = self.outline.active
        prompts = (index for index in range(active.start, active.stop) if is_prompt(self.history.readings, index))
        return sum(self.costs[index] for index in {*self.pins, *prompts, *newest_exchange(self)})

    def before_active(self) -> range:
        """Positions before the current turn."""
        return range(self.outline.active.start)


def _may_lead(history: History, outline: Outline) -> frozenset[int]:
    """Positions of responses with which a view might begin; the lines around them are included in their price."""
    unprompted = {
        group.start for turn in outline.turns if not history.readings[turn.start].has_prompt for group in turn.groups
    }
    return frozenset(
        index
        for index, reading in enumerate(history.readings)
        if not reading.request and (reading.stays or index in outline.ties or index in unprompted)
    )


MIN_PART = 6
"""Tokens that even the hardest truncation leaves of a part."""

Step = Callable[[Draft], Iterator[None]]
"""Step of the cut order. It changes the draft in small increments, oldest message first, and yields after each, so that
`reduce` can stop as soon as the target is met."""


def truncate_large_parts(draft: Draft, *, earlier: bool = False) -> Iterator[None]:
    """Truncate parts above a quarter of the room to head and tail; if `earlier`, only those of earlier turns.

    Prompts of the current turn are exempt, and so is its newest exchange if it fits.
    """
    limit = max(draft.room // LARGE, MIN_PART)
    active, newest = draft.outline.active, newest_exchange(draft)
    whole = newest if draft.untouchable <= _most_whole(draft) else range(0)
    for index in draft.before_active() if earlier else range(len(draft.history)):
        exempt = index in whole or (index >= active.start and is_prompt(draft.history.readings, index))
        large = largest(draft.history.readings[index].items) > limit
        if large and not exempt and draft.here(index) is not None:
            draft.reshape(index, reasons.LARGE_PART, limit=limit)
            yield


def truncate_large_prompts(draft: Draft) -> None:
    """Truncate a current prompt that does not fit whole to three quarters of the room."""
    active = draft.outline.active
    for index in range(active.start, active.stop):
        if is_prompt(draft.history.readings, index) and draft.here(index) is not None and not _fits_whole(draft, index):
            draft.reshape(index, reasons.OVERSIZED_PROMPT, limit=draft.room - draft.room // LARGE)


def _fits_whole(draft: Draft, index: int) -> bool:
    """True if a prompt leaves enough room free."""
    return draft.history.readings[index].tokens <= _most_whole(draft)


def _most_whole(draft: Draft) -> int:
    """Maximum tokens of prompts and results that stay whole."""
    return draft.room - draft.room // SMALL


def drop_older_turns(draft: Draft) -> Iterator[None]:
    """Drop turns beyond the recent ones, oldest first."""
    for turn in _older_turns(draft):
        draft.drop(range(turn.start, turn.stop), reasons.OLDEST_TURN)
        yield


def drop_all_older_turns(draft: Draft) -> None:
    """Drop every turn beyond the recent ones, however much room there is."""
    many = replace(reasons.BEFORE_LAST_TURNS, text=reasons.BEFORE_LAST_TURNS.text.format(turns=draft.recent))
    for turn in _older_turns(draft):
        older = {0: reasons.EARLIER_TURN, 1: reasons.BEFORE_LAST_TURN}.get(draft.recent, many)
        draft.drop(range(turn.start, turn.stop), older)


def _older_turns(draft: Draft) -> Sequence[Turn]:
    earlier = draft.outline.turns[:-1]
    return earlier[: max(0, len(earlier) - draft.recent)]


def stub_tool_exchanges(draft: Draft) -> Iterator[None]:
    """Reduce tool exchanges of earlier turns to stubs with name, key arguments and outcome, oldest first."""
    for index in draft.before_active():
        if draft.history.readings[index].exchanges and index not in draft.spared:
            draft.reshape(index, reasons.STUB, skeleton=True, without=frozenset({Kind.THINKING}))
            yield


def shrink_summary(draft: Draft) -> Iterator[None]:
    """Shrink the reserve for summary and quotes to the size of the fidelities medium, low and compact."""
    for size in (Fidelity.SUMMARY_MEDIUM.cap, Fidelity.SUMMARY_LOW.cap, Fidelity.COMPACT.cap):
        if draft.summary > max(size, draft.notes):
            draft.reserve(size)
            yield


def drop_recent_turns(draft: Draft) -> Iterator[None]:
    """Drop recent turns too, oldest first."""
    for turn in draft.outline.turns[:-1]:
        if turn.start not in draft.spared:
            draft.drop(range(turn.start, turn.stop), reasons.RECENT_TURN_AHEAD if draft.ahead else reasons.RECENT_TURN)
            yield


def completed_groups(turn: Turn, history: History) -> tuple[Group, ...]:
    """Groups of a turn that are finished: all but its prompts and the open exchange at its end."""
    return tuple(group for group in turn.groups[:-1] if not has_prompt(history, group))


def newest_exchange(draft: Draft) -> range:
    """Positions of the open exchange at the end of the current turn; empty if the turn ends with a prompt."""
    newest = draft.outline.active.groups[-1]
    return range(0) if has_prompt(draft.history, newest) else range(newest.start, newest.stop)


def stub_active_exchanges(draft: Draft) -> Iterator[None]:
    """Reduce completed groups of the current turn to stubs, oldest first."""
    for group in completed_groups(draft.outline.active, draft.history):
        for index in range(group.start, group.stop):
            draft.reshape(index, reasons.ACTIVE_STUB, skeleton=True)
        yield


def drop_active_groups(draft: Draft) -> Iterator[None]:
    """Drop completed groups of the current turn, oldest first."""
    reason = reasons.ACTIVE_EXCHANGE_AHEAD if draft.ahead else reasons.ACTIVE_EXCHANGE
    for group in completed_groups(draft.outline.active, draft.history):
        draft.drop(range(group.start, group.stop), reason)
        yield


def truncate_newest_exchange(draft: Draft) -> Iterator[None]:
    """Truncate the newest exchange of the current turn, to a sixteenth of the room at the least."""
    limit, least = draft.room // LARGE, max(draft.room // SMALL, MIN_PART)
    while limit > least:
        limit = max(limit * 7 // 8, least)
        for index in newest_exchange(draft):
            draft.reshape(index, reasons.NEWEST_EXCHANGE, limit=limit)
        yield


def drop_summary(draft: Draft) -> Iterator[None]:
    """Drop summary and quotes."""
    draft.reserve(0)
    yield


def release_pins(draft: Draft) -> Iterator[None]:
    """Drop pinned messages of earlier turns, oldest first and never half of an exchange."""
    pins, draft.pins = sorted(draft.pins), frozenset()
    draft.waiting = draft.waiting.union(pins)
    for index in pins:
        if index < draft.outline.active.start:
            earlier = messages_kept_together(index, draft.outline).intersection(draft.before_active())
            draft.drop(sorted(earlier), reasons.PIN_WAITS)
            yield


def truncate_harder(draft: Draft) -> Iterator[None]:
    """Truncate what is left to a limit that is halved in every round: tool exchanges, tied messages, then prompts.

    Parts beside a prompt get the same limit, but the prompt itself keeps at least a quarter of the room. A prompt that
    fits whole is truncated only after everything else has reached the minimum.
    """
    exchange, tied, prompts = _left_at_the_end(draft)
    whole = [index for index in prompts if _fits_whole(draft, index)]
    least = _least_of_prompts(draft)
    for limit in _halves(draft):
        for indices in (exchange, tied):
            for index in indices:
                draft.reshape(index, reasons.TRUNCATION, limit=limit)
            yield
        for index in prompts:
            most = draft.history.readings[index].tokens if index in whole else max(limit, least)
            draft.reshape(index, reasons.TRUNCATION, limit=limit, prompt=most)
        yield
    for limit in _halves(draft):
        for index in whole:
            draft.reshape(index, reasons.TRUNCATION, limit=MIN_PART, prompt=max(limit, least))
        yield


def truncate_prompts(draft: Draft) -> Iterator[None]:
    """Truncate prompts to less than a quarter of the room, halving the limit in every round."""
    least = _least_of_prompts(draft)
    for limit in _halves(draft):
        for index in _left_at_the_end(draft)[2]:
            if limit < least:
                draft.reshape(index, reasons.SMALL_PROMPT, limit=MIN_PART, prompt=limit)
        yield


def _least_of_prompts(draft: Draft) -> int:
    """Limit of a prompt that keeps a quarter of the room, in tokens."""
    return draft.room // LARGE + MESSAGE_OVERHEAD


def _halves(draft: Draft) -> Iterator[int]:
    """Truncation limits in tokens, each half of the one before, down to `MIN_PART`."""
    limit = max(draft.room, 2 * MIN_PART)
    while limit > MIN_PART:
        limit = max(limit // 2, MIN_PART)
        yield limit


def _left_at_the_end(draft: Draft) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """Messages that are left at the end: exchanges of the current turn, earlier messages tied to them, prompts."""
    active = draft.outline.active
    readings = draft.history.readings
    run = range(active.start, active.stop)
    exchange = [index for index in run if not readings[index].has_user_part]
    tied = [index for index in draft.before_active() if draft.here(index) is not None]
    return exchange, tied, [index for index in run if readings[index].has_user_part]


def drop_untruncatable(draft: Draft) -> Iterator[None]:
    """Drop parts that truncation cannot shorten: thinking first, then compactions and unknown kinds."""
    for kinds in ({Kind.THINKING}, {Kind.THINKING, Kind.COMPACTION, Kind.OTHER}):
        for index in range(len(draft.history)):
            if any(item.kind in kinds for item in draft.history.readings[index].items):
                draft.reshape(index, reasons.NOT_TRUNCATABLE, without=frozenset(kinds))
                yield


def drop_steering_prompts(draft: Draft) -> Iterator[None]:
    """Drop prompts of the current turn between the first and the last one."""
    prompted = [group for group in draft.outline.active.groups[1:] if has_prompt(draft.history, group)]
    for group in prompted[:-1]:
        draft.drop(range(group.start, group.stop), reasons.EARLIER_PROMPT)
        yield


def truncate_system_text(draft: Draft) -> Iterator[None]:
    """Truncate system text of others, as the last step."""
    for limit in (64, MIN_PART):
        for index, reading in enumerate(draft.history.readings):
            if any(item.kind is Kind.SYSTEM for item in reading.items):
                draft.reshape(index, reasons.SYSTEM_TEXT, system=limit)
        yield


def relieve_system_text(draft: Draft, limits: Limits, overhead: int) -> Limits:
    """Truncate system text of others to half of the budget if it would fill it alone; returns the limits after that.

    Without this there would be no room at all, and the steps would cut the current prompt to almost nothing first.
    """
    if limits.room:
        return limits
    readings, messages = draft.history.readings, draft.history.messages
    texts = [item for reading in readings for item in reading.items if item.kind is Kind.SYSTEM and item.stays]
    if not texts:
        return limits
    limit = max((limits.budget - overhead) // 2 // len(texts), MIN_PART)
    saved = 0
    for index, reading in enumerate(readings):
        if any(item.kind is Kind.SYSTEM and item.stays for item in reading.items):
            draft.reshape(index, reasons.OVERSIZED_SYSTEM_TEXT, system=limit)
            bare, smaller = Shape(bare=True), Shape(bare=True, system=limit)
            saved += price(messages[index], reading, bare, draft.counter)
            saved -= price(messages[index], reading, smaller, draft.counter)
    return limits.with_fixed(limits.fixed - saved)


EARLIER_STEPS: tuple[Step, ...] = (drop_older_turns, stub_tool_exchanges, shrink_summary, drop_recent_turns)
"""Steps that drop or abridge messages of earlier turns. Only they and those on finished exchanges of the current turn
are taken while a request is within its budget."""

CUT_ORDER: tuple[Step, ...] = (
    truncate_large_parts,
    *EARLIER_STEPS,
    stub_active_exchanges,
    drop_summary,
    truncate_newest_exchange,
    drop_active_groups,
    release_pins,
    truncate_harder,
    drop_untruncatable,
    drop_steering_prompts,
    truncate_prompts,
    truncate_system_text,
)


def reduce(draft: Draft, target: int, *, steps: Sequence[Step] = CUT_ORDER) -> bool:
    """Take steps until the total is at most `target`; True if it is.

    Args:
        draft: The view, changed in place.
        target: Maximum exact tokens of messages, summary and quotes together.
        steps: Steps to take, in order.
    """
    for step in steps:
        if draft.total <= target:
            return True
        for _ in step(draft):
            if draft.total <= target:
                return True
    return draft.total <= target
