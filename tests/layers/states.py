"""A session in its seventh turn in which every tier, every kind of text and every decision stands once."""

from __future__ import annotations

from typing import Any

from context_compiler.layers import SessionIdRegistry

CHICKEN, SALT, OLD, GONE = (f"{digit * 8}-aaaa-4bbb-8ccc-{digit * 12}" for digit in "1234")
IDS = (CHICKEN, SALT, OLD, GONE)


def registry() -> SessionIdRegistry:
    """One active recipe, one generated, one retained from long ago, one forgotten, one demoted, one deleted."""
    entities = SessionIdRegistry()
    entities.set_turn(1)
    entities.register_read("recipes", OLD, "Grandmother's Stew")
    entities.retain("recipe_1", "the user calls it a favourite")
    entities.register_read("recipes", "forgotten", "Plain Toast")
    entities.set_turn(6)
    entities.register_read("recipes", CHICKEN, "Lemon Herb Chicken", data={"id": CHICKEN, "name": "Lemon Herb Chicken"})
    entities.register_generated("recipes", "Saffron Rice", {"name": "Saffron Rice", "serves": 4})
    entities.register_read("inventory", SALT, "Sea Salt")
    entities.demote("inventory_1")
    entities.register_deleted("recipes", GONE, "Burnt Pie")
    entities.set_turn(7)
    return entities


def conversation() -> dict[str, Any]:
    """What is stored of the six turns before."""
    return {
        "recent_turns": [
            {
                "user": f"question {turn}",
                "assistant_summary": f"answer {turn}",
                "timestamp": "2026-01-13T10:00:00+00:00",
            }
            for turn in (4, 5, 6)
        ],
        "history_summary": "They spoke of dinners.",
        "engagement_summary": "Planning a week of meals.",
        "pending_clarification": {"type": "clarify", "context": "For how many people?", "questions": ["Any guests?"]},
        "turn_summaries": [summary(5, "Look at the pantry"), summary(6, "Find vegetarian recipes")],
        "reasoning_summary": "Turn 4: plan the week",
        "understand_decision_log": [{"turn": 3, "ref": "recipe_1", "action": "retain", "reason": "a favourite"}],
        "content_archive": {"menu": "the whole menu of Monday"},
    }


def summary(turn: int, goal: str) -> dict[str, Any]:
    """What one past turn decided and did."""
    return {
        "turn_num": turn,
        "think_decision": "plan_direct",
        "think_goal": goal,
        "steps": [
            {
                "step_num": 1,
                "type": "read",
                "subdomain": "recipes",
                "description": f"Read the shelf of turn {turn}",
                "outcome": f"Found {turn} records",
                "entities_involved": ["recipe_3"],
                "note": f"note of turn {turn}",
            }
        ],
        "entity_curation": {"retained": [], "demoted": ["inventory_1"], "reasons": {"inventory_1": f"done in {turn}"}},
        "conversation_phase": "narrowing",
        "user_expressed": "wants quick meals",
    }


def state(**more: Any) -> dict[str, Any]:
    """The state of the seventh turn, after its first step."""
    return {
        "id_registry": registry(),
        "current_turn": 7,
        "conversation": conversation(),
        "user_message": "Save the rice.",
        "understand_output": {
            "entity_curation": {
                "retained": [],
                "demoted": ["inventory_1"],
                "reasons": {"inventory_1": "salt is settled"},
            }
        },
        "think_output": {"decision": "plan_direct", "goal": "Save the rice", "user_expressed": "likes it"},
        "steps": [
            {
                "type": "write",
                "subdomain": "recipes",
                "description": "Save Saffron Rice",
                "result": [("db_create", "recipes", [{"id": CHICKEN, "name": "Saffron Rice"}])],
                "result_summary": "Saved Saffron Rice",
                "note": "tell the user",
            }
        ],
        **more,
    }
