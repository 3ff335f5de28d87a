"""The messages of a recorded request and where each comes from, read from the record alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic_ai.messages import ModelMessage

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
from context_compiler.messages.display import ABSENT, CARRIED, RECALLED, SHORTENED, SUMMARY, VERBATIM, quoted_lines
from context_compiler.messages.history import Reader, Reading, load_messages, reader_of, searchable
from context_compiler.record import browse
from context_compiler.record.browse import Node, RequestRow, RequestTips, SessionRow
from context_compiler.record.database import Database
from context_compiler.record.store import SQLStore
from context_compiler.record.values import Record
from context_compiler.tokens import as_counter

T = TypeVar("T")

NEAR = 400
"""Raw messages that are read to find the origin of a shortened one."""

DECISIONS = 40
"""Earlier requests that are searched for the reason why a message was cut back."""

BLOCK = 50
"""Messages that are read at once, from the end, to find the last prompt."""

CHAINS = 8
"""Chains of ids that are kept in memory."""

LINKS = 400_000
"""Messages of whole sessions that are kept in memory without their bodies."""


class NotFound(ContextCompilerError):
    """The record has no such thing."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Echo:
    """A message of a view that repeats words of an earlier one."""

    form: str
    """quoted, recalled or instruction."""
    sent: int
    """Position in the view."""


class Tracer:
    """Reads the requests of one record, and keeps the last of them; nothing here writes.

    Args:
        store: The record, opened read-only.
    """

    def __init__(self, store: SQLStore) -> None:
        self.store = store
        self._reader: Reader = reader_of(as_counter(None))
        self._chains: Memo[tuple[str, int], tuple[Node, ...]] = Memo(CHAINS)
        self._sent: Memo[int, Sent] = Memo(CHAINS)
        self._links: Memo[int, Mapping[str, browse.Row]] = Memo(LINKS, len)

    async def read(self, query: Callable[[Database], T]) -> T:
        """Run a query on the record."""
        return await self.store.perform(query)

    def chain(self, db: Database, tip: str | None, session: int) -> tuple[Node, ...]:
        """A chain without its bodies, from memory where it is known."""
        if tip is None:
            return ()
        known = self._chains.get((tip, session))
        if known is None:
            links = self._links.get(session) or {}
            known = tuple(_chain_of(links, tip) if tip in links else browse.chain_nodes(db, tip, session))
            self._chains.keep((tip, session), known)
        return known

    def links(self, db: Database, session: int, tips: Sequence[RequestTips]) -> Mapping[str, browse.Row]:
        """Every message of these requests of a session once, parents first, from memory where all are known."""
        known = self._links.get(session)
        found = browse.session_nodes(db, session, tips, known)
        if found is not known:
            self._links.keep(session, found)
        return found

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

    def quotations(self, db: Database, sent: Sent) -> list[tuple[Echo, str]]:
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
        for stop in range(len(raw), 0, -BLOCK):
            start = max(0, stop - BLOCK)
            _, readings = self.read_nodes(db, raw[start:stop])
            asked = [start + at for at, reading in enumerate(readings) if reading.asks]
            if asked:
                return asked[-1]
        return 0


def _chain_of(links: Mapping[str, browse.Row], tip: str) -> list[Node]:
    """A chain of messages that are in memory, oldest first."""
    found: list[Node] = []
    at: str | None = tip
    while at is not None and at in links:
        name, at, content, _, instructions = links[at]
        found.append(Node(name, content, instructions))
    return found[::-1]


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


def echoes(lines: Sequence[tuple[Echo, str]], reading: Reading) -> tuple[Echo, ...]:
    """Texts of a view that repeat words of a message, each once."""
    said = " ".join(searchable(reading).split())
    return tuple(dict.fromkeys(echo for echo, words in lines if words in said))
