"""Turns of a managed session: add, ground, summarize, score, roll back or checkpoint, and save."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TypeVar

from pydantic_ai.messages import ModelMessage

from context_compiler.compiler.summary import MAX_PROMPTS
from context_compiler.errors import ContextMemoryError
from context_compiler.manager.checkpoints import Checkpoints, within
from context_compiler.manager.config import ContextConfig
from context_compiler.manager.memory import SUMMARY_PREFIX, MemorySystem
from context_compiler.manager.quality import ContextState, HealthScorer, Scorer, clamp_score, rate_coherence
from context_compiler.manager.results import ContextTurnResult, Match, RollbackResult, Score, SummarizationResult
from context_compiler.manager.session import (
    MAX_SCORES,
    ContextLimit,
    Session,
    SessionTurn,
    make_turn,
    safe_boundary,
    turn_messages,
    uncut_tokens,
    with_turn,
)
from context_compiler.manager.summary import LLM, Summary, summarize_turns, summary_row
from context_compiler.messages.bodies import message_body
from context_compiler.messages.history import History, Reader
from context_compiler.middleware.reports import log_text
from context_compiler.recall import pending_question
from context_compiler.record.values import Compile
from context_compiler.resilience import Breaker, SharedLock, attempt, try_await
from context_compiler.template import Template

SUMMARY_SHARE = 4
"""Divisor of `max_tokens`: a summary gets at most a quarter of it."""
UPDATE_SHARE = 10
"""Divisor of `max_tokens`: a summary is written once a tenth of it can be added, because less is not worth a call."""
OLD_SUMMARIES = 32
"""Maximum extra memories requested from a search, because a custom memory may return old summaries."""
HEALTH = HealthScorer()


@dataclass(slots=True, kw_only=True)
class TurnProcessor:
    """Session and collaborators of one manager. Callers of its coroutines must hold the `lock`."""

    memory: MemorySystem
    checkpoints: Checkpoints
    llm: LLM
    config: ContextConfig
    scorer: Scorer
    template: Callable[[], Template]
    reader: Reader
    reporter: ErrorReporter
    limit: ContextLimit
    session: Session
    live: set[int] = field(default_factory=set[int])
    """Keys of turns in progress on an agent."""
    summary_row: Compile | None = None
    """Record of the newest summary, or of the failure to write it, until it is saved."""
    breaker: Breaker = field(default_factory=Breaker)
    """Opens after three summaries in a row that failed or were refused."""
    loaded: bool = False
    """True once the saved session was looked up; until then nothing is saved, so that it is not overwritten."""
    last_saved: tuple[SessionTurn, ...] = ()
    """Turns as last saved, read or restored. One of these that is missing from the saved session was removed there."""
    host: History | None = None
    """Last parsed history of the host, so that only new messages are parsed."""
    lock: SharedLock = field(default_factory=SharedLock)

    @property
    def tokens(self) -> int:
        """Tokens of the messages that would be sent now."""
        return self.limit.tokens(self.session)

    @property
    def uncut_tokens(self) -> int:
        """Tokens of the messages before they are cut to the limit."""
        return uncut_tokens(self.session, self.reader)

    def add_turn(self, messages: Sequence[ModelMessage], taken: str | None = None) -> SessionTurn:
        """Add a turn; a previous turn that is still open is closed without an answer.

        Args:
            messages: The turn's messages.
            taken: Chain id of the host's history that ends with them, if they are from one.
        """
        last = self.session.turns[-1] if self.session.turns else None
        if last is not None and last.open and last.key not in self.live:
            self.session = with_turn(self.session, replace(last, open=False))
        turn = make_turn(messages, self.reader, open=True)
        self.session = replace(
            self.session,
            turns=(*self.session.turns, turn),
            since_checkpoint=self.session.since_checkpoint + 1,
            taken=taken or self.session.taken,
        )
        return turn

    async def process(self, messages: Sequence[ModelMessage], taken: str | None = None) -> ContextTurnResult:
        """Process a turn that begins with these messages; see `add_turn`. Only cancellation interrupts it."""
        trouble: list[str] = []
        await self.reporter.attempt("resuming the session", self.load(), trouble)
        await self._rate(trouble)
        turn = self.add_turn(messages, taken)
        pending = pending_question(self.reader.read(messages), self.reader.counter)
        query = pending.text if pending else ""
        matches = await self.reporter.attempt("grounding", self.search(query), trouble)
        self.session = replace(self.session, grounding=tuple(matches or ()))
        summarized = await self._summarize_if_due(trouble)
        score = self._score(summarized)
        rolled_back = await self._roll_back_if_degraded(turn, score.quality, trouble)
        commit = None if rolled_back else await self._checkpoint_if_due(trouble)
        score = replace(
            score,
            turn=len(self.session.turns) - 1,
            tokens=self.uncut_tokens,
            checkpoint=commit,
            rolled_back=rolled_back,
            trouble="; ".join(trouble) or None,
        )
        self._add_score(score, again=not rolled_back)
        await self.reporter.attempt("saving the session", self.save(score), trouble)
        return ContextTurnResult(
            grounding_used=tuple(match.memory.id for match in self.session.grounding),
            summarization_triggered=summarized,
            checkpoint_created=commit,
            quality_score=score.quality,
            token_count=self.tokens,
            rollback_triggered=rolled_back,
            trouble=tuple(trouble),
        )

    async def search(self, query: str) -> list[Match]:
        """Search memories for a query, without the current summary and with at most one older summary."""
        most = self.config.grounding_memories
        if not most or not query.strip():
            return []
        shown = SUMMARY_PREFIX + (self.session.summary or self.session.index)
        search = self.memory.search(query, most + 1 + min(self.session.summarizations, OLD_SUMMARIES))
        matches = await within(self.config.timeout, "search", search)
        matches = [replace(match, score=clamp_score(match.score)) for match in matches if match.memory.text != shown]
        summaries = [match for match in matches if match.memory.text.startswith(SUMMARY_PREFIX)]
        newest = max(summaries, key=lambda match: match.memory.created_at, default=None)
        return [match for match in matches if match is newest or match not in summaries][:most]

    async def summarize(self) -> SummarizationResult:
        """Replace all but the newest turns by a summary.

        Raises:
            CompileError: The model gave no usable summary.
        """
        session, before = self.session, self.uncut_tokens
        stop = len(session.turns) - self.config.recent_turns_to_keep
        stop = min([stop, *(index for index, turn in enumerate(session.turns) if turn.key in self.live)])
        stop = safe_boundary(session.turns, session.covered, self._readable(stop), self.reader)
        if stop <= session.covered:
            return SummarizationResult(tokens_before=before, tokens_after=before, turns_summarized=0, summary="")
        template = self.template()
        summary = await summarize_turns(
            turn_messages(session.turns[:stop]),
            turn_messages(session.turns[session.covered : stop]),
            previous=Summary(text=session.summary, index=session.index, survival=1.0),
            llm=None if self.llm.silent else self.llm,
            template=template,
            most=self.config.max_tokens // SUMMARY_SHARE,
            reader=self.reader,
        )
        self.summary_row = summary_row("", summary, stop, template=template, model=self.llm.name, reader=self.reader)
        if summary.failure is not None:
            self.breaker.failed()
            raise summary.failure
        self.breaker.succeeded()
        self.session = replace(
            self.session,
            covered=stop,
            summary=summary.text,
            index=summary.index,
            summarizations=session.summarizations + 1,
        )
        text = summary.text or summary.index
        if text:
            remember = within(self.config.timeout, "remember", self.memory.remember(SUMMARY_PREFIX + text))
            await self.reporter.attempt("remembering the summary", remember, [])
        return SummarizationResult(
            tokens_before=before,
            tokens_after=self.uncut_tokens,
            turns_summarized=stop - session.covered,
            summary=text,
            survival=summary.survival,
        )

    def _readable(self, stop: int) -> int:
        """Limit the turns up to `stop` to those that the prompts of one summary can hold; the rest is for the next."""
        room = (MAX_PROMPTS - 1) * self.llm.prompt_room // 2  # one less, because whole lines do not fill every prompt
        for index in range(self.session.covered, stop):
            room -= self.session.turns[index].tokens
            if room < 0 and index > self.session.covered and not self.llm.silent:
                return index
        return stop

    async def checkpoint(self, message: str) -> str | None:
        """Commit session and memory; return None without versioning."""
        commit = await self.checkpoints.commit(self.session, message)
        if commit is not None:
            self.session = replace(self.session, since_checkpoint=0, checkpoint=commit)
        return commit

    async def rollback(self, commit: str | None = None, *, staying: int | None = None) -> RollbackResult:
        """Restore a commit; None means the newest checkpoint that was not used yet. A failure changes nothing.

        The session is saved first, which is refused if another manager has saved it since: the memory must not go back
        without the session. Turns in progress on an agent and the turn with the key `staying` are kept, because they
        are not answered yet.
        """
        commit = self.session.checkpoint if commit is None else commit
        restored = await self.checkpoints.restore(commit, self.save if self.loaded else None)
        before = self.session.turns
        stays = tuple(turn for turn in before if turn.key == staying or turn.key in self.live)
        turns = tuple(
            turn if mine is None or mine in stays else replace(turn, key=mine.key)
            for turn, mine in zip(restored.turns, self._own_turns(restored.turns), strict=True)
            if not any(self._is_earlier_state(turn, now) for now in stays)
        )
        self.session = replace(restored, turns=(*turns, *stays), taken=self.session.taken)
        self.loaded, self.last_saved = True, (*self.last_saved, *turns)
        return RollbackResult(commit_restored=str(commit), turns_lost=max(0, len(before) - len(self.session.turns)))

    def _is_earlier_state(self, turn: SessionTurn, longer: SessionTurn) -> bool:
        """True if `turn` is open and the messages of `longer` begin with its messages."""
        names = [self.reader.one(message).name for message in longer.messages[: len(turn.messages)]]
        return turn.open and [self.reader.one(message).name for message in turn.messages] == names

    async def load(self, *, again: bool = False) -> bool:
        """Load the saved session, only once unless `again`; return True if it was loaded.

        Unsaved turns are appended after the saved ones. A system prompt of the manager takes precedence.
        """
        if self.loaded and not again:
            return False
        latest = await self.checkpoints.latest()
        self.loaded = True
        if latest is None:
            return False
        saved, unsaved = self._merge_with_saved(latest.turns)
        prompt = self.session.system_prompt or latest.system_prompt
        taken = (self.session.taken if unsaved else None) or latest.taken  # the host's next message follows this one
        self.session = replace(latest, turns=(*saved, *unsaved), system_prompt=prompt, taken=taken)
        self.last_saved = saved
        return True

    def _merge_with_saved(
        self, saved: Sequence[SessionTurn]
    ) -> tuple[tuple[SessionTurn, ...], tuple[SessionTurn, ...]]:
        """Return the saved turns, with responses that were added here since, and the turns that were never saved."""
        own = self._own_turns(saved)
        merged = list[SessionTurn]()
        for turn, same in zip(saved, own, strict=True):
            mine = same or turn
            longer = len(mine.messages) > len(turn.messages) or mine.key in self.live
            merged.append(mine if longer else replace(turn, key=mine.key))
        saved_keys = {turn.key for turn in own if turn is not None} | (
            {turn.key for turn in self.last_saved} - self.live
        )
        return tuple(merged), tuple(turn for turn in self.session.turns if turn.key not in saved_keys)

    def _own_turns(self, saved: Sequence[SessionTurn]) -> list[SessionTurn | None]:
        """Return the same turn of this session for each saved one: its messages begin with those of the saved one."""
        by_prompt = defaultdict[tuple[bytes, ...], list[SessionTurn]](list)
        for turn in self.session.turns:
            by_prompt[_bodies(turn)[:1]].append(turn)
        own = list[SessionTurn | None]()
        for bodies in map(_bodies, saved) if by_prompt else ():
            candidates = by_prompt[bodies[:1]]
            matching = (index for index, other in enumerate(candidates) if _bodies(other)[: len(bodies)] == bodies)
            index = next(matching, None)
            own.append(None if index is None else candidates.pop(index))
        return own or [None] * len(saved)

    async def load_or_report(self) -> None:
        """Load the saved session once; an error is only reported."""
        if not self.loaded:
            async with self.lock:
                await self.reporter.attempt("resuming the session", self.load(), [])

    async def save(self, score: Score | None = None) -> None:
        """Save the session, if there is a shelf.

        Raises:
            ContextMemoryError: The saved session could not be read, so it is not overwritten.
        """
        if not self.loaded:
            raise ContextMemoryError("the saved session could not be read; nothing is saved until it can")
        session = self.session  # a response may be added while this waits
        await self.checkpoints.keep(session, score, self.summary_row)
        self.last_saved, self.summary_row = session.turns, None

    async def save_or_report(self) -> None:
        """Save the session; an error is only reported."""
        await self.reporter.attempt("saving the session", self.save(), [])

    def scores(self) -> tuple[float, float]:
        """Return the quality (by the manager's scorer) and the health of the current session."""
        session = self.session
        state = ContextState(
            avg_memory_relevance=session.relevance,
            last_coherence_score=session.coherence,
            turn_count=len(session.turns),
            summarization_count=session.summarizations,
            token_count=self.uncut_tokens,
            max_tokens=self.config.max_tokens,
        )
        outcome = attempt(lambda: clamp_score(self.scorer.calculate(state)))
        if outcome.error is not None:
            self.reporter.report("scoring", outcome.error)
        health = HEALTH.calculate(state)
        return health if outcome.value is None else outcome.value, health

    def _score(self, summarized: bool) -> Score:
        """Score the current session, and add the score to it."""
        quality, health = self.scores()
        turn, tokens = len(self.session.turns) - 1, self.uncut_tokens
        now = datetime.now(UTC)
        score = Score(turn=turn, quality=quality, health=health, tokens=tokens, summarized=summarized, created_at=now)
        self._add_score(score)
        return score

    async def _rate(self, trouble: list[str]) -> None:
        """Have the model rate the newest answer, if `coherence` is set."""
        turns = self.session.turns
        if self.config.coherence and not self.llm.silent and turns and not turns[-1].open:
            rating = await self.reporter.attempt(
                "rating", rate_coherence(turns[-1].messages, self.llm, self.reader), trouble
            )
            self.session = replace(self.session, coherence=rating)

    async def _summarize_if_due(self, trouble: list[str]) -> bool:
        wanted = self.config.auto_summarize and not self.breaker.open
        if not wanted or self.uncut_tokens < self.config.summarization_threshold:
            return False
        older = self.session.verbatim[: -self.config.recent_turns_to_keep]
        if sum(turn.tokens for turn in older) < self.config.max_tokens // UPDATE_SHARE:
            return False
        done = await self.reporter.attempt("summary", self.summarize(), trouble)
        return done is not None and done.turns_summarized > 0

    async def _roll_back_if_degraded(self, turn: SessionTurn, quality: float, trouble: list[str]) -> bool:
        """Roll back a degraded session if `auto_rollback` is set; the user's new turn is kept."""
        wanted = self.config.auto_rollback and self.checkpoints.enabled and self.session.checkpoint is not None
        if not wanted or quality >= self.config.quality_threshold:
            return False
        grounding = self.session.grounding
        if await self.reporter.attempt("rollback", self.rollback(staying=turn.key), trouble) is None:
            return False
        self.session = replace(self.session, grounding=grounding, since_checkpoint=1)
        return True

    async def _checkpoint_if_due(self, trouble: list[str]) -> str | None:
        config = self.config
        due = self.session.since_checkpoint >= config.checkpoint_interval
        if not (due and config.auto_checkpoint and self.checkpoints.enabled):
            return None
        message = f"Auto checkpoint at turn {len(self.session.turns)}"
        return await self.reporter.attempt("checkpoint", self.checkpoint(message), trouble)

    def _add_score(self, score: Score, *, again: bool = False) -> None:
        """Add a score, or replace the last one if `again`."""
        scores = self.session.scores[:-1] if again else self.session.scores
        self.session = replace(self.session, scores=(*scores, score)[-MAX_SCORES:])


def _bodies(turn: SessionTurn) -> tuple[bytes, ...]:
    return tuple(map(message_body, turn.messages))


LOG = logging.getLogger("context_compiler")
T = TypeVar("T")


class ErrorReporter:
    """Reports errors to the log and to `on_error`; never raises."""

    def __init__(self, on_error: Callable[[Exception], object] | None) -> None:
        self._on_error = on_error

    def report(self, what: str, error: Exception) -> None:
        """Report an error."""
        LOG.warning("context_compiler: %s: %s", what, log_text(error))
        callback = self._on_error
        if callback is not None and (failed := attempt(lambda: callback(error)).error) is not None:
            LOG.warning("context_compiler: a callback raised %s", log_text(failed))

    async def attempt(self, what: str, work: Awaitable[T], trouble: list[str]) -> T | None:
        """Await some work; if it fails, report the error, add it to `trouble`, and return None."""
        outcome = await try_await(work)
        if outcome.error is not None:
            trouble.append(f"{what}: {log_text(outcome.error)}")
            self.report(what, outcome.error)
        return outcome.value
