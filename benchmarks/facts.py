"""Facts of tool sessions that a user may ask for later, found by a rule in what users said and tools returned.

A fact is a value (an id, a path, a number, a date) that occurs in one message of its session and in none else, and its
question is made of the words that stand around it: of a text, the other words of its line, one of which is rare; of
JSON, the names that lead to it and a rare value beside it or in the call. The fact is held where the line is in the
view (or four in five of its word 5-grams), of JSON the value with its name or a neighbour.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic_ai.messages import ModelMessage

from benchmarks import recall
from benchmarks.peers.baselines import READER
from benchmarks.recall import Conversation, Question
from context_compiler.compiler.patterns import Sort
from context_compiler.compiler.references import contexts, places
from context_compiler.compiler.specifics import comparable_text, specifics
from context_compiler.messages.items import Item, Kind, parse_arguments
from context_compiler.recall.terms import terms

COUNT, ALONE = 10, 3
"""Facts of a session; a set of one session is lived through so often, each time with other facts."""
SORTS = (Sort.ID, Sort.PATH, Sort.URL, Sort.NUMBER, Sort.DATE, Sort.VERSION)
LINE, FIELD = "line", "field"
LEAST, MOST = 24, 300
"""Characters of a line."""
SHORTEST = 3
"""Characters of a value."""
WORDS, NEAR = 3, 12
"""Words of a line that say anything: so many at least, and so many are asked with at most."""
RARE = 3
"""A rare term occurs in at most so many messages."""

_WORD = re.compile(r"[^\W\d_][\w'-]*")


@dataclass(frozen=True, slots=True)
class _Session:
    """A session, and how often things are said in it."""

    messages: Sequence[ModelMessage]
    said: list[str]
    """The text of each message, comparable."""
    often: Counter[str]
    """In how many messages a term occurs."""

    @classmethod
    def of(cls, messages: Sequence[ModelMessage]) -> _Session:
        texts = ["\n".join(item.text for item in READER.one(message).items) for message in messages]
        often = Counter(term for text in texts for term in set(terms(text)))
        return cls(messages, [_flat(text) for text in texts], often)

    def once(self, value: str) -> bool:
        """Whether a value occurs in one message only, whole."""
        wanted = comparable_text(value)
        found = [text for text in self.said if wanted in text and any(places(text, wanted))]
        return len(found) == 1

    def rare(self, text: str) -> bool:
        """Whether some term of a text is rare."""
        return any(self.often[term] <= RARE for term in terms(text))


def conversations(sessions: Sequence[Sequence[ModelMessage]], name: str) -> list[Conversation]:
    """Sessions with facts to ask for; the same ones whenever this is called."""
    times = ALONE if len(sessions) == 1 else 1
    named = [(f"{name} {number}", messages) for number, messages in enumerate([*sessions] * times)]
    return [
        Conversation(name=title, messages=tuple(messages), questions=tuple(found), whole=True)
        for title, messages in named
        if (found := questions(messages, title))
    ]


def questions(messages: Sequence[ModelMessage], name: str) -> list[Question]:
    """At most `COUNT` facts of a session, drawn with a seed, of as many messages as possible."""
    session = _Session.of(messages)
    draw = random.Random(f"{recall.SEED} facts {name}")
    found: list[list[Question]] = []
    for position in draw.sample(range(len(messages)), len(messages)):
        here = list({(one.text, one.answer): one for one in _facts(session, position)}.values())
        found.append(draw.sample(here, min(len(here), COUNT)))
    ordered = [group[at] for at in range(COUNT) for group in found if at < len(group)]
    return sorted(ordered[:COUNT], key=lambda one: one.after)


def held(question: Question, view: str) -> float:
    """1 where a view holds the line of a fact, else 0."""
    if question.kind == LINE:
        return float(recall.score(question, view, whole=True) == 1)
    shown, (source,) = _flat(view), question.evidence
    value = comparable_text(question.answer)
    return float(bool(contexts(shown, value) & contexts(_flat(source), value)))


def _flat(text: str) -> str:
    return comparable_text(text.replace("\\n", "\n ").replace("\\t", " "))


def _facts(session: _Session, position: int) -> Iterator[Question]:
    """All facts of one message."""
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
    found = [one for one in specifics(line, rules=False) if one.sort in SORTS]
    return [one.verbatim for one in found if len(one.verbatim) >= SHORTEST]


def _parsed(item: Item) -> dict[str, Any] | list[Any] | None:
    try:
        value = json.loads(item.text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None


def _of_fields(session: _Session, position: int, item: Item, whole: dict[str, Any] | list[Any]) -> Iterator[Question]:
    called = [value for value in _call(session, position, item).values() if isinstance(value, str)]
    text = item.text
    for path, value, beside in _leaves(whole, (), called):
        given = str(value)
        if len(given) < SHORTEST or _values(given) != [given] or not session.once(given):
            continue
        handle = next((one for one in beside if one != given and (one in called or _names(session, one))), "")
        at = text.find(given)
        if not handle or at < 0 or given in path:
            continue
        asked = " ".join(" ".join(path).replace("_", " ").split())
        source = text[max(0, at - 100) : at + len(given) + 100]
        question = f"What was the {asked} of {handle}?"
        yield Question(text=question, evidence=(source,), kind=FIELD, answer=given, after=position)


def _names(session: _Session, text: str) -> bool:
    """Whether a text is a rare id, by which a user may name what it belongs to."""
    found = specifics(text, rules=False)
    return len(found) == 1 and found[0].sort is Sort.ID and found[0].verbatim == text and session.rare(text)


def _call(session: _Session, position: int, item: Item) -> Mapping[str, object]:
    """The arguments of the call that a result answers."""
    for message in reversed(session.messages[:position]):
        for other in READER.one(message).items:
            if other.kind is Kind.CALL and other.call_id == item.call_id:
                return parse_arguments(other.text) or {}
    return {}


def _leaves(
    value: object, path: tuple[str, ...], beside: Sequence[str]
) -> Iterator[tuple[tuple[str, ...], str | int | float, Sequence[str]]]:
    """Every number and string of JSON with the names that lead to it, and with strings nearby, nearest first."""
    if isinstance(value, dict):
        fields = cast(dict[str, object], value)
        near = [*(one for one in fields.values() if isinstance(one, str)), *beside]
        for name, inner in fields.items():
            yield from _leaves(inner, (*path, name), near)
    elif isinstance(value, list):
        for inner in cast(list[object], value):
            yield from _leaves(inner, path, beside)
    elif path and isinstance(value, str | int | float) and not isinstance(value, bool):
        yield path, value, beside
