"""The first page: all sessions with kind, model and cost, and totals over time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from context_compiler.cache import Memo
from context_compiler.chat.transcript import safe_id, transcript_folders
from context_compiler.compiler.facts import Mention
from context_compiler.pipeline.stores import has_runs
from context_compiler.record import browse, rows
from context_compiler.record.browse import SessionFilter, SessionRow
from context_compiler.record.costs import add_costs, sizes_of
from context_compiler.record.database import Database
from context_compiler.record.totals import RequestSums, made_compiles, own_sessions, request_sums, sums_over_time
from context_compiler.record.values import is_replay
from context_compiler.web.data import PAGE, Inspector, Pages
from context_compiler.web.pipelines import open_store

AGENT, CHAT, STAGE, IMPORT, REPLAYED = "agent", "chat", "pipeline", "import", "replay"
KINDS = (AGENT, CHAT, STAGE, IMPORT, REPLAYED)
"""Kinds of sessions: of an agent or a manager, of a chat, of a stage of a pipeline, imported without a request, and a
replay."""

STEPS = ((16, timedelta(minutes=1)), (13, timedelta(hours=1)), (10, timedelta(days=1)), (10, timedelta(days=7)))
"""Lengths of a period, with the characters of a time that name it; the shortest with at most `PERIODS` is used."""

MOST = 1_000_000
"""Maximum sessions among which those of a kind are found."""

PERIODS = 72
"""Maximum periods of a chart, unless each is a week."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSession(SessionRow):
    """A session with its kind, and the price of its requests."""

    kind: str
    """One of `KINDS`."""
    model: str
    """Model of most of its requests; empty if unknown."""
    cost: Decimal | None
    """Cost of the input as sent, in US dollars; None if no price is known."""
    cost_of_everything: Decimal | None
    """Cost of the input if everything had been sent, with a prompt cache."""
    said: Mention | None = None
    """First message with the searched words, or the nearest to them; None if nothing is searched."""
    now: tuple[str, ...] | None = None
    """Forms in which the newest request has the searched words; None unless something has them as they stand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionsPage:
    """One page of the conversations that match a filter."""

    sessions: tuple[ListedSession, ...]
    pages: Pages
    filter: SessionFilter
    kind: str
    templates: tuple[str, ...]
    models: tuple[str, ...]
    near: bool = False
    """True if no message contains the searched words as they stand, so that these sessions come nearest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """Sums over the requests of one period."""

    start: datetime
    requests: int
    saved: int
    """Tokens of the raw histories that were not sent; negative if views were longer."""
    compiled: int
    """Requests that began a new cycle."""
    fallbacks: int
    money: Decimal | None
    """Dollars of input that were not paid; None if no price is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Totals of all sessions, and the same over time."""

    sessions: int
    requests: int
    tokens_raw: int
    saved: int
    compiled: int
    fallbacks: int
    over_budget: int
    money: Decimal | None
    """Dollars of input that were not paid, less those of compiles; None if no price is known."""
    unknown: tuple[str, ...]
    """Models without a known price, whose requests `money` leaves out."""
    periods: tuple[Period, ...]
    """All periods from the first request to the last; empty if they are of one period."""


class Home:
    """The first page of one record.

    Args:
        inspector: Reader of the record.
        runs: Store of pipeline runs.
        system: Folder of the chats' transcripts, unless they are in the vault or beside the record.
        vault: Folder of the vault.
    """

    def __init__(self, inspector: Inspector, runs: str, *, system: Path | None, vault: Path | None) -> None:
        self.inspector, self._runs = inspector, runs
        self._system, self._vault = system or Path("."), vault
        self._overviews: Memo[tuple[int, int], Overview] = Memo(1)

    async def sessions(self, wanted: SessionFilter, *, kind: str = "", page: int = 1) -> SessionsPage:
        """Load one page of the conversations that match a filter."""
        runs = await self._run_ids()
        kind_of = partial(self._kind, runs=runs)
        return await self.inspector.read(partial(self._sessions, wanted=wanted, kind=kind, page=page, kind_of=kind_of))

    async def overview(self) -> Overview:
        """Load the totals of all sessions."""
        return await self.inspector.read(self._overview)

    def _sessions(
        self, db: Database, wanted: SessionFilter, kind: str, page: int, kind_of: Callable[[SessionRow], str]
    ) -> SessionsPage:
        if kind:
            every, _ = browse.sessions_page(db, wanted, limit=MOST)
            numbers = [session.id for session in every if kind_of(session) == kind]
            wanted = replace(wanted, among=tuple(numbers))
        sessions, total = browse.sessions_page(db, wanted, limit=PAGE, offset=(page - 1) * PAGE)
        sums = request_sums(db, [session.id for session in sessions], sizes_of)
        by_session = {key: list(some) for key, some in groupby(sums, attrgetter("session"))}
        choices = browse.choices(db)
        return SessionsPage(
            sessions=tuple(_listed(session, by_session.get(session.id, ()), kind_of(session)) for session in sessions),
            pages=Pages(page=page, size=PAGE, total=total),
            filter=wanted,
            kind=kind,
            templates=tuple(choices["template"]),
            models=tuple(choices["model"]),
        )

    async def _run_ids(self) -> frozenset[str]:
        """Load the ids of all pipeline runs; empty if none was started, or if they cannot be read."""
        if not has_runs(self._runs):
            return frozenset()
        async with open_store(self._runs) as store:
            return frozenset(run.run_id for run in await store.runs())

    def _kind(self, session: SessionRow, runs: frozenset[str]) -> str:
        if session.session_id.partition("/")[0] in runs:
            return STAGE
        name = f"{safe_id(session.session_id)}.md" if session.session_id.strip() else ""
        folders = transcript_folders(self.inspector.store.place, self._vault, self._system, session.owner)
        if name and any((folder / name).is_file() for folder in folders):
            return CHAT
        if is_replay(session.session_id):
            return REPLAYED
        return AGENT if session.tokens_sent or session.managed else IMPORT

    def _overview(self, db: Database) -> Overview:
        _, sessions = browse.sessions_page(db, SessionFilter(), limit=0)
        return self._overviews.get_or_make((browse.newest_request(db), sessions), lambda: _load_overview(db))


def _listed(session: SessionRow, sums: Sequence[RequestSums], kind: str) -> ListedSession:
    costs, most = add_costs(sums, ()), max(sums, key=attrgetter("requests"), default=None)
    values = {field.name: getattr(session, field.name) for field in fields(session)}
    model = "" if most is None else most.model
    return ListedSession(**values, kind=kind, model=model, cost=costs.sent, cost_of_everything=costs.everything)


def _load_overview(db: Database) -> Overview:
    among = own_sessions(db)
    sums = request_sums(db, among, sizes_of)
    made = {compile_.id: compile_ for compile_ in made_compiles(db, among)}.values()
    costs = add_costs(sums, made)
    money = None if costs.sent is None or costs.everything is None else costs.everything - costs.sent
    return Overview(
        sessions=len({row.session for row in sums if row.requests}),
        requests=sum(row.requests for row in sums),
        tokens_raw=sum(row.tokens_raw for row in sums),
        saved=sum(row.tokens_raw - row.tokens_sent for row in sums),
        compiled=sum(row.compiled for row in sums),
        fallbacks=sum(row.fallbacks for row in sums),
        over_budget=sum(row.over_budget for row in sums),
        money=None if money is None else money - (costs.compiles or 0),
        unknown=costs.unknown,
        periods=tuple(_periods(db, among, sums)),
    )


def _periods(db: Database, among: Sequence[int] | None, sums: Iterable[RequestSums]) -> Iterator[Period]:
    stamps = [stamp for row in sums for stamp in (row.first_at, row.last_at) if stamp is not None]
    times = [time for time in map(rows.readable_stamp, stamps) if time is not None]
    if not times:
        return
    first, last = min(times), max(times)
    digits, step = next((candidate for candidate in STEPS if (last - first) / candidate[1] < PERIODS), STEPS[-1])
    start = datetime.fromisoformat(first.isoformat()[:digits] + ("T00" if digits == 10 else "")).replace(tzinfo=UTC)
    count = int((last - start) / step) + 1
    by_index: dict[int, list[RequestSums]] = {}
    for stamp, row in sums_over_time(db, among, sizes_of, digits):
        when = rows.readable_stamp(stamp + {16: "", 13: ":00", 10: "T00:00"}[digits] + "+00:00")
        if when is not None and 0 <= (index := int((when - start) / step)) < count:
            by_index.setdefault(index, []).append(row)
    if count > 1:
        yield from (_period(start + index * step, by_index.get(index, ())) for index in range(count))


def _period(start: datetime, sums: Iterable[RequestSums]) -> Period:
    sums = list(sums)
    costs = add_costs(sums, ())
    return Period(
        start=start,
        requests=sum(row.requests for row in sums),
        saved=sum(row.tokens_raw - row.tokens_sent for row in sums),
        compiled=sum(row.compiled for row in sums),
        fallbacks=sum(row.fallbacks for row in sums),
        money=None if costs.sent is None or costs.everything is None else costs.everything - costs.sent,
    )
