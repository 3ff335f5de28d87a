"""Who sees what: one test for every ✅ and every ❌ of the four tables of nodes and layers."""

from __future__ import annotations

from typing import Any

import pytest

from context_compiler.layers import NEEDS, build_reply_context, build_understand_context, layer_texts
from context_compiler.layers.context import build_context
from tests.layers.states import IDS, registry, state

NODES = ("understand", "think", "act", "reply")


def told(node: str, layer: str, **more: Any) -> str:
    """All that a node is told of a layer."""
    texts = layer_texts(node, state(**more))
    extra = {"entity": ("do_not_read",), "reasoning": ("curation", "results", "archive")}.get(layer, ())
    return "\n".join([texts[layer], *(texts.get(name, "") for name in extra)])


ENTITIES = {
    "understand": {
        "active": (True, "`recipe_3`: Lemon Herb Chicken (recipes, read, created turn 6, last referenced turn 6)"),
        "generated": (True, "`gen_recipe_1`: Saffron Rice (recipes, generated, created turn 6"),
        "retained": (
            True,
            "`recipe_1`: Grandmother's Stew (recipes, read, created turn 1, last referenced turn 1, kept",
        ),
    },
    "think": {
        "active": (True, "- `recipe_3`: Lemon Herb Chicken"),
        "active content": (False, '"name": "Lemon Herb Chicken"}'),
        "generated": (True, "- `gen_recipe_1`: Saffron Rice"),
        "generated content": (False, "serves"),
        "retained ref": (True, "- `recipe_1`"),
        "retained label": (False, "Grandmother's Stew"),
        "do not re-read": (True, "DO NOT re-read: gen_recipe_1, recipe_3"),
    },
    "act": {
        "active": (True, "`recipe_3`: Lemon Herb Chicken (recipes) [read] turn 6"),
        "active content": (True, '"name": "Lemon Herb Chicken"}'),
        "generated": (True, "`gen_recipe_1`: Saffron Rice (recipes) [generated] turn 6"),
        "generated content": (True, '"serves": 4'),
        "retained ref": (False, "recipe_1`: G"),
        "retained label": (False, "Grandmother's Stew"),
    },
    "reply": {
        "active": (True, "- Lemon Herb Chicken (saved)"),
        "active ref": (False, "recipe_3"),
        "generated": (True, "- Saffron Rice (not saved yet)"),
        "generated ref": (False, "gen_recipe_1"),
        "retained ref": (False, "recipe_1"),
        "retained label": (False, "Grandmother's Stew"),
    },
}
RECENT, SUMMARY, ENGAGEMENT, PENDING = (
    ("recent", "answer 6"),
    ("summary", "They spoke of dinners."),
    ("engagement", "Planning a week of meals."),
    ("pending", "For how many people?"),
)
CONVERSATION = {
    "understand": {RECENT: True, SUMMARY: True, ENGAGEMENT: True, PENDING: True},
    "think": {RECENT: True, SUMMARY: True, ENGAGEMENT: True, PENDING: True},
    "act": {RECENT: True, SUMMARY: False, ENGAGEMENT: False, PENDING: False},
    "reply": {RECENT: True, SUMMARY: False, ENGAGEMENT: True, PENDING: True},
}
REASONING = {
    "understand": {
        "steps of the last turn": (False, "Found 6 records"),
        "its own history": (True, "- turn 3: retain recipe_1 (a favourite)"),
        "curation of others": (False, "done in 6"),
        "phase": (False, "narrowing"),
    },
    "think": {
        "steps of the last turn": (
            True,
            "- step 1 (read, recipes): Read the shelf of turn 6: Found 6 records [recipe_3]",
        ),
        "notes": (True, "note: note of turn 6"),
        "what was decided": (True, "Last turn: Find vegetarian recipes (decided plan_direct)"),
        "curation of the last turn": (True, "Demoted: inventory_1 (done in 6)"),
        "curation of this turn": (True, "Demoted: inventory_1 (salt is settled)"),
        "phase": (True, "Phase: narrowing"),
        "what the user expressed": (True, "User expressed: wants quick meals"),
        "older turns": (True, "Earlier: Turn 4: plan the week"),
    },
    "act": {
        "steps of the last turn": (False, "Found 6 records"),
        "steps of this turn": (True, "- step 1 (write, recipes): Save Saffron Rice: Saved Saffron Rice"),
        "notes of this turn": (True, "note: tell the user"),
        "results of this turn": (True, 'Result of step 1: [["db_create", "recipes"'),
        "what can be retrieved": (True, "- menu: the whole menu of Monday"),
        "curation": (False, "inventory_1"),
        "phase": (False, "Phase"),
        "what was decided": (False, "decided"),
    },
    "reply": {
        "outcomes": (True, "Accomplished: Save Saffron Rice: Saved Saffron Rice"),
        "plans": (False, "decided"),
        "notes": (False, "tell the user"),
        "curation": (False, "salt is settled"),
        "phase": (True, "Phase: executing"),
        "what the user expressed": (True, "User expressed: likes it"),
    },
}


def cells(table: dict[str, dict[Any, Any]]) -> list[Any]:
    """One case a cell, named after it."""
    return [
        pytest.param(node, seen, text, id=f"{node}-{'sees' if seen else 'does-not-see'}-{what}".replace(" ", "-"))
        for node, row in table.items()
        for what, (seen, text) in (
            ((key[0], (value, key[1])) if isinstance(key, tuple) else (key, value)) for key, value in row.items()
        )
    ]


@pytest.mark.parametrize(("node", "seen", "text"), cells(ENTITIES))
def test_entities(node: str, seen: bool, text: str) -> None:
    assert (text in told(node, "entity")) is seen


@pytest.mark.parametrize(("node", "seen", "text"), cells(CONVERSATION))
def test_conversation(node: str, seen: bool, text: str) -> None:
    assert (text in told(node, "conversation")) is seen


@pytest.mark.parametrize(("node", "seen", "text"), cells(REASONING))
def test_reasoning(node: str, seen: bool, text: str) -> None:
    assert (text in told(node, "reasoning")) is seen


@pytest.mark.parametrize("node", NODES)
def test_values_hidden_from_a_node_are_missing_from_its_context_too(node: str) -> None:
    context = build_context(node, state())
    if node in ("act", "reply"):
        assert context["entity"].retained == []
        assert context["conversation"].history_summary == ""
        assert [turn.user for turn in context["conversation"].recent_turns] == ["question 5", "question 6"]
    if node == "act":
        assert context["conversation"].pending is None and context["conversation"].engagement_summary == ""
    if node != "act":
        assert context["entity"].data == {} and "step_results" not in context


@pytest.mark.parametrize("node", NODES)
def test_no_node_sees_a_database_id(node: str) -> None:
    said = "\n".join(layer_texts(node, state()).values())
    assert not any(id in said for id in (*IDS, "__pending__", "forgotten"))


@pytest.mark.parametrize("node", NODES)
def test_entities_neither_recent_nor_retained_are_hidden(node: str) -> None:
    assert "Plain Toast" not in told(node, "entity") and "Sea Salt" not in told(node, "entity")


@pytest.mark.parametrize(("node", "seen"), [("understand", True), ("think", False), ("act", True), ("reply", False)])
def test_deleted_entities_are_shown_only_to_nodes_that_work_on_entities(node: str, seen: bool) -> None:
    assert ("Burnt Pie" in told(node, "entity")) is seen


@pytest.mark.parametrize("node", ["think", "reply"])
def test_a_blocked_turn_is_visible_in_the_next(node: str) -> None:
    stored = state()["conversation"]
    stored["turn_summaries"][-1] |= {"blocked_reason": "CRUD failed | db_create on inventory: sugar, onions"}
    said = told(node, "reasoning", conversation=stored, steps=[])
    title = "Blocked last turn" if node == "reply" else "Blocked"
    assert f"{title}: CRUD failed | db_create on inventory: sugar, onions" in said


def test_reply_sees_the_question_of_this_turn_and_that_an_old_one_is_answered() -> None:
    plan = {"decision": "plan_direct", "goal": "g"}
    assert "Asked before, answered in this turn (clarify): For how many" in told(
        "reply", "conversation", think_output=plan
    )
    offer = {"decision": "propose", "goal": "g", "proposal_message": "Shall I?"}
    said = told("reply", "conversation", think_output=offer)
    assert "Awaiting the user's answer (propose): Shall I?" in said and "how many" not in said


def test_act_does_not_see_the_question_of_this_turn() -> None:
    offer = {"decision": "propose", "goal": "g", "proposal_message": "Shall I?"}
    assert "Shall I?" not in told("act", "conversation", think_output=offer)
    assert build_context("act", state(think_output=offer))["conversation"].pending is None


def test_reply_sees_what_the_user_expressed_and_the_outcome_of_the_last_turn() -> None:
    said = told("reply", "reasoning", steps=[])
    assert "User expressed: likes it" in said and "Accomplished last turn: Read the shelf of turn 6: Found 6" in said


def test_the_builders_have_the_names_and_keys_of_their_nodes() -> None:
    keys = {"entity", "conversation", "reasoning"}
    assert set(build_understand_context(state())) == keys
    assert set(build_context("think", state())) == keys | {"curation"}
    assert set(build_context("act", state())) == keys | {"step_results", "prev_step_note", "content_archive"}
    assert set(build_reply_context(state())) == keys | {"outcomes"}
    assert build_reply_context(state())["outcomes"] == "Save Saffron Rice: 1 items"


def test_building_changes_nothing() -> None:
    current = state()
    before = registry().to_dict()
    for node in NODES:
        build_context(node, current)
    assert current["id_registry"].to_dict() == before
    assert {**current, "id_registry": None} == {**state(), "id_registry": None}


@pytest.mark.parametrize("node", NODES)
def test_a_stored_registry_builds_the_same_contexts_as_a_live_one(node: str) -> None:
    assert build_context(node, state(id_registry=registry().to_dict())) == build_context(node, state())


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("empty", [{}, {"id_registry": None, "conversation": None, "current_turn": 0}])
def test_the_first_turn_has_empty_layers(node: str, empty: dict[str, Any]) -> None:
    texts = layer_texts(node, empty)
    assert texts["entity"] == "No entities in context."
    assert texts["conversation"] == "New conversation."
    assert texts["reasoning"] == "No prior reasoning context."
    assert not any(texts.get(name) for name in ("do_not_read", "curation", "results", "archive"))


def test_an_unknown_node_is_refused_with_the_four_names() -> None:
    assert tuple(NEEDS) == NODES
    with pytest.raises(ValueError, match="understand, think, act, reply"):
        build_context("router", state())
