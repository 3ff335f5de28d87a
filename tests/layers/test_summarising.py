"""At the end of a turn it becomes what is stored, and what is stored stays small."""

from __future__ import annotations

import json
from typing import Any

import pytest

from context_compiler.errors import LayersError
from context_compiler.layers import (
    SessionIdRegistry,
    conversation_of,
    from_json,
    get_conversation_history,
    summarise_turn,
    to_json,
)
from context_compiler.layers.conversation import ConversationContext
from tests.layers.states import conversation, state

KEYS = {
    "recent_turns",
    "history_summary",
    "engagement_summary",
    "pending_clarification",
    "id_registry",
    "turn_summaries",
    "reasoning_summary",
    "content_archive",
    "understand_decision_log",
    "step_summaries",
}


async def session(turns: int, **more: Any) -> ConversationContext:
    """So many turns, one after the other."""
    stored = conversation_of(None)
    for turn in range(1, turns + 1):
        turn_state = {
            "current_turn": turn,
            "conversation": stored,
            "user_message": f"question {turn}",
            "final_response": f"answer {turn}",
        }
        stored = await summarise_turn(
            {**turn_state, "think_output": {"decision": "plan_direct", "goal": f"goal {turn}"}, **more}
        )
    return stored


async def test_a_turn_is_stored_under_the_keys_of_the_schema() -> None:
    stored = await session(1)
    assert set(stored) == KEYS
    assert stored["recent_turns"][0]["user"] == "question 1"
    assert stored["turn_summaries"][0]["think_goal"] == stored["engagement_summary"] == "goal 1"


async def test_five_turns_are_kept_whole_and_older_ones_shortened() -> None:
    stored = await session(8)
    assert [turn["user"] for turn in stored["recent_turns"]] == [f"question {turn}" for turn in (4, 5, 6, 7, 8)]
    assert stored["history_summary"].splitlines()[0] == "User: question 1 | answered: answer 1"
    assert len(stored["history_summary"].splitlines()) == 3


async def test_two_summaries_are_kept_and_older_ones_as_their_goal() -> None:
    stored = await session(5)
    assert [one["turn_num"] for one in stored["turn_summaries"]] == [4, 5]
    assert stored["reasoning_summary"] == "Turn 1: goal 1; Turn 2: goal 2; Turn 3: goal 3"


async def test_the_summaries_are_bounded_and_keep_the_newest_turns() -> None:
    stored = await session(150)
    assert len(stored["reasoning_summary"]) <= 800 and stored["reasoning_summary"].endswith("Turn 148: goal 148")
    assert len(stored["history_summary"]) <= 2_000 and "question 145" in stored["history_summary"]
    assert len(to_json(stored)) < 8_000


async def test_a_model_may_write_the_summary_of_old_turns() -> None:
    asked: list[str] = []

    async def ask(prompt: str) -> str:
        asked.append(prompt)
        return " They spoke of many things. "

    stored = await summarise_turn(state(conversation=await session(5)), ask=ask)
    assert stored["history_summary"] == "They spoke of many things."
    assert len(asked) == 1 and "question 1" in asked[0] and "question 2" not in asked[0]


@pytest.mark.parametrize("answer", ["", "  ", RuntimeError("down")])
async def test_a_failing_model_loses_nothing(answer: str | Exception) -> None:
    async def ask(prompt: str) -> str:
        if isinstance(answer, Exception):
            raise answer
        return answer

    before = {**(await session(5)), "history_summary": "what was before"}
    stored = await summarise_turn(state(conversation=before), ask=ask)
    assert stored["history_summary"] == "what was before\nUser: question 1 | answered: answer 1"


async def test_a_proposal_is_summarised_as_not_done() -> None:
    stored = conversation_of(None)
    text = "I could save the rice. " * 20
    think = {"decision": "propose", "goal": "Save", "proposal_message": "Shall I save the rice?"}
    stored = await summarise_turn(
        {"current_turn": 1, "user_message": "q", "final_response": text, "think_output": think, "conversation": stored}
    )
    assert stored["recent_turns"][0]["assistant_summary"] == text.strip(), "up to 500 characters, word for word"
    for turn in range(2, 7):
        stored = await summarise_turn({"current_turn": turn, "user_message": "q", "conversation": stored})
    assert "proposed, not done: I could save" in stored["history_summary"]


async def test_a_long_answer_is_kept_by_its_beginning() -> None:
    stored = await summarise_turn({"user_message": "q", "final_response": "x" * 900})
    assert stored["recent_turns"][0]["assistant_summary"] == "x" * 300 + "…"


async def test_a_blocked_turn_without_an_answer_is_stored_too() -> None:
    stored = await summarise_turn({"current_turn": 2, "user_message": "save", "blocked_action": "CRUD failed"})
    assert stored["recent_turns"][0]["assistant_summary"] == "(no answer)"
    assert stored["turn_summaries"][0]["blocked_reason"] == "CRUD failed"


async def test_a_turn_without_messages_is_not_added() -> None:
    assert (await summarise_turn({}))["recent_turns"] == []


async def test_a_pending_proposal_is_stored_and_not_its_goal() -> None:
    think = {"decision": "propose", "goal": "Save it", "proposal_message": "Shall I save the rice?"}
    stored = await summarise_turn({"user_message": "q", "think_output": think})
    assert stored["pending_clarification"] == {"type": "propose", "context": "Shall I save the rice?", "questions": []}


async def test_without_a_proposal_the_goal_is_stored_as_pending() -> None:
    stored = await summarise_turn({"think_output": {"decision": "clarify", "goal": "Know the guests"}})
    assert stored["pending_clarification"] == {"type": "clarify", "context": "Know the guests", "questions": []}


async def test_a_question_of_understand_is_pending_as_clarify() -> None:
    stored = await summarise_turn({"understand_output": {"clarification_questions": ["Which soup?"]}})
    assert stored["pending_clarification"] == {
        "type": "clarify",
        "context": "Which soup?",
        "questions": ["Which soup?"],
    }


async def test_a_blocked_action_that_asks_the_user_is_pending() -> None:
    stored = await summarise_turn({"blocked_action": {"details": "Which one?", "suggested_next": "ask_user"}})
    assert stored["pending_clarification"] == {"type": "ask_user", "context": "Which one?", "questions": []}


async def test_only_a_plan_answers_a_pending_question() -> None:
    open_question = conversation()
    kept = await summarise_turn({"conversation": open_question, "user_message": "hm"})
    assert kept["pending_clarification"] == open_question["pending_clarification"]
    plan = {"decision": "plan_direct", "goal": "g"}
    assert (await summarise_turn({"conversation": open_question, "think_output": plan}))[
        "pending_clarification"
    ] is None


async def test_the_log_of_decisions_keeps_the_last_twenty() -> None:
    stored = conversation_of(
        {"understand_decision_log": [{"turn": 0, "ref": f"a_{n}", "action": "retain"} for n in range(20)]}
    )
    stored = await summarise_turn(state(conversation=stored))
    assert len(stored["understand_decision_log"]) == 20
    assert stored["understand_decision_log"][-1] == {
        "turn": 7,
        "ref": "inventory_1",
        "action": "demote",
        "reason": "salt is settled",
    }


async def test_the_registry_is_stored_with_the_content_of_recent_entities() -> None:
    registry = SessionIdRegistry()
    registry.set_turn(1)
    registry.register_read("recipes", 1, "Old", data={"x": 1})
    registry.register_generated("recipes", "New", {"x": 2})
    registry.set_turn(4)
    stored = await summarise_turn({"id_registry": registry, "current_turn": 4})
    assert stored["id_registry"]["data"] == {"gen_recipe_1": {"x": 2}}
    assert SessionIdRegistry.from_dict(stored["id_registry"])["recipe_1"].label == "Old"
    assert registry.data_of("recipe_1") == {"x": 1}, "the living registry is not touched"


async def test_the_state_is_not_changed() -> None:
    given = state()
    await summarise_turn(given)
    assert {**given, "id_registry": None} == {**state(), "id_registry": None}


async def test_the_stored_state_survives_json_with_unknown_keys() -> None:
    stored = {**(await summarise_turn(state())), "from_another_version": {"x": 1}}
    assert from_json(to_json(stored)) == stored == json.loads(to_json(stored))


async def test_values_that_json_cannot_express_are_kept_as_text() -> None:
    stored = await summarise_turn({"content_archive": {"when": {1, 2}, "what": float("nan"), "who": object}})
    archive = from_json(to_json(stored))["content_archive"]
    assert archive["when"] == [1, 2] and archive["what"] == "NaN" and "object" in archive["who"]


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["self"] = loop
    with pytest.raises(LayersError, match="cannot be stored as JSON"):
        to_json(loop)
    with pytest.raises(LayersError, match="cannot be stored as JSON"):
        SessionIdRegistry().register_generated("recipes", "x", loop)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"'])
def test_text_that_is_not_a_stored_session_is_refused(text: str) -> None:
    with pytest.raises(LayersError, match="JSON"):
        from_json(text)


def test_older_keys_are_read() -> None:
    history = get_conversation_history(
        {
            "recent_turns": [{"user": "q", "assistant": "x" * 300}],
            "pending": {"type": "understand", "question": "Which?", "goal": "g"},
        }
    )
    assert history.recent_turns[0].assistant_summary == "x" * 200
    assert history.pending and (history.pending.type, history.pending.context) == ("clarify", "Which?")
