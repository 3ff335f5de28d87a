"""The settings of a manager are checked where they are made, and contradictions where they meet."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent

from context_compiler.errors import SettingsError, TemplateError
from context_compiler.manager import (
    ContextConfig,
    ContextManager,
    HealthScorer,
    QualityScorer,
    VolatileMemory,
    context_manager,
    context_manager_with_versioning,
)
from tests.manager.fakes import Scribe, managed
from tests.support.agents import Talker

WRONG: list[tuple[str, Any]] = [
    *(("max_tokens", value) for value in (0, -1, 1.5, True, "8192", None)),
    *(("summarize_at_ratio", value) for value in (0, -0.1, 1.01, float("nan"), True, "0.8")),
    *(("quality_threshold", value) for value in (-0.01, 1.01, float("inf"), None)),
    *(("checkpoint_interval", value) for value in (0, -3, 2.0)),
    *(("grounding_memories", value) for value in (-1, 0.5)),
    *(("recent_turns_to_keep", value) for value in (0, -1)),
    *(("auto_rollback", value) for value in (1, "yes", None)),
    *(("timeout", value) for value in (0, -1, float("inf"))),
]


def test_the_defaults_are_those_of_the_design() -> None:
    config = ContextConfig()
    assert (config.max_tokens, config.summarize_at_ratio, config.quality_threshold) == (8192, 0.8, 0.6)
    assert (config.checkpoint_interval, config.grounding_memories, config.recent_turns_to_keep) == (10, 5, 3)
    assert config.auto_summarize and config.auto_checkpoint and not config.auto_rollback and not config.coherence


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_wrong_value_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"ContextConfig {name}="):
        ContextConfig(**{name: value})


@pytest.mark.parametrize(
    "given",
    [
        {"max_tokens": 1, "summarize_at_ratio": 1.0},
        {"quality_threshold": 0},
        {"quality_threshold": 1},
        {"checkpoint_interval": 1},
        {"grounding_memories": 0},
        {"recent_turns_to_keep": 1},
    ],
)
def test_a_value_at_its_bound_is_taken(given: dict[str, Any]) -> None:
    ContextConfig(**given)


def test_the_threshold_is_a_whole_number_of_tokens() -> None:
    assert ContextConfig(max_tokens=101, summarize_at_ratio=0.5).summarization_threshold == 50


def test_a_threshold_of_zero_tokens_is_refused() -> None:
    with pytest.raises(SettingsError, match="summarize_at_ratio=0.5"):
        ContextConfig(max_tokens=1, summarize_at_ratio=0.5)


def test_auto_rollback_needs_versioning() -> None:
    with pytest.raises(SettingsError, match="with_versioning"):
        managed(versioned=False, auto_rollback=True)
    assert managed(auto_rollback=True).has_versioning


@pytest.mark.parametrize("llm", [None, "", 3, object()])
def test_an_unusable_model_is_refused(llm: Any) -> None:
    with pytest.raises(SettingsError, match="llm"):
        ContextManager(VolatileMemory(), llm)


def test_arguments_of_the_wrong_kind_are_refused() -> None:
    memory: Any = VolatileMemory()
    wrong: Any = object()
    with pytest.raises(SettingsError, match="memory="):
        ContextManager(wrong, "none")
    with pytest.raises(SettingsError, match="repo="):
        ContextManager.with_versioning(memory, wrong, "none")
    with pytest.raises(SettingsError, match="repo=None"):
        ContextManager.with_versioning(memory, None, "none")  # pyright: ignore[reportArgumentType]
    with pytest.raises(SettingsError, match="config="):
        ContextManager(memory, "none", {"max_tokens": 5})  # pyright: ignore[reportArgumentType]
    with pytest.raises(SettingsError, match="scorer="):
        ContextManager(memory, "none", scorer=wrong)


@pytest.mark.parametrize("name", ["system_prompt", "session_id", "template", "on_error"])
@pytest.mark.parametrize("value", [5, b"x", ["x"], {"a": 1}])
def test_an_argument_of_another_kind_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=name):
        ContextManager(VolatileMemory(), "none", **{name: value})


@pytest.mark.parametrize("name", ["", " "])
def test_a_session_without_a_name_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="session_id"):
        ContextManager(VolatileMemory(), "none", session_id=name)


@pytest.mark.parametrize("name", ["max_tokens", "summarize_at_ratio", "quality_threshold", "timeout"])
def test_a_number_beyond_all_numbers_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=name):
        ContextConfig(**{name: 10**400})


def test_a_manager_has_a_session_of_its_own_unless_one_is_named() -> None:
    assert managed().session_id != managed().session_id
    assert managed(session_id="a").session_id == "a"


@pytest.mark.parametrize("weights", [(0.5, 0.5, 0.5), (-0.2, 0.6, 0.6), (0.4, 0.4, float("nan")), (True, 0.0, 0.0)])
def test_the_weights_add_up_to_one(weights: tuple[float, float, float]) -> None:
    names = ("memory_relevance_weight", "coherence_weight", "session_ratio_weight")
    with pytest.raises(ValueError, match="QualityScorer"):
        QualityScorer(**dict(zip(names, weights, strict=True)))
    with pytest.raises(ValueError, match="HealthScorer"):
        HealthScorer(memory_weight=0.9)


async def test_an_agent_has_a_manager_whose_summaries_its_model_writes() -> None:
    talker, memory = Talker("The move was planned."), VolatileMemory()
    manager = context_manager(Agent(talker.model), memory, ContextConfig(recent_turns_to_keep=1))
    assert not manager.has_versioning
    for number in range(2):
        await manager.process_turn(f"question {number} " + "why " * 40)
        manager.add_response("because")
    assert (await manager.summarize()).summary == "The move was planned."
    assert context_manager_with_versioning(Agent(talker.model), memory, memory).has_versioning


def test_an_agent_without_a_model_has_no_manager() -> None:
    with pytest.raises(SettingsError, match="has no model"):
        context_manager(Agent(), VolatileMemory())


def test_a_function_can_replace_a_model() -> None:
    assert managed(Scribe()).quality_score() >= 0.6


def test_an_unknown_template_or_model_is_refused_when_it_is_given() -> None:
    with pytest.raises(TemplateError, match="there is no template of that name"):
        ContextManager(VolatileMemory(), "none", template="nope")
    with pytest.raises(SettingsError, match="llm='nosuch:model': there is no such model"):
        ContextManager(VolatileMemory(), "nosuch:model")
