"""What a prompt asks for comes back: one block of past text, directly before the prompt, once a user turn.

A block stays where it is, byte for byte, until the next advance: moved or rewritten, it would cost the prompt
cache of everything behind it. Small blocks, because large ones soon make the view advance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from context_compiler.compiler.cycle import Block, Cycle
from context_compiler.compiler.plan import Plan
from context_compiler.compiler.policy import Limits
from context_compiler.messages.fences import fence
from context_compiler.messages.history import History
from context_compiler.messages.items import MESSAGE_OVERHEAD
from context_compiler.recall import Question, Ranking, Relevance, asked, indexed
from context_compiler.recall.passages import Passage, Quotation, passages, quoted

TITLE = "RECALLED FROM EARLIER TURNS"

MOST = 16
"""Messages whose passages are ranked: the best."""

SHARE = 8
"""A block takes at most one part in so many of what is free below the high mark."""

LEAST = 48
"""Tokens; in less room a block is a fence around nothing."""


def due(cycle: Cycle, plan: Plan) -> int | None:
    """Where the prompt stands that a block is still to be found for; None where there is none, or a block already.

    The turn in which a cycle began has what it asks for in the cycle's own quotes.
    """
    history, turn = plan.history, plan.turn
    if cycle.turn == turn:
        return None
    at = next((index for index in reversed(range(len(history))) if history.readings[index].asks), -1)
    if at < cycle.decided or any(block.turn == turn for block in _standing(cycle, history)):
        return None
    return at


def _standing(cycle: Cycle, history: History) -> Iterator[Block]:
    """The blocks of a cycle whose prompt is in this history."""
    for block in cycle.blocks:
        if cycle.decided <= block.at < len(history) and history.ids[block.at] == block.name:
            yield block


def with_block(cycle: Cycle, plan: Plan, at: int, *, limits: Limits, cost: int) -> Cycle:
    """The cycle with a block for the prompt at `at`, empty where nothing that is left out bears on it.

    Args:
        cycle: The cycle.
        plan: The raw history.
        at: Position of the prompt.
        limits: The marks; all blocks of a cycle together may take a share of what lies between them.
        cost: What the request takes without the block, in exact tokens.
    """
    blocks = tuple(_standing(cycle, plan.history))
    used = sum(plan.counter.text(block.text) for block in blocks)
    room = min((limits.high - cost) // SHARE, int(plan.policy.recall * (limits.high - limits.low)) - used)
    text = _found(cycle, plan, at, blocks, room) if room >= LEAST else ""
    return replace(cycle, blocks=(*blocks, Block(at=at, name=plan.history.ids[at], turn=plan.turn, text=text)))


def _found(cycle: Cycle, plan: Plan, at: int, blocks: Sequence[Block], room: int) -> str:
    """The fenced block, within `room`; empty where nothing is relevant."""
    history, counter = plan.history, plan.counter
    index = indexed(history)
    question = Question.of(asked(history.readings[at]))
    ranking = Ranking(index, question, cycle.decided)
    here = {position for position, shape in cycle.kept if not shape.bare}
    best = ranking.best(MOST, here)
    relevant = Relevance(index, question)
    said = "\n".join((cycle.note, cycle.quotes, *(block.text for block in blocks)))
    candidates = [
        passage
        for passage in passages(history, plan.outline, best, counter, relevant.of)
        if passage.text.strip() not in said
    ]
    chosen = _fitting(candidates, ranking.passages(candidates), room - counter.text(fence(TITLE, "x")) - 8)
    while chosen:
        text = fence(TITLE, quoted(chosen))
        if counter.text(text) + MESSAGE_OVERHEAD <= room:
            return text
        chosen = chosen[:-1]
    return ""


def _fitting(candidates: Sequence[Passage], ranked: Sequence[float], room: int) -> tuple[Passage, ...]:
    """The best passages that fit, in the order in which they were said."""
    quotation = Quotation(candidates, room)
    for place in sorted(range(len(candidates)), key=lambda place: -ranked[place]):
        if ranked[place] > 0:
            quotation.take(place)
    return quotation.passages


def texts(cycle: Cycle, history: History) -> dict[int, str]:
    """The blocks to send, by the position of the prompt that each stands before."""
    return {block.at: block.text for block in _standing(cycle, history) if block.text}
