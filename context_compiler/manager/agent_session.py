"""A session serves a live agent: what a host's history has that the session lacks is taken in, the rest is sent.

The session is the authority on what went before. A history that it has not seen is taken over while the session is
empty; after that only what follows the message that was taken in last, or else the newest turn.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic_ai.messages import ModelMessage, ModelRequest, SystemPromptPart

from context_compiler.manager.context import context_messages
from context_compiler.manager.llm import Charge
from context_compiler.manager.session import asks, split, turn_of, whole, with_turn
from context_compiler.manager.turns import Desk
from context_compiler.messages.history import History


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What one request of an agent carries."""

    key: int | None
    """Of the turn that it belongs to."""
    messages: list[ModelMessage]
    same: bool
    """They are the host's own."""


def unseen(desk: Desk, messages: Sequence[ModelMessage]) -> Sequence[ModelMessage]:
    """What of a history the session does not know."""
    history = _read(desk, messages)
    taken = desk.session.taken
    at = next((at for at in range(len(history) - 1, -1, -1) if history.ids[at] == taken), None)
    if at is not None:
        return messages[at + 1 :]
    if not desk.session.turns:
        return messages
    prompts = [at for at, message in enumerate(messages) if asks(message, desk.reader)]
    return messages[prompts[-1] :] if prompts else ()


def _read(desk: Desk, messages: Sequence[ModelMessage]) -> History:
    desk.host = desk.reader.read(messages, last=desk.host)
    return desk.host


async def serve(
    desk: Desk,
    news: Sequence[ModelMessage],
    seen: Sequence[ModelMessage],
    key: int | None,
    charge: Charge,
    *,
    ends: bool,
) -> Served:
    """Take in what is new, process the turn that it begins, and say what to send.

    Args:
        desk: The session.
        news: What the session does not know yet.
        seen: The host's whole history, which it knows from now on.
        key: The turn that the run is in; None when it has none yet.
        charge: Told of every answer of the model's, which the run pays for.
        ends: The end of the run will be told; until then nobody else is sent its turn.
    """
    async with desk.lock:
        said = [message for message in (_own(desk, one) for one in news) if message is not None]
        prompts = [at for at, message in enumerate(said) if asks(message, desk.reader)]
        if prompts:
            _missed(desk, said[: prompts[-1]], key)
            desk.llm.charge = charge
            try:
                await desk.turn(said[prompts[-1] :])
            finally:
                desk.llm.charge = None
            _left(desk, key)
            key = desk.session.turns[-1].key
            desk.live |= {key} if ends else set()  # not before: a run that is cancelled there has no turn to end
        else:
            key = _resumed(desk, key, ends)
            _extend(desk, key, said)
        desk.session = replace(desk.session, taken=_read(desk, seen).tip)
        others = frozenset(desk.live - {key})
        messages = desk.cap.within(desk.session, context_messages(desk.session, others))
        same = len(messages) == len(seen) and all(map(operator.is_, messages, seen))
        return Served(key=key, messages=messages, same=same)


async def finish(desk: Desk, key: int | None, news: Sequence[ModelMessage], seen: Sequence[ModelMessage]) -> None:
    """A run has ended: keep what it said last, and let go of its turn.

    Of a run that failed (nothing was `seen`) what nobody answered is not kept; a call that is deferred waits.
    """
    async with desk.lock:
        said = [message for message in (_own(desk, one) for one in news) if message is not None]
        _extend(desk, key, said)
        _left(desk, key, failed=not seen)
        if seen:
            desk.session = replace(desk.session, taken=_read(desk, seen).tip)
        await desk.kept()


def let_go(desk: Desk, key: int | None) -> None:
    """A run has no result: nobody is at work on its turn any more, and what nobody answered is not kept."""
    _left(desk, key, failed=True)


def _own(desk: Desk, message: ModelMessage) -> ModelMessage | None:
    """A message without the agent's system text, which is sent once, in front; None when that is all it is."""
    parts = [part for part in message.parts if isinstance(part, SystemPromptPart)]
    if not parts or not isinstance(message, ModelRequest):
        return message
    known = {part.dynamic_ref or part.content: part for part in desk.session.system}
    known |= {part.dynamic_ref or part.content: part for part in parts}
    desk.session = replace(desk.session, system=tuple(known.values()))
    rest = [part for part in message.parts if not isinstance(part, SystemPromptPart)]
    return replace(message, parts=rest) if rest else None


def _missed(desk: Desk, messages: Sequence[ModelMessage], key: int | None) -> None:
    """Take in turns that were held without the manager; what ends the turn before belongs to that one."""
    for group in split(messages, desk.reader):
        if asks(group[0], desk.reader) or not desk.session.turns:
            turn = turn_of(whole(group, desk.reader), desk.reader, open=False)
            if turn.messages:
                desk.session = replace(desk.session, turns=(*desk.session.turns, turn))
        else:
            last = desk.session.turns[-1].key if key is None else key
            _extend(desk, last, group)
            _left(desk, last)


def _extend(desk: Desk, key: int | None, messages: Sequence[ModelMessage]) -> None:
    """Add to the turn of that key."""
    turn = next((one for one in desk.session.turns if one.key == key), None)
    if turn is not None and messages:
        longer = turn_of((*turn.messages, *messages), desk.reader, open=True, key=turn.key)
        desk.session = with_turn(desk.session, longer)


def _resumed(desk: Desk, key: int | None, ends: bool) -> int | None:
    """The turn that goes on where nobody says anything new: the run's own, else the newest, whose calls waited."""
    if key is None and desk.session.turns:
        key = desk.session.turns[-1].key
        desk.live |= {key} if ends else set()
    return key


def _left(desk: Desk, key: int | None, *, failed: bool = False) -> None:
    """Nobody is at work on that turn any more."""
    desk.live.discard(key if key is not None else -1)
    turn = next((one for one in desk.session.turns if one.key == key), None)
    if turn is not None:
        kept = whole(turn.messages, desk.reader) if failed else turn.messages
        answered = any(not isinstance(message, ModelRequest) for message in kept)
        ended = turn_of(kept, desk.reader, open=not answered, key=turn.key)
        desk.session = with_turn(desk.session, ended)
