"""Facts of tool sessions that a user may ask for later, found by a rule in user prompts and tool results.

A fact is a value (an id, a path, a number, a date) that occurs in only one message of its session. Its question is
made of the words around it. In text these are the other words of its line, one of them rare; the fact is held if the
line, or four in five of its word 5-grams, are in the view. In JSON they are the names that lead to the value and a rare
value next to it or in the call; the fact is held if the value is in the view with its name or a neighbouring word.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from pydantic_ai.messages import ModelMessage

from benchmarks import recall
from benchmarks.peers.baselines import READER, text
from benchmarks.recall import Conversation, Question
from context_compiler.compiler.patterns import Sort
from context_compiler.compiler.references import contexts, places
from context_compiler.compiler.specifics import comparable_text, specifics
from context_compiler.messages.items import Item, Kind, parse_arguments
from context_compiler.recall.terms import terms
from context_compiler.resilience import attempt

COUNT, ALONE = 10, 3
"""Maximum facts per session; and runs of a set that has only one session, each with other facts."""
SORTS = (Sort.ID, Sort.PATH, Sort.URL, Sort.NUMBER, Sort.DATE, Sort.VERSION)
LINE, FIELD = "line", "field"
LEAST, MOST = 24, 300
"""Minimum and maximum characters of a line."""
SHORTEST = 3
"""Minimum characters of a value."""
WORDS, NEAR = 3, 12
"""Minimum distinct terms of a question, and maximum words taken from the line."""
RARE = 3
"""Maximum messages in which a rare term occurs."""

_WORD = re.compile(r"[^\W\d_][\w'-]*")


class _Session:
    """A session with the comparable text of each message, and the number of messages in which each term occurs."""

    def __init__(self, messages: Sequence[ModelMessage]) -> None:
        texts = [text(message) for message in messages]
        self.messages, self.said = messages, [_flat(said) for said in texts]
        self.often = Counter(term for said in texts for term in set(terms(said)))

    def once(self, value: str) -> bool:
        """True if a value occurs, as a whole word, in only one message."""
        wanted = comparable_text(value)
        found = [said for said in self.said if wanted in said and any(places(said, wanted))]
        return len(found) == 1

    def rare(self, text: str) -> bool:
        """True if a text has a rare term."""
        return any(self.often[term] <= RARE for term in terms(text))


def conversations(sessions: Sequence[Sequence[ModelMessage]], name: str) -> list[Conversation]:
    """Return sessions with facts to ask for; the same ones at every call."""
    times = ALONE if len(sessions) == 1 else 1
    named = [(f"{name} {number}", messages) for number, messages in enumerate([*sessions] * times)]
    return [
        Conversation(name=title, messages=tuple(messages), questions=tuple(asked), whole=True)
        for title, messages in named
        if (asked := questions(messages, title))
    ]


def questions(messages: Sequence[ModelMessage], name: str) -> list[Question]:
    """Draw at most `COUNT` facts of a session with a seed, from as many messages as possible."""
    session = _Session(messages)
    draw = random.Random(f"{recall.SEED} facts {name}")
    drawn: list[list[Question]] = []
    for position in draw.sample(range(len(messages)), len(messages)):
        here = list({(question.text, question.answer): question for question in _facts(session, position)}.values())
        drawn.append(draw.sample(here, min(len(here), COUNT)))
    ordered = [group[rank] for rank in range(COUNT) for group in drawn if rank < len(group)]
    return sorted(ordered[:COUNT], key=lambda question: question.after)


def held(question: Question, view: str) -> float:
    """Return 1 if a view holds a fact, else 0."""
    if question.kind == LINE:
        return float(recall.score(question, view, whole=True) == 1)
    shown, (source,) = _flat(view), question.evidence
    value = comparable_text(question.answer)
    return float(bool(contexts(shown, value) & contexts(_flat(source), value)))


def _flat(text: str) -> str:
    return comparable_text(text.replace("\\n", "\n ").replace("\\t", " "))


def _facts(session: _Session, position: int) -> Iterator[Question]:
    for item in READER.one(session.messages[position]).items:
        if item.kind not in (Kind.USER, Kind.RETURN) or item.mark is not None:
            continue
        whole = _parsed(item) if item.kind is Kind.RETURN else None
        if whole is None:
            yield from _of_lines(session, position, item)
        else:
            yield from _of_fields(session, position, item, whole)


def _of_lines(session: _Session, position: int, item: Item) -> Iterator[Question]:
    for line in dict.fromkeys(map(str.strip, item.text.splitlines())):
        if not LEAST <= len(line) <= MOST or not session.once(line):
            continue
        for value in _values(line):
            before, _, after = line.partition(value)
            words = [*_WORD.findall(before)[-NEAR // 2 :], *_WORD.findall(after)[: NEAR // 2]]
            asked = " ".join(words)
            if len(set(terms(asked))) >= WORDS and session.rare(asked) and session.once(value):
                text = f"What was it again: {asked}?"
                yield Question(text=text, evidence=(line,), kind=LINE, answer=value, after=position)
                break


def _values(line: str) -> list[str]:
    found = [specific for specific in specifics(line, rules=False) if specific.sort in SORTS]
    return [specific.verbatim for specific in found if len(specific.verbatim) >= SHORTEST]


def _parsed(item: Item) -> dict[str, Any] | list[Any] | None:
    value = attempt(lambda: json.loads(item.text)).value
    return value if isinstance(value, dict | list) else None


def _of_fields(session: _Session, position: int, item: Item, whole: dict[str, Any] | list[Any]) -> Iterator[Question]:
    called = [value for value in _call(session, position, item).values() if isinstance(value, str)]
    text = item.text
    for path, value, beside in _leaves(whole, (), called):
        said = str(value)
        if len(said) < SHORTEST or _values(said) != [said] or not session.once(said):
            continue
        handle = next((other for other in beside if other != said and (other in called or _names(session, other))), "")
        start = text.find(said)
        if not handle or start < 0 or said in path:
            continue
        asked = " ".join(" ".join(path).replace("_", " ").split())
        source = text[max(0, start - 100) : start + len(said) + 100]
        question = f"What was the {asked} of {handle}?"
        yield Question(text=question, evidence=(source,), kind=FIELD, answer=said, after=position)


def _names(session: _Session, text: str) -> bool:
    """True if a text is a rare id, which a user might use as a name."""
    found = specifics(text, rules=False)
    return len(found) == 1 and found[0].sort is Sort.ID and found[0].verbatim == text and session.rare(text)


def _call(session: _Session, position: int, item: Item) -> Mapping[str, object]:
    for message in reversed(session.messages[:position]):
        for other in READER.one(message).items:
            if other.kind is Kind.CALL and other.call_id == item.call_id:
                return parse_arguments(other.text) or {}
    return {}


def _leaves(
    value: object, path: tuple[str, ...], beside: Sequence[str]
) -> Iterator[tuple[tuple[str, ...], str | int | float, Sequence[str]]]:
    """Yield every number and string of JSON with the names that lead to it and nearby strings, nearest first."""
    if isinstance(value, dict):
        fields = cast(dict[str, object], value)
        near = [*(text for text in fields.values() if isinstance(text, str)), *beside]
        for name, inner in fields.items():
            yield from _leaves(inner, (*path, name), near)
    elif isinstance(value, list):
        for inner in cast(list[object], value):
            yield from _leaves(inner, path, beside)
    elif path and isinstance(value, str | int | float) and not isinstance(value, bool):
        yield path, value, beside
