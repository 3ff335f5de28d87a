"""Earlier messages: an application may give only a window of a conversation whose beginning is on the record."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import takewhile

from pydantic_ai.messages import ModelMessage

from context_compiler.cache import Memo
from context_compiler.messages.bodies import load_messages
from context_compiler.messages.history import History, Reader
from context_compiler.middleware.request import JOINED, Conversation, Request
from context_compiler.middleware.state import Run, read_history
from context_compiler.middleware.store_access import StoreAccess, limited
from context_compiler.record import rows
from context_compiler.record.database import Moment
from context_compiler.record.removal import RETRY_AGE_DAYS
from context_compiler.record.store import Store
from context_compiler.resilience import attempt, try_await

SESSIONS = 16
"""Maximum conversations whose raw history is in memory, so that a window of it is recognized without a read."""

FRESH_S = 86_400.0 * RETRY_AGE_DAYS
"""Seconds for which a raw history in memory is used: a prune of older conversations leaves no note on the record."""

OVERLAP = 2
"""Minimum number of messages that a window must share with the record."""


class RawHistories:
    """Raw histories of an owner's conversations, in memory or else on the record."""

    def __init__(self, access: StoreAccess) -> None:
        self._access = access
        self._histories: Memo[Conversation, tuple[History, Moment]] = Memo(SESSIONS)

    def scoped(self, access: StoreAccess) -> RawHistories:
        """The same for another owner."""
        other = copy(self)
        other._access = access
        return other

    def remember(self, session_id: str, history: History, since: Moment) -> None:
        """Keep the raw history of a conversation in memory; `since` is a time before it was saved."""
        self._histories.keep((self._access.owner, session_id), (history, since))

    async def last_seen(self, session_id: str) -> Sequence[ModelMessage]:
        """The raw history of a conversation in memory; empty if there is none, or if something was deleted since."""
        key = self._access.owner, session_id
        history, since = self._histories.get(key) or (None, None)
        if history is None or since is None:
            return ()
        recorded = self._access.arguments.record != "off" and self._access.as_sql(self._access.store) is not None
        if recorded and await self._is_stale(since):
            self._histories.take(key)
            return ()
        return history.messages

    async def prepend(self, run: Run, request: Request, reader: Reader) -> Request:
        """Prepend the recorded messages before a window, if the application gives only a window of a conversation.

        This works for conversations that the application names, whose id the messages carry, or that are in the host's
        store. The host makes up any other id, a new one for every run.
        """
        read = False
        if run.earlier is None:
            run.earlier = ()
            if len(request.messages) > 1 and not request.marked:
                window, read = (await try_await(read_history(reader, run, request.messages))).value, True
                if window is not None:
                    carried = {getattr(message, "conversation_id", None) for message in request.messages[:-1]}
                    named = bool(request.scope) or request.session_id in carried  # the host keeps an id in messages
                    run.earlier = await self._before(request.session_id, window, reader, named=named)
            elif request.scope and not request.marked:
                run.earlier = await self._whole(request.session_id, reader)
        elif run.earlier or (request.scope and not request.marked and self._access.keeps_content):
            run.earlier = before_window(run, request.messages, reader)
        if run.earlier and request.run_id:
            JOINED.keep(request.run_id, run.earlier)
        if run.earlier:
            request = replace(request, messages=[*run.earlier, *request.messages], joined=len(run.earlier))
        if run.earlier or not read:
            await try_await(read_history(reader, run, request.messages))
        return request

    async def _before(self, session_id: str, window: History, reader: Reader, *, named: bool) -> Sequence[ModelMessage]:
        """Recorded messages of a conversation before the first message of a window that continues it.

        If the conversation is not `named`, only the messages of the host's conversation store are searched.
        """
        if not self._access.keeps_content or not window.ids:
            return ()
        key = self._access.owner, session_id
        history, since = (self._histories.get(key) if named else None) or (None, None)
        start = None if history is None else _window_start(history, window)
        if since is not None and start and await self._is_stale(since):
            self._histories.take(key)
            history = start = None
        if start is None:
            # a conversation that is new here waits, because without its beginning the window would be all of it
            with limited(None) if history is None else nullcontext():
                history = await self._stored(session_id, reader, seen=named and history is None)
            start = None if history is None else _window_start(history, window)
        return history.messages[: start or 0] if history is not None else ()

    async def _whole(self, session_id: str, reader: Reader) -> Sequence[ModelMessage]:
        """All messages of a conversation in the host's store, of which the application loaded none (`limit=0`)."""
        with limited(None):
            history = await self._stored(session_id, reader, seen=False) if self._access.keeps_content else None
        return history.messages if history is not None else ()

    async def _is_stale(self, since: Moment) -> bool:
        """True if content has been deleted since then, or may have been."""
        return since.age > FRESH_S or bool(await self._access.attempt_read(partial(self._has_removals, since)))

    async def _has_removals(self, since: Moment) -> bool:
        store = self._access.as_sql(self._access.store_for(since))
        return await store.perform(rows.removed_since) if store is not None else True

    async def _stored(self, session_id: str, reader: Reader, *, seen: bool) -> History | None:
        """A conversation as the host's store has it; without one there and with `seen`, as the compiler last saw it."""
        vault = self._access.arguments.place

        async def bodies(store: Store) -> list[bytes] | None:
            sql = self._access.as_sql(store)
            stored = await sql.conversation(session_id) if sql is not None else None
            return await transcript_bodies(store, session_id, vault) if stored is None and seen else stored

        async def load() -> History | None:
            stored = await self._access.perform(bodies)
            return reader.read(load_messages(stored)) if stored else None

        return await self._access.attempt_read(load)


def before_window(run: Run, window: Sequence[ModelMessage], reader: Reader) -> Sequence[ModelMessage]:
    """Messages that precede the window of a run in progress: the known ones, unless the application has moved it.

    What is not in the host's own history was added to a request by another capability, and precedes nothing.
    """
    history, earlier = run.raw, run.earlier or ()
    if history is None or not window:
        return earlier

    def find() -> Sequence[ModelMessage]:
        if history.readings[len(earlier) : len(earlier) + 1] == (reader.one(window[0]),):
            return earlier
        start = _window_start(history, reader.read(window), overlap=1)
        own = {reader.one(message).name for message in (*earlier, *(run.request.own if run.request else ()))}
        moved = start is not None and all(reading.name in own for reading in history.readings[:start])
        return history.messages[:start] if moved else earlier

    return attempt(find).value or ()


async def transcript_bodies(store: Store, session_id: str, place: str) -> list[bytes]:
    """Message bodies of a conversation in a vault, or without one in its most recently used vault."""
    return await (store.transcript(session_id, place) if place else store.transcript(session_id))


def _window_start(history: History, window: History, overlap: int = OVERLAP) -> int | None:
    """Position in a known history at which a window of it begins; None if it is not a window of this history.

    A current window overlaps the end of the history and continues it. If no position does that, the first position with
    a long enough overlap is taken: the window is then of an earlier state.
    """
    names, first = [reading.name for reading in history.readings], [reading.name for reading in window.readings]
    if not names or names[0] == first[0]:
        return 0 if names else None
    position = None
    for start in range(1, len(names)):
        if names[start] != first[0]:
            continue
        shared = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(names[start:], first, strict=False))))
        if shared == len(names) - start and shared >= min(overlap, len(first) - 1):
            return start
        if position is None and shared >= min(OVERLAP, len(first)):
            position = start
    return position
