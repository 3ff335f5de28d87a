"""Changes that would have kept a message in a recorded request, found by compiling its history again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from math import isqrt

from pydantic_ai.messages import ModelMessage

from context_compiler.compiler.policy import HIGH
from context_compiler.errors import TemplateError
from context_compiler.fidelity import Fidelity
from context_compiler.messages.history import reader_of, searchable
from context_compiler.middleware.again import compile_again, recorded_settings
from context_compiler.record.browse import RequestRow
from context_compiler.record.values import Record, template_name
from context_compiler.resilience import try_await
from context_compiler.template import TemplateLibrary
from context_compiler.tokens import as_counter

TRIALS = 6
"""Number of budgets that are tried to find the smallest one."""

RECALLS = (0.15, 0.3, 0.5, 1.0)
"""Values of `recall` that are tried, in order."""

Keeps = Callable[[int], Awaitable[bool]]
"""True if a view within a budget contains what is wanted."""


async def smallest_budget(keeps: Keeps, low: int, everything: int) -> int | None:
    """Find the smallest budget above `low` that keeps something, within a few per cent; None if there is none.

    Args:
        keeps: Tries a budget.
        low: Budget that does not keep it.
        everything: Tokens of the request with the whole history.
    """
    high = max(low, int(everything / HIGH))  # nothing is cut below that share of it
    if not await keeps(high):
        return None
    for _ in range(TRIALS):
        middle = isqrt(low * high)
        low, high = (low, middle) if await keeps(middle) else (middle, high)
    return high


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """Changes that would have kept a message, or words of it, in a request."""

    message: int
    """Raw position."""
    words: str
    """Words that are to be kept; empty for the whole message."""
    tokens: int
    """Tokens of the message, which a pin adds to every request."""
    budget: int | None
    """Smallest budget that keeps it; None if none does, or if the request has no budget."""
    recall: float | None
    """Smallest `recall`, of those tried, that keeps it within the budget of the request; None if none does."""
    live: bool
    """True for a request of an agent, whose later prompts may bring it back."""

    def __str__(self) -> str:
        """The changes in one sentence."""
        kept = [f"a budget of {self.budget:,}"] if self.budget is not None else []
        kept += [f"recall={self.recall:g} within the same budget"] if self.recall is not None else []
        what = f"{self.words!r} of message {self.message}" if self.words else f"message {self.message}"
        tried = f"Compiled anew, {' or '.join(kept)} keeps {what}." if kept else f"No budget tried keeps {what}."
        again = " With recall, it comes back when a prompt asks for it." if self.live else ""
        return f"{tried} Pinned, it stays in every request, for {self.tokens:,} tokens each.{again}"


async def find_remedy(
    raw: Sequence[ModelMessage],
    row: RequestRow,
    record: Record,
    library: TemplateLibrary,
    position: int,
    words: str = "",
) -> Remedy:
    """Try budgets and values of `recall` on the history of a request. No model is asked, and nothing is recorded.

    Args:
        raw: The history.
        row: The request.
        record: The request as recorded.
        library: Templates; one that is gone is replaced by `extractive`.
        position: Raw position of the message.
        words: Words of it that are to be kept; empty for the whole message.
    """
    try:
        template = library.find(template_name(record))
    except TemplateError:
        template = library.find("extractive")
    named = Fidelity.parse(row.fidelity, where="the record") if row.fidelity and template.name == row.template else None
    fidelity = None if named == template.fidelity else named
    reader = reader_of(as_counter(None))
    wanted = _flat(words or searchable(reader.one(raw[position])))

    async def view_has(budget: int, recall: float | None = None) -> bool:
        view = (
            await try_await(compile_again(raw, record, template, budget=budget, fidelity=fidelity, recall=recall))
        ).value
        texts = [searchable(reader.one(message)) for message in view.messages] if view is not None else []
        return bool(wanted) and wanted in _flat("\n".join(texts))

    budget = recall = None
    if row.budget is not None:
        budget = await smallest_budget(view_has, row.budget, row.tokens_raw)
        for share in (share for share in RECALLS if share > recorded_settings(record)["recall"]):
            if recall is None and await view_has(row.budget, recall=share):
                recall = share
    tokens, live = reader.one(raw[position]).tokens, record.run_id is not None
    return Remedy(message=position, words=words, tokens=tokens, budget=budget, recall=recall, live=live)


def places(messages: Sequence[ModelMessage], words: str) -> tuple[int, ...]:
    """Positions of the messages that contain words, in any case; none for no words."""
    reader, wanted = reader_of(as_counter(None)), _flat(words)
    texts = (_flat(searchable(reader.one(message))) for message in messages)
    return tuple(position for position, text in enumerate(texts) if wanted and wanted in text)


def _flat(text: str) -> str:
    return " ".join(text.split()).casefold()
