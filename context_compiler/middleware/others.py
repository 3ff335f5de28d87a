"""Recall across the conversations of one owner: passages of the others that answer a prompt.

Only the newest conversations are looked at, and at most so much of them is read for one request; what was read stays
in an index in memory. Which of them there are is asked of the store each time, so a deleted one is never quoted.
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
from context_compiler.messages.fences import fence
from context_compiler.messages.items import MESSAGE_OVERHEAD
from context_compiler.recall import Question
from context_compiler.recall.others import Mention, Name, News, OtherConversations
from context_compiler.record import browse
from context_compiler.record.database import Database
from context_compiler.record.store import SQLStore, Store
from context_compiler.tokens import TokenCounter

TITLE = "FROM OTHER CONVERSATIONS"

READ = 1_000
"""Cap on the messages of one conversation, the newest of which are read. Once as many are read in one request, the
other conversations wait for the next."""

REMEMBERED, ENTRY = 40_000_000, 100_000
"""Characters of the indexes that are remembered, and what each owner costs beside them."""

_NUMBERS: WeakKeyDictionary[object, int] = WeakKeyDictionary()
"""Numbers of the stores without a file: never one of a store that is gone."""
_NEXT = count()

_INDEXES: Memo[Hashable, OtherConversations] = Memo(REMEMBERED, lambda one: ENTRY + one.size)
"""One for each owner and store."""


async def other_mentions(store: Store, session_id: str, prompt: str) -> list[tuple[float, Mention]]:
    """Passages of the other conversations of the store's owner that answer a prompt, best first, with their scores.

    Raises:
        StoreError: The store cannot be read.
    """
    if not isinstance(store, SQLStore) or store.owner is None:
        return []
    key = _place(store), store.owner
    index = _INDEXES.get(key) or OtherConversations()
    news, alive = await store.perform(partial(_news, known=index.known))
    found = await asyncio.to_thread(_best, index, news, alive, Question.of(prompt), session_id)
    _INDEXES.keep(key, index)
    return found


def quoted_mentions(
    found: Sequence[tuple[float, Mention]], room: int, counter: TokenCounter
) -> tuple[str, list[tuple[float, Mention]]]:
    """The best of these in a fence within `room` tokens, in the order in which they were said, and which they are."""
    left = room - counter.text(fence(TITLE, "x")) - MESSAGE_OVERHEAD
    taken: list[tuple[float, Mention]] = []
    for score, mention in found:
        cost = counter.text(mention.line) + 1
        if cost <= left:
            taken.append((score, mention))
            left -= cost
    taken.sort(key=lambda pair: (pair[1].day, pair[1].place))
    return (fence(TITLE, "\n".join(mention.line for _, mention in taken)) if taken else ""), taken


def _best(
    index: OtherConversations, news: Sequence[News], alive: Mapping[int, Name], question: Question, session_id: str
) -> list[tuple[float, Mention]]:
    index.take(news, alive)
    return index.best(question, session_id)


def _news(db: Database, known: Mapping[int, tuple[Name, str]]) -> tuple[list[News], dict[int, Name]]:
    """News of the owner's conversations, of at least `READ` messages if there are as many, and the names of all."""
    there, news, left = browse.newest_conversations(db), list[News](), READ
    for number, session, created, tip in there:
        name, before = known.get(number, (None, None))
        before = before if name == (session, created) else None
        if before != tip and left > 0:
            bodies, goes_on = browse.messages_since(db, tip, before, READ)
            news.append(News(number=number, name=(session, created), tip=tip, bodies=bodies, goes_on=goes_on))
            left -= len(bodies)
    return news, {number: (session, created) for number, session, created, _ in there}


def _place(store: SQLStore) -> Hashable:
    path = getattr(store, "path", None)
    return os.path.abspath(path) if isinstance(path, str | Path) else _NUMBERS.setdefault(store.origin, next(_NEXT))
