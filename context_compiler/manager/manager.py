"""`ContextManager`: keeps a long session grounded in memory, short, scored, and able to go back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, cast
from uuid import uuid4

from pydantic_ai.agent import AbstractAgent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart

from context_compiler.errors import SettingsError
from context_compiler.manager.checkpoints import Checkpoints
from context_compiler.manager.config import ContextConfig, check_config, check_input
from context_compiler.manager.live import ManagedContext, ManagedHistory
from context_compiler.manager.memory import MemoryRepository, MemorySystem
from context_compiler.manager.quality import QualityScorer, Scorer
from context_compiler.manager.results import (
    ContextTurnResult,
    GroundedContext,
    RollbackResult,
    Score,
    SummarizationResult,
)
from context_compiler.manager.session import (
    ContextLimit,
    Session,
    dump_session,
    grounding_result,
    load_session,
    make_turn,
    with_turn,
)
from context_compiler.manager.summary import LLM, TEMPLATE
from context_compiler.manager.turns import ErrorReporter, TurnProcessor
from context_compiler.messages.history import Reader
from context_compiler.template import Template
from context_compiler.template.library import TemplateLibrary
from context_compiler.tokens import Count, TokenCounter, as_counter


class ContextManager:
    """Manages one session. Calls may come from several tasks at once; they are served one after the other.

    Args:
        memory: Where the session is grounded, and where summaries are remembered.
        llm: Writes summaries: a model, its name, an agent (its model alone), or a function from a prompt to a text;
            `"none"` asks nobody and quotes instead.
        config: The settings; None is the defaults.
        repo: Keeps states to go back to; see `with_versioning`.
        session_id: The name of the session; None makes one up.
        system_prompt: Stands before everything that is sent.
        scorer: Scores each turn; None is `QualityScorer()`.
        template: What a summary is asked with: a name or a `Template`.
        counter: What counts tokens.
        on_error: Called with everything that failed and was done without.

    Raises:
        SettingsError: an argument is of no use, or two contradict each other.
    """

    def __init__(
        self,
        memory: MemorySystem,
        llm: object,
        config: ContextConfig | None = None,
        *,
        repo: MemoryRepository | None = None,
        session_id: str | None = None,
        system_prompt: str | None = None,
        scorer: Scorer | None = None,
        template: str | Template = TEMPLATE,
        counter: TokenCounter | Count | None = None,
        on_error: Callable[[Exception], object] | None = None,
    ) -> None:
        self.config = check_config(config)
        check_arguments(
            memory=memory, repo=repo, scorer=scorer, template=template, on_error=on_error, config=self.config
        )
        self.session_id = uuid4().hex if session_id is None else check_text("session_id", session_id)
        reader = Reader(as_counter(counter))
        self._processor = TurnProcessor(
            memory=memory,
            checkpoints=Checkpoints(memory, repo, reader),
            llm=LLM(llm, self.config.timeout),
            config=self.config,
            scorer=scorer or QualityScorer(),
            template=lambda: TemplateLibrary().find(template),
            reader=reader,
            reporter=ErrorReporter(on_error),
            limit=ContextLimit(reader, self.config.max_tokens),
            session=Session(system_prompt=check_text("system_prompt", system_prompt or "", empty=True)),
        )

    @classmethod
    def with_versioning(
        cls,
        memory: MemorySystem,
        repo: MemoryRepository,
        llm: object,
        config: ContextConfig | None = None,
        **more: Any,
    ) -> Self:
        """A manager that makes checkpoints in `repo` and can go back to them; `more` is as for the constructor."""
        if repo is None:  # pyright: ignore[reportUnnecessaryComparison]
            raise SettingsError("repo=None: give a MemoryRepository, or make a manager without versioning")
        return cls(memory, llm, config, repo=repo, **more)

    @property
    def has_versioning(self) -> bool:
        """It can make checkpoints."""
        return self._processor.checkpoints.enabled

    async def process_turn(self, input: str) -> ContextTurnResult:
        """Take in what the user says: add, ground, summarise where due, score, roll back or checkpoint where due.

        Memory, model and repository may fail: the turn goes on, and `trouble` says what was done without.

        Raises:
            SettingsError: there is nothing in the input.
        """
        said = check_input("process_turn", input)
        async with self._processor.lock:
            return await self._processor.process([ModelRequest(parts=[UserPromptPart(content=said)])])

    def add_response(self, response: str | ModelResponse) -> bool:
        """Answer the open turn; False where there is none, and then nothing has changed.

        Raises:
            SettingsError: it is neither a text nor a response.
        """
        if not isinstance(response, str | ModelResponse):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SettingsError(f"add_response got {response!r:.80}: give a text or a ModelResponse")
        processor = self._processor
        turn = processor.session.turns[-1] if processor.session.turns else None
        if turn is None or not turn.open or turn.key in processor.live:
            return False
        answer = ModelResponse(parts=[TextPart(content=response)]) if isinstance(response, str) else response
        ended = make_turn((*turn.messages, answer), processor.reader, open=False, key=turn.key)
        processor.session = with_turn(processor.session, ended)
        return True

    async def ground_query(self, query: str) -> GroundedContext:
        """What memory has to say to a query, at most `grounding_memories` of it.

        Raises:
            SettingsError: there is nothing in the query.
            Exception: whatever the memory raises; the shipped ones raise `ContextMemoryError` and `StoreError`.
        """
        return grounding_result(await self._processor.search(check_input("ground_query", query)))

    def get_context_messages(self) -> list[ModelMessage]:
        """System prompt, what memory said to the last turn, the summary, and the turns that it does not stand for.

        Where these are over `max_tokens`, the turns are cut as in a view without a model, the newest last.
        """
        return self._processor.limit.messages(self._processor.session)

    def estimated_tokens(self) -> int:
        """Exact tokens of everything that `get_context_messages` gives."""
        return self._processor.tokens

    def quality_score(self) -> float:
        """How the last turn was scored, from 0 to 1; before the first, how the session would be."""
        scores = self._processor.session.scores
        return scores[-1].quality if scores else self._processor.scores()[0]

    @property
    def quality_history(self) -> tuple[Score, ...]:
        """How the last fifty turns were scored, oldest first."""
        return self._processor.session.scores

    @property
    def turn_count(self) -> int:
        """Turns of the session, also those that a summary stands for."""
        return len(self._processor.session.turns)

    @property
    def next_checkpoint(self) -> str | None:
        """The commit that a rollback goes back to; None for none."""
        return self._processor.session.checkpoint

    def transcript(self) -> list[ModelMessage]:
        """Every message of the session, oldest first."""
        return list(self._processor.session.messages())

    async def summarize(self) -> SummarizationResult:
        """Let a summary stand for all but the newest turns, whatever they cost; nothing to sum up changes nothing.

        Raises:
            CompileError: the model failed, or its answer saves nothing; the session is as it was.
            TemplateError: the template is missing or wrong.
        """
        async with self._processor.lock:
            try:
                return await self._processor.summarize()
            finally:
                await self._processor.save_or_report()

    async def checkpoint(self, message: str = "Checkpoint") -> str | None:
        """Keep memory and session as they stand; the commit, or None without versioning.

        Raises:
            SettingsError: the message is no text.
            Exception: whatever the repository raises; nothing has changed then.
        """
        check_text("message", message, empty=True)
        async with self._processor.lock:
            commit = await self._processor.checkpoint(message)
            await self._processor.save_or_report()
            return commit

    async def rollback(self) -> RollbackResult:
        """Go back to the newest checkpoint that has not served yet, memory and session both.

        Raises:
            SettingsError: versioning is not enabled.
            ContextMemoryError: there is no checkpoint.
            Exception: whatever the repository raises; memory, session and checkpoints are as they were then.
        """
        async with self._processor.lock:
            done = await self._processor.rollback()
            await self._processor.save_or_report()
            return done

    async def resume(self) -> bool:
        """Go on with the session as memory or repository kept it last; False where they keep none.

        Raises:
            ContextMemoryError: what was kept is damaged.
        """
        async with self._processor.lock:
            found = await self._processor.checkpoints.latest()
            if found is not None:
                self._processor.session = found
            return found is not None

    def to_json(self) -> str:
        """The whole session as JSON, for `load_json` of another manager; memory is not in it."""
        return dump_session(self.session_id, self._processor.session)

    def load_json(self, text: str) -> None:
        """Go on with a session that `to_json` wrote.

        Raises:
            ContextMemoryError: it is none; the session is as it was.
        """
        self.session_id, self._processor.session = load_session(text, self._processor.reader)

    def as_capability(self) -> ManagedContext:
        """The session on a live agent, whose own history stays as it is."""
        return ManagedContext(self._processor)

    def as_history_processor(self) -> ManagedHistory:
        """The session for `ProcessHistory`, where only a processor can be given."""
        return ManagedHistory(self._processor)


def check_arguments(
    *, memory: object, repo: object, scorer: object, template: object, on_error: object, config: ContextConfig
) -> None:
    """Refuse what is of no use, and what contradicts something else.

    Raises:
        SettingsError: the message says what, and what to give instead.
    """
    if not isinstance(memory, MemorySystem):
        raise SettingsError(f"memory={memory!r}: give a MemorySystem: search and remember")
    if scorer is not None and not isinstance(scorer, Scorer):
        raise SettingsError(f"scorer={scorer!r}: give something that calculates a score")
    if not isinstance(template, Template) and not (isinstance(template, str) and template.strip()):
        raise SettingsError(f"template={template!r}: give the name of a template, or a Template")
    if on_error is not None and not callable(on_error):
        raise SettingsError(f"on_error={on_error!r}: give a function of one error")
    if config.auto_rollback and repo is None:
        raise SettingsError("auto_rollback=True needs checkpoints: use ContextManager.with_versioning")


def check_text(name: str, given: object, *, empty: bool = False) -> str:
    """A text; only where `empty` says so may there be nothing in it.

    Raises:
        SettingsError: it is none.
    """
    if not isinstance(given, str) or not (empty or given.strip()):
        raise SettingsError(f"{name}={cast(object, given)!r:.80}: give a text{'' if empty else ' that is not empty'}")
    return given


def context_manager(
    agent: AbstractAgent[Any, Any], memory: MemorySystem, config: ContextConfig | None = None, **more: Any
) -> ContextManager:
    """A manager whose summaries the agent's model writes; `more` goes to `ContextManager`.

    Raises:
        SettingsError: the agent has no model.
    """
    return ContextManager(memory, agent, config, **more)


def context_manager_with_versioning(
    agent: AbstractAgent[Any, Any],
    memory: MemorySystem,
    repo: MemoryRepository,
    config: ContextConfig | None = None,
    **more: Any,
) -> ContextManager:
    """The same, with checkpoints to go back to.

    Raises:
        SettingsError: the agent has no model.
    """
    return ContextManager.with_versioning(memory, repo, agent, config, **more)
