"""Managed session on a live agent, as a capability or as a history processor.

The session, not the host's history, is the source of truth. An empty session adopts the whole history. Later it takes
only the messages after the last adopted one or, if that is not found, the newest turn.
"""

from __future__ import annotations

import operator
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelMessage, ModelRequest, SystemPromptPart
from pydantic_ai.models import ModelRequestContext

from context_compiler.cache import Memo
from context_compiler.compiler.view import find_mark
from context_compiler.manager.session import (
    SessionTurn,
    answered_prefix,
    context_messages,
    make_turn,
    split_turns,
    with_turn,
)
from context_compiler.manager.summary import Charge
from context_compiler.manager.turns import TurnProcessor
from context_compiler.messages.history import History
from context_compiler.messages.turns import prompt_at, prompt_positions
from context_compiler.middleware.overflow import RetryModelRequest
from context_compiler.middleware.processor import MAX_RUNS, messages_after, tag_view
from context_compiler.middleware.request import charge_run


@dataclass
class ManagedContext(AbstractCapability[Any]):
    """Capability that sends a manager's session instead of the agent's history, which stays unchanged.

    A `ContextCompiler` on the same agent runs after it, records what is sent, and applies its own budget.
    """

    processor: TurnProcessor
    _: KW_ONLY
    id: str | None = "context_manager"
    """Stable, because durable execution engines name their steps after it."""
    _seen: int = field(init=False, repr=False, compare=False, default=0)
    _turn_key: int | None = field(init=False, repr=False, compare=False, default=None)
    _ended: bool = field(init=False, repr=False, compare=False, default=False)

    async def for_run(self, ctx: RunContext[Any]) -> ManagedContext:
        """Return a copy with its own position in the history; the session is shared."""
        mine = copy(self)
        mine._seen, mine._turn_key, mine._ended = 0, None, False
        return mine

    async def wrap_run(self, ctx: RunContext[Any], *, handler: Callable[[], Awaitable[Any]]) -> Any:
        """Add the last answer to the session and end the turn, however the run ends.

        The host cancels a pending request only after this returns, so a run without a result must not wait for the
        session's lock.
        """
        messages: list[ModelMessage] = []
        try:
            result = await handler()
            messages = result.all_messages()
            return result
        finally:
            self._ended = True
            if not messages:
                _end_turn(self.processor, self._turn_key, failed=True)
            if messages or not self.processor.lock.locked():
                finished = finish_run(self.processor, self._turn_key, messages[self._seen :], messages)
                await self.processor.reporter.attempt("the end of a run", finished, [])

    async def _replace_messages(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        work = self._prepare(ctx, request_context.messages)
        request = await self.processor.reporter.attempt("the history is sent as it is", work, [])
        return request_context if request is None else replace(request_context, messages=request.messages)

    async def _prepare(self, ctx: RunContext[Any], messages: list[ModelMessage]) -> RequestMessages:
        await self.processor.load_or_report()
        seen, self._seen = self._seen, len(messages)

        def news() -> News:
            return messages[seen:] if seen else new_messages(self.processor, messages), self._turn_key

        request = await prepare_request(self.processor, news, messages, partial(charge_run, ctx), ends=True)
        self._turn_key = request.key
        if self._ended:
            _end_turn(self.processor, self._turn_key, failed=True)
        return request

    if RetryModelRequest is not None:
        prepare_model_request = _replace_messages
    else:
        before_model_request = _replace_messages


class ManagedHistory:
    """History processor, `(ctx, messages) -> messages`. The host stores what is sent; the session keeps everything.

    It never sees the last answer of a run, so the session takes it from the history of the next run.
    """

    def __init__(self, processor: TurnProcessor) -> None:
        self._processor = processor
        self._runs: Memo[str, tuple[int | None, int]] = Memo(MAX_RUNS)
        """By run id: key of its turn, and number of the history's messages that the session has taken in."""
        self._views: Memo[str, int] = Memo(MAX_RUNS)
        """Key of the turn that a view was made for, by the chain id in the view's mark."""

    async def __call__(self, ctx: RunContext[Any], messages: list[ModelMessage]) -> list[ModelMessage]:
        """Return the messages of the session, with a mark that identifies them later. Never raises."""
        work = self._replace_messages(ctx, messages)
        return await self._processor.reporter.attempt("the history is sent as it is", work, []) or messages

    async def _replace_messages(self, ctx: RunContext[Any], messages: list[ModelMessage]) -> list[ModelMessage]:
        await self._processor.load_or_report()
        run = ctx.run_id or ""
        news, charge = partial(self._news, run, messages), partial(charge_run, ctx)
        request = await prepare_request(self._processor, news, messages, charge, ends=False)
        self._runs.keep(run, (request.key, len(messages)))
        tip = str(_read_history(self._processor, messages).tip)
        if request.key is not None:
            self._views.keep(tip, request.key)
        return messages if request.same else tag_view(request.messages, tip)

    def _news(self, run: str, messages: Sequence[ModelMessage]) -> News:
        """Find what the session lacks; what comes before the first prompt belongs to the turn of the marked view."""
        progress = self._runs.get(run)
        key, seen = progress or (None, 0)
        mark = next((candidate for message in messages if (candidate := find_mark(message)) is not None), None)
        if mark is None or "responses" not in mark:
            return messages[seen:] if seen else new_messages(self._processor, messages), key
        news = messages_after(messages, mark["responses"], mark["tail"])
        if progress is None and (key := self._turn_of(mark["tip"])) is None:
            prompts = prompt_positions(news, self._processor.reader)
            return news[prompts[0] :] if prompts else (), None
        return news, key

    def _turn_of(self, tip: str) -> int | None:
        """Key of the turn that a view was made for; None if a view of another process is not the newest."""
        session = self._processor.session
        newest = session.turns[-1].key if session.turns and tip == str(session.taken) else None
        key = self._views.get(tip)
        return newest if key is None else key


News = tuple[Sequence[ModelMessage], int | None]
"""Messages that the session does not contain yet, and the key of the turn that goes on with them; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMessages:
    """Messages to send in one request of an agent."""

    key: int | None
    """Key of the request's turn."""
    messages: list[ModelMessage]
    same: bool
    """True if these are the host's messages, unchanged."""


def new_messages(processor: TurnProcessor, messages: Sequence[ModelMessage]) -> Sequence[ModelMessage]:
    """Return the messages of a history that the session does not contain yet."""
    history = _read_history(processor, messages)
    taken = processor.session.taken
    position = next((index for index in range(len(history) - 1, -1, -1) if history.ids[index] == taken), None)
    if position is not None:
        return messages[position + 1 :]
    if not processor.session.turns:
        return messages
    prompt = prompt_at(history)
    return () if prompt is None else messages[prompt:]


def _read_history(processor: TurnProcessor, messages: Sequence[ModelMessage]) -> History:
    processor.host = processor.reader.read(messages, last=processor.host)
    return processor.host


async def prepare_request(
    processor: TurnProcessor,
    news: Callable[[], News],
    seen: Sequence[ModelMessage],
    charge: Charge,
    *,
    ends: bool,
) -> RequestMessages:
    """Add new messages to the session, process the turn that they begin, and return the messages to send.

    Args:
        processor: The session.
        news: Finds what the session does not contain yet; called when no other run changes the session.
        seen: The host's whole history, which the session then counts as taken in.
        charge: Called with every answer of the model, to charge it to the run.
        ends: True if the end of the run will be reported; until then, other runs are not sent its turn.
    """
    async with processor.lock:
        fresh, key = news()
        taken = _read_history(processor, seen).tip
        own = _extract_system_prompts(processor, fresh)
        prompts = prompt_positions(own, processor.reader)
        if prompts:
            _add_missed_turns(processor, own[: prompts[-1]], key)
            processor.llm.charge = charge
            try:
                await processor.process(own[prompts[-1] :], taken)
            finally:
                processor.llm.charge = None
            _end_turn(processor, key)
            key = processor.session.turns[-1].key
            if ends:  # only now: a run cancelled while processing has no turn to end
                processor.live.add(key)
        else:
            if key is None and processor.session.turns:  # a request without a new prompt continues the newest turn
                key = processor.session.turns[-1].key
                if ends:
                    processor.live.add(key)
            _extend_turn(processor, key, own)
            processor.session = replace(processor.session, taken=taken)
            if not ends:
                await processor.save_or_report()
        others = frozenset(processor.live - {key})
        messages = processor.limit.within(processor.session, context_messages(processor.session, others))
        same = len(messages) == len(seen) and all(map(operator.is_, messages, seen))
        return RequestMessages(key=key, messages=messages, same=same)


async def finish_run(
    processor: TurnProcessor, key: int | None, news: Sequence[ModelMessage], seen: Sequence[ModelMessage]
) -> None:
    """End a run: add its last answer to the session, and close its turn.

    If the run failed (`seen` is empty), unanswered calls are removed; otherwise they are deferred calls and stay.
    """
    async with processor.lock:
        _extend_turn(processor, key, _extract_system_prompts(processor, news))
        _end_turn(processor, key, failed=not seen)
        if seen:
            processor.session = replace(processor.session, taken=_read_history(processor, seen).tip)
        await processor.save()


def _extract_system_prompts(processor: TurnProcessor, messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    """Move the agent's system prompts from messages to the session; return the messages of which anything is left."""
    left: list[ModelMessage] = []
    for message in messages:
        parts = [part for part in message.parts if isinstance(part, SystemPromptPart)]
        if not parts or not isinstance(message, ModelRequest):
            left.append(message)
            continue
        by_name = {part.dynamic_ref or part.content: part for part in (*processor.session.system, *parts)}
        processor.session = replace(processor.session, system=tuple(by_name.values()))
        rest = [part for part in message.parts if not isinstance(part, SystemPromptPart)]
        left += [replace(message, parts=rest)] if rest else []
    return left


def _add_missed_turns(processor: TurnProcessor, messages: Sequence[ModelMessage], key: int | None) -> None:
    """Add turns that took place without the manager; messages that belong to the previous turn are added to it."""
    for group in split_turns(messages, processor.reader):
        if processor.reader.one(group[0]).has_prompt or not processor.session.turns:
            turn = make_turn(answered_prefix(group, processor.reader), processor.reader, open=False)
            if turn.messages:
                processor.session = replace(processor.session, turns=(*processor.session.turns, turn))
        else:
            last = processor.session.turns[-1].key if key is None else key
            if _awaits(processor, last, group):
                _extend_turn(processor, last, group)
            _end_turn(processor, last)


def _turn(processor: TurnProcessor, key: int | None) -> SessionTurn | None:
    """The turn with a key; None if there is none, or it was rolled back."""
    return next((turn for turn in processor.session.turns if turn.key == key), None)


def _awaits(processor: TurnProcessor, key: int | None, messages: Sequence[ModelMessage]) -> bool:
    """True if a turn has no answer yet. The history of a run that is made again has the answer of the turn before."""
    turn = _turn(processor, key)
    if turn is None or not isinstance(turn.messages[-1], ModelRequest):
        return False
    names = [processor.reader.one(message).name for message in (*turn.messages[-len(messages) :], *messages)]
    return names[: -len(messages)] != names[-len(messages) :]


def _extend_turn(processor: TurnProcessor, key: int | None, messages: Sequence[ModelMessage]) -> None:
    turn = _turn(processor, key)
    if turn is not None and messages:
        longer = make_turn((*turn.messages, *messages), processor.reader, open=True, key=turn.key)
        processor.session = with_turn(processor.session, longer)


def _end_turn(processor: TurnProcessor, key: int | None, *, failed: bool = False) -> None:
    """Close the turn with this key, if it has an answer; unanswered calls are removed if `failed`."""
    processor.live.discard(key if key is not None else -1)
    turn = _turn(processor, key)
    if turn is not None:
        kept = answered_prefix(turn.messages, processor.reader) if failed else turn.messages
        answered = any(not isinstance(message, ModelRequest) for message in kept)
        ended = make_turn(kept, processor.reader, open=not answered, key=turn.key)
        processor.session = with_turn(processor.session, ended)
