"""A recorded session replayed with another budget and `recall`: tokens, cost, and ids that calls would have lacked."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial

from pydantic_ai.messages import ModelMessage

from context_compiler.cache import Memo
from context_compiler.compiler.policy import DEFAULT_BUDGET
from context_compiler.compiler.references import ReferenceRecall
from context_compiler.compiler.trace import NotFound, request_of, session_of
from context_compiler.messages.history import reader_of
from context_compiler.middleware.again import recorded_settings
from context_compiler.middleware.replay import LiveSession, replay, request_points, with_answer
from context_compiler.middleware.verdict import (
    Verdict,
    charge_of,
    plain_compiler,
    recorded_verdict,
    replay_whole,
    with_fixed,
)
from context_compiler.record import browse
from context_compiler.record.browse import SessionRow
from context_compiler.record.database import Database
from context_compiler.record.values import Record, fixed_tokens, input_price
from context_compiler.settings import Amount
from context_compiler.tokens import as_counter
from context_compiler.tokens.prices import price_of
from context_compiler.web.data import Inspector

MOST = 300
"""Maximum requests that are replayed, the newest of a session."""

LOST = 40
"""Maximum lost references that are listed."""

SMALLEST = 100
"""Smallest budget that can be tried, unless half of the recorded one is less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The newest request of a session with its raw history."""

    session: SessionRow
    number: int
    raw: tuple[ModelMessage, ...]
    record: Record
    was: tuple[int, ...]
    """Tokens of the requests as they were sent, oldest first."""

    @property
    def budget(self) -> int:
        """Budget of that request, or the default."""
        return self.record.budget or DEFAULT_BUDGET


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A session replayed with one budget and `recall`."""

    sent: tuple[int, ...]
    """Tokens of each request, oldest first."""
    raw: tuple[int, ...]
    """Tokens of the same requests if everything were sent."""
    cost: float
    cost_of_everything: float
    references: float | None
    """Share of the ids and paths in tool calls that the request of the call contained; None without any."""
    lost: tuple[str, ...]
    """Ids and paths that the request of their call did not contain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsPage:
    """A session beside a replay of it with other settings; nothing is sent or recorded."""

    session: SessionRow
    budget: int
    recall: Amount
    recorded_budget: int
    smallest: int
    largest: int
    """Range of budgets that can be tried."""
    requests: int
    """Number of requests that a replay makes."""
    left_out: int
    """Number of earlier requests that it leaves out."""
    model: str
    priced: bool
    """True if costs are in US dollars; else they are in plain input tokens."""
    was: tuple[int, ...]
    replayed: Replayed | None
    """None if no replay was asked for."""
    verdict: Verdict | None
    """The cheapest of several settings; None if it was not asked for."""
    said: str
    line: str
    """The argument for these settings, to paste."""


class SessionSettings:
    """Replays of the sessions of one record; one runs at a time, and the last ones are kept."""

    def __init__(self, inspector: Inspector) -> None:
        self.inspector = inspector
        self._reader = reader_of(as_counter(None))
        self._replays: Memo[tuple[int, int, Amount], Replayed] = Memo(40)
        self._verdicts: Memo[int, Verdict] = Memo(20)
        self._running = asyncio.Semaphore(1)

    async def load(self, number: int, *, budget: int, recall: Amount | None, cheapest: bool) -> SettingsPage:
        """Load a session, replayed with a budget (0: not replayed) and `recall`, and the verdict if asked for."""
        recorded = await self.inspector.read(partial(self._recorded, number=number))
        points, fixed = request_points(recorded.raw), fixed_tokens(recorded.record)
        shown_budget = budget or recorded.budget
        share = recorded_settings(recorded.record)["recall"] if recall is None else recall
        replayed = verdict = None
        async with self._running:
            if budget and points:
                replayed = await asyncio.to_thread(self._replay, recorded, shown_budget, share)
            if cheapest and points:
                verdict = await asyncio.to_thread(self._verdict, recorded)
        return SettingsPage(
            session=recorded.session,
            budget=shown_budget,
            recall=share,
            recorded_budget=recorded.budget,
            smallest=max(min(SMALLEST, recorded.budget // 2), fixed + 1),
            largest=max(2 * recorded.budget, round(recorded.record.tokens_raw, -3) + 1_000),
            requests=min(len(points), MOST),
            left_out=max(0, len(points) - MOST),
            model=input_price(recorded.record).model,
            priced=price_of(input_price(recorded.record).model) is not None,
            was=recorded.was,
            replayed=replayed,
            verdict=verdict,
            said="" if verdict is None else str(verdict),
            line=f"ContextCompiler(budget={shown_budget}, recall={share})",
        )

    def _recorded(self, db: Database, number: int) -> Recorded:
        info = session_of(db, number)
        rows, _ = browse.requests_page(db, number, limit=MOST)
        newest = next((row for row in rows if row.raw_tip is not None), None)
        if newest is None:
            raise NotFound("the raw history of this session is not on the record, so it cannot be replayed")
        _, record = request_of(db, newest.id)
        chain = self.inspector.chain(db, newest.raw_tip, number)
        raw = tuple(with_answer(self.inspector.host_messages(db, chain)))
        was = tuple(row.tokens_sent for row in reversed(rows))
        return Recorded(session=info, number=newest.id, raw=raw, record=record, was=was)

    def _replay(self, recorded: Recorded, budget: int, recall: Amount) -> Replayed:
        return self._replays.get_or_make(
            (recorded.number, budget, recall), lambda: asyncio.run(self._live(recorded, budget, recall))
        )

    async def _live(self, recorded: Recorded, budget: int, recall: Amount) -> Replayed:
        fixed, messages = fixed_tokens(recorded.record), recorded.raw
        references = ReferenceRecall(self._reader.read(messages), budget, self._reader)
        session = LiveSession([plain_compiler(budget=max(1, budget - fixed), recall=recall)])
        sent = await replay(messages, session, self._reader, seen=references.see, last=MOST)
        whole = await replay_whole(messages, self._reader, last=MOST)
        charge = charge_of(input_price(recorded.record).model)
        sent, whole = with_fixed(sent, fixed), with_fixed(whole, fixed)
        return Replayed(
            sent=tuple(request.tokens for request in sent),
            raw=tuple(request.tokens for request in whole),
            cost=sum(charge(request.tokens, request.cached) for request in sent),
            cost_of_everything=sum(charge(request.tokens, request.cached) for request in whole),
            references=references.all,
            lost=tuple(references.lost)[:LOST],
        )

    def _verdict(self, recorded: Recorded) -> Verdict | None:
        verdict = self._verdicts.get(recorded.number)
        if verdict is None:
            verdict = asyncio.run(recorded_verdict(recorded.raw, recorded.record, self._reader, last=MOST))
            if verdict is not None:
                self._verdicts.keep(recorded.number, verdict)
        return verdict
