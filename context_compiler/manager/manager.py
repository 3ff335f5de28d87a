"""`ContextManager`: a long session that is grounded in memory, summarized, scored, and can be rolled back."""

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
    turn_messages,
    with_turn,
)
from context_compiler.manager.summary import LLM, TEMPLATE
from context_compiler.manager.turns import ErrorReporter, TurnProcessor
from context_compiler.messages.history import Reader
from context_compiler.template import Template, TemplateLibrary
from context_compiler.tokens import Count, TokenCounter, as_counter


class ContextManager:
    """Manager of one session. Concurrent calls, from any thread or event loop, are served one after another.

    Args:
        memory: Source of grounding, and store of summaries.
        llm: Writer of summaries: a model, its name, an agent (only its model is used), or a function from a prompt to
            a text. With `"none"` no model is called, and older turns are quoted instead.
        config: The settings; None uses the defaults.
        repo: Store of checkpoints; see `with_versioning`.
        session_id: Name of the session; None generates one.
        system_prompt: Text placed before everything that is sent.
        scorer: Scores each turn; None uses `QualityScorer()`.
        template: Template of the summary prompt: a name or a `Template`.
        counter: Counts tokens.
        on_error: Called with every error that did not stop the work.

    Raises:
        SettingsError: An argument is invalid, or two arguments contradict each other.
        TemplateError: There is no template of that name.
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
            checkpoints=Checkpoints(memory, repo, reader, self.config.timeout),
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
        cls, memory: MemorySystem, repo: MemoryRepository, llm: object, config: ContextConfig | None = None, **more: Any
    ) -> Self:
        """Create a manager that makes checkpoints in `repo` and can roll back; `more` is passed to the constructor."""
        if repo is None:  # pyright: ignore[reportUnnecessaryComparison]
            raise SettingsError("repo=None: give a MemoryRepository, or make a manager without versioning")
        return cls(memory, llm, config, repo=repo, **more)

    @property
    def has_versioning(self) -> bool:
        """True if the manager can make checkpoints."""
        return self._processor.checkpoints.enabled

    async def process_turn(self, input: str) -> ContextTurnResult:
        """Add a user's turn, ground it, and if due summarize, score, roll back or checkpoint the session.

        A failure of memory, model or repository does not stop the turn; `trouble` of the result lists the failures.

        Raises:
            SettingsError: The input is empty.
        """
        text = check_input("process_turn", input)
        async with self._processor.lock:
            return await self._processor.process([ModelRequest(parts=[UserPromptPart(content=text)])])

    def add_response(self, response: str | ModelResponse) -> bool:
        """Add the response to the open turn; return False and change nothing if no turn is open.

        Raises:
            SettingsError: The response is neither a string nor a `ModelResponse`.
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
        """Search the memories relevant to a query; at most `grounding_memories` are returned.

        Raises:
            SettingsError: The query is empty.
            Exception: Any error of the memory; the packaged ones raise `ContextMemoryError` and `StoreError`.
        """
        return grounding_result(await self._processor.search(check_input("ground_query", query)))

    def get_context_messages(self) -> list[ModelMessage]:
        """Return the system prompt, the grounding of the last turn, the summary, and the turns after the summary.

        If these exceed `max_tokens`, the turns are cut as in a view without a model, the oldest first.
        """
        return self._processor.limit.messages(self._processor.session)

    def estimated_tokens(self) -> int:
        """Count the tokens of the messages that `get_context_messages` returns."""
        return self._processor.tokens

    def quality_score(self) -> float:
        """Return the score of the last turn, from 0 to 1; before the first turn, the score of the empty session."""
        scores = self._processor.session.scores
        return scores[-1].quality if scores else self._processor.scores()[0]

    @property
    def quality_history(self) -> tuple[Score, ...]:
        """Scores of the last fifty turns, oldest first."""
        return self._processor.session.scores

    @property
    def turn_count(self) -> int:
        """Number of turns, including those that a summary replaces."""
        return len(self._processor.session.turns)

    @property
    def next_checkpoint(self) -> str | None:
        """Commit that the next rollback restores; None if there is none."""
        return self._processor.session.checkpoint

    def transcript(self) -> list[ModelMessage]:
        """Return all messages of the session, oldest first."""
        return turn_messages(self._processor.session.turns)

    async def summarize(self) -> SummarizationResult:
        """Replace all but the newest turns by a summary, whatever their size; if there are none, change nothing.

        Raises:
            CompileError: The model failed, or its answer saves no tokens; the session is unchanged.
            TemplateError: The template is missing or invalid.
        """
        async with self._processor.lock:
            await self._processor.load()
            try:
                return await self._processor.summarize()
            finally:
                await self._processor.save_or_report()

    async def checkpoint(self, message: str = "Checkpoint") -> str | None:
        """Commit memory and session; return the id of the commit, or None without versioning.

        Raises:
            SettingsError: The message is not a string.
            Exception: Any error of the memory or repository, such as that another manager has saved the session since;
                then nothing is committed, unless the error came when the session was saved with its new checkpoint.
        """
        check_text("message", message, empty=True)
        async with self._processor.lock:
            await self._processor.load()
            await self._processor.save()  # refused if another manager has saved since, before anything is committed
            commit = await self._processor.checkpoint(message)
            await self._processor.save()
            return commit

    async def rollback(self, commit: str | None = None) -> RollbackResult:
        """Restore the memory and session of a commit; None means the newest checkpoint that was not used yet.

        A run in progress on an agent keeps its turn, which then follows the restored ones.

        Raises:
            SettingsError: Versioning is not enabled.
            ContextMemoryError: There is no checkpoint, or no such commit.
            Exception: Any error of the memory or repository, such as that another manager has saved the session since;
                then memory, session and checkpoints are unchanged, unless the error came when the restored session was
                saved. However, a call that exceeded `timeout` may still restore the memory later.
        """
        async with self._processor.lock:
            if commit is None:
                await self._processor.load()
            else:  # a failure to load is only reported, because a rollback can repair a damaged session
                await self._processor.reporter.attempt("resuming the session", self._processor.load(), [])
            done = await self._processor.rollback(commit)
            await self._processor.save()
            return done

    async def resume(self) -> bool:
        """Load the session that the memory or repository saved last; return False if there is none.

        The first turn, summary, checkpoint, rollback or run does this by itself. Call it to read the session earlier,
        or to continue from the changes of another manager. Unsaved turns and responses of this manager are kept; the
        turns are appended after those that were read.

        Raises:
            ContextMemoryError: The saved session is damaged.
        """
        async with self._processor.lock:
            return await self._processor.load(again=True)

    def to_json(self) -> str:
        """Serialize the whole session to JSON, for `load_json` of another manager; memory is not included."""
        return dump_session(self.session_id, self._processor.session)

    def load_json(self, text: str) -> None:
        """Load a session written by `to_json`.

        Raises:
            ContextMemoryError: The text is not a session; the current session is unchanged.
        """
        processor = self._processor
        self.session_id, processor.session = load_session(text, processor.reader)
        processor.loaded, processor.last_saved = True, processor.session.turns

    def as_capability(self) -> ManagedContext:
        """Return a capability that sends the session on a live agent and leaves the agent's history unchanged."""
        return ManagedContext(self._processor)

    def as_history_processor(self) -> ManagedHistory:
        """Return a history processor for `ProcessHistory`, for hosts that accept no capability."""
        return ManagedHistory(self._processor)


def check_arguments(
    *, memory: object, repo: object, scorer: object, template: object, on_error: object, config: ContextConfig
) -> None:
    """Check the arguments of a manager early, so that no turn fails because of them.

    Raises:
        SettingsError: The message names the argument and an allowed value.
    """
    if not isinstance(memory, MemorySystem):
        raise SettingsError(f"memory={memory!r}: give a MemorySystem, with `search` and `remember`")
    if scorer is not None and not isinstance(scorer, Scorer):
        raise SettingsError(f"scorer={scorer!r}: give an object with `calculate(state)`")
    if not isinstance(template, Template) and not (isinstance(template, str) and template.strip()):
        raise SettingsError(f"template={template!r}: give the name of a template, or a Template")
    if isinstance(template, str):
        TemplateLibrary().check(template)
    if on_error is not None and not callable(on_error):
        raise SettingsError(f"on_error={on_error!r}: give a function that takes one error")
    if config.auto_rollback and repo is None:
        raise SettingsError("auto_rollback=True needs checkpoints: use ContextManager.with_versioning")


def check_text(name: str, value: object, *, empty: bool = False) -> str:
    """Return a string unchanged; it may be empty only if `empty` is set.

    Raises:
        SettingsError: The value is not a string, or is empty.
    """
    if not isinstance(value, str) or not (empty or value.strip()):
        raise SettingsError(f"{name}={cast(object, value)!r:.80}: give a text{'' if empty else ' that is not empty'}")
    return value


def context_manager(
    agent: AbstractAgent[Any, Any], memory: MemorySystem, config: ContextConfig | None = None, **more: Any
) -> ContextManager:
    """Create a manager whose summaries the agent's model writes; `more` is passed to `ContextManager`.

    Raises:
        SettingsError: The agent has no model.
    """
    return ContextManager(memory, agent, config, **more)


def context_manager_with_versioning(
    agent: AbstractAgent[Any, Any],
    memory: MemorySystem,
    repo: MemoryRepository,
    config: ContextConfig | None = None,
    **more: Any,
) -> ContextManager:
    """Create a manager with checkpoints whose summaries the agent's model writes.

    Raises:
        SettingsError: The agent has no model.
    """
    return ContextManager.with_versioning(memory, repo, agent, config, **more)
