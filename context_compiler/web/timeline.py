"""Timeline of a session: raw, sent and cached tokens of each request, and their cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from context_compiler.compiler.trace import session_of
from context_compiler.record import browse, totals
from context_compiler.record.browse import RequestRow, SessionRow
from context_compiler.record.costs import add_costs, sizes_of
from context_compiler.record.database import Database
from context_compiler.record.totals import MadeCompile
from context_compiler.web.data import Inspector

POINTS = 240
"""Maximum requests in one chart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One request of a timeline."""

    id: int
    turn: int
    """From 1."""
    status: str
    raw: int
    sent: int
    shared: int
    """Tokens of the beginning that it shares with the previous request, which the prompt cache contains."""
    budget: int | None
    retry: bool
    """True if the provider refused the previous request as too long, and this one was sent instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCost:
    """Costs in US dollars, as far as prices are known; None if no price is known."""

    models: tuple[str, ...]
    """Models of the requests, that of most requests first."""
    requests: int
    """Requests that were sent."""
    sent: Decimal | None
    """Input as sent, with a prompt cache that keeps every shared beginning."""
    raw: Decimal | None
    """Input if the whole history had been sent, with the same cache."""
    compiles: Decimal | None
    """All compiles, each counted once, including those that no request used."""
    unknown: tuple[str, ...]
    """Models without a known price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A page of a session's requests, oldest first."""

    session: SessionRow
    points: tuple[Point, ...]
    page: int
    """Number of the page; 1 is the newest."""
    pages: int
    total: int
    money: SessionCost


class Timelines:
    """Timelines of the sessions of one record."""

    def __init__(self, inspector: Inspector) -> None:
        self.inspector = inspector

    async def timeline(self, number: int, *, page: int = 1) -> Timeline:
        """Load one page of a session's timeline; page 1 is the newest."""

        def query(db: Database) -> Timeline:
            info = session_of(db, number)
            rows, total = browse.requests_page(db, number, limit=POINTS + 1, offset=(page - 1) * POINTS)
            ordered = rows[::-1]
            first = 1 if len(ordered) > POINTS else 0
            points = [_point(*pair) for pair in zip([None, *ordered], ordered, strict=False)][first:]
            pages = max(1, -(-total // POINTS))
            since = ordered[0].created_at if first else None
            until = ordered[-1].created_at if ordered and page > 1 else None
            unsent = totals.unsent_compiles(db, number, since, until) if page <= pages else []
            money = _money(db, number, ordered[first:], unsent)
            return Timeline(session=info, points=tuple(points), page=page, pages=pages, total=total, money=money)

        return await self.inspector.read(query)


def _point(before: RequestRow | None, request: RequestRow) -> Point:
    same_place = before is not None and before.run_id is not None and before.run_id == request.run_id
    return Point(
        id=request.id,
        turn=request.turn_index + 1,
        status=request.status,
        raw=request.tokens_raw,
        sent=request.tokens_sent,
        shared=request.cached,
        budget=request.budget,
        retry=same_place and before is not None and before.request_index == request.request_index,
    )


def _money(db: Database, session: int, rows: Sequence[RequestRow], unsent: Sequence[MadeCompile]) -> SessionCost:
    between = (rows[0].id, rows[-1].id) if rows else (0, 0)
    sums = totals.request_sums(db, [session], sizes_of, between=between)
    costs = add_costs(sums, [*totals.sent_compiles(db, session, *between), *unsent])
    requests = Counter[str]()
    for some in sums:
        requests[some.model] += some.requests
    return SessionCost(
        models=tuple(model for model, count in requests.most_common() if model and count),
        requests=costs.requests,
        sent=costs.sent,
        raw=costs.everything,
        compiles=costs.compiles,
        unknown=costs.unknown,
    )
