"""One advance: cut back, and freeze what came of it. Pure: nothing here waits.

`cut` decides what stays, and `freeze` writes the note and the verbatim part and fixes everything until the next
advance. What a model is asked in between, if anything, is in `advance.asked`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from context_compiler.compiler.cycle import Frozen, positions, spans
from context_compiler.compiler.draft import Bench
from context_compiler.compiler.ladder import CUT, giants, older_turns, reduce, relieved
from context_compiler.compiler.ledger import share
from context_compiler.compiler.limits import Limits
from context_compiler.compiler.notes import written_for
from context_compiler.compiler.plan import Cut, Sight
from context_compiler.compiler.quotes import cost
from context_compiler.compiler.view import Quote
from context_compiler.fidelity import Fidelity
from context_compiler.messages.pins import Pin, pins
from context_compiler.messages.shapes import WHOLE, Shape

RECENT = 8
"""In a one-shot view the turns before the active one have one part in so many of the room, unless the caller says how
many are kept: past text that answers what is asked tells more than what merely stands near it."""


def cut(
    sight: Sight,
    limits: Limits,
    *,
    previous: Frozen | None,
    overhead: int,
    one_shot: bool = False,
    spare: int = 0,
) -> Cut:
    """Cut back to the low mark, or fill a one-shot view to the budget: whole groups, in the ladder's order.

    `previous` is the cycle before, `overhead` what the request costs beside its messages, in exact tokens, and `spare`
    what a one-shot view has left when all is quoted that can be: the newest turns get it, past the template's number
    of them too unless the caller named a fidelity.
    """
    history, outline, options = sight.history, sight.outline, sight.options
    recent = options.recent_turns if options.recent_turns is not None else len(outline.turns)
    start = _start(sight, previous)
    bench = Bench(history, outline, sight.counter, start, room=limits.room, recent=recent, refs=options.refs)
    begun = previous.decided if previous is not None else 0
    skipped = [index for index, shape in sight.base.items() if shape.skip and index >= begun]
    bench.tell(skipped, "broken: a call without its answer, or an answer without its call")
    limits = relieved(bench, limits, overhead)
    target = (limits.budget if one_shot else limits.low) - overhead
    bench.room = limits.room
    if one_shot and not options.recent_named:
        older = spare and not (options.named and options.fidelity is not Fidelity.FULL)
        wanted = len(outline.turns) if older else recent
        bench.recent = min(wanted, _affordable(bench, limits.room // RECENT + spare))
    over = bench.total > limits.budget - overhead
    user_pins = pins(history, outline, bench.before_active())
    bench.reserve(_reserve(sight, limits, user_pins))
    if one_shot or options.every_turn:
        deque(older_turns(bench), maxlen=0)
    reduce(bench, target, rungs=(giants, *CUT) if over else CUT)
    reduce(bench, limits.budget - overhead)
    out = tuple(index for index in range(len(history)) if bench.here(index) is None)
    covered = positions(previous.covered) if previous else set[int]()
    return Cut(
        bench=bench,
        options=options,
        limits=limits,
        target=target,
        out=out,
        span=tuple(index for index in out if index not in covered),
        pinned=tuple(pin for pin in user_pins if bench.here(pin.position) is None) if bench.summary else (),
        previous=previous,
        lasting=not one_shot,
    )


def unused(done: Cut, frozen: Frozen) -> int:
    """What a one-shot view has left, in tokens, when all is quoted that can be; 0 where that is little or wanted."""
    if done.options.recent_named:
        return 0
    left = done.target - done.kept - cost(frozen.note, done.counter) - cost(frozen.quotes, done.counter)
    return left if left > done.limits.room // RECENT else 0


def _affordable(bench: Bench, room: int) -> int:
    """How many of the newest turns before the active one, whole, cost at most `room` tokens together."""
    for count, turn in enumerate(reversed(bench.outline.turns[:-1])):
        room -= sum(bench.costs[turn.start : turn.stop])
        if room < 0:
            return count
    return len(bench.outline.turns)


def _reserve(sight: Sight, limits: Limits, pinned: Sequence[Pin]) -> int:
    """What is set aside for note and quotes; a fidelity that the caller names caps both together."""
    cap = limits.cap(sight.options.fidelity)
    if sight.options.named or not cap:
        return cap
    cap += share(sight.history, limits.room)
    if not pinned:
        return cap
    return cap + min(limits.room // 10, sum(sight.counter.text(pin.text) + 12 for pin in pinned) + 24)


def _start(sight: Sight, previous: Frozen | None) -> list[Shape | None]:
    """The shapes to start from: those of the cycle before, and what calls of earlier turns become by choice."""
    history, ties = sight.history, sight.outline.ties
    shapes: list[Shape | None] = [sight.base.get(index, WHOLE) for index in range(len(history))]
    if previous is not None:
        shapes[: previous.decided] = [None] * previous.decided
        for index, shape in previous.kept:
            shapes[index] = shape
    if sight.options.tool_history != "paired":
        start = sight.outline.active.start
        for index in range(start):
            shape = shapes[index]
            tied = ties.get(index, (0,))[-1] >= start
            if shape is not None and not shape.bare and not tied and history.readings[index].exchanges:
                shapes[index] = replace(shape, tools=sight.options.tool_history)
    return shapes


def freeze(cut: Cut, *, summary: str, row: int | None, turn: int, asked: bool) -> tuple[Frozen, tuple[Quote, ...]]:
    """Fix the view until the next advance; what is quoted in it, and why.

    Args:
        cut: What stays.
        summary: What a model has just written; empty when none did.
        row: The row of that compile, where it is on the record already.
        turn: The ordinal of the active user turn.
        asked: Whether a model was asked in this turn, with or without success.
    """
    old = cut.previous
    kept_summary = summary or (old.summary if old else "")
    covered = spans(cut.out) if summary else (old.covered if old else ())
    text = written_for(cut, kept_summary, positions(covered))
    shapes = cut.bench.shapes
    changed = [index for index, shape in enumerate(shapes) if shape != WHOLE]
    decided = changed[-1] + 1 if changed else 0
    frozen = Frozen(
        decided=decided,
        tip=cut.history.ids[decided - 1] if decided else "",
        kept=tuple((index, shape) for index, shape in enumerate(shapes[:decided]) if shape is not None),
        note=text.note,
        quotes=text.quotes,
        channel=text.channel,
        own=text.own,
        summary=kept_summary,
        summary_id=row if summary else (old.summary_id if old else None),
        covered=covered,
        compiled_turn=turn if asked else (old.compiled_turn if old else -1),
        turn=turn,
        tight=cut.limits.tight,
        ratio=cut.limits.ratio,
        blocks=(),
        config=cut.options.config,
    )
    return frozen, text.quoted
