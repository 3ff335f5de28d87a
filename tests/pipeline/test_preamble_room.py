"""The room of a preamble is shared between stages, values and retries, and what one leaves the others have."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from context_compiler.fidelity import build_fidelity_preamble
from tests.pipeline.test_preamble import BUDGETS, COUNTER

Shown = tuple[int, int, int]
"""Stages, values and retries on a page."""
MANY = 400


def page(mode: str, stages: int, values: int, again: int = 0, *, value: str = "value number {} of the context") -> str:
    """A preamble of a run that has so many of each; every stage, value and retry is as long as another."""
    names = [f"stage_{number:03}" for number in range(stages)]
    logs = [
        {"node": name, "outcome": "success", "notes": f"did something in {name}", "tools": ["edit"], "duration": 1.0}
        for name in names
    ]
    context: dict[str, object] = {f"key_{number:03}": value.format(number) for number in range(values)}
    context |= {f"internal.retry_count.stage_{number:03}": 2 for number in range(again)}
    pipeline = SimpleNamespace(name="login", goal="Fix the login", nodes=names, default_max_retries=3)
    return build_fidelity_preamble(mode, pipeline, context, names, "review", logs)


def shown(text: str) -> Shown:
    return (
        len(set(re.findall(r"stage_\d+", text.partition("### Retry")[0]))),
        len(set(re.findall(r"key_\d+", text))),
        text.count(": 2/3"),
    )


@pytest.mark.parametrize(
    ("mode", "few", "much"),
    [
        ("compact", (3, 3, 0), (33, 14, 0)),
        ("summary:low", (3, 0, 0), (138, 0, 0)),
        ("summary:medium", (3, 3, 0), (48, 51, 0)),
        ("summary:high", (3, 3, 3), (42, 81, 40)),
    ],
)
def test_each_part_has_its_share_if_all_are_too_large(mode: str, few: Shown, much: Shown) -> None:
    assert shown(page(mode, 3, 3, 3)) == few
    assert shown(page(mode, MANY, MANY, MANY)) == much


@pytest.mark.parametrize("mode", ["compact", "summary:low", "summary:medium", "summary:high"])
def test_stages_use_the_room_left_by_values(mode: str) -> None:
    alone, beside = page(mode, MANY, 0), page(mode, MANY, 2)
    assert 0.8 * BUDGETS[mode] <= COUNTER.text(alone) <= BUDGETS[mode]
    assert shown(alone)[0] >= shown(beside)[0] >= shown(page(mode, MANY, MANY))[0]
    assert COUNTER.text(beside) >= 0.8 * BUDGETS[mode]


@pytest.mark.parametrize("mode", ["compact", "summary:medium", "summary:high"])
def test_values_use_the_room_left_by_stages_and_displace_none(mode: str) -> None:
    text = page(mode, 3, MANY)
    assert 0.9 * BUDGETS[mode] <= COUNTER.text(text) <= BUDGETS[mode]
    assert shown(text)[0] == 3 and f"{MANY - shown(text)[1]} more omitted" in text


def test_retries_take_an_eighth_at_most() -> None:
    stages, values, again = shown(page("summary:high", 0, 0, MANY))
    assert (stages, values) == (0, 0) and again == 40
    assert f"{MANY - again} more omitted" in page("summary:high", 0, 0, MANY)


@pytest.mark.parametrize(("mode", "most"), [("compact", 160), ("summary:medium", 400), ("summary:high", 2_000)])
def test_a_value_is_as_long_as_the_room_and_its_mode_allow(mode: str, most: int) -> None:
    long = "word " * 600
    alone = max(map(len, re.findall(r"(?:word ?)+", page(mode, 1, 1, value=long))))
    crowd = page(mode, 1, 40, value=long)
    assert most - 6 <= alone <= most
    assert shown(crowd)[1] > 12 and max(map(len, re.findall(r"(?:word ?)+", crowd))) < alone


def test_values_are_shortened_until_all_fit_and_short_ones_fill_the_page() -> None:
    text = page("summary:medium", 1, 20, value="word " * 600)
    assert shown(text)[1] == 20 and 150 < max(map(len, re.findall(r"(?:word ?)+", text))) <= 200
    assert shown(page("summary:medium", 1, MANY, value="1"))[1] > 110


@pytest.mark.parametrize("mode", ["truncate", "compact", "summary:low", "summary:medium", "summary:high"])
def test_a_long_goal_has_a_quarter_of_the_page_or_the_unused_room(mode: str) -> None:
    pipeline = SimpleNamespace(name="login", goal="Make it better. " * 6_000, nodes=["a"])
    text = build_fidelity_preamble(mode, pipeline, {}, ["a"], "review", [{"node": "a", "outcome": "success"}])
    goal = re.search(r"Make it [^…]*…", text)
    share = 1.0 if mode == "truncate" else 0.25
    assert goal is not None and COUNTER.text(goal[0]) <= share * BUDGETS[mode]
    assert COUNTER.text(text) >= (share - 0.1) * BUDGETS[mode]
