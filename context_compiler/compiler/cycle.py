"""The frozen state between two compiles: the messages that a view keeps, their shapes, and the text before them.

A view then only grows at its end, so that a provider's prompt cache keeps hitting. A `Cycle` decides on a
prefix of the raw history; it holds for every history that begins with that prefix, whoever sends it: an
edited prompt, a fork, or a history that was built by hand and carries no ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import NoneType
from typing import Any

from context_compiler.messages.history import History
from context_compiler.messages.shapes import WHOLE, Shape
from context_compiler.messages.turns import Pairing, paired_with

Span = tuple[int, int]
"""Positions `start` to before `stop`."""


DAMAGED = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""Errors raised by text that is damaged, or that another version wrote."""

TYPES: Mapping[str, tuple[type, ...]] = {
    "int": (int,),
    "str": (str,),
    "bool": (bool,),
    "float": (int, float),
    "int | None": (int, NoneType),
}
"""Types that a field may hold, by its annotation; other fields are not checked."""


def well_typed(value: Any) -> bool:
    """True if the plain fields of a dataclass hold values of their types; stored text may be damaged."""
    return all(isinstance(getattr(value, one.name), TYPES.get(str(one.type), object)) for one in fields(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """The state of one cycle. Positions are those of the raw history."""

    decided: int
    """Leading messages that this decides on; all later ones are whole."""
    tip: str
    """The chain id of the last of them; empty when there are none."""
    kept: tuple[tuple[int, Shape], ...]
    """Positions of those that stay, in order, with their shapes; the rest is left out."""
    note: str
    """The summary part as sent, prefix included; empty where there is none."""
    quotes: str
    """The fenced verbatim part as sent; empty where there is none."""
    channel: str
    """Channel of the summary: user, system or compaction."""
    summary: str
    """Summary of the last model compile, to be updated by the next."""
    summary_id: int | None
    """Its row on the record."""
    covered: tuple[Span, ...]
    """Spans that the summary covers."""
    compiled_turn: int
    """The user turn of the last model compile that was tried; -1 before the first."""
    turn: int
    """The user turn in which this cycle began."""
    tight: float
    """Share of the budget left after a provider refused a request."""
    ratio: float
    """The model's learnt ratio, frozen so that bytes that did not change cannot drift over the budget."""
    config: str
    """Names template, fidelity, model family and whatever else decides how a view is written."""
    own: bool = False
    """The note is the body of a template that asks no model."""
    tools: bool = False
    """The session was mostly tool work when the cycle began."""
    loops: bool = False
    """Its turns took several requests each."""
    why: tuple[tuple[int, int, str], ...] = ()
    """Reasons for what is left out or shortened: `start`, to before `stop`, reason."""
    lead: int = 0
    """Kept messages before this position stand before the summary: what is summarised came after them."""

    def to_json(self) -> str:
        """As JSON text."""
        data: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        data["kept"] = [[start, stop, _encoded(shape)] for start, stop, shape in _runs(self.kept)]
        return json.dumps(data, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Cycle | None:
        """Back from JSON text; None when another version wrote something this one cannot read."""
        try:
            data = json.loads(text)
            data["kept"] = tuple(
                (index, shape)
                for start, stop, coded in data["kept"]
                for shape in (_decoded(coded),)
                for index in range(start, stop)
            )
            data["covered"] = tuple((int(a), int(b)) for a, b in data["covered"])
            data.pop("blocks", None)  # of schema 3, where recall blocks were a part of the cycle
            data["why"] = tuple((int(a), int(b), str(reason)) for a, b, reason in data.get("why", ()))
            found = cls(**data)
        except DAMAGED:
            return None
        shapes = [shape for at, shape in found.kept if 0 <= at < found.decided]
        return found if len(shapes) == len(found.kept) and all(map(well_typed, (found, *shapes))) else None


RAW = Cycle(
    decided=0,
    tip="",
    kept=(),
    note="",
    quotes="",
    channel="user",
    summary="",
    summary_id=None,
    covered=(),
    compiled_turn=-1,
    turn=-1,
    tight=1.0,
    ratio=1.0,
    config="",
)
"""The state before any cycle: everything stands."""

SETS = ("skip", "without")
"""Fields of a shape that JSON knows only as lists."""


def _encoded(shape: Shape) -> dict[str, Any]:
    """Fields of a shape that differ from those of a whole message."""
    values = {field.name: getattr(shape, field.name) for field in fields(shape)}
    return {
        name: sorted(value) if name in SETS else value
        for name, value in values.items()
        if value != getattr(WHOLE, name)
    }


def _decoded(data: Mapping[str, Any]) -> Shape:
    values: dict[str, Any] = {name: frozenset(value) if name in SETS else value for name, value in data.items()}
    return Shape(**values)


def _runs(kept: Sequence[tuple[int, Shape]]) -> list[tuple[int, int, Shape]]:
    """Neighbours with the same shape as one run: start, stop, shape."""
    runs: list[tuple[int, int, Shape]] = []
    for index, shape in kept:
        if runs and runs[-1][1] == index and runs[-1][2] == shape:
            runs[-1] = (runs[-1][0], index + 1, shape)
        else:
            runs.append((index, index + 1, shape))
    return runs


def spans(positions: Iterable[int]) -> tuple[Span, ...]:
    """Sorted positions as runs."""
    found: list[Span] = []
    for index in positions:
        if found and found[-1][1] == index:
            found[-1] = (found[-1][0], index + 1)
        else:
            found.append((index, index + 1))
    return tuple(found)


def positions(given: Iterable[Span]) -> set[int]:
    """The reverse of `spans`."""
    return {index for start, stop in given for index in range(start, stop)}


def begins(history: History, decided: int, tip: str) -> bool:
    """True if the first `decided` messages of a history are those that `tip` names."""
    if not 0 < decided <= len(history):
        return False
    return tip in (history.ids[decided - 1], *(split.first for split in history.splits(decided - 1)))


def fitting(cycle: Cycle | None, history: History, config: str) -> Cycle | None:
    """A cycle, if it was made for a prefix of this history and for this way of writing views."""
    if cycle is None or cycle.config != config:
        return None
    last = cycle.decided - 1
    if 0 <= last < len(history):
        if history.ids[last] == cycle.tip:
            return cycle
        for split in history.splits(last):
            if split.first == cycle.tip:
                return _joined(cycle, history, last, split.count)
    joined = history.joined_at(last - 1, cycle.tip) if 0 < last <= len(history) else None
    return _joined(cycle, history, *joined) if joined is not None else None


def _joined(cycle: Cycle, history: History, at: int, count: int) -> Cycle:
    """The cycle where the host has put message `at`, of `count` parts, and the next into one; later ones have moved up.

    What follows the message on which the cycle decides last was sent whole.
    """
    kept, covered = dict(cycle.kept), positions(cycle.covered)
    decided = max(at + 1, cycle.decided - 1)
    both = (kept.pop(at, None), kept.pop(at + 1, None) if cycle.decided > at + 1 else WHOLE)
    moved = {index - (index > at): shape for index, shape in kept.items()}
    shape = _joined_shape(*both, history, at, count)
    if shape is not None:
        moved[at] = shape
    told = covered & {at, at + 1}
    return replace(
        cycle,
        decided=decided,
        tip=history.ids[decided - 1],
        kept=tuple(sorted(moved.items(), key=lambda one: one[0])),
        covered=spans(sorted({index - (index > at) for index in covered - told} | ({at} if len(told) > 1 else set()))),
        why=tuple((start - (start > at), stop - (stop - 1 > at), reason) for start, stop, reason in cycle.why),
        lead=cycle.lead - (cycle.lead > at + 1),
    )


def _joined_shape(answers: Shape | None, prompt: Shape | None, history: History, at: int, count: int) -> Shape | None:
    """The shape of a message that was two: `count` results of calls, and what came after them."""
    reading = history.readings[at]
    first, rest = answers or Shape(bare=True), prompt or Shape(bare=True)
    skip = first.skip | {part + count for part in rest.skip}
    for half, parts in ((first, range(count)), (rest, range(count, len(reading.items)))):
        if half.bare:
            skip |= {part for part in parts if not reading.items[part].stays}
    if len(skip) == len(reading.items):
        return None
    cut = first.limit is not None or rest.limit is not None
    return Shape(
        skip=frozenset(skip),
        without=first.without | rest.without,
        limit=first.limit if first.limit is not None or not cut else reading.tokens,
        prompt=(rest.limit if rest.prompt is None else rest.prompt) or (reading.tokens if cut else None),
        system=rest.system,
        skeleton=first.skeleton,
        bare=first.bare and rest.bare,
        ref=first.ref or rest.ref,
        tools=first.tools,
    )


def mended(cycle: Cycle, pairing: Pairing, base: Mapping[int, Shape]) -> Cycle:
    """The cycle with every call back in place whose answer arrived after it was left out, and all answers beside it.

    A deferred call may be answered turns later; the pair then stands together, which moves the prefix once.
    """
    late = {call for call, answer in pairing.pairs if call < cycle.decided <= answer}
    if not late:
        return cycle
    kept = dict(cycle.kept)
    for index in paired_with(late, pairing):
        shape = kept.get(index)
        if index < cycle.decided and (shape is None or shape.bare or shape.skip or shape.tools != "paired"):
            kept[index] = base.get(index, WHOLE)
    return (
        cycle if kept == dict(cycle.kept) else replace(cycle, kept=tuple(sorted(kept.items(), key=lambda one: one[0])))
    )
