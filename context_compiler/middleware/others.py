"""Recall from the other conversations of one owner: passages that answer a prompt.

Only the newest conversations are searched, and each request reads a limited number of messages from the store. Messages
that were read stay in an index in memory. The list of conversations is fetched from the store every time, so a deleted
conversation is never quoted.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from weakref import WeakKeyDictionary

from context_compiler.cache import Memo
from context_compiler.messages.fences import OTHERS_TITLE, fence
from context_compiler.messages.history import History
from context_compiler.messages.items import MESSAGE_OVERHEAD
from context_compiler.recall import Question
from context_compiler.recall.others import Mention, Name, News, OtherConversations, with_newer
from context_compiler.record import browse
from context_compiler.record.database import Database
from context_compiler.record.store import SQLStore, Store
from context_compiler.tokens import TokenCounter

READ = 1_000
"""Maximum messages that are read of one conversation, newest first. Once a request has read this many in all, the
remaining conversations are read at the next request."""

MAX_CACHED_CHARACTERS, ENTRY = 40_000_000, 100_000
"""Maximum size in characters of all indexes in memory, and the extra size counted for each of them."""

_NUMBERS: WeakKeyDictionary[object, int] = WeakKeyDictionary()
"""Numbers of the stores without a file, unlike `id()` never reused after a store is gone."""
_NEXT = count()

_INDEXES: Memo[Hashable, OtherConversations] = Memo(MAX_CACHED_CHARACTERS, lambda one: ENTRY + one.size)
"""Indexes by store and owner."""


async def other_mentions(store: Store, session_id: str, prompt: str) -> list[tuple[float, Mention]]:
    """Passages from the owner's other conversations that answer a prompt, best first, with their scores.

    Raises:
        StoreError: The store cannot be read.
    """
    if not isinstance(store, SQLStore) or store.owner is None:
        return []
    key = _place(store), store.owner
    index = _INDEXES.get(key) or OtherConversations()
    news, alive = await store.perform(partial(_news, seen=index.known))
    question = Question.of(prompt)

    def search() -> list[tuple[float, Mention]]:
        index.take(news, alive)
        return index.best(question, session_id)

    mentions = await asyncio.to_thread(search)
    _INDEXES.keep(key, index)
    return mentions


def quoted_mentions(
    mentions: Sequence[tuple[float, Mention]], history: History, room: int, counter: TokenCounter
) -> tuple[str, list[tuple[float, Mention]]]:
    """The best mentions that fit into `room` tokens: fenced text in chronological order, and the mentions in it.

    A mention of a value that was replaced, here or there, is followed by the sentence that replaced it.
    """
    left = room - counter.text(fence(OTHERS_TITLE, "x")) - MESSAGE_OVERHEAD
    taken = _fitting(mentions, left, counter)
    newer = with_newer([mention for _, mention in taken], history)
    taken = _fitting([(score, mention) for (score, _), mention in zip(taken, newer, strict=True)], left, counter)
    taken.sort(key=lambda pair: (pair[1].day, pair[1].place))
    return (fence(OTHERS_TITLE, "\n".join(mention.line for _, mention in taken)) if taken else ""), taken


def _fitting(
    mentions: Sequence[tuple[float, Mention]], room: int, counter: TokenCounter
) -> list[tuple[float, Mention]]:
    taken: list[tuple[float, Mention]] = []
    for score, mention in mentions:
        cost = counter.text(mention.line) + 1
        if cost <= room:
            taken.append((score, mention))
            room -= cost
    return taken


def _news(db: Database, seen: Mapping[int, tuple[Name, str]]) -> tuple[list[News], dict[int, Name]]:
    """New messages of the owner's conversations, up to about `READ`, and the names of all of them."""
    there, news, left = browse.newest_conversations(db), list[News](), READ
    for number, session, created, tip in there:
        name, before = seen.get(number, (None, None))
        before = before if name == (session, created) else None
        if before != tip and left > 0:
            bodies, goes_on = browse.messages_since(db, tip, before, READ)
            news.append(
                News(number=number, name=(session, created), before=before, tip=tip, bodies=bodies, goes_on=goes_on)
            )
            left -= len(bodies)
    return news, {number: (session, created) for number, session, created, _ in there}


def _place(store: SQLStore) -> Hashable:
    path = getattr(store, "path", None)
    return os.path.abspath(path) if isinstance(path, str | Path) else _NUMBERS.setdefault(store.origin, next(_NEXT))
