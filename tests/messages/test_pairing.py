"""Who answers whom, and what has no partner."""

from __future__ import annotations

import pytest
from hypothesis import given
from pydantic_ai.messages import ModelMessage, ModelRequest, ThinkingPart

from context_compiler.messages.history import Reader
from context_compiler.messages.turns import pair
from tests.messages.reading import paired, read
from tests.support.builders import answer, assistant, call, exchange, long_history, user
from tests.support.histories import histories
from tests.support.parts import native_pair, retry_prompt
from tests.support.views import counter


def test_parallel_calls_are_paired_each_with_its_own_answer() -> None:
    found = paired(user("a"), *exchange(1, calls=3), user("b"))
    assert found.pairs == ((1, 2), (1, 2), (1, 2))
    assert not found.broken
    assert not found.waiting


def test_an_id_may_be_used_again_once_it_is_answered() -> None:
    found = paired(user("a"), *exchange(1), *exchange(1), user("b"))
    assert found.pairs == ((1, 2), (3, 4))
    assert not found.broken


def test_a_repeated_call_id_gives_up_its_open_call() -> None:
    found = paired(user("a"), assistant(call("look", "x")), user("hm"), assistant(call("look", "x")), user(answer("x")))
    assert found.pairs == ((3, 4),)
    assert found.broken == {1: frozenset({0})}


def test_calls_of_one_response_that_share_an_id_are_answered_in_order() -> None:
    calls = assistant(call("look", "x"), call("look", "x"), call("look", "x"))
    pairing = paired(user("a"), calls, user(answer("x"), answer("x")), user(answer("x")), user("b"))
    assert pairing.pairs == ((1, 2), (1, 2), (1, 3))
    assert not pairing.broken and not pairing.waiting
    pairing = paired(user("a"), calls, user(answer("x"), answer("x")), assistant(call("look", "x")), user(answer("x")))
    assert pairing.pairs == ((1, 2), (1, 2), (3, 4))
    assert pairing.broken == {1: frozenset({2})}


def test_orphans_repetitions_and_unanswered_calls_are_broken() -> None:
    pairing = paired(
        user(answer("nobody"), "a"),
        assistant("wait", call("look", "x"), call("look", "lost")),
        user(answer("x"), answer("x")),
        assistant("b"),
        user("c"),
    )
    assert pairing.broken == {0: frozenset({0}), 1: frozenset({2}), 2: frozenset({1})}
    assert pairing.waiting


def test_an_answer_before_its_call_is_not_paired() -> None:
    found = paired(user("a"), user(answer("x")), assistant(call("look", "x")), user("b"))
    assert found.pairs == ()
    assert found.broken == {1: frozenset({0}), 2: frozenset({0})}


def test_a_retry_prompt_answers_its_call() -> None:
    again = ModelRequest(parts=[retry_prompt("wrong", tool="look", ident="x")])
    assert paired(user("a"), assistant(call("look", "x")), again).pairs == ((1, 2),)


def test_native_calls_are_paired_apart_from_functions_of_the_same_id() -> None:
    asked, told = native_pair("x", "news")
    pairing = paired(user("a"), assistant(asked, told, call("look", "x")), user(answer("x")))
    assert pairing.pairs == ((1, 1), (1, 2))
    assert paired(user("a"), assistant(told, "b"), user("c")).broken == {1: frozenset({0})}
    assert paired(user("a"), assistant(asked, "b"), user("c")).broken == {1: frozenset({0})}


def test_thinking_that_signs_only_a_broken_call_is_broken_too() -> None:
    thought = ThinkingPart(content="hm", signature="s")
    assert paired(user("a"), assistant(thought, call("look", "x")), user("b")).broken == {1: frozenset({0, 1})}
    kept = paired(user("a"), assistant(thought, "so", call("look", "x")), user("b"))
    assert kept.broken == {1: frozenset({2})}


def test_a_last_request_without_partners_is_reported_as_unpaired() -> None:
    pairing = paired(user("a"), assistant("b"), user(answer("nobody")))
    assert pairing.unpaired == 2
    assert pairing.waiting
    assert paired(user("a"), assistant("b"), user(answer("nobody"), "c")).unpaired is None
    assert paired(user("a"), assistant(call("look", "x"))).unpaired is None


def test_a_pairing_continues_from_that_of_an_earlier_request() -> None:
    messages = long_history(6)
    reader = Reader(counter)
    before = pair(reader.read(messages[:7]))
    whole = reader.read(messages)
    assert pair(whole, before) == pair(whole)


@pytest.mark.parametrize("made", [2, 3])
def test_a_pairing_is_recomputed_after_an_open_call_or_for_another_history(made: int) -> None:
    messages = [user("a"), assistant(call("look", "x")), user("b"), assistant("c"), user(answer("x"))]
    before = pair(read(messages[:made]))
    assert pair(read(messages), before).pairs == ((1, 4),)
    assert pair(read([user("other"), *messages[1:]]), before).pairs == ((1, 4),)


@given(histories())
def test_every_exchange_is_paired_once_or_broken(history: list[ModelMessage]) -> None:
    parsed = read(history)
    pairing = pair(parsed)
    exchanges = sum(item.call_id is not None for _, item in parsed.items())
    broken = sum(
        parsed.readings[index].items[position].call_id is not None
        for index, parts in pairing.broken.items()
        for position in parts
    )
    assert 2 * len(pairing.pairs) + broken == exchanges
    assert all(call <= answered for call, answered in pairing.pairs)


@given(histories())
def test_a_pairing_in_two_steps_is_the_same_as_in_one(history: list[ModelMessage]) -> None:
    reader = Reader(counter)
    whole = reader.read(history)
    for stop in range(1, len(history)):
        assert pair(whole, pair(reader.read(history[:stop]))) == pair(whole)
