"""The room of recall blocks: their maximum size, when a view is cut back to make room for one, and which ones stay.

A block counts against the budget but not against the high threshold, because it is temporary: it is dropped at the next
user turn, unless keeping it is cheaper for the prompt cache (`blocks_to_keep`). "Dial" below is the setting `recall=`:
the size of a block as a fraction of the room or in tokens.
"""

from __future__ import annotations

from statistics import median

from context_compiler.compiler.cycle import MAX_BLOCK_CUTS, Block, Blocks, Cycle
from context_compiler.compiler.metrics import CACHED, FRESH
from context_compiler.compiler.policy import LARGE, Limits, Plan
from context_compiler.fidelity import Fidelity
from context_compiler.messages.history import History
from context_compiler.messages.prompts import asking_part, asking_share, asks
from context_compiler.messages.turns import Turn, prompt_at
from context_compiler.recall import question_text
from context_compiler.settings import Amount

MAX_BLOCK = 6_500
"""Maximum size in tokens of a block if the dial is a fraction: further passages add less than they cost."""

NARROW, WIDER, FROM = 4_000, 4_800, 0.25
"""A dial that is a fraction is applied to at least `NARROW` tokens of room, because in a small room free tokens are
best spent on answers. A dial above `FROM` prefers answers to economy, so each 0.1 above it raises that minimum by a
tenth of `WIDER` tokens."""

SMALL = 0.06
"""Fraction of the dial for a prompt that asks nothing."""

DUE = {False: 1 / 3, True: 0.6}
"""Fraction of the room that should be free for the block of a prompt that asks, in a chat and (`True`) in a session
with tools. If less is free, the view is cut back first. It is larger with tools, because results that are not asked
about fill the view there."""

SOME_WORK, ROOMY = 40, 7_000
"""A chat is a session with tools if at least one message in this number calls one, in a room from `TIGHT` to `ROOMY`
tokens. In a larger room, more room for the block finds little more."""

GROWN = 8
"""Divisor of the room: in a session with tools, a view is not cut back for a block before it has grown by as much."""

BLOCK_ROOM, EXTRA_CUT = {False: 0.5, True: 0.6}, {False: 5, True: 3}
"""Fraction of the room that a block should have once the view is cut back to its low threshold, and divisor of the room
for the extra cut if it has less; in chats and (`True`) in tool work."""

FEW = 128
"""Size in tokens of a few passages. In a chat, a block that may not become as large as that part should have room for
them; if not, the view is cut back first, too."""

MOSTLY, ASIDE = 0.6, 8
"""Minimum fraction of a prompt that its question must make up for a full block. A prompt with less asks in passing, and
gets at most the room divided by `ASIDE`."""

MIN_ASIDE, MOST_ASIDE = 1_000, 4
"""In a room from `TIGHT`, it may get at least this number of tokens, but at most the room divided by the second."""

LONG_TURNS, MIN_LONG_TURNS = 8, 160
"""Divisor of the room: maximum size of a block in tool work with long turns, at most `FILL`. There every request of the
turn pays for the block again. The second is the least it may be limited to, in tokens, so that a usual passage fits."""

TURNS = 5
"""Number of newest turns from which the growth of a turn is estimated."""

RESERVE, MIN_RESERVE = 20, 64
"""Minimum reserve for the growth of a turn after its first request: a divisor of the room, and tokens."""

UNRESERVED = 7_000
"""Minimum room in tokens in which that minimum always applies. In a smaller room it applies only once a tool was
called, because most chats call none."""

MAX_RESERVE = 4
"""Divisor of the room: maximum reserve. If a turn grows beyond it, its block is shortened."""

FILL = 2_000
"""Size in tokens up to which the block of a question is filled with passages that contain none of its terms, best
first. In a larger block such a passage must score higher than an answering one to replace it."""

TIGHT = 1_500
"""Room in tokens below which a barely relevant block costs more, because a view is cut back every few requests. Rules
that spend more on blocks begin at it."""

EARLIER = 0.35
"""Maximum fraction of the room for blocks of earlier turns; with more, all of them are dropped."""

CUT = 10
"""Divisor of the room to which a block that is over the budget is finally shortened, before it is dropped."""

MORE = 8
"""Divisor of the room: maximum reserve because of a single large turn, if most turns grow less."""

TIGHTER = 0.7
"""Fraction to which a block is shortened after a provider refused the request as too long."""


def reserve(plan: Plan, limits: Limits) -> int:
    """Tokens to keep free for the growth of the current turn after its first request.

    This is the median growth of the last `TURNS` turns, or more if one of them was large, up to a quarter of the room.
    """
    grown = [_growth(plan.history, turn) for turn in plan.outline.turns[-TURNS - 1 : -1]]
    usual = min(max(median(grown), min(max(grown), limits.room // MORE)), limits.room // MAX_RESERVE) if grown else 0
    least = max(limits.room // RESERVE, MIN_RESERVE) if plan.work or limits.room >= UNRESERVED else 0
    return max(least, int(usual))


def _growth(history: History, turn: Turn) -> int:
    """Tokens that a turn added between its first and its last request."""
    start = turn.groups[0].stop if turn.groups else turn.start
    stop = turn.stop - (not history.readings[turn.stop - 1].request)
    return history.sums[max(start, stop)] - history.sums[start]


def share_tokens(recall: Amount, limits: Limits) -> int:
    """Maximum size of a block in tokens that the dial allows."""
    if isinstance(recall, int):
        return recall
    return min(MAX_BLOCK, int(recall * max(limits.room, NARROW + WIDER * max(0.0, recall - FROM))))


def small_tokens(recall: Amount, limits: Limits) -> int:
    """Maximum size in tokens of the block of a prompt that asks nothing."""
    return int(SMALL * (recall * limits.room if isinstance(recall, float) else recall))


def max_block_tokens(plan: Plan, limits: Limits, cycle: Cycle, prompt: str) -> int:
    """Maximum size in tokens of a prompt's recall block.

    It is smaller for a prompt that asks in passing. A prompt that does not ask gets little, and nothing once a tool was
    called, because few prompts are then about the past. In tool work with long turns every block is small, because each
    request of the turn pays for it again.
    """
    most = share_tokens(plan.policy.recall, limits)
    if plan.prompt_tokens > limits.room // LARGE:
        return most
    if plan.tools and cycle.loops:
        most = min(most, max(limits.room // LONG_TURNS, MIN_LONG_TURNS), FILL)
    if not asks_past(plan, limits, prompt):
        return 0 if plan.work else min(most, small_tokens(plan.policy.recall, limits))
    if asking_share(asking_part(prompt, plan.counter)) >= MOSTLY:
        return most
    least = min(MIN_ASIDE, limits.room // MOST_ASIDE) if limits.room >= TIGHT else 0
    return min(most, max(least, limits.room // ASIDE))


def asks_past(plan: Plan, limits: Limits, prompt: str) -> bool:
    """True if a prompt may ask about the past; the cues are stricter in tool work. A large prompt always may."""
    large = plan.prompt_tokens > limits.room // LARGE
    return large or asks(asking_part(prompt, plan.counter), plan.counter, strict=plan.tools)


def block_tokens(known: Blocks | None, plan: Plan, limits: Limits, cycle: Cycle) -> int:
    """Size in tokens of this turn's block `known`; its maximum size if it has not been searched yet."""
    if known is not None:
        return known.own.tokens(plan.counter)
    at = prompt_at(plan.history)
    if at is None or not plan.policy.recall or plan.policy.fidelity is Fidelity.TRUNCATE:
        return 0
    return max_block_tokens(plan, limits, cycle, question_text(plan.history.readings[at]))


def wanted_tokens(plan: Plan, limits: Limits, cycle: Cycle) -> int:
    """Tokens that should be free for the block of a prompt that asks.

    In a session with tools, this is no more than the dial allows, unless that is less than in a chat.
    """
    least, most = int(limits.room * DUE[False]), int(limits.room * DUE[_with_tools(plan, limits, cycle)])
    return max(least, min(most, share_tokens(plan.policy.recall, limits)))


def _with_tools(plan: Plan, limits: Limits, cycle: Cycle) -> bool:
    """True in tool work, and in a chat with tools (see `SOME_WORK`)."""
    return cycle.tools or (TIGHT <= limits.room < ROOMY and plan.work * SOME_WORK >= len(plan.history))


def has_grown(plan: Plan, limits: Limits, cycle: Cycle) -> bool:
    """True if the view has grown enough since the cycle began to be cut back for a block.

    In a session with tools it must have grown by the room divided by `GROWN`. Pinned messages, for example, can keep a
    view above `cut_back_threshold` right after a cut, and every question would then cut it back again.
    """
    return not _with_tools(plan, limits, cycle) or plan.history.sums[-1] - plan.history.sums[max(0, cycle.at)] >= (
        limits.room // GROWN
    )


def extra_cut(plan: Plan, limits: Limits, cycle: Cycle) -> int:
    """Tokens to cut below the low threshold at a prompt that asks, if a block had too little room above it."""
    wanted = min(limits.room * BLOCK_ROOM[cycle.tools], 2 * block_tokens(None, plan, limits, cycle))
    if limits.budget - limits.low >= wanted:
        return 0
    return min(limits.room // EXTRA_CUT[cycle.tools], limits.most_deeper(plan.prompt_tokens, plan.recent_tokens))


def cut_back_threshold(plan: Plan, limits: Limits, cycle: Cycle) -> int:
    """Size in tokens from which a request is cut back to make room for the block of a prompt that asks.

    It leaves less than `wanted_tokens` free. In a chat without tools it is also at least half of these tokens above the
    low threshold, so that cutting back gains enough. With tools `has_grown` takes care of that, and the threshold is
    at least the low one, less half of the extra cut in tool work.
    """
    wanted = wanted_tokens(plan, limits, cycle)
    gain = 0 if _with_tools(plan, limits, cycle) else wanted // 2
    deeper = extra_cut(plan, limits, cycle) // 2 if cycle.tools else 0
    return max(limits.budget - reserve(plan, limits) - wanted + 1, limits.low + gain - deeper)


def free_tokens(plan: Plan, limits: Limits, cost: int) -> int:
    """Tokens free for blocks if a request costs `cost` tokens without them: what is left, less the reserve.

    The reserve takes at most half, because a block that the turn outgrows can be shortened or searched again.
    """
    left = limits.budget - cost
    return max(left - reserve(plan, limits), left // 2)


def blocks_to_keep(blocks: Blocks | None, plan: Plan, limits: Limits, cost: int, most: int) -> tuple[Block, ...]:
    """Blocks of earlier turns that stay in the view at a new turn: all of them, or none.

    They stay if that is cheaper with a prompt cache. Keeping them costs their tokens, at the cached price, in each turn
    until the view is next cut back. Dropping them changes the prefix, so everything after the first block is written to
    the cache again. They are dropped if they exceed `EARLIER` or leave the new block too little room.

    Args:
        blocks: Blocks of the turn before; None for none.
        plan: The raw history, with the new prompt.
        limits: Budget and thresholds.
        cost: Exact tokens of the request without any block.
        most: Maximum size in tokens of the new prompt's block.
    """
    earlier = blocks.all if blocks is not None else ()
    if not earlier:
        return ()
    tokens = sum(block.tokens(plan.counter) for block in earlier)
    if tokens > EARLIER * limits.room or tokens > free_tokens(plan, limits, cost) - most:
        return ()
    history, starts = plan.history, plan.outline.starts
    first = starts[max(0, len(starts) - 1 - TURNS)]
    growth = (history.sums[starts[-1]] - history.sums[first]) / max(1, min(TURNS, len(starts) - 1))
    turns = (limits.high - cost) / max(1, growth)
    after = history.sums[-1] - history.sums[earlier[0].at]
    return earlier if CACHED * tokens * turns < (FRESH - CACHED) * after else ()


def cut_room(plan: Plan, limits: Limits, cycle: Cycle, block: Block, over: int, *, refused: bool) -> int:
    """Size in tokens to which a block must be shortened if the request is `over` tokens over budget.

    0 or less means that it must be dropped.

    In a chat with short turns it loses exactly the excess, as often as needed. In other sessions the first cut also
    makes room for growth of the turn, or is to seven tenths if a provider `refused` the request. The second cut is to a
    tenth of the room, and the third drops the block unless the request was refused.
    """
    size = block.tokens(plan.counter)
    if not (refused or cycle.tools or plan.loops):
        return size - over
    if block.cuts >= MAX_BLOCK_CUTS and not refused:
        return 0
    least = limits.room // CUT
    share = int(TIGHTER * size) if refused else max(least, size - over - limits.room // RESERVE)
    return min(least if block.cuts else share, size - over)
