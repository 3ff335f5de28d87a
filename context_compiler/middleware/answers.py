"""Summaries that models have written or are writing: in memory, on the record, or in another process."""

from __future__ import annotations

import os
from collections.abc import Hashable
from copy import copy
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

from context_compiler.cache import Memo
from context_compiler.compiler.summary import SummaryResponse
from context_compiler.middleware.store_access import StoreAccess
from context_compiler.record.sessions import claim_compile, renew_claim

ANSWERS = 200
"""Maximum answers in memory, for records that may not store them."""


class Answers:
    """Answers of models to the summary requests of an owner.

    Announcements and claims are optional: they are skipped if the store has failed, and their own failure does not
    count.
    """

    def __init__(self, access: StoreAccess) -> None:
        """Remember nothing yet."""
        self._access = access
        self._answers: Memo[str, SummaryResponse] = Memo(ANSWERS)

    def scoped(self, access: StoreAccess) -> Answers:
        """The same for another owner."""
        other = copy(self)
        other._access = access
        return other

    def key(self, key: str) -> Hashable:
        """Key of a compile or conversation, the same for all compilers of this process that share the record."""
        given = self._access.arguments.store
        if not self._access.keeps_content or given is None:
            return id(self._answers), key
        path = given if isinstance(given, str | Path) else getattr(given, "path", None)
        return os.path.abspath(path) if isinstance(path, str | Path) else id(given), key

    async def find(self, key: str) -> SummaryResponse | None:
        """An earlier answer to the same summary request, from memory or the record; None if there is none."""
        made = self._answers.get(key)
        if made is not None or not self._access.keeps_content:
            return made
        found = await self._access.read(lambda store: store.find_compile(key))
        return SummaryResponse(text=found[1].raw_output, row=found[0]) if found and found[1].raw_output else None

    def remember(self, key: str, answer: SummaryResponse) -> None:
        """Keep an answer in memory until it is recorded, or for good if the record may not store it."""
        self._answers.keep(key, replace(answer, usage={}, cost=None))

    def forget(self, text: str) -> None:
        """Remove a summary from memory, so that it is not shared after a user has undone its compile."""
        self._answers.discard(lambda answer: answer.text == text)

    async def claim(self, key: str, holder: str, seconds: float) -> bool | None:
        """Claim a model call; False while another process holds the claim, None if the record cannot tell."""
        access = self._access
        if not access.keeps_content or not access.is_shared or access.is_doubtful:
            return None
        work = partial(claim_compile, cache_key=key, holder=holder, seconds=seconds)
        return await access.try_on_sql(lambda store: store.perform(work))

    async def renew(self, key: str, holder: str, seconds: float) -> None:
        """Renew a claim for `seconds`; after that, other processes may make the same call."""
        work = partial(renew_claim, cache_key=key, holder=holder, seconds=seconds)
        await self._access.try_on_sql(lambda store: store.perform(work))

    async def announce(self, session_id: str, model: str, seconds: float) -> tuple[int, datetime] | None:
        """Show on the record, for at most `seconds`, that a model is writing a summary; None if it is not shown."""
        access = self._access
        if access.arguments.record == "off" or access.is_blank or access.owner is None or access.is_doubtful:
            return None
        given = session_id, access.arguments.place, model, seconds
        return await access.try_on_sql(lambda store: store.announce_compile(*given))

    async def withdraw(self, announced: tuple[int, datetime]) -> None:
        """Remove the announcement of a call that has ended."""
        await self._access.try_on_sql(lambda store: store.withdraw_compile(*announced))
