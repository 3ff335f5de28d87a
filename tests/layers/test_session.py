"""Turns of a session follow each other, are stored however they end, and hide nothing from the next."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from context_compiler.errors import LayersError, StoreError
from context_compiler.layers import Layers, Turn, to_json
from context_compiler.record.store import MemoryStore, SQLiteStore, Store


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    made = MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "context.db")
    yield made
    assert await made.verify() == ()
    await made.close()


async def one_turn(layers: Layers, session: str, message: str) -> int:
    async with layers.turn(session, message) as turn:
        turn.registry.register_read("recipes", message, message)
        turn.decided("plan_direct", f"do {message}")
        turn.answered(f"done {message}")
        return turn.number


async def test_turns_are_counted_from_one_and_remembered(store: Store) -> None:
    assert [await one_turn(Layers(store), "s", text) for text in ("a", "b", "c")] == [1, 2, 3]
    stored = await Layers(store).conversation("s")
    assert [turn["user"] for turn in stored["recent_turns"]] == ["a", "b", "c"]
    async with Layers(store).turn("s") as turn:
        assert [entity.ref for entity in turn.context("think")["entity"].active] == ["recipe_2", "recipe_3"]


async def test_sessions_are_separate(store: Store) -> None:
    layers = Layers(store)
    await one_turn(layers, "s", "a")
    assert (await layers.conversation("other"))["recent_turns"] == []
    assert (await Layers(store, vault_name="work").conversation("s"))["recent_turns"] == []


async def test_concurrent_turns_of_a_session_wait_for_each_other(store: Store) -> None:
    running: list[str] = []

    async def slow(layers: Layers, message: str) -> int:
        async with layers.turn("s", message) as turn:
            running.append(message)
            assert len(running) == 1, "two turns at once"
            await asyncio.sleep(0)
            turn.registry.register_read("recipes", message, message)
            await asyncio.sleep(0.001)
            running.remove(message)
            return turn.number

    together = Layers(store)
    numbers = await asyncio.gather(
        *(slow(layers, str(number)) for number, layers in enumerate([together, Layers(store)] * 6))
    )
    assert sorted(numbers) == list(range(1, 13))
    stored = await together.conversation("s")
    assert len(stored["id_registry"]["entities"]) == 12, "no turn wrote over another"


async def test_a_turn_waits_until_the_turn_before_it_is_stored(store: Store) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def ask(prompt: str) -> str:
        asked.set()
        await answer.wait()
        return "They spoke of many things."

    layers = Layers(store, ask=ask)
    for text in "abcde":
        await one_turn(layers, "s", text)
    sixth = asyncio.create_task(one_turn(layers, "s", "f"))  # whose end has the older turns put into words
    await asked.wait()
    seventh = asyncio.create_task(one_turn(layers, "s", "g"))
    for _ in range(5):
        await asyncio.sleep(0)
    answer.set()
    assert [await sixth, await seventh] == [6, 7]


async def test_a_turn_within_a_turn_of_the_same_session_is_refused_at_once(store: Store) -> None:
    layers = Layers(store)
    async with layers.turn("s") as turn:
        with pytest.raises(LayersError, match="in a turn already"):
            async with layers.turn("s"):
                pass
        assert turn.number == 1
    assert await one_turn(layers, "s", "next") == 2


async def test_turns_of_two_sessions_do_not_wait(store: Store) -> None:
    layers = Layers(store)
    async with layers.turn("a"), layers.turn("b") as second:
        assert second.number == 1


async def test_a_failing_turn_is_stored_as_blocked_and_still_raises(store: Store) -> None:
    layers = Layers(store)
    with pytest.raises(ZeroDivisionError):
        async with layers.turn("s", "divide"):
            raise ZeroDivisionError("by zero")
    async with layers.turn("s", "again") as turn:
        assert turn.number == 2
        assert "Blocked: ZeroDivisionError: by zero" in turn.prompt("think", "plan")


async def test_a_cancelled_turn_is_not_stored(store: Store) -> None:
    layers, begun = Layers(store), asyncio.Event()

    async def endless() -> None:
        async with layers.turn("s", "wait"):
            begun.set()
            await asyncio.sleep(3_600)

    task = asyncio.create_task(endless())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await one_turn(layers, "s", "next") == 1


async def test_changes_of_a_turn_that_is_not_stored_are_discarded(store: Store) -> None:
    layers = Layers(store)
    async with layers.turn("s", "read") as turn:
        turn.registry.register_read("recipes", 1, "Soup")
    with pytest.raises(asyncio.CancelledError):
        async with layers.turn("s", "wait") as turn:
            turn.registry.register_read("recipes", 2, "Stew")
            turn.registry.drop("recipe_1")
            raise asyncio.CancelledError
    async with layers.turn("s", "next") as turn:
        assert [entity.ref for entity in turn.registry] == ["recipe_1"]


async def test_two_processes_can_take_turns(store: Store) -> None:
    here, there = Layers(store), Layers(store)
    for number in range(1, 5):
        async with (here if number % 2 else there).turn("s", "read") as turn:
            turn.registry.register_read("recipes", number, f"Soup {number}")
            assert len(turn.registry) == turn.number == number


async def test_a_turn_that_cannot_begin_does_not_block_the_next(store: Store) -> None:
    await store.save_layers("s", "", "{broken", after=0)
    layers = Layers(store)
    for _ in range(2):
        with pytest.raises(LayersError, match="not (a )?JSON"):
            async with asyncio.timeout(300):
                await one_turn(layers, "s", "a")


async def test_a_state_that_another_process_has_written_is_not_lost(store: Store) -> None:
    layers = Layers(store)
    await one_turn(layers, "s", "a")
    with pytest.raises(StoreError, match="changed meanwhile"):
        async with layers.turn("s", "b"):
            await store.save_layers("s", "", to_json({"engagement_summary": "theirs"}), after=1)
    assert (await layers.conversation("s"))["engagement_summary"] == "theirs"
    async with asyncio.timeout(300):
        assert await one_turn(layers, "s", "c") == 1  # a turn that could not be stored lets the next begin


async def test_deleting_the_session_forgets_its_layers(store: Store) -> None:
    layers = Layers(store)
    await one_turn(layers, "s", "a")
    await store.delete("s")
    assert await one_turn(layers, "s", "b") == 1


async def test_the_state_is_that_of_the_turn_in_progress_else_of_the_next(store: Store) -> None:
    layers = Layers(store)
    await one_turn(layers, "s", "a")
    assert (await layers.state("s")).get("current_turn") == 2
    async with layers.turn("s", "b") as turn:
        turn.did("read", "look", result=[1, 2])
        assert await layers.state("s") is turn.state
    assert (await layers.state("s")).get("steps") == []


async def test_a_turn_has_no_registry_before_it_begins() -> None:
    with pytest.raises(LayersError, match="has not begun"):
        _ = Turn(Layers(None), "s", "").registry


async def test_curation_takes_effect_at_once_and_is_remembered(store: Store) -> None:
    layers = Layers(store)
    await one_turn(layers, "s", "a")
    async with layers.turn("s", "b") as turn:
        done = turn.curate(retained={"recipe_9": "x"}, demoted=["recipe_1"])
        assert done.ignored == {"recipe_9": "no such entity"}
        assert turn.context("think")["entity"].active == []
        assert turn.context("think")["curation"].demoted == ["recipe_1"]
    stored = await layers.conversation("s")
    assert stored["understand_decision_log"] == [{"turn": 2, "ref": "recipe_1", "action": "demote", "reason": ""}]


async def test_a_turn_whose_store_cannot_be_opened_is_held_and_stored_later(tmp_path: Path) -> None:
    errors: list[Exception] = []
    path = tmp_path / "context.db"
    path.mkdir()
    layers = Layers(path, on_error=errors.append)
    assert [await one_turn(layers, "s", text) for text in ("a", "b")] == [1, 2]
    assert errors and all(isinstance(error, StoreError) for error in errors)
    path.rmdir()
    assert await one_turn(layers, "s", "c") == 3
    stored = await Layers(path).conversation("s")
    assert [turn["user"] for turn in stored["recent_turns"]] == ["a", "b", "c"]


async def test_a_turn_that_could_not_read_its_session_never_replaces_it(tmp_path: Path) -> None:
    errors: list[Exception] = []
    path, aside = tmp_path / "context.db", tmp_path / "aside.db"
    for text in ("a", "b"):
        await one_turn(Layers(path), "s", text)
    path.rename(aside)
    path.mkdir()
    layers = Layers(path, on_error=errors.append)
    async with layers.turn("s", "c") as turn:
        turn.answered("done c")
        path.rmdir()
        aside.rename(path)
    assert errors
    stored = await Layers(path).conversation("s")
    assert [turn["user"] for turn in stored["recent_turns"]] == ["a", "b"]


class Flaky(MemoryStore):
    """A store that cannot be reached while `down`."""

    down = False

    async def layers(self, session_id: str, vault_name: str = "") -> tuple[str, int] | None:
        self._reach()
        return await super().layers(session_id, vault_name)

    async def save_layers(self, session_id: str, vault_name: str, state: str, *, after: int) -> int:
        self._reach()
        return await super().save_layers(session_id, vault_name, state, after=after)

    def _reach(self) -> None:
        if self.down:
            raise StoreError("the store is down")


@pytest.mark.parametrize("until", ["the turn ends", "the next turn"])
async def test_a_turn_that_begins_while_the_store_is_down_follows_the_one_before(until: str) -> None:
    errors: list[Exception] = []
    store = Flaky()
    layers = Layers(store, on_error=errors.append)
    await one_turn(layers, "s", "a")
    store.down = True
    async with layers.turn("s", "b") as turn:
        turn.answered("done b")
        store.down = until == "the next turn"
    store.down = False
    assert await one_turn(layers, "s", "c") == 3
    stored = await Layers(store).conversation("s")
    assert [turn["user"] for turn in stored["recent_turns"]] == ["a", "b", "c"]
    assert not any("lost" in str(error) for error in errors)


@pytest.mark.parametrize("act", ["conversation", "close"])
async def test_a_turn_in_progress_follows_the_one_that_is_stored_meanwhile(act: str) -> None:
    store = Flaky()
    layers = Layers(store)
    store.down = True
    await one_turn(layers, "s", "a")
    async with layers.turn("s", "b") as turn:
        store.down = False
        await (layers.conversation("s") if act == "conversation" else layers.close())
        turn.answered("done b")
    stored = await Layers(store).conversation("s")
    assert [turn["user"] for turn in stored["recent_turns"]] == ["a", "b"]


class Slow(Flaky):
    """A store that says late that it has saved something."""

    pause = 0.0

    async def save_layers(self, session_id: str, vault_name: str, state: str, *, after: int) -> int:
        version = await super().save_layers(session_id, vault_name, state, after=after)
        await asyncio.sleep(self.pause)
        return version


async def test_a_turn_that_ends_while_the_one_before_it_is_being_stored_follows_it() -> None:
    errors: list[Exception] = []
    store = Slow()
    layers = Layers(store, on_error=errors.append)
    await one_turn(layers, "s", "a")
    store.down = True
    await one_turn(layers, "s", "b")
    async with layers.turn("s", "c") as turn:
        turn.answered("done c")
        store.down, store.pause = False, 0.2
        reading = asyncio.create_task(layers.conversation("s"))
        await asyncio.sleep(0.05)
    await reading
    stored = await Layers(store).conversation("s")
    assert [turn["user"] for turn in stored["recent_turns"]] == ["a", "b", "c"]
    assert not any("meanwhile" in str(error) for error in errors)


async def test_two_reads_at_once_store_a_late_turn_once() -> None:
    errors: list[Exception] = []
    store = Slow()
    layers = Layers(store, on_error=errors.append)
    await one_turn(layers, "s", "a")
    store.down = True
    await one_turn(layers, "s", "b")
    store.down, store.pause = False, 0.05
    errors.clear()
    read = await asyncio.gather(layers.conversation("s"), layers.conversation("s"))
    assert [[turn["user"] for turn in state["recent_turns"]] for state in read] == [["a", "b"]] * 2
    assert not errors


async def test_the_function_for_errors_may_read_the_session() -> None:
    read: list[int] = []
    store = Flaky()

    async def on_error(error: Exception) -> None:
        store.down = False
        read.append(len((await layers.conversation("s"))["recent_turns"]))

    layers = Layers(store, on_error=on_error)
    await one_turn(layers, "s", "a")
    async with asyncio.timeout(300), layers.turn("s", "b"):
        store.down = True
    assert read == [2]
