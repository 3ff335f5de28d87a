"""`pydantic_evals`: datasets of conversations and of failures, and what the evaluators say about them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent

from context_compiler import testing
from tests.testing.agents import RULE, failure, matters, trimming

evals = pytest.importorskip("pydantic_evals", reason="pydantic-evals is not installed")


def talk() -> testing.Conversation:
    prompts = [RULE, "The refund limit is 50 euros.", *["And now?"] * 3, "The refund limit is 80 euros now.", "Well?"]
    return testing.live(Agent(), prompts)


async def results(dataset: Any, agent: Any) -> dict[str, tuple[bool, str | None]]:
    """Value and reason of each assertion of the only case."""
    report = await dataset.evaluate(testing.replaying(agent), progress=False)
    assert not report.failures
    [case] = report.cases
    return {name: (bool(assertion.value), assertion.reason) for name, assertion in case.assertions.items()}


async def test_claims_about_a_conversation_are_evaluated_for_another_agent(tmp_path: Path) -> None:
    dataset = testing.dataset_of("desk", await asyncio.to_thread(talk))
    evaluators = dataset.cases[0].evaluators
    assert testing.InContext(RULE) in evaluators and testing.NewestInContext("The refund limit is", "80") in evaluators
    assert all(value for value, _ in (await results(dataset, Agent())).values())
    dataset.to_file(tmp_path / "desk.yaml", custom_evaluator_types=testing.EVALUATORS)
    loaded = evals.Dataset[Any, Any, Any].from_file(tmp_path / "desk.yaml", custom_evaluator_types=testing.EVALUATORS)
    trimmed = await results(loaded, trimming())
    lost = [reason for value, reason in trimmed.values() if not value]
    assert any(f"does not contain {RULE!r}" in (reason or "") for reason in lost)
    assert trimmed["WithinBudget"] == (True, None)


async def test_a_failure_becomes_a_case_that_fails_in_the_same_way() -> None:
    error = await asyncio.to_thread(
        lambda: failure(lambda: testing.live(trimming(), matters(6, said_2=RULE)).assert_in_context(RULE))
    )
    dataset = evals.Dataset(name="failures", cases=[testing.case_of(error)])
    assert await results(dataset, trimming()) == {"InContext": (False, str(error))}
    assert await results(dataset, Agent()) == {"InContext": (True, None)}
    budget = await asyncio.to_thread(lambda: failure(lambda: error.conversation.assert_within(budget=10)))
    assert testing.case_of(budget).evaluators == [testing.WithinBudget(10, pairs=False, last=True)]
