"""Comparison of two lists of messages: a request and another one, its raw history, or a replay of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import partial
from itertools import count
from typing import Any, cast

from pydantic_ai.messages import ModelMessage

from context_compiler.compiler.trace import Sent, cut_of, request_of
from context_compiler.compiler.view import View, message_origins, show_message
from context_compiler.errors import SettingsError
from context_compiler.fidelity import Fidelity
from context_compiler.messages.display import Bar, ShownMessage, bars
from context_compiler.messages.history import Reading, reader_of
from context_compiler.middleware.again import BUDGET, compile_again, differs, recorded_settings, whole_tokens
from context_compiler.middleware.remedies import places
from context_compiler.record import browse
from context_compiler.record.browse import RequestRow
from context_compiler.record.database import Database
from context_compiler.record.values import FIXED, Record, fixed_tokens, template_name
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Settings of a replay; what is not set is as it was."""

    template: str = ""
    budget: int | None = None
    fidelity: str = ""
    recall: float | None = None
    trigger: int | None = None

    def changes(self, record: Record) -> bool:
        """True if a setting differs from those of a request."""
        arguments = {"template": self.template or None, "fidelity": self.fidelity or None, "budget": self.budget}
        return differs(record, **arguments, recall=self.recall, trigger=self.trigger)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPage(RequestHeader):
    """A request compared with the same request under other settings; nothing is sent or recorded."""

    wanted: Wanted
    recorded: Mapping[str, float | None]
    """`recall` and `trigger` as they were; None if they were the template's."""
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
    cut: str
    """The rule by which the replay was cut; empty if it was not."""
    words: str
    places: tuple[tuple[int, ...], ...]
    """Positions of the messages that contain the words, as sent and as replayed."""


class Comparisons:
    """Comparisons of requests of one record."""

    def __init__(self, inspector: Inspector) -> None:
        self.inspector = inspector
        self._reader = reader_of(as_counter(None))

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
        equal = [a is not None and b is not None and left[a].content == sent.view[b].content for a, b in pairs]
        rows, pages = self._rows(
            list(fold_entries(pairs, equal, shared)),
            page,
            lambda positions: self.inspector.host_messages(db, [left[position] for position in positions]),
            lambda positions: self.inspector.host_messages(db, [sent.view[position] for position in positions]),
        )
        return DiffPage(
            **header,
            other=other,
            common=shared,
            messages=(len(left), len(sent.view)),
            tokens=(tokens, row.tokens_sent),
            rows=rows,
            pages=pages,
            choice=choice,
        )

    def _rows(
        self, every: Sequence[Entry], page: int, left: ReadMessages, right: ReadMessages
    ) -> tuple[tuple[DiffRow, ...], Pages]:
        """Build the rows of a page of entries; the messages of each side are read in one call."""
        pages = Pages(page=page, size=PAGE, total=len(every))
        entries, rows = every[pages.offset : pages.offset + PAGE], list[DiffRow]()
        sides: list[dict[int, ShownMessage]] = []
        for side, read in ((0, left), (1, right)):
            wanted = [entry.pair[side] for entry in entries if entry.kind not in ("fold", "prefix")]
            positions = [position for position in wanted if position is not None]
            sides.append(dict(zip(positions, self._show(positions, read(positions)), strict=True)))
        for entry in entries:
            if entry.kind in ("fold", "prefix"):
                rows.append(DiffRow(kind=entry.kind, count=entry.count))
                continue
            before, after = (
                None if position is None else side[position] for side, position in zip(sides, entry.pair, strict=True)
            )
            words = difference(before, after) if entry.kind == "changed" and before and after else ()
            rows.append(DiffRow(kind=entry.kind, before=before, after=after, words=words))
        return tuple(rows), pages

    def _show(self, positions: Sequence[int], messages: Sequence[ModelMessage]) -> list[ShownMessage]:
        history = self._reader.read(messages)
        view = View(messages=list(messages), tokens=0, budget=0, status="")
        shown = [show_message(history, position, longest=SHOWN) for position in message_origins(view, history, history)]
        return [
            replace(message, index=index, why="", raw=None) for message, index in zip(shown, positions, strict=True)
        ]

    async def replay(self, number: int, wanted: Wanted, *, words: str = "", page: int = 1) -> ReplayPage:
        """Compile the raw history of a request with other settings; without any, show the request as it was sent.

        Raises:
            SettingsError: A setting is invalid.
        """
        header, sent, raw, record, origins = await self.inspector.read(partial(self._recorded, number=number))
        row: RequestRow = header["request"]
        sections = dict(cast("Mapping[str, int]", record.ledger.get("tokens") or {}))
        asked = wanted.changes(record)
        if asked and row.raw_tip is None:
            raise SettingsError(f"request {number} was recorded without its raw history, so it cannot be replayed")
        view = await self._compile(wanted, raw, row, record) if asked else None
        replayed = sent if view is None else view.messages
        tokens = row.tokens_sent if view is None else whole_tokens(view, record)
        if view is None:
            others = origins
        else:
            others = [origin.raw for origin in message_origins(view, None, self._reader.read(replayed))]
        rows, pages = self._beside(sent, replayed, origins, others, page)
        bar = sections if view is None else {FIXED: 0, **view.ledger["tokens"]} | {FIXED: fixed_tokens(record)}
        return ReplayPage(
            **header,
            wanted=wanted,
            changed=asked,
            templates=tuple(
                template.name for template in self.inspector.template_library.list() if not template.shadowed
            ),
            fidelities=tuple(Fidelity),
            status=row.status.split(";")[0] if view is None else view.status,
            tokens=tokens,
            messages=len(replayed),
            bar=tuple(bars(bar, wanted.budget or row.budget or BUDGET)),
            recorded=recorded_settings(record),
            bar_before=tuple(bars(sections, row.budget or 0)),
            rows=rows,
            pages=pages,
            note=_note(view, row),
            cut=_cut_text(view, replace(row, budget=wanted.budget or row.budget, tokens_sent=tokens), record),
            words=words,
            places=tuple(places(messages, words) for messages in (sent, replayed)),
        )

    def _recorded(
        self, db: Database, number: int
    ) -> tuple[dict[str, Any], list[ModelMessage], list[ModelMessage], Record, Sequence[int | None]]:
        row, record = request_of(db, number)
        traced = self.inspector.trace(db, row, record)
        sent, raw = (self.inspector.host_messages(db, nodes) for nodes in (traced.view, traced.raw))
        return header_of(db, row), sent, raw, record, traced.origin

    async def _compile(self, wanted: Wanted, raw: list[ModelMessage], row: RequestRow, record: Record) -> View:
        template = self.inspector.template_library.find(wanted.template or template_name(record))
        fidelity = wanted.fidelity or ("" if wanted.template else row.fidelity or "")
        if not wanted.fidelity and fidelity == template.fidelity:  # the template's own, which limits only the summary
            fidelity = ""
        work = partial(
            compile_again,
            raw,
            record,
            template,
            budget=wanted.budget,
            fidelity=Fidelity.parse(fidelity, where="fidelity") if fidelity else None,
            recall=wanted.recall,
            trigger=wanted.trigger,
        )
        return await asyncio.to_thread(lambda: asyncio.run(work()))

    def _beside(
        self,
        sent: Sequence[ModelMessage],
        view: Sequence[ModelMessage],
        sent_origins: Sequence[int | None],
        view_origins: Sequence[int | None],
        page: int,
    ) -> tuple[tuple[DiffRow, ...], Pages]:
        left, right = (
            [_plain(reading) for reading in self._reader.read(messages).readings] for messages in (sent, view)
        )
        pairs = match_messages(_names(sent_origins), _names(view_origins), replaced=False)
        equal = [a is not None and b is not None and left[a] == right[b] for a, b in pairs]
        return self._rows(
            list(fold_entries(pairs, equal, 0)),
            page,
            lambda positions: [sent[position] for position in positions],
            lambda positions: [view[position] for position in positions],
        )


ReadMessages = Callable[[Sequence[int]], list[ModelMessage]]


@dataclass(frozen=True, slots=True)
class Entry:
    """A pair of messages, a run of equal ones, or the end of the cached beginning."""

    kind: str
    pair: Pair = (None, None)
    count: int = 0


def match_messages(left: Sequence[str], right: Sequence[str], *, replaced: bool = True) -> list[Pair]:
    """Align the messages of both sides: equal ones become pairs, and with `replaced` those that replace each other."""
    pairs: list[Pair] = []
    for kind, a, b, c, d in SequenceMatcher(a=left, b=right, autojunk=False).get_opcodes():
        both = min(b - a, d - c) if kind == "equal" or (replaced and kind == "replace") else 0
        pairs += [(a + offset, c + offset) for offset in range(both)]
        pairs += [(position, None) for position in range(a + both, b)]
        pairs += [(None, position) for position in range(c + both, d)]
    return pairs


def _match_origins(sent: Sent) -> list[Pair]:
    """Align the raw messages with the view by origin; generated messages keep their position in the view."""
    pairs: list[Pair] = []
    start = 0
    for position, origin in enumerate(sent.origin):
        if origin is not None and origin >= start:
            pairs += [(raw, None) for raw in range(start, origin)]
            start = origin + 1
        pairs.append((origin, position))
    return [*pairs, *((raw, None) for raw in range(start, len(sent.raw)))]


def _names(origins: Sequence[int | None]) -> list[str]:
    """Name of each message: its raw position, or its number among those that were written for the view."""
    written = count()
    return [f"written {next(written)}" if origin is None else str(origin) for origin in origins]


def _plain(reading: Reading) -> list[tuple[object, ...]]:
    """The parts of a message, without what a replay cannot repeat, such as ids and usage."""
    return [(item.kind, item.tool, item.text) for item in reading.items]


def fold_entries(pairs: Sequence[Pair], equal: Sequence[bool], common: int) -> Iterator[Entry]:
    """Iterate over the entries of a comparison.

    A long run of equal messages is folded into one entry, and a `prefix` entry follows the first `common` messages of
    the right side.
    """
    start = 0
    drawn = not common
    while start < len(pairs):
        stop = start
        while stop < len(pairs) and equal[stop] and (drawn or stop == start or (pairs[stop][1] or 0) < common):
            stop += 1
        if not drawn and (pairs[start][1] or 0) >= common:
            drawn = True
            yield Entry("prefix", count=common)
            continue
        if stop - start > 2 * NEAR + 1:
            head = NEAR if start else 0
            yield from (Entry("same", pairs[index]) for index in range(start, start + head))
            tail = NEAR if stop < len(pairs) else 0
            yield Entry("fold", count=stop - start - head - tail)
            yield from (Entry("same", pairs[index]) for index in range(stop - tail, stop))
        elif stop > start:
            yield from (Entry("same", pairs[index]) for index in range(start, stop))
        else:
            a, b = pairs[start]
            yield Entry("added" if a is None else "removed" if b is None else "changed", pairs[start])
            stop = start + 1
        start = stop
    if not drawn:
        yield Entry("prefix", count=common)


def difference(before: ShownMessage, after: ShownMessage) -> tuple[tuple[str, str], ...]:
    """Compare the texts of two messages by words: texts in order, each with `same`, `removed` or `added`."""
    texts = ["\n".join(_texts(shown)) for shown in (before, after)]
    left, right = map(_WORD.findall, texts)
    if max(len(left), len(right)) > COMPARED:
        left, right = (text.splitlines(keepends=True) for text in texts)
    pieces: list[tuple[str, str]] = []
    for kind, a, b, c, d in SequenceMatcher(a=left, b=right, autojunk=False).get_opcodes():
        if kind == "equal":
            pieces.append(("same", _shorten("".join(left[a:b]))))
        else:
            changes = ("removed", "".join(left[a:b])), ("added", "".join(right[c:d]))
            pieces += [change for change in changes if change[1]]
    return tuple(pieces)


_WORD = re.compile(r"\w+|\s+|[^\w\s]")


def _shorten(text: str) -> str:
    return text if len(text) <= 2 * AROUND + 3 else f"{text[:AROUND]} … {text[-AROUND:]}"


def _texts(message: ShownMessage) -> Iterator[str]:
    for part in message.parts:
        if part.tool:
            yield f"{part.kind} {part.tool}"
        yield from (segment.text for segment in part.segments)


def _cut_text(view: View | None, row: RequestRow, record: Record) -> str:
    """The cut of a replay, whose numbers leave out the instructions and tools of the recorded request."""
    made = view.record if view is not None else None
    if made is None or "cut" not in made.ledger:
        return ""
    numbers = cast("Mapping[str, Any]", made.ledger["cut"])
    whole = {name: numbers.get(name) for name in ("size", "threshold", "target")}
    whole = {name: tokens and round((tokens + fixed_tokens(record)) * record.ratio) for name, tokens in whole.items()}
    return str(cut_of(row, replace(made, ledger={**made.ledger, "cut": {**numbers, **whole}})))


def _note(view: View | None, row: RequestRow) -> str:
    if view is None:
        return "Nothing is changed, so this is what was sent."
    if row.model not in (None, "none"):
        return f"No model is called here: where {row.model} wrote a summary, the replay quotes instead."
    return "No model is called here."
