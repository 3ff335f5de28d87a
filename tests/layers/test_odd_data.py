"""Data of any kind ends no turn: odd names, cycles, bytes and second calls are taken as they come."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID as UUIDType

import pytest
from pydantic import BaseModel

from context_compiler.errors import LayersError
from context_compiler.layers import (
    ConversationContext,
    Layers,
    SessionIdRegistry,
    Turn,
    build_act_context,
    format_entity_context,
    from_json,
    get_entity_context,
    get_own_decision_history,
    to_json,
)

UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"


@pytest.fixture
def layers() -> Layers:
    return Layers(None)


async def stored(layers: Layers) -> ConversationContext:
    return await layers.conversation("s")


@pytest.mark.parametrize("subdomain", ["рецепты", "—", "", "食谱"])
async def test_an_unusable_subdomain_does_not_end_the_turn(layers: Layers, subdomain: str) -> None:
    async with layers.turn("s", "hello") as turn:
        turn.did("read", "look", result=[{"id": 1, "рецепт_id": 2, "__id": 3}], subdomain=subdomain)
        shown = turn.context("act")["step_results"]["1"]
    assert shown == [{"рецепт_id": "[id]", "__id": "[id]"}]
    assert len((await stored(layers))["turn_summaries"]) == 1


async def test_an_unusable_table_name_does_not_end_the_turn(layers: Layers) -> None:
    async with layers.turn("s", "hello") as turn:
        turn.did("read", "look", result=("db_read", "-", [{"id": 1}]))
        assert turn.context("act")["step_results"]["1"] == ["db_read", "-", [{}]]
    assert (await stored(layers))["turn_summaries"][0]["steps"][0]["outcome"] == "Found 1 record"


def rows_that_know_their_parent() -> dict[str, Any]:
    recipe: dict[str, Any] = {"name": "Soup"}
    recipe["steps"] = [{"name": str(number), "recipe": recipe} for number in range(8)]
    return recipe


def lists_in_lists() -> list[Any]:
    deep: list[Any] = []
    for _ in range(5_000):
        deep = [deep]
    return deep


def list_of_itself() -> list[Any]:
    found: list[Any] = []
    found += [found, found]
    return found


@pytest.mark.parametrize("make", [rows_that_know_their_parent, lists_in_lists, list_of_itself])
async def test_a_result_that_contains_itself_is_shown_once(layers: Layers, make: Any) -> None:
    async with layers.turn("s", "hello") as turn:
        turn.did("read", "look", result=make(), subdomain="recipes")
        assert len(turn.prompt("act", "go on")) < 20_000
    assert len((await stored(layers))["turn_summaries"]) == 1


def test_bytes_that_are_not_text_survive_json() -> None:
    kept = from_json(to_json({"content_archive": {"image": b"\xff\xfe", "text": "half \ud800"}}))
    assert kept["content_archive"] == {"image": "__4=", "text": "half \ud800"}


def test_two_curation_calls_of_one_turn_are_merged() -> None:
    turn = Layers(None).turn("s", "hello")
    registry = SessionIdRegistry()
    turn.state["id_registry"] = registry
    kept, gone, both = (registry.register_read("recipes", number, f"number {number}") for number in range(3))
    turn.curate(retained={kept: "favourite", both: "perhaps"})
    turn.curate(demoted=[gone, both])
    said = turn.state["understand_output"]["entity_curation"]  # pyright: ignore[reportTypedDictNotRequiredAccess]
    assert (said.retained, said.demoted, said.reasons) == ([kept], [gone, both], {kept: "favourite"})


async def test_two_calls_leave_two_decisions_in_the_log(layers: Layers) -> None:
    async with layers.turn("s", "hello") as turn:
        kept, gone = (turn.registry.register_read("recipes", number, str(number)) for number in range(2))
        turn.curate(retained={kept: "favourite"})
        turn.curate(demoted=[gone])
    log = get_own_decision_history({**await stored(layers)})
    assert [(decision["action"], decision["ref"]) for decision in log] == [("retain", kept), ("demote", gone)]


def test_an_entity_that_is_saved_twice_keeps_its_ref() -> None:
    known = SessionIdRegistry()
    made = known.register_generated("recipes", "Soup", {})
    assert [known.register_created("recipes", 7, "Soup", gen_ref=made) for _ in range(2)] == [made, made]


def test_refs_are_unique_whatever_the_types_are_called() -> None:
    registry = SessionIdRegistry()
    made, read = registry.register_generated("recipes", "Soup", {}), registry.register_read("gen_recipes", 1, "Stew")
    again = SessionIdRegistry.from_dict(registry.to_dict())
    assert (
        len({made, read, again.register_generated("recipes", "Pie", {}), again.register_read("gen_recipe", 2, "")}) == 4
    )


@pytest.mark.parametrize("written", [UUID.upper(), UUID.replace("-", "")])
def test_a_uuid_is_one_entity_in_every_notation(written: str) -> None:
    known = SessionIdRegistry()
    assert known.register_read("recipes", UUID, "Soup") == known.register_read("recipes", written, "Soup")
    assert SessionIdRegistry.from_dict(known.to_dict()).ref_of("recipe", written) == "recipe_1"


@pytest.mark.parametrize("before", range(160, 205, 4))
def test_cutting_a_label_leaves_no_part_of_an_id(before: int) -> None:
    known = SessionIdRegistry()
    known.register_read("recipes", 1, f"{'x' * before} {UUID}")
    assert UUID[:5] not in format_entity_context(get_entity_context(known), "refs_and_labels")


async def test_cutting_an_answer_leaves_no_part_of_an_id(layers: Layers) -> None:
    async with layers.turn("s", "hello") as turn:
        turn.registry.register_read("recipes", UUID, "Soup")
        turn.answered(f"{'x' * 290} {UUID} {'y' * 400}")
    assert UUID[:5] not in (await stored(layers))["recent_turns"][0]["assistant_summary"]


async def test_a_summary_that_fails_in_the_background_ends_no_turn() -> None:
    def broken(prompt: str) -> Any:
        raise RuntimeError("no key")

    layers = Layers(None, ask=broken)
    for number in range(7):
        async with layers.turn("s", f"message {number}") as turn:
            turn.answered("yes")
    assert "message 1" in (await stored(layers))["history_summary"]


async def test_a_model_that_never_answers_holds_no_session() -> None:
    async def hanging(prompt: str) -> str:
        await asyncio.sleep(3_600)
        return "too late"

    layers = Layers(None, ask=hanging, timeout=0.01)
    async with asyncio.timeout(300):
        for number in range(7):
            async with layers.turn("s", f"message {number}") as turn:
                turn.answered("yes")
    assert "message 1" in (await stored(layers))["history_summary"]


def test_act_sees_the_results_of_a_turn_without_a_registry() -> None:
    turn: Turn = Layers(None).turn("s", "hello")
    turn.did("read", "look", result={"id": UUID})
    assert build_act_context({**turn.state})["step_results"] == {"1": {}}


async def test_a_task_that_would_wait_for_its_own_turn_is_refused(tmp_path: Path) -> None:
    first, second = Layers(tmp_path / "context.db"), Layers(tmp_path / "context.db")
    async with asyncio.timeout(300), first.turn("s", "hello"):
        with pytest.raises(LayersError, match="in a turn already"):
            await second.turn("s", "again").__aenter__()
    async with asyncio.timeout(300), second.turn("s", "now") as turn:
        assert turn.number == 2
    for layers in (first, second):
        await layers.close()


class Recipe(BaseModel):
    id: int
    author_id: float
    name: str


@dataclass
class RecipeRow:
    id: int
    author_id: Decimal
    name: str


class RecipeTuple(NamedTuple):
    id: int
    author_id: int
    name: str


ROWS: list[Any] = [
    Recipe(id=4711, author_id=815, name="Soup"),
    RecipeRow(4711, Decimal(815), "Soup"),
    RecipeTuple(4711, 815, "Soup"),
    {"id": 4711, "author_id": 815.0, "name": "Soup"},
]


@pytest.mark.parametrize("row", ROWS)
async def test_ids_never_show_whatever_the_class_of_a_row(layers: Layers, row: Any) -> None:
    async with layers.turn("s", "hello") as turn:
        turn.registry.register_read("recipes", 4711, "Soup")
        turn.did("read", "Find it", subdomain="recipes", result=[row])
        assert turn.context("act")["step_results"]["1"] == [{"ref": "recipe_1", "author_id": "[id]", "name": "Soup"}]
        assert turn.context("act")["reasoning"][0].entities_involved == ["recipe_1"]
        shown = turn.prompt("act", "go on")
    assert "Soup" in shown and "4711" not in shown and "815" not in shown


async def test_ids_never_show_in_sets_and_nested_models(layers: Layers) -> None:
    rows = {"recipe_ids": {4711}, "best": Recipe(id=4711, author_id=815, name="Soup"), "base_recipe_id": UUIDType(UUID)}
    async with layers.turn("s", "hello") as turn:
        turn.registry.register_read("recipes", 4711, "Soup")
        turn.registry.register_read("recipes", UUID, "Stew")
        turn.did("read", "Find them", result=rows)
        assert turn.context("act")["step_results"]["1"] == {
            "recipe_ids": ["recipe_1"],
            "best": {"author_id": "[id]", "name": "Soup"},
            "base_recipe_id": "recipe_2",
        }


async def test_a_model_that_contains_itself_and_a_generator_do_not_end_the_turn(layers: Layers) -> None:
    row = RecipeRow(4711, Decimal(815), "Soup")
    row.name = row  # pyright: ignore[reportAttributeAccessIssue] # wrong on purpose
    numbers = (number for number in range(3))
    async with layers.turn("s", "hello") as turn:
        turn.did("read", "look", result=[row, numbers, b"\xff"])
        assert turn.context("act")["step_results"]["1"] == ["…", "…", "_w=="]
    assert list(numbers) == [0, 1, 2]
