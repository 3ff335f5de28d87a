"""Values that the pages and the API show, each from one read of the record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TypeVar, cast

from pydantic_ai.messages import ModelMessage, ModelRequest

from context_compiler.cache import Memo
from context_compiler.compiler.origins import (
    Cause,
    Fate,
    align,
    causes,
    gaps,
    has_block,
    is_written,
    same_origin,
    step_of,
    why_here,
)
from context_compiler.errors import ContextCompilerError
from context_compiler.messages.display import (
    ABSENT,
    CARRIED,
    RECALLED,
    SHORTENED,
    SUMMARY,
    VERBATIM,
    Bar,
    ShownMessage,
    bars,
    quoted_lines,
    role,
    show_parts,
    time_of,
)
from context_compiler.messages.history import Reader, Reading, load_messages, reader_of, searchable
from context_compiler.record import browse
from context_compiler.record.browse import Node, RequestRow, SessionFilter, SessionRow
from context_compiler.record.database import Database
from context_compiler.record.store import SQLStore
from context_compiler.record.values import Compile, Record
from context_compiler.template import TemplateLibrary
from context_compiler.tokens import as_counter

T = TypeVar("T")

PAGE = 50
"""Rows or messages of one page."""

TEXT, LEAST = 90_000, 600
"""Characters of text on one page of messages, and the least that one part may show of its own."""

NEAR = 400
"""Raw messages that are read to find the origin of a shortened one."""

DECISIONS = 40
"""Earlier requests that are searched for the reason why a message was cut back."""

WEIGHED, BIGGEST = 400, 8
"""Messages of the longest view that is searched for its biggest messages, and how many of them are listed."""

CHAINS = 8
"""Chains of ids that are kept in memory."""


class BadRequest(ContextCompilerError):
    """A parameter has a wrong value."""


class NotFound(ContextCompilerError):
    """The record has no such thing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """Position in a list that is shown page by page."""

    page: int
    """From 1."""
    size: int
    total: int

    @property
    def last(self) -> int:
        """Number of the last page."""
        return max(1, -(-self.total // self.size))

    @property
    def offset(self) -> int:
        """Entries before this page."""
        return (self.page - 1) * self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionsPage:
    """Conversations, most recently used first."""

    sessions: tuple[SessionRow, ...]
    pages: Pages
    filter: SessionFilter
    templates: tuple[str, ...]
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPage:
    """One conversation with its requests, newest first."""

    session: SessionRow
    requests: tuple[RequestRow, ...]
    pages: Pages
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contributor:
    """A message that takes many tokens of a request."""

    index: int
    role: str
    tokens: int
    form: str
    begins: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPage:
    """One request: its figures and one page of its messages in order."""

    session: SessionRow
    request: RequestRow
    nulls: str
    """Reasons for the empty columns of its row."""
    before: int | None
    after: int | None
    bar: tuple[Bar, ...]
    messages: tuple[ShownMessage, ...]
    pages: Pages
    biggest: tuple[Contributor, ...]
    """Messages that take most; empty for a very long view."""
    instructions: str
    request_hash: str | None
    compile: Compile | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RawMessage:
    """One message of the raw history and its fate in a request."""

    message: ShownMessage
    fate: Fate
    echoes: tuple[Echo, ...]
    """Texts of the view that repeat words of it, where it is not in the view word for word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Echo:
    """A message of a view that repeats words of an earlier one."""

    form: str
    """quoted, recalled or instruction."""
    sent: int
    """Position in the view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyPage:
    """The raw history of one request, in or out, with the step of the cut order that decided."""

    session: SessionRow
    request: RequestRow
    before: int | None
    after: int | None
    counts: Mapping[str, int]
    """Messages by form."""
    strip: str
    """One letter a raw message: v verbatim, s shortened, c carried, a absent."""
    messages: tuple[RawMessage, ...]
    pages: Pages
    only: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Chains of one request and how they belong together."""

    raw: tuple[Node, ...]
    view: tuple[Node, ...]
    origin: tuple[int | None, ...]
    """Raw position of each message of the view."""
    form: tuple[str, ...]
    """Form of each message of the view."""
    active: int
    """Raw position at which the current turn begins."""
    causes: Mapping[int, Sequence[Cause]] = field(default_factory=dict[int, Sequence[Cause]])


class Inspector:
    """Reads one record; nothing here writes.

    Args:
        store: The record, opened read-only.
        vault: Folder whose templates come first.
        system: Folder whose templates come second.
    """

    def __init__(self, store: SQLStore, *, vault: Path | None = None, system: Path | None = None) -> None:
        self.store = store
        self.template_library = TemplateLibrary(vault=vault, system=system)
        self._reader: Reader = reader_of(as_counter(None))
        self._chains: Memo[tuple[str, int], tuple[Node, ...]] = Memo(CHAINS)
        self._sent: Memo[int, Sent] = Memo(CHAINS)
        self._warm = False

    def warm(self) -> None:
        """Load the tokenizer on another thread, once: it takes a while, and the next page may need it."""
        if not self._warm:
            self._warm = True
            Thread(target=self._reader.counter.text, args=("warm",), daemon=True).start()

    async def read(self, query: Callable[[Database], T]) -> T:
        """Run a query on the record."""
        return await self.store.perform(query)

    async def sessions(self, wanted: SessionFilter, *, page: int = 1) -> SessionsPage:
        """One page of the conversations that meet a filter."""

        def query(db: Database) -> SessionsPage:
            found, total = browse.sessions_page(db, wanted, limit=PAGE, offset=(page - 1) * PAGE)
            known = browse.choices(db)
            return SessionsPage(
                sessions=tuple(found),
                pages=Pages(page=page, size=PAGE, total=total),
                filter=wanted,
                templates=tuple(known["template"]),
                models=tuple(known["model"]),
            )

        return await self.read(query)

    async def session(self, number: int, *, page: int = 1, status: str = "") -> SessionPage:
        """One conversation and one page of its requests."""

        def query(db: Database) -> SessionPage:
            info = session_of(db, number)
            found, total = browse.requests_page(db, number, limit=PAGE, offset=(page - 1) * PAGE, status=status)
            pages = Pages(page=page, size=PAGE, total=total)
            return SessionPage(session=info, requests=tuple(found), pages=pages, status=status)

        return await self.read(query)

    async def request(self, number: int, *, page: int = 1) -> RequestPage:
        """One request and one page of its messages."""
        return await self.read(partial(self._request, number=number, page=page))

    async def why(self, number: int, *, page: int = 1, only: str = "") -> WhyPage:
        """One page of the raw history of a request, with what became of each message."""
        return await self.read(partial(self._why, number=number, page=page, only=only))

    def _request(self, db: Database, number: int, page: int) -> RequestPage:
        row, record = request_of(db, number)
        sent = self.trace(db, row, record)
        pages = Pages(page=page, size=PAGE, total=len(sent.view))
        places = range(len(sent.view))[pages.offset : pages.offset + PAGE]
        before, after = browse.neighbours(db, row)
        return RequestPage(
            session=session_of(db, row.session),
            request=row,
            nulls=record.status.partition(";")[2].strip(),
            before=before,
            after=after,
            bar=tuple(bars(cast("Mapping[str, int]", record.ledger.get("tokens", {})), row.budget or 0)),
            messages=tuple(self._show_view(db, sent, places)),
            pages=pages,
            biggest=tuple(self._biggest(db, sent)),
            instructions=self._instructions(db, sent),
            request_hash=record.request_hash,
            compile=record.compile,
        )

    def _show_view(self, db: Database, sent: Sent, places: Sequence[int]) -> list[ShownMessage]:
        messages, readings = self.read_nodes(db, [sent.view[at] for at in places])
        longest = longest_part(readings)
        return [
            show(
                at,
                message,
                reading,
                form=sent.form[at],
                why=reason_here(sent, at),
                raw=sent.origin[at],
                longest=longest,
            )
            for at, message, reading in zip(places, messages, readings, strict=True)
        ]

    def _biggest(self, db: Database, sent: Sent) -> Iterator[Contributor]:
        _, readings = self.read_nodes(db, sent.view if len(sent.view) <= WEIGHED else ())
        for at in sorted(range(len(readings)), key=lambda at: -readings[at].tokens)[:BIGGEST]:
            begins = " ".join(searchable(readings[at])[:400].split())[:100]
            shown = VERBATIM if sent.form[at] == RECALLED else sent.form[at]
            yield Contributor(index=at, role=role(readings[at]), tokens=readings[at].tokens, form=shown, begins=begins)

    def _instructions(self, db: Database, sent: Sent) -> str:
        """Instructions of the request, which the host keeps on its last message."""
        messages, _ = self.read_nodes(db, sent.view[-1:])
        return next((message.instructions or "" for message in messages if isinstance(message, ModelRequest)), "")

    def _why(self, db: Database, number: int, page: int, only: str) -> WhyPage:
        row, record = request_of(db, number)
        sent = self.trace(db, row, record)
        forms = forms_of(sent)
        counts = {form: forms.count(form) for form in (VERBATIM, SHORTENED, CARRIED, ABSENT)}
        chosen = [at for at, form in enumerate(forms) if not only or form == only]
        pages = Pages(page=page, size=PAGE, total=len(chosen))
        places = chosen[pages.offset : pages.offset + PAGE]
        messages, readings = self.read_nodes(db, [sent.raw[at] for at in places])
        longest = longest_part(readings, PAGE)
        before, after = browse.neighbours(db, row)
        lines = self._quoted(db, sent)
        shown = [
            RawMessage(
                message=show(at, message, reading, form=forms[at], why="", raw=None, longest=longest),
                fate=fate_of(sent, at),
                echoes=() if forms[at] == VERBATIM else echoes(lines, reading),
            )
            for at, message, reading in zip(places, messages, readings, strict=True)
        ]
        return WhyPage(
            session=session_of(db, row.session),
            request=row,
            before=before,
            after=after,
            counts=counts,
            strip="".join(form[0] for form in forms),
            messages=tuple(shown),
            pages=pages,
            only=only,
        )

    def _quoted(self, db: Database, sent: Sent) -> list[tuple[Echo, str]]:
        """Lines of a view that repeat what was said before it."""
        written = [at for at, form in enumerate(sent.form) if form in (RECALLED, SUMMARY) or sent.origin[at] is None]
        _, readings = self.read_nodes(db, [sent.view[at] for at in written])
        return [
            (Echo(form=form, sent=at), " ".join(words.split()))
            for at, reading in zip(written, readings, strict=True)
            for item in reading.items
            if item.mark is not None
            for form, words in quoted_lines(item.text)
        ]

    def chain(self, db: Database, tip: str | None, session: int) -> tuple[Node, ...]:
        """A chain without its bodies, from memory where it is known."""
        if tip is None:
            return ()
        known = self._chains.get((tip, session))
        if known is None:
            known = tuple(browse.chain_nodes(db, tip, session))
            self._chains.keep((tip, session), known)
        return known

    def read_nodes(self, db: Database, nodes: Sequence[Node]) -> tuple[list[ModelMessage], list[Reading]]:
        """Messages of a chain, with their readings."""
        messages = load_messages(browse.message_bodies(db, nodes)) if nodes else []
        return messages, [self._reader.one(message) for message in messages]

    def trace(self, db: Database, row: RequestRow, record: Record) -> Sent:
        """Both chains of a request, and the origin and form of every message of its view."""
        known = self._sent.get(row.id)
        if known is None:
            known = self._align(db, row, record)
            self._sent.keep(row.id, known)
        return known

    def _align(self, db: Database, row: RequestRow, record: Record) -> Sent:
        raw, view = self.chain(db, row.raw_tip, row.session), self.chain(db, row.view_tip, row.session)
        origin = align([node.content for node in view], [node.content for node in raw])
        form = [VERBATIM] * len(view)
        open_places = [at for at, place in enumerate(origin) if place is None]
        why = (
            causes([(row.id, browse.listed_drops(record.ledger)), *browse.decisions(db, row, DECISIONS)]) if raw else {}
        )
        between = gaps(origin, len(raw))
        messages, readings = self.read_nodes(db, [view[at] for at in open_places])
        taken: set[int] = set()
        for at, message, reading in zip(open_places, messages, readings, strict=True):
            if is_written(message):
                form[at] = SUMMARY
                continue
            origin[at] = self._origin(db, message, raw, between[at], taken, why)
            taken.update(place for place in (origin[at],) if place is not None)
            bare = all(item.stays for item in reading.items)
            form[at] = CARRIED if bare else RECALLED if has_block(message) else SHORTENED
        return Sent(
            raw=raw, view=view, origin=tuple(origin), form=tuple(form), active=self._active(db, raw), causes=why
        )

    def _origin(
        self,
        db: Database,
        message: ModelMessage,
        raw: Sequence[Node],
        between: range,
        taken: set[int],
        why: Mapping[int, Sequence[Cause]],
    ) -> int | None:
        """Raw position of a shortened message."""
        free = [at for at in between if at not in taken]
        near = [*[at for at in free if at in why], *reversed(free)][:NEAR]
        messages, _ = self.read_nodes(db, [raw[at] for at in near])
        return next((at for at, one in zip(near, messages, strict=True) if same_origin(message, one)), None)

    def _active(self, db: Database, raw: Sequence[Node]) -> int:
        """Raw position of the last message in which a user speaks."""
        for stop in range(len(raw), 0, -PAGE):
            start = max(0, stop - PAGE)
            _, readings = self.read_nodes(db, raw[start:stop])
            asked = [start + at for at, reading in enumerate(readings) if reading.asks]
            if asked:
                return asked[-1]
        return 0


def session_of(db: Database, number: int) -> SessionRow:
    """The session in that row.

    Raises:
        NotFound: there is none.
    """
    found = browse.find_session(db, number)
    if found is None:
        raise NotFound(f"no session {number} on this record")
    return found


def request_of(db: Database, number: int) -> tuple[RequestRow, Record]:
    """The request of that number.

    Raises:
        NotFound: there is none.
    """
    found = browse.find_request(db, number)
    if found is None:
        raise NotFound(f"no request {number} on this record")
    return found


def forms_of(sent: Sent) -> list[str]:
    """Form of every raw message of a request."""
    found = [ABSENT] * len(sent.raw)
    for origin, form in zip(sent.origin, sent.form, strict=True):
        if origin is not None:
            found[origin] = VERBATIM if form == RECALLED else form
    return found


def echoes(lines: Sequence[tuple[Echo, str]], reading: Reading) -> tuple[Echo, ...]:
    """Texts of a view that repeat words of a message, each once."""
    said = " ".join(searchable(reading).split())
    return tuple(dict.fromkeys(echo for echo, words in lines if words in said))


def fate_of(sent: Sent, at: int) -> Fate:
    """Fate of one raw message of a request."""
    place = sent.origin.index(at) if at in sent.origin else None
    form = ABSENT if place is None else VERBATIM if sent.form[place] == RECALLED else sent.form[place]
    cause = None if form == VERBATIM else _cause(sent.causes.get(at, ()), dropped=form in (ABSENT, CARRIED))
    reason, number = (cause.reason, cause.request) if cause else ("", None)
    return Fate(form=form, sent=place, reason=reason, step=step_of(reason), request=number)


def _cause(known: Sequence[Cause], *, dropped: bool) -> Cause | None:
    """The newest reason of the right kind, else the newest of all."""
    wanted = "drops" if dropped else "shortens"
    fitting = (one for one in known if (step := step_of(one.reason)) is not None and step.effect == wanted)
    return next(fitting, known[0] if known else None)


def reason_here(sent: Sent, at: int) -> str:
    """Reason why a message is in a view."""
    place, form = sent.origin[at], sent.form[at]
    if form == SUMMARY:
        return "written for this view"
    cause = _cause(sent.causes.get(place, ()), dropped=False) if place is not None else None
    if place is None:
        return "in another form"
    if form == RECALLED:
        return f"{why_here(VERBATIM, place, sent.active, '')}, with what was recalled for it"
    return why_here(form, place, sent.active, cause.reason if cause else "")


def longest_part(readings: Sequence[Reading], shares: int = 1) -> int:
    """Characters of one part that fit on a page, if all parts are long."""
    parts = sum(len(reading.items) for reading in readings)
    return max(LEAST, TEXT // max(parts, shares, 1))


def show(
    index: int, message: ModelMessage, reading: Reading, *, form: str, why: str, raw: int | None, longest: int | None
) -> ShownMessage:
    """A message for display."""
    return ShownMessage(
        index=index,
        role=role(reading),
        tokens=reading.tokens,
        form=VERBATIM if form == RECALLED else form,
        why=why,
        parts=show_parts(reading, VERBATIM if form == RECALLED else form, longest=longest),
        raw=raw,
        time=time_of(message),
    )
