"""The cut order: one step after the other, whole groups, every drop with its reason, never further than needed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import (
    CompactionPart,
    ModelMessage,
    ThinkingPart,
)

from context_compiler.compiler import cut_order
from context_compiler.compiler.advance import cut_current_turn
from context_compiler.compiler.cut_order import CUT_ORDER, MIN_PART, reduce
from context_compiler.compiler.reasons import EARLIER_TURN, reason_of
from context_compiler.messages.items import MESSAGE_OVERHEAD, Kind, placeholder
from context_compiler.messages.shapes import WHOLE, Shape, apply_shape
from tests.compiler.benches import LONG, bench, checked, climb, gone
from tests.support.builders import answer, assistant, call, exchange, long_history, prose, user
from tests.support.histories import histories
from tests.support.pages import page
from tests.support.parts import PNG

# --- each step alone


def test_large_parts_are_cut_to_a_quarter_of_the_budget() -> None:
    on = bench([user("a"), assistant(LONG), user(LONG, system=LONG), *exchange(1, content=LONG)], room=400)
    assert climb(on, cut_order.truncate_large_parts) == ["a part above a quarter of the budget"] * 2
    assert on.shapes == [WHOLE, Shape(limit=100), WHOLE, WHOLE, Shape(limit=100)]
    checked(on)


def test_the_current_prompt_does_not_count_as_a_large_part() -> None:
    on = bench([user(LONG), assistant("b"), user(LONG), *exchange(1), user(LONG, answer("x"))], room=400)
    climb(on, cut_order.truncate_large_parts)
    assert [index for index, shape in enumerate(on.shapes) if shape != WHOLE] == [0]


def test_a_part_of_exactly_a_quarter_of_the_budget_is_not_cut() -> None:
    on = bench([user("a"), assistant(LONG), user("b")])
    on.room = 4 * on.costs[1]
    assert climb(on, cut_order.truncate_large_parts) == []
    on.room -= 4
    assert climb(on, cut_order.truncate_large_parts) != []


def test_older_turns_go_oldest_first() -> None:
    history = long_history(5, tools_per_turn=0)
    on = bench(history, recent=2)
    assert climb(on, cut_order.drop_older_turns) == ["one of the oldest turns, which go first"] * 3
    assert [drop.what for drop in on.drops] == ["messages 0-1", "messages 2-3", "messages 4-5"]
    assert gone(on) == [0, 1, 2, 3, 4, 5]
    checked(on)


@pytest.mark.parametrize(("recent", "left"), [(0, [10]), (5, list(range(11))), (9, list(range(11)))])
def test_the_requested_number_of_recent_turns_stays(recent: int, left: list[int]) -> None:
    on = bench(long_history(5, tools_per_turn=0), recent=recent)
    climb(on, cut_order.drop_older_turns)
    assert [index for index in range(11) if index not in gone(on)] == left


def test_exchanges_of_earlier_turns_become_skeletons_without_thinking() -> None:
    thought = ThinkingPart(content=LONG, signature="s")
    active = [user("b"), assistant(thought, call("look", "y")), user(answer("y", LONG))]
    on = bench([user("a"), assistant(thought, call("look", "x")), user(answer("x", LONG)), assistant(LONG), *active])
    assert climb(on, cut_order.stub_tool_exchanges) == ["tool exchange as a stub"] * 2
    skeleton = Shape(skeleton=True, without=frozenset({Kind.THINKING}))
    assert on.shapes == [WHOLE, skeleton, skeleton, WHOLE, WHOLE, WHOLE, WHOLE]
    checked(on)


def test_a_summary_shrinks_to_medium_low_and_compact() -> None:
    on = bench([user("a")])
    on.reserve(3_000)
    sizes = [on.summary for _ in cut_order.shrink_summary(on)]
    assert sizes == [1_500, 600, 500]
    on.reserve(550)
    assert [on.summary for _ in cut_order.shrink_summary(on)] == [500]


def test_recent_turns_go_oldest_first_but_never_the_active_one() -> None:
    on = bench(long_history(3, tools_per_turn=0))
    assert climb(on, cut_order.drop_recent_turns) == ["a recent turn, but the request was over budget"] * 3
    assert gone(on) == [0, 1, 2, 3, 4, 5]


RUN = [user("a"), *exchange(1, content=LONG), *exchange(2, content=LONG), *exchange(3, content=LONG)]


def test_completed_groups_of_the_active_run_become_skeletons() -> None:
    on = bench([user("old"), assistant("b"), *RUN])
    reasons = climb(on, cut_order.stub_active_exchanges)
    assert reasons == ["tool exchange of this turn as a stub"] * 2
    assert [index for index, shape in enumerate(on.shapes) if shape != WHOLE] == [4, 6]
    checked(on)


def test_tool_exchanges_of_the_active_run_are_dropped_oldest_first_except_the_open_one() -> None:
    on = bench(RUN)
    assert climb(on, cut_order.drop_active_groups) == ["tool exchange of this turn, over budget"] * 2
    assert gone(on) == [1, 2, 3, 4]
    checked(on)


def test_a_file_returned_with_a_tool_result_is_not_a_prompt_but_user_text_beside_one_is() -> None:
    filed = [assistant(call("look", "f")), user(answer("f", "See file 1."), "This is file 1:", PNG)]
    steered = [assistant(call("look", "g")), user(answer("g"), "and hurry")]
    pictured = [assistant(call("look", "h")), user(answer("h"), "What is this?", PNG)]
    on = bench([user("a"), *filed, *steered, *pictured, *exchange(3)])
    climb(on, cut_order.drop_active_groups)
    assert gone(on) == [1, 2]


def test_the_summary_can_be_dropped() -> None:
    on = bench([user("a")])
    on.reserve(500)
    climb(on, cut_order.drop_summary)
    assert (on.summary, on.total) == (0, on.history.tokens)


def test_harder_limits_shorten_exchanges_then_ties_then_prompts() -> None:
    on = bench([user("o"), assistant(call("look", "l", a=LONG)), user(LONG, answer("l"), run_id="s")], room=100)
    steps = [[index for index in range(3) if on.shapes[index] != WHOLE] for _ in cut_order.truncate_harder(on)]
    assert steps[:3] == [[], [1], [1, 2]]
    quarter = 25 + MESSAGE_OVERHEAD
    assert on.shapes[1:] == [Shape(limit=12), Shape(limit=25, prompt=quarter)], "a prompt keeps a quarter of the room"
    climb(on, cut_order.truncate_prompts)
    assert on.shapes[2] == Shape(limit=MIN_PART, prompt=MIN_PART)
    assert {drop.reason for drop in on.drops} == {"clamped to fit", "a prompt below a quarter of the room, over budget"}


def test_a_prompt_of_a_quarter_of_the_budget_stays_whole_while_its_results_can_be_cut() -> None:
    ask, late = prose(1, 20), prose(2, 60)
    on = bench([user("o"), assistant(call("look", "l")), user(ask, answer("l", late), run_id="s"), *exchange(3)])
    on.room = 4 * on.counter.text(ask)
    least = on.total - on.counter.text(late) + 2 * MIN_PART
    assert reduce(on, least)
    [result, prompt] = apply_shape(on.history.messages[2], on.history.readings[2], on.shapes[2], on.counter).parts
    assert prompt.content == ask and result.content != late


def test_a_picture_beside_a_prompt_is_cut_before_its_text() -> None:
    ask = prose(1, 20)
    on = bench([user(ask, PNG), *exchange(1), *exchange(2)])
    on.room = 4 * (on.counter.text(ask) + on.counter.text(placeholder(PNG)))
    for _ in cut_order.truncate_harder(on):
        pass
    [prompt] = apply_shape(on.history.messages[0], on.history.readings[0], on.shapes[0], on.counter).parts
    assert prompt.content == [ask, placeholder(PNG)]


def test_harder_limits_start_at_half_of_the_budget() -> None:
    on = bench(RUN[:3], room=400)
    limits: list[Any] = [on.shapes[2] and on.shapes[2].limit for _ in cut_order.truncate_harder(on)]
    assert [limit for at, limit in enumerate(limits) if at % 3 == 0][:6] == [200, 100, 50, 25, 12, 6]


def test_parts_that_cannot_be_shortened_are_dropped() -> None:
    foreign = CompactionPart(content=LONG, provider_name="acme")
    on = bench([user("a"), assistant(ThinkingPart(content=LONG), foreign, call("look", "x")), user(answer("x"))])
    assert climb(on, cut_order.drop_untruncatable) == ["cannot be shortened, over budget"] * 2
    assert on.shapes[1] == Shape(without=frozenset({Kind.THINKING, Kind.COMPACTION, Kind.OTHER}))


def test_the_first_and_last_prompt_of_the_active_turn_stay() -> None:
    history = [user("a", run_id="r")]
    for step in range(3):
        history += [*exchange(step, run_id="r"), user(f"steer {step}", run_id="r")]
    history += exchange(9, run_id="r")
    on = bench(history)
    assert climb(on, cut_order.drop_steering_prompts) == ["earlier prompt of this turn, over budget"] * 2
    assert gone(on) == [3, 6]


def test_system_text_is_cut_last_wherever_it_is() -> None:
    on = bench([user("a", system=LONG), assistant("b"), user("c", system=f"{LONG} and more")])
    on.drop(range(2), EARLIER_TURN)
    on.cuts.clear()
    steps = [on.total for _ in cut_order.truncate_system_text(on)]
    assert len(steps) == 2
    assert on.shapes[0] == Shape(bare=True, system=MIN_PART)
    assert on.shapes[2] == Shape(system=MIN_PART)
    assert {drop.reason for drop in on.drops} == {"system text, over budget"}


def test_the_newest_exchange_is_truncated_bit_by_bit_to_a_sixteenth_of_the_room() -> None:
    on = bench([user("a"), *exchange(1, content=LONG), *exchange(2, content=LONG)], room=1_600)
    assert set(climb(on, cut_order.truncate_newest_exchange)) == {"newest tool exchange, over budget"}
    assert on.shapes[2] == WHOLE and on.shapes[4] == Shape(limit=100)
    checked(on)


def test_a_pinned_result_is_dropped_together_with_its_call() -> None:
    on = bench([user("a"), *exchange(1, content=LONG), assistant("b"), user("c")])
    on.pins = frozenset({2})
    assert climb(on, cut_order.release_pins) == ["pinned, over budget"]
    assert gone(on) == [1, 2]
    checked(on)


# --- finished exchanges of the current turn, ahead of the budget


def test_finished_exchanges_become_stubs_down_to_the_low_threshold() -> None:
    on = bench([user("a"), *(message for at in range(4) for message in exchange(at, content=LONG))], room=10_000)
    cut = cut_current_turn(on, on.total - 1, on.total)
    assert [at for at, shape in enumerate(cut.shapes) if shape and shape.skeleton] == [2]
    assert gone(cut) == [] and on.drops == ()


def test_stubs_stay_where_the_low_threshold_cannot_be_met() -> None:
    on = bench([user("a"), *(message for at in range(4) for message in exchange(at, content=LONG))], room=10_000)
    cut = cut_current_turn(on, 0, 0)
    assert gone(cut) == []
    assert [at for at, shape in enumerate(cut.shapes) if shape and shape.skeleton] == [2, 4]


def test_exchanges_stay_whole_where_no_more_than_half_way_is_left() -> None:
    on = bench([user("a"), *(message for at in range(4) for message in exchange(at, content=LONG))], room=10_000)
    assert cut_current_turn(on, on.total, on.total) is on and on.drops == ()


def test_large_parts_are_truncated_before_stubs_where_the_request_is_over_the_budget() -> None:
    on = bench([user("a"), *(message for at in range(3) for message in exchange(at, content=LONG))], room=400)
    cut = cut_current_turn(on, on.total - 20, on.total, over=True)
    assert not any(shape and shape.skeleton for shape in cut.shapes)
    assert [drop.reason for drop in cut.drops] == ["a part above a quarter of the budget"]


def test_the_oldest_of_very_many_stubs_go() -> None:
    on = bench([user("a"), *(message for at in range(40) for message in exchange(at, content=LONG))], room=2_000)
    cut = cut_current_turn(on, 0, 0)
    assert gone(cut) == list(range(1, gone(cut)[-1] + 1))
    assert 2_000 // 16 - 100 < cut.total - cut.untouchable <= 2_000 // 16


# --- the whole cut order


def test_the_steps_come_in_their_order() -> None:
    assert [step.__name__ for step in CUT_ORDER] == [
        "truncate_large_parts",
        "drop_older_turns",
        "stub_tool_exchanges",
        "shrink_summary",
        "drop_recent_turns",
        "stub_active_exchanges",
        "drop_summary",
        "truncate_newest_exchange",
        "drop_active_groups",
        "release_pins",
        "truncate_harder",
        "drop_untruncatable",
        "drop_steering_prompts",
        "truncate_prompts",
        "truncate_system_text",
    ]


@pytest.mark.parametrize("step", CUT_ORDER, ids=lambda step: step.__name__)
def test_a_step_has_its_number_in_the_order_and_on_the_page(step: cut_order.Step) -> None:
    foreign = CompactionPart(content=LONG, provider_name="acme")
    run = [
        user("a", run_id="r"),
        *exchange(1, content=LONG, run_id="r"),
        user("b", run_id="r"),
        *exchange(2, run_id="r"),
    ]
    run += [user(LONG, run_id="r"), assistant(ThinkingPart(content=LONG), foreign, call("look", "x"))]
    on = bench([*long_history(3)[:-1], *run, user(LONG, answer("x", LONG), system=LONG, run_id="r")], recent=1)
    on.pins = frozenset({0})
    reasons = set(climb(on, step))
    assert bool(reasons) == (step not in (cut_order.shrink_summary, cut_order.drop_summary)), "those have no message"
    number = CUT_ORDER.index(step) + 1
    assert {cut.step.number for reason in reasons if (cut := reason_of(reason))} == ({number} if reasons else set())
    listed = page("docs/budget/cut-order.md").partition("## The cut order")[2].partition("\n## ")[0]
    assert f"\n{number}. " in listed and f"\n{len(CUT_ORDER) + 1}. " not in listed


def test_a_view_that_fits_is_not_cut() -> None:
    on = bench(long_history(3), room=100, recent=0)
    assert reduce(on, on.total)
    assert on.drops == ()


def test_cutting_stops_at_the_first_step_that_fits() -> None:
    on = bench(long_history(5, tools_per_turn=0), room=10_000, recent=2)
    assert reduce(on, on.total - 1)
    assert gone(on) == [0, 1]


def test_reduce_returns_false_if_no_cut_suffices() -> None:
    on = bench([user(LONG)], room=100, recent=0)
    assert not reduce(on, 2)
    assert on.shapes == [Shape(limit=MIN_PART, prompt=MIN_PART)]


def test_a_large_part_does_not_cost_its_neighbouring_turns() -> None:
    history = [*long_history(2, tools_per_turn=0)[:-1], user("x"), assistant(prose(3, 5_000)), user("c")]
    on = bench(history, recent=3)
    assert reduce(on, 1_000)
    assert gone(on) == []
    checked(on)


@given(histories(max_turns=6), st.integers(0, 2_000), st.integers(0, 2_000), st.integers(0, 3))
def test_totals_add_up_and_nothing_tied_or_grouped_is_split(
    history: list[ModelMessage], target: int, room: int, recent: int
) -> None:
    on = bench(history, room=room, recent=recent)
    fits = reduce(on, target)
    assert fits == (on.total <= target)
    assert on.total == sum(on.costs) + on.summary
    out = set(gone(on))
    assert len(history) - 1 not in out
    for members in on.outline.ties.values():
        assert len({index in out for index in members}) == 1
    for group in (group for turn in on.outline.turns for group in turn.groups):
        members = set(range(group.start, group.stop))
        assert members & set(on.outline.ties) or len({index in out for index in members}) == 1


@given(histories(max_turns=6), st.integers(0, 1_500), st.integers(1, 1_500))
def test_a_larger_budget_never_drops_more_messages(history: list[ModelMessage], target: int, more: int) -> None:
    tight, loose = bench(history, recent=2), bench(history, recent=2)
    reduce(tight, target)
    reduce(loose, target + more)
    assert set(gone(loose)) <= set(gone(tight))
