"""A view on the bench has a price for every message, and a reason for every drop."""

from __future__ import annotations

from typing import Any

from pydantic_ai.messages import (
    LoadCapabilityCallPart,
    LoadCapabilityReturnPart,
    ModelRequest,
    ToolAvailabilityDeltaPart,
)

from context_compiler.messages.fences import ELLIPSIS, LEFT_OUT
from context_compiler.messages.items import MESSAGE_OVERHEAD, Kind
from context_compiler.messages.shapes import WHOLE, Shape
from tests.compiler.benches import LONG, bench, checked, gone, reason
from tests.support.builders import answer, assistant, call, user
from tests.support.parts import FuturePart
from tests.support.views import counter


def test_a_bench_starts_with_everything_at_its_price() -> None:
    on = bench([user("a"), assistant("b"), user("c")])
    assert on.total == on.history.tokens
    assert on.here(1) == WHOLE


def test_room_reserved_for_a_summary_counts() -> None:
    on = bench([user("a")])
    on.reserve(500)
    on.reserve(300)
    assert (on.total, on.summary) == (on.history.tokens + 300, 300)


def test_a_dropped_or_unshortened_message_is_not_listed_again() -> None:
    on = bench([user("a"), assistant("b"), user("c")])
    on.drop([0], reason("because"))
    on.record_shortened(range(3), reason("again"))
    assert [drop.reason for drop in on.drops] == ["because"]


def test_a_dropped_message_costs_nothing_and_is_listed_once() -> None:
    on = bench([user("a"), assistant("b"), user("c")])
    on.drop(range(2), reason("because"))
    on.drop(range(2), reason("again"))
    assert gone(on) == [0, 1]
    assert [(drop.what, drop.reason) for drop in on.drops] == [("messages 0-1", "because")]
    on.drop([2], reason("one"))
    assert on.drops[1].what == "message 2"
    checked(on)


def test_parts_that_the_host_must_see_again_stay_in_a_bare_message() -> None:
    delta = ToolAvailabilityDeltaPart(tools_added=["look"])
    on = bench([user("a", delta, system="be kind"), assistant("b"), user("c")])
    on.drop(range(2), reason("because"))
    assert on.shapes[0] == Shape(bare=True)
    assert on.shapes[1] is None
    assert on.costs[0] == on.history.readings[0].stays
    checked(on)


def test_repeated_system_text_is_kept_once() -> None:
    on = bench([user(str(turn), system="be kind") if turn % 2 == 0 else assistant("b") for turn in range(9)])
    on.drop(range(8), reason("because"))
    assert on.shapes[0] == Shape(bare=True)
    assert on.shapes[1:8] == [None] * 7
    assert on.shapes[8] == WHOLE


def test_a_smaller_shape_is_taken_only_where_it_saves() -> None:
    on = bench([user("a"), assistant(LONG), user("c")])
    on.reshape(0, reason("cut"), limit=100)
    on.reshape(1, reason("cut"), limit=100)
    assert [drop.what for drop in on.drops] == ["message 1"]
    on.drop([1], reason("because"))
    on.reshape(1, reason("cut"), limit=10)
    assert len(on.drops) == 2
    checked(on)


def test_the_last_message_is_never_dropped() -> None:
    on = bench([user("a"), assistant("b"), ModelRequest(parts=[FuturePart(LONG)])])  # pyright: ignore[reportArgumentType]
    on.reshape(2, reason("cut"), without=frozenset({Kind.OTHER}))
    assert on.here(2) == WHOLE


LATE = [
    user("a"),
    assistant(call("look", "late"), call("look", "now")),
    user(answer("now")),
    assistant("b"),
    user(answer("late"), "c", run_id="s"),
    assistant("d"),
    user("e"),
]
"""The first turn's call is answered in the second turn; the third is active."""


def test_a_tied_message_is_dropped_only_together_with_its_partner() -> None:
    on = bench(LATE)
    on.drop(range(4), reason("old"))
    assert gone(on) == [0, 3]
    on.drop(range(4, 6), reason("old too"))
    assert gone(on) == [0, 1, 2, 3, 4, 5]
    assert [(drop.what, drop.reason) for drop in on.drops] == [
        ("message 0", "old"),
        ("message 3", "old"),
        ("messages 1-2", "old too"),
        ("messages 4-5", "old too"),
    ]
    checked(on)


def test_a_message_tied_to_the_active_turn_stays() -> None:
    on = bench([*LATE[:4], user(answer("late"), "c", run_id="s")])
    on.drop(range(4), reason("old"))
    assert gone(on) == [0, 3]


def test_a_leading_answer_adds_the_cost_of_the_lines_around_it() -> None:
    line = counter.text(LEFT_OUT) + MESSAGE_OVERHEAD + counter.text(ELLIPSIS) + MESSAGE_OVERHEAD
    loads: list[Any] = [
        LoadCapabilityCallPart(args={"id": "maps"}, tool_call_id="c"),
        LoadCapabilityReturnPart(content={"message": "loaded"}, tool_call_id="c"),
    ]
    history = [user("a"), assistant(loads[0]), ModelRequest(parts=[loads[1]]), assistant("b"), user("c")]
    assert bench(history).total == bench(history).history.tokens + line
    late = bench(LATE)
    assert late.total == late.history.tokens + line
    unprompted = bench([assistant("a"), assistant("b"), user("c")])
    assert unprompted.total == unprompted.history.tokens + line
