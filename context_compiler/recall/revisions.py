"""Passages that a later message revises: they are marked, and what revises them comes with them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from context_compiler.messages.history import History
from context_compiler.messages.turns import Outline
from context_compiler.recall.index import changes_of
from context_compiler.recall.passages import Passage
from context_compiler.tokens import TokenCounter

Place = tuple[int, int]


def mark_changes(
    history: History,
    outline: Outline,
    ranked: Sequence[tuple[Passage, float]],
    counter: TokenCounter,
    *,
    until: int | None = None,
    quote: Callable[[int], Iterable[Passage]] = lambda _: (),
) -> tuple[list[tuple[Passage, float]], dict[Place, Place]]:
    """Mark passages that a later message revises, and add the passages that revise them.

    A revising passage gets at least the score of the passage that it revises, and precedes it in the list.

    Args:
        history: The raw history.
        outline: Its turns.
        ranked: Passages with their scores; above 0 if they answer.
        counter: Prices the marks.
        until: Position of the prompt that asks; later revisions are ignored. None for the end of the history.
        quote: Returns the passages of a message that may be added; by default none.

    Returns:
        The passages with their scores, and the place of the revising passage by the place of the revised one.
    """
    changes, until = changes_of(history), len(history) if until is None else until
    if not any(other.position in changes.later for other, _ in ranked):
        return [*ranked], {}
    newer: dict[Place, Place] = {}
    marked: dict[Place, tuple[Passage, float]] = {}
    for passage, score in ranked:
        own = changes.of(passage.position, passage.text, until)
        if own:
            newest = max(own, key=lambda other: other.at)
            position, text = newest.at, newest.later
            turn = outline.turns[bisect_right(outline.starts, position) - 1].index
            price = counter.text(f", changed at turn {turn + 1}") + 1
            passage = replace(
                passage,
                changed=turn,
                outdated=tuple(other.sentence for other in own),
                tokens=passage.tokens + price,
                label=passage.label + price,
            )
            change = next((other for other, _ in ranked if other.position == position and text in other.text), None)
            change = change or next((other for other in quote(position) if text in other.text), None)
            if change is not None:
                newer[passage.place] = change.place
                kept, best = marked.get(change.place, (change, score))
                marked[change.place] = kept, max(best, score)
        if passage.place not in marked or own:
            marked[passage.place] = passage, max(score, marked.get(passage.place, (passage, score))[1])
    return [*marked.values()], newer
