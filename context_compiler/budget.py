"""The ladder: from a whole history down to what fits, whole groups at a time, every drop with its reason.

The promise: `reduce` stops at the first rung at which the total is within the target, and the rungs are
climbed in one fixed order that does not depend on the budget. It never raises; where even the last rung
does not fit, it says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from context_compiler.history import History
from context_compiler.items import Kind
from context_compiler.record import Drop
from context_compiler.shapes import WHOLE, Shape, largest, price
from context_compiler.tokens import TokenCounter
from context_compiler.turns import Group, Outline, Turn, closed

SUMMARY_STEPS = (1_500, 600, 500)
"""What a planned summary shrinks to, in tokens: medium, low, compact."""

SMALLEST = 16
"""The least that the hardest clamp leaves of a part, in tokens."""


class Bench:
    """A view being cut to size: a shape and a price for every message, and the running total."""

    def __init__(
        self, history: History, outline: Outline, counter: TokenCounter, shapes: Sequence[Shape | None]
    ) -> None:
        """Start from `shapes`, one a message; `None` is out."""
        self.history, self.outline, self.counter = history, outline, counter
        self.shapes: list[Shape | None] = list(shapes)
        self.costs = [self._price(index, shape) for index, shape in enumerate(self.shapes)]
        self.total = sum(self.costs)
        self.summary = 0
        """What is set aside for the summary that is still to be written, in tokens."""
        self.drops: list[Drop] = []

    def _price(self, index: int, shape: Shape | None) -> int:
        if shape is None:
            return 0
        return price(self.history.messages[index], self.history.readings[index], shape, self.counter)

    def put(self, index: int, shape: Shape | None) -> None:
        """Give a message another shape."""
        cost = self._price(index, shape)
        self.total += cost - self.costs[index]
        self.shapes[index], self.costs[index] = shape, cost

    def here(self, index: int) -> Shape | None:
        """The shape of a message that is still carried for what it says; None when it is out."""
        shape = self.shapes[index]
        return None if shape is None or shape.bare else shape

    def out(self, indices: Iterable[int], reason: str) -> None:
        """Leave messages out, but for ties to messages that stay and what the host would forget."""
        gone = {index for index in indices if self.here(index) is not None}
        already = {index for tie in self.outline.ties for index in tie if self.here(index) is None}
        gone = closed(gone | already, self.outline.ties) - already
        before = self.total
        for index in sorted(gone):
            shape = self.shapes[index] or WHOLE
            keeps = self.history.readings[index].stays > 0
            self.put(index, replace(shape, bare=True, skeleton=False, limit=None) if keeps else None)
        if gone:
            what = f"messages {min(gone)}-{max(gone)}" if len(gone) > 1 else f"message {min(gone)}"
            self.drops.append(Drop(what=what, reason=reason, tokens=before - self.total))

    def reshape(self, index: int, reason: str, **changes: object) -> None:
        """Give a message a smaller shape, if it really is smaller."""
        shape = self.here(index)
        if shape is None:
            return
        smaller = replace(shape, **changes)  # pyright: ignore[reportArgumentType]
        cost = self._price(index, smaller)
        if cost < self.costs[index]:
            self.drops.append(Drop(what=f"message {index}", reason=reason, tokens=self.costs[index] - cost))
            self.put(index, smaller)

    def before_active(self) -> range:
        """Positions before the active turn."""
        return range(self.outline.active.start)


Rung = Callable[[Bench, int, int], Iterator[None]]
"""One rung of the ladder: given the bench, the room for messages and how many recent turns to keep, it
makes its changes one by one, oldest first, and hands over after each."""


def giants(bench: Bench, room: int, recent: int) -> Iterator[None]:
    """Any single part above a quarter of the room keeps head and tail."""
    limit = max(room // 4, SMALLEST)
    for index, reading in enumerate(bench.history.readings):
        if bench.here(index) is not None and largest(reading.items) > limit:
            bench.reshape(index, "a part above a quarter of the budget", limit=limit)
    yield


def older_turns(bench: Bench, room: int, recent: int) -> Iterator[None]:
    """Turns beyond the recent ones go, oldest first."""
    earlier = bench.outline.turns[:-1]
    for turn in earlier[: max(0, len(earlier) - recent)]:
        bench.out(range(turn.start, turn.stop), f"older than the last {recent} turns")
        yield


def skeletons(bench: Bench, room: int, recent: int) -> Iterator[None]:
    """Tool exchanges of earlier turns keep name, key arguments and outcome, oldest first."""
    for index in bench.before_active():
        if bench.history.readings[index].exchanges:
            bench.reshape(index, "tool exchange as a skeleton", skeleton=True, signed=False)
            yield


def shorter_summary(bench: Bench, room: int, recent: int) -> Iterator[None]:
    """The summary shrinks to medium, low, compact."""
    for size in SUMMARY_STEPS:
        if bench.summary > size:
            bench.total -= bench.summary - size
            bench.summary = size
            yield


def recent_turns(bench: Bench, room: int, recent: int) -> Iterator[None]:
    """Recent turns go too, oldest first."""
    for turn in bench.outline.turns[:-1]:
        bench.out(range(turn.start, turn.stop), "recent turn, over budget")
        yield


def completed(turn: Turn, history: History) -> tuple[Group, ...]:
    """The groups of a run that are over: without its prompts and without the open exchange at its end."""
    return tuple(
        group
        for group in turn.groups[:-1]
        if not any(history.readings[index].prompts for index in range(group.start, group.stop))
    )


def active_skeletons(bench: Bench, room: int, recent: int) -> Iterator[None]:
    """Completed groups of the active run become skeletons, oldest first."""
    for group in completed(bench.outline.active, bench.history):
        for index in range(group.start, group.stop):
            bench.reshape(index, "tool exchange of this turn as a skeleton", skeleton=True)
        yield


def active_groups(bench: Bench, room: int, recent: int) -> Iterator[None]:
    """Then they go, oldest first."""
    for group in completed(bench.outline.active, bench.history):
        bench.out(range(group.start, group.stop), "tool exchange of this turn, over budget")
        yield


def no_summary(bench: Bench, room: int, recent: int) -> Iterator[None]:
    """The summary goes."""
    bench.total -= bench.summary
    bench.summary = 0
    yield


def harder_clamps(bench: Bench, room: int, recent: int) -> Iterator[None]:
    """Open results, call arguments, the active prompt and at last hoisted system text are cut, harder each time."""
    limit = max(room // 4, SMALLEST)
    while limit > SMALLEST:
        limit = max(limit // 2, SMALLEST)
        for indices in _last_to_go(bench):
            for index in indices:
                bench.reshape(index, "clamped to fit", limit=limit)
            yield


def _last_to_go(bench: Bench) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """What is left at the end, in the order in which it is clamped: answers and calls, ties, prompts."""
    active = bench.outline.active
    readings = bench.history.readings
    run = range(active.start, active.stop)
    exchange = [index for index in run if not readings[index].prompts]
    tied = [index for index in bench.before_active() if bench.here(index) is not None]
    return exchange, tied, [index for index in run if readings[index].prompts]


def thoughts(bench: Bench, room: int, recent: int) -> Iterator[None]:
    """Thinking goes: no shape can shorten what is signed."""
    for index in range(len(bench.history)):
        if any(item.kind is Kind.THINKING for item in bench.history.readings[index].items):
            bench.reshape(index, "thinking, over budget", signed=False)
            yield


def hoisted(bench: Bench, room: int, recent: int) -> Iterator[None]:
    """What is carried for others is cut last."""
    for index, shape in enumerate(bench.shapes):
        if shape is not None and shape.bare:
            bench.put(index, replace(shape, limit=SMALLEST * 4))
            yield


CUT: tuple[Rung, ...] = (
    older_turns,
    skeletons,
    shorter_summary,
    recent_turns,
    active_skeletons,
    active_groups,
    no_summary,
    harder_clamps,
    thoughts,
    hoisted,
)
LADDER: tuple[Rung, ...] = (giants, *CUT)


def reduce(bench: Bench, target: int, *, room: int, recent: int, rungs: Sequence[Rung] = LADDER) -> bool:
    """Climb the rungs until the total is at most `target` exact tokens; whether it got there.

    Args:
        bench: The view so far; changed in place.
        target: What messages and summary may cost together.
        room: What a request has for messages at most; clamps are shares of it.
        recent: How many turns before the active one to keep if they fit.
        rungs: The part of the ladder to climb.
    """
    for rung in rungs:
        if bench.total <= target:
            return True
        for _ in rung(bench, room, recent):
            if bench.total <= target:
                return True
    return bench.total <= target
