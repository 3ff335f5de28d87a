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
from context_compiler.recall import Question
from context_compiler.recall.question import pending_question
from context_compiler.recall.terms import passage_terms
from context_compiler.record.browse import RequestRow
from context_compiler.record.values import Record, template_name
from context_compiler.resilience import try_await
from context_compiler.settings import Amount
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
    """Smallest larger `recall`, of those tried, that keeps it within the budget of the request; None if none does."""
    live: bool
    """True for a request of an agent."""
    whole: int
    """Tokens of the request with the whole history."""
    had_recall: Amount
    """`recall` of the request; 0 if it was off."""
    asked: bool
    """True if the prompt shares a word with the message, which recall needs to find it."""
    pinned: bool = False
    """True if the message has been pinned since."""

    def __str__(self) -> str:
        """The changes in a few sentences."""
        return " ".join(filter(None, (self._kept, self._tried, self._recalled)))

    @property
    def _tried(self) -> str:
        above = f", more than the whole history ({self.whole:,})," if (self.budget or 0) > self.whole else ""
        ways = [f"a budget of {self.budget:,}{above}"] if self.budget is not None else []
        ways += [f"recall={self.recall:g}"] if self.recall is not None else []
        wanted = f"{self.words!r} of message {self.message}" if self.words else f"message {self.message}"
        view = "An agent" if self.live else "A view"
        if not ways:
            return f"No budget tried keeps {wanted}."
        others = "; another budget may cut elsewhere" if self.budget is not None and self.live else ""
        return f"{view} with {' or '.join(ways)} would have kept {wanted}{others}."

    @property
    def _recalled(self) -> str:
        if not self.live:
            return ""
        if not self.had_recall:
            return "Recall was off, so that no prompt could bring it back."
        was = f"Recall was on ({self.had_recall:g})"
        if self.asked:
            return f"{was}, and the prompt shares words with it, but others fit the prompt better or took the room."
        return f"{was}, but the prompt shares no word with it; recall finds such a message only by those around it."

    @property
    def _kept(self) -> str:
        if self.pinned:
            return "It is pinned now: every request from the next run on has it."
        return f"Pin it ({self.tokens:,} tokens in every request), or phrase it as a rule ('never …'), and it stays."


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
        made = compile_again(raw, record, template, budget=budget, fidelity=fidelity, recall=recall)
        view = (await try_await(made)).value
        texts = [searchable(reader.one(message)) for message in view.messages] if view is not None else []
        return bool(wanted) and wanted in _flat("\n".join(texts))

    had_recall = 0 if named is Fidelity.TRUNCATE else recorded_settings(record)["recall"]
    question, message = pending_question(reader.read(raw), reader.counter), reader.one(raw[position])
    terms = Question.of(question.text).terms if question is not None else frozenset[str]()
    asked = not terms.isdisjoint(passage_terms(searchable(message)))
    budget = recall = None
    if row.budget is not None:
        budget = await smallest_budget(view_has, row.budget, row.tokens_raw)
        for share in RECALLS:
            if recall is None and asked and share > had_recall and await view_has(row.budget, recall=share):
                recall = share
    return Remedy(
        message=position,
        words=words,
        tokens=message.tokens,
        budget=budget,
        recall=recall,
        live=record.run_id is not None,
        whole=row.tokens_raw,
        had_recall=had_recall,
        asked=asked,
    )


def places(messages: Sequence[ModelMessage], words: str) -> tuple[int, ...]:
    """Positions of the messages that contain words, in any case; none for no words."""
    reader, wanted = reader_of(as_counter(None)), _flat(words)
    texts = (_flat(searchable(reader.one(message))) for message in messages)
    return tuple(position for position, text in enumerate(texts) if wanted and wanted in text)


def _flat(text: str) -> str:
    return " ".join(text.split()).casefold()
