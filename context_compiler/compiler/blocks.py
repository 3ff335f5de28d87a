"""Recall blocks as data: the text recalled for one prompt, and all blocks in the requests of one user turn."""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass, replace

from context_compiler.compiler.cycle import DAMAGED, well_typed
from context_compiler.compiler.view import Quote
from context_compiler.messages.items import MESSAGE_OVERHEAD
from context_compiler.tokens import TokenCounter

CUTS = 2
"""Number of times that a block over the budget is shortened before it is dropped."""


@dataclass(frozen=True, slots=True)
class Block:
    """Past text recalled for one prompt."""

    at: int
    """Position of the prompt's message in the raw history."""
    name: str
    """Chain id of the prompt: the block is valid only in histories that contain it."""
    turn: int
    """User turn that the prompt begins."""
    text: str
    """Fenced text as sent; empty if nothing was found, so that the search is not repeated."""
    cuts: int = 0
    """Number of times it was shortened because the request had no room for it."""

    def tokens(self, counter: TokenCounter) -> int:
        """Price of the block in a view."""
        return counter.text(self.text) + MESSAGE_OVERHEAD if self.text else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """The blocks in the requests of one user turn."""

    own: Block
    """Block of the turn itself, which may be empty."""
    config: str
    """Configuration of the cycle to which the blocks belong."""
    earlier: tuple[Block, ...] = ()
    """Blocks of earlier turns that are still sent."""

    @property
    def all(self) -> tuple[Block, ...]:
        """All blocks that have a text, in order."""
        return tuple(block for block in (*self.earlier, self.own) if block.text)

    @property
    def quotes(self) -> list[Quote]:
        """Quotes of the blocks, as a view lists them."""
        why = "recalled for its prompt"
        return [Quote(what=f"before turn {block.turn + 1}", why=why, text=block.text) for block in self.all]

    def without(self) -> Blocks:
        """Copy for a turn that has no room for any block; its own block is marked so that it is not searched again."""
        return replace(self, own=replace(self.own, text="", cuts=CUTS), earlier=())

    def texts(self) -> dict[int, str]:
        """Text of each block, by the position of its prompt."""
        return {block.at: block.text for block in self.all}

    def tokens(self, counter: TokenCounter) -> int:
        """Price of all blocks in a view."""
        return sum(block.tokens(counter) for block in self.all)

    def to_json(self) -> str:
        """Serialize to JSON."""
        return json.dumps([astuple(block) for block in (*self.earlier, self.own)], ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str, config: str) -> Blocks | None:
        """Parse from JSON; None if it is damaged or was written by an incompatible version."""
        try:
            found = [Block(*one) for one in json.loads(text)]
            sound = bool(found) and all(map(well_typed, found))
        except DAMAGED:
            return None
        return cls(own=found[-1], earlier=tuple(found[:-1]), config=config) if sound else None
