"""Timeline of a session: raw, sent and cached tokens of each request, and their cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from pydantic_ai.messages import ModelResponse

from context_compiler.cache import Memo
from context_compiler.compiler.trace import session_of
from context_compiler.record import browse, totals
from context_compiler.record.browse import RequestRow, SessionRow
from context_compiler.record.database import Database
from context_compiler.tokens.prices import cost_of, price_of
from context_compiler.web.data import Inspector

POINTS = 240
"""Maximum requests in one chart."""

LOOKS, NEAR = 3, 6
"""Newest requests that are searched for the model that answers, and newest messages of each."""

COMPARED = 4_000
"""Maximum messages of a view whose tokens are counted as shared."""


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
    """Tokens of the beginning that it shares with the previous request, which a prompt cache keeps."""
    budget: int | None
    retry: bool
    """True if the provider refused the previous request as too long, and this one was sent instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCost:
    """Costs in US dollars; None if a price is unknown."""

    model: str | None
    """Model of the answers, by its provider's name."""
    requests: int
    """Number of requests counted."""
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
        self._shared: Memo[tuple[int, int], int] = Memo(20_000)

    async def timeline(self, number: int, *, page: int = 1) -> Timeline:
        """Load one page of a session's timeline; page 1 is the newest."""

        def query(db: Database) -> Timeline:
            info = session_of(db, number)
            rows, total = browse.requests_page(db, number, limit=POINTS + 1, offset=(page - 1) * POINTS)
            ordered = rows[::-1]
            first = 1 if len(ordered) > POINTS else 0
            pairs = zip([None, *ordered], ordered, strict=False)
            points = [self._point(db, before, request) for before, request in pairs][first:]
            pages = max(1, -(-total // POINTS))
            since = ordered[0].created_at if first else None
            until = ordered[-1].created_at if ordered and page > 1 else None
            unsent = totals.unsent_usage(db, number, since, until) if page <= pages else []
            money = self._money(db, info, ordered[first:], points, unsent)
            return Timeline(session=info, points=tuple(points), page=page, pages=pages, total=total, money=money)

        return await self.inspector.read(query)

    def _point(self, db: Database, before: RequestRow | None, request: RequestRow) -> Point:
        same_place = before is not None and before.run_id is not None and before.run_id == request.run_id
        return Point(
            id=request.id,
            turn=request.turn_index + 1,
            status=request.status,
            raw=request.tokens_raw,
            sent=request.tokens_sent,
            shared=self.shared(db, before, request),
            budget=request.budget,
            retry=same_place and before is not None and before.request_index == request.request_index,
        )

    def shared(self, db: Database, before: RequestRow | None, request: RequestRow) -> int:
        """Return the tokens of the beginning that two requests share."""
        if before is None or before.view_tip is None or request.view_tip is None:
            return 0
        return self._shared.get_or_make(
            (before.id, request.id), lambda: min(self._compare(db, before, request), request.tokens_sent)
        )

    def _compare(self, db: Database, before: RequestRow, request: RequestRow) -> int:
        length = browse.common_length(db, before.view_tip, request.view_tip)
        if length == before.messages_sent:
            return before.tokens_sent
        if not length:
            return 0
        chain = self.inspector.chain(db, request.view_tip, request.session)[: min(length, COMPARED)]
        _, readings = self.inspector.read_nodes(db, chain)
        return sum(reading.tokens for reading in readings)

    def _money(
        self,
        db: Database,
        info: SessionRow,
        rows: Sequence[RequestRow],
        points: Sequence[Point],
        unsent: Sequence[tuple[str, Mapping[str, int]]],
    ) -> SessionCost:
        model, provider = self._answering_model(db, rows)
        price = price_of(model, provider) if model else None
        sent = raw = None
        if price is not None:
            sent = sum((price.cost(point.sent, cached=point.shared) for point in points), Decimal(0))
            pairs = zip([0, *(point.raw for point in points)], points, strict=False)
            raw = sum((price.cost(point.raw, cached=min(before, point.raw)) for before, point in pairs), Decimal(0))
        spent = totals.compile_usage(db, info.id, rows[0].id, rows[-1].id) if rows else []
        costs = [(alias, cost_of(alias, usage)) for alias, usage in (*spent, *unsent)]
        unknown = {alias for alias, cost in costs if cost is None} | (
            {model} if model and price is None else set[str]()
        )
        priced = [cost for _, cost in costs if cost is not None]
        compiles = sum(priced, Decimal(0)) if len(priced) == len(costs) else None
        return SessionCost(
            model=model, requests=len(points), sent=sent, raw=raw, compiles=compiles, unknown=tuple(sorted(unknown))
        )

    def _answering_model(self, db: Database, rows: Sequence[RequestRow]) -> tuple[str | None, str | None]:
        """Return model and provider of the newest answer in the raw histories of these requests; None if not found."""
        recorded = [row.raw_tip for row in rows if row.raw_tip is not None]
        for tip in reversed(recorded[-LOOKS:]):
            messages = self.inspector.host_messages(db, browse.last_nodes(db, tip, NEAR))
            answers = [message for message in messages if isinstance(message, ModelResponse) and message.model_name]
            if answers:
                return answers[-1].model_name, answers[-1].provider_name
        return None, None
