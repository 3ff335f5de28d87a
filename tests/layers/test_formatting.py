"""What each way of showing a layer looks like, to the letter."""

from __future__ import annotations

import pytest

from context_compiler.layers import (
    ConversationHistory,
    ConversationTurn,
    EntityContext,
    EntitySnapshot,
    PendingState,
    ReasoningTrace,
    StepSummary,
    TurnExecutionSummary,
    format_conversation_for_prompt,
    format_entity_context,
    format_reasoning_for_prompt,
    get_entity_context,
)
from tests.layers.states import registry


def entity(ref: str, **more: object) -> EntitySnapshot:
    facts = {"type": "recipes", "label": ref.upper(), "status": "read", "turn_created": 1, "turn_last_ref": 2}
    return EntitySnapshot.model_validate({"ref": ref, **facts, **more})


CONTEXT = EntityContext(
    active=[entity("recipe_10"), entity("recipe_2"), entity("recipe_3", status="deleted")],
    generated=[entity("gen_recipe_1", status="generated")],
    retained=[entity("recipe_1", retention_reason="loved")],
)


def test_full_is_for_act() -> None:
    assert format_entity_context(CONTEXT, "full", data={"recipe_2": {"serves": 2}}) == (
        "Active entities:\n"
        "- `recipe_10`: RECIPE_10 (recipes) [read] turn 2\n"
        "- `recipe_2`: RECIPE_2 (recipes) [read] turn 2\n"
        '  {"serves": 2}\n'
        "- `recipe_3`: RECIPE_3 (recipes) [deleted] turn 2\n\n"
        "Generated, not saved yet:\n"
        "- `gen_recipe_1`: GEN_RECIPE_1 (recipes) [generated] turn 2"
    )


def test_refs_and_labels_are_for_think() -> None:
    assert format_entity_context(CONTEXT, "refs_and_labels") == (
        "Active entities:\n- `recipe_10`: RECIPE_10\n- `recipe_2`: RECIPE_2\n\n"
        "Generated, not saved yet:\n- `gen_recipe_1`: GEN_RECIPE_1\n\n"
        "Retained from earlier turns:\n- `recipe_1`"
    )


def test_reply_gets_labels_and_whether_they_are_saved() -> None:
    assert format_entity_context(CONTEXT, "reply") == (
        "Entities:\n- RECIPE_10 (saved)\n- RECIPE_2 (saved)\n\nGenerated:\n- GEN_RECIPE_1 (not saved yet)"
    )


def test_entities_not_to_be_read_again_are_one_line_in_order() -> None:
    assert format_entity_context(CONTEXT, "do_not_read") == "DO NOT re-read: gen_recipe_1, recipe_2, recipe_10"
    assert format_entity_context(EntityContext(), "do_not_read") == ""


def test_curation_shows_everything() -> None:
    said = format_entity_context(CONTEXT, "curation")
    assert "(recipes, deleted, created turn 1, last referenced turn 2)" in said
    assert said.endswith(
        "- `recipe_1`: RECIPE_1 (recipes, read, created turn 1, last referenced turn 2, kept because: loved)"
    )


@pytest.mark.parametrize("mode", ["full", "refs_and_labels", "reply", "curation"])
def test_an_empty_entity_context_is_stated(mode: str) -> None:
    assert format_entity_context(EntityContext(), mode) == "No entities in context."


@pytest.mark.parametrize("mode", ["", "FULL", "all", "labels"])
def test_another_mode_is_refused_with_all_that_there_are(mode: str) -> None:
    with pytest.raises(ValueError, match="full, refs_and_labels, reply, do_not_read, curation"):
        format_entity_context(CONTEXT, mode)
    with pytest.raises(ValueError, match="full, refs_and_labels, reply, do_not_read, curation"):
        get_entity_context(registry(), 7, mode=mode)


@pytest.mark.parametrize(("alias", "mode"), [("full_data", "full"), ("labels_only", "reply")])
def test_two_modes_have_a_second_name(alias: str, mode: str) -> None:
    assert format_entity_context(CONTEXT, alias) == format_entity_context(CONTEXT, mode)
    assert get_entity_context(registry(), 7, mode=alias) == get_entity_context(registry(), 7, mode=mode)


def test_an_entity_without_a_label_is_not_called_by_its_ref_in_a_reply() -> None:
    nameless = EntityContext(active=[entity("recipe_1", label="recipe_1"), entity("recipe_2", label="")])
    assert (
        format_entity_context(nameless, "reply")
        == "Entities:\n- unnamed, of recipes (saved)\n- unnamed, of recipes (saved)"
    )


HISTORY = ConversationHistory(
    recent_turns=[ConversationTurn(user=f"q{turn}", assistant_summary=f"a{turn}") for turn in range(1, 8)],
    history_summary="older",
    engagement_summary="theme",
    pending=PendingState(type="propose", context="Shall I save it?", questions=["Which shelf?"]),
)
AWAITED = "Awaiting the user's answer (propose): Shall I save it?\n- Which shelf?"


def turns(*numbers: int) -> str:
    return "\n\n".join(f"User: q{turn}\nAssistant: a{turn}" for turn in numbers)


def test_depth_two_is_the_last_two_turns() -> None:
    assert format_conversation_for_prompt(HISTORY, 2, include_pending=False) == turns(6, 7)
    assert format_conversation_for_prompt(HISTORY, 2) == f"{turns(6, 7)}\n\n{AWAITED}"


def test_depth_five_is_five_turns_and_what_was_before() -> None:
    assert format_conversation_for_prompt(HISTORY, 5) == f"Earlier: older\n\n{turns(3, 4, 5, 6, 7)}\n\n{AWAITED}"


def test_full_is_everything() -> None:
    said = format_conversation_for_prompt(HISTORY, "full")
    assert said == f"Session: theme\n\nEarlier: older\n\n{turns(*range(1, 8))}\n\n{AWAITED}"


def test_the_theme_can_be_asked_for_and_left_out() -> None:
    assert format_conversation_for_prompt(HISTORY, 2, include_engagement=True).startswith("Session: theme")
    assert "theme" not in format_conversation_for_prompt(HISTORY, "full", include_engagement=False)


@pytest.mark.parametrize("depth", [0, 1, 3, -2, "5", "all", True, 2.0, None])
def test_another_depth_is_refused(depth: object) -> None:
    with pytest.raises(ValueError, match="use one of 2, 5, 'full'"):
        format_conversation_for_prompt(HISTORY, depth)  # pyright: ignore[reportArgumentType] # wrong on purpose


def test_an_empty_conversation_is_stated() -> None:
    assert format_conversation_for_prompt(ConversationHistory(), "full") == "New conversation."


TRACE = ReasoningTrace(
    recent_summaries=[
        TurnExecutionSummary(
            turn_num=3,
            think_decision="plan_direct",
            think_goal="Find dinners",
            steps=[
                StepSummary(
                    step_num=1, type="read", subdomain="recipes", outcome="read 5 recipes", note="use the first"
                )
            ],
            user_expressed="wants quick meals",
            blocked_reason="no salt",
        )
    ]
)


def test_think_sees_the_last_turns_in_full() -> None:
    assert format_reasoning_for_prompt(TRACE, "think") == (
        "Last turn: Find dinners (decided plan_direct); read: read 5 recipes\n"
        "- step 1 (read, recipes): read 5 recipes\n"
        "  note: use the first\n"
        "Phase: exploring\n"
        "User expressed: wants quick meals\n"
        "Blocked: no salt"
    )


def test_act_sees_steps_and_notes() -> None:
    assert (
        format_reasoning_for_prompt(TRACE, "act") == "- step 1 (read, recipes): read 5 recipes\n  note: use the first"
    )
    assert format_reasoning_for_prompt(TRACE.recent_summaries[0].steps, "act") == format_reasoning_for_prompt(
        TRACE, "act"
    )


def test_reply_sees_outcomes() -> None:
    assert format_reasoning_for_prompt(TRACE, "reply") == (
        "Phase: exploring\nUser expressed: wants quick meals\nAccomplished: read 5 recipes\nBlocked: no salt"
    )


@pytest.mark.parametrize("node", ["understand", "", "Think", "router"])
def test_no_other_node_has_a_view_of_the_reasoning(node: str) -> None:
    with pytest.raises(ValueError, match="think, act, reply"):
        format_reasoning_for_prompt(TRACE, node)


@pytest.mark.parametrize("node", ["think", "act", "reply"])
def test_an_empty_trace_is_stated(node: str) -> None:
    assert format_reasoning_for_prompt(ReasoningTrace(), node) == "No prior reasoning context."
