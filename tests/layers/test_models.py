"""The values of the layers survive JSON, forgive what is missing and refuse what is wrong."""

from __future__ import annotations

from typing import get_args

import pytest
from pydantic import BaseModel, ValidationError

from context_compiler.layers import (
    ConversationHistory,
    ConversationTurn,
    CurationSummary,
    EntityContext,
    EntitySnapshot,
    PendingState,
    ReasoningTrace,
    StepSummary,
    TurnExecutionSummary,
)
from context_compiler.layers.models import Status

ENTITY = EntitySnapshot(
    ref="recipe_1",
    type="recipes",
    label="Lemon Herb Chicken",
    status="linked",
    turn_created=1,
    turn_last_ref=4,
    retention_reason="loved",
)
STEP = StepSummary(
    step_num=1, type="analyze", subdomain="recipes", description="d", outcome="o", entities_involved=["r"], note="n"
)
SUMMARY = TurnExecutionSummary(
    turn_num=3,
    think_decision="propose",
    think_goal="g",
    steps=[STEP],
    entity_curation=CurationSummary(retained=["a"], demoted=["b"], reasons={"a": "x"}),
    conversation_phase="confirming",
    user_expressed="u",
    blocked_reason="b",
)
VALUES: list[BaseModel] = [
    ENTITY,
    EntityContext(active=[ENTITY], generated=[ENTITY], retained=[ENTITY]),
    ConversationTurn(
        user="u", assistant_summary="a", routing={"decision": "propose"}, timestamp="2026-01-13T10:00:00Z"
    ),
    PendingState(type="ask_user", context="c", questions=["q"]),
    ConversationHistory(recent_turns=[ConversationTurn(user="u")], history_summary="h", engagement_summary="e"),
    STEP,
    SUMMARY.entity_curation,
    SUMMARY,
    ReasoningTrace(recent_summaries=[SUMMARY], reasoning_summary="r"),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_survives_json(value: BaseModel) -> None:
    assert type(value).model_validate_json(value.model_dump_json()) == value


@pytest.mark.parametrize(
    "kind",
    [
        EntityContext,
        ConversationTurn,
        ConversationHistory,
        StepSummary,
        CurationSummary,
        TurnExecutionSummary,
        ReasoningTrace,
    ],
)
def test_missing_keys_have_defaults_and_unknown_ones_are_left_out(kind: type[BaseModel]) -> None:
    assert kind.model_validate({"from_another_version": 1}) == kind.model_validate({})


def test_a_snapshot_needs_its_ref_alone() -> None:
    assert EntitySnapshot.model_validate({"ref": "a_1"}).status == "read"
    with pytest.raises(ValidationError):
        EntitySnapshot.model_validate({"label": "x"})


@pytest.mark.parametrize("status", get_args(Status))
def test_there_are_six_statuses(status: str) -> None:
    assert EntitySnapshot.model_validate({"ref": "a_1", "status": status}).status == status


@pytest.mark.parametrize("status", ["created:user", "READ", "", "pending"])
def test_an_unknown_status_is_refused(status: str) -> None:
    with pytest.raises(ValidationError):
        EntitySnapshot.model_validate({"ref": "a_1", "status": status})


@pytest.mark.parametrize("kind", ["understand", "", "yes"])
def test_a_pending_state_has_one_of_three_types(kind: str) -> None:
    with pytest.raises(ValidationError):
        PendingState.model_validate({"type": kind})


def test_values_are_immutable() -> None:
    with pytest.raises(ValidationError):
        ENTITY.label = "other"  # pyright: ignore[reportAttributeAccessIssue] # frozen
