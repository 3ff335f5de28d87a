"""Layers in a view: what the role needs, directly before the prompt, within the budget, on the record, once a run."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import ModelMessage

from context_compiler import ContextCompiler, MemoryStore, View, build_compiling_history_processor
from context_compiler.errors import SettingsError
from context_compiler.layers import Layers
from tests.support.agents import Talker, compiler, ran
from tests.support.histories import long_history

BEGIN, END = "=== BEGIN CONTEXT LAYERS ===", "=== END CONTEXT LAYERS ==="


async def session(entities: int = 1, store: Any = None) -> Layers:
    """A session with one turn behind it."""
    layers = Layers(store)
    async with layers.turn("s", "What is there?") as turn:
        for number in range(1, entities + 1):
            turn.registry.register_read("recipes", number, f"Recipe number {number}", data={"serves": number})
        turn.decided("plan_direct", "Show recipes")
        turn.did("read", "Look", result=[1], note="short")
        turn.answered("Recipes.")
    return layers


async def told(layers: Layers, role: str, history: list[ModelMessage] | None = None, **wanted: Any) -> tuple[str, View]:
    """The text of the request that an agent of that role sends, and its view."""
    talker, capability = Talker(), compiler(layers=layers, role=role, **wanted)
    agent: Agent[Any, Any] = Agent(talker.model, capabilities=[capability])
    await agent.run("The question.", message_history=history, conversation_id="s")
    assert capability.last_view is not None
    return "\n".join(_texts(talker.last.messages)), capability.last_view


def _texts(messages: list[ModelMessage]) -> list[str]:
    texts: list[str] = []
    for message in messages:
        for part in message.parts:
            content: Any = getattr(part, "content", "")
            texts += [content] if isinstance(content, str) else [getattr(item, "content", item) for item in content]
    return texts


@pytest.mark.parametrize(
    ("role", "seen", "unseen"),
    [
        ("understand", "created turn 1, last referenced turn 1", "Last turn:"),
        ("think", "DO NOT re-read: recipe_1", "serves"),
        ("act", '{"serves": 1}', "Show recipes (decided"),
        ("reply", "- Recipe number 1 (saved)", "recipe_1"),
    ],
)
async def test_each_role_gets_its_layers_before_its_prompt(role: str, seen: str, unseen: str) -> None:
    text, _ = await told(await session(), role)
    assert seen in text and unseen not in text
    assert text.index(BEGIN) < text.index(END) < text.index("The question.")


@pytest.mark.parametrize(
    ("budget", "turns"),
    [(150, 0), (300, 3), (600, 0), (1_500, 30)]
    + [
        pytest.param(budget, turns, marks=pytest.mark.slow) for budget in (150, 300, 600, 6_000) for turns in (0, 3, 30)
    ],
)
async def test_the_budget_holds_with_layers_too(budget: int, turns: int) -> None:
    layers = await session(entities=400)
    history = long_history(turns=turns) if turns else None
    _, view = await told(layers, "understand", history, budget=budget)
    assert view.status != "fallback" and view.error is None
    assert view.tokens <= budget or view.status == "floor_over_budget"
    if budget >= 600:
        assert view.tokens <= budget and view.ledger["tokens"]["layers"] <= budget // 4


async def test_layers_count_for_what_they_add_to_the_request() -> None:
    talker, plain = Talker(), compiler(budget=30_000)
    agent: Agent[Any, Any] = Agent(talker.model, capabilities=[plain])
    await agent.run("The question.", conversation_id="s")
    assert plain.last_view is not None
    _, view = await told(await session(), "think", budget=30_000)
    tokens = view.ledger["tokens"]
    assert tokens["layers"] == view.tokens - plain.last_view.tokens > 0
    assert tokens["messages"] == plain.last_view.ledger["tokens"]["messages"]


async def test_the_layers_are_put_before_the_last_prompt_only() -> None:
    text, _ = await told(await session(), "think", long_history(turns=3), budget=30_000)
    between = text[text.index(END) + len(END) : text.index("The question.")]
    assert not between.strip() and text.count(BEGIN) == 1


async def test_a_history_that_would_fit_alone_makes_room_for_layers() -> None:
    layers, history = await session(entities=400), long_history(turns=6)
    _, alone = await told(Layers(None), "act", history, budget=100_000, trigger=1.0)
    budget = alone.tokens + 60
    _, raw = await told(Layers(None), "act", history, budget=budget, trigger=1.0)
    _, view = await told(layers, "act", history, budget=budget, trigger=1.0)
    assert raw.status == "raw" and view.status == "compiled"
    assert view.tokens <= budget and view.ledger["tokens"]["layers"] > 60


async def test_layers_are_cut_by_priority_with_the_reason() -> None:
    _, view = await told(await session(entities=400), "think", budget=600)
    reasons = {drop.what: drop.reason for drop in view.drops}
    assert reasons["layer entity"] == "no room: priority 1" and "layer conversation" not in reasons
    assert [quote.what for quote in view.quoted if quote.what == "layer conversation"]


async def test_a_section_keeps_within_the_budget_of_its_template() -> None:
    _, view = await told(await session(entities=400), "understand", budget=30_000)
    assert ("layer entity", "over its section budget") in {(drop.what, drop.reason) for drop in view.drops}


async def test_without_any_room_all_layers_are_left_out() -> None:
    text, view = await told(await session(), "understand", budget=60)
    assert BEGIN not in text and "The question." in text
    assert ("layers", "no room") in {(drop.what, drop.reason) for drop in view.drops}


async def test_layers_are_on_the_record() -> None:
    store = MemoryStore()
    _, view = await told(await session(store=store), "think", store=store)
    (record,) = await store.views("s")
    assert record.ledger["tokens"]["layers"] == view.ledger["tokens"]["layers"] > 0
    kept = [body.decode() for body in await store.chain(record.view_tip or "")]
    assert "DO NOT re-read: recipe_1" in "".join(kept)
    assert "DO NOT re-read" not in "".join(body.decode() for body in await store.transcript("s"))


async def test_the_history_of_the_host_holds_no_layers() -> None:
    talker = Talker()
    agent: Agent[Any, Any] = Agent(talker.model, capabilities=[compiler(layers=await session(), role="think")])
    first = ran(await agent.run("one", conversation_id="s"))
    second = ran(await agent.run("two", message_history=first.messages, conversation_id="s"))
    assert not any(BEGIN in text for text in _texts(second.messages))
    assert sum(BEGIN in text for text in _texts(talker.last.messages)) == 1, "only the newest stands"


async def test_layers_stay_as_they_are_while_a_run_lasts() -> None:
    layers = await session()
    async with layers.turn("s", "more") as turn:

        def read() -> str:
            turn.registry.register_read("recipes", 99, "Found on the way")
            return "found"

        talker = Talker([[("read", {})], "done", "again"])
        agent: Agent[Any, Any] = Agent(talker.model, tools=[read], capabilities=[compiler(layers=layers, role="think")])
        await agent.run("go", conversation_id="s")
        blocks = [next(text for text in _texts(sent.messages) if BEGIN in text) for sent in talker.sent]
        assert len(blocks) == 2 and blocks[0] == blocks[1]
        await agent.run("go on", conversation_id="s")
    assert "Found on the way" not in blocks[1] and "Found on the way" in "".join(_texts(talker.last.messages))


async def test_unreadable_layers_do_not_stop_a_run() -> None:
    store, errors = MemoryStore(), list[Exception]()
    await store.save_layers("s", "", "{broken", after=0)
    text, view = await told(Layers(store), "think", on_error=errors.append)
    assert "The question." in text and BEGIN not in text
    assert [type(error).__name__ for error in errors] == ["LayersError"]
    assert [drop.reason for drop in view.drops] == ["failed: LayersError"]


async def test_a_custom_template_words_the_layers_differently(tmp_path: Any) -> None:
    folder = tmp_path / "ContextTemplates" / "layers"
    folder.mkdir(parents=True)
    (folder / "think.md").write_text("My entities: {{ entity }}")
    text, _ = await told(await session(), "think", system=tmp_path)
    assert "My entities: Active entities:" in text and "Conversation History" not in text


@pytest.mark.parametrize(
    "wanted",
    [
        {"layers": Layers(None)},
        {"role": "think"},
        {"layers": Layers(None), "role": "router"},
        {"layers": {}, "role": "act"},
    ],
)
def test_layers_without_a_role_and_unknown_roles_are_refused(wanted: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="layers=|role="):
        ContextCompiler(store=None, **wanted)


async def test_an_application_may_supply_the_state_itself() -> None:
    layers = await session()
    state = await layers.state("s")
    text, view = await told({"s": state}.get, "think")  # pyright: ignore[reportArgumentType] # a function
    assert "DO NOT re-read: recipe_1" in text
    other, _ = await told(layers.state, "think")  # pyright: ignore[reportArgumentType] # an async function
    assert other == text and view.error is None


async def test_an_invalid_state_does_not_stop_a_run() -> None:
    errors: list[Exception] = []
    text, _ = await told(lambda _: "nothing", "think", on_error=errors.append)  # pyright: ignore[reportArgumentType]
    assert "The question." in text and [type(error).__name__ for error in errors] == ["LayersError"]


async def test_a_history_processor_sends_layers_too() -> None:
    talker = Talker()
    processor = build_compiling_history_processor(
        model="none", store=None, system=None, budget=1_500, layers=await session(), role="think"
    )
    agent: Agent[Any, Any] = Agent(talker.model, capabilities=[ProcessHistory(processor)])
    first = ran(await agent.run("one", conversation_id="s"))
    await agent.run("two", message_history=first.messages, conversation_id="s")
    assert sum(BEGIN in text for text in _texts(talker.last.messages)) == 1
