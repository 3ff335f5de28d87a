"""What is stored of the entities: a turn reads and writes the pages that changed, whoever changed them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from context_compiler.errors import StoreError
from context_compiler.layers import Layers, SessionIdRegistry, summarise_turn, to_json
from context_compiler.layers.index import PAGE
from context_compiler.layers.retention import stored_registry
from context_compiler.record.store import MemoryStore, SQLiteStore, SQLStore, Store


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SQLStore]:
    made = MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "context.db")
    yield made
    assert await made.verify() == ()
    await made.close()


async def pages(store: SQLStore) -> dict[str, str]:
    query = "SELECT name, body FROM layer_pages"
    return {row[0]: row[1] for row in await store.perform(lambda db: db.execute(query).fetchall())}


async def fill(layers: Layers, entities: int = 5 * PAGE) -> None:
    async with layers.turn("s") as turn:
        for number in range(entities):
            turn.registry.register_read("recipes", number, f"Recipe {number}")


def unordered(registry: Mapping[str, Any]) -> dict[str, Any]:
    return {**registry, "entities": sorted(registry["entities"], key=lambda row: row["ref"])}


async def test_a_turn_writes_only_the_entities_around_those_that_changed(store: SQLStore) -> None:
    layers = Layers(store)
    await fill(layers)
    before = await pages(store)
    async with layers.turn("s") as turn:
        turn.registry.touch("recipe_70")
    after = await pages(store)
    assert len(before) == len(after) == 5 and len(after.keys() - before.keys()) == 1
    async with layers.turn("s") as turn:
        turn.answered("Nothing was mentioned.")
    assert await pages(store) == after


async def test_entities_that_are_dropped_leave_no_page(store: SQLStore) -> None:
    layers = Layers(store)
    await fill(layers)
    async with layers.turn("s") as turn:
        for number in range(1, 4 * PAGE + 1):
            turn.registry.drop(f"recipe_{number}")
    assert len(await pages(store)) == 1
    async with Layers(store).turn("s") as turn:
        assert len(turn.registry) == PAGE
        turn.registry.clear()
    assert await pages(store) == {}
    async with layers.turn("s") as turn:
        assert len(turn.registry) == 0
        assert turn.registry.register_read("recipes", 1, "Recipe") == f"recipe_{5 * PAGE + 1}"


@pytest.mark.parametrize("seed", range(6))
async def test_processes_that_take_turns_share_the_entities_of_a_session(store: SQLStore, seed: int) -> None:
    draw, alone = Random(seed), SessionIdRegistry()
    processes = [Layers(store), Layers(store), Layers(store)]
    for number in range(1, 15):
        layers = draw.choice(processes) if number % 5 else Layers(store)
        async with layers.turn("s") as turn:
            alone.set_turn(number)
            for move, *arguments in moves(draw):
                for registry in (alone, turn.registry):
                    getattr(registry, move)(*arguments)
            assert unordered(turn.registry.to_dict()) == unordered(alone.to_dict())
        alone = stored_registry(alone, number)
    found = (await Layers(store).conversation("s"))["id_registry"]
    assert unordered(found) == unordered(alone.to_dict())


def moves(draw: Random) -> list[tuple[str, Any]]:
    """Something that happens to entities in one turn."""
    found: list[tuple[Any, ...]] = [
        ("register_read", "recipes", str(draw.randrange(400)), f"Recipe {draw.random()}") for _ in range(60)
    ]
    for _ in range(12):
        ref = f"recipe_{draw.randrange(1, 200)}"
        found.append(draw.choice([("touch", ref), ("demote", ref), ("drop", ref), ("retain", ref, "a reason")]))
    found.append(("register_generated", "recipes", f"Generated {draw.randrange(9)}", {"minutes": draw.random()}))
    found.append(("register_created", "recipes", str(draw.randrange(400)), f"Generated {draw.randrange(9)}"))
    return cast("list[tuple[str, Any]]", found)


async def test_a_session_deleted_and_created_again_has_only_the_new_entities(store: SQLStore) -> None:
    layers = Layers(store)
    await fill(layers)
    await store.delete("s")
    async with Layers(store).turn("s") as turn:
        for number in range(2 * PAGE):
            turn.registry.register_read("recipes", -number, f"Soup {number}")
    async with layers.turn("s") as turn:
        assert len(turn.registry) == 2 * PAGE
        assert turn.registry["recipe_2"].label == "Soup 1" and turn.registry.resolve("recipe_2") == "-1"
        assert turn.registry.ref_of("recipes", 300) is None
        assert turn.registry.register_read("recipes", 1, "Recipe") == f"recipe_{2 * PAGE + 1}"


async def test_a_state_that_was_stored_whole_is_continued_in_pages(store: SQLStore) -> None:
    known = SessionIdRegistry()
    known.set_turn(1)
    for number in range(2 * PAGE):
        known.register_read("recipes", number, f"Recipe {number}")
    known.demote("recipe_3")
    await store.save_layers("s", "", to_json(await summarise_turn({"id_registry": known, "current_turn": 1})), after=0)
    layers = Layers(store)
    for _ in range(2):
        async with layers.turn("s") as turn:
            assert turn.registry.resolve("recipe_7") == "6" and turn.registry.is_demoted("recipe_3")
            assert len(turn.registry) == 2 * PAGE
    assert len(await pages(store)) == 2
    assert (await Layers(store).conversation("s"))["id_registry"] == {**known.to_dict(), "current_turn": 3}


async def test_the_stored_state_in_a_turn_has_its_entities(store: SQLStore) -> None:
    layers = Layers(store)
    await fill(layers, 3)
    async with layers.turn("s") as turn:
        stored = turn.state.get("conversation")
        assert stored is not None
        assert [row["ref"] for row in stored["id_registry"]["entities"]] == ["recipe_1", "recipe_2", "recipe_3"]
        assert len(json.loads(to_json(stored))["id_registry"]["entities"]) == 3


class WholeStore:
    """A store of somebody's own, which knows nothing of pages."""

    def __init__(self) -> None:
        self.state: tuple[str, int] | None = None

    async def layers(self, session_id: str, vault_name: str = "") -> tuple[str, int] | None:
        return self.state

    async def save_layers(self, session_id: str, vault_name: str, state: str, *, after: int) -> int:
        if after != (0 if self.state is None else self.state[1]):
            raise StoreError("changed meanwhile")
        self.state = state, after + 1
        return after + 1


async def test_a_store_without_pages_keeps_everything_in_the_state() -> None:
    store = WholeStore()
    layers = Layers(cast(Store, store))
    await fill(layers)
    for place in (layers, Layers(cast(Store, store))):
        async with place.turn("s") as turn:
            assert len(turn.registry) == 5 * PAGE and turn.registry.resolve("recipe_9") == "8"
    assert store.state is not None and len(json.loads(store.state[0])["id_registry"]["entities"]) == 5 * PAGE


@pytest.mark.parametrize("change", ["DELETE FROM layer_pages", "UPDATE layer_pages SET body = '{}'"])
async def test_pages_edited_in_the_file_are_detected(tmp_path: Path, change: str) -> None:
    store = SQLiteStore(tmp_path / "context.db")
    await fill(Layers(store), 3)
    await store.close()
    with closing(sqlite3.connect(store.path)) as db:
        db.execute(change)
        db.commit()
    assert any("layer" in defect for defect in await store.verify())
    with pytest.raises(StoreError, match="verify the record"):
        await store.layers("s")
    errors: list[Exception] = []
    async with Layers(store, on_error=errors.append).turn("s") as turn:
        assert turn.number == 1, "nothing is known of the session"
    assert "verify the record" in str(errors[0])
    assert any("layer" in defect for defect in await store.verify()), "nothing was replaced"
    await store.close()
