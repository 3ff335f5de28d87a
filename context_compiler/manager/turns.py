"""The session under way and every step that it takes; one step at a time, and each leaves a whole session behind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TypeVar

from pydantic_ai.messages import ModelMessage

from context_compiler.manager.checkpoints import Versions
from context_compiler.manager.config import ContextConfig
from context_compiler.manager.memory import MemorySystem
from context_compiler.manager.quality import ContextState, HealthScorer, Scorer, clamped, coherence_of
from context_compiler.manager.results import ContextTurnResult, Match, RollbackResult, Score, SummarizationResult
from context_compiler.manager.session import (
    REMEMBERED,
    Cap,
    Session,
    Turn,
    messages_of,
    stop_before,
    tokens_of,
    turn_of,
    with_turn,
)
from context_compiler.manager.summary import Made, Questions, Summary, made_of, summarized
from context_compiler.messages.history import History, Reader
from context_compiler.middleware.middleware import loggable
from context_compiler.recall import pending
from context_compiler.resilience import attempt, attempted
from context_compiler.template import Template

SUMMARY_SHARE = 4
"""A summary may have one part in so many of what is sent."""
WORTH = 10
"""A summary is brought up to date for one part in so many of what is sent, or more: not at every turn."""
REMEMBERED_AS = "[context-summary] "
HEALTH = HealthScorer()


@dataclass(slots=True, kw_only=True)
class Desk:
    """What one manager works with. Whoever calls a step that waits holds the `lock`."""

    memory: MemorySystem
    versions: Versions
    llm: Questions
    config: ContextConfig
    scorer: Scorer
    template: Callable[[], Template]
    reader: Reader
    reports: Reports
    cap: Cap
    session: Session
    live: set[int] = field(default_factory=set[int])
    """Keys of turns that an agent is at work on."""
    made: Made | None = None
    """How the newest summary was made, or came to nothing, until that is kept."""
    host: History | None = None
    """A host's history as it was read last, so that only what is new in the next is read."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def tokens(self) -> int:
        """What is sent now, in tokens."""
        return self.cap.tokens(self.session)

    @property
    def held(self) -> int:
        """What would be sent if nothing were cut, in tokens."""
        return tokens_of(self.session, self.reader)

    def begin(self, messages: Sequence[ModelMessage]) -> Turn:
        """Add a turn; the ones before stay without an answer if they have none yet."""
        for last in self.session.turns[-1:]:
            if last.open and last.key not in self.live:
                self.session = with_turn(self.session, replace(last, open=False))
        turn = turn_of(messages, self.reader, open=True)
        self.session = replace(
            self.session, turns=(*self.session.turns, turn), since_checkpoint=self.session.since_checkpoint + 1
        )
        return turn

    async def turn(self, messages: Sequence[ModelMessage]) -> ContextTurnResult:
        """Process a turn that begins with these messages. Only cancellation stops it."""
        trouble: list[str] = []
        await self._rate(trouble)
        turn = self.begin(messages)
        query = pending(self.reader.read(messages))
        found = await self.reports.spared("grounding", self.found(query), trouble)
        self.session = replace(self.session, grounding=tuple(found or ()))
        shrunk = await self._shrunk(trouble)
        score = self._scored(shrunk)
        rolled_back = await self._turned_back(turn, score.quality, trouble)
        commit = None if rolled_back else await self._due(trouble)
        score = replace(
            score,
            turn=len(self.session.turns) - 1,
            tokens=self.held,
            checkpoint=commit,
            rolled_back=rolled_back,
            trouble="; ".join(trouble) or None,
        )
        self._note(score, again=not rolled_back)
        await self.reports.spared("keeping the session", self.kept(score), trouble)
        return ContextTurnResult(
            grounding_used=tuple(match.memory.id for match in self.session.grounding),
            summarization_triggered=shrunk,
            checkpoint_created=commit,
            quality_score=score.quality,
            token_count=self.tokens,
            rollback_triggered=rolled_back,
            trouble=tuple(trouble),
        )

    async def found(self, query: str) -> list[Match]:
        """What memory has to say; nothing that the summary says already."""
        most = self.config.grounding_memories
        if not most or not query.strip():
            return []
        said = REMEMBERED_AS + (self.session.summary or self.session.index)
        found = await self.memory.search(query, most + 1)
        return [replace(one, score=clamped(one.score)) for one in found if one.memory.text != said][:most]

    async def summarize(self) -> SummarizationResult:
        """Let a summary stand for all but the newest turns; CompileError when the model has none to give."""
        session, before = self.session, self.held
        stop = len(session.turns) - self.config.recent_turns_to_keep
        stop = min([stop, *(at for at, turn in enumerate(session.turns) if turn.key in self.live)])
        stop = stop_before(session.turns, session.covered, stop, self.reader)
        if stop <= session.covered:
            return SummarizationResult(tokens_before=before, tokens_after=before, turns_summarized=0, summary="")
        template = self.template()
        made = await summarized(
            messages_of(session.turns[:stop]),
            messages_of(session.turns[session.covered : stop]),
            previous=Summary(text=session.summary, index=session.index, survival=1.0),
            llm=None if self.llm.silent else self.llm,
            template=template,
            most=self.config.max_tokens // SUMMARY_SHARE,
            reader=self.reader,
        )
        self.made = made_of("", made, stop, template=template, model=self.llm.name, reader=self.reader)
        if made.failure is not None:
            raise made.failure
        often = session.summarizations + 1
        self.session = replace(self.session, covered=stop, summary=made.text, index=made.index, summarizations=often)
        told = made.text or made.index
        if told:
            await self.reports.spared("remembering the summary", self.memory.remember(REMEMBERED_AS + told), [])
        return SummarizationResult(
            tokens_before=before,
            tokens_after=self.held,
            turns_summarized=stop - session.covered,
            summary=told,
            survival=made.survival,
        )

    async def checkpoint(self, message: str) -> str | None:
        """Keep session and memory as they stand; None without versioning."""
        commit = await self.versions.commit(self.session, message)
        if commit is not None:
            self.session = replace(self.session, since_checkpoint=0, checkpoint=commit)
        return commit

    async def rollback(self, staying: int | None = None) -> RollbackResult:
        """Go back to the last checkpoint that has not served yet, all but a turn; when that fails nothing changed."""
        commit = self.session.checkpoint
        former = await self.versions.back(commit)
        lost = max(0, len(self.session.turns) - len(former.turns))
        stays = tuple(turn for turn in self.session.turns if turn.key == staying)
        self.session = replace(former, turns=(*former.turns, *stays), taken=self.session.taken)
        return RollbackResult(commit_restored=str(commit), turns_lost=lost)

    async def kept(self, score: Score | None = None) -> None:
        """Keep the session where there is a shelf."""
        await self.versions.keep(self.session, score, self.made)
        self.made = None

    async def keep(self) -> None:
        """Keep the session; a shelf that fails is told of."""
        await self.reports.spared("keeping the session", self.kept(), [])

    def scores(self) -> tuple[float, float]:
        """Quality by the manager's scorer, and health, of the session as it is."""
        session = self.session
        state = ContextState(
            avg_memory_relevance=session.relevance,
            last_coherence_score=session.coherence,
            turn_count=len(session.turns),
            summarization_count=session.summarizations,
            token_count=self.held,
            max_tokens=self.config.max_tokens,
        )
        asked = attempt(lambda: clamped(self.scorer.calculate(state)))
        if asked.error is not None:
            self.reports.tell("scoring", asked.error)
        health = HEALTH.calculate(state)
        return health if asked.value is None else asked.value, health

    def _scored(self, shrunk: bool) -> Score:
        """Score the session as it is."""
        quality, health = self.scores()
        turn, tokens = len(self.session.turns) - 1, self.held
        now = datetime.now(UTC)
        score = Score(turn=turn, quality=quality, health=health, tokens=tokens, summarized=shrunk, created_at=now)
        self._note(score)
        return score

    async def _rate(self, trouble: list[str]) -> None:
        """Let the model rate the newest answer, where that is asked for."""
        turns = self.session.turns
        if self.config.coherence and not self.llm.silent and turns and not turns[-1].open:
            rating = await self.reports.spared(
                "rating", coherence_of(turns[-1].messages, self.llm, self.reader), trouble
            )
            self.session = replace(self.session, coherence=rating)

    async def _shrunk(self, trouble: list[str]) -> bool:
        """Summarise where that is due: once a turn, with or without success, and not for next to nothing."""
        if not self.config.auto_summarize or self.held < self.config.summarization_threshold:
            return False
        older = self.session.verbatim[: -self.config.recent_turns_to_keep]
        if self.session.summarizations and sum(turn.tokens for turn in older) < self.config.max_tokens // WORTH:
            return False
        done = await self.reports.spared("summary", self.summarize(), trouble)
        return done is not None and done.turns_summarized > 0

    async def _turned_back(self, turn: Turn, quality: float, trouble: list[str]) -> bool:
        """Roll back a degraded session where that is asked for; what the user has just said stays."""
        wanted = self.config.auto_rollback and self.versions.enabled and self.session.checkpoint is not None
        if not wanted or quality >= self.config.quality_threshold:
            return False
        grounding = self.session.grounding
        if await self.reports.spared("rollback", self.rollback(turn.key), trouble) is None:
            return False
        self.session = replace(self.session, grounding=grounding, since_checkpoint=1)
        return True

    async def _due(self, trouble: list[str]) -> str | None:
        """Make a checkpoint where it is time for one."""
        config = self.config
        due = self.session.since_checkpoint >= config.checkpoint_interval
        if not (due and config.auto_checkpoint and self.versions.enabled):
            return None
        message = f"Auto checkpoint at turn {len(self.session.turns)}"
        return await self.reports.spared("checkpoint", self.checkpoint(message), trouble)

    def _note(self, score: Score, *, again: bool = False) -> None:
        """Add a score, or put it in place of the last one."""
        scores = self.session.scores[:-1] if again else self.session.scores
        self.session = replace(self.session, scores=(*scores, score)[-REMEMBERED:])


LOG = logging.getLogger("context_compiler")
T = TypeVar("T")


class Reports:
    """Tells of failures; telling never fails."""

    def __init__(self, on_error: Callable[[Exception], object] | None) -> None:
        self._on_error = on_error

    def tell(self, what: str, error: Exception) -> None:
        """Say what failed."""
        LOG.warning("context_compiler: %s: %s", what, loggable(error))
        told = self._on_error
        if told is not None and (failed := attempt(lambda: told(error)).error) is not None:
            LOG.warning("context_compiler: a callback raised %s", loggable(failed))

    async def spared(self, what: str, work: Awaitable[T], trouble: list[str]) -> T | None:
        """What some work gives, or None when it fails, which is told and added to `trouble`."""
        outcome = await attempted(work)
        if outcome.error is not None:
            trouble.append(f"{what}: {loggable(outcome.error)}")
            self.tell(what, outcome.error)
        return outcome.value
