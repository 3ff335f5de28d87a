"""One entity has one ref for the whole session, whatever becomes of it."""

from __future__ import annotations

import json
from random import Random
from uuid import uuid4

import pytest

from context_compiler.errors import LayersError
from context_compiler.layers import SessionIdRegistry, curate, get_entity_context, layer_texts
from tests.layers.states import registry


def tiers(known: SessionIdRegistry, turn: int | None = None) -> dict[str, list[str]]:
    found = get_entity_context(known, turn)
    return {name: [one.ref for one in getattr(found, name)] for name in ("active", "generated", "retained")}


def test_an_entity_keeps_its_ref_across_turns() -> None:
    entities, id = SessionIdRegistry(), uuid4()
    entities.set_turn(1)
    ref = entities.register_read("recipes", id, "Soup")
    entities.set_turn(9)
    assert entities.register_updated("recipes", str(id)) == ref == "recipe_1"
    assert entities["recipe_1"].label == "Soup"
    assert (entities["recipe_1"].turn_created, entities["recipe_1"].turn_last_ref) == (1, 9)


def test_the_same_number_in_two_tables_is_two_entities() -> None:
    known = SessionIdRegistry()
    assert known.register_read("recipes", 1, "Soup") == "recipe_1"
    assert known.register_read("inventory", 1, "Salt") == "inventory_1"
    assert (known.resolve("recipe_1"), known.ref_of("inventory", 1)) == ("1", "inventory_1")


@pytest.mark.parametrize(
    ("type", "ref"), [("recipes", "recipe_1"), ("pantries", "pantry_1"), ("boxes", "box_1"), ("glass", "glass_1")]
)
def test_a_ref_is_the_singular_of_its_type_and_a_number(type: str, ref: str) -> None:
    assert SessionIdRegistry().register_read(type, 7, "x") == ref


def test_saving_what_was_generated_keeps_its_ref() -> None:
    entities = SessionIdRegistry()
    entities.set_turn(1)
    ref = entities.register_generated("recipes", "Saffron Rice", {"name": "Saffron Rice"})
    assert (ref, tiers(entities)["generated"]) == ("gen_recipe_1", ["gen_recipe_1"])
    assert entities.register_created("recipes", 5, " saffron rice ") == ref
    assert entities[ref].status == "created" and entities.resolve(ref) == "5"
    assert tiers(entities) == {"active": [ref], "generated": [], "retained": []}


def test_a_named_generated_entity_can_be_saved_under_another_label() -> None:
    entities = SessionIdRegistry()
    ref = entities.register_generated("recipes", "Rice", {})
    assert entities.register_created("recipes", 5, "Golden Rice", gen_ref=ref) == ref
    with pytest.raises(LayersError, match="not an unsaved entity"):
        entities.register_created("recipes", 6, "Other", gen_ref=ref)


def test_counters_never_go_back() -> None:
    entities = SessionIdRegistry()
    entities.register_read("recipes", 1, "a")
    entities.drop("recipe_1")
    assert entities.register_read("recipes", 1, "a") == "recipe_2"
    entities.clear()
    assert SessionIdRegistry.from_dict(entities.to_dict()).register_read("recipes", 9, "b") == "recipe_3"


@pytest.mark.parametrize(("age", "active"), [(0, True), (1, True), (2, True), (3, False)])
def test_an_entity_is_active_for_two_more_turns(age: int, active: bool) -> None:
    known = SessionIdRegistry()
    known.set_turn(5)
    known.register_read("recipes", 1, "a")
    assert tiers(known, 5 + age)["active"] == (["recipe_1"] if active else [])


def test_the_window_of_active_turns_is_configurable() -> None:
    known = SessionIdRegistry()
    known.set_turn(1)
    known.register_read("recipes", 1, "a")
    assert get_entity_context(known, 8, window=7).active and not get_entity_context(known, 9, window=7).active


def test_turn_zero_is_accepted_as_a_number() -> None:
    entities = SessionIdRegistry()
    entities.set_turn(9)
    entities.register_read("recipes", 1, "a")
    entities.set_turn(20)
    assert tiers(entities, 0)["active"] == ["recipe_1"] and tiers(entities)["active"] == []


def test_a_retained_entity_is_in_one_tier_only() -> None:
    entities = SessionIdRegistry()
    entities.set_turn(1)
    entities.register_read("recipes", 1, "a")
    assert entities.retain("recipe_1", "favourite")
    assert tiers(entities, 3) == {"active": ["recipe_1"], "generated": [], "retained": []}
    assert get_entity_context(entities, 3).active[0].retention_reason == "favourite"
    assert tiers(entities, 4) == {"active": [], "generated": [], "retained": ["recipe_1"]}


def test_a_generated_entity_stays_until_it_is_dropped() -> None:
    entities = SessionIdRegistry()
    entities.set_turn(1)
    entities.register_generated("recipes", "a", {})
    assert tiers(entities, 1_000)["generated"] == ["gen_recipe_1"]
    entities.drop("gen_recipe_1")
    assert tiers(entities, 1_000)["generated"] == []


def test_a_demoted_entity_disappears_at_once_and_returns_when_mentioned() -> None:
    entities = SessionIdRegistry()
    entities.set_turn(2)
    entities.register_read("recipes", 1, "a")
    entities.retain("recipe_1", "favourite")
    assert entities.demote("recipe_1")
    assert tiers(entities) == tiers(entities, 9) == {"active": [], "generated": [], "retained": []}
    assert entities.resolve("recipe_1") == "1", "it can still be resolved"
    entities.set_turn(9)
    assert entities.touch("recipe_1") and tiers(entities)["active"] == ["recipe_1"]


def test_retaining_needs_a_reason() -> None:
    known = registry()
    with pytest.raises(LayersError, match="without a reason"):
        known.retain("recipe_1", "  ")


def test_unknown_refs_are_ignored_and_reported() -> None:
    entities = registry()
    before = entities.to_dict()
    done = curate(entities, retained=["recipe_99", "recipe_3"], demoted=["pan_1"], reasons={"recipe_99": "x"})
    assert done.ignored == {"recipe_99": "no such entity", "pan_1": "no such entity", "recipe_3": "no reason was given"}
    assert done.summary.retained == done.summary.demoted == [] and entities.to_dict() == before
    assert not any(
        (entities.touch("pan_1"), entities.demote("pan_1"), entities.drop("pan_1"), entities.retain("pan_1", "x"))
    )


def test_curation_is_applied_and_reports_the_changes() -> None:
    entities = registry()
    done = curate(
        entities, retained=["recipe_3", "recipe_1"], demoted=["recipe_1"], reasons={"recipe_3": "b", "recipe_1": "old"}
    )
    assert (done.summary.retained, done.summary.demoted) == (["recipe_3"], ["recipe_1"])
    assert entities["recipe_3"].retention_reason == "b" and entities.is_demoted("recipe_1")


def test_a_registry_survives_json() -> None:
    known = registry()
    again = SessionIdRegistry.from_dict(json.loads(json.dumps(known.to_dict())))
    assert again.to_dict() == known.to_dict()
    assert again.register_read("recipes", "forgotten", "") == "recipe_2"


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ([], "id_registry is a list"),
        ({"ref_to_uuid": {"recipe_4": "abc"}}, "has version None, this one knows 1; give"),
        ({"version": 2}, "has version 2"),
        ({"version": 1, "current_turn": -1}, "current_turn is -1"),
        ({"version": 1, "entities": [{"ref": "a_1", "status": "eaten"}]}, r"entities\[0\].status"),
        ({"version": 1, "entities": [{"label": "no ref"}]}, r"entities\[0\].ref"),
        ({"version": 1, "counters": {"recipe": "many"}}, "counters.recipe"),
        ({"version": 1, "ids": ["x"]}, "ids is a list"),
    ],
)
def test_a_broken_registry_is_refused_with_the_place(given: object, what: str) -> None:
    with pytest.raises(LayersError, match=what):
        SessionIdRegistry.from_dict(given)  # pyright: ignore[reportArgumentType] # wrong on purpose


@pytest.mark.parametrize("id", [None, "", "  ", 1.5, True, ["x"]])
def test_an_invalid_id_is_refused(id: object) -> None:
    with pytest.raises(LayersError, match="is not an id"):
        SessionIdRegistry().register_read("recipes", id, "x")


@pytest.mark.parametrize("type", ["", "  ", "###"])
def test_an_invalid_type_is_refused(type: str) -> None:
    with pytest.raises(LayersError, match="is not a valid entity type"):
        SessionIdRegistry().register_read(type, 1, "x")


@pytest.mark.parametrize("turn", [-1, True, "3", None, 2.0])
def test_an_invalid_turn_is_refused(turn: object) -> None:
    with pytest.raises(LayersError, match="is not a turn"):
        SessionIdRegistry().set_turn(turn)  # pyright: ignore[reportArgumentType] # wrong on purpose


def test_tiers_do_not_depend_on_the_history_of_the_registry() -> None:
    """The same entities are shown after a change as after a restart."""
    dice, entities, refs = Random(7), SessionIdRegistry(), list[str]()
    for turn in range(1, 60):
        entities.set_turn(turn)
        tiers(entities)
        for _ in range(dice.randint(0, 4)):
            step, number = dice.choice("rgcdtkmx"), dice.randint(1, 30)
            if step == "g":
                refs.append(entities.register_generated("recipes", f"Soup {number % 5}", {"minutes": number}))
            elif step == "c":
                refs.append(entities.register_created("recipes", number, f"Soup {number % 5}"))
            elif step in "rd" or not refs:
                register = entities.register_deleted if step == "d" else entities.register_read
                refs.append(register("recipes", number, f"Soup {number}"))
            elif step == "k":
                entities.retain(dice.choice(refs), "they asked for it")
            elif number < 10 or step != "x":
                {"t": entities.touch, "m": entities.demote, "x": entities.drop}[step](dice.choice(refs))
        again = SessionIdRegistry.from_dict(json.loads(json.dumps(entities.to_dict())))
        assert tiers(entities) == tiers(again) == tiers(entities.copy())
        assert entities.copy().to_dict() == entities.to_dict()
        assert json.loads(entities.to_json()) == again.to_dict() == json.loads(entities.copy().to_json())
        assert all(again.ref_of("recipes", id) == entities.ref_of("recipes", id) for id in range(1, 31))


def test_old_entities_are_shown_only_if_retained() -> None:
    entities = SessionIdRegistry()
    for number in range(500):
        entities.set_turn(number)
        entities.register_read("recipes", number, f"Soup {number}")
    entities.retain("recipe_3", "the user comes back to it")
    assert [row["ref"] for row in entities.rows_near(498)] == ["recipe_3", "recipe_499", "recipe_500"]


def test_a_change_in_a_copy_does_not_change_the_original() -> None:
    entities = SessionIdRegistry()
    entities.set_turn(1)
    entities.register_read("recipes", 1, "Soup")
    entities.register_read("recipes", 2, "Stew")
    before = tiers(entities), entities.to_json()
    copy = entities.copy()
    copy.set_turn(2)
    copy.register_read("recipes", 3, "Broth")
    copy.touch("recipe_1")
    copy.drop("recipe_2")
    assert tiers(copy)["active"] == ["recipe_1", "recipe_3"]
    assert (tiers(entities), entities.to_json()) == before
    entities.demote("recipe_1")
    assert tiers(entities)["active"] == ["recipe_2"] and tiers(copy)["active"] == ["recipe_1", "recipe_3"]


def test_content_is_rendered_again_when_an_id_in_it_becomes_known() -> None:
    other = uuid4()
    entities = SessionIdRegistry()
    entities.set_turn(1)
    entities.register_read("recipes", 1, "Soup", data={"text": f"goes with {other}"})
    state = {"id_registry": entities, "current_turn": 1}
    assert "goes with [id]" in layer_texts("act", state)["entity"]
    ref = entities.register_read("wines", other, "Riesling")
    assert f"goes with {ref}" in layer_texts("act", state)["entity"]
    entities.register_updated("recipes", 1, data={"text": "goes with beer"})
    assert "goes with beer" in layer_texts("act", state)["entity"]
    entities.drop(ref)
    shown = layer_texts("act", state)["entity"]
    assert "goes with beer" in shown and "Riesling" not in shown


def test_an_update_without_content_leaves_it_to_be_read_again() -> None:
    entities = SessionIdRegistry()
    entities.set_turn(1)
    entities.register_read("recipes", 1, "Soup", data={"serves": 4})
    state = {"id_registry": entities, "current_turn": 1}
    entities.register_updated("recipes", 1)
    assert "serves" not in layer_texts("act", state)["entity"]
    assert layer_texts("think", state)["do_not_read"] == ""
    entities.register_read("recipes", 1, "", data={"serves": 6})
    assert '{"serves": 6}' in layer_texts("act", state)["entity"]
    entities.register_updated("recipes", 1, data={"serves": 8})
    assert '{"serves": 8}' in layer_texts("act", state)["entity"]
    assert layer_texts("think", state)["do_not_read"] == "DO NOT re-read: recipe_1"
