"""Nothing that was said to the layers is lost, coerced or waited for without end."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage

from context_compiler import MemoryStore, SQLiteStore, compile_view
from context_compiler.errors import LayersError, StoreError
from context_compiler.layers import Layers, Need, SessionIdRegistry, Turn, layer_texts, summarise_turn
from tests.support.agents import Talker, compiler
from tests.support.builders import user


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "context.db"


@pytest.fixture
async def layers(path: Path) -> AsyncIterator[Layers]:
    made = Layers(path)
    yield made
    await made.close()


async def one_turn(layers: Layers, message: str) -> None:
    async with layers.turn("s", message) as turn:
        turn.answered(f"answer to {message}")


async def messages_of(layers: Layers) -> list[str]:
    return [turn["user"] for turn in (await layers.conversation("s"))["recent_turns"]]


# a store that fails at the end of a turn


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("later", ["read", "turn", "close"])
async def test_a_turn_is_stored_later_where_the_store_is_locked_at_its_end(path: Path, later: str) -> None:
    errors: list[Exception] = []
    layers = Layers(path, on_error=errors.append)
    await one_turn(layers, "one")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        async with layers.turn("s", "two") as turn:
            other.execute("BEGIN IMMEDIATE")
            turn.answered("answered")
        assert [type(error) for error in errors] == [StoreError]
        assert await messages_of(layers) == ["one", "two"], "it is kept here"
        other.execute("ROLLBACK")
    if later == "read":
        await layers.conversation("s")
    elif later == "turn":
        await one_turn(layers, "three")
    await layers.close()
    again = Layers(path)
    assert await messages_of(again) == ["one", "two", *(["three"] if later == "turn" else [])]
    await again.close()


@pytest.mark.usefixtures("impatient")
async def test_turns_go_on_while_the_store_stays_locked(layers: Layers, path: Path) -> None:
    await one_turn(layers, "one")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for message in ("two", "three"):
            await one_turn(layers, message)
        other.execute("ROLLBACK")
    await one_turn(layers, "four")
    again = Layers(path)
    assert await messages_of(again) == ["one", "two", "three", "four"]
    await again.close()


@pytest.mark.usefixtures("impatient")
async def test_a_callback_that_raises_ends_no_turn(path: Path) -> None:
    async def raising(error: Exception) -> None:
        raise RuntimeError("no")

    layers = Layers(path, on_error=raising)
    await one_turn(layers, "one")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        await one_turn(layers, "two")
        other.execute("ROLLBACK")
    assert await messages_of(layers) == ["one", "two"]
    await layers.close()


async def test_layers_deleted_during_a_turn_stay_deleted_and_this_is_reported() -> None:
    errors: list[Exception] = []
    store = MemoryStore()
    layers = Layers(store, on_error=errors.append)
    await one_turn(layers, "one")
    async with layers.turn("s", "two") as turn:
        await store.delete("s")
        turn.answered("answered")
    assert ["deleted meanwhile" in str(error) for error in errors] == [True]
    assert await messages_of(layers) == []


@pytest.mark.usefixtures("impatient")
async def test_a_first_turn_that_waits_stays_deleted_too(path: Path) -> None:
    errors: list[Exception] = []
    layers, other = Layers(path, on_error=errors.append), SQLiteStore(path)
    assert await other.verify() == ()
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        await one_turn(layers, "one")
        holder.execute("ROLLBACK")
    await other.delete("s")
    await layers.close()
    assert await other.sessions() == [] and "something was deleted meanwhile" in str(errors[-1])
    await one_turn(layers, "two")
    assert await messages_of(layers) == ["two"] and len(errors) == 2
    await layers.close()
    await other.close()


# turns within turns


async def test_a_turn_of_a_child_task_is_refused_instead_of_waiting_for_ever(layers: Layers) -> None:
    async def child() -> None:
        async with layers.turn("s", "again"):
            pass

    async with asyncio.timeout(300), layers.turn("s", "hello"):
        with pytest.raises(LayersError, match="in a turn already"):
            await asyncio.create_task(child())
        async with layers.turn("another", "hello") as other:
            assert other.number == 1
    await child()


async def test_a_task_that_outlives_its_turn_may_begin_the_next(layers: Layers) -> None:
    ended = asyncio.Event()

    async def later() -> int:
        await ended.wait()
        async with layers.turn("s", "later") as turn:
            return turn.number

    async with layers.turn("s", "hello"):
        task = asyncio.create_task(later())
    ended.set()
    async with asyncio.timeout(300):
        assert await task == 2


async def test_a_run_without_the_conversation_id_of_its_turn_is_reported(path: Path) -> None:
    errors: list[Exception] = []
    layers = Layers(path, on_error=errors.append)
    talker = Talker("ok.")
    agent: Agent[Any, Any] = Agent(talker.model, capabilities=[compiler(layers=layers, role="think")])
    async with layers.turn("dinner", "hello"):
        await agent.run("hello", conversation_id="dinner")
        assert errors == []
        await agent.run("hello", conversation_id="supper")
        assert len(errors) == 1 and "conversation_id='dinner'" in str(errors[0])
    await agent.run("hello", conversation_id="new")
    assert len(errors) == 1
    await layers.close()


async def test_a_run_finds_the_turn_that_another_object_of_the_same_file_is_in(path: Path) -> None:
    layers, talker = Layers(path), Talker("ok.")
    capability = compiler(layers=Layers(path), role="act")
    async with layers.turn("dinner", "hello") as turn:
        turn.registry.register_read("recipes", 7, "Lentil soup")
        await Agent(talker.model, capabilities=[capability]).run("hello", conversation_id="dinner")
    assert "Lentil soup" in talker.last.text
    await layers.close()


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ({"conversation_id": "supper"}, "conversation_id='dinner'"),
        ({"owner": "alice"}, "layers.scoped('alice').turn("),
        ({"vault_name": "kitchen"}, "vault_name=''"),
    ],
)
@pytest.mark.parametrize("in_memory", [True, False])
async def test_a_run_outside_its_turn_is_reported_with_the_reason(
    path: Path, in_memory: bool, asked: dict[str, str], hint: str
) -> None:
    errors: list[Exception] = []
    store = MemoryStore() if in_memory else path
    layers = Layers(store)
    other = Layers(store, vault_name=asked.get("vault_name", ""), on_error=errors.append)
    capability = compiler(layers=other, role="act", owner=asked.get("owner"))
    agent: Agent[Any, Any] = Agent(Talker("ok.").model, capabilities=[capability])
    async with layers.turn("dinner", "hello"):
        await agent.run("hello", conversation_id=asked.get("conversation_id", "dinner"))
    assert len(errors) == 1 and hint in str(errors[0])
    await layers.close()


# sources that hang


async def hanging(session: str) -> Any:
    await asyncio.Event().wait()


async def test_a_source_of_layers_that_hangs_stops_no_run() -> None:
    errors: list[Exception] = []
    talker = Talker("ok.")
    capability = compiler(layers=hanging, role="think", timeout=0.01, on_error=errors.append)
    agent: Agent[Any, Any] = Agent(talker.model, capabilities=[capability])
    async with asyncio.timeout(300):
        assert (await agent.run("hello", conversation_id="s")).output == "ok."
    assert ["did not come within 0.01 seconds" in str(error) for error in errors] == [True]


async def test_a_view_does_not_wait_for_layers_that_hang() -> None:
    async with asyncio.timeout(300):
        with pytest.raises(LayersError, match="did not come within"):
            await compile_view([user("hello")], layers=hanging, role="think", session="s", timeout=0.01, store=None)


# very many entities


def crowded(number: int, turn: int = 1) -> SessionIdRegistry:
    registry = SessionIdRegistry()
    registry.set_turn(turn)
    for index in range(number):
        registry.register_read("recipes", index, f"Recipe number {index}", data={"text": "word " * 40})
    return registry


@pytest.mark.parametrize("node", ["understand", "think", "act", "reply"])
async def test_a_prompt_stays_small_however_many_entities_there_are(node: str) -> None:
    texts = layer_texts(node, {"id_registry": crowded(5_000), "current_turn": 1})
    assert len(texts["entity"]) < 350_000
    assert "Recipe number 4999" in texts["entity"] and "Recipe number 17" not in texts["entity"]
    assert "4,000 more entities are not shown." in texts["entity"]


async def test_old_entities_are_pruned_and_recent_or_retained_ones_kept() -> None:
    refs = crowded(10_100)
    refs.retain("recipe_1", "a favourite")
    refs.set_turn(9)
    near = refs.register_read("recipes", "new", "New")
    stored = (await summarise_turn({"id_registry": refs, "current_turn": 9, "user_message": "hello"}))["id_registry"]
    again = SessionIdRegistry.from_dict(stored)
    assert len(again) == 10_000 and len(refs) == 10_101
    assert near in again and "recipe_1" in again and "recipe_2" not in again and "recipe_10100" in again
    assert again.ref_of("recipes", 1) is None and again.register_read("recipes", 1, "back") == "recipe_10102"


# what is given is taken as it is, or refused


async def test_custom_decisions_steps_and_phases_are_kept() -> None:
    layers = Layers(None)
    async with layers.turn("s", "A table for two.") as turn:
        turn.decided("book", "Book a table", conversation_phase="dining")
        turn.did("search", "Find a table", result=[1])
        turn.answered("Booked.")
    stored = (await layers.conversation("s"))["turn_summaries"][0]
    assert (stored["think_decision"], stored["steps"][0]["type"], stored["conversation_phase"]) == (
        "book",
        "search",
        "dining",
    )
    said = (await layers.turn("s").__aenter__()).prompt("think", "go on")
    assert "(decided book); search: Found 1 record" in said and "Phase: dining" in said


@pytest.mark.parametrize("wrong", ["", "  ", None, 5])
def test_an_invalid_decision_or_step_type_is_refused(wrong: Any) -> None:
    turn: Turn = Layers(None).turn("s")
    with pytest.raises(LayersError, match="give plan_direct, propose or clarify, or one of your own"):
        turn.decided(wrong, "goal")
    with pytest.raises(LayersError, match="give read, analyze, generate or write, or one of your own"):
        turn.did(wrong, "look")


@pytest.mark.parametrize(
    ("type", "ref"),
    [("émigré", "émigré_1"), ("e\u0301migre\u0301s", "émigré_1"), ("日本語", "日本語_1"), ("рецепты", "рецепты_1")],
)
def test_types_of_every_script_have_refs(type: str, ref: str) -> None:
    known = SessionIdRegistry()
    assert known.register_read(type, 7, "x") == ref
    again = SessionIdRegistry.from_dict(known.to_dict())
    assert again.ref_of(type, 7) == ref and again.register_read(type, 8, "y") == ref.replace("_1", "_2")


async def test_the_theme_can_be_set_and_stays() -> None:
    layers = Layers(None)
    async with layers.turn("s", "hello") as turn:
        turn.decided("plan_direct", "Find chicken")
    async with layers.turn("s", "a menu") as turn:
        turn.set_theme("Planning a wedding.")
    async with layers.turn("s", "go on") as turn:
        assert "Session: Planning a wedding." in turn.prompt("reply", "answer")


async def test_an_entity_no_longer_shown_returns_when_mentioned_by_name() -> None:
    layers = Layers(None)
    async with layers.turn("s", "hello") as turn:
        turn.registry.register_read("recipes", 1, "Lemon Herb Chicken")
        turn.registry.register_read("recipes", 2, "Lemon Tart")
    for _ in range(4):
        await one_turn(layers, "something else")
    async with layers.turn("s", "that chicken again") as turn:
        assert "Lemon" not in turn.prompt("think", "plan")
        assert turn.mention("nothing") == turn.mention("") == []
        assert turn.mention("lemon herb chicken ") == turn.mention("recipe_1") == ["recipe_1"]
        assert "`recipe_1`: Lemon Herb Chicken" in turn.prompt("think", "plan")
        assert turn.mention("LEMON") == ["recipe_1", "recipe_2"]


# nodes of the user's own


ROUTER = Need(name="router", entity="refs_and_labels", depth=2, reasoning="current steps", pending=True, results=True)


async def test_a_custom_role_gets_the_layers_it_declares(layers: Layers) -> None:
    talker = Talker("ok.")
    capability = compiler(layers=layers, role=ROUTER)
    agent: Agent[Any, Any] = Agent(talker.model, capabilities=[capability])
    async with layers.turn("s", "hello") as turn:
        turn.registry.register_read("recipes", 1, "Soup", data={"minutes": 5})
        turn.did("look", "Look around", result={"found": "a pot"})
        await agent.run("hello", conversation_id="s")
        prompt = turn.prompt(ROUTER, "Where to?")
    for text in (talker.last.text.replace('\\\\"', '"').replace('\\"', '"'), prompt):
        assert "`recipe_1`: Soup" in text and "a pot" in text and "minutes" not in text
    assert prompt.endswith("Where to?")
    assert capability.last_view is not None
    assert {quote.why.partition(",")[0] for quote in capability.last_view.quoted} == {"for router"}


# several nodes


async def test_four_nodes_of_one_session_have_a_conversation_each_in_one_store() -> None:
    store = MemoryStore()
    layers = Layers(store)
    nodes = {role: compiler(store=store, layers=layers, role=role) for role in ("understand", "think", "act", "reply")}
    histories: dict[str, list[ModelMessage]] = {role: [] for role in nodes}
    for number in range(3):
        async with layers.turn("dinner", f"message {number}"):
            for role, ours in nodes.items():
                agent = Agent(Talker(f"{role} answers").model, capabilities=[ours])
                arguments: Any = {"conversation_id": "dinner", "message_history": histories[role]}
                histories[role] = (await agent.run(f"{role} asks {number}", **arguments)).all_messages()
    for role, ours in nodes.items():
        assert await ours.transcript("dinner") == histories[role]
    recorded = {session.vault_name: session.requests for session in await store.sessions() if session.requests}
    assert recorded == dict.fromkeys(nodes, 3)


async def test_an_explicit_vault_name_takes_precedence_over_the_role() -> None:
    store = MemoryStore()
    ours = compiler(store=store, layers=Layers(store), role="think", vault_name="mine")
    await Agent(Talker("ok").model, capabilities=[ours]).run("hello", conversation_id="s")
    assert [session.vault_name for session in await store.sessions()] == ["mine"]
    assert len(await ours.transcript("s")) == 2
