"""A preamble is within its budget for any input and any counter, in bounded time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from context_compiler.fidelity import Fidelity, build_fidelity_preamble
from context_compiler.pipeline.preamble import LIMITS
from tests.pipeline.test_preamble import (
    BUDGETS,
    CONTEXT,
    COUNTER,
    DONE,
    HOSTILE,
    LOGS,
    MODES,
    PIPELINE,
    made,
    structure,
)

texts = st.text(st.characters(codec=None), max_size=60) | st.sampled_from(HOSTILE)
leaves = st.none() | st.booleans() | st.integers() | st.floats() | texts | st.binary(max_size=20)
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4))
entries = st.fixed_dictionaries(
    {},
    optional={"node": texts, "outcome": leaves, "notes": values, "tools": values, "duration": leaves, "status": texts},
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    mode=st.sampled_from(MODES),
    name=texts,
    goal=texts.map(lambda text: text * 400) | leaves,
    context=st.dictionaries(texts | st.integers(), values | texts.map(lambda text: text * 300), max_size=12),
    completed=st.lists(texts, max_size=12),
    repeat=st.sampled_from([1, 300]),
    current=texts.map(lambda text: text * 50),
    logs=st.lists(entries | leaves, max_size=8),
)
def test_a_preamble_is_within_its_budget_for_any_input(
    mode: str, name: str, goal: Any, context: Any, completed: list[str], repeat: int, current: str, logs: Any
) -> None:
    pipeline = SimpleNamespace(name=name, goal=goal, nodes=completed)
    many = [f"{stage}{number}" for number in range(repeat) for stage in completed]
    text = build_fidelity_preamble(mode, pipeline, context, many, current, logs)
    assert COUNTER.text(text) <= BUDGETS[mode]
    assert text == build_fidelity_preamble(mode, pipeline, context, many, current, logs)
    usual = structure(made(mode))
    assert structure(text) == usual[: len(structure(text))]


@pytest.mark.parametrize("mode", MODES)
def test_a_goal_of_100_kb_is_cut_and_the_rest_is_still_there(mode: str) -> None:
    for goal in ("Make it better. " * 6_500, "x" * 100_000, "目標" * 25_000, "#" * 100_000):
        text = made(mode, pipeline=SimpleNamespace(name="login", goal=goal, nodes=PIPELINE.nodes))
        assert COUNTER.text(text) <= BUDGETS[mode]
        assert "…" in text and "login" in text
        assert "review" in text or mode == "summary:low"


@pytest.mark.parametrize("mode", MODES)
def test_a_custom_counter_decides_the_size(mode: str) -> None:
    text = build_fidelity_preamble(mode, PIPELINE, CONTEXT, DONE, "review", LOGS, counter=len)
    assert len(text) <= BUDGETS[mode]


def dear_lines(text: str) -> int:
    """A counter for which the whole costs more than its parts, so that no plan for the parts holds."""
    return len(text) // 4 + 9 * text.count("\n")


@pytest.mark.parametrize("mode", MODES)
def test_a_preamble_over_its_budget_drops_the_oldest_stages_first(mode: str) -> None:
    names = [f"stage_{number}" for number in range(60)]
    logs = [{"node": name, "outcome": "success", "tools": ["a"], "duration": 1} for name in names]
    context = {f"key_{number:02}": "value" for number in range(60)}
    text = build_fidelity_preamble(mode, PIPELINE, context, names, "review", logs, counter=dear_lines)
    assert dear_lines(text) <= BUDGETS[mode]
    shown = [name for name in names if any(f"{name}{sign}" in text for sign in " :,.")]
    assert shown == ([] if mode == "truncate" else names[-len(shown) :])
    assert len(shown) == 60 or mode == "truncate" or f"… {60 - len(shown)} earlier omitted" in text


def test_every_mode_but_full_has_a_shape_with_the_budget_of_the_table() -> None:
    assert {str(mode): shape.budget for mode, shape in LIMITS.items()} == BUDGETS
    assert set(LIMITS) == set(Fidelity) - {Fidelity.FULL}


@pytest.mark.parametrize("mode", MODES)
def test_ten_thousand_stages_and_ten_megabytes_fit_the_budget(mode: str) -> None:
    names = [f"stage_{number}" for number in range(10_000)]
    logs = [{"node": name, "outcome": "success", "notes": "did a thing " * 20, "tools": ["a"]} for name in names]
    for context in ({f"key_{n}": "some words " * 93 for n in range(10_000)}, {"one": "y" * 10_000_000}):
        text = made(mode, context=context, completed=names, logs=logs)
        assert COUNTER.text(text) <= BUDGETS[mode]
