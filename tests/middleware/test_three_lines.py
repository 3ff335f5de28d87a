"""The README's three lines over a long conversation: whatever a user asks for is in the request that answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.three_lines import converse


async def test_all_facts_asked_for_are_sent_with_any_summaries_and_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = await converse(150, 10, seed=7)
    assert [row.fact.question for row in outcome.rows if not row.held] == []
    assert len(outcome.rows) == 10
    assert outcome.over == 0
    assert 1 <= outcome.summaries < 30
