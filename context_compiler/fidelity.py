"""How much of the past is carried: six modes, and what each allows a summary to cost.

A fidelity says how much, a template says how it is written, a budget says what everything may cost.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from context_compiler.errors import FidelityError


class Fidelity(StrEnum):
    """How much of the conversation beyond the recent turns a view carries."""

    FULL = "full"
    """Everything, while it fits; past the budget as `summary:high`."""
    TRUNCATE = "truncate"
    """No summary at all: recent turns only."""
    COMPACT = "compact"
    SUMMARY_LOW = "summary:low"
    SUMMARY_MEDIUM = "summary:medium"
    SUMMARY_HIGH = "summary:high"

    @classmethod
    def parse(cls, value: object, *, where: str) -> Self:
        """Turn outside text into a mode, or say exactly what is wrong with it.

        Raises:
            FidelityError: `value` is not one of the six modes; the message names `where` it came from.
        """
        try:
            return cls(value if isinstance(value, cls) else str(value).strip())
        except ValueError:
            known = ", ".join(cls)
            raise FidelityError(f"unknown fidelity {value!r}; use one of {known}", where=where, value=value) from None

    @property
    def cap(self) -> int:
        """The most tokens a summary may have in this mode, before the budget has its say."""
        return CAPS[self]


CAPS: dict[Fidelity, int] = {
    Fidelity.FULL: 3_000,
    Fidelity.TRUNCATE: 0,
    Fidelity.COMPACT: 500,
    Fidelity.SUMMARY_LOW: 600,
    Fidelity.SUMMARY_MEDIUM: 1_500,
    Fidelity.SUMMARY_HIGH: 3_000,
}


def summary_cap(fidelity: Fidelity, room: int) -> int:
    """The most tokens a summary may have: the mode's cap, at most a quarter of `room`, then a power of two.

    `room` is what a request has left for messages, in tokens. The rounding keeps the cap, and with it
    the name of a compile in the cache, the same when instructions change by a few tokens.
    """
    if room // 4 >= fidelity.cap:
        return fidelity.cap
    quarter = room // 4
    return 1 << (quarter.bit_length() - 1) if quarter > 0 else 0
