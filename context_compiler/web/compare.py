"""Comparison of two lists of messages: a request and another one, its raw history, or a replay of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import partial
from typing import Any, cast

from pydantic_ai.messages import ModelMessage

from context_compiler.compiler.trace import Sent, request_of
from context_compiler.compiler.view import View, message_origins, show_message
from context_compiler.errors import SettingsError
from context_compiler.fidelity import Fidelity
from context_compiler.ids import blob_id
from context_compiler.messages.display import Bar, ShownMessage, bars
from context_compiler.messages.history import Reader, message_body, reader_of
from context_compiler.middleware.again import FIXED, compile_again, fixed_tokens
from context_compiler.record import browse
from context_compiler.record.browse import RequestRow
from context_compiler.record.database import Database
from context_compiler.record.values import Record
from context_compiler.template import Template
from context_compiler.tokens import as_counter
from context_compiler.web.data import PAGE, Inspector, Pages, RequestHeader, header_of

NEAR = 1
"""Equal messages shown on each side of a difference; longer runs are folded."""

AROUND = 120
"""Characters of equal text that are shown beside a change."""

COMPARED = 3_000
"""Maximum words of a message that are compared word by word; longer ones are compared line by line."""

SHOWN = 1_500
"""Maximum characters shown of one part of a message."""

Pair = tuple[int | None, int | None]
"""Positions of a message on the left and right side; None on a side that lacks it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffRow:
    """One line of a comparison."""

    kind: str
    """same, removed, added, changed, fold (`count` equal messages), or prefix: the end of the cached beginning."""
    before: ShownMessage | None = None
    after: ShownMessage | None = None
    words: tuple[tuple[str, str], ...] = ()
    """Texts of a changed message in order, each with `same`, `removed` or `added`; long equal texts are cut."""
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffPage(RequestHeader):
    """Difference between two requests, or between a raw history and its view."""

    other: RequestRow | None
    """None for the raw history."""
    common: int
    """Number of messages at the beginning that both sides share, which a prompt cache keeps.

    In a comparison with the raw history, the messages that the request shares with the previous one.
    """
    messages: tuple[int, ...]
    """Number of messages on the left and right side."""
    tokens: tuple[int, ...]
    """Tokens on the left and right side."""
    rows: tuple[DiffRow, ...]
    pages: Pages
    choice: str


BUDGET = 2_000
"""Budget in tokens if neither the record nor the caller gives one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Settings of a replay; what is not set is as it was."""

    template: str = ""
    budget: int | None = None
    fidelity: str = ""
    recall: float | None = None
    trigger: int | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The settings that only an agent has."""
        given = {"recall": self.recall, "trigger": self.trigger}
        return {name: value for name, value in given.items() if value is not None}

    def changes(self, row: RequestRow) -> bool:
        """True if a setting differs from those of a request."""
        pairs = (self.template, row.template), (self.budget, row.budget), (self.fidelity, row.fidelity)
        return bool(self.arguments) or any(wish and wish != was for wish, was in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPage(RequestHeader):
    """A request compared with the same request under other settings; nothing is sent or recorded."""

    wanted: Wanted
    changed: bool
    """False if no setting differs from those of the request, so that the request is shown as it was sent."""
    templates: tuple[str, ...]
    fidelities: tuple[str, ...]
    status: str
    tokens: int
    messages: int
    bar: tuple[Bar, ...]
    bar_before: tuple[Bar, ...]
    rows: tuple[DiffRow, ...]
    pages: Pages
    note: str


class Comparisons:
    """Comparisons of requests of one record."""

    def __init__(self, inspector: Inspector) -> None:
        self.inspector = inspector
        self._reader: Reader = reader_of(as_counter(None))

    async def diff(self, number: int, choice: str, *, page: int = 1) -> DiffPage:
        """Compare a request with another one: `previous`, `raw` (its raw history), or the number of a request."""
        return await self.inspector.read(partial(self._diff, number=number, choice=choice, page=page))

    def _diff(self, db: Database, number: int, choice: str, page: int) -> DiffPage:
        row, record = request_of(db, number)
        sent = self.inspector.trace(db, row, record)
        header = header_of(db, row)
        first = None if header["before"] is None else request_of(db, header["before"])[0]
        common = 0 if first is None else browse.common_length(db, first.view_tip, row.view_tip)
        if choice == "raw":
            other, left, tokens, shared = None, sent.raw, row.tokens_raw, common
            pairs = _match_origins(sent)
        else:
            other = first if choice == "previous" else request_of(db, int(choice))[0]
            left = () if other is None else self.inspector.chain(db, other.view_tip, other.session)
            tokens = 0 if other is None else other.tokens_sent
            shared = common if other in (None, first) else browse.common_length(db, other.view_tip, row.view_tip)
            pairs = match_messages([node.content for node in left], [node.content for node in sent.view])
        entries = list(fold_entries(pairs, _equal(pairs, left, sent.view), shared))
        pages = Pages(page=page, size=PAGE, total=len(entries))
        rows = self._rows(
            entries[pages.offset : pages.offset + PAGE],
            lambda at: self._read(db, [left[one] for one in at]),
            lambda at: self._read(db, [sent.view[one] for one in at]),
        )
        return DiffPage(
            **header,
            other=other,
            common=shared,
            messages=(len(left), len(sent.view)),
            tokens=(tokens, row.tokens_sent),
            rows=tuple(rows),
            pages=pages,
            choice=choice,
        )

    def _read(self, db: Database, nodes: Sequence[browse.Node]) -> list[ModelMessage]:
        return self.inspector.read_nodes(db, nodes)[0]

    def _rows(self, entries: Sequence[Entry], left: ReadMessages, right: ReadMessages) -> Iterator[DiffRow]:
        """Build the rows of entries; the messages of each side are read in one call."""
        sides: list[dict[int, ShownMessage]] = []
        for side, read in ((0, left), (1, right)):
            wanted = [one.pair[side] for one in entries if one.kind not in ("fold", "prefix")]
            at = [place for place in wanted if place is not None]
            sides.append(dict(zip(at, self._show(at, read(at)), strict=True)))
        for one in entries:
            if one.kind in ("fold", "prefix"):
                yield DiffRow(kind=one.kind, count=one.count)
                continue
            before, after = (None if at is None else side[at] for side, at in zip(sides, one.pair, strict=True))
            words = difference(before, after) if one.kind == "changed" and before and after else ()
            yield DiffRow(kind=one.kind, before=before, after=after, words=words)

    def _show(self, at: Sequence[int], messages: Sequence[ModelMessage]) -> list[ShownMessage]:
        history = self._reader.read(messages)
        view = View(messages=list(messages), tokens=0, budget=0, status="")
        found = [show_message(history, place, longest=SHOWN) for place in message_origins(view, history, history)]
        return [replace(one, index=index, why="", raw=None) for one, index in zip(found, at, strict=True)]

    async def replay(self, number: int, wanted: Wanted, *, page: int = 1) -> ReplayPage:
        """Compile the raw history of a request with other settings; without any, show the request as it was sent.

        Raises:
            SettingsError: A setting is invalid.
        """
        header, sent, raw, record = await self.inspector.read(partial(self._recorded, number=number))
        row: RequestRow = header["request"]
        sections = dict(cast("Mapping[str, int]", record.ledger.get("tokens") or {}))
        asked = wanted.changes(row)
        if asked and row.raw_tip is None:
            raise SettingsError(f"request {number} was recorded without its raw history, so it cannot be replayed")
        fixed = fixed_tokens(record)
        view = await self._compile(wanted, raw, row, fixed) if asked else None
        rows, pages = self._beside(sent, sent if view is None else view.messages, page)
        bar = sections if view is None else {FIXED: fixed, **view.ledger["tokens"]}
        return ReplayPage(
            **header,
            wanted=wanted,
            changed=asked,
            templates=tuple(one.name for one in self.inspector.template_library.list() if not one.shadowed),
            fidelities=tuple(Fidelity),
            status=row.status.split(";")[0] if view is None else view.status,
            tokens=row.tokens_sent if view is None else view.tokens + fixed,
            messages=len(sent) if view is None else len(view.messages),
            bar=tuple(bars(bar, wanted.budget or row.budget or BUDGET)),
            bar_before=tuple(bars(sections, row.budget or 0)),
            rows=rows,
            pages=pages,
            note=_note(view, row),
        )

    def _recorded(
        self, db: Database, number: int
    ) -> tuple[dict[str, Any], list[ModelMessage], list[ModelMessage], Record]:
        row, record = request_of(db, number)
        sent, raw = (self._read(db, self.inspector.chain(db, tip, row.session)) for tip in (row.view_tip, row.raw_tip))
        return header_of(db, row), sent, raw, record

    async def _compile(self, wanted: Wanted, raw: list[ModelMessage], row: RequestRow, fixed: int) -> View:
        template: Template = self.inspector.template_library.find(wanted.template or row.template or "extractive")
        fidelity = wanted.fidelity or ("" if wanted.template else row.fidelity or "")
        if not wanted.fidelity and fidelity == template.fidelity:  # the template's own, which limits only the summary
            fidelity = ""
        work = partial(
            compile_again,
            raw,
            template,
            wanted.budget or row.budget or BUDGET,
            fixed=fixed,
            fidelity=Fidelity.parse(fidelity, where="fidelity") if fidelity else None,
            session="replay",
            arguments=wanted.arguments,
        )
        return await asyncio.to_thread(lambda: asyncio.run(work()))

    def _beside(
        self, sent: Sequence[ModelMessage], view: Sequence[ModelMessage], page: int
    ) -> tuple[tuple[DiffRow, ...], Pages]:
        left, right = ([blob_id(message_body(one)) for one in messages] for messages in (sent, view))
        pairs = match_messages(left, right)
        equal = [a is not None and b is not None and left[a] == right[b] for a, b in pairs]
        entries = list(fold_entries(pairs, equal, 0))
        pages = Pages(page=page, size=PAGE, total=len(entries))
        shown = entries[pages.offset : pages.offset + PAGE]
        rows = self._rows(shown, lambda at: [sent[one] for one in at], lambda at: [view[one] for one in at])
        return tuple(rows), pages


ReadMessages = Callable[[Sequence[int]], list[ModelMessage]]


@dataclass(frozen=True, slots=True)
class Entry:
    """A pair of messages, a run of equal ones, or the end of the cached beginning."""

    kind: str
    pair: Pair = (None, None)
    count: int = 0


def match_messages(left: Sequence[str], right: Sequence[str]) -> list[Pair]:
    """Align the messages of both sides: equal messages, and messages that replace each other, become pairs."""
    found: list[Pair] = []
    for kind, a, b, c, d in SequenceMatcher(a=left, b=right, autojunk=False).get_opcodes():
        both = min(b - a, d - c) if kind in ("equal", "replace") else 0
        found += [(a + at, c + at) for at in range(both)]
        found += [(at, None) for at in range(a + both, b)]
        found += [(None, at) for at in range(c + both, d)]
    return found


def _match_origins(sent: Sent) -> list[Pair]:
    """Align the raw messages with the view by origin; generated messages keep their position in the view."""
    found: list[Pair] = []
    at = 0
    for place, origin in enumerate(sent.origin):
        if origin is not None and origin >= at:
            found += [(raw, None) for raw in range(at, origin)]
            at = origin + 1
        found.append((origin, place))
    return [*found, *((raw, None) for raw in range(at, len(sent.raw)))]


def _equal(pairs: Sequence[Pair], left: Sequence[browse.Node], right: Sequence[browse.Node]) -> list[bool]:
    return [a is not None and b is not None and left[a].content == right[b].content for a, b in pairs]


def fold_entries(pairs: Sequence[Pair], equal: Sequence[bool], common: int) -> Iterator[Entry]:
    """Iterate over the entries of a comparison.

    A long run of equal messages is folded into one entry, and a `prefix` entry follows the first `common` messages of
    the right side.
    """
    at = 0
    drawn = not common
    while at < len(pairs):
        stop = at
        while stop < len(pairs) and equal[stop] and (drawn or stop == at or (pairs[stop][1] or 0) < common):
            stop += 1
        if not drawn and (pairs[at][1] or 0) >= common:
            drawn = True
            yield Entry("prefix", count=common)
            continue
        if stop - at > 2 * NEAR + 1:
            head = NEAR if at else 0
            yield from (Entry("same", pairs[one]) for one in range(at, at + head))
            tail = NEAR if stop < len(pairs) else 0
            yield Entry("fold", count=stop - at - head - tail)
            yield from (Entry("same", pairs[one]) for one in range(stop - tail, stop))
        elif stop > at:
            yield from (Entry("same", pairs[one]) for one in range(at, stop))
        else:
            a, b = pairs[at]
            yield Entry("added" if a is None else "removed" if b is None else "changed", pairs[at])
            stop = at + 1
        at = stop
    if not drawn:
        yield Entry("prefix", count=common)


def difference(before: ShownMessage, after: ShownMessage) -> tuple[tuple[str, str], ...]:
    """Compare the texts of two messages by words: texts in order, each with `same`, `removed` or `added`."""
    texts = ["\n".join(_texts(shown)) for shown in (before, after)]
    left, right = map(_WORD.findall, texts)
    if max(len(left), len(right)) > COMPARED:
        left, right = (text.splitlines(keepends=True) for text in texts)
    found: list[tuple[str, str]] = []
    for kind, a, b, c, d in SequenceMatcher(a=left, b=right, autojunk=False).get_opcodes():
        if kind == "equal":
            found.append(("same", _shorten("".join(left[a:b]))))
            continue
        found += [
            (sign, text) for sign, text in (("removed", "".join(left[a:b])), ("added", "".join(right[c:d]))) if text
        ]
    return tuple(found)


_WORD = re.compile(r"\w+|\s+|[^\w\s]")


def _shorten(text: str) -> str:
    return text if len(text) <= 2 * AROUND + 3 else f"{text[:AROUND]} … {text[-AROUND:]}"


def _texts(one: ShownMessage) -> Iterator[str]:
    for part in one.parts:
        if part.tool:
            yield f"{part.kind} {part.tool}"
        yield from (segment.text for segment in part.segments)


def _note(view: View | None, row: RequestRow) -> str:
    if view is None:
        return "Nothing is changed, so this is what was sent."
    if row.model not in (None, "none"):
        return f"No model is called here: where {row.model} wrote a summary, the replay quotes instead."
    return "No model is called here."
