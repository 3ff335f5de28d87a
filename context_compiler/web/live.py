"""Requests and compiles as they come, while an agent runs in another process, as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from functools import partial

from context_compiler.errors import StoreError
from context_compiler.record import browse
from context_compiler.record.browse import RequestRow, UnderWay
from context_compiler.web.data import Inspector

PAUSE = 0.7
"""Seconds between two looks at the record."""

QUIET = 20
"""Looks without news after which a comment keeps the connection open."""

MOST = 50
"""Requests of one event."""

Render = Callable[[list[RequestRow], list[UnderWay] | None], str]
"""HTML of new requests, and of the compiles under way if those have changed."""


async def live_events(
    inspector: Inspector,
    session: int | None,
    render: Render,
    *,
    pause: float = PAUSE,
    is_ending: Callable[[], bool] = lambda: False,
) -> AsyncGenerator[str]:
    """New requests of a session, or of all, the newest first, and its compiles under way, as events with HTML.

    A record that cannot be read is looked at again: it may be made, moved or unlocked meanwhile.
    """
    seen: int | None = None
    writing: list[UnderWay] | None = None
    quiet = 0
    while not is_ending():
        try:
            newest = (await inspector.read(browse.change_mark))[0]
            rows, now = list[RequestRow](), await inspector.read(partial(browse.compiles_under_way, session=session))
            if seen is not None and newest > seen:
                rows = await inspector.read(partial(browse.requests_after, session=session, after=seen, limit=MOST))
            if rows or now != writing:
                yield _event(render(rows, now if now != writing else None))
            seen, writing = newest, now
        except StoreError:
            seen = seen or 0
        quiet += 1
        if quiet % QUIET == 0:
            yield ": still here\n\n"
        await asyncio.sleep(pause)


def _event(html: str) -> str:
    lines = "".join(f"data: {line}\n" for line in html.splitlines() if line.strip())
    return f"{lines}\n"
