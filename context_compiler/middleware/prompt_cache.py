"""The part of each request that a provider's prompt cache has: what it begins with as the request before it did.

Estimated, for the record: what providers report is in the answers. Nothing is ever evicted in this estimate, for a view
and for everything alike.

The host's instrumentation and the harness take a cache that suddenly has less for a fault. They know one sign that a
beginning has moved on purpose: a `CompactionPart` that was not there before. `mark_move` puts one into a view that is
about to be sent, in a form that no provider is sent.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from pydantic_ai.messages import CompactionPart, ModelMessage, ModelResponse

from context_compiler.cache import Memo
from context_compiler.messages.history import Reader, load_messages
from context_compiler.messages.items import CONTROL_KINDS, LOADS
from context_compiler.middleware.archive import Archive
from context_compiler.middleware.request import Request
from context_compiler.middleware.state import Result
from context_compiler.record.values import Record

SESSIONS = 64
"""Conversations whose last request is remembered."""

COMPARED = 64_000
"""Tokens of a recorded view above which it is not read to be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """The names of the messages of a request, and of the whole history in its place."""

    hash: str | None
    sent: Sequence[str]
    raw: Sequence[str]
    moved: str | None = None
    """Name of the newest request of the conversation that did not begin as the one before it."""


class LastRequests:
    """Last requests of the conversations of one compiler, in memory or else on the record."""

    def __init__(self, archive: Archive, reader: Reader) -> None:
        """Look in `archive` at the first request of a conversation."""
        self._archive, self._reader = archive, reader
        self._cached: Memo[tuple[str | None, str], bool] = Memo(SESSIONS)
        self._last: Memo[tuple[str | None, str], _Request] = Memo(SESSIONS)

    async def price_facts(self, request: Request, result: Result) -> dict[str, object]:
        """Facts that a request is priced by, with the tokens that a prompt cache has of it, sent and raw."""
        place = request.owner, request.session_id
        before = self._last.get(place) or await self._recorded(request)
        one = _Request(hash=request.hash, sent=result.sent.view_chain.ids, raw=result.raw.chain.ids)
        sent = raw = 0
        if before is not None:
            shared = common(one.sent, before.sent)
            goes_on = before.sent and (one.sent[shared - 1] if shared else None) == before.sent[-1]
            one = replace(one, moved=before.moved if goes_on else one.sent[-1] if one.sent else None)
            if before.hash == request.hash:
                sent = request.overhead + result.sent.sums[shared]
                raw = request.overhead + result.raw.sums[common(one.raw, before.raw)]
        self._last.keep(place, one)
        return {
            "model": request.model,
            "provider": request.provider,
            "cached": round(sent * result.ratio),
            "cached_raw": round(raw * result.ratio),
        }

    def report(self, request: Request, cached: int) -> None:
        """Note that a provider reported a prompt cache of the conversation."""
        if cached:
            self._cached.keep((request.owner, request.session_id), True)

    def moved(self, request: Request) -> str | None:
        """The name of the last request whose beginning moved, where a provider's cache would have kept it."""
        place = request.owner, request.session_id
        last = self._last.get(place) if self._cached.get(place) else None
        return None if last is None else last.moved

    async def _recorded(self, request: Request) -> _Request | None:
        """The last request of a conversation as it is on the record, as far as that is quickly compared."""
        archive = self._archive.scoped(request.owner)
        last = await archive.last_request(request.session_id)
        if last is None:
            return None
        return _Request(hash=last.request_hash, sent=await self._names(archive, last), raw=_tip(last.raw_tip))

    async def _names(self, archive: Archive, last: Record) -> Sequence[str]:
        tip = last.view_tip
        if tip is None or last.status.startswith("raw") or last.tokens_sent > COMPARED:
            return _tip(tip)
        bodies = await archive.bodies(tip)
        names = self._reader.read(load_messages(bodies)).view_chain.ids if bodies else ()
        return names or _tip(tip)


def mark_move(messages: Sequence[ModelMessage], name: str) -> list[ModelMessage]:
    """Messages with a compaction of our own before their first answer.

    Providers are sent compactions of their own only, so they are sent nothing of it. Where the host keeps notes of its
    own in a history, nothing is marked: it reads them from the newest compaction on.
    """
    first = next((at for at, message in enumerate(messages) if isinstance(message, ModelResponse)), None)
    noted = any(
        part.part_kind in CONTROL_KINDS or part.part_kind == "compaction" or getattr(part, "tool_kind", None) in LOADS
        for message in messages
        for part in message.parts
    )
    if first is None or noted:
        return list(messages)
    answer = cast(ModelResponse, messages[first])
    mark = CompactionPart(id=name, provider_name="context_compiler")
    return [*messages[:first], replace(answer, parts=[mark, *answer.parts]), *messages[first + 1 :]]


def _tip(name: str | None) -> Sequence[str]:
    return () if name is None else (name,)


def common(names: Sequence[str], before: Sequence[str]) -> int:
    """Number of messages at the beginning of both; of a request that is known by its last name only, all of it or none.

    A name covers all messages before it, so where one differs all later ones do.
    """
    if len(before) == 1 and before[0] in names:
        return names.index(before[0]) + 1
    return bisect_left(range(min(len(names), len(before))), True, key=lambda at: names[at] != before[at])
