"""A session is a value: its turns, what stands for the older ones, and what it was grounded in and scored at.

Nothing is ever changed in place, so that a checkpoint is the value itself and a failure leaves the one before.
The turns are all kept, also those that a summary stands for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import count, pairwise
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequest, SystemPromptPart

from context_compiler.errors import ContextMemoryError
from context_compiler.manager.memory import Saved
from context_compiler.manager.results import Match, Memory, Score
from context_compiler.messages.history import Reader, load_messages, message_body

VERSION = 1
REMEMBERED = 50
"""Scores that a session carries; the shelf has them all."""
PLAIN: dict[str, tuple[type, ...]] = {
    "system_prompt": (str,),
    "covered": (int,),
    "summary": (str,),
    "index": (str,),
    "summarizations": (int,),
    "coherence": (int, float, type(None)),
    "since_checkpoint": (int,),
    "checkpoint": (str, type(None)),
    "taken": (str, type(None)),
}
"""Facts of a session that JSON holds as they are, and of which kind each is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """From what a user said to just before the user speaks again."""

    key: int
    """Names it for as long as the process lives, wherever it stands."""
    messages: tuple[ModelMessage, ...]
    tokens: int
    open: bool
    """It has no answer yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Everything that a rollback restores."""

    turns: tuple[Turn, ...] = ()
    system_prompt: str = ""
    system: tuple[SystemPromptPart, ...] = ()
    """System text of an agent's own."""
    covered: int = 0
    """How many of the turns the summary stands for."""
    summary: str = ""
    index: str = ""
    """What the summary lost, word for word."""
    summarizations: int = 0
    grounding: tuple[Match, ...] = ()
    coherence: float | None = None
    since_checkpoint: int = 0
    checkpoint: str | None = None
    """What a rollback goes back to; None for nothing."""
    scores: tuple[Score, ...] = ()
    taken: str | None = None
    """Chain id of the last message of a host's history that was taken in."""

    @property
    def relevance(self) -> float | None:
        """Of what it is grounded in, on average; None where it is not."""
        return sum(match.score for match in self.grounding) / len(self.grounding) if self.grounding else None

    @property
    def verbatim(self) -> tuple[Turn, ...]:
        """The turns that no summary stands for."""
        return self.turns[self.covered :]

    def messages(self) -> Iterator[ModelMessage]:
        """Every message, oldest first."""
        for turn in self.turns:
            yield from turn.messages


def asks(message: ModelMessage, reader: Reader) -> bool:
    """Whether a user says something there, so that a turn begins with it."""
    return isinstance(message, ModelRequest) and reader.one(message).asks


KEYS = count()


def turn_of(messages: Sequence[ModelMessage], reader: Reader, *, open: bool, key: int | None = None) -> Turn:
    """A turn of these messages; a new one unless it has a `key` already."""
    return Turn(
        key=next(KEYS) if key is None else key,
        messages=tuple(messages),
        tokens=sum(reader.one(one).tokens for one in messages),
        open=open,
    )


def split(messages: Sequence[ModelMessage], reader: Reader) -> list[Sequence[ModelMessage]]:
    """Messages by turn; what stands before the first prompt is one too."""
    starts = sorted({0, *(at for at, message in enumerate(messages) if asks(message, reader))})
    return [messages[start:stop] for start, stop in pairwise([*starts, len(messages)]) if start < stop]


def whole(messages: Sequence[ModelMessage], reader: Reader) -> tuple[ModelMessage, ...]:
    """The messages of a turn that has ended, up to where something was called that nobody answered."""
    readings = [reader.one(message) for message in messages]
    answered = {call for reading in readings for call in reading.answers}
    stop = next((at for at, one in enumerate(readings) if not answered.issuperset(one.calls)), len(messages))
    return tuple(messages[:stop])


def messages_of(turns: Sequence[Turn]) -> list[ModelMessage]:
    """The messages of some turns."""
    return [message for turn in turns for message in turn.messages]


def stop_before(turns: Sequence[Turn], start: int, stop: int, reader: Reader) -> int:
    """The last place from `start` to `stop` where turns can be parted: no call before it is answered after it."""
    called: dict[str, int] = {}
    across: list[tuple[int, int]] = []
    for at in range(start, len(turns)):
        for reading in (reader.one(message) for message in turns[at].messages):
            called |= dict.fromkeys(reading.calls, at)
            across += [(called[call], at) for call in reading.answers if called.get(call, at) < at]
    places = range(stop, start, -1)
    return next((at for at in places if not any(call < at <= answer for call, answer in across)), start)


def with_turn(session: Session, turn: Turn) -> Session:
    """The session with one more turn, in place of the one of that key where there is one."""
    at = next((at for at in range(len(session.turns) - 1, -1, -1) if session.turns[at].key == turn.key), None)
    if at is not None:
        return replace(session, turns=(*session.turns[:at], turn, *session.turns[at + 1 :]))
    return replace(session, turns=(*session.turns, turn))


def facts_of(session: Session) -> str:
    """All of a session but its messages, as JSON: its size does not depend on how long the session is."""
    given: dict[str, Any] = {
        "version": VERSION,
        "open": bool(session.turns and session.turns[-1].open),
        "system": [{"content": part.content, "dynamic_ref": part.dynamic_ref} for part in session.system],
        "grounding": [
            {"id": one.memory.id, "text": one.memory.text, "at": one.memory.created_at, "score": one.score}
            for one in session.grounding
        ],
        "scores": [_listed(score) for score in session.scores],
    }
    given |= {name: getattr(session, name) for name in PLAIN}
    return json.dumps(given, default=_said, separators=(",", ":"))


def restored(saved: Saved, reader: Reader) -> Session:
    """The session that was kept.

    Raises:
        ContextMemoryError: it was kept by a newer version, or is damaged.
    """
    try:
        facts: dict[str, Any] = json.loads(saved.facts)
        if facts["version"] > VERSION:
            raise ContextMemoryError("a newer version kept this session: upgrade context-compiler")
        groups = split(load_messages(saved.bodies) if saved.bodies else [], reader)
        turns = [turn_of(group, reader, open=False) for group in groups]
        if turns and facts["open"]:
            turns[-1] = replace(turns[-1], open=True)
        wrong = next((name for name, kinds in PLAIN.items() if not isinstance(facts[name], kinds)), None)
        if wrong is not None or facts["covered"] < 0:
            wrong = wrong or "covered"
            raise ValueError(f"{wrong} is {facts[wrong]!r:.80}")
        return Session(
            turns=tuple(turns),
            system=tuple(SystemPromptPart(**part) for part in facts["system"]),
            grounding=tuple(map(_match, facts["grounding"])),
            scores=tuple(map(_score, facts["scores"])),
            **{**{name: facts[name] for name in PLAIN}, "covered": min(facts["covered"], len(turns))},
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ContextMemoryError(f"the session that was kept is damaged ({error}); go back to a checkpoint") from error


def session_text(name: str, session: Session) -> str:
    """A whole session and its name as JSON."""
    messages = [json.loads(message_body(message)) for message in session.messages()]
    return json.dumps({"session_id": name, "facts": json.loads(facts_of(session)), "messages": messages})


def session_from(text: str, reader: Reader) -> tuple[str, Session]:
    """The name and the session that `session_text` wrote.

    Raises:
        ContextMemoryError: it did not write this.
    """
    try:
        given: dict[str, Any] = json.loads(text)
        bodies = tuple(json.dumps(message).encode() for message in given["messages"])
        saved = Saved(facts=json.dumps(given["facts"]), bodies=bodies)
        return str(given["session_id"]), restored(saved, reader)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ContextMemoryError(f"this is no session ({error}); give what to_json wrote") from error


SCORED = ("turn", "quality", "health", "tokens", "summarized", "checkpoint", "rolled_back", "trouble")
"""What a score says besides its time."""


def _listed(score: Score) -> list[Any]:
    return [*(getattr(score, name) for name in SCORED), score.created_at.isoformat()]


def _score(given: list[Any]) -> Score:
    return Score(**dict(zip(SCORED, given, strict=False)), created_at=datetime.fromisoformat(given[-1]))


def _match(given: dict[str, Any]) -> Match:
    memory = Memory(id=given["id"], text=given["text"], created_at=datetime.fromisoformat(given["at"]))
    return Match(memory=memory, score=given["score"])


def _said(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
