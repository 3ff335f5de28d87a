"""Search a record for the messages nearest to some words: in any order, in other forms, misspelt, or not all of them.

The text index of the record finds the candidates, and recall's index says which of them have most of the words.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain

from context_compiler.compiler.facts import EXCERPT
from context_compiler.compiler.trace import HITS
from context_compiler.messages.history import Reader
from context_compiler.messages.prompts import sentence_ends
from context_compiler.messages.recorded import RecordedMessage
from context_compiler.recall import Index, Question
from context_compiler.recall.terms import beginnings, passage_terms
from context_compiler.recall.unknown import spelt
from context_compiler.record import browse
from context_compiler.record.database import Database
from context_compiler.tokens import as_counter


class Nearest:
    """The messages of a record that have the most of a text's words, oldest first."""

    def __init__(self, db: Database, text: str, among: Container[str] | None = None) -> None:
        """Search the messages with the ids `among`, or all if None."""
        question = Question.of(text)
        find = partial(_starting, db, among)
        texts = _candidates(find, [term for term in sorted(question.terms) if not term.startswith("=")])
        index = Index.of(Reader(as_counter(len)).read_recorded([*map(RecordedMessage.of_prompt, texts.values())]))
        self._terms = spelt(question, index, len(index)).terms
        held = {node: self._held(text) for node, text in texts.items()}
        most = max(held.values(), default=0)
        self.nodes = [node for node in reversed(held) if held[node] == most] if most else []

    def sentence(self, text: str) -> str:
        """The sentence of a text that has most of the words, cut to `EXCERPT` characters."""
        return max(_sentences(text), key=self._held, default="")

    def _held(self, text: str) -> int:
        return len(self._terms & passage_terms(text).keys())


def _candidates(find: Callable[..., dict[str, str]], wanted: Sequence[str]) -> Mapping[str, str]:
    """Texts of messages with a form of one of the terms, or else with a word that begins alike, by id."""
    candidates: dict[str, str] = {}
    for term in wanted:
        texts = find(*beginnings(term))
        if not any(term in passage_terms(text) for text in texts.values()):
            texts |= find(term[:3]) or find(term[:1])
        candidates |= texts
    return candidates


def _starting(db: Database, among: Container[str] | None, *starts: str) -> dict[str, str]:
    limit = HITS if among is None else None
    matches = chain.from_iterable(browse.matching_nodes(db, start, limit) for start in starts)
    return {node: text for node, text in matches if among is None or node in among}


def _sentences(text: str) -> Iterator[str]:
    start = 0
    for end in (*sentence_ends(text), len(text)):
        sentence = text[start:end].strip()
        while len(sentence) > EXCERPT:
            size = sentence.rfind(" ", 1, EXCERPT) + 1 or EXCERPT
            yield sentence[:size].strip()
            sentence = sentence[size:]
        yield sentence
        start = end
