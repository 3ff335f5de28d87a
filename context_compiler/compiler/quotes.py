"""The verbatim part: what users, tools and documents said, word for word, in one fence on the user channel.

In this order: what was laid down for good, what was worked on when, the ledger of identifiers, and passages: those
that answer what is asked first, then those that are worth most. Whatever one of them does not need is the next one's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from context_compiler.compiler.ledger import with_ledger
from context_compiler.compiler.plan import Cut
from context_compiler.compiler.view import Quote
from context_compiler.messages.fences import fence
from context_compiler.messages.items import MESSAGE_OVERHEAD
from context_compiler.messages.pins import Pin
from context_compiler.recall import Question, indexed, pending, rank
from context_compiler.recall.outline import phases
from context_compiler.recall.selection import Passage, choose, passages, quoted
from context_compiler.tokens import TokenCounter

QUOTES = "QUOTED FROM EARLIER TURNS"
SMALLEST = 16
"""Below this many tokens a note or a quote says nothing."""

PINNED_WHY = "pinned: a standing instruction"
PINNED = "Standing instructions the user gave earlier:"
PINS = 10
"""Pins may take one part in so many of the room for messages."""
PINNED_MOST = 3
"""And of what there is for everything verbatim: a view also has to answer."""
PINNED_LEAST = 96
"""Tokens that they may take all the same, as long as they leave half: one rule has room in a small view too."""

OUTLINED = "What was worked on when:"
OUTLINE = 20
"""The outline may take one part in so many of what the view may take."""


def cost(text: str, counter: TokenCounter) -> int:
    """What a text takes in a view, in tokens."""
    return counter.text(text) + MESSAGE_OVERHEAD + 1 if text else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sources:
    """What may be quoted."""

    candidates: Sequence[Passage]
    ranks: Sequence[float]
    """How much each candidate answers what is asked now; empty where that does not count."""
    broad: bool
    """What is asked now, or will be asked of this view, may be about the whole."""

    @classmethod
    def of(cls, cut: Cut, loose: Sequence[int], recall: bool) -> _Sources:
        """Everything that these messages say, and what is asked of it."""
        candidates = passages(cut.history, cut.bench.outline, loose, cut.counter) if loose else ()
        question = Question.of(pending(cut.history)) if recall else None
        ranks = rank(indexed(cut.history), question, candidates) if question and candidates else []
        return cls(candidates=candidates, ranks=ranks, broad=cut.lasting or (question is not None and question.broad))


def verbatim(
    cut: Cut, loose: Sequence[int], room: int, *, note: str, lost: bool, recall: bool
) -> tuple[str, tuple[Quote, ...]]:
    """The fenced part and what it holds, at most `room` tokens; empty when nothing fits.

    Args:
        cut: What stays and what is out.
        loose: Positions that no summary covers.
        room: The most tokens.
        note: What stands before it.
        lost: A model has written a summary, and what it lost is listed.
        recall: What answers the pending question comes first.
    """
    counter = cut.counter
    inner = room - cost(fence(QUOTES, "x"), counter)
    sources = _Sources.of(cut, loose if inner > SMALLEST else (), recall)
    while inner > SMALLEST:
        body, held = _body(cut, sources, inner, note, lost)
        if not body:
            return "", ()
        text = fence(QUOTES, body)
        over = cost(text, counter) - room
        if over <= 0:
            return text, held
        inner -= over + 8
    return "", ()


def _body(cut: Cut, sources: _Sources, room: int, note: str, lost: bool) -> tuple[str, tuple[Quote, ...]]:
    """Everything within the fence, and what it is; an instruction that is quoted with its text is not said twice."""
    share = max(room // PINNED_MOST, min(PINNED_LEAST, room // 2))
    pins = _pins(cut, min(share, cut.limits.room // PINS))
    told, held = _told(cut, sources, room, note, lost, pins)
    quoted_too = [pin for pin in pins if any(pin.text in quote.text for quote in held if quote.why != PINNED_WHY)]
    if not quoted_too:
        return told, held
    fewer, again = _told(cut, sources, room, note, lost, [pin for pin in pins if pin not in quoted_too])
    lost_pins = [pin for pin in quoted_too if not any(pin.text in quote.text for quote in again)]
    return (told, held) if lost_pins else (fewer, again)


def _told(
    cut: Cut, sources: _Sources, room: int, note: str, lost: bool, pins: Sequence[Pin]
) -> tuple[str, tuple[Quote, ...]]:
    counter = cut.counter
    pinned = "\n".join([PINNED, *(f"- turn {pin.turn + 1}: {pin.text}" for pin in pins)]) if pins else ""
    left = room - cost(pinned, counter)
    outline = _outlined(cut, min(left, cut.target // OUTLINE)) if sources.broad else ""
    left -= cost(outline, counter)
    chosen: list[Passage] = []

    def quoting(tokens: int) -> str:
        chosen[:] = choose(sources.candidates, tokens, sources.ranks)
        return quoted(chosen)

    told = with_ledger(cut, (note, pinned), left, quoting, lost=lost)
    body = "\n\n".join(block for block in (pinned, outline, told) if block)
    listed = told.removesuffix(quoted(chosen))
    return body, (*_reasons(pins, outline, listed), *_why(chosen, sources))


def _pins(cut: Cut, room: int) -> list[Pin]:
    """The newest pins that fit, oldest first."""
    kept: list[Pin] = []
    left = room - SMALLEST
    for pin in reversed(cut.pinned):
        left -= cut.counter.text(f"- turn {pin.turn + 1}: {pin.text}") + 1
        if left < 0:
            break
        kept.append(pin)
    return kept[::-1]


def _outlined(cut: Cut, room: int) -> str:
    text = phases(cut.history, cut.bench.outline, set(cut.out), room - SMALLEST, cut.counter)
    return f"{OUTLINED}\n{text}" if text else ""


def _reasons(pins: Sequence[Pin], outline: str, listed: str) -> list[Quote]:
    found = [Quote(what=f"turn {pin.turn + 1}", why=PINNED_WHY, text=pin.text) for pin in pins]
    found += [Quote(what=_label(line), why="outline", text=line) for line in outline.splitlines()[1:]]
    return [*found, *(Quote(what=_label(line), why="ledger", text=line) for line in listed.splitlines() if line)]


def _label(line: str) -> str:
    return line.partition("]")[0].partition(" ·")[0].removeprefix("[")


def _why(chosen: Sequence[Passage], sources: _Sources) -> list[Quote]:
    scores = dict(zip(((one.position, one.order) for one in sources.candidates), sources.ranks, strict=False))
    found: list[Quote] = []
    for passage in chosen:
        score = scores.get((passage.position, passage.order), 0.0)
        why = f"recalled, score {score:.2f}" if score > 0 else "worth most for its tokens"
        found.append(Quote(what=f"turn {passage.turn + 1}", why=why, text=passage.text))
    return found
