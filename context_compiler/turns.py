"""A history falls into turns, a turn into groups, and a group is in, out, or rendered whole: never half.

A cut is safe where every rule in `RULES` tolerates it; what lies between two safe cuts is a group. A call
that is answered in a later turn (deferred tools, approvals) ties the two messages together across any
distance instead of making one giant group of all between.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from context_compiler.history import History
from context_compiler.items import Kind


NEAR = 8
"""How many messages back the run before a prompt is looked for; hosts stamp nearly every message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """Which message answers which, and what has no partner."""

    pairs: tuple[tuple[int, int], ...]
    """Position of a call, position of its answer."""
    broken: Mapping[int, frozenset[int]]
    """Parts without a partner, by position of their message: orphaned and duplicated answers, unanswered calls,
    and thinking that signs nothing else."""
    length: int
    tip: str | None
    """How much of which history was paired."""
    waiting: bool
    """Some call has no answer yet, or never will."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Messages `start` to before `stop`, which stay together."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """From a user prompt to just before the next."""

    index: int
    """0-based ordinal among user turns; -1 for what stands before the first prompt."""
    start: int
    stop: int
    groups: tuple[Group, ...]
    """In order; the first is the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """A history as turns, with the ties that cross them."""

    turns: tuple[Turn, ...]
    ties: tuple[tuple[int, int], ...]

    @property
    def active(self) -> Turn:
        """The turn that the next answer belongs to."""
        return self.turns[-1]


def pair(history: History, before: Pairing | None = None) -> Pairing:
    """Pair calls with answers by id, in order, across any distance; an id may be used again once answered.

    `before` is the pairing of a history that this one may continue; only what is new is then looked at.
    """
    if before is None or before.waiting or not continues(history, before):
        before = Pairing(pairs=(), broken={}, length=0, tip=None, waiting=False)
    calls: defaultdict[tuple[str, bool], deque[tuple[int, int]]] = defaultdict(deque)
    pairs = list(before.pairs)
    broken: defaultdict[int, set[int]] = defaultdict(set)
    for index, reading in enumerate(history.readings[before.length :], before.length):
        if not reading.exchanges:
            continue
        for position, item in enumerate(reading.items):
            if item.call_id is None:
                continue
            waiting = calls[item.call_id, item.native]
            if item.kind is Kind.CALL:
                waiting.append((index, position))
            elif waiting:
                pairs.append((waiting.popleft()[0], index))
            else:
                broken[index].add(position)
    left = [place for waiting in calls.values() for place in waiting]
    for index, position in left:
        if index < len(history) - 1:
            broken[index].add(position)
    found = {index: _unsigned(history, index, parts) for index, parts in broken.items()}
    return Pairing(
        pairs=tuple(pairs),
        broken={**before.broken, **found},
        length=len(history),
        tip=history.tip,
        waiting=bool(left),
    )


def continues(history: History, before: Pairing) -> bool:
    """Whether a history begins with the one that was paired before."""
    return 0 < before.length <= len(history) and history.ids[before.length - 1] == before.tip


def _unsigned(history: History, index: int, parts: set[int]) -> frozenset[int]:
    """Broken parts, with the thinking beside them when nothing else is left for it to sign."""
    items = history.readings[index].items
    rest = [position for position in range(len(items)) if position not in parts]
    if all(items[position].kind is Kind.THINKING for position in rest):
        return frozenset(range(len(items)))
    return frozenset(parts)


def turn_starts(history: History) -> list[int]:
    """Where turns begin; 0 is always among them.

    A request with a user prompt begins one, unless it belongs to the run before it or only carries what a
    tool returned beside its result.
    """
    readings = history.readings
    starts = [0]
    for index in [index for index, reading in enumerate(readings) if reading.prompts and index]:
        own = readings[index].run_id
        before = readings[max(0, index - NEAR) : index] if own is not None else ()
        joins = own is not None and own == next((one.run_id for one in reversed(before) if one.run_id), None)
        if not joins and not (readings[index].answers and own is None):
            starts.append(index)
    return starts


def turn_index(history: History) -> int:
    """The 0-based ordinal of the active user turn."""
    starts = turn_starts(history)
    return max(0, len(starts) - 1 if history.readings and history.readings[0].prompts else len(starts) - 2)


Rule = Callable[[History, Pairing, list[int]], Iterable[int]]
"""The cuts that a rule does not tolerate."""


def keeps_pairs(history: History, pairing: Pairing, starts: list[int]) -> Iterable[int]:
    """A call and its answer in the same turn stay on the same side."""
    for call, answer in pairing.pairs:
        if bisect_right(starts, call) == bisect_right(starts, answer):
            yield from range(call + 1, answer + 1)


def keeps_continuations(history: History, pairing: Pairing, starts: list[int]) -> Iterable[int]:
    """A request that nobody prompted (results, retries) stays with the response it reacts to."""
    for index in range(1, len(history)):
        reading = history.readings[index]
        if reading.request and not reading.prompts and not history.readings[index - 1].request:
            yield index


def keeps_one_voice(history: History, pairing: Pairing, starts: list[int]) -> Iterable[int]:
    """Two responses in a row are one message to a provider, and stay together."""
    for index in range(1, len(history)):
        if not history.readings[index].request and not history.readings[index - 1].request:
            yield index


RULES: tuple[Rule, ...] = (keeps_pairs, keeps_continuations, keeps_one_voice)


def cut_points(history: History, pairing: Pairing, starts: list[int]) -> frozenset[int]:
    """Every position where it is safe to cut: all rules tolerate it; 0 is always among them."""
    everywhere = frozenset(range(len(history)))
    return frozenset.intersection(everywhere, *(everywhere - set(rule(history, pairing, starts)) for rule in RULES)) | {
        0
    }


def outline(history: History, pairing: Pairing) -> Outline:
    """A history as turns and groups. An empty history has no turns."""
    if not len(history):
        return Outline(turns=(), ties=())
    starts = turn_starts(history)
    cuts = sorted(cut_points(history, pairing, starts) | set(starts))
    edges = [*starts, len(history)]
    turns: list[Turn] = []
    at = 0
    ordinal = -1
    for start, stop in zip(edges, edges[1:], strict=False):
        inner: list[int] = []
        while at < len(cuts) and cuts[at] < stop:
            inner.append(cuts[at])
            at += 1
        ordinal += 1 if start or history.readings[start].prompts else 0
        groups = tuple(Group(start=a, stop=b) for a, b in zip(inner, [*inner[1:], stop], strict=True))
        turns.append(Turn(index=ordinal, start=start, stop=stop, groups=groups))
    ties = tuple(
        (call, answer) for call, answer in pairing.pairs if bisect_right(starts, call) != bisect_right(starts, answer)
    )
    return Outline(turns=tuple(turns), ties=ties)


def closed(out: set[int], ties: Iterable[tuple[int, int]]) -> set[int]:
    """The largest part of `out` that splits no tie: a message whose partner stays, stays."""
    left = set(out)
    changed = True
    while changed:
        changed = False
        for call, answer in ties:
            if (call in left) != (answer in left):
                left -= {call, answer}
                changed = True
    return left
