"""What a session sends stays within `max_tokens`: where the newest turns alone are over, the ladder cuts them.

No model is asked for that, and the session itself keeps every turn whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pydantic_ai.messages import ModelMessage

from context_compiler.compiler.advance import cut, freeze
from context_compiler.compiler.limits import Asked, limits
from context_compiler.compiler.plan import Sight
from context_compiler.compiler.view import assemble
from context_compiler.manager.context import context_messages, opening, tokens_of
from context_compiler.manager.session import Session
from context_compiler.messages.history import Reader
from context_compiler.messages.turns import pair
from context_compiler.middleware.config import Wishes
from context_compiler.settings import Settings
from context_compiler.template.library import TemplateLibrary


class Cap:
    """Keeps what is sent within a budget, and remembers what it cut last."""

    def __init__(self, reader: Reader, most: int) -> None:
        """Read by `reader`, at most `most` tokens."""
        self._reader, self._most = reader, most
        self._known: tuple[tuple[object, ...], list[ModelMessage], int] | None = None

    def messages(self, session: Session) -> list[ModelMessage]:
        """What the session sends."""
        if tokens_of(session, self._reader) <= self._most:
            return context_messages(session)
        return list(self._cut(session)[0])

    def tokens(self, session: Session) -> int:
        """What that costs."""
        held = tokens_of(session, self._reader)
        return held if held <= self._most else self._cut(session)[1]

    def within(self, session: Session, messages: list[ModelMessage]) -> list[ModelMessage]:
        """Messages that begin with the session's opening, cut where they are too many or hold half a call."""
        history = self._reader.read(messages)
        if history.tokens <= self._most and not pair(history).broken:
            return messages
        head = opening(session)
        turns = messages[len(head) :]
        room = self._most - self._cost(head)
        if room < self._most // 2:
            head = opening(replace(session, grounding=(), summary="", index=""))
            room = self._most - self._cost(head)
        if room < self._most // 2:
            return shortened([*head, *turns], self._most, self._reader)
        return [*head, *shortened(turns, room, self._reader)]

    def _cut(self, session: Session) -> tuple[list[ModelMessage], int]:
        key = (
            *(session.turns, session.covered, session.summary, session.index),
            *(session.grounding, session.system_prompt, session.system),
        )
        if self._known is None or self._known[0] != key:
            found = self.within(session, context_messages(session))
            self._known = (key, found, self._cost(found))
        return self._known[1:]

    def _cost(self, messages: Sequence[ModelMessage]) -> int:
        return sum(self._reader.one(message).tokens for message in messages)


def shortened(messages: Sequence[ModelMessage], budget: int, reader: Reader) -> list[ModelMessage]:
    """Messages within a budget by the ladder alone, without a model; where even the least is over, the least."""
    history = reader.read(messages)
    pairing = pair(history)
    if history.tokens <= budget and not pairing.broken:
        return list(messages)
    wishes = Wishes(template="extractive")
    options = wishes.options(
        TemplateLibrary(system=None), Settings.from_environment(), model="none", family="", window=None
    )
    sight = Sight(history=history, pairing=pairing, options=options, reader=reader)
    marks = limits(Asked(budget=budget), fixed=sight.carried, fidelity=options.fidelity)
    done = cut(sight, marks, previous=None, overhead=0, one_shot=True)
    frozen, _ = freeze(done, summary="", row=None, turn=sight.turn, asked=False)
    return assemble(history, frozen, sight.base, reader)
