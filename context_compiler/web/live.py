"""Requests as they come, while an agent runs in another process, as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from functools import partial

from context_compiler.errors import StoreError
from context_compiler.record import browse
from context_compiler.record.browse import RequestRow
from context_compiler.web.data import Inspector

PAUSE = 0.7
"""Seconds between two looks at the record."""

QUIET = 20
"""Looks without news after which a comment keeps the connection open."""

MOST = 50
"""Requests of one event."""

Render = Callable[[list[RequestRow]], str]


async def live_events(
    inspector: Inspector,
    session: int | None,
    render: Render,
    *,
    pause: float = PAUSE,
    is_ending: Callable[[], bool] = lambda: False,
) -> AsyncGenerator[str]:
    """New requests of a session, or of all, as events whose data is HTML, the newest first.

    A record that cannot be read is looked at again: it may be made, moved or unlocked meanwhile.
    """
    seen: int | None = None
    quiet = 0
    while not is_ending():
        try:
            newest = (await inspector.read(browse.change_mark))[0]
            if seen is not None and newest > seen:
                rows = await inspector.read(partial(browse.requests_after, session=session, after=seen, limit=MOST))
                if rows:
                    yield _event(render(rows))
            seen = newest
        except StoreError:
            seen = seen or 0
        quiet += 1
        if quiet % QUIET == 0:
            yield ": still here\n\n"
        await asyncio.sleep(pause)


def _event(html: str) -> str:
    lines = "".join(f"data: {line}\n" for line in html.splitlines() if line.strip())
    return f"{lines}\n"
