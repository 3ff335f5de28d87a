"""What a turn decided and did is read from its state, whatever its tools gave back."""

from __future__ import annotations

from typing import Any

import pytest

from context_compiler.errors import LayersError
from context_compiler.layers import (
    Layers,
    SessionIdRegistry,
    get_current_curation,
    get_current_turn_steps,
    get_execution_outcomes,
    get_reasoning_trace,
)
from context_compiler.layers.turn import blocked_reason, execution_summary, generic_outcome, guess_wish
from tests.layers.states import CHICKEN, conversation, registry, state


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ([], "No records found"),
        ([{"id": 1}], "Found 1 record"),
        ([{}, {}, {}], "Found 3 records"),
        (("db_read", []), "No records found"),
        (("db_read", [{}, {}]), "Found 2 records"),
        (("db_read", "recipes", [{}, {}]), "Found 2 records"),
        ([("db_create", "recipes", {"name": "Soup"})], "Created/updated 'Soup'"),
        ([("db_create", "recipes", [{}])], "Processed 1 record"),
        ([("db_delete", "recipes", [{}, {}])], "Affected 2 records"),
        ([("db_create", [{}]), ("db_link", "x", [{}, {}])], "Processed 3 records across 2 operations"),
        ({"name": "Soup"}, "Created/updated 'Soup'"),
        ({"x": 1}, "Processed 1 record"),
        (4, "Affected 4 records"),
        (None, "Completed"),
        (True, "Completed"),
        ("text", "Completed"),
        (object(), "Completed"),
    ],
)
def test_a_missing_outcome_is_counted_from_the_result(result: object, said: str) -> None:
    assert generic_outcome(result) == said


@pytest.mark.parametrize(
    ("kind", "result", "said"),
    [
        ("write", [{"id": 1, "name": "Soup"}], "write: Created/updated 'Soup'"),
        ("write", [{"id": 1}], "write: Processed 1 record"),
        ("write", [{"id": 1}, {"id": 2}], "write: Affected 2 records"),
        ("write", (), "write: Affected 0 records"),
        ("generate", [{"name": "Soup"}], "generate: Generated 1 record"),
        ("read", [{"id": 1}], "read: Found 1 record"),
        ("search", [{"id": 1}], "search: Found 1 record"),
    ],
)
async def test_only_rows_that_were_read_are_described_as_found(kind: str, result: object, said: str) -> None:
    layers = Layers(None)
    async with layers.turn("s", "Go on.") as turn:
        turn.did(kind, "The step", result=result)
    async with layers.turn("s", "And now?") as turn:
        assert said in turn.prompt("think", "Plan.")


def test_a_given_outcome_is_used() -> None:
    assert get_current_turn_steps(state())[0].outcome == "Saved Saffron Rice"


@pytest.mark.parametrize(
    "result",
    [
        ("db_read", [{"id": CHICKEN}]),
        ("db_read", "recipes", [{"id": CHICKEN}]),
        [("db_read", "recipes", [{"id": CHICKEN}]), ("db_read", "recipes", [{"id": CHICKEN}])],
        [{"id": CHICKEN}],
        {"id": CHICKEN},
        {"ref": "recipe_3"},
        {"rows": [{"id": CHICKEN}]},
        ["recipe_3"],
        CHICKEN,
    ],
)
def test_entities_are_found_in_every_form_of_result(result: object) -> None:
    steps = get_current_turn_steps({"id_registry": registry(), "steps": [{"subdomain": "recipes", "result": result}]})
    assert steps[0].entities_involved == ["recipe_3"]


def test_a_small_number_means_an_entity_only_in_its_own_table() -> None:
    entities = SessionIdRegistry()
    entities.register_read("inventory", 7, "Salt")
    steps: list[Any] = [
        {"subdomain": "recipes", "result": [{"id": 7}]},
        {"result": [("db_read", "inventory", [{"id": 7}])]},
    ]
    current = get_current_turn_steps({"id_registry": entities, "steps": steps})
    assert [step.entities_involved for step in current] == [[], ["inventory_1"]]


def test_planned_steps_count_once_they_have_a_result() -> None:
    planned = {
        "think_output": {
            "steps": [{"step_type": "read", "description": "Look", "subdomain": "recipes"}, {"step_type": "write"}]
        },
        "step_results": {"1": [{"id": "x"}, {"id": "y"}]},
        "step_metadata": {1: {"note_for_next_step": "both"}},
    }
    (step,) = get_current_turn_steps(planned)
    assert (step.step_num, step.type, step.description, step.outcome, step.note) == (
        1,
        "read",
        "Look",
        "Found 2 records",
        "both",
    )
    assert get_execution_outcomes(planned) == "Look: 2 items"


def test_outcomes_on_one_line() -> None:
    steps = [
        {"description": "Read", "result": [1, 2]},
        {"description": "Check", "result": {"x": 1}},
        {"description": "Tell"},
    ]
    assert get_execution_outcomes({"steps": steps}) == "Read: 2 items; Check: completed; Tell: done"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, None),
        ("", None),
        ("out of salt", "out of salt"),
        ({"details": "CRUD failed"}, "CRUD failed"),
        ({"reason_code": "TOOL_FAILURE"}, "TOOL_FAILURE"),
        (
            {
                "details": "CRUD failed",
                "attempted_context": {
                    "tool": "db_create",
                    "table": "inventory",
                    "items": ["sugar", {"name": "onions"}, {}],
                },
            },
            "CRUD failed | db_create on inventory: sugar, onions, unnamed",
        ),
        (
            {"details": "d", "attempted_context": {"tool": "t", "table": "x", "items": list("abcdefghijkl")}},
            "d | t on x: a, b, c, d, e, f, g, h, i, j",
        ),
        ({"details": "d", "attempted_context": {"tool": "t"}}, "d | t"),
    ],
)
def test_the_reason_of_a_blocked_turn_is_found_in_every_form(given: object, said: str | None) -> None:
    assert blocked_reason(given) == said


@pytest.mark.parametrize(
    ("decision", "types", "phase"),
    [
        (None, [], "exploring"),
        ("clarify", [], "exploring"),
        ("plan_direct", ["read"], "exploring"),
        ("plan_direct", ["read", "analyze"], "narrowing"),
        ("propose", [], "confirming"),
        ("plan_direct", ["generate"], "confirming"),
        ("plan_direct", ["generate", "write"], "executing"),
    ],
)
def test_the_phase_follows_from_decisions_and_steps(decision: str | None, types: list[str], phase: str) -> None:
    steps = [{"type": kind} for kind in types]
    assert execution_summary({"think_output": {"decision": decision}, "steps": steps}).conversation_phase == phase


def test_a_phase_named_by_think_is_used() -> None:
    assert execution_summary({"think_output": {"conversation_phase": "narrowing"}}).conversation_phase == "narrowing"


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("no peanuts", "excluded: no peanuts"),
        ("I want soup", "wants: I want soup"),
        ("something quick", "wants quick options"),
        ("ok", "confirmed"),
        ("how long?", "asked: how long?"),
        ("soup", ""),
        ("", ""),
    ],
)
def test_a_missing_user_wish_is_guessed_from_the_message(message: str, said: str) -> None:
    assert guess_wish(message) == said


def test_the_trace_is_the_last_two_turns_and_the_one_in_progress() -> None:
    stored = conversation()
    assert [summary.turn_num for summary in get_reasoning_trace(stored).recent_summaries] == [5, 6]
    assert [summary.turn_num for summary in get_reasoning_trace(stored, state()).recent_summaries] == [5, 6, 7]
    assert [summary.turn_num for summary in get_reasoning_trace(stored, state(steps=[])).recent_summaries] == [5, 6]
    assert get_reasoning_trace(stored, state(steps=[], blocked_action="no")).recent_summaries[-1].blocked_reason == "no"


def test_the_reason_of_a_blocked_turn_is_read_back() -> None:
    stored = conversation()
    stored["turn_summaries"][0]["blocked_reason"] = "no salt"
    assert get_reasoning_trace(stored).recent_summaries[0].blocked_reason == "no salt"


def test_curation_is_found_in_the_output_of_understand() -> None:
    assert get_current_curation({"understand_output": {"retained": ["a"]}}).retained == ["a"]
    assert get_current_curation(state()).reasons == {"inventory_1": "salt is settled"}


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"current_turn": -1}, "current_turn is -1"),
        ({"current_turn": "3"}, "current_turn is '3'"),
        ({"steps": "none"}, "steps is a str"),
        ({"steps": ["x"]}, r"steps\[0\] is a str"),
        ({"step_results": {"first": 1}}, "'first'"),
        ({"think_output": []}, "think_output is a list"),
    ],
)
def test_a_broken_state_is_refused_with_the_place(given: dict[str, Any], what: str) -> None:
    with pytest.raises(LayersError, match=what):
        execution_summary(given)
