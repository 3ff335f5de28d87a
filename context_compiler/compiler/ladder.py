"""The ladder: from a whole history down to what fits, whole groups at a time, every drop with its reason.

The promise: `reduce` stops at the first rung at which the total is within the target, and the rungs are
climbed in one fixed order that does not depend on the budget. It never raises; where even the last rung
does not fit, it says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from context_compiler.compiler.draft import Bench
from context_compiler.compiler.limits import Limits
from context_compiler.messages.history import History
from context_compiler.messages.items import Kind
from context_compiler.messages.shapes import Shape, largest, price
from context_compiler.messages.turns import Group, Turn

SUMMARY_STEPS = (1_500, 600, 500)
"""What a planned summary shrinks to, in tokens: medium, low, compact."""

SMALLEST = 6
"""The least that the hardest clamp leaves of a part, in tokens."""

Rung = Callable[[Bench], Iterator[None]]
"""One rung of the ladder: it makes its changes to the bench one by one, oldest first, and hands over after each."""


def giants(bench: Bench) -> Iterator[None]:
    """Any single part above a quarter of the room keeps head and tail; what the user asks now is cut last of all."""
    limit = max(bench.room // 4, SMALLEST)
    active = bench.outline.active.start
    for index, reading in enumerate(bench.history.readings):
        asked = index >= active and reading.asks
        if not asked and bench.here(index) is not None and largest(reading.items) > limit:
            bench.reshape(index, "a part above a quarter of the budget", limit=limit)
    yield


def older_turns(bench: Bench) -> Iterator[None]:
    """Turns beyond the recent ones go, oldest first."""
    earlier = bench.outline.turns[:-1]
    many = f"older than the last {bench.recent} turns"
    older = {0: "an earlier turn", 1: "older than the last turn"}.get(bench.recent, many)
    for turn in earlier[: max(0, len(earlier) - bench.recent)]:
        bench.out(range(turn.start, turn.stop), older)
        yield


def skeletons(bench: Bench) -> Iterator[None]:
    """Tool exchanges of earlier turns keep name, key arguments and outcome, oldest first."""
    for index in bench.before_active():
        if bench.history.readings[index].exchanges:
            bench.reshape(index, "tool exchange as a skeleton", skeleton=True, without=frozenset({Kind.THINKING}))
            yield


def shorter_summary(bench: Bench) -> Iterator[None]:
    """The summary shrinks to medium, low, compact."""
    for size in SUMMARY_STEPS:
        if bench.summary > size:
            bench.reserve(size)
            yield


def recent_turns(bench: Bench) -> Iterator[None]:
    """Recent turns go too, oldest first."""
    for turn in bench.outline.turns[:-1]:
        bench.out(range(turn.start, turn.stop), "recent turn, over budget")
        yield


def completed(turn: Turn, history: History) -> tuple[Group, ...]:
    """The groups of a run that are over: without its prompts and without the open exchange at its end."""
    return tuple(
        group
        for group in turn.groups[:-1]
        if not any(history.readings[index].asks for index in range(group.start, group.stop))
    )


def active_skeletons(bench: Bench) -> Iterator[None]:
    """Completed groups of the active run become skeletons, oldest first."""
    for group in completed(bench.outline.active, bench.history):
        for index in range(group.start, group.stop):
            bench.reshape(index, "tool exchange of this turn as a skeleton", skeleton=True)
        yield


def active_groups(bench: Bench) -> Iterator[None]:
    """Then they go, oldest first."""
    for group in completed(bench.outline.active, bench.history):
        bench.out(range(group.start, group.stop), "tool exchange of this turn, over budget")
        yield


def no_summary(bench: Bench) -> Iterator[None]:
    """The summary goes."""
    bench.reserve(0)
    yield


def harder_clamps(bench: Bench) -> Iterator[None]:
    """Open results, call arguments, what is tied to them, and at last the prompts are cut, harder each time."""
    limit = max(bench.room, 2 * SMALLEST)
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


def unshortened(bench: Bench) -> Iterator[None]:
    """What no clamp can shorten goes: thinking first, then compactions and parts that nobody knows."""
    for kinds in ({Kind.THINKING}, {Kind.THINKING, Kind.COMPACTION, Kind.OTHER}):
        for index in range(len(bench.history)):
            if any(item.kind in kinds for item in bench.history.readings[index].items):
                bench.reshape(index, "cannot be shortened, over budget", without=frozenset(kinds))
                yield


def steering(bench: Bench) -> Iterator[None]:
    """Of several prompts of the active turn the first and the last stay, and so does the open exchange."""
    prompted = [
        group
        for group in bench.outline.active.groups[1:]
        if any(bench.history.readings[index].asks for index in range(group.start, group.stop))
    ]
    for group in prompted[:-1]:
        bench.out(range(group.start, group.stop), "earlier prompt of this turn, over budget")
        yield


def hoisted(bench: Bench) -> Iterator[None]:
    """The system text of others is cut last."""
    for limit in (64, SMALLEST):
        for index, reading in enumerate(bench.history.readings):
            if any(item.kind is Kind.SYSTEM for item in reading.items):
                bench.reshape(index, "system text, over budget", system=limit)
        yield


def relieved(bench: Bench, limits: Limits, overhead: int) -> Limits:
    """The marks once system text of others has been cut to half of the budget that it alone would fill.

    Without this the ladder would find no room at all, and cut what the user asks now to next to nothing first.
    """
    if limits.room:
        return limits
    readings, messages = bench.history.readings, bench.history.messages
    said = [item for reading in readings for item in reading.items if item.kind is Kind.SYSTEM and item.stays]
    if not said:
        return limits
    limit = max((limits.budget - overhead) // 2 // len(said), SMALLEST)
    saved = 0
    for index, reading in enumerate(readings):
        if any(item.kind is Kind.SYSTEM and item.stays for item in reading.items):
            bench.reshape(index, "system text, over budget", system=limit)
            bare, cut = Shape(bare=True), Shape(bare=True, system=limit)
            saved += price(messages[index], reading, bare, bench.counter)
            saved -= price(messages[index], reading, cut, bench.counter)
    return limits.carrying(limits.fixed - saved)


CUT: tuple[Rung, ...] = (
    older_turns,
    skeletons,
    shorter_summary,
    recent_turns,
    active_skeletons,
    active_groups,
)
"""The rungs that only leave out or abridge what is over: all that is climbed while the budget itself holds."""

LADDER: tuple[Rung, ...] = (giants, *CUT, no_summary, harder_clamps, unshortened, steering, hoisted)


def reduce(bench: Bench, target: int, *, rungs: Sequence[Rung] = LADDER) -> bool:
    """Climb the rungs until the total is at most `target` exact tokens; whether it got there.

    Args:
        bench: The view so far; changed in place.
        target: What messages and summary may cost together.
        rungs: The part of the ladder to climb.
    """
    for rung in rungs:
        if bench.total <= target:
            return True
        for _ in rung(bench):
            if bench.total <= target:
                return True
    return bench.total <= target
