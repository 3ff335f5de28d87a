"""Windows of conversations: an application may give only the end of a conversation whose beginning is on the record."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import partial
from itertools import takewhile

from pydantic_ai.messages import ModelMessage

from context_compiler.cache import Memo
from context_compiler.messages.history import History, Reader, load_messages
from context_compiler.middleware.store_access import StoreAccess
from context_compiler.record import rows
from context_compiler.record.database import Moment
from context_compiler.record.maintenance import RETRY_AGE_DAYS
from context_compiler.record.store import Store

SESSIONS = 16
"""Maximum conversations whose raw history is in memory, so that a window of it is recognized without a read."""

FRESH_S = 86_400.0 * RETRY_AGE_DAYS
"""Seconds for which a raw history in memory is used: a prune of older conversations leaves no note on the record."""

OVERLAP = 2
"""Minimum number of messages that a window must share with the record."""


class Windows:
    """Raw histories of an owner's conversations, in memory or else on the record."""

    def __init__(self, access: StoreAccess) -> None:
        """Remember nothing yet."""
        self._access = access
        self._histories: Memo[tuple[str | None, str], tuple[History, Moment]] = Memo(SESSIONS)

    def scoped(self, access: StoreAccess) -> Windows:
        """The same for another owner."""
        other = copy(self)
        other._access = access
        return other

    def remember(self, session_id: str, history: History, since: Moment) -> None:
        """Keep the raw history of a conversation in memory; `since` is a time before it was saved."""
        self._histories.keep((self._access.owner, session_id), (history, since))

    def last_seen(self, session_id: str) -> Sequence[ModelMessage]:
        """The raw history of a conversation in memory; empty if there is none."""
        known = self._histories.get((self._access.owner, session_id))
        return known[0].messages if known is not None else ()

    async def before(self, session_id: str, window: History, reader: Reader, *, named: bool) -> Sequence[ModelMessage]:
        """Recorded messages of a conversation before the first message of a window that continues it.

        If the conversation is not `named`, only the messages of the host's conversation store are searched.
        """
        if not self._access.keeps_content or not window.ids:
            return ()
        place = self._access.owner, session_id
        known, since = (self._histories.get(place) if named else None) or (None, None)
        start = None if known is None else _window_start(known, window)
        if since is not None and start and await self._is_stale(since):
            self._histories.take(place)
            known = start = None
        if start is None:
            known = await self._stored(session_id, reader, seen=named and known is None)
            start = None if known is None else _window_start(known, window)
        return known.messages[: start or 0] if known is not None else ()

    async def _is_stale(self, since: Moment) -> bool:
        """True if content has been deleted since then, or may have been."""
        return since.age > FRESH_S or bool(await self._access.attempt_read(partial(self._has_removals, since)))

    async def _has_removals(self, since: Moment) -> bool:
        store = self._access.as_sql(self._access.store_for(since))
        return await store.perform(rows.removed_since) if store is not None else True

    async def _stored(self, session_id: str, reader: Reader, *, seen: bool) -> History | None:
        """A conversation as the host's store has it; without one there and with `seen`, as the compiler last saw it."""
        place = self._access.arguments.place

        async def bodies(store: Store) -> list[bytes] | None:
            sql = self._access.as_sql(store)
            found = await sql.conversation(session_id) if sql is not None else None
            return await transcript(store, session_id, place) if found is None and seen else found

        async def load() -> History | None:
            found = await self._access.perform(bodies)
            return reader.read(load_messages(found)) if found else None

        return await self._access.attempt_read(load)


async def transcript(store: Store, session_id: str, place: str) -> list[bytes]:
    """Message bodies of a conversation in a vault, or without one in its most recently used vault."""
    return await (store.transcript(session_id, place) if place else store.transcript(session_id))


def _window_start(known: History, window: History) -> int | None:
    """Position in a known history at which a window of it begins; None if it is not a window of this history.

    A current window overlaps the end of the history and continues it. If no position does that, the first position with
    a long enough overlap is taken: the window is then of an earlier state.
    """
    names, first = [reading.name for reading in known.readings], [reading.name for reading in window.readings]
    if not names or names[0] == first[0]:
        return 0 if names else None
    found = None
    for start in range(1, len(names)):
        if names[start] != first[0]:
            continue
        shared = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(names[start:], first, strict=False))))
        if shared == len(names) - start and shared >= min(OVERLAP, len(first) - 1):
            return start
        if found is None and shared >= min(OVERLAP, len(first)):
            found = start
    return found
