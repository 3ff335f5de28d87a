"""Index over the other conversations of an owner: what was said in them, by term, and the best of it for a question.

It holds what users and assistants said, in pieces that can be quoted, and grows by what is new of each conversation.
A piece is judged by the share of the question that it holds, weighed by how rare its terms are in all of them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import log1p
from threading import Lock
from typing import Any, cast

from context_compiler.messages.fences import one_line
from context_compiler.recall.passages import text_pieces
from context_compiler.recall.ranking import Question
from context_compiler.recall.terms import terms

FLOOR = 0.6
"""Share of a question that a piece has to hold: conversations about other things share words by chance."""

LONGEST = 20_000
"""Characters of a message that are indexed: what is longer is a document."""

NAME = 48
"""Characters of the name of a conversation in a label."""

BRACKETS = str.maketrans("[]", "()")
"""Replacements for the characters that begin and end a label."""

SPEAKERS = {"user-prompt": "user", "text": "assistant"}

Name = tuple[str, str]
"""Name of a conversation and the time at which it began: its number may have been that of a deleted one."""


@dataclass(frozen=True, slots=True)
class Mention:
    """A piece of what was said in another conversation."""

    session: str
    day: str
    """As YYYY-MM-DD; empty when unknown."""
    speaker: str
    text: str
    place: tuple[int, int]
    """Number of the conversation, and of the piece in it."""

    @property
    def line(self) -> str:
        """The piece with its origin, as it is quoted."""
        name = one_line(self.session, NAME).translate(BRACKETS)
        origin = ", ".join(filter(None, (name, self.day, self.speaker)))
        return f"[{origin}] {' '.join(self.text.split())}"


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """New messages of a conversation since it was indexed."""

    number: int
    name: Name
    tip: str
    bodies: Sequence[bytes]
    """The canonical JSON of its new messages, oldest first."""
    goes_on: bool
    """They follow what was indexed; else they replace it."""


@dataclass(slots=True)
class _Conversation:
    name: Name
    tip: str
    mentions: list[Mention] = field(default_factory=list[Mention])
    posts: dict[str, list[int]] = field(default_factory=dict[str, list[int]])


class OtherConversations:
    """The conversations of one owner by term, for any number of threads."""

    def __init__(self) -> None:
        """Begin with none."""
        self._all: dict[int, _Conversation] = {}
        self._spread: Counter[str] = Counter()
        self._pieces = self.size = 0
        self._lock = Lock()

    @property
    def known(self) -> Mapping[int, tuple[Name, str]]:
        """Name, and end of what was indexed, of each conversation by its number."""
        with self._lock:
            return {number: (one.name, one.tip) for number, one in self._all.items()}

    def take(self, news: Sequence[News], alive: Mapping[int, Name]) -> None:
        """Index what is new, and forget every conversation that is not alive any more."""
        with self._lock:
            for gone in [number for number, one in self._all.items() if alive.get(number) != one.name]:
                self._forget(gone)
            for one in news:
                if not one.goes_on:
                    self._forget(one.number)
                self._extend(one)

    def best(self, question: Question, session: str) -> list[tuple[float, Mention]]:
        """Pieces that answer a question, best first, of equal ones the later; none of the conversation that asks."""
        with self._lock:
            weights = {
                term: log1p((self._pieces - spread + 0.5) / (spread + 0.5))
                for term in sorted(question.terms)
                if (spread := self._spread[term])
            }
            unknown = len(question.terms) - len(weights)
            whole = sum(weights.values()) * (1 + unknown / (2 * max(1, len(weights))))
            found: list[tuple[float, Mention]] = []
            for one in self._all.values():
                if one.name[0] != session:
                    found += self._scored(one, weights, whole)
        return sorted(found, key=lambda pair: (-pair[0], (-pair[1].place[0], -pair[1].place[1])))

    def _scored(
        self, one: _Conversation, weights: Mapping[str, float], whole: float
    ) -> Iterator[tuple[float, Mention]]:
        held: dict[int, float] = {}
        for term, weight in weights.items():
            for at in one.posts.get(term, ()):
                held[at] = held.get(at, 0.0) + weight
        for at, weight in held.items():
            if weight / whole >= FLOOR:
                yield min(1.0, weight / whole), one.mentions[at]

    def _forget(self, number: int) -> None:
        gone = self._all.pop(number, None)
        if gone is not None:
            self._spread.subtract({term: len(places) for term, places in gone.posts.items()})
            self._pieces -= len(gone.mentions)
            self.size -= sum(len(one.text) for one in gone.mentions)

    def _extend(self, news: News) -> None:
        one = self._all.setdefault(news.number, _Conversation(news.name, news.tip))
        one.tip = news.tip
        for body in news.bodies:
            for day, speaker, text in said(body):
                at = len(one.mentions)
                one.mentions.append(Mention(news.name[0], day, speaker, text, (news.number, at)))
                for term in set(terms(text)):
                    one.posts.setdefault(term, []).append(at)
                    self._spread[term] += 1
                self._pieces += 1
                self.size += len(text)


def said(body: bytes) -> Iterator[tuple[str, str, str]]:
    """Day, speaker and text of what a message says, in pieces; tools, thoughts and system text are left out."""
    message: Any = json.loads(body)
    for part in cast("list[dict[str, Any]]", message.get("parts") or []):
        speaker = SPEAKERS.get(str(part.get("part_kind")))
        if speaker is None:
            continue
        day = str(part.get("timestamp") or message.get("timestamp") or "")[:10]
        for text in _texts(part.get("content")):
            for piece in text_pieces(text[:LONGEST]):
                if piece.strip():
                    yield "" if day.startswith("1970") else day, speaker, piece


def _texts(content: object) -> Iterator[str]:
    """The texts of a prompt, which may be a list with files between them."""
    for one in cast("list[object]", content) if isinstance(content, list) else [content]:
        text = cast("dict[str, object]", one).get("content") if isinstance(one, dict) else one
        if isinstance(text, str) and not (isinstance(one, dict) and cast("dict[str, object]", one).get("media_type")):
            yield text
