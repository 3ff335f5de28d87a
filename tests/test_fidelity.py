"""A fidelity is one of six words, and says what a summary may cost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from context_compiler.compiler.policy import summary_cap
from context_compiler.errors import FidelityError
from context_compiler.fidelity import Fidelity


@pytest.mark.parametrize("mode", list(Fidelity))
def test_a_mode_is_parsed_with_surrounding_space(mode: Fidelity) -> None:
    assert Fidelity.parse(f"  {mode}\n", where="here") is mode
    assert Fidelity.parse(mode, where="here") is mode


@pytest.mark.parametrize("value", ["summary", "FULL", "", None, 3, "summary:highest"])
def test_an_unknown_mode_is_refused_with_position_value_and_choices(value: object) -> None:
    with pytest.raises(FidelityError) as caught:
        Fidelity.parse(value, where="graph.dot:7")
    assert caught.value.where == "graph.dot:7"
    assert caught.value.value == value
    assert all(str(mode) in str(caught.value) for mode in Fidelity)


@pytest.mark.parametrize(
    ("mode", "cap"),
    [("full", 3_000), ("truncate", 0), ("compact", 500), ("summary:low", 600), ("summary:medium", 1_500)]
    + [("summary:high", 3_000)],
)
def test_a_mode_has_the_cap_of_the_table(mode: str, cap: int) -> None:
    assert Fidelity(mode).cap == cap
    assert summary_cap(Fidelity(mode), 1_000_000) == cap


@pytest.mark.parametrize(
    ("room", "cap"), [(0, 0), (3, 0), (4, 1), (400, 64), (2_000, 256), (2_048, 512), (5_999, 1_024), (6_000, 1_500)]
)
def test_a_small_room_reduces_the_cap_to_a_power_of_two_within_a_quarter(room: int, cap: int) -> None:
    assert summary_cap(Fidelity.SUMMARY_MEDIUM, room) == cap


@given(st.sampled_from(list(Fidelity)), st.integers(0, 100_000))
def test_a_cap_is_within_the_mode_and_within_a_quarter_of_the_room(mode: Fidelity, room: int) -> None:
    cap = summary_cap(mode, room)
    assert cap <= mode.cap
    assert cap <= room // 4
    assert cap == mode.cap or cap.bit_count() <= 1


@given(st.sampled_from(list(Fidelity)), st.integers(0, 100_000), st.integers(0, 50_000))
def test_a_larger_room_never_means_a_smaller_cap(mode: Fidelity, room: int, more: int) -> None:
    assert summary_cap(mode, room) <= summary_cap(mode, room + more)
