"""Estimate of the provider's prompt cache: the longest beginning that a request shares with the one before it.

The estimate goes on the record, because the actual figures arrive only with the answer. It assumes that a cache never
evicts anything, for views and for raw history alike.

The host's instrumentation and the harness report a sudden loss of cached tokens as a fault, unless the request contains
a new `CompactionPart`. `LastRequests.mark_move` adds one if a view changed its beginning on purpose, in a form that
providers are not sent.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from pydantic_ai.messages import CompactionPart, ModelMessage, ModelResponse

from context_compiler.cache import Memo
from context_compiler.compiler.view import View
from context_compiler.messages.bodies import load_messages
from context_compiler.messages.history import Reader
from context_compiler.messages.items import CONTROL_KINDS, LOADS
from context_compiler.middleware.archive import LAST_REQUESTS, Archive
from context_compiler.middleware.request import Conversation, Request, may_be_known
from context_compiler.middleware.state import Result

COMPARED = 64_000
"""Maximum tokens of a recorded view that is read for comparison."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """Chain ids of the messages of a request, and of the raw history."""

    hash: str | None
    sent: Sequence[str]
    raw: Sequence[str]
    moved: str | None = None
    """Chain id of the newest request of the conversation whose beginning differs from the request before it."""


class LastRequests:
    """Last request of each conversation of one compiler, in memory or else on the record."""

    def __init__(self, archive: Archive, reader: Reader) -> None:
        """Keep nothing yet; `archive` is read at the first request of a conversation."""
        self._archive, self._reader = archive, reader
        self._cached: Memo[Conversation, bool] = Memo(LAST_REQUESTS)
        self._last: Memo[Conversation, _Request] = Memo(LAST_REQUESTS)

    async def price_facts(self, request: Request, result: Result) -> dict[str, object]:
        """Facts that determine the price of a request, with the cached tokens of the view and of the raw history."""
        before = self._last.get(request.conversation)
        if before is None and may_be_known(request.session_id, len(request.messages)):
            before = await self._recorded(request)
        current = _Request(hash=request.hash, sent=result.sent.view_chain.ids, raw=result.raw.chain.ids)
        sent = raw = 0
        if before is not None:
            shared = common_length(current.sent, before.sent)
            goes_on = before.sent and (current.sent[shared - 1] if shared else None) == before.sent[-1]
            current = replace(current, moved=before.moved if goes_on else current.sent[-1] if current.sent else None)
            if before.hash == request.hash:
                sent = request.overhead + result.sent.sums[shared]
                raw = request.overhead + result.raw.sums[common_length(current.raw, before.raw)]
        self._last.keep(request.conversation, current)
        return {
            "model": request.model,
            "provider": request.provider,
            "cached": round(sent * result.ratio),
            "cached_raw": round(raw * result.ratio),
        }

    def report(self, request: Request, cached: int) -> None:
        """Remember that a provider reported cached tokens for the conversation."""
        if cached:
            self._cached.keep(request.conversation, True)

    def mark_move(self, request: Request, view: View) -> list[ModelMessage]:
        """The messages of a view, with a mark if their beginning has changed on purpose and something was cached."""
        if view.status.startswith("raw") or not self._cached.get(request.conversation):
            return view.messages
        last = self._last.get(request.conversation)
        return view.messages if last is None or last.moved is None else _marked(view.messages, last.moved)

    async def _recorded(self, request: Request) -> _Request | None:
        """The last request of a conversation on the record; only its last id if the view is too long to read."""
        archive = self._archive.scoped(request.owner)
        last = await archive.last_request(request.session_id)
        if last is None:
            return None
        tip, sent = last.view_tip, _tip_only(last.view_tip)
        if tip is not None and not last.status.startswith("raw") and last.tokens_sent <= COMPARED:
            bodies = await archive.access.read(lambda store: store.chain(tip))
            sent = (self._reader.read(load_messages(bodies)).view_chain.ids if bodies else ()) or sent
        return _Request(hash=last.request_hash, sent=sent, raw=_tip_only(last.raw_tip))


def _marked(messages: Sequence[ModelMessage], name: str) -> list[ModelMessage]:
    """Add a compaction part of our own to the first answer of a view.

    Providers are sent only their own compaction parts, so they do not see it. If the host keeps notes in the history,
    nothing is added, because the host reads those only from the newest compaction on.
    """
    first = next((index for index, message in enumerate(messages) if isinstance(message, ModelResponse)), None)
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


def _tip_only(name: str | None) -> Sequence[str]:
    return () if name is None else (name,)


def common_length(names: Sequence[str], before: Sequence[str]) -> int:
    """Length of the common beginning of two requests, in messages.

    An id covers all messages before it, so if two differ, all later ones do. A request known by its last id alone
    matches in full or not at all.
    """
    if len(before) == 1 and before[0] in names:
        return names.index(before[0]) + 1
    return bisect_left(range(min(len(names), len(before))), True, key=lambda index: names[index] != before[index])
