"""The room of recall blocks: their maximum size, when a view is cut back to make room for one, and which ones stay.

The setting `recall=` is the maximum size of a block, as a fraction of the room or in tokens. Everything else follows
from what is there: how much of a prompt asks, how often a turn sends its block, how much turns grow, and how much text
answers the prompt.

A block counts against the budget but not against the high threshold, because it is temporary: it is dropped at the next
user turn, unless keeping it is cheaper for the prompt cache (`BlockSizes.kept`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from context_compiler.compiler.cycle import MAX_BLOCK_CUTS, Block, Blocks, Cycle
from context_compiler.compiler.metrics import CACHED, FRESH
from context_compiler.compiler.policy import LARGE, REFUSED_SHARE, SMALL_ROOM, Limits, Plan
from context_compiler.messages.history import History
from context_compiler.messages.prompts import asking_part, asking_share, asks, is_short
from context_compiler.messages.turns import Turn
from context_compiler.settings import amount_tokens

ANSWER = 200
"""Tokens of an answer with what stands beside it: the least that the block of a prompt which asks may take, and the
most for a short one that does not, such as "write to the caterer"."""

TURNS = 5
"""Number of newest turns from which the growth of a turn is estimated."""


@dataclass(frozen=True)
class BlockSizes:
    """Sizes in tokens for the recall blocks of one request."""

    plan: Plan
    """The raw history, with the new prompt."""
    limits: Limits
    """Budget and thresholds."""
    cycle: Cycle
    """The current state of the view."""

    @cached_property
    def recall(self) -> int:
        """Maximum size of a block by the setting `recall=`."""
        return amount_tokens(self.plan.policy.recall, of=max(self.limits.room, SMALL_ROOM)) or 0

    @cached_property
    def reserve(self) -> int:
        """Tokens to keep free for the growth of the current turn after its first request.

        This is the average growth of the last `TURNS` turns.
        """
        grown = [_growth(self.plan.history, turn) for turn in self.plan.outline.turns[-TURNS - 1 : -1]]
        return min(int(fmean(grown)), self.limits.room // LARGE) if grown else 0

    def asks_past(self, prompt: str) -> bool:
        """True if a prompt may ask about the past; the cues are stricter in tool work. A large prompt always may."""
        counter = self.plan.counter
        return self._is_large or asks(asking_part(prompt, counter), counter, strict=self.plan.tool_work)

    @property
    def _is_large(self) -> bool:
        """True if the newest prompt takes more than a quarter of the room."""
        return self.plan.prompt_tokens > self.limits.room // LARGE

    def most(self, prompt: str) -> int:
        """Maximum size of the block of a prompt: `recall=` times the square of the fraction of the prompt that asks.

        Who asks in passing needs little, but the whole answer. Every request of a turn sends its block again, so the
        requests of a usual turn share these tokens. A prompt that does not ask gets little if it is short, else
        nothing.
        """
        plan, least = self.plan, min(self.recall, ANSWER)
        if self._is_large:
            return self.recall
        if self.asks_past(prompt):
            share = asking_share(asking_part(prompt, plan.counter)) or 1.0  # "I forgot what opens it" has no question
            return max(least, int(self.recall * share**2 / max(1, plan.requests_per_turn)))
        return least if is_short(prompt, plan.counter) else 0

    def expected(self, blocks: Blocks | None) -> int:
        """Size of this turn's block in `blocks`; its maximum size if it has not been searched yet."""
        if blocks is not None:
            return blocks.own.tokens(self.plan.counter)
        question = self.plan.question
        return self.most(question.text) if question is not None and self.plan.recalls else 0

    def is_narrow(self, cost: int, wanted: int) -> bool:
        """True if a request should be cut back for a block of `wanted` tokens, because less than half of it fits.

        The request, of `cost` tokens without blocks, must have grown by half of that since the last cut, or be over the
        budget, so that not every question cuts it again.
        """
        sums = self.plan.history.sums
        grown = sums[-1] - sums[self.cycle.at or 0]
        return 2 * self.free(cost) < wanted and (cost >= self.limits.budget or 2 * grown >= wanted)

    def extra_cut(self, wanted: int) -> int:
        """Tokens to cut below the low threshold, so that a block of `wanted` tokens fits above it."""
        limits = self.limits
        most = limits.max_extra_cut(self.plan.prompt_tokens, self.plan.recent_tokens)
        return max(0, min(wanted + self.reserve - (limits.budget - limits.low), most))

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
        written to the cache again. They are dropped if they leave the new block too little room.

        Args:
            blocks: Blocks of the turn before; None for none.
            cost: Exact tokens of the request without any block.
            most: Maximum size in tokens of the new prompt's block.
        """
        earlier = blocks.all if blocks is not None else ()
        tokens = sum(block.tokens(self.plan.counter) for block in earlier)
        if not earlier or tokens > self.free(cost) - most:
            return ()
        history, starts = self.plan.history, self.plan.outline.starts
        first = starts[max(0, len(starts) - 1 - TURNS)]
        growth = (history.sums[starts[-1]] - history.sums[first]) / max(1, min(TURNS, len(starts) - 1))
        turns = (self.limits.high - cost) / max(1, growth)
        after = history.sums[-1] - history.sums[earlier[0].at]
        return earlier if CACHED * tokens * turns < (FRESH - CACHED) * after else ()

    def shortened(self, block: Block, over: int, *, refused: bool) -> int:
        """Size to which a block must be shortened if the request is `over` tokens over budget; 0 or less to drop it.

        It loses the excess and the reserve, but for the reserve no more than a quarter of its size, or its answer would
        go too; three tenths if a provider `refused` the request. Where turns grow, it is shortened at most
        `MAX_BLOCK_CUTS` times, unless the request was refused.
        """
        size = block.tokens(self.plan.counter)
        if refused:
            return min(int(REFUSED_SHARE * size), size - over)
        if self.reserve and block.cuts >= MAX_BLOCK_CUTS:
            return 0
        return size - max(over, min(over + self.reserve, size // LARGE))


def _growth(history: History, turn: Turn) -> int:
    """Tokens that a turn added between its first and its last request."""
    start = turn.groups[0].stop if turn.groups else turn.start
    stop = turn.stop - (not history.readings[turn.stop - 1].request)
    return history.sums[max(start, stop)] - history.sums[start]
