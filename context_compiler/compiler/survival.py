"""How much of what was said survives a summary, specific by specific."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from context_compiler.compiler.mentions import mentions
from context_compiler.compiler.specifics import Specific, Told
from context_compiler.messages.history import History
from context_compiler.messages.turns import Outline


@dataclass(frozen=True, slots=True, kw_only=True)
class Survival:
    """What of the specifics of a span some texts still hold. Equal specifics count once."""

    found: int
    """How many there are."""
    kept: int
    """How many of them the texts hold."""

    @property
    def share(self) -> float:
        """From 0 to 1; 1 where there was nothing to lose."""
        return self.kept / self.found if self.found else 1.0


def evicted(history: History, outline: Outline, span: Iterable[int]) -> tuple[Specific, ...]:
    """The specifics of these messages, each once, in the order in which they first stand."""
    found = {one.specific.text: one.specific for one in reversed(mentions(history, outline, span))}
    return tuple(reversed(found.values()))


def survival(lost: Iterable[Specific], *texts: str) -> Survival:
    """How many of these specifics the texts hold, as they are compared."""
    told = Told(*texts)
    kept = [told.holds(one) for one in lost]
    return Survival(found=len(kept), kept=sum(kept))
