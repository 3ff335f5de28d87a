"""Read a recorded request with the origin of each of its messages, from the record alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from context_compiler.cache import CACHED, Memo
from context_compiler.compiler.echoes import LISTED, Echo, Sayings, echoes, own_text
from context_compiler.compiler.origins import (
    Cause,
    Fate,
    align,
    causes,
    gaps,
    has_block,
    is_written,
    same_origin,
    says_as_much,
    why_here,
)
from context_compiler.compiler.reasons import DROPS, SHORTENS, WRITTEN, reason_of
from context_compiler.errors import ContextCompilerError
from context_compiler.messages.display import (
    ABSENT,
    BESIDE,
    CARRIED,
    IDENTIFIER,
    PARTIAL,
    RECALLED,
    SHORTENED,
    SUMMARY,
    TOLD,
    VERBATIM,
    is_note,
    segments,
)
from context_compiler.messages.history import Reader, Reading, current_instructions, reader_of
from context_compiler.messages.items import plain_text
from context_compiler.messages.recorded import RecordedMessage, read_bodies
from context_compiler.messages.spans import Span, positions, spans
from context_compiler.record import browse, queries
from context_compiler.record.browse import Node, RequestRow, RequestTips, SessionRow
from context_compiler.record.database import Database
from context_compiler.record.store import SQLStore
from context_compiler.record.values import Compile, Record, recalled_tokens
from context_compiler.tokens import as_counter

T = TypeVar("T")

HITS = 400
"""Maximum number of matches of the text index, or of messages, that are read to find something."""


class NotFound(ContextCompilerError):
    """The record does not contain the requested item."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Raw history and view of one request, and how their messages correspond."""

    raw: tuple[Node, ...]
    view: tuple[Node, ...]
    origin: tuple[int | None, ...]
    """Raw position of each message of the view; None if it was written for the view, or is unknown."""
    form: tuple[str, ...]
    """Form of each message of the view."""
    active: int
    """Raw position at which the current turn begins."""
    causes: Mapping[int, Sequence[Cause]] = field(default_factory=dict[int, Sequence[Cause]])
    """Reasons of cuts by raw position, newest first."""
    covered: tuple[Span, ...] = ()
    """Raw positions that the summary of a model covers, if it is in the view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Texts of a request that can be searched for words of a raw message."""

    sent: Sent
    said: Sayings | None
    """None if all messages are in the request unchanged."""
    summary: int | None
    """Position of the summary in the view; None if there is none."""

    def echoes(self, position: int, reading: Reading) -> tuple[Echo, ...]:
        """Places of the request that contain words of a raw message; none if the message is there verbatim."""
        fate = fate_of(self.sent, position)
        if self.said is None or fate.form == VERBATIM:
            return ()
        return echoes(self.said, reading, None if fate.sent is None else (fate.form, fate.sent))

    def told(self, position: int) -> int | None:
        """Position of a summary that may paraphrase a raw message; None if there is none."""
        return self.summary if is_covered_by_summary(self.sent, position) else None


class Tracer:
    """Reads the requests of one record, with a cache of recent ones; never writes.

    Args:
        store: The record, opened read-only.
    """

    def __init__(self, store: SQLStore) -> None:
        self.store = store
        self._reader: Reader = reader_of(as_counter(None))
        self._uncounted = Reader(as_counter(len))
        self._chains: Memo[tuple[str, int], tuple[Node, ...]] = Memo(LISTED)
        self._longest: Memo[int, tuple[Node, ...]] = Memo(LISTED)
        self._sent: Memo[int, Sent] = Memo(LISTED)
        self._words: Memo[int, Words] = Memo(LISTED)
        self._verdicts: Memo[int, tuple[list[str], bool]] = Memo(LISTED)
        self._links: Memo[int, Mapping[str, browse.Row]] = Memo(CACHED, len)

    async def read(self, query: Callable[[Database], T]) -> T:
        """Run a query on the record."""
        return await self.store.perform(query)

    def chain(self, db: Database, tip: str | None, session: int) -> tuple[Node, ...]:
        """Chain of messages without their bodies, from the cache if possible; empty if `tip` is None."""
        if tip is None:
            return ()
        cached = self._chains.get((tip, session))
        if cached is None:
            links, longest = self._links.get(session) or {}, self._longest.get(session) or ()
            cached = tuple(_chain_of(links, tip) if tip in links else browse.chain_nodes(db, tip, session, longest))
            self._chains.keep((tip, session), cached)
            if len(cached) > len(longest):
                self._longest.keep(session, cached)
        return cached

    def links(self, db: Database, session: int, tips: Sequence[RequestTips]) -> Mapping[str, browse.Row]:
        """Distinct messages of these requests of a session, parents first, from the cache if possible."""
        cached = self._links.get(session)
        nodes = browse.session_nodes(db, session, tips, cached)
        if nodes is not cached:
            self._links.keep(session, nodes)
        return nodes

    def read_nodes(self, db: Database, nodes: Sequence[Node]) -> tuple[list[RecordedMessage], list[Reading]]:
        """Read messages of a chain, with their readings."""
        return self._read(db, nodes, self._reader)

    def trace(self, db: Database, row: RequestRow, record: Record) -> Sent:
        """Read both chains of a request, and find origin and form of every message of its view."""
        return self._sent.get_or_make(row.id, lambda: self._align(db, row, record))

    def words(self, db: Database, row: RequestRow, sent: Sent) -> Words:
        """Texts of a request, ready to be searched."""
        return self._words.get_or_make(row.id, lambda: self._read_words(db, row, sent))

    def _read_words(self, db: Database, row: RequestRow, sent: Sent) -> Words:
        if all(form in (VERBATIM, RECALLED) for form in sent.form) and len(sent.view) == len(sent.raw):
            return Words(sent=sent, said=None, summary=None)
        messages, readings = self._read(db, sent.view, self._uncounted)
        items = [(index, item) for index, reading in enumerate(readings) for item in reading.items]
        ours = [(index, piece) for index, item in items if item.mark is not None for piece in segments(item.text)]
        written = [(piece.form, index, piece.text) for index, piece in ours]
        summaries = [(len(text), index) for form, index, text in written if form == SUMMARY]
        summary = max(summaries)[1] if summaries else None
        beside = list(filter(None, [current_instructions(messages)]))
        for tool in queries.tools(db, row.id) or ():
            beside.append(f"{tool.name}\n{tool.description or ''}\n{plain_text(tool.parameters)}")
        others = [(VERBATIM, index, own_text(item)) for index, item in items if item.mark is None]
        return Words(
            sent=sent, said=Sayings([*written, *((BESIDE, None, text) for text in beside), *others]), summary=summary
        )

    def verdicts(self, db: Database, row: RequestRow, sent: Sent) -> tuple[list[str], bool]:
        """Verdict on each raw message, and True if all left-out messages were searched.

        In a very long history they are not searched, so a message may be called absent although some of its words are
        in the request.
        """
        return self._verdicts.get_or_make(row.id, lambda: self._find_verdicts(db, row, sent))

    def _find_verdicts(self, db: Database, row: RequestRow, sent: Sent) -> tuple[list[str], bool]:
        forms = forms_of(sent)
        out = [position for position, form in enumerate(forms) if form in (ABSENT, CARRIED)]
        if not out:
            return forms, True
        words = self.words(db, row, sent)
        searched = out if len(out) <= HITS else []
        for position, reading in zip(
            searched, self.uncounted(db, [sent.raw[position] for position in searched]), strict=True
        ):
            forms[position] = verdict_of(fate_of(sent, position), words.echoes(position, reading), words.told(position))
        return forms, len(out) == len(searched)

    def last_words(self, db: Database, row: RequestRow, sent: Sent, position: int) -> int | None:
        """Request at which the last words of a raw message left, if they stayed longer than the message itself.

        Words that were recalled for one prompt do not count.
        """
        if self._says(db, row, sent, position):
            return None
        dropped = fate_of(sent, position).request or 0
        cuts = [number for number, _ in browse.decisions(db, row, LISTED) if number >= dropped]
        left = row.id if row.status not in ("cycle", "raw") else None
        for number in cuts:
            earlier, record = request_of(db, number)
            if self._says(db, earlier, self.trace(db, earlier, record), position):
                return left
            left = number
        return None

    def _says(self, db: Database, row: RequestRow, sent: Sent, position: int) -> bool:
        """True if a request has words of a raw message, apart from recalled ones."""
        if position >= len(sent.raw):
            return False
        words, (reading,) = self.words(db, row, sent), self.uncounted(db, [sent.raw[position]])
        lasting = [echo for echo in words.echoes(position, reading) if echo.form != RECALLED]
        return verdict_of(fate_of(sent, position), lasting, words.told(position)) not in (ABSENT, IDENTIFIER, CARRIED)

    def uncounted(self, db: Database, nodes: Sequence[Node]) -> list[Reading]:
        """Readings of messages without token counts."""
        return self._read(db, nodes, self._uncounted)[1]

    def _read(self, db: Database, nodes: Sequence[Node], reader: Reader) -> tuple[list[RecordedMessage], list[Reading]]:
        messages = read_bodies(browse.message_bodies(db, nodes)) if nodes else []
        return messages, [reader.one_recorded(message) for message in messages]

    def _align(self, db: Database, row: RequestRow, record: Record) -> Sent:
        raw, view = self.chain(db, row.raw_tip, row.session), self.chain(db, row.view_tip, row.session)
        origin = align([node.content for node in view], [node.content for node in raw])
        form = [VERBATIM] * len(view)
        open_places = [index for index, position in enumerate(origin) if position is None]
        why = causes([(row.id, browse.listed_drops(record.ledger)), *browse.decisions(db, row, LISTED)]) if raw else {}
        between = gaps(origin, len(raw))
        messages, readings = self._read(db, [view[index] for index in open_places], self._uncounted)
        noted = any(is_note(item) for reading in readings for item in reading.items)
        taken = {position for position in origin if position is not None}
        for index, message, reading in zip(open_places, messages, readings, strict=True):
            if is_written(message):
                form[index] = SUMMARY
                continue
            origin[index] = self._origin(db, message, raw, between[index], taken, why)
            taken.update(position for position in (origin[index],) if position is not None)
            bare = all(item.stays for item in reading.items)
            form[index] = CARRIED if bare else SHORTENED
            if has_block(message) and (position := origin[index]) is not None:
                original = self._read(db, [raw[position]], self._uncounted)[0][0]
                form[index] = RECALLED if says_as_much(message, original) else SHORTENED
        return Sent(
            raw=raw,
            view=view,
            origin=tuple(origin),
            form=tuple(form),
            active=self._active(db, raw),
            causes=why,
            covered=tuple(_covered(record.compile)) if noted else (),
        )

    def _origin(
        self,
        db: Database,
        message: RecordedMessage,
        raw: Sequence[Node],
        between: range,
        taken: set[int],
        why: Mapping[int, Sequence[Cause]],
    ) -> int | None:
        """Raw position of a shortened message: the possible origin that shares most of its words; None if unknown."""
        free = [position for position in between if position not in taken]
        carried = (
            position for position in why if position not in taken and position not in between and position < len(raw)
        )
        near = [*dict.fromkeys([*(position for position in free if position in why), *reversed(free), *carried])][:HITS]
        messages = read_bodies(browse.message_bodies(db, [raw[position] for position in near])) if near else []
        possible = [
            (position, candidate)
            for position, candidate in zip(near, messages, strict=True)
            if same_origin(message, candidate)
        ]
        if len(possible) < 2:
            return possible[0][0] if possible else None
        words = self._vocabulary(message)
        return max(possible, key=lambda pair: len(words & self._vocabulary(pair[1])))[0]

    def _vocabulary(self, message: RecordedMessage) -> set[str]:
        return {word for item in self._uncounted.one_recorded(message).items for word in own_text(item).split()}

    def _active(self, db: Database, raw: Sequence[Node]) -> int:
        """Raw position of the last user prompt."""
        for stop in range(len(raw), 0, -LISTED):
            start = max(0, stop - LISTED)
            readings = self.uncounted(db, raw[start:stop])
            asked = [start + offset for offset, reading in enumerate(readings) if reading.has_prompt]
            if asked:
                return asked[-1]
        return 0


def _chain_of(links: Mapping[str, browse.Row], tip: str) -> list[Node]:
    """Chain that ends with `tip`, from cached messages, oldest first."""
    nodes: list[Node] = []
    parent: str | None = tip
    while parent is not None and parent in links:
        name, parent, content, _, instructions = links[parent]
        nodes.append(Node(name, content, instructions))
    return nodes[::-1]


def session_of(db: Database, number: int) -> SessionRow:
    """Session with a row number.

    Raises:
        NotFound: There is no such session.
    """
    row = browse.find_session(db, number)
    if row is None:
        raise NotFound(f"no session {number} on this record")
    return row


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A request that decided what its later requests leave out, with the numbers of the rule."""

    request: int
    turn: int
    """From 1."""
    raw: int
    """Tokens of the whole history."""
    sent: int
    """Tokens of what was sent."""
    recalled: int
    """Tokens of its recall blocks."""
    budget: int | None
    size: int | None = None
    """Tokens that the request would have had without a cut; None if the record does not say."""
    threshold: int | None = None
    """Size above which an agent's request is cut; None for a view of its own."""
    target: int | None = None
    """Size to which it is cut."""
    turns: int | None = None
    """Number of earlier turns that stay, if their number decided."""
    ordered: bool = False
    """True if someone ordered the cut."""

    def __str__(self) -> str:
        """The rule in one sentence."""
        return " ".join(filter(None, (f"Request {self.request} (turn {self.turn}) {self._cause}.", self._kept)))

    @property
    def _cause(self) -> str:
        size, budget = self.size or self.raw, f"budget of {self.budget or 0:,}"
        if self.ordered:
            return f"was compiled by order, and cut from {size:,} tokens to {self.sent:,}"
        if self.threshold is None or self.target is None:
            within = f" for a {budget}" if self.budget else ""
            return f"had {size:,} tokens{within}, and was cut to {self.sent:,}"
        above = (
            f"the threshold of {self.threshold:,} in a {budget}" if self.threshold != self.budget else f"its {budget}"
        )
        needed = f"would have had {size:,} tokens, above {above}"
        if size <= self.threshold:
            room = "which left too little room for recall" if self.recalled else "and was compiled anew"
            needed = f"would have had {size:,} of {self.budget or 0:,} tokens, {room}"
        recalled = f", {self.recalled:,} of them recalled" if self.recalled else ""
        goal = f"The compile aimed at {self.target:,}, to leave room for later turns"
        return f"{needed}. {goal}; {self.sent:,} were sent{recalled}"

    @property
    def _kept(self) -> str:
        if self.turns is None:
            return ""
        return f"At most {self.turns:,} of its earlier turns had room." if self.turns else "No earlier turn had room."


def cuts_of(db: Database, numbers: Iterable[int | None]) -> tuple[Cut, ...]:
    """The requests that decided the fates of messages, in order, each once; None and 0 are none."""
    return tuple(cut_of(*request_of(db, number)) for number in sorted({number for number in numbers if number}))


def cut_of(row: RequestRow, record: Record) -> Cut:
    """The cut of a request that began a new cycle."""
    numbers = cast("Mapping[str, Any]", record.ledger.get("cut") or {})
    return Cut(
        request=row.id,
        turn=row.turn_index + 1,
        raw=row.tokens_raw,
        sent=row.tokens_sent,
        recalled=recalled_tokens(record),
        budget=row.budget,
        **{name: numbers.get(name) for name in ("size", "threshold", "target", "turns")},
        ordered=bool(numbers.get("ordered")),
    )


def request_of(db: Database, number: int) -> tuple[RequestRow, Record]:
    """Request with a number, and its record.

    Raises:
        NotFound: There is no such request.
    """
    request = browse.find_request(db, number)
    if request is None:
        raise NotFound(f"no request {number} on this record")
    return request


def forms_of(sent: Sent) -> list[str]:
    """Form of every raw message of a request."""
    forms = [ABSENT] * len(sent.raw)
    for origin, form in zip(sent.origin, sent.form, strict=True):
        if origin is not None:
            forms[origin] = VERBATIM if form == RECALLED else form
    return forms


def fate_of(sent: Sent, position: int) -> Fate:
    """Fate of one raw message of a request."""
    index = sent.origin.index(position) if position in sent.origin else None
    form = ABSENT if index is None else VERBATIM if sent.form[index] == RECALLED else sent.form[index]
    cause = None if form == VERBATIM else _cause(sent.causes.get(position, ()), dropped=form in (ABSENT, CARRIED))
    reason, number = (cause.reason, cause.request) if cause else ("", None)
    rule = reason_of(reason)
    return Fate(form=form, sent=index, reason=reason, step=rule.step if rule else None, request=number)


def _cause(causes: Sequence[Cause], *, dropped: bool) -> Cause | None:
    """Newest cause whose step drops (or shortens) messages, else the newest of all; None if there is none."""
    wanted = DROPS if dropped else SHORTENS
    reasons = map(reason_of, [cause.reason for cause in causes])
    matching = (cause for cause, reason in zip(causes, reasons, strict=True) if reason and reason.step.effect == wanted)
    return next(matching, causes[0] if causes else None)


def reason_here(sent: Sent, index: int) -> str:
    """Reason why a message is in a view."""
    position, form = sent.origin[index], sent.form[index]
    if form == SUMMARY:
        return WRITTEN
    cause = _cause(sent.causes.get(position, ()), dropped=False) if position is not None else None
    if position is None:
        return "in another form"
    if form == RECALLED:
        return f"{why_here(VERBATIM, position, sent.active, '')}, with text added to it"
    return why_here(form, position, sent.active, cause.reason if cause else "")


def is_covered_by_summary(sent: Sent, position: int) -> bool:
    """True if a raw message was left out of the request but is covered by its summary."""
    covered = any(start <= position < stop for start, stop in sent.covered)
    return covered and fate_of(sent, position).form in (ABSENT, CARRIED)


def verdict_of(fate: Fate, repeated: Sequence[Echo], told: int | None) -> str:
    """Verdict on one raw message: the fullest form in which its content is in the request.

    One of verbatim, shortened, partial (words of it are elsewhere), identifier (only identifiers are elsewhere),
    carried, told (a summary may paraphrase it) and absent.
    """
    if fate.form in (VERBATIM, SHORTENED):
        return fate.form
    elsewhere = {echo.form for echo in repeated} - {CARRIED}
    if elsewhere:
        return IDENTIFIER if elsewhere == {IDENTIFIER} else PARTIAL
    return fate.form if fate.form == CARRIED else ABSENT if told is None else TOLD


def _covered(made: Compile | None) -> Iterator[Span]:
    """Raw positions covered by the model's summary in the view, which this compile or an earlier one wrote."""
    payload = made.input_payload if made is not None else None
    if made is None or payload is None:
        return
    gone, fresh = (_spans(payload.get(name)) for name in ("left_out", "compiled"))
    if made.raw_output is not None and made.status.partition(";")[0] == "ok":
        fresh = _spans(payload.get("left_to_the_next"))
    not_yet = positions(fresh)
    yield from spans(position for position in sorted(positions(gone)) if position not in not_yet)


def _spans(value: object) -> list[Span]:
    pairs = cast("list[tuple[int, int]]", value) if isinstance(value, list) else []
    return [(start, stop) for start, stop in pairs]
