"""Server-sent events for new requests and compiles, while an agent runs in another process.

The id of an event is a mark of the requests that the page has by then. A browser that reconnects sends it, and gets
everything that it missed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass
from functools import partial

from context_compiler.compiler.trace import Tracer
from context_compiler.errors import StoreError
from context_compiler.record import browse
from context_compiler.record.browse import ModelCall, RequestRow
from context_compiler.record.database import Database

PAUSE = 0.7
"""Seconds between polls of the record."""

QUIET = 20
"""Number of polls after which a comment is sent to keep the connection open."""

MAX_NEW = 50
"""Maximum requests per event."""

OVERLAP = 1_000
"""Number of request numbers below the newest that are checked again.

In PostgreSQL, a request becomes visible after one with a higher number if its transaction took longer.
"""

MARK = re.compile(rf"(\d{{1,15}})\.([0-9a-f]{{1,{OVERLAP // 4}}})", re.ASCII)

Render = Callable[[list[RequestRow], list[ModelCall] | None], str]
"""Function that renders new requests, and the compiles under way if those have changed, as HTML."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Requests that a page has: all up to `newest - OVERLAP`, and above that only `numbers`."""

    newest: int = 0
    numbers: frozenset[int] = frozenset()

    @classmethod
    def now(cls, db: Database, session: int | None) -> Shown:
        """Return the requests of a session, or of all sessions, that the record has now."""
        newest = browse.newest_request(db)
        since = browse.request_numbers(db, session, max(0, newest - OVERLAP), 2 * OVERLAP)
        return cls(newest=newest).plus(since)

    @classmethod
    def parse(cls, mark: str) -> Shown | None:
        """Parse a mark; None if it is invalid."""
        match = MARK.fullmatch(mark)
        if match is None:
            return None
        newest, bits = int(match[1]), int(match[2], 16)
        return cls(newest=newest, numbers=frozenset(newest - offset for offset in range(OVERLAP) if bits >> offset & 1))

    @property
    def mark(self) -> str:
        """Short text that `parse` reads: the newest number, and a bit mask of `numbers`."""
        return f"{self.newest}.{sum(1 << (self.newest - number) for number in self.numbers):x}"

    @property
    def settled(self) -> int:
        """Number up to which no new request can appear."""
        return max(0, self.newest - OVERLAP)

    def plus(self, numbers: Iterable[int], newest: int = 0) -> Shown:
        """Return these requests and others; `newest` is the number of the newest request of all sessions."""
        every = self.numbers.union(numbers)
        newest = max(self.newest, newest, *every, 0)
        return Shown(newest=newest, numbers=frozenset(number for number in every if newest - OVERLAP < number))


async def live_events(
    inspector: Tracer,
    session: int | None,
    render: Render,
    *,
    since: str = "",
    pause: float = PAUSE,
    is_ending: Callable[[], bool] = lambda: False,
) -> AsyncGenerator[str]:
    """Send new requests and compiles under way, of one session or of all, as events that contain HTML.

    `since` is the mark of the requests that the page has; by default, those that the record has at the beginning. An
    event lists the newest request first. A record that cannot be read is polled again, because it may be created, moved
    or unlocked later.
    """
    shown = Shown.parse(since)
    writing: list[ModelCall] | None = None
    polls, more = 0, False
    while not is_ending():
        try:
            now = await inspector.read(partial(browse.calls_in_progress, session=session))
            if shown is None:
                shown = await inspector.read(partial(Shown.now, session=session))
            rows, shown, more = await inspector.read(partial(_news, session=session, shown=shown))
            if rows or now != writing:
                yield _event(render(rows, now if now != writing else None), shown)
            writing = now
        except StoreError:
            shown, more = shown or Shown(), False
        polls += 1
        if polls % QUIET == 0:
            yield ": still here\n\n"
        await asyncio.sleep(0 if more else pause)


def _news(db: Database, session: int | None, shown: Shown) -> tuple[list[RequestRow], Shown, bool]:
    """Return requests that are not shown yet, everything shown including them, and True if there are more."""
    newest, limit = browse.newest_request(db), OVERLAP + MAX_NEW
    numbers = browse.request_numbers(db, session, shown.settled, limit)
    new = [number for number in numbers if number not in shown.numbers]
    if len(numbers) == limit or len(new) > MAX_NEW:
        return browse.requests_by_number(db, new[:MAX_NEW][::-1]), shown.plus(new[:MAX_NEW]), True
    return browse.requests_by_number(db, new[::-1]) if new else [], shown.plus(new, newest), False


def _event(html: str, shown: Shown) -> str:
    lines = "".join(f"data: {line}\n" for line in html.splitlines() if line.strip())
    return f"id: {shown.mark}\n{lines}\n"
