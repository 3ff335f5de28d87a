"""What providers do to a history on their side is measured by what the model then sees."""

from __future__ import annotations

import pytest

from benchmarks import native
from benchmarks.native import CLEARED, SUMMARY, live

BUDGET, TURNS = 1_200, 18


async def test_context_editing_empties_old_tool_results_and_keeps_prompts() -> None:
    seen = await live("Anthropic, context editing", BUDGET, TURNS)
    kinds = [kind for kind, text in seen.last if text == CLEARED]
    assert seen.edits and set(kinds) == {"tool_result"}
    kept = [text for kind, text in seen.last if kind == "tool_result" and text != CLEARED]
    assert len(kept) == native.KEEP and sum(kind == "user text" for kind, _ in seen.last) == TURNS
    assert max(seen.sent) > BUDGET, "everything is uploaded all the same"


@pytest.mark.parametrize("name", ["Anthropic, compaction", "OpenAI, compaction"])
async def test_after_a_compaction_the_model_sees_a_summary_and_later_messages(name: str) -> None:
    seen = await live(name, BUDGET, TURNS)
    assert seen.edits and seen.last[0] == ("compaction", SUMMARY) and max(seen.seen) < BUDGET + 700
    assert not all(seen.held)


@pytest.mark.parametrize("name", ["this package", "this package, OpenAI", "this package and context editing"])
async def test_a_view_within_our_budget_triggers_no_editing_by_the_provider(name: str) -> None:
    seen = await live(name, BUDGET, TURNS)
    assert not seen.edits and max(seen.seen) <= BUDGET and seen.sent == seen.seen
    assert seen.held and all(seen.held)
