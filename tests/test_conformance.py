"""The public conformance kit runs against this package, also with its statements in other words."""

from __future__ import annotations

import pytest

pytest.importorskip("compaction_kit", reason="part of the extra `bench`")

from compaction_kit.corpus import build_random_session  # pyright: ignore[reportMissingTypeStubs]
from compaction_kit.probes import BehaviorProbe  # pyright: ignore[reportMissingTypeStubs]
from compaction_kit.session import Turn  # pyright: ignore[reportMissingTypeStubs]

from benchmarks.conformance import LastRequest, OneView, reworded_session, scores


def test_a_result_fits_the_budget_in_characters_and_stays_in_later_rounds() -> None:
    session, _ = build_random_session(3)
    for ours in (OneView(), LastRequest()):
        first = ours.compact(session.transcript(), 1, 2_400).text
        assert 600 < len(first) <= 2_400
        assert ours.compact([Turn("system", first)], 2, 2_400).text == first


def test_every_planted_statement_is_reworded_and_keeps_its_values() -> None:
    for seed in (1, 2, 3):
        _, planted = build_random_session(seed)
        _, others = reworded_session(build_random_session, seed)
        assert all(statement.content != other.content for statement, other in zip(planted, others, strict=True))
        assert all(BehaviorProbe().probe(other, other.content).survived for other in others)


def test_the_kit_ranks_the_package_beside_its_own_compactors() -> None:
    result = scores([0.3], [1], reworded=False, live=False)
    own = next(entry for entry in result["entries"] if entry["compactor"] == "context-compiler")
    assert own["budget_compliant"] and own["randomized"]["overall_final_survival"] > 0.8
    assert len(result["entries"]) == 9
