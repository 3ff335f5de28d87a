"""`Recall`: two tools with which an agent reads the messages that its views leave out.

The tools read the raw history of the run that calls them. With `scope="owner"`, the search also reads the other
conversations of the run's owner, never those of another owner. A result is fenced, attributed and limited in size,
because its text is data and may contain anything.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

from pydantic_ai import FunctionToolset, RunContext, Tool
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.embeddings import Embedder
from pydantic_ai.messages import ModelMessage, ModelRequest, UserPromptPart

from context_compiler.compiler.recall_block import NEVER_SAID
from context_compiler.errors import SettingsError
from context_compiler.messages.fences import fence
from context_compiler.messages.history import History, Reader
from context_compiler.messages.items import Item, Kind
from context_compiler.messages.turns import Outline, outline, pair
from context_compiler.middleware.arguments import Owner
from context_compiler.middleware.off_loop import in_thread_if_long
from context_compiler.middleware.others import other_mentions, quoted_mentions
from context_compiler.middleware.request import JOINED, session_of
from context_compiler.recall import Question, Ranking, Relevance, index_of
from context_compiler.recall.embeddings import Likeness
from context_compiler.recall.others import Mention
from context_compiler.recall.passages import Passage, Quotation, passages, write_quotation
from context_compiler.recall.question import Pending
from context_compiler.recall.selection import mark_changes, take_beside
from context_compiler.recall.unknown import absent_terms, spelt
from context_compiler.record.store import Store, Tenants, open_store
from context_compiler.resilience import try_await
from context_compiler.tokens import TokenCounter

Transcript = Callable[[str], Awaitable[list[ModelMessage]]]
"""Returns the raw history of a conversation by its label, if the host's own history is incomplete."""

FOUND, READ = "FOUND IN EARLIER TURNS", "EARLIER IN THIS CONVERSATION"

FRAME = 64
"""Tokens of a result reserved for the fence and the line on how to continue."""

MAX_MESSAGES = 200
"""Maximum number of messages whose passages are ranked."""

_REF = re.compile(r"(?i)[\[\"'(]? ?(?:from )?(turn|message|m|t)? ?#? ?(\d{1,9})\b")


@dataclass
class Recall(AbstractCapability[Any]):
    """Gives an agent `recall_search(query)` and `recall_read(ref)` over its whole conversation."""

    _: KW_ONLY
    tokens: int = 2_000
    """Maximum size of one result in tokens."""
    embedder: Embedder | None = None
    """Also ranks by meaning; None, the default, ranks by words only and calls no model."""
    scope: str = "conversation"
    """"conversation", or "owner": `recall_search` also searches the owner's other conversations."""
    store: str | Path | Store | None = None
    """Store of the record for `scope="owner"`, the same as the compiler's: a path or a `Store`."""
    owner: Owner = None
    """Owner of the conversations, as for `ContextCompiler`; None is the owner of the store."""
    transcript: Transcript | None = None
    """Source of the complete raw history; None takes the run's own, which is complete unless a history processor is
    used."""
    id: str | None = "recall"
    """Constant, because durable engines name their steps by it."""
    _reader: Reader = field(init=False, repr=False, compare=False)
    _likeness: Likeness | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            SettingsError: A value is wrong; the message says what is allowed.
        """
        if isinstance(self.tokens, bool) or not isinstance(self.tokens, int) or self.tokens < 100:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SettingsError(f"tokens={self.tokens!r}: give at least 100 tokens as an int")
        if self.scope not in ("conversation", "owner"):
            raise SettingsError(f'scope={self.scope!r}: use "conversation" or "owner"')
        if (self.scope == "owner") != (self.store is not None):
            raise SettingsError(f'scope={self.scope!r}, store={self.store!r}: give a store with scope="owner" alone')
        self._reader = Reader(TokenCounter())
        self._likeness = Likeness(self.embedder) if self.embedder is not None else None

    def get_toolset(self) -> FunctionToolset[Any]:
        """The toolset with both tools."""
        if self.scope == "conversation":
            return FunctionToolset[Any]([self.recall_search, self.recall_read], id=self.id)
        search = Tool(self._search_everywhere, name="recall_search")
        return FunctionToolset[Any]([search, self.recall_read], id=self.id)

    async def _search_everywhere(self, ctx: RunContext[Any], query: str) -> str:
        """Search everything said and done earlier in this conversation, and what was said in other conversations.

        Use it before saying that something is unknown or asking again. The result quotes passages word for word,
        each with its turn, those of other conversations with their name and day; `recall_read` shows a whole turn of
        this conversation.

        Args:
            ctx: The run.
            query: What to look for: names, ids, paths and words as they were used.
        """
        history, turns = await self._read(ctx)
        own = await self._search(history, turns, query)
        outcome = await try_await(self._search_others(ctx, query))
        if outcome.error is not None:
            return f"{own}\n\nOther conversations cannot be searched now."
        others, _ = quoted_mentions(outcome.value or [], history, self.tokens, self._reader.counter)
        return f"{own}\n\n{others}" if others else own

    async def _search_others(self, ctx: RunContext[Any], query: str) -> list[tuple[float, Mention]]:
        """Passages of the owner's other conversations, best first."""
        store = open_store(self.store)
        try:
            owner = self.owner(ctx) if callable(self.owner) else self.owner
            if not isinstance(store, Tenants) or (callable(self.owner) and owner is None):
                return []
            scoped = store if owner is None else store.scoped(owner)
            return await other_mentions(scoped, session_of(ctx), query)
        finally:
            if store is not self.store:
                await store.close()

    async def recall_search(self, ctx: RunContext[Any], query: str) -> str:
        """Search everything said and done earlier in this conversation, also what is no longer shown.

        Use it before saying that something is unknown or asking again. The result quotes passages word for
        word, each with its turn; `recall_read` shows a whole turn.

        Args:
            ctx: The run.
            query: What to look for: names, ids, paths and words as they were used.
        """
        return await self._search(*await self._read(ctx), query)

    async def _search(self, history: History, turns: Outline, query: str) -> str:
        chosen = await self._best(history, turns, query)
        asked = Pending(turns.active.start, query)
        searching = in_thread_if_long(lambda: absent_terms(history, asked), history.messages)
        absent = (await try_await(searching)).value
        never = f"\n{NEVER_SAID} {', '.join(absent)}" if absent else ""
        if not chosen:
            return f"Nothing was found. Try the words, names or ids that were used at the time.{never}"
        return fence(FOUND, write_quotation(chosen, numbered=True)) + never

    async def recall_read(self, ctx: RunContext[Any], ref: str, start: int = 0) -> str:
        """Read a turn or message of this conversation word for word, also when it is no longer shown.

        Args:
            ctx: The run.
            ref: "turn 12" as quoted passages name it, or "m37" as a shortened message names itself.
            start: Where to go on, in characters, when a result ended early.
        """
        history, turns = await self._read(ctx)
        positions = _positions(ref, history, turns)
        if positions is None:
            last = turns.turns[-1].index + 1 if turns.turns else 0
            return f'There is no "{ref[:40]}". Give "turn 1" to "turn {last}", or "m0" to "m{len(history) - 1}".'
        start = max(0, start)
        text = "\n".join(line for index in positions for line in _lines(history.readings[index].items, index))[start:]
        head = self._reader.counter.head(text, self.tokens - FRAME)
        more = f"\n[to continue: recall_read(ref={ref[:40]!r}, start={start + len(head)})]"
        return fence(READ, head) + (more if len(head) < len(text) else "")

    async def passages(self, messages: Sequence[ModelMessage], query: str) -> tuple[Passage, ...]:
        """The passages of these messages that best answer a query, in chronological order."""
        return await self._best(*self._outlined([*messages, ModelRequest(parts=[UserPromptPart(query)])]), query)

    async def _read(self, ctx: RunContext[Any]) -> tuple[History, Outline]:
        messages = [*(JOINED.get(ctx.run_id or "") or ()), *ctx.messages]
        if self.transcript is not None:
            messages = (await try_await(self.transcript(session_of(ctx)))).value or messages
        return await in_thread_if_long(lambda: self._outlined(messages), messages)

    def _outlined(self, messages: Sequence[ModelMessage]) -> tuple[History, Outline]:
        history = self._reader.read(messages)
        return history, outline(history, pair(history))

    async def _best(self, history: History, turns: Outline, query: str) -> tuple[Passage, ...]:
        """The best passages within the token limit, in chronological order."""
        find = in_thread_if_long(lambda: self._candidates(history, turns, query), history.messages)
        candidates, ranked = await find
        if self._likeness is not None:
            ranked = await self._likeness.fused(query, candidates, ranked)
        return await in_thread_if_long(lambda: self._chosen(history, turns, candidates, ranked), history.messages)

    def _candidates(self, history: History, turns: Outline, query: str) -> tuple[Sequence[Passage], Sequence[float]]:
        """Passages that may answer a query, each with its rank by words."""
        stop = turns.active.start if turns.turns else 0
        index = index_of(history)
        question = spelt(Question.of(query), index, stop)
        ranking = Ranking(index, question, stop)
        best = ranking.best()[:MAX_MESSAGES]
        candidates = passages(history, turns, range(stop) if self._likeness else best, self._reader.counter)
        relevant = Relevance(index, question)
        ranked = ranking.passages(candidates) if any(relevant.of(passage.text) for passage in candidates) else []
        return candidates, ranked or [0.0] * len(candidates)

    def _chosen(
        self, history: History, turns: Outline, candidates: Sequence[Passage], ranked: Sequence[float]
    ) -> tuple[Passage, ...]:
        """The best ranked passages that fit, with what revises them."""
        counter = self._reader.counter
        marked = mark_changes(
            history,
            turns,
            [*zip(candidates, ranked, strict=True)],
            counter,
            until=turns.active.start if turns.turns else 0,
            quote=lambda position: passages(history, turns, [position], counter),
        )
        marked.sort(key=lambda pair: pair[0].place)
        quotation = Quotation([passage for passage, _ in marked], self.tokens - FRAME, numbered=True)
        for number in sorted(range(len(marked)), key=lambda number: -marked[number][1]):
            if marked[number][1] > 0:
                take_beside(quotation, number, {})
        return quotation.passages


def _positions(ref: str, history: History, turns: Outline) -> range | None:
    """Positions of the messages that a reference names; None if there are none."""
    named = _REF.match(" ".join(ref[:200].split()))
    if named is None:
        return None
    number = int(named[2])
    if (named[1] or "turn").lower() in ("m", "message"):
        return range(number, number + 1) if number < len(history) else None
    turn = next((turn for turn in turns.turns if turn.index + 1 == number), None)
    return range(turn.start, turn.stop) if turn else None


_SPEAKERS = {
    Kind.USER: "user",
    Kind.PIN: "user",
    Kind.TEXT: "assistant",
    Kind.MEDIA: "assistant",
    Kind.CALL: "assistant called",
    Kind.RETURN: "tool",
    Kind.FEEDBACK: "retry",
    Kind.COMPACTION: "summary",
}


def _lines(items: Sequence[Item], position: int) -> list[str]:
    """Lines of a message, one per part with its speaker; parts of the host or this package are left out."""
    lines: list[str] = []
    for item in items:
        if item.mark is None and item.text.strip() and item.kind in _SPEAKERS:
            tool = f" {item.tool}" if item.kind in (Kind.CALL, Kind.RETURN) else ""
            lines.append(f"[m{position} · {_SPEAKERS[item.kind]}{tool}] {item.text}")
    return lines
