"""Known answers for what is measured of a request: broken pairs, size, and cost with a prompt cache."""

from __future__ import annotations

import pytest
from pydantic_ai.messages import ModelMessage

from context_compiler.compiler.metrics import CACHED, FRESH, PromptCache, Sent, broken_pairs, figures
from context_compiler.messages.history import Reader
from context_compiler.tokens import TokenCounter
from tests.support.histories import answer, assistant, call, user

READER = Reader(TokenCounter())


def broken(*messages: ModelMessage) -> tuple[int, int]:
    return broken_pairs(READER.one(message) for message in messages)


def sized(tokens: int) -> Sent:
    return Sent(tokens=tokens, orphans=0, half_open=0, cost=tokens * FRESH, cached=0, seconds=0.001)


def test_a_history_whose_calls_are_all_answered_has_no_broken_pair() -> None:
    assert broken(user("a"), assistant(call("look", "1"), call("look", "2")), user(answer("1"), answer("2"))) == (0, 0)


def test_an_answer_without_its_call_is_an_orphan() -> None:
    assert broken(user(answer("1")), assistant("b")) == (1, 0)


def test_a_second_answer_is_an_orphan_too() -> None:
    assert broken(user("a"), assistant(call("look", "1")), user(answer("1")), user(answer("1"))) == (1, 0)


def test_a_call_that_nothing_answers_is_half_open() -> None:
    assert broken(user("a"), assistant(call("look", "1")), user("b")) == (0, 1)


def test_an_answer_before_its_call_is_both() -> None:
    assert broken(user(answer("1")), assistant(call("look", "1")), user("b")) == (1, 1)


def test_requests_over_the_budget_are_counted_and_the_worst_is_known() -> None:
    found = figures([sized(50), sized(100), sized(101), sized(250)], 100)
    assert (found.requests, found.over, found.worst, found.tokens) == (4, 2, 2.5, 501)


def test_a_session_without_requests_has_zero_figures() -> None:
    assert figures([], 100).requests == figures([], 100).cost == figures([], 100).median_ms == 0


def test_a_cached_prefix_costs_a_tenth_and_the_rest_the_price_of_a_cache_write() -> None:
    one, two, three = (READER.one(message) for message in (user("first"), assistant("second"), user("a third one")))
    cache = PromptCache()
    assert cache.charge([one]) == pytest.approx(FRESH * one.tokens)
    assert cache.charge([one, two, three]) == pytest.approx(CACHED * one.tokens + FRESH * (two.tokens + three.tokens))
    assert cache.charge([two, three]) == pytest.approx(FRESH * (two.tokens + three.tokens))
    assert cache.charge([two, three]) == pytest.approx(CACHED * (two.tokens + three.tokens))
