"""Managed session on a live agent, as a capability or as a history processor.

The session is the authority on the past. A history it does not know is adopted while the session is empty; later only
the messages after the last adopted one are taken in, or else the newest turn.
"""

from __future__ import annotations

import operator
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelMessage, ModelRequest, SystemPromptPart
from pydantic_ai.models import ModelRequestContext

from context_compiler.cache import Memo
from context_compiler.compiler.summary import SummaryResponse
from context_compiler.compiler.view import mark_in
from context_compiler.manager.session import (
    answered_prefix,
    context_messages,
    make_turn,
    split_turns,
    starts_turn,
    with_turn,
)
from context_compiler.manager.summary import Charge
from context_compiler.manager.turns import TurnProcessor
from context_compiler.messages.history import History
from context_compiler.middleware.overflow import RetryModelRequest
from context_compiler.middleware.processor import REMEMBERED, messages_after, tag_view
from context_compiler.middleware.request import charge_run
from context_compiler.resilience import try_await


@dataclass
class ManagedContext(AbstractCapability[Any]):
    """Capability that sends a manager's session in place of the history, which stays unchanged.

    A `ContextCompiler` beside it runs after it, records what is sent, and keeps its own budget.
    """

    processor: TurnProcessor
    _: KW_ONLY
    id: str | None = "context_manager"
    """Stable, because durable engines name their steps by it."""
    _seen: int = field(init=False, repr=False, compare=False, default=0)
    _key: int | None = field(init=False, repr=False, compare=False, default=None)
    _over: bool = field(init=False, repr=False, compare=False, default=False)

    async def for_run(self, ctx: RunContext[Any]) -> ManagedContext:
        """Copy with its own place in the history; the session is shared."""
        mine = copy(self)
        mine._seen, mine._key, mine._over = 0, None, False
        return mine

    async def wrap_run(self, ctx: RunContext[Any], *, handler: Callable[[], Awaitable[Any]]) -> Any:
        """Take in the last answer and end the turn, however the run ends.

        The host cancels a request only after this, so a run without a result does not wait for the session.
        """
        messages: list[ModelMessage] = []
        try:
            result = await handler()
            messages = result.all_messages()
            return result
        finally:
            self._over = True
            if not messages:
                abandon_run(self.processor, self._key)
            if messages or not self.processor.lock.locked():
                await self._finish(messages)

    async def _finish(self, messages: list[ModelMessage]) -> None:
        outcome = await try_await(finish_run(self.processor, self._key, messages[self._seen :], messages))
        if outcome.error is not None:
            self.processor.reporter.report("the end of a run", outcome.error)

    async def _replace_messages(self, ctx: RunContext[Any], given: ModelRequestContext) -> ModelRequestContext:
        messages = given.messages
        outcome = await try_await(self._prepare(ctx, messages))
        if outcome.value is None:
            self.processor.reporter.report(
                "the history is sent as it is", outcome.error or RuntimeError("nothing to send")
            )
            return given
        return replace(given, messages=outcome.value.messages)

    async def _prepare(self, ctx: RunContext[Any], messages: list[ModelMessage]) -> RequestMessages:
        await self.processor.load_or_report()
        news = messages[self._seen :] if self._seen else new_messages(self.processor, messages)
        self._seen = len(messages)
        served = await prepare_request(self.processor, news, messages, self._key, _charge_to(ctx), ends=True)
        self._key = served.key
        if self._over:
            abandon_run(self.processor, self._key)
        return served

    if RetryModelRequest is not None:

        async def prepare_model_request(
            self, ctx: RunContext[Any], request_context: ModelRequestContext
        ) -> ModelRequestContext:
            """Send what the session says."""
            return await self._replace_messages(ctx, request_context)

    else:

        async def before_model_request(
            self, ctx: RunContext[Any], request_context: ModelRequestContext
        ) -> ModelRequestContext:
            """Send what the session says."""
            return await self._replace_messages(ctx, request_context)


class ManagedHistory:
    """History processor, `(ctx, messages) -> messages`; the host stores what it sends, the session keeps everything.

    It does not see the last answer of a run; the session gets it from the next run's history.
    """

    def __init__(self, processor: TurnProcessor) -> None:
        self._processor = processor
        self._runs: Memo[str, tuple[int | None, int]] = Memo(REMEMBERED)
        """By run: its turn, and the number of known messages of an unchanged history."""

    async def __call__(self, ctx: RunContext[Any], messages: list[ModelMessage]) -> list[ModelMessage]:
        """Messages of the session, with a mark that identifies them later. Never raises."""
        outcome = await try_await(self._replace_messages(ctx, messages))
        if outcome.value is None:
            self._processor.reporter.report(
                "the history is sent as it is", outcome.error or RuntimeError("nothing to send")
            )
        return outcome.value or messages

    async def _replace_messages(self, ctx: RunContext[Any], messages: list[ModelMessage]) -> list[ModelMessage]:
        await self._processor.load_or_report()
        run = ctx.run_id or ""
        key, seen = self._runs.get(run) or (None, 0)
        news: Sequence[ModelMessage]
        mark = next((found for message in messages if (found := mark_in(message)) is not None), None)
        if mark is not None and "responses" in mark:
            news = messages_after(messages, mark["responses"], mark["tail"])
        else:
            news = messages[seen:] if seen else new_messages(self._processor, messages)
        served = await prepare_request(self._processor, news, messages, key, _charge_to(ctx), ends=False)
        self._runs.keep(run, (served.key, len(messages)))
        return messages if served.same else tag_view(served.messages, str(self._processor.session.taken))


def _charge_to(ctx: RunContext[Any]) -> Callable[[SummaryResponse], SummaryResponse]:
    return lambda answer: charge_run(ctx, answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMessages:
    """Messages of one request of an agent."""

    key: int | None
    """Key of its turn."""
    messages: list[ModelMessage]
    same: bool
    """True if these are the host's own messages."""


def new_messages(processor: TurnProcessor, messages: Sequence[ModelMessage]) -> Sequence[ModelMessage]:
    """Messages of a history that the session does not know."""
    history = _read_history(processor, messages)
    taken = processor.session.taken
    at = next((at for at in range(len(history) - 1, -1, -1) if history.ids[at] == taken), None)
    if at is not None:
        return messages[at + 1 :]
    if not processor.session.turns:
        return messages
    prompts = [at for at, message in enumerate(messages) if starts_turn(message, processor.reader)]
    return messages[prompts[-1] :] if prompts else ()


def _read_history(processor: TurnProcessor, messages: Sequence[ModelMessage]) -> History:
    processor.host = processor.reader.read(messages, last=processor.host)
    return processor.host


async def prepare_request(
    processor: TurnProcessor,
    news: Sequence[ModelMessage],
    seen: Sequence[ModelMessage],
    key: int | None,
    charge: Charge,
    *,
    ends: bool,
) -> RequestMessages:
    """Take in new messages, process the turn they begin, and return the messages to send.

    Args:
        processor: The session.
        news: Messages unknown to the session.
        seen: The host's whole history, known to the session from now on.
        key: Turn of the run; None if it has none yet.
        charge: Called with every answer of the model, which the run pays for.
        ends: The end of the run will be reported; until then no other run is sent its turn.
    """
    async with processor.lock:
        own = [message for message in (_without_system_text(processor, one) for one in news) if message is not None]
        prompts = [at for at, message in enumerate(own) if starts_turn(message, processor.reader)]
        if prompts:
            _add_missed_turns(processor, own[: prompts[-1]], key)
            processor.llm.charge = charge
            try:
                await processor.process(own[prompts[-1] :])
            finally:
                processor.llm.charge = None
            _end_turn(processor, key)
            key = processor.session.turns[-1].key
            processor.live |= {key} if ends else set()  # not before: a run that is cancelled there has no turn to end
        else:
            key = _resume_turn(processor, key, ends)
            _extend_turn(processor, key, own)
        processor.session = replace(processor.session, taken=_read_history(processor, seen).tip)
        others = frozenset(processor.live - {key})
        messages = processor.limit.within(processor.session, context_messages(processor.session, others))
        same = len(messages) == len(seen) and all(map(operator.is_, messages, seen))
        return RequestMessages(key=key, messages=messages, same=same)


async def finish_run(
    processor: TurnProcessor, key: int | None, news: Sequence[ModelMessage], seen: Sequence[ModelMessage]
) -> None:
    """End a run: take in its last answer and close its turn.

    Of a failed run (`seen` is empty) an unanswered call is not kept; a deferred call waits.
    """
    async with processor.lock:
        own = [message for message in (_without_system_text(processor, one) for one in news) if message is not None]
        _extend_turn(processor, key, own)
        _end_turn(processor, key, failed=not seen)
        if seen:
            processor.session = replace(processor.session, taken=_read_history(processor, seen).tip)
        await processor.save()


def abandon_run(processor: TurnProcessor, key: int | None) -> None:
    """End a run without a result; unanswered calls are not kept."""
    _end_turn(processor, key, failed=True)


def _without_system_text(processor: TurnProcessor, message: ModelMessage) -> ModelMessage | None:
    """Message without the agent's system text, which is sent once, in front; None if nothing else remains."""
    parts = [part for part in message.parts if isinstance(part, SystemPromptPart)]
    if not parts or not isinstance(message, ModelRequest):
        return message
    known = {part.dynamic_ref or part.content: part for part in processor.session.system}
    known |= {part.dynamic_ref or part.content: part for part in parts}
    processor.session = replace(processor.session, system=tuple(known.values()))
    rest = [part for part in message.parts if not isinstance(part, SystemPromptPart)]
    return replace(message, parts=rest) if rest else None


def _add_missed_turns(processor: TurnProcessor, messages: Sequence[ModelMessage], key: int | None) -> None:
    """Take in turns held without the manager; messages that end the turn before are added to it."""
    for group in split_turns(messages, processor.reader):
        if starts_turn(group[0], processor.reader) or not processor.session.turns:
            turn = make_turn(answered_prefix(group, processor.reader), processor.reader, open=False)
            if turn.messages:
                processor.session = replace(processor.session, turns=(*processor.session.turns, turn))
        else:
            last = processor.session.turns[-1].key if key is None else key
            _extend_turn(processor, last, group)
            _end_turn(processor, last)


def _extend_turn(processor: TurnProcessor, key: int | None, messages: Sequence[ModelMessage]) -> None:
    """Add messages to the turn with this key."""
    turn = next((one for one in processor.session.turns if one.key == key), None)
    if turn is not None and messages:
        longer = make_turn((*turn.messages, *messages), processor.reader, open=True, key=turn.key)
        processor.session = with_turn(processor.session, longer)


def _resume_turn(processor: TurnProcessor, key: int | None, ends: bool) -> int | None:
    """Turn that continues where there is nothing new: the run's own, else the newest, whose calls were waiting."""
    if key is None and processor.session.turns:
        key = processor.session.turns[-1].key
        processor.live |= {key} if ends else set()
    return key


def _end_turn(processor: TurnProcessor, key: int | None, *, failed: bool = False) -> None:
    """Close the turn with this key."""
    processor.live.discard(key if key is not None else -1)
    turn = next((one for one in processor.session.turns if one.key == key), None)
    if turn is not None:
        kept = answered_prefix(turn.messages, processor.reader) if failed else turn.messages
        answered = any(not isinstance(message, ModelRequest) for message in kept)
        ended = make_turn(kept, processor.reader, open=not answered, key=turn.key)
        processor.session = with_turn(processor.session, ended)
