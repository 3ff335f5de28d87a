from __future__ import annotations

import asyncio
import base64
import random
import sys
import threading
import unicodedata
from collections.abc import Iterator

import pytest

from context_compiler.errors import SettingsError
from context_compiler.tokens import Count, TokenCounter, as_counter
from tests.support.o200k import theirs

seen_sockets: list[str] | None = None


def note_sockets(event: str, _: object) -> None:
    if seen_sockets is not None and event.startswith("socket."):
        seen_sockets.append(event)


sys.addaudithook(note_sockets)


@pytest.fixture(autouse=True)
def nothing_opens_a_socket() -> Iterator[None]:
    global seen_sockets
    seen_sockets = []
    yield
    opened, seen_sockets = seen_sockets, None
    assert not opened


TEXTS = {
    "empty": "",
    "english": "The quick brown fox doesn't jump; it's 1,234.5 km away.\n\n  (Really?)  " * 30,
    "chinese": "今天天气很好，我们去公园散步吧。你觉得怎么样？" * 40,
    "japanese": "これはテストです。東京タワーへ行きました。" * 40,
    "arabic": "مرحبا بالعالم، كيف حالك اليوم؟ " * 40,
    "emoji": "😀👍🏽👨‍👩‍👧‍👦🇩🇪 ok " * 60,
    "code": "def f(x: int) -> str:\n\treturn f'{x!r}'  # why\n\n\nclass A(B):\n    pass\r\n" * 40,
    "base64": base64.b64encode(random.Random(1).randbytes(3_000)).decode(),
    "special": "<|endoftext|><|im_start|>system<|endofprompt|>",
    "controls": "a\x00b\x1c\x85\u2028 \u00a0\u3000\t\v\f\r\n",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_text_has_as_many_tokens_as_tiktoken_says(text: str) -> None:
    assert TokenCounter().text(text) == len(theirs().encode_ordinary(text))


def test_text_that_looks_like_a_special_token_is_ordinary_text() -> None:
    assert TokenCounter().text("<|endoftext|>") > 1


def test_calling_a_counter_counts() -> None:
    counter = TokenCounter()
    assert counter("Hello, world!") == counter.text("Hello, world!") == 4


def test_a_million_spaces_are_counted() -> None:
    assert 7_000 < TokenCounter().text(" " * 1_000_000) < 9_000


HOSTILE = ["\ud800", "a\udc00b", "\ud83d\ude00", "\udfff" * 60_000, "\x00" * 1_000, "a\u0301" * 40_000]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_counted(text: str) -> None:
    assert TokenCounter().text(text) > 0


class Unhashable(str):
    __hash__ = None  # type: ignore[assignment]  # what a careless subclass ends with


def test_a_subclass_of_str_is_counted_by_its_text() -> None:
    words = "many words that a counter is asked to remember " * 3
    assert TokenCounter().text(Unhashable(words)) == TokenCounter().text(words)


# Beginnings and ends


@pytest.mark.parametrize("tokens", [1, 2, 7, 50, 99, 100, 333, 2_000])
@pytest.mark.parametrize("name", ["english", "chinese", "emoji", "code", "base64"])
def test_a_head_and_a_tail_fit_and_are_as_long_as_can_be(name: str, tokens: int) -> None:
    text, counter = TEXTS[name] * 5, TokenCounter()
    wanted = min(tokens, counter.text(text))
    head, tail = counter.head(text, tokens), counter.tail(text, tokens)
    assert text.startswith(head)
    assert text.endswith(tail)
    slack = 1 + wanted // 100 if name != "emoji" else 20 + wanted // 100  # one character has many tokens
    for part in (head, tail):
        assert wanted - slack <= counter.text(part) <= tokens


def test_a_text_that_fits_is_its_own_head_and_tail() -> None:
    counter = TokenCounter()
    assert counter.head("short text", 10) == counter.tail("short text", 10) == "short text"
    assert counter.head("", 10) == counter.tail("", 10) == ""


@pytest.mark.parametrize("tokens", [0, -5])
def test_zero_tokens_leave_no_text(tokens: int) -> None:
    counter = TokenCounter()
    assert counter.head("some text", tokens) == counter.tail("some text", tokens) == ""


JOINED = {"surrogates": "\ud83d\ude00" * 200, "marks": "e\u0301" * 200, "joiners": "👩\u200d👩\u200d👧 " * 100}


@pytest.mark.parametrize("text", JOINED.values(), ids=JOINED)
def test_no_character_is_split(text: str) -> None:
    counter = TokenCounter()
    for tokens in range(1, 60):
        head, tail = counter.head(text, tokens), counter.tail(text, tokens)
        after = text[len(head) : len(head) + 1]
        for first in (after, tail[:1]):
            assert not first or ("\udc00" > first or first > "\udfff") and unicodedata.category(first) != "Mn"
            assert first != "\u200d"
        assert not head.endswith("\u200d")


def test_a_head_of_a_huge_text_does_not_read_it_all() -> None:
    asked: list[int] = []

    def count(text: str) -> int:
        asked.append(len(text))
        return len(text) // 4

    counter = TokenCounter(count)
    assert len(counter.head("abcd" * 1_000_000, 20)) == 83
    assert max(asked) < 1_000


# Remembering


def test_a_text_is_counted_once() -> None:
    asked: list[str] = []

    def count(text: str) -> int:
        asked.append(text)
        return 7

    counter = TokenCounter(count)
    words = ["some", "words"]
    assert [counter.text(" ".join(words)) for _ in range(3)] == [7, 7, 7]
    assert len(asked) == 1


def test_the_memo_is_bounded_in_characters_and_evicts_the_oldest_first() -> None:
    asked: list[str] = []

    def count(text: str) -> int:
        asked.append(text[0])
        return 1

    counter = TokenCounter(count, remember=3_500)
    for letter in "abacda":  # room for three texts of 1,000 characters
        counter.text(letter * 1_000)
    assert asked == ["a", "b", "c", "d"]
    counter.text("b" * 1_000)
    assert asked[-1] == "b"


def test_a_text_larger_than_the_memory_is_not_kept() -> None:
    asked: list[int] = []

    def count(text: str) -> int:
        asked.append(len(text))
        return 1

    counter = TokenCounter(count, remember=500)
    counter.text("a" * 100)
    counter.text("b" * 10_000)
    counter.text("a" * 100)
    assert asked == [100, 10_000]


def test_threads_agree() -> None:
    counter, texts, answers = TokenCounter(remember=5_000), [TEXTS["code"][i : i + 500] for i in range(80)], []

    def work() -> None:
        answers.append([counter.text(text) for text in texts])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [[TokenCounter().text(text) for text in texts]] * 4


# A user's own counter


def test_a_custom_counter_is_used() -> None:
    assert TokenCounter(len).text("four") == 4


def raising(_: str) -> int:
    raise RuntimeError("no")


@pytest.mark.parametrize("nonsense", [lambda _: -1, lambda _: 2.5, lambda _: None, lambda _: True, raising])
def test_if_a_custom_counter_fails_ours_counts(nonsense: Count) -> None:
    assert as_counter(nonsense).text("Hello, world!") == 4


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit])
def test_a_cancellation_inside_a_counter_is_raised(error: type[BaseException]) -> None:
    def cancelled(_: str) -> int:
        raise error

    with pytest.raises(error):
        TokenCounter(cancelled).text("text")


def test_a_panic_of_a_tokenizer_is_caught(caplog: pytest.LogCaptureFixture) -> None:
    panic = type("PanicException", (BaseException,), {})

    def panicking(_: str) -> int:
        raise panic("stack overflow")

    counter = TokenCounter(panicking)
    assert [counter.text("Hello, world!"), counter.text("Hello, there!")] == [4, 4]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "panicking" in caplog.text and "stack overflow" not in caplog.text


def test_a_real_panic_is_caught() -> None:
    whole_at_once = TokenCounter(lambda text: len(theirs().encode_ordinary(text)))
    assert 7_000 < whole_at_once.text(" " * 1_000_000) < 9_000


def test_a_counter_that_is_not_callable_is_refused() -> None:
    with pytest.raises(SettingsError, match="counter='o200k'"):
        as_counter("o200k")  # type: ignore[arg-type]  # a user's mistake


def test_each_kind_of_counter_argument_is_accepted() -> None:
    own = TokenCounter()
    assert as_counter(None) is as_counter(None)
    assert as_counter(own) is own
    assert as_counter(len).text("12345") == 5
