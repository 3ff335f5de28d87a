"""A session as an immutable value: its turns, its stored form, and the messages to send within a token limit.

Because nothing is modified in place, a checkpoint is just the value, and a failure leaves the previous value intact.
All turns are kept, including those that a summary replaces. Notes are data: they are sent in user messages, text of
users is fenced, and each note has the mark by which this package recognizes its own messages. If even the newest turns
exceed the limit, a copy of them is cut in the compiler's cut order, without a model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import count, pairwise
from operator import attrgetter
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequest, SystemPromptPart

from context_compiler.compiler.advance import freeze, select
from context_compiler.compiler.policy import Plan
from context_compiler.compiler.view import (
    assemble,
    join_notes,
    marked_request,
    note_text,
    stamp_of,
    without_folded_instructions,
)
from context_compiler.errors import ContextMemoryError
from context_compiler.manager.memory import Saved
from context_compiler.manager.results import SCORED, GroundedContext, Match, Memory, Score
from context_compiler.messages.bodies import load_messages, message_body
from context_compiler.messages.fences import QUOTED_TITLE, fence, neutralize
from context_compiler.messages.history import Reader
from context_compiler.messages.turns import pair, prompt_positions
from context_compiler.middleware.arguments import SHIPPED, Arguments, Terms
from context_compiler.settings import Settings
from context_compiler.template import prompt_text

VERSION = 1
MAX_SCORES = 50
"""Maximum scores in a session; the shelf keeps all of them."""
PLAIN_FACTS: dict[str, tuple[type, ...]] = {
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
"""Fields of a session that are stored as plain JSON, and their types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionTurn:
    """One turn: a user prompt and all messages up to the next prompt."""

    key: int
    """Identity within the process, independent of the position."""
    messages: tuple[ModelMessage, ...]
    tokens: int
    open: bool
    """True until the turn has an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """State that a rollback restores."""

    turns: tuple[SessionTurn, ...] = ()
    system_prompt: str = ""
    system: tuple[SystemPromptPart, ...] = ()
    """System prompts of the agent."""
    covered: int = 0
    """Number of turns that the summary replaces."""
    summary: str = ""
    index: str = ""
    """Verbatim list of specifics that the summary lost."""
    summarizations: int = 0
    grounding: tuple[Match, ...] = ()
    coherence: float | None = None
    since_checkpoint: int = 0
    checkpoint: str | None = None
    """Commit that the next rollback restores; None if there is none."""
    scores: tuple[Score, ...] = ()
    taken: str | None = None
    """Chain id of the last adopted message of a host's history."""

    @property
    def relevance(self) -> float | None:
        """Average relevance of the grounding; None without grounding."""
        return sum(match.score for match in self.grounding) / len(self.grounding) if self.grounding else None

    @property
    def verbatim(self) -> tuple[SessionTurn, ...]:
        """Turns after the summary."""
        return self.turns[self.covered :]


KEYS = count()


def make_turn(messages: Sequence[ModelMessage], reader: Reader, *, open: bool, key: int | None = None) -> SessionTurn:
    """Build a turn from these messages; it gets a new key unless one is given."""
    return SessionTurn(
        key=next(KEYS) if key is None else key,
        messages=tuple(messages),
        tokens=sum(reader.one(message).tokens for message in messages),
        open=open,
    )


def split_turns(messages: Sequence[ModelMessage], reader: Reader) -> list[Sequence[ModelMessage]]:
    """Split messages into turns, each from a user prompt on; messages before the first one are a turn too."""
    starts = sorted({0, *prompt_positions(messages, reader)})
    return [messages[start:stop] for start, stop in pairwise([*starts, len(messages)]) if start < stop]


def answered_prefix(messages: Sequence[ModelMessage], reader: Reader) -> tuple[ModelMessage, ...]:
    """Return the messages of a turn before the first one with an unanswered tool call."""
    readings = [reader.one(message) for message in messages]
    answered = {call for reading in readings for call in reading.answers}
    unanswered = (index for index, reading in enumerate(readings) if not answered.issuperset(reading.calls))
    return tuple(messages[: next(unanswered, len(messages))])


def turn_messages(turns: Sequence[SessionTurn]) -> list[ModelMessage]:
    """Return the messages of some turns, in order."""
    return [message for turn in turns for message in turn.messages]


def safe_boundary(turns: Sequence[SessionTurn], start: int, stop: int, reader: Reader) -> int:
    """Return the last position from `start` to `stop` that separates no tool call from its result."""
    called: dict[str, int] = {}
    across: list[tuple[int, int]] = []
    for index in range(start, len(turns)):
        for reading in (reader.one(message) for message in turns[index].messages):
            called |= dict.fromkeys(reading.calls, index)
            across += [(called[call], index) for call in reading.answers if called.get(call, index) < index]
    places = range(stop, start, -1)
    return next((stop for stop in places if not any(call < stop <= answer for call, answer in across)), start)


def with_turn(session: Session, turn: SessionTurn) -> Session:
    """Return the session with a turn added; a turn with the same key is replaced."""
    for index in range(len(session.turns) - 1, -1, -1):  # from the end, because it is mostly the last turn
        if session.turns[index].key == turn.key:
            return replace(session, turns=(*session.turns[:index], turn, *session.turns[index + 1 :]))
    return replace(session, turns=(*session.turns, turn))


def session_facts(session: Session) -> str:
    """Serialize everything in a session but its messages to JSON; the size does not grow with the session."""
    facts: dict[str, Any] = {
        "version": VERSION,
        "open": bool(session.turns and session.turns[-1].open),
        "system": [{"content": part.content, "dynamic_ref": part.dynamic_ref} for part in session.system],
        "grounding": [
            {"id": match.memory.id, "text": match.memory.text, "at": match.memory.created_at, "score": match.score}
            for match in session.grounding
        ],
        "scores": [*map(attrgetter(*SCORED, "created_at"), session.scores)],
    }
    facts |= {name: getattr(session, name) for name in PLAIN_FACTS}
    return json.dumps(facts, default=_json_default, separators=(",", ":"))


def restore_session(saved: Saved, reader: Reader) -> Session:
    """Parse a session from its stored form.

    Raises:
        ContextMemoryError: The session was saved by a newer version, or is damaged.
    """
    try:
        facts: dict[str, Any] = json.loads(saved.facts)
        if facts["version"] > VERSION:
            raise ContextMemoryError("this session was saved by a newer version: upgrade pydantic-ai-context-compiler")
        groups = split_turns(load_messages(saved.bodies) if saved.bodies else [], reader)
        turns = [make_turn(group, reader, open=False) for group in groups]
        if turns and facts["open"]:
            turns[-1] = replace(turns[-1], open=True)
        wrong = next((name for name, kinds in PLAIN_FACTS.items() if not isinstance(facts[name], kinds)), None)
        if wrong is not None or facts["covered"] < 0:
            wrong = wrong or "covered"
            raise ValueError(f"{wrong} is {facts[wrong]!r:.80}")
        return Session(
            turns=tuple(turns),
            system=tuple(SystemPromptPart(**part) for part in facts["system"]),
            grounding=tuple(map(_parse_match, facts["grounding"])),
            scores=tuple(map(_parse_score, facts["scores"])),
            **{**{name: facts[name] for name in PLAIN_FACTS}, "covered": min(facts["covered"], len(turns))},
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ContextMemoryError(
            f"the saved session is damaged ({error}); `rollback(commit)` restores one of the commits in `log`"
        ) from error


def dump_session(name: str, session: Session) -> str:
    """Serialize a whole session and its name to JSON."""
    messages = [json.loads(message_body(message)) for message in turn_messages(session.turns)]
    return json.dumps({"session_id": name, "facts": json.loads(session_facts(session)), "messages": messages})


def load_session(text: str, reader: Reader) -> tuple[str, Session]:
    """Parse the name and session from the text of `dump_session`.

    Raises:
        ContextMemoryError: The text is not a session.
    """
    try:
        document: dict[str, Any] = json.loads(text)
        bodies = tuple(json.dumps(message).encode() for message in document["messages"])
        saved = Saved(facts=json.dumps(document["facts"]), bodies=bodies)
        return str(document["session_id"]), restore_session(saved, reader)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ContextMemoryError(f"this is not a session ({error}); give the text of to_json") from error


def _parse_score(row: list[Any]) -> Score:
    return Score(**dict(zip(SCORED, row, strict=False)), created_at=datetime.fromisoformat(row[-1]))


def _parse_match(row: dict[str, Any]) -> Match:
    memory = Memory(id=row["id"], text=row["text"], created_at=datetime.fromisoformat(row["at"]))
    return Match(memory=memory, score=row["score"])


def _json_default(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


GROUNDING_TITLE = "Relevant context from memory:"
SUMMARY_TITLE = "Summary of earlier conversation:"
MARK = {"v": 1}
STAMP = stamp_of(marked_request([], MARK))
"""Fixed timestamp of generated messages, so that the same session gives the same bytes."""

SUMMARY_MEMORIES, MEMORY_WIDTH = 3, 100
"""Maximum memories in the summary of a grounding, and maximum characters of each."""


def opening_messages(session: Session) -> list[ModelMessage]:
    """Build the messages before the turns: system prompts, grounding, summary and lost specifics."""
    messages: list[ModelMessage] = []
    own = [SystemPromptPart(content=session.system_prompt, timestamp=STAMP)] if session.system_prompt.strip() else []
    if own or session.system:
        messages.append(ModelRequest(parts=[*own, *session.system]))
    texts: list[str] = []
    if session.grounding:
        listed = "\n".join(f"- {match.memory.text.strip()}" for match in session.grounding)
        texts.append(f"{GROUNDING_TITLE}\n{fence('memory', listed)}")
    if session.summary:
        texts.append(note_text(f"{SUMMARY_TITLE}\n{neutralize(session.summary)}", prompt_text("preface")))
    if session.index:
        texts.append(fence(QUOTED_TITLE, session.index))
    return [*messages, marked_request(texts, MARK)] if texts else messages


def context_messages(session: Session, leaving_out: frozenset[int] = frozenset()) -> list[ModelMessage]:
    """Return the messages to send, before any cut, without the turns that have one of the given keys."""
    turns = (turn for turn in session.verbatim if turn.key not in leaving_out)
    return [*opening_messages(session), *(message for turn in turns for message in turn.messages)]


def uncut_tokens(session: Session, reader: Reader) -> int:
    """Count the tokens of `context_messages`; turns were already counted when they were added."""
    return sum(reader.one(message).tokens for message in opening_messages(session)) + sum(
        turn.tokens for turn in session.verbatim
    )


def grounding_result(matches: Sequence[Match]) -> GroundedContext:
    """Convert matches to the value that callers get."""
    return GroundedContext(
        memories=tuple(match.memory for match in matches),
        summary="; ".join(match.memory.text[:MEMORY_WIDTH] for match in matches[:SUMMARY_MEMORIES]),
        relevance_scores=tuple(match.score for match in matches),
    )


class ContextLimit:
    """Token limit of the messages sent; caches the last cut."""

    def __init__(self, reader: Reader, most: int) -> None:
        """Limit to `most` tokens, counted by `reader`."""
        self._reader, self._most = reader, most
        self._cached: tuple[tuple[object, ...], list[ModelMessage], int] | None = None

    def messages(self, session: Session) -> list[ModelMessage]:
        """Return the messages of the session, cut to the limit."""
        if uncut_tokens(session, self._reader) <= self._most:
            return self._in_turns(context_messages(session))
        return list(self._cut(session)[0])

    def tokens(self, session: Session) -> int:
        """Count the tokens of `messages`."""
        uncut = uncut_tokens(session, self._reader)
        return uncut if uncut <= self._most else self._cut(session)[1]

    def within(self, session: Session, messages: list[ModelMessage]) -> list[ModelMessage]:
        """Cut messages that begin with the session's opening, if they exceed the limit or contain a broken tool call.

        The result contains no instructions in turns without an answer, because the host would send them again with
        the next prompt.
        """
        return self._in_turns(self._fit(session, messages))

    def _in_turns(self, messages: Sequence[ModelMessage]) -> list[ModelMessage]:
        return join_notes(without_folded_instructions(messages, self._reader), self._reader)

    def _fit(self, session: Session, messages: list[ModelMessage]) -> list[ModelMessage]:
        history = self._reader.read(messages)
        if history.tokens <= self._most and not pair(history).broken:
            return messages
        head = opening_messages(session)
        turns = messages[len(head) :]
        room = self._most - self._cost(head)
        if room < self._most // 2:
            head = opening_messages(replace(session, grounding=(), summary="", index=""))
            room = self._most - self._cost(head)
        if room < self._most // 2:
            return cut_messages([*head, *turns], self._most, self._reader)
        return [*head, *cut_messages(turns, room, self._reader)]

    def _cut(self, session: Session) -> tuple[list[ModelMessage], int]:
        key = (
            *(session.turns, session.covered, session.summary, session.index),
            *(session.grounding, session.system_prompt, session.system),
        )
        if self._cached is None or self._cached[0] != key:
            messages = self.within(session, context_messages(session))
            self._cached = (key, messages, self._cost(messages))
        return self._cached[1:]

    def _cost(self, messages: Sequence[ModelMessage]) -> int:
        return sum(self._reader.one(message).tokens for message in messages)


def cut_messages(messages: Sequence[ModelMessage], budget: int, reader: Reader) -> list[ModelMessage]:
    """Cut messages to a budget without a model; return the minimum if even that exceeds the budget."""
    history = reader.read(messages)
    pairing = pair(history)
    if history.tokens <= budget and not pairing.broken:
        return list(messages)
    policy = Arguments("extractive", budget=budget, model="none").policy(SHIPPED, Settings.from_environment(), Terms())
    plan = Plan(history=history, pairing=pairing, policy=policy, reader=reader, fixed=0, one_shot=True)
    selection = select(plan, policy.limits(plan.carried), previous=None)
    cycle, _ = freeze(selection, summary="", row=None, turn=plan.turn, asked=False)
    return assemble(history, cycle, plan.base, reader)
