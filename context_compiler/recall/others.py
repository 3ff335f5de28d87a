"""Index of an owner's other conversations, searched for pieces of text that answer a question.

It contains the texts of users and assistants in quotable pieces, and is extended with the new messages of each
conversation. A piece is scored by the fraction of the question's terms that it contains, weighted by their idf over
all conversations.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, cast

from context_compiler.messages.fences import one_line
from context_compiler.messages.history import History
from context_compiler.messages.items import SCANNED
from context_compiler.recall.bm25 import idf
from context_compiler.recall.changes import Changes, Texts, message_texts
from context_compiler.recall.index import changes_of
from context_compiler.recall.passages import text_pieces
from context_compiler.recall.question import Question
from context_compiler.recall.terms import terms

FLOOR = 0.6
"""Minimum fraction of a question (by idf) that a piece must contain. It is high because conversations about other
subjects share words by chance."""

NAME = 48
"""Maximum length in characters of a conversation's name in a label."""

BRACKETS = str.maketrans("[]", "()")
"""Replacements for the brackets that delimit a label."""

SPEAKERS = {"user-prompt": "user", "text": "assistant"}

UNDATED = "9999"
"""Day of a message without a date in the conversation that asks: today."""

Name = tuple[str, str]
"""Name of a conversation and the time at which it began. Both are needed because the number of a deleted conversation
may be used again."""


@dataclass(frozen=True, slots=True)
class Mention:
    """A quotable piece of a message in another conversation."""

    session: str
    day: str
    """As YYYY-MM-DD; empty if unknown."""
    speaker: str
    text: str
    place: tuple[int, int]
    """Number of the conversation, and of the piece within it."""
    newer: tuple[str, ...] = ()
    """Sentences, said later, that replace what the piece says."""

    @property
    def line(self) -> str:
        """Line that quotes the piece with its origin, and with what replaced it."""
        name = one_line(self.session, NAME).translate(BRACKETS)
        origin = ", ".join(filter(None, (name, self.day, self.speaker)))
        return " ".join((f"[{origin}]", *self.text.split(), *(f"[changed later: {said}]" for said in self.newer)))


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """New messages of a conversation since it was indexed."""

    number: int
    name: Name
    before: str | None
    """Last indexed chain id when the messages were read; None if none was."""
    tip: str
    bodies: Sequence[bytes]
    """Canonical JSON of the new messages, oldest first."""
    goes_on: bool
    """True if these messages follow the indexed ones; False if they replace them."""


@dataclass(slots=True)
class _Conversation:
    name: Name
    tip: str
    mentions: list[Mention] = field(default_factory=list[Mention])
    posts: dict[str, list[int]] = field(default_factory=dict[str, list[int]])


class OtherConversations:
    """Thread-safe index of the conversations of one owner."""

    def __init__(self) -> None:
        """Create an empty index."""
        self._all: dict[int, _Conversation] = {}
        self._spread: Counter[str] = Counter()  # pieces that contain a term, by term
        self._pieces = self.size = 0
        self._lock = Lock()

    @property
    def known(self) -> Mapping[int, tuple[Name, str]]:
        """Name and last indexed chain id of each conversation, by its number."""
        with self._lock:
            return {number: (session.name, session.tip) for number, session in self._all.items()}

    def take(self, news: Sequence[News], alive: Mapping[int, Name]) -> None:
        """Index new messages, and remove every conversation that is not in `alive`.

        Messages of a conversation that another search has indexed further since they were read are skipped.
        """
        with self._lock:
            for number in [number for number, old in self._all.items() if alive.get(number) != old.name]:
                self._forget(number)
            for conversation in news:
                indexed = self._all.get(conversation.number)
                if (indexed.tip if indexed else None) != conversation.before:
                    continue
                if not conversation.goes_on:
                    self._forget(conversation.number)
                self._extend(conversation)

    def best(self, question: Question, session: str) -> list[tuple[float, Mention]]:
        """Pieces that answer a question, with their scores, best first; ties to the later one.

        Pieces of the conversation named `session`, which asks the question, are left out.
        """
        with self._lock:
            weights = {
                term: idf(self._pieces, spread) for term in sorted(question.terms) if (spread := self._spread[term])
            }
            unknown = len(question.terms) - len(weights)
            whole = sum(weights.values()) * (1 + unknown / (2 * max(1, len(weights))))
            scored: list[tuple[float, Mention]] = []
            for conversation in self._all.values():
                if conversation.name[0] != session:
                    scored += self._score(conversation, weights, whole)
        return sorted(scored, key=lambda pair: (-pair[0], (-pair[1].place[0], -pair[1].place[1])))

    def _score(
        self, conversation: _Conversation, weights: Mapping[str, float], whole: float
    ) -> Iterator[tuple[float, Mention]]:
        held: dict[int, float] = {}
        for term, weight in weights.items():
            for number in conversation.posts.get(term, ()):
                held[number] = held.get(number, 0.0) + weight
        for number, weight in held.items():
            if weight / whole >= FLOOR:
                yield min(1.0, weight / whole), conversation.mentions[number]

    def _forget(self, number: int) -> None:
        gone = self._all.pop(number, None)
        if gone is not None:
            self._spread.subtract({term: len(places) for term, places in gone.posts.items()})
            self._pieces -= len(gone.mentions)
            self.size -= sum(len(mention.text) for mention in gone.mentions)

    def _extend(self, news: News) -> None:
        conversation = self._all.setdefault(news.number, _Conversation(news.name, news.tip))
        conversation.tip = news.tip
        for body in news.bodies:
            for day, speaker, text in message_pieces(body):
                number = len(conversation.mentions)
                conversation.mentions.append(Mention(news.name[0], day, speaker, text, (news.number, number)))
                for term in set(terms(text)):
                    conversation.posts.setdefault(term, []).append(number)
                    self._spread[term] += 1
                self._pieces += 1
                self.size += len(text)


def with_newer(mentions: Sequence[Mention], history: History) -> list[Mention]:
    """Mentions with the sentences that replace what they say: of each other, and of the conversation that asks.

    What was said on one day was said in the conversation that asks last.
    """
    if not mentions:
        return []
    own, user = changes_of(history), SPEAKERS["user-prompt"]
    in_order = sorted(mentions, key=lambda mention: mention.place)
    akin = sorted({position for mention in mentions for position in own.akin(mention.text)})
    stream: list[tuple[str, Mention | None, Texts]] = [
        *((other.day, other, [(other.speaker == user, other.text)]) for other in in_order),
        *((history.readings[position].day or UNDATED, None, message_texts(history, position)) for position in akin),
    ]
    stream.sort(key=lambda entry: entry[0])
    changes = Changes()
    changes.read([texts for _, _, texts in stream])
    newer = {
        mention.place: tuple(change.later for change in changes.of(position, mention.text))
        for position, (_, mention, _) in enumerate(stream)
        if mention is not None
    }
    return [replace(mention, newer=newer[mention.place]) for mention in mentions]


def message_pieces(body: bytes) -> Iterator[tuple[str, str, str]]:
    """Pieces of a message, as `(day, speaker, text)`; tool exchanges, thinking and system text are left out."""
    message: Any = json.loads(body)
    for part in cast("list[dict[str, Any]]", message.get("parts") or []):
        speaker = SPEAKERS.get(str(part.get("part_kind")))
        if speaker is None:
            continue
        day = str(part.get("timestamp") or message.get("timestamp") or "")[:10]
        for text in _texts(part.get("content")):
            for piece in text_pieces(text[:SCANNED]):
                if piece.strip():
                    yield "" if day.startswith("1970") else day, speaker, piece


def _texts(content: object) -> Iterator[str]:
    """Texts of a part's content, which may be a string or a list of texts and files."""
    for piece in cast("list[object]", content) if isinstance(content, list) else [content]:
        text = cast("dict[str, object]", piece).get("content") if isinstance(piece, dict) else piece
        if isinstance(text, str) and not (
            isinstance(piece, dict) and cast("dict[str, object]", piece).get("media_type")
        ):
            yield text
