"""Outline of a long history: one line a phase, in chronological order.

A phase ends where the talk turns to other words, at the deepest gaps in lexical cohesion between what users said
before and after (TextTiling; Hearst 1997), and rather where a day ends than within one. Questions about order,
progress and the whole have this to stand on, which no ranking of passages gives them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import log, sqrt

from context_compiler.messages.fences import one_line
from context_compiler.messages.history import History
from context_compiler.messages.items import Kind
from context_compiler.messages.turns import Outline
from context_compiler.recall.terms import STOPS, words
from context_compiler.tokens import TokenCounter

LINE = 40
"""Tokens that a phase takes, about."""

LEAST, MOST = 3, 24
"""Phases; fewer say nothing, more are no outline."""

TURNS = 3
"""Minimum turns of a phase, and turns compared on each side of a gap."""

SCANNED = 2_000
"""Characters of what a user said that are looked at."""

OPENING = 80
"""Characters of how a phase began."""

WORDS = 5
"""Words that tell a phase from the others."""

NEW_DAY = 0.25
"""Depth added to a gap by a change of day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _UserTurn:
    """User text of one turn."""

    turn: int
    day: str
    opening: str
    words: Counter[str]


def phases(history: History, outline: Outline, out: Collection[int], room: int, counter: TokenCounter) -> str:
    """One line a phase of what is out, together at most `room` tokens; empty where there is too little of either.

    Args:
        history: The raw history.
        outline: Its turns.
        out: Positions of the messages that are left out.
        room: The most tokens.
        counter: What prices the lines.
    """
    turns = _turns(history, outline, out)
    wanted = min(MOST, room // LINE, len(turns) // TURNS)
    gaps = _gaps(turns) if wanted >= LEAST else []
    while wanted >= LEAST:
        parts = _split(turns, gaps, wanted)
        text = "\n".join(_line(part, telling) for part, telling in zip(parts, _telling(parts), strict=True))
        if counter.text(text) <= room:
            return text
        wanted -= 1 + wanted // 8
    return ""


def _turns(history: History, outline: Outline, out: Collection[int]) -> list[_UserTurn]:
    found: list[_UserTurn] = []
    for turn in outline.turns:
        if turn.start not in out or turn.index < 0:
            continue
        items = [item for item in history.readings[turn.start].items if item.kind is Kind.USER and item.mark is None]
        text = " ".join(item.text[:SCANNED] for item in items)
        own = Counter(word for word in words(text) if _tells(word))
        day = history.readings[turn.start].day
        found.append(_UserTurn(turn=turn.index, day=day, opening=one_line(text, OPENING), words=own))
    return found


def _tells(word: str) -> bool:
    """True if a word can tell one phase from another; in scripts without spaces, words are pairs of characters."""
    return word not in STOPS and not word.isdigit() and (len(word) > 2 or not word.isascii())


def _gaps(turns: Sequence[_UserTurn]) -> list[int]:
    """Possible beginnings of a phase, deepest gap first, ties to the earlier."""
    depths = [
        (_cohesion(turns[max(0, at - TURNS) : at], turns[at : at + TURNS]) - NEW_DAY * _new_day(turns, at), at)
        for at in range(TURNS, len(turns) - TURNS + 1)
    ]
    return [at for _, at in sorted(depths)]


def _split(turns: Sequence[_UserTurn], gaps: Sequence[int], wanted: int) -> list[Sequence[_UserTurn]]:
    """As many phases as wanted, where they can have their least length."""
    cuts: list[int] = []
    for at in gaps:
        if len(cuts) + 1 == wanted:
            break
        if all(abs(at - other) >= TURNS for other in cuts):
            cuts.append(at)
    edges = [0, *sorted(cuts), len(turns)]
    return [turns[start:stop] for start, stop in zip(edges, edges[1:], strict=False)]


def _new_day(turns: Sequence[_UserTurn], at: int) -> bool:
    return turns[at].day != turns[at - 1].day


def _cohesion(before: Sequence[_UserTurn], after: Sequence[_UserTurn]) -> float:
    """Cosine similarity of the word counts of two stretches."""
    one, other = _together(before), _together(after)
    both = sum(times * other[word] for word, times in one.items())
    sizes = sqrt(sum(times * times for times in one.values()) * sum(times * times for times in other.values()))
    return both / sizes if sizes else 0.0


def _together(part: Sequence[_UserTurn]) -> Counter[str]:
    words = Counter[str]()
    for one in part:
        words.update(one.words)
    return words


def _telling(parts: Sequence[Sequence[_UserTurn]]) -> list[list[str]]:
    """The words of each phase that tell it from the others, most telling first (tf-idf; ties in alphabetic order)."""
    counts = [_together(part) for part in parts]
    spread = Counter(word for count in counts for word in count)
    found: list[list[str]] = []
    for count in counts:
        weights = {word: times * log((1 + len(parts)) / spread[word]) for word, times in count.items()}
        best = sorted((word for word in weights if weights[word] > 0), key=lambda word: (-weights[word], word))
        found.append(best[:WORDS])
    return found


def _line(part: Sequence[_UserTurn], telling: Sequence[str]) -> str:
    first, last = part[0], part[-1]
    turns = f"turns {first.turn + 1}-{last.turn + 1}" if last is not first else f"turn {first.turn + 1}"
    days = f"{first.day} to {last.day}" if first.day != last.day else first.day
    label = " · ".join(filter(None, (turns, days)))
    about = f" ({', '.join(telling)})" if telling else ""
    return f"[{label}] {first.opening}{about}"
