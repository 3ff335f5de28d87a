"""The room of recall blocks: their maximum size, when a view is cut back to make room for one, and which ones stay.

A block counts against the budget but not against the high threshold, because it is temporary: it is dropped at the next
user turn, unless keeping it is cheaper for the prompt cache (`BlockSizes.kept`). The setting `recall=` is the maximum
size of a block, as a fraction of the room or in tokens.

Names that end in `PART` are divisors of the room, in `SHARE` fractions, in `TOKENS` sizes in tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median

from context_compiler.compiler.cycle import MAX_BLOCK_CUTS, Block, Blocks, Cycle
from context_compiler.compiler.metrics import CACHED, FRESH
from context_compiler.compiler.policy import LARGE, REFUSED_SHARE, Limits, Plan
from context_compiler.messages.history import History
from context_compiler.messages.prompts import asking_part, asking_share, asks
from context_compiler.messages.turns import Turn
from context_compiler.settings import Amount

MAX_BLOCK_TOKENS = 6_500
"""Maximum size of a block if `recall=` is a fraction: further passages add less than they cost."""

BASE_ROOM, GENEROUS_ROOM, GENEROUS_FROM = 4_000, 4_800, 0.25
"""`recall=`, if a fraction, is applied to at least `BASE_ROOM` tokens of room, because in a small room free tokens are
best spent on answers. A fraction above `GENEROUS_FROM` prefers answers to economy, so each 0.1 above it raises that
minimum by a tenth of `GENEROUS_ROOM` tokens."""

UNASKED_SHARE = 0.06
"""Fraction of `recall=` for a prompt that asks nothing."""

TIGHT_ROOM = 1_500
"""Room in tokens below which a barely relevant block costs more, because a view is cut back every few requests. Rules
that spend more on blocks begin at it."""

LARGE_ROOM = 7_000
"""Room in tokens from which rules for small rooms no longer apply."""

CALLS_PART = 40
"""A chat has tools if at least one message in this number calls one, in a room from `TIGHT_ROOM` to `LARGE_ROOM`. In a
larger room, more room for the block finds little more."""

GROWTH_PART = 8
"""In a session with tools, a view must have grown by this part of the room before it is cut back for a block."""

FEW_PASSAGES_TOKENS = 128
"""Size of a few passages. In a chat whose blocks may not become large, a block should have room for them; if not, the
view is cut back first, too."""

ASKING_SHARE, ASIDE_PART = 0.6, 8
"""Minimum fraction of a prompt that its question must make up for a full block. A prompt with less asks in passing, and
gets a block of at most that part of the room."""

MIN_ASIDE_TOKENS, MAX_ASIDE_PART = 1_000, 4
"""In a room from `TIGHT_ROOM`, such a block may have at least this size, but at most that part of the room."""

LONG_TURNS_PART, MIN_LONG_TURNS_TOKENS, MAX_LONG_TURNS_TOKENS = 8, 160, 2_000
"""Maximum size of a block in tool work with long turns, where every request of the turn pays for the block again; at
most the third, and at least the second, so that a usual passage fits."""

TURNS = 5
"""Number of newest turns from which the growth of a turn is estimated."""

RESERVE_PART, MIN_RESERVE_TOKENS, MAX_RESERVE_PART = 20, 64, 4
"""Minimum reserve for the growth of a turn after its first request, as a part of the room and in tokens, and maximum
reserve. In a room below `LARGE_ROOM`, the minimum applies only once a tool was called, because most chats call none. If
a turn grows beyond the reserve, its block is shortened."""

LARGE_TURN_PART = 8
"""Maximum reserve because of a single large turn, if most turns grow less."""

EARLIER_SHARE = 0.35
"""Maximum fraction of the room for blocks of earlier turns; with more, all of them are dropped."""

LAST_CUT_PART = 10
"""Size to which a block that is over the budget is finally shortened, before it is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Room that a view should have for the block of a prompt that asks, in one kind of session."""

    free: float
    """Fraction of the room that should be free. If less is free, the view is cut back first."""
    after_cut: float
    """Fraction of the room that should be free once the view is cut back to its low threshold."""
    extra_cut_part: int
    """Part of the room by which the view is cut further if less is free then."""


CHAT = Rules(free=1 / 3, after_cut=0.5, extra_cut_part=5)
TOOL_WORK = Rules(free=0.6, after_cut=0.6, extra_cut_part=3)
CHAT_WITH_TOOLS = replace(CHAT, free=TOOL_WORK.free)
"""More is free in sessions with tools, because results that are not asked about fill the view there."""


def recall_tokens(recall: Amount, room: int) -> int:
    """Maximum size of a block in tokens by the setting `recall=`, in a room of `room` tokens."""
    if isinstance(recall, int):
        return recall
    return min(MAX_BLOCK_TOKENS, int(recall * max(room, BASE_ROOM + GENEROUS_ROOM * max(0.0, recall - GENEROUS_FROM))))


@dataclass(frozen=True, slots=True)
class BlockSizes:
    """Sizes in tokens for the recall blocks of one request.

    What is decided for a whole cycle, such as when the view is cut back, depends on the kind of session when the cycle
    began (`cycle.tool_work`, `cycle.long_turns`). How a prompt is understood depends on the session as it is now
    (`plan.tool_work`, `plan.tool_calls`).
    """

    plan: Plan
    """The raw history, with the new prompt."""
    limits: Limits
    """Budget and thresholds."""
    cycle: Cycle
    """The current state of the view."""

    @property
    def rules(self) -> Rules:
        """Rules for this kind of session."""
        if self.cycle.tool_work:
            return TOOL_WORK
        some_tools = self.plan.tool_calls * CALLS_PART >= len(self.plan.history)
        return CHAT_WITH_TOOLS if some_tools and TIGHT_ROOM <= self.limits.room < LARGE_ROOM else CHAT

    @property
    def recall(self) -> int:
        """Maximum size of a block by the setting `recall=`."""
        return recall_tokens(self.plan.policy.recall, self.limits.room)

    @property
    def reserve(self) -> int:
        """Tokens to keep free for the growth of the current turn after its first request.

        This is the median growth of the last `TURNS` turns, or more if one of them was large, up to a quarter of the
        room.
        """
        room, least = self.limits.room, 0
        grown = [_growth(self.plan.history, turn) for turn in self.plan.outline.turns[-TURNS - 1 : -1]]
        usual = (
            min(max(median(grown), min(max(grown), room // LARGE_TURN_PART)), room // MAX_RESERVE_PART) if grown else 0
        )
        if self.plan.tool_calls or room >= LARGE_ROOM:
            least = max(room // RESERVE_PART, MIN_RESERVE_TOKENS)
        return max(least, int(usual))

    def asks_past(self, prompt: str) -> bool:
        """True if a prompt may ask about the past; the cues are stricter in tool work. A large prompt always may."""
        counter = self.plan.counter
        return self._is_large or asks(asking_part(prompt, counter), counter, strict=self.plan.tool_work)

    @property
    def _is_large(self) -> bool:
        """True if the newest prompt takes more than a quarter of the room."""
        return self.plan.prompt_tokens > self.limits.room // LARGE

    def most(self, prompt: str) -> int:
        """Maximum size of the block of a prompt.

        It is smaller for a prompt that asks in passing. A prompt that does not ask gets little, and nothing once a tool
        was called, because few prompts are then about the past. In tool work with long turns every block is small,
        because each request of the turn pays for it again.
        """
        most, room, recall = self.recall, self.limits.room, self.plan.policy.recall
        if self._is_large:
            return most
        if self.plan.tool_work and self.cycle.long_turns:
            most = min(most, max(room // LONG_TURNS_PART, MIN_LONG_TURNS_TOKENS), MAX_LONG_TURNS_TOKENS)
        if not self.asks_past(prompt):
            unasked = int(UNASKED_SHARE * (recall * room if isinstance(recall, float) else recall))
            return 0 if self.plan.tool_calls else min(most, unasked)
        if asking_share(asking_part(prompt, self.plan.counter)) >= ASKING_SHARE:
            return most
        least = min(MIN_ASIDE_TOKENS, room // MAX_ASIDE_PART) if room >= TIGHT_ROOM else 0
        return min(most, max(least, room // ASIDE_PART))

    def expected(self, known: Blocks | None) -> int:
        """Size of this turn's block `known`; its maximum size if it has not been searched yet."""
        if known is not None:
            return known.own.tokens(self.plan.counter)
        question = self.plan.question
        return self.most(question.text) if question is not None and self.plan.recalls else 0

    @property
    def wanted(self) -> int:
        """Tokens that should be free for the block of a prompt that asks.

        In a session with tools, this is no more than `recall=` allows, unless that is less than in a chat.
        """
        room = self.limits.room
        return max(int(room * CHAT.free), min(int(room * self.rules.free), self.recall))

    @property
    def has_grown(self) -> bool:
        """True if the view has grown enough since the cycle began to be cut back for a block.

        In a session with tools it must have grown by the room divided by `GROWTH_PART`. Pinned messages, for example,
        can keep a view above `cut_back_threshold` right after a cut, and every question would then cut it back again.
        """
        sums = self.plan.history.sums
        grown = sums[-1] - sums[max(0, self.cycle.at)]
        return self.rules is CHAT or grown >= self.limits.room // GROWTH_PART

    @property
    def extra_cut(self) -> int:
        """Tokens to cut below the low threshold at a prompt that asks, if a block had too little room above it."""
        limits, rules = self.limits, self.rules
        if limits.budget - limits.low >= min(limits.room * rules.after_cut, 2 * self.expected(None)):
            return 0
        return min(
            limits.room // rules.extra_cut_part, limits.max_extra_cut(self.plan.prompt_tokens, self.plan.recent_tokens)
        )

    @property
    def cut_back_threshold(self) -> int:
        """Size of a request from which it is cut back to make room for the block of a prompt that asks.

        It leaves less than `wanted` free. In a chat without tools it is also at least half of these tokens above the
        low threshold, so that cutting back gains enough. With tools `has_grown` takes care of that, and the threshold
        is at least the low one, less half of the extra cut in tool work.
        """
        wanted, limits = self.wanted, self.limits
        gain = wanted // 2 if self.rules is CHAT else 0
        deeper = self.extra_cut // 2 if self.cycle.tool_work else 0
        return max(limits.budget - self.reserve - wanted + 1, limits.low + gain - deeper)

    def free(self, cost: int) -> int:
        """Tokens free for blocks if a request costs `cost` tokens without them: what is left, less the reserve.

        The reserve takes at most half, because a block that the turn outgrows can be shortened or searched again.
        """
        left = self.limits.budget - cost
        return max(left - self.reserve, left // 2)

    def kept(self, blocks: Blocks | None, cost: int, most: int) -> tuple[Block, ...]:
        """Blocks of earlier turns that stay in the view at a new turn: all of them, or none.

        They stay if that is cheaper with a prompt cache. Keeping them costs their tokens, at the cached price, in each
        turn until the view is next cut back. Dropping them changes the prefix, so everything after the first block is
        written to the cache again. They are dropped if they exceed `EARLIER_SHARE` or leave the new block too little
        room.

        Args:
            blocks: Blocks of the turn before; None for none.
            cost: Exact tokens of the request without any block.
            most: Maximum size in tokens of the new prompt's block.
        """
        earlier = blocks.all if blocks is not None else ()
        if not earlier:
            return ()
        tokens = sum(block.tokens(self.plan.counter) for block in earlier)
        if tokens > EARLIER_SHARE * self.limits.room or tokens > self.free(cost) - most:
            return ()
        history, starts = self.plan.history, self.plan.outline.starts
        first = starts[max(0, len(starts) - 1 - TURNS)]
        growth = (history.sums[starts[-1]] - history.sums[first]) / max(1, min(TURNS, len(starts) - 1))
        turns = (self.limits.high - cost) / max(1, growth)
        after = history.sums[-1] - history.sums[earlier[0].at]
        return earlier if CACHED * tokens * turns < (FRESH - CACHED) * after else ()

    def shortened(self, block: Block, over: int, *, refused: bool) -> int:
        """Size to which a block must be shortened if the request is `over` tokens over budget; 0 or less to drop it.

        In a chat with short turns it loses exactly the excess, as often as needed. In other sessions the first cut also
        makes room for growth of the turn, or is to seven tenths if a provider `refused` the request. The second cut is
        to a tenth of the room, and the third drops the block unless the request was refused.
        """
        size, room = block.tokens(self.plan.counter), self.limits.room
        if not (refused or self.cycle.tool_work or self.plan.long_turns):
            return size - over
        if block.cuts >= MAX_BLOCK_CUTS and not refused:
            return 0
        least = room // LAST_CUT_PART
        share = int(REFUSED_SHARE * size) if refused else max(least, size - over - room // RESERVE_PART)
        return min(least if block.cuts else share, size - over)


def _growth(history: History, turn: Turn) -> int:
    """Tokens that a turn added between its first and its last request."""
    start = turn.groups[0].stop if turn.groups else turn.start
    stop = turn.stop - (not history.readings[turn.stop - 1].request)
    return history.sums[max(start, stop)] - history.sums[start]
