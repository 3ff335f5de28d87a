"""A long text keeps its head and its tail, and says between them how much it was and where the rest can be read."""

from __future__ import annotations

from dataclasses import dataclass

from context_compiler.tokens import TokenCounter


@dataclass(frozen=True, slots=True)
class Knife:
    """Cuts texts to a size."""

    counter: TokenCounter
    ref: str = ""
    """The name by which an agent can read what is cut away; empty where it cannot."""

    @property
    def reading(self) -> str:
        """How to read the rest, for a marker that says how much it is."""
        return f'; recall_read("{self.ref}") shows it' if self.ref else ""

    def text(self, text: str) -> int:
        """The tokens of a text."""
        return self.counter.text(text)

    def clamp(self, text: str, limit: int) -> str:
        """Head and tail of a text, with a marker between; at most `limit` tokens."""
        counter = self.counter
        size = counter.text(text)
        if size <= limit:
            return text
        marker = f"\n[… {size:,} tokens in full, the middle is left out here{self.reading} …]\n"
        room = limit - counter.text(marker) - 4
        if room < 8:
            return counter.head(counter.head(text, limit - 2) + "…", limit)
        return counter.head(text, room * 2 // 3) + marker + counter.tail(text, room - room * 2 // 3)


def clamp(text: str, limit: int, counter: TokenCounter) -> str:
    """Head and tail of a text that nobody can ask for again; at most `limit` tokens."""
    return Knife(counter).clamp(text, limit)
