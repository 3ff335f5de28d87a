"""Requests and compiles as they come, while an agent runs in another process, as server-sent events.

The id of an event is the mark of what its page has by then. A browser that was away comes back with it, and gets all
that it has missed.
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
from context_compiler.record.browse import RequestRow, UnderWay
from context_compiler.record.database import Database

PAUSE = 0.7
"""Seconds between polls of the record."""

QUIET = 20
"""Looks without news after which a comment keeps the connection open."""

MOST = 50
"""Requests of one event."""

OVERLAP = 1_000
"""Numbers below the newest that are looked at again: in PostgreSQL a request is seen after one with a higher number if
its transaction took longer."""

MARK = re.compile(rf"(\d{{1,15}})\.([0-9a-f]{{1,{OVERLAP // 4}}})", re.ASCII)

Render = Callable[[list[RequestRow], list[UnderWay] | None], str]
"""HTML of new requests, and of the compiles under way if those have changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Requests that a page has: all up to `OVERLAP` below a number, and of those above only `numbers`."""

    newest: int = 0
    numbers: frozenset[int] = frozenset()

    @classmethod
    def now(cls, db: Database, session: int | None) -> Shown:
        """Those of a session, or of all, that the record has now."""
        newest = browse.newest_request(db)
        since = browse.request_numbers(db, session, max(0, newest - OVERLAP), 2 * OVERLAP)
        return cls(newest=newest).plus(since)

    @classmethod
    def parse(cls, mark: str) -> Shown | None:
        """Those of a mark; None if it is none."""
        found = MARK.fullmatch(mark)
        if found is None:
            return None
        newest, bits = int(found[1]), int(found[2], 16)
        return cls(newest=newest, numbers=frozenset(newest - at for at in range(OVERLAP) if bits >> at & 1))

    @property
    def mark(self) -> str:
        """These as a short text."""
        return f"{self.newest}.{sum(1 << (self.newest - number) for number in self.numbers):x}"

    @property
    def settled(self) -> int:
        """The number up to which nothing new comes."""
        return max(0, self.newest - OVERLAP)

    def plus(self, numbers: Iterable[int], newest: int = 0) -> Shown:
        """These and others, where `newest` is the number of the newest request of all."""
        every = self.numbers.union(numbers)
        newest = max(self.newest, newest, *every, 0)
        return Shown(newest=newest, numbers=frozenset(one for one in every if newest - OVERLAP < one))


async def live_events(
    inspector: Tracer,
    session: int | None,
    render: Render,
    *,
    since: str = "",
    pause: float = PAUSE,
    is_ending: Callable[[], bool] = lambda: False,
) -> AsyncGenerator[str]:
    """New requests of a session, or of all, and its compiles under way, as events with HTML.

    `since` is the mark of what the page has; without it that is what the record has at first. The newest request of an
    event comes first. A record that cannot be read is looked at again: it may be made, moved or unlocked meanwhile.
    """
    shown = Shown.parse(since)
    writing: list[UnderWay] | None = None
    quiet, more = 0, False
    while not is_ending():
        try:
            now = await inspector.read(partial(browse.compiles_under_way, session=session))
            if shown is None:
                shown = await inspector.read(partial(Shown.now, session=session))
            rows, shown, more = await inspector.read(partial(_news, session=session, shown=shown))
            if rows or now != writing:
                yield _event(render(rows, now if now != writing else None), shown)
            writing = now
        except StoreError:
            shown, more = shown or Shown(), False
        quiet += 1
        if quiet % QUIET == 0:
            yield ": still here\n\n"
        await asyncio.sleep(0 if more else pause)


def _news(db: Database, session: int | None, shown: Shown) -> tuple[list[RequestRow], Shown, bool]:
    """Requests that are not shown yet, what is shown with them, and whether there are more."""
    newest, limit = browse.newest_request(db), OVERLAP + MOST
    numbers = browse.request_numbers(db, session, shown.settled, limit)
    new = [one for one in numbers if one not in shown.numbers]
    if len(numbers) == limit or len(new) > MOST:
        return browse.requests_named(db, new[:MOST][::-1]), shown.plus(new[:MOST]), True
    return browse.requests_named(db, new[::-1]) if new else [], shown.plus(new, newest), False


def _event(html: str, shown: Shown) -> str:
    lines = "".join(f"data: {line}\n" for line in html.splitlines() if line.strip())
    return f"id: {shown.mark}\n{lines}\n"
