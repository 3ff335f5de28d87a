"""Values shown by the pages and the API, and the `Inspector` that reads them from a record."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, cast

from pydantic_ai.messages import ModelMessage

from context_compiler.compiler.facts import pinned_positions
from context_compiler.compiler.origins import Fate
from context_compiler.compiler.trace import (
    Cut,
    Echo,
    NotFound,
    Sent,
    Tracer,
    cuts_of,
    fate_of,
    reason_here,
    request_of,
    session_of,
    verdict_of,
)
from context_compiler.errors import ContextCompilerError
from context_compiler.messages.bodies import load_messages
from context_compiler.messages.display import (
    ABSENT,
    CARRIED,
    IDENTIFIER,
    PARTIAL,
    RECALLED,
    SHORTENED,
    TOLD,
    VERBATIM,
    Bar,
    ShownMessage,
    bars,
    mark_words,
    role,
    show_parts,
    time_of,
)
from context_compiler.messages.history import Reading, current_instructions, searchable
from context_compiler.messages.items import MESSAGE_OVERHEAD
from context_compiler.messages.printable import safe
from context_compiler.messages.recorded import RecordedMessage
from context_compiler.middleware.remedies import Remedy, find_remedy, places
from context_compiler.middleware.request import tool_tokens
from context_compiler.record import browse, queries
from context_compiler.record.browse import ModelCall, RequestRow, SessionRow
from context_compiler.record.database import Database
from context_compiler.record.store import SQLStore
from context_compiler.record.values import Compile, Record, Tool
from context_compiler.template import TemplateLibrary
from context_compiler.web.live import Shown
from context_compiler.web.rules import ShownRule, shown_rules

NEWEST = 8
"""Messages at the end of a view among which those of the current request are looked for."""
PAGE = 50
"""Rows or messages per page."""

MAX_PAGE_TEXT, MIN_PART_TEXT = 90_000, 600
"""Maximum characters of text on one page of messages, and minimum characters shown of each part."""

WEIGHED, BIGGEST = 400, 8
"""Maximum messages of a view that is searched for its biggest messages, and number of messages listed."""

VERDICTS = (VERBATIM, SHORTENED, PARTIAL, IDENTIFIER, CARRIED, TOLD, ABSENT)
"""Verdicts on a raw message, from fully to not at all in the request."""


class BadRequest(ContextCompilerError):
    """Error for a parameter or field with an invalid value."""


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
        """Number of entries before this page."""
        return (self.page - 1) * self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPage:
    """One conversation with its requests, newest first."""

    session: SessionRow
    requests: tuple[RequestRow, ...]
    pages: Pages
    status: str
    statuses: Mapping[str, int]
    """Number of requests of the session by status."""
    under_way: tuple[ModelCall, ...]
    """Compiles that a model is writing now."""
    mark: str
    """Mark of all requests of the session; `/live?since=` sends those that come after them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """An argument of a tool, as its schema describes it."""

    name: str
    kind: str
    required: bool
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTool:
    """A tool or output schema that was sent with a request."""

    tool: Tool
    tokens: int
    arguments: tuple[Argument, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHeader:
    """A request and its session, with the numbers of the requests before and after it."""

    session: SessionRow
    request: RequestRow
    before: int | None
    after: int | None


def header_of(db: Database, row: RequestRow) -> dict[str, Any]:
    """Load the fields of `RequestHeader`."""
    before, after = browse.neighbours(db, row)
    return {"session": session_of(db, row.session), "request": row, "before": before, "after": after}


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePage(RequestHeader):
    """One message of a request, with its JSON from the record."""

    message: ShownMessage
    total: int
    """Number of messages in the request."""
    json: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contributor:
    """A message that takes many tokens of a request."""

    index: int
    role: str
    tokens: int
    form: str
    begins: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPage(RequestHeader):
    """One request: its figures, and one page of its messages in order."""

    nulls: str
    """Reasons why columns of its row are empty."""
    bar: tuple[Bar, ...]
    messages: tuple[ShownMessage, ...]
    pages: Pages
    words: str
    """Words that are searched for; empty for none."""
    found: tuple[int, ...]
    """Positions of all messages of the request, on any page, that contain these words in any case."""
    biggest: tuple[Contributor, ...]
    """Messages with the most tokens; empty for a very long view."""
    instructions: str
    instructions_tokens: int
    rules: tuple[ShownRule, ...]
    """Rules of the conversation: those in force, then those that were replaced."""
    tools: tuple[ShownTool, ...] | None
    """Tools and output schemas sent with the messages; None if they are not on the record."""
    steerable: bool
    """True if the session's history still begins with this request's, so that messages can be pinned by position."""
    pinned: tuple[int, ...]
    """Raw positions of the pinned messages on this page."""
    request_hash: str | None
    compile: Compile | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RawMessage:
    """One message of the raw history, and what became of it in a request."""

    message: ShownMessage
    fate: Fate
    verdict: str
    """One of `VERDICTS`.

    verbatim · shortened · partial: some of its words are in the request · identifier: only identifiers of it ·
    carried: only the parts that the host needs · told: a summary covers it · absent.
    """
    echoes: tuple[Echo, ...]
    """Places of the request that contain words of the message, if it is not in the request word for word."""
    told: int | None
    """Position of a summary that covers the message, and may state it in other words."""
    last_words: int | None
    """Request at which the last words of a named message left, if they stayed longer than it; else None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyPage(RequestHeader):
    """Raw history of one request: whether each message is in it, and the step of the cut order that decided."""

    counts: Mapping[str, int]
    """Number of messages by verdict."""
    strip: str
    """One letter per raw message: the first letter of its verdict."""
    searched: bool
    """True if the request was searched for words of all dropped messages, not only of those on this page."""
    messages: tuple[RawMessage, ...]
    cuts: tuple[Cut, ...]
    """The requests that left out or shortened messages of this page."""
    message: str
    """The only message shown, such as `m12`; empty for all of the page."""
    remedy: Remedy | None
    """Changes that would have kept that message; None if it is in the request, or if none is named."""
    pages: Pages
    only: str
    steerable: bool
    """True if the session's history still begins with this request's, so that messages can be pinned by position."""
    pinned: tuple[int, ...]
    """Raw positions of the pinned messages on this page."""


class Inspector(Tracer):
    """Reader of one record; it never writes.

    Args:
        store: The record, opened read-only.
        vault: Folder whose templates are searched first.
        system: Folder whose templates are searched second.
    """

    def __init__(self, store: SQLStore, *, vault: Path | None = None, system: Path | None = None) -> None:
        super().__init__(store)
        self.template_library = TemplateLibrary(vault=vault, system=system)
        self._warm = False

    def warm(self) -> None:
        """Load the tokenizer in a thread, once, because it is slow to load and the next page may need it."""
        if not self._warm:
            self._warm = True
            Thread(target=self._reader.counter.text, args=("warm",), daemon=True).start()

    def host_messages(self, db: Database, nodes: Sequence[browse.Node]) -> list[ModelMessage]:
        """Load messages of a chain as the host's, such as to compile them again."""
        return load_messages(browse.message_bodies(db, nodes)) if nodes else []

    async def session(self, number: int, *, page: int = 1, status: str = "") -> SessionPage:
        """Load one conversation and one page of its requests."""

        def query(db: Database) -> SessionPage:
            info = session_of(db, number)
            before = Shown.now(db, number)
            requests, total = browse.requests_page(db, number, limit=PAGE, offset=(page - 1) * PAGE, status=status)
            return SessionPage(
                session=info,
                requests=tuple(requests),
                pages=Pages(page=page, size=PAGE, total=total),
                status=status,
                statuses=browse.statuses(db, number),
                under_way=tuple(browse.calls_in_progress(db, number)),
                mark=before.plus(request.id for request in requests).mark,
            )

        return await self.read(query)

    async def request(self, number: int, *, page: int = 1, words: str = "") -> RequestPage:
        """Load one request and one page of its messages, and search all of them for words."""
        loaded = await self.read(partial(self._request, number=number, page=page, words=words))
        positions = [shown.raw for shown in loaded.messages if shown.raw is not None]
        return replace(loaded, pinned=await self._steerable_pins(loaded, positions))

    async def message(self, number: int, index: int) -> MessagePage:
        """Load one message of a request by its position."""
        return await self.read(partial(self._message, number=number, index=index))

    async def why(self, number: int, *, page: int = 1, only: str = "", message: str = "") -> WhyPage:
        """Load one page of the raw history of a request, with what became of each message.

        Args:
            number: The request.
            page: From 1.
            only: Show only messages with this verdict.
            message: Show only this message, such as `m12`, and find what would have kept it.

        Raises:
            NotFound: The request has no such message.
        """
        loaded = await self.read(partial(self._why, number=number, page=page, only=only, message=message))
        if message and loaded.messages[0].verdict != VERBATIM:
            loaded = replace(loaded, remedy=await self._remedy(number, loaded.messages[0].message.index))
        pinned = await self._steerable_pins(loaded, [shown.message.index for shown in loaded.messages])
        remedy = loaded.remedy and replace(loaded.remedy, pinned=loaded.remedy.message in pinned)
        return replace(loaded, pinned=pinned, remedy=remedy)

    async def _remedy(self, number: int, position: int) -> Remedy:
        """Find what would have kept a message, in a thread, because histories are compiled again."""

        def query(db: Database) -> tuple[RequestRow, Record, list[ModelMessage]]:
            row, record = request_of(db, number)
            return row, record, self.host_messages(db, self.chain(db, row.raw_tip, row.session))

        row, record, raw = await self.read(query)
        work = partial(find_remedy, raw, row, record, self.template_library, position)
        return await asyncio.to_thread(lambda: asyncio.run(work()))

    async def _steerable_pins(self, shown: RequestPage | WhyPage, positions: Sequence[int]) -> tuple[int, ...]:
        """Those of some positions in the raw history of a request that are pinned."""
        row = shown.request

        def query(db: Database) -> tuple[int, ...]:
            return pinned_positions(db, row.session, self.chain(db, row.raw_tip, row.session), positions)

        return await self.read(query) if shown.steerable else ()

    def _request(self, db: Database, number: int, page: int, words: str) -> RequestPage:
        row, record = request_of(db, number)
        sent = self.trace(db, row, record)
        pages = Pages(page=page, size=PAGE, total=len(sent.view))
        positions = range(len(sent.view))[pages.offset : pages.offset + PAGE]
        newest, _ = self.read_nodes(db, sent.view[-NEWEST:])
        instructions = current_instructions(newest)
        counter = self._reader.counter
        return RequestPage(
            **header_of(db, row),
            nulls="; ".join(note for note in map(str.strip, record.status.split(";")[1:]) if note != "error: none"),
            rules=tuple(shown_rules(self, db, sent, row, record)),
            bar=tuple(bars(cast("Mapping[str, int]", record.ledger.get("tokens", {})), row.budget or 0)),
            messages=tuple(self._show_view(db, sent, positions)),
            pages=pages,
            words=words,
            found=places(self.host_messages(db, sent.view), words) if words else (),
            biggest=tuple(self._biggest(db, sent)),
            instructions=instructions,
            instructions_tokens=counter.text(instructions) + MESSAGE_OVERHEAD if instructions else 0,
            tools=self._tools(db, number),
            steerable=self._is_steerable(db, row),
            pinned=(),
            request_hash=record.request_hash,
            compile=record.compile,
        )

    def _is_steerable(self, db: Database, row: RequestRow) -> bool:
        """True if the newest raw history of the session begins with the raw history of the request."""
        whole = self.chain(db, browse.newest_raw_tip(db, row.session), row.session)
        return [node.id for node in whole[: row.messages_raw][-1:]] == [row.raw_tip]

    def _tools(self, db: Database, number: int) -> tuple[ShownTool, ...] | None:
        tools = queries.tools(db, number)
        if tools is None:
            return None
        return tuple(
            ShownTool(tool=tool, tokens=tool_tokens(tool, self._reader.counter), arguments=tuple(arguments(tool)))
            for tool in tools
        )

    def _message(self, db: Database, number: int, index: int) -> MessagePage:
        row, record = request_of(db, number)
        sent = self.trace(db, row, record)
        if index >= len(sent.view):
            raise NotFound(f"request {number} has no message {index}")
        (body,) = browse.message_bodies(db, [sent.view[index]])
        (shown,) = self._show_view(db, sent, [index])
        return MessagePage(
            **header_of(db, row),
            message=shown,
            total=len(sent.view),
            json=pretty(json.loads(body)),
        )

    def _show_view(self, db: Database, sent: Sent, positions: Sequence[int]) -> list[ShownMessage]:
        messages, readings = self.read_nodes(db, [sent.view[position] for position in positions])
        longest = longest_part(readings)
        return [
            show(
                position,
                message,
                reading,
                form=sent.form[position],
                why=reason_here(sent, position),
                raw=sent.origin[position],
                longest=longest,
            )
            for position, message, reading in zip(positions, messages, readings, strict=True)
        ]

    def _biggest(self, db: Database, sent: Sent) -> Iterator[Contributor]:
        _, readings = self.read_nodes(db, sent.view if len(sent.view) <= WEIGHED else ())
        for position, reading in sorted(enumerate(readings), key=lambda pair: -pair[1].tokens)[:BIGGEST]:
            begins = " ".join(searchable(reading)[:400].split())[:100]
            form = VERBATIM if sent.form[position] == RECALLED else sent.form[position]
            yield Contributor(index=position, role=role(reading), tokens=reading.tokens, form=form, begins=begins)

    def _why(self, db: Database, number: int, page: int, only: str, message: str) -> WhyPage:
        row, record = request_of(db, number)
        sent = self.trace(db, row, record)
        verdicts, searched = self.verdicts(db, row, sent)
        counts = {verdict: verdicts.count(verdict) for verdict in VERDICTS}
        chosen = [
            position
            for position, verdict in enumerate(verdicts)
            if (message == f"m{position}" if message else only in ("", verdict))
        ]
        if message and not chosen:
            raise NotFound(f"message={message[:40]!r}: give m0 to m{len(verdicts) - 1}")
        pages = Pages(page=page, size=PAGE, total=len(chosen))
        positions = chosen[pages.offset : pages.offset + PAGE]
        shown = [*self._show_raw(db, row, sent, positions, named=bool(message))]
        return WhyPage(
            **header_of(db, row),
            counts=counts,
            strip="".join(verdict[0] for verdict in verdicts),
            searched=searched,
            messages=tuple(shown),
            cuts=cuts_of(db, (number for each in shown for number in (each.fate.request, each.last_words))),
            message=message,
            remedy=None,
            pages=pages,
            only=only,
            steerable=self._is_steerable(db, row),
            pinned=(),
        )

    def _show_raw(
        self, db: Database, row: RequestRow, sent: Sent, positions: Sequence[int], *, named: bool
    ) -> Iterator[RawMessage]:
        bodies, readings = self.read_nodes(db, [sent.raw[position] for position in positions])
        longest = longest_part(readings, PAGE)
        words = self.words(db, row, sent)
        for position, body, reading in zip(positions, bodies, readings, strict=True):
            fate, repeated, told = fate_of(sent, position), words.echoes(position, reading), words.told(position)
            verdict = verdict_of(fate, repeated, told)
            seen = show(position, body, reading, form=verdict, why="", raw=None, longest=longest)
            there = [(echo.form, words) for echo in repeated for words in echo.words]
            marked = (mark_words(part, there) if len(part.segments) == 1 else part for part in seen.parts)
            seen = replace(seen, parts=tuple(marked))
            last = self.last_words(db, row, sent, position) if named else None
            yield RawMessage(message=seen, fate=fate, verdict=verdict, echoes=repeated, told=told, last_words=last)


def arguments(tool: Tool) -> Iterator[Argument]:
    """Iterate over the arguments in the schema of a tool."""
    required = _list(tool.parameters.get("required"))
    for name, schema in _mapping(tool.parameters.get("properties")).items():
        about = _mapping(schema)
        text = str(about.get("description") or "")
        yield Argument(name=name, kind=_kind(about), required=name in required, description=text)


def _kind(schema: Mapping[str, Any]) -> str:
    """Describe the type of an argument briefly."""
    if values := _list(schema.get("enum")):
        return " | ".join(map(json.dumps, values))
    if choices := _list(schema.get("anyOf")) or _list(schema.get("oneOf")):
        return " | ".join(_kind(_mapping(choice)) for choice in choices)
    kind = schema.get("type") or str(schema.get("$ref", "any")).rpartition("/")[2]
    items = _mapping(schema.get("items"))
    return f"{kind} of {_kind(items)}" if items else str(kind)


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _list(value: object) -> Sequence[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else ()


def pretty(value: object) -> str:
    """Format a value as indented JSON."""
    return safe(json.dumps(value, indent=2, ensure_ascii=False).encode("utf-8", "backslashreplace").decode())


def longest_part(readings: Sequence[Reading], shares: int = 1) -> int:
    """Return the characters available to each message part so that all of them fit on a page.

    Args:
        readings: Messages of the page.
        shares: Minimum number of parts to divide the page by.
    """
    parts = sum(len(reading.items) for reading in readings)
    return max(MIN_PART_TEXT, MAX_PAGE_TEXT // max(parts, shares, 1))


def show(
    index: int,
    message: ModelMessage | RecordedMessage,
    reading: Reading,
    *,
    form: str,
    why: str,
    raw: int | None,
    longest: int | None,
) -> ShownMessage:
    """Build a message for display."""
    part_form = VERBATIM if form == RECALLED else ABSENT if form == IDENTIFIER else form
    return ShownMessage(
        index=index,
        role=role(reading),
        tokens=reading.tokens,
        form=VERBATIM if form == RECALLED else form,
        why=why,
        parts=show_parts(reading, part_form, longest=longest),
        raw=raw,
        time=time_of(message),
    )
