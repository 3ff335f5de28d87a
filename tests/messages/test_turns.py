"""Turns begin with what users say, and groups never split what belongs together."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, SystemPromptPart

from context_compiler.messages.turns import Outline, cut_points, outline, pair, turn_index, turn_starts
from tests.messages.reading import read
from tests.support.builders import answer, assistant, call, exchange, long_history, user
from tests.support.histories import histories
from tests.support.parts import PNG, native_pair, retry_prompt


def outlined(*messages: ModelMessage) -> Outline:
    history = read(messages)
    return outline(history, pair(history))


def starts(*messages: ModelMessage) -> list[int]:
    return turn_starts(read(messages))


def groups(*messages: ModelMessage) -> list[list[tuple[int, int]]]:
    """The groups of every turn, as start and stop."""
    return [[(group.start, group.stop) for group in turn.groups] for turn in outlined(*messages).turns]


# --- where turns begin


def test_a_turn_spans_one_prompt_to_just_before_the_next() -> None:
    history = [user("a"), *exchange(1), assistant("b"), user("c"), assistant("d"), user("e")]
    assert starts(*history) == [0, 4, 6]
    assert turn_index(read(history)) == 2


def test_results_and_retries_begin_no_turn() -> None:
    again = ModelRequest(parts=[retry_prompt("wrong", tool="look", ident="x")])
    feedback = ModelRequest(parts=[retry_prompt("say more", tool=None)])
    history = [user("a"), assistant(call("look", "x")), again, assistant("b"), feedback]
    assert starts(*history) == [0]


def test_a_prompt_in_a_shared_run_steers_and_begins_no_turn() -> None:
    history = [user("a", run_id="r"), *exchange(1, run_id="r"), user("also b", run_id="r"), user("c", run_id="s")]
    assert starts(*history) == [0, 4]


def test_a_run_is_joined_across_messages_without_a_run() -> None:
    assert starts(user("a", run_id="r"), assistant("b"), user("c", run_id="r")) == [0]
    assert starts(user("a", run_id="r"), assistant("b"), user("c")) == [0, 2]


def test_files_returned_with_a_result_begin_no_turn() -> None:
    filed = user(answer("call_1", "See file 1."), "This is file 1:", PNG)
    assert starts(user("a"), assistant(call("look", "call_1")), filed) == [0]


def test_a_deferred_answer_in_a_new_run_comes_with_a_new_turn() -> None:
    approved = user(answer("call_1"), "go on", run_id="s")
    assert starts(user("a", run_id="r"), assistant(call("look", "call_1"), run_id="r"), approved) == [0, 2]


def test_messages_before_the_first_prompt_are_not_a_user_turn() -> None:
    history = [assistant("welcome"), user("a"), assistant("b"), user("c")]
    assert [turn.index for turn in outlined(*history).turns] == [-1, 0, 1]
    assert turn_index(read(history)) == 1
    assert turn_index(read(history[:1])) == 0
    assert turn_index(read([])) == 0


@given(histories())
def test_the_turn_index_is_that_of_the_active_turn(history: list[ModelMessage]) -> None:
    found = read(history)
    assert turn_index(found) == max(0, outline(found, pair(found)).active.index)


# --- what stays together


def test_an_exchange_is_a_group_and_so_are_prompt_and_answer() -> None:
    assert groups(user("a"), *exchange(1), *exchange(2, calls=2), assistant("b")) == [[(0, 1), (1, 3), (3, 5), (5, 6)]]


def test_two_responses_in_a_row_are_one_group() -> None:
    assert groups(user("a"), assistant("b"), assistant("c"), user("d")) == [[(0, 1), (1, 3)], [(3, 4)]]


def test_a_request_without_a_prompt_stays_with_the_response_before_it() -> None:
    feedback = ModelRequest(parts=[retry_prompt("say more", tool=None)])
    system = ModelRequest(parts=[SystemPromptPart(content="x")])
    assert groups(user("a"), assistant("b"), feedback, system, assistant("c")) == [[(0, 1), (1, 3), (3, 4), (4, 5)]]


def test_answers_in_several_requests_right_after_the_calls_are_one_group() -> None:
    asked = assistant(call("look", "x"), call("look", "y"))
    assert groups(user("a"), asked, user(answer("x")), user(answer("y")), assistant("b")) == [[(0, 1), (1, 4), (4, 5)]]


def test_a_late_answer_ties_two_messages_and_not_whole_groups() -> None:
    asked = assistant(call("look", "late"), call("look", "call_1"))
    steps: list[Any] = [message for number in range(2, 6) for message in exchange(number)]
    history = [user("a"), asked, user(answer("call_1")), *steps, assistant("b"), user(answer("late"))]
    assert groups(*history)[0][:3] == [(0, 1), (1, 3), (3, 5)]
    ties = outlined(*history).ties
    assert ties == {1: (1, 2, 12), 2: (1, 2, 12), 12: (1, 2, 12)}


def test_two_late_answers_of_one_message_are_one_tie() -> None:
    asked = assistant(call("look", "one"), call("look", "other"))
    history = [user("a"), asked, assistant("b"), user("c", answer("one")), assistant("d"), user(answer("other"))]
    ties = outlined(*history).ties
    assert len(set(ties.values())) == 1 and {1, 3, 5} <= set(ties)


def test_an_answer_in_a_later_turn_ties_too() -> None:
    history = [user("a", run_id="r"), assistant(call("look", "x"), run_id="r"), user(answer("x"), "b", run_id="s")]
    assert outlined(*history).ties == {1: (1, 2), 2: (1, 2)}
    assert groups(*history) == [[(0, 1), (1, 2)], [(2, 3)]]


def test_ties_are_transitive() -> None:
    history = [
        user("a"),
        assistant(call("look", "one")),
        user("b"),
        assistant(call("look", "two")),
        user(answer("one"), answer("two")),
        assistant("c"),
        user("d"),
    ]
    assert set(outlined(*history).ties) == {1, 3, 4}


def test_an_exchange_answered_at_once_needs_no_tie() -> None:
    assert outlined(*long_history(5)).ties == {}


def test_a_native_exchange_over_two_responses_is_one_group() -> None:
    asked, told = native_pair("x", "news")
    assert groups(user("a"), assistant(asked), assistant(told, "b"), user("c")) == [[(0, 1), (1, 3)], [(3, 4)]]


def test_an_empty_history_has_no_turns() -> None:
    assert outlined() == Outline(turns=(), starts=(), ties={}, readings=())


@given(histories())
def test_turns_and_groups_cover_a_history_without_gaps(history: list[ModelMessage]) -> None:
    parsed = read(history)
    plan = outline(parsed, pair(parsed))
    edges = [(turn.start, turn.stop) for turn in plan.turns]
    assert [start for start, _ in edges] == [0, *(stop for _, stop in edges[:-1])]
    assert edges[-1][1] == len(history)
    for turn in plan.turns:
        spans = [(group.start, group.stop) for group in turn.groups]
        assert spans[0][0] == turn.start
        assert spans[-1][1] == turn.stop
        assert all(before[1] == after[0] for before, after in zip(spans, spans[1:], strict=False))


@given(histories(max_turns=8), st.data())
def test_a_continued_outline_equals_that_of_the_whole_history(history: list[ModelMessage], data: st.DataObject) -> None:
    whole, before = read(history), None
    for stop in sorted(data.draw(st.sets(st.integers(1, len(history)), max_size=4))):
        part = read(history[:stop])
        before = outline(part, pair(part), before)
    assert outline(whole, pair(whole), before) == outline(whole, pair(whole))


def test_a_settled_turn_is_reused_unless_one_of_its_calls_is_answered_later() -> None:
    late = [user("a"), assistant(call("look", "late")), *long_history(8)]
    before = outline(read(late), pair(read(late)))
    for more, kept in ([user("c")], True), ([user(answer("late"), "d")], False):
        whole = read([*late, *more])
        plan = outline(whole, pair(whole), before)
        assert plan == outline(whole, pair(whole))
        assert (plan.turns[0] is before.turns[0]) is kept


def test_an_outline_is_not_continued_for_the_same_text_of_other_runs() -> None:
    one_run = [user("a", run_id="r"), *[assistant("b"), user("c", run_id="r")] * 8]
    before = outline(read(one_run), pair(read(one_run)))
    runs = read(
        [
            user("a", run_id="r"),
            *[message for number in range(8) for message in (assistant("b"), user("c", run_id=f"{number}"))],
        ]
    )
    assert len(before.turns) == 1
    assert len(outline(runs, pair(runs), before).turns) == 9


@given(histories())
def test_pairs_never_split_a_group_or_a_tie(history: list[ModelMessage]) -> None:
    parsed = read(history)
    pairing = pair(parsed)
    plan = outline(parsed, pairing)
    groups = [group for turn in plan.turns for group in turn.groups]
    for call_at, answer_at in pairing.pairs:
        together = any(group.start <= call_at and answer_at < group.stop for group in groups)
        assert together or answer_at in plan.ties[call_at]
        assert plan.ties.get(call_at) == plan.ties.get(answer_at)


@given(histories())
def test_zero_is_always_a_cut_and_no_cut_opens_a_response_by_a_result(history: list[ModelMessage]) -> None:
    parsed = read(history)
    cuts = cut_points(parsed, pair(parsed).pairs, turn_starts(parsed))
    assert cuts[0] == 0
    for index in cuts[1:]:
        opened = isinstance(history[index], ModelResponse) and isinstance(history[index - 1], ModelResponse)
        assert not opened
