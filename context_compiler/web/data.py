"""Values that the pages and the API show, each from one read of the record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread
from typing import cast

from pydantic_ai.messages import ModelMessage, ModelRequest

from context_compiler.compiler.origins import Fate
from context_compiler.compiler.trace import (
    Echo,
    Sent,
    Tracer,
    echoes,
    fate_of,
    forms_of,
    reason_here,
    request_of,
    session_of,
)
from context_compiler.errors import ContextCompilerError
from context_compiler.messages.display import (
    ABSENT,
    CARRIED,
    RECALLED,
    SHORTENED,
    VERBATIM,
    Bar,
    ShownMessage,
    bars,
    role,
    show_parts,
    time_of,
)
from context_compiler.messages.history import Reading, searchable
from context_compiler.record import browse
from context_compiler.record.browse import RequestRow, SessionFilter, SessionRow
from context_compiler.record.database import Database
from context_compiler.record.store import SQLStore
from context_compiler.record.values import Compile
from context_compiler.template import TemplateLibrary

PAGE = 50
"""Rows or messages of one page."""

TEXT, LEAST = 90_000, 600
"""Characters of text on one page of messages, and the least that one part may show of its own."""

WEIGHED, BIGGEST = 400, 8
"""Messages of the longest view that is searched for its biggest messages, and how many of them are listed."""


class BadRequest(ContextCompilerError):
    """A parameter has a wrong value."""


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


class Inspector(Tracer):
    """Reads one record; nothing here writes.

    Args:
        store: The record, opened read-only.
        vault: Folder whose templates come first.
        system: Folder whose templates come second.
    """

    def __init__(self, store: SQLStore, *, vault: Path | None = None, system: Path | None = None) -> None:
        super().__init__(store)
        self.template_library = TemplateLibrary(vault=vault, system=system)
        self._warm = False

    def warm(self) -> None:
        """Load the tokenizer on another thread, once: it takes a while, and the next page may need it."""
        if not self._warm:
            self._warm = True
            Thread(target=self._reader.counter.text, args=("warm",), daemon=True).start()

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
        lines = self.quotations(db, sent)
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
