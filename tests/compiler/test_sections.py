"""What a compile is told when there is too much to tell: which section goes first, and which one never does."""

from __future__ import annotations

import pytest

from context_compiler.compiler.summary import EXPENDABLE, LIMITED, MAX_TEXT, fit_sections, fit_turns
from context_compiler.template import SectionRule
from context_compiler.tokens import TokenCounter

COUNTER = TokenCounter(len)
"""A token is a character here."""

GIVEN = {
    "constraints": "turn 1: never",
    "topic": "t" * 20,
    "plan": "p" * 20,
    "tool_results": "r" * 20,
    "reflections": "f" * 20,
    "latest_input": "Go on.",
}


def left_out(room: int, **rules: SectionRule) -> list[str]:
    _, dropped = fit_sections(GIVEN, rules=rules, room=room, counter=COUNTER)
    return [drop.what for drop in dropped]


def test_sections_are_dropped_in_the_order_reflections_tool_results_plan() -> None:
    whole = sum(map(len, GIVEN.values()))
    assert [left_out(whole - 20 * count) for count in range(5)] == [list(EXPENDABLE[:count]) for count in range(5)]
    assert EXPENDABLE == ("reflections", "tool_results", "plan", "topic")


def test_a_template_says_which_goes_first() -> None:
    rules = {name: SectionRule(priority=9 - at) for at, name in enumerate(EXPENDABLE)}
    assert left_out(60, **rules) == ["topic", "plan"]


@pytest.mark.parametrize("room", [6, 8, 12, 19])
def test_constraints_and_the_latest_input_are_never_left_out(room: int) -> None:
    rules = {name: SectionRule(priority=0) for name in GIVEN}
    kept, dropped = fit_sections(GIVEN, rules=rules, room=room, counter=COUNTER)
    assert kept["latest_input"] and kept["constraints"]
    assert {drop.what for drop in dropped if not kept[drop.what]} == set(EXPENDABLE)


def test_required_sections_are_shortened_once_all_others_are_dropped() -> None:
    many = "\n".join(f"turn {number}: never {number}" for number in range(1, 100))
    kept, dropped = fit_sections({"constraints": many, "latest_input": "x" * 900}, rules={}, room=200, counter=COUNTER)
    assert sum(map(len, kept.values())) <= 200
    assert kept["constraints"].endswith("turn 99: never 99") and kept["latest_input"].startswith("xxx")
    assert [drop.what for drop in dropped] == ["constraints", "latest_input"]


@pytest.mark.parametrize("name", LIMITED)
def test_the_section_budget_of_a_template_overrides_ours(name: str) -> None:
    text = "word " * (MAX_TEXT // 2)
    for budget in (100, MAX_TEXT * 2):
        kept, dropped = fit_sections(
            {name: text}, rules={name: SectionRule(budget=budget)}, room=10**6, counter=COUNTER
        )
        assert len(kept[name]) == len(text) if budget > len(text) else len(kept[name]) <= budget
        assert sum(drop.tokens for drop in dropped) == len(text) - len(kept[name])
    kept, (drop,) = fit_sections({name: text}, rules={}, room=10**6, counter=COUNTER)
    assert 0 < len(kept[name]) <= MAX_TEXT and drop.reason == "over its section budget"


def test_a_budget_for_recent_turns_drops_the_older_ones() -> None:
    said = [f"User: question {number}" for number in range(10)]
    assert fit_turns(said, rules={}, counter=COUNTER) == (said, ())
    kept, (drop,) = fit_turns(said, rules={"recent_turns": SectionRule(budget=40)}, counter=COUNTER)
    assert kept == said[-2:] and (drop.what, drop.tokens) == ("recent_turns", sum(map(len, said[:-2])))
    kept, dropped = fit_turns(["x" * 900], rules={"recent_turns": SectionRule(budget=80)}, counter=COUNTER)
    assert [len(line) <= 80 for line in kept] == [True] and kept[0].startswith("x")
    assert [drop.tokens for drop in dropped] == [900 - len(kept[0])]
