"""Outline of left-out turns: one line for each phase of the conversation.

A line has the turns and days of the phase, the beginning of its first prompt, and the words that distinguish it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import log, sqrt

from context_compiler.messages.fences import one_line
from context_compiler.messages.history import History
from context_compiler.messages.items import Kind
from context_compiler.messages.prompts import replace_sentence
from context_compiler.messages.turns import Outline
from context_compiler.recall.index import changes_of
from context_compiler.recall.passages import PIECES
from context_compiler.recall.terms import PROSE, STOPS, words
from context_compiler.tokens import TokenCounter

PHASE_LINE = 40
"""Approximate size of a phase in the outline, in tokens."""

FEW = 3
"""Minimum number of phases in an outline and of turns in a phase; number of turns compared on each side of a gap;
minimum number of distinct words in the prompt that a line quotes."""

OPENING = 80
"""Maximum number of characters quoted from the beginning of a phase."""

DISTINCTIVE_WORDS = 5
"""Maximum number of words that distinguish a phase from the others."""

NEW_DAY = 0.25
"""Cosine similarity subtracted at a gap where a new day begins, so that phases tend to end with a day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _UserTurn:
    """User text of one turn."""

    turn: int
    day: str
    opening: str
    words: Counter[str]


def phases(
    history: History,
    outline: Outline,
    out: Collection[int],
    room: int,
    counter: TokenCounter,
    rules: Sequence[str] = (),
) -> str:
    """Outline of the left-out turns, one line for each phase, in at most `room` tokens; empty if there are too few.

    Phases are separated at the gaps where the words of the prompts before and after have least in common (TextTiling;
    Hearst 1997), preferably at the end of a day. The outline answers questions about order, progress and the whole
    conversation, for which ranked passages are not enough.

    Args:
        history: The raw history.
        outline: Its turns.
        out: Positions of the messages that are left out.
        room: Maximum number of tokens.
        counter: Token counter.
        rules: Rules that the view contains anyway; they are left out, as replaced sentences are.
    """
    turns = _user_turns(history, outline, out, rules)
    wanted = min(PIECES, room // PHASE_LINE, len(turns) // FEW)
    gaps = _gaps(turns) if wanted >= FEW else []
    while wanted >= FEW:
        parts = _split_phases(turns, gaps, wanted)
        text = "\n".join(
            _phase_line(part, distinctive) for part, distinctive in zip(parts, _distinctive_words(parts), strict=True)
        )
        if counter.text(text) <= room:
            return text
        wanted -= 1 + wanted // 8
    return ""


def _user_turns(history: History, outline: Outline, out: Collection[int], rules: Sequence[str]) -> list[_UserTurn]:
    user_turns, changes = list[_UserTurn](), changes_of(history)
    for turn in outline.turns:
        if turn.start not in out or turn.index < 0:
            continue
        items = [item for item in history.readings[turn.start].items if item.kind is Kind.USER and item.mark is None]
        text = " ".join(item.text[:PROSE] for item in items)
        for sentence in (*(change.sentence for change in changes.of(turn.start, text)), *rules):
            text = replace_sentence(text, sentence, "")
        own = Counter(word for word in words(text) if _is_distinctive(word))
        day = history.readings[turn.start].day
        user_turns.append(_UserTurn(turn=turn.index, day=day, opening=one_line(text, OPENING), words=own))
    return user_turns


def _is_distinctive(word: str) -> bool:
    """True if a word can distinguish phases; in scripts without spaces, words are pairs of characters."""
    return word not in STOPS and not word.isdigit() and (len(word) > 2 or not word.isascii())


def _gaps(turns: Sequence[_UserTurn]) -> list[int]:
    """Positions at which a phase may begin, least cohesion first; ties to the earlier one."""

    def depth(index: int) -> float:
        before, after = turns[max(0, index - FEW) : index], turns[index : index + FEW]
        return _cohesion(before, after) - NEW_DAY * (turns[index].day != turns[index - 1].day)

    return sorted(range(FEW, len(turns) - FEW + 1), key=depth)


def _split_phases(turns: Sequence[_UserTurn], gaps: Sequence[int], wanted: int) -> list[Sequence[_UserTurn]]:
    """Split turns into at most `wanted` phases of at least `FEW` turns each."""
    cuts: list[int] = []
    for index in gaps:
        if len(cuts) + 1 == wanted:
            break
        if all(abs(index - other) >= FEW for other in cuts):
            cuts.append(index)
    edges = [0, *sorted(cuts), len(turns)]
    return [turns[start:stop] for start, stop in zip(edges, edges[1:], strict=False)]


def _cohesion(before: Sequence[_UserTurn], after: Sequence[_UserTurn]) -> float:
    """Cosine similarity of the word counts of two groups of turns."""
    earlier, other = _word_counts(before), _word_counts(after)
    both = sum(times * other[word] for word, times in earlier.items())
    sizes = sqrt(sum(times * times for times in earlier.values()) * sum(times * times for times in other.values()))
    return both / sizes if sizes else 0.0


def _word_counts(part: Sequence[_UserTurn]) -> Counter[str]:
    words = Counter[str]()
    for turn in part:
        words.update(turn.words)
    return words


def _distinctive_words(parts: Sequence[Sequence[_UserTurn]]) -> list[list[str]]:
    """Words of several prompts of a phase that are most typical of it, best first; ties in alphabetical order.

    They are those that contribute most to the Kullback-Leibler divergence of its prompts from all prompts.
    """
    spoken = [Counter(word for turn in part for word in turn.words) for part in parts]
    everywhere, size = sum(spoken, Counter[str]()), sum(map(len, parts))
    by_phase: list[list[str]] = []
    for part, counts in zip(parts, spoken, strict=True):
        weights = {
            word: prompts * log(prompts * size / (len(part) * everywhere[word]))
            for word, prompts in counts.items()
            if prompts > 1
        }
        best = sorted((word for word in weights if weights[word] > 0), key=lambda word: (-weights[word], word))
        by_phase.append(best[:DISTINCTIVE_WORDS])
    return by_phase


def _phase_line(part: Sequence[_UserTurn], distinctive: Sequence[str]) -> str:
    first, last = part[0], part[-1]
    turns = f"turns {first.turn + 1}-{last.turn + 1}" if last is not first else f"turn {first.turn + 1}"
    days = f"{first.day} to {last.day}" if first.day != last.day else first.day
    label = " · ".join(filter(None, (turns, days)))
    about = f" ({', '.join(distinctive)})" if distinctive else ""
    opening = next((turn for turn in part if len(turn.words) >= FEW), first).opening
    return f"[{label}] {opening}{about}"
