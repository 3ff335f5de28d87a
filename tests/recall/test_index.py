"""An index of what was said: it grows at its end, finds ids and paths, and takes any text."""

from __future__ import annotations

import sys
import tracemalloc
from collections import deque
from itertools import chain
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import ModelMessage

from context_compiler.messages.history import History, Reader
from context_compiler.recall import Index, index_of
from context_compiler.recall.terms import MAX_TERM, stem, terms
from context_compiler.tokens import TokenCounter
from tests.support.histories import answer, assistant, call, histories, user

READER = Reader(TokenCounter())


def read(*messages: ModelMessage) -> History:
    return READER.read(messages)


def where(index: Index, term: str) -> dict[int, int]:
    flat = list(index.posts.get(term, ()))
    return dict(zip(flat[::2], flat[1::2], strict=True))


def contents(index: Index) -> tuple[object, ...]:
    return (
        {term: list(postings) for term, postings in index.posts.items()},
        list(index.sizes),
        list(index.costs),
        bytes(index.speakers),
        bytes(index.cues),
        list(index.sessions),
        index.days,
        dict(index.called),
        index.total,
        index.tip,
    )


def test_a_word_is_found_in_all_its_forms() -> None:
    index = Index.of(read(user("The painters painted a painting."), assistant("Nice!")))
    assert where(index, stem("paint")) == {0: 2} and stem("книги") == stem("книгу")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("see src/app/main.py", {"=src/app/main.py", "src", "app", "main"}),
        ("the call is call_8fGh2K9.", {"=call_8fgh2k9", "call"}),
        ("ticket ABC-123, please", {"=abc-123", "abc", "123"}),
        ("use getUserName", {"=getusername", "get", "user", "name"}),
        ("set MAX_TOKENS", {"=max_tokens", "max", stem("tokens")}),
        ("昨天我们", {"昨天", "天我", "我们"}),
    ],
)
def test_ids_and_paths_are_terms_as_a_whole_and_in_their_parts(text: str, wanted: set[str]) -> None:
    assert wanted <= set(terms(text))


def test_stop_words_and_binary_data_are_not_terms() -> None:
    assert not list(terms("Go on. What is it that you and I would do? " + "x9" * MAX_TERM))


def test_a_tool_result_is_indexed_at_its_call() -> None:
    index = Index.of(
        read(
            user("look"), assistant(call("find", "a", name="x")), user(answer("a", "in zanzibar/file.txt", tool="find"))
        )
    )
    assert set(where(index, "=zanzibar/file.txt")) == {1}


@given(st.data())
def test_an_index_built_in_steps_is_the_same_as_one_built_at_once(data: st.DataObject) -> None:
    messages = data.draw(histories(max_turns=4))
    stops = sorted(data.draw(st.lists(st.integers(0, len(messages)), max_size=4)))
    grown = Index()
    for stop in [*stops, len(messages)]:
        grown.extend(READER.read(messages[:stop]))
    assert contents(grown) == contents(Index.of(READER.read(messages)))


def test_a_longer_history_extends_its_index_and_a_fork_gets_its_own() -> None:
    begin = [user("one apple"), assistant("two pears")]
    first = index_of(read(*begin))
    assert index_of(read(*begin, user("three plums"))) is first and len(first) == 3
    forked = index_of(read(*begin, user("four figs")))
    assert forked is not first and contents(forked) == contents(Index.of(read(*begin, user("four figs"))))


def test_alternating_conversations_extend_their_own_indexes() -> None:
    talks = [[user(f"Talk {number} is about topic{number}."), assistant("Good.")] for number in range(50)]
    first = [index_of(read(*talk)) for talk in talks]
    again = [index_of(read(*talk, user("And then?"))) for talk in talks]
    assert [one is other for one, other in zip(first, again, strict=True)] == [True] * 50


def test_another_history_is_refused() -> None:
    index = Index.of(read(user("one"), assistant("two")))
    with pytest.raises(ValueError, match="does not begin"):
        index.extend(read(user("three"), assistant("two"), user("four")))


def test_an_index_is_small() -> None:
    words = "the plan for garden number {0} needs {0} seeds from shop {1} before the rain in week {2}"
    index = Index.of(read(*(user(words.format(turn, turn % 40, turn % 52)) for turn in range(300))))
    size = sys.getsizeof(index.posts) + sum(sys.getsizeof(term) + sys.getsizeof(at) for term, at in index.posts.items())
    assert size / sum(index.sizes) < 200


def test_sentences_without_spaces_are_not_remembered_whole() -> None:
    draw = Random(1)
    sentences = ["".join(draw.choices("春夏秋冬山川草木日月星雲風花雪雨", k=90)) for _ in range(4_000)]
    deque(chain.from_iterable(map(terms, sentences[:1_000])), maxlen=0)
    tracemalloc.start()
    deque(chain.from_iterable(map(terms, sentences[1_000:])), maxlen=0)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 500_000
