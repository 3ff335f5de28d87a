"""The frozen state of views: what a cycle decided, and the recall blocks of a user turn.

During a cycle a view only grows at its end, so that the provider's prompt cache keeps hitting. A `Cycle` decides on a
prefix of the raw history: which of its messages a view keeps, in which shapes, and the text before them. It is valid
for every history that begins with that prefix, such as a fork, a history with an edited last prompt, or one built by
hand without ids; if a later message revises what its texts quote, only for those that contain that message. `Blocks`
are the texts recalled for the prompts of a turn, which stay the same while the turn lasts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Set
from dataclasses import astuple, dataclass, fields, replace
from types import NoneType
from typing import Any, TypeVar

from context_compiler.messages.history import History
from context_compiler.messages.items import MESSAGE_OVERHEAD, Kind
from context_compiler.messages.shapes import WHOLE, Shape
from context_compiler.messages.spans import Span, positions, spans
from context_compiler.messages.turns import Pairing, paired_with
from context_compiler.tokens import TokenCounter

T = TypeVar("T")

DAMAGED = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""Errors raised when stored text is damaged or was written by an incompatible version."""

TYPES: Mapping[str, tuple[type, ...]] = {
    "int": (int,),
    "str": (str,),
    "bool": (bool,),
    "float": (int, float),
    "int | None": (int, NoneType),
}
"""Types allowed for a field, by its annotation; fields with other annotations are not checked."""


def well_typed(value: Any) -> bool:
    """True if the plain fields of a dataclass have values of their types, as those from damaged text may not."""
    return all(isinstance(getattr(value, entry.name), TYPES.get(str(entry.type), object)) for entry in fields(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """The state of one cycle. Positions are those of the raw history."""

    decided: int
    """Number of leading messages on which this cycle decides; all later ones are whole."""
    tip: str
    """Chain id of the last of these messages; empty if there are none."""
    kept: tuple[tuple[int, Shape], ...]
    """Positions of the messages that stay, in order, with their shapes; the others are left out."""
    note: str
    """Summary part as sent, including its prefix; empty if there is none."""
    quotes: str
    """Fenced verbatim part as sent; empty if there is none."""
    channel: str
    """Channel of the summary: user, system or compaction."""
    summary: str
    """Summary of the last model compile, which the next one updates."""
    summary_id: int | None
    """Row of that compile in the record; None if it is not stored."""
    covered: tuple[Span, ...]
    """Spans that the summary covers."""
    compiled_turn: int
    """User turn of the last attempted model compile; -1 before the first."""
    turn: int
    """User turn in which this cycle began."""
    tight: float
    """Fraction of the budget in use; below 1 after a provider refused a request as too long."""
    ratio: float
    """Learned ratio of the model's tokens to ours, frozen so that an unchanged view cannot drift over the budget."""
    config: str
    """Hash of template, fidelity, model family and everything else that decides how a view is written."""
    own: bool = False
    """True if the note is the body of a template that asks no model."""
    tool_work: bool = False
    """True if the session was tool work when the cycle began."""
    why: tuple[tuple[int, int, str], ...] = ()
    """Reasons why messages are left out or shortened, as `(start, stop, reason)`."""
    lead: int = 0
    """Kept messages before this position precede the summary, because the summarized messages came after them."""
    rules: tuple[str, ...] = ()
    """Rules that the view lists, in order."""
    at: int | None = None
    """Position from which prompts belonged to the turn in which it began; None if unknown."""
    size: int = 0
    """Exact tokens of the messages that it keeps, with note and quotes, when it began."""
    revised_by: str = ""
    """Chain id of the newest message after the prefix that revises an earlier one; empty if there is none."""

    @property
    def needs(self) -> str:
        """Chain id of the newest message that a history must contain for the cycle to be valid."""
        return self.revised_by or self.tip

    def to_json(self) -> str:
        """Serialize to JSON."""
        data: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        data["kept"] = [[start, stop, _encoded(shape)] for start, stop, shape in runs(self.kept)]
        return json.dumps(data, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Cycle | None:
        """Parse from JSON; None if it is damaged or was written by an incompatible version."""
        try:
            data = json.loads(text)
            data["kept"] = tuple(
                (index, shape)
                for start, stop, coded in data["kept"]
                for shape in (_decoded(coded),)
                for index in range(start, stop)
            )
            data["covered"] = tuple((int(a), int(b)) for a, b in data["covered"])
            data["why"] = tuple((int(a), int(b), str(reason)) for a, b, reason in data["why"])
            data["rules"] = tuple(map(str, data["rules"]))
            cycle = cls(**data)
        except DAMAGED:
            return None
        shapes = [shape for position, shape in cycle.kept if 0 <= position < cycle.decided]
        return cycle if len(shapes) == len(cycle.kept) and all(map(well_typed, (cycle, *shapes))) else None


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
"""State before the first cycle: all messages are sent whole."""

SETS = ("skip", "without")
"""Fields of a shape that are sets, which JSON stores as lists."""


def _encoded(shape: Shape) -> dict[str, Any]:
    """Encode the fields of a shape that differ from those of a whole message."""
    values = ((field.name, getattr(shape, field.name)) for field in fields(shape))
    changed = {name: value for name, value in values if value != getattr(WHOLE, name)}
    return {name: sorted(value) if name in SETS else value for name, value in changed.items()}


def _decoded(data: Mapping[str, Any]) -> Shape:
    values: dict[str, Any] = {name: frozenset(value) if name in SETS else value for name, value in data.items()}
    return Shape(**values)


def runs(values: Iterable[tuple[int, T]]) -> list[tuple[int, int, T]]:
    """Group adjacent positions with the same value, as `(start, stop, value)`."""
    groups: list[tuple[int, int, T]] = []
    for index, value in values:
        if groups and groups[-1][1] == index and groups[-1][2] == value:
            groups[-1] = (groups[-1][0], index + 1, value)
        else:
            groups.append((index, index + 1, value))
    return groups


def begins(history: History, decided: int, tip: str) -> bool:
    """True if the first `decided` messages of a history are those identified by `tip`."""
    if not 0 < decided <= len(history):
        return False
    return tip in (history.ids[decided - 1], *(split.first for split in history.splits(decided - 1)))


def valid_cycle(cycle: Cycle | None, history: History, config: str) -> Cycle | None:
    """Return the cycle if it is valid for this history and configuration, else None.

    If the host has merged two of its messages, its positions are adjusted.
    """
    if cycle is None or cycle.config != config or not _has_revision(cycle, history):
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


def _has_revision(cycle: Cycle, history: History) -> bool:
    """True if the history contains the message that revises what the cycle quotes; it may have been merged since.

    A run that failed takes its prompt away again. Quotes that call a value outdated because of it would be wrong.
    """
    later = history.ids[max(0, cycle.decided - 1) :]
    return not cycle.revised_by or cycle.revised_by in later or cycle.revised_by in history.tips(len(later))


def repeats_hidden(cycle: Cycle, history: History, start: int) -> bool:
    """True if a tool returned the same to the same call again, since the view hides the first result.

    Args:
        cycle: The cycle of the view.
        history: The raw history.
        start: Position from which on calls count.
    """
    shown, asked = {index for index, shape in cycle.kept if shape == WHOLE}, dict[str | None, str]()
    hidden, exchanges = set[tuple[str | None, str | None, str]](), set[tuple[str | None, str | None, str]]()
    for index, item in history.items(start):
        if item.kind is Kind.CALL:
            asked[item.call_id] = item.text
        elif item.kind is Kind.RETURN:
            is_hidden = index < cycle.decided and index not in shown
            (hidden if is_hidden else exchanges).add((item.tool, asked.get(item.call_id), item.text))
    return not hidden.isdisjoint(exchanges)


def with_turn(cycle: Cycle, turn: int, start: int) -> Cycle:
    """Return the cycle with the number of the turn before, if `turn` is its number but it began before `start`.

    If a stored history has lost its run ids, a prompt that came with the results of deferred calls joins the turn
    before it, so the next prompt gets the same number.

    Args:
        cycle: A cycle of an earlier run, or of the current turn.
        turn: Ordinal of the current turn.
        start: Position from which prompts belong to the current turn.
    """
    if cycle.turn != turn or cycle.at is None or cycle.at >= start:
        return cycle
    return replace(cycle, turn=turn - 1, compiled_turn=min(cycle.compiled_turn, turn - 1))


def _joined(cycle: Cycle, history: History, joined: int, count: int) -> Cycle:
    """Adjust a cycle after the host merged message `joined`, which had `count` parts, with the next one.

    Later positions move down by one. If the next message came after the prefix of the cycle, it was sent whole.
    """
    kept, covered = dict(cycle.kept), positions(cycle.covered)
    decided = max(joined + 1, cycle.decided - 1)
    both = (kept.pop(joined, None), kept.pop(joined + 1, None) if cycle.decided > joined + 1 else WHOLE)
    moved = {index - (index > joined): shape for index, shape in kept.items()}
    shape = _joined_shape(*both, history, joined, count)
    if shape is not None:
        moved[joined] = shape
    merged = covered & {joined, joined + 1}
    moved_cover = {index - (index > joined) for index in covered - merged} | (
        {joined} if len(merged) > 1 else set[int]()
    )
    return replace(
        cycle,
        decided=decided,
        tip=history.ids[decided - 1],
        kept=tuple(sorted(moved.items())),
        covered=spans(sorted(moved_cover)),
        why=tuple((start - (start > joined), stop - (stop - 1 > joined), reason) for start, stop, reason in cycle.why),
        lead=cycle.lead - (cycle.lead > joined + 1),
        at=cycle.at - (cycle.at > joined) if cycle.at is not None else None,
    )


def _joined_shape(
    answers: Shape | None, prompt: Shape | None, history: History, position: int, count: int
) -> Shape | None:
    """Shape of a merged message: `count` tool results, shaped as `answers`, and then the parts shaped as `prompt`."""
    reading = history.readings[position]
    first, rest = answers or Shape(bare=True), prompt or Shape(bare=True)
    skip = first.skip | {part + count for part in rest.skip}
    for half, parts in ((answers, range(count)), (prompt, range(count, len(reading.items)))):
        if half is None or half.bare:
            skip |= {part for part in parts if half is None or not reading.items[part].stays}
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


def restore_late_calls(cycle: Cycle, history: History, pairing: Pairing, base: Mapping[int, Shape]) -> Cycle:
    """Restore calls in a cycle whose answers arrived after the call was left out, with their other answers.

    A deferred call may be answered several turns later. The pair must be sent together, which changes the prefix once.
    The host may also have joined the answer with the last message of the cycle.
    """
    kept, last = dict(cycle.kept), cycle.decided - 1
    came = _answers_sent(kept.get(last), history, last)
    late = {
        call
        for call, answer in pairing.pairs
        if call < cycle.decided <= answer or (answer == last and _leaves_out(kept.get(call), history, call, came))
    }
    if not late:
        return cycle
    for index in paired_with(late, pairing):
        shape = kept.get(index)
        if index < cycle.decided and (shape is None or shape.bare or shape.skip or shape.tools != "paired"):
            kept[index] = base.get(index, WHOLE)
    return cycle if kept == dict(cycle.kept) else replace(cycle, kept=tuple(sorted(kept.items())))


def _answers_sent(shape: Shape | None, history: History, position: int) -> set[str | None]:
    """Ids of the calls whose answers are sent with the message at a position in this shape."""
    if shape is None or shape.bare:
        return set()
    items = enumerate(history.readings[position].items)
    return {item.call_id for part, item in items if item.kind is Kind.RETURN and part not in shape.skip}


def _leaves_out(shape: Shape | None, history: History, call: int, ids: Set[str | None]) -> bool:
    """True if one of the calls `ids` in message `call` is not sent."""
    items = history.readings[call].items if ids else ()
    calls = [part for part, item in enumerate(items) if item.call_id in ids]
    return bool(calls) and (shape is None or shape.bare or not shape.skip.isdisjoint(calls))


MAX_BLOCK_CUTS = 2
"""Number of times that a block over the budget is shortened before it is dropped."""


@dataclass(frozen=True, slots=True)
class Block:
    """Past text recalled for one prompt."""

    at: int
    """Position of the prompt's message in the raw history."""
    name: str
    """Chain id of the prompt: the block is valid only in histories that contain it."""
    turn: int
    """User turn that the prompt begins."""
    text: str
    """Fenced text as sent; empty if nothing was found, so that the search is not repeated."""
    cuts: int
    """Number of times it was shortened because the request had no room for it."""
    asked: str
    """`Pending.name` of the question that it answers."""

    def tokens(self, counter: TokenCounter) -> int:
        """Price of the block in a view."""
        return counter.text(self.text) + MESSAGE_OVERHEAD if self.text else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """The blocks in the requests of one user turn."""

    own: Block
    """Block of the turn itself, which may be empty."""
    config: str
    """Configuration of the cycle to which the blocks belong."""
    decided: int
    """`Cycle.decided` of that cycle. Beside another one, they may lack what its quotes said."""
    earlier: tuple[Block, ...] = ()
    """Blocks of earlier turns that are still sent."""

    @property
    def all(self) -> tuple[Block, ...]:
        """All blocks that have a text, in order."""
        return tuple(block for block in (*self.earlier, self.own) if block.text)

    def without(self) -> Blocks:
        """Copy for a turn that has no room for any block; its own block is marked so that it is not searched again."""
        return replace(self, own=replace(self.own, text="", cuts=MAX_BLOCK_CUTS), earlier=())

    def texts(self) -> dict[int, str]:
        """Text of each block, by the position of its prompt."""
        return {block.at: block.text for block in self.all}

    def tokens(self, counter: TokenCounter) -> int:
        """Price of all blocks in a view."""
        return sum(block.tokens(counter) for block in self.all)

    def to_json(self) -> str:
        """Serialize to JSON."""
        return json.dumps([self.decided, *map(astuple, (*self.earlier, self.own))], ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str, config: str) -> Blocks | None:
        """Parse from JSON; None if it is damaged or was written by an incompatible version."""
        try:
            decided, *rows = json.loads(text)
            *earlier, own = (Block(*fields) for fields in rows)
            blocks = cls(own=own, earlier=tuple(earlier), config=config, decided=decided)
            sound = all(map(well_typed, (blocks, *earlier, own)))
        except DAMAGED:
            return None
        return blocks if sound else None


def valid_blocks(blocks: Blocks, history: History, config: str) -> Blocks | None:
    """Return the blocks if they are valid for this history and configuration, else None.

    They are valid if the history contains the prompt of the newest one. The host may have merged that prompt with the
    tool results before it, see `History.splits`.
    """
    own = blocks.own
    if blocks.config != config or own.at > len(history):
        return None
    if own.at < len(history) and history.ids[own.at] == own.name:
        return blocks
    if own.at and any(split.rest == own.name for split in history.splits(own.at - 1)):
        return replace(blocks, own=replace(own, at=own.at - 1, name=history.ids[own.at - 1]))
    return None
