"""What is stored of the entities, whoever changed them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from context_compiler.errors import StoreError
from context_compiler.layers import Layers, SessionIdRegistry, to_json
from context_compiler.layers.retention import stored_registry
from context_compiler.record.store import MemoryStore, SQLiteStore, SQLStore, Store


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SQLStore]:
    made = MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "context.db")
    yield made
    assert await made.verify() == ()
    await made.close()


async def fill(layers: Layers, entities: int = 5) -> None:
    async with layers.turn("s") as turn:
        for number in range(entities):
            turn.registry.register_read("recipes", number, f"Recipe {number}")


async def test_entities_that_are_dropped_leave_nothing(store: SQLStore) -> None:
    layers = Layers(store)
    await fill(layers)
    async with layers.turn("s") as turn:
        for number in range(1, 5):
            turn.registry.drop(f"recipe_{number}")
    async with Layers(store).turn("s") as turn:
        assert [entity.ref for entity in turn.registry] == ["recipe_5"]
        turn.registry.clear()
    state = await store.layers("s")
    assert state is not None and "Recipe" not in state[0]
    async with layers.turn("s") as turn:
        assert len(turn.registry) == 0
        assert turn.registry.register_read("recipes", 1, "Recipe") == "recipe_6"


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
            assert turn.registry.to_dict() == alone.to_dict()
        alone = stored_registry(alone, number)
    stored = (await Layers(store).conversation("s"))["id_registry"]
    assert stored == alone.to_dict()


def moves(draw: Random) -> list[tuple[str, Any]]:
    """Something that happens to entities in one turn."""
    changes: list[tuple[Any, ...]] = [
        ("register_read", "recipes", str(draw.randrange(400)), f"Recipe {draw.random()}") for _ in range(60)
    ]
    for _ in range(12):
        ref = f"recipe_{draw.randrange(1, 200)}"
        changes.append(draw.choice([("touch", ref), ("demote", ref), ("drop", ref), ("retain", ref, "a reason")]))
    changes.append(("register_generated", "recipes", f"Generated {draw.randrange(9)}", {"minutes": draw.random()}))
    changes.append(("register_created", "recipes", str(draw.randrange(400)), f"Generated {draw.randrange(9)}"))
    return cast("list[tuple[str, Any]]", changes)


async def test_a_session_deleted_and_created_again_has_only_the_new_entities(store: SQLStore) -> None:
    layers = Layers(store)
    await fill(layers)
    await store.delete("s")
    async with Layers(store).turn("s") as turn:
        for number in range(10):
            turn.registry.register_read("recipes", -number, f"Soup {number}")
    async with layers.turn("s") as turn:
        assert len(turn.registry) == 10
        assert turn.registry["recipe_2"].label == "Soup 1" and turn.registry.resolve("recipe_2") == "-1"
        assert turn.registry.ref_of("recipes", 300) is None
        assert turn.registry.register_read("recipes", 1, "Recipe") == "recipe_11"


async def test_the_stored_state_in_a_turn_has_its_entities(store: SQLStore) -> None:
    layers = Layers(store)
    await fill(layers, 3)
    async with layers.turn("s") as turn:
        stored = turn.state.get("conversation")
        assert stored is not None
        assert [row["ref"] for row in stored["id_registry"]["entities"]] == ["recipe_1", "recipe_2", "recipe_3"]
        assert len(json.loads(to_json(stored))["id_registry"]["entities"]) == 3


class WholeStore:
    """A store of somebody's own."""

    def __init__(self) -> None:
        self.state: tuple[str, int] | None = None

    async def layers(self, session_id: str, vault_name: str = "") -> tuple[str, int] | None:
        return self.state

    async def save_layers(self, session_id: str, vault_name: str, state: str, *, after: int) -> int:
        if after != (0 if self.state is None else self.state[1]):
            raise StoreError("changed meanwhile")
        self.state = state, after + 1
        return after + 1


async def test_a_store_of_their_own_keeps_everything_in_the_state() -> None:
    store = WholeStore()
    layers = Layers(cast(Store, store))
    await fill(layers)
    for process in (layers, Layers(cast(Store, store))):
        async with process.turn("s") as turn:
            assert len(turn.registry) == 5 and turn.registry.resolve("recipe_4") == "3"
    assert store.state is not None and len(json.loads(store.state[0])["id_registry"]["entities"]) == 5
