"""A request has the instructions of its agent alone, is recorded as sent, and says what it leaves out and why."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from context_compiler import ContextCompiler, MemoryStore, View, compile_view
from context_compiler.messages.bodies import load_messages


class Talker:
    """Agents of one conversation; every request's view, and the instructions that its model got."""

    def __init__(self, **options: Any) -> None:
        self.views: list[View] = []
        self.heard: list[str | None] = []
        self.compiler = ContextCompiler(
            on_view=self.views.append, **({"budget": 3_000, "model": "none", "system": None} | options)
        )
        self.history: list[ModelMessage] = []

    def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.heard.append(info.instructions)
        return ModelResponse(parts=[TextPart("a fine answer " * 40)])

    async def say(self, prompt: str, instructions: str | None = None, **options: Any) -> None:
        agent = Agent(
            FunctionModel(self._answer),
            instructions=instructions,
            system_prompt="House rules.",
            capabilities=[self.compiler],
        )
        run = await agent.run(prompt, message_history=self.history, conversation_id="c", **options)
        self.history = run.all_messages()


async def test_no_request_is_sent_the_instructions_of_another_agent() -> None:
    talker = Talker(store=MemoryStore())
    for turn in range(8):
        await talker.say(f"plan {turn} " + "word " * 150, "You are the planner.")
    before = len(talker.heard)
    for turn in range(8):
        await talker.say(f"work {turn} " + "word " * (900 if turn == 3 else 200))
    assert talker.heard[:before] == ["You are the planner."] * before
    assert talker.heard[before:] == [None] * 8
    assert {"compiled", "cycle"} <= {view.status for view in talker.views[before:]}
    for view in talker.views:
        for message, after in pairwise(view.messages):
            assert not (isinstance(message, ModelRequest) and message.instructions and isinstance(after, ModelRequest))


async def test_a_one_shot_view_carries_the_instructions_of_its_last_request_alone() -> None:
    history: list[ModelMessage] = []
    for turn in range(6):
        history.append(ModelRequest(parts=[UserPromptPart(f"{turn} " + "word " * 100)], instructions=f"rules {turn}"))
        history.append(ModelResponse(parts=[TextPart("answer " * 20)]))
    view = await compile_view(history[:-1], template="extractive", budget=500, system=None)
    *carried, own = [message.instructions for message in view.messages if isinstance(message, ModelRequest)]
    assert view.status == "compiled" and own == "rules 5" and carried[0] is None


async def test_instructions_that_the_host_takes_from_the_history_are_counted() -> None:
    """An agent without instructions is sent those of a prompt that nobody answered, folded into its own."""
    open_prompt: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart("first")], instructions="rule " * 500)]
    sizes: list[int] = []
    talker = Talker()
    for history in ([], open_prompt):
        talker = Talker(store=None, budget=8_000)
        talker.history = history
        await talker.say("second")
        (view,) = talker.views
        assert view.record is not None
        sizes.append(view.record.tokens_sent - view.tokens)
    assert talker.heard[0] is not None and talker.heard[0].split() == ["rule"] * 500
    assert sizes[1] - sizes[0] >= 500


async def test_two_conversations_with_the_same_beginning_are_recorded_separately(tmp_path: Path) -> None:
    store = MemoryStore()
    for name, said in (("pirate", "Be a pirate."), ("lawyer", "Be a lawyer.")):
        talker = Talker(store=store)
        await talker.say("Hello", said)
        (view,) = talker.views
        assert view.record is not None and view.record.view_tip is not None
        assert load_messages(await store.chain(view.record.view_tip)) == view.messages, name
    first, second = await store.views()
    assert first.view_tip != second.view_tip
    assert await store.verify() == ()


async def test_every_view_of_a_conversation_is_recorded_as_it_was_sent() -> None:
    store = MemoryStore()
    talker = Talker(store=store)
    for turn in range(14):
        await talker.say(f"question {turn} " + "word " * 100, f"Be brief in turn {turn}.")
    assert {view.status for view in talker.views} == {"raw", "compiled", "cycle"}
    for view in talker.views:
        assert view.record is not None and view.record.view_tip is not None
        assert load_messages(await store.chain(view.record.view_tip)) == view.messages
    assert load_messages(await store.transcript("c")) == talker.history
    assert await store.verify() == ()


async def test_the_outcome_of_a_tool_is_on_the_record() -> None:
    store = MemoryStore()
    for name, outcome in (("good", "success"), ("bad", "failed")):
        talker = Talker(store=store)
        result: Any = ToolReturnPart("look", "disk", tool_call_id="1", outcome=outcome)  # pyright: ignore
        talker.history = [
            ModelRequest(parts=[UserPromptPart("go")]),
            ModelResponse(parts=[ToolCallPart("look", {}, tool_call_id="1")]),
            ModelRequest(parts=[result]),
            ModelResponse(parts=[TextPart("ok")]),
        ]
        await talker.say("and?")
        (view,) = talker.views
        assert view.record is not None and view.record.view_tip is not None
        kept: Any = load_messages(await store.chain(view.record.view_tip))[2].parts[0]
        assert kept.outcome == outcome, name


async def test_instructions_are_stored_once() -> None:
    store, long = MemoryStore(), "a rule that is repeated nowhere else: " + " ".join(map(str, range(2_000)))
    talker = Talker(store=store, budget=20_000)
    for turn in range(6):
        await talker.say(f"question {turn}", long)
    rows = [row async for row in store.export()]
    assert [str(row).count("nowhere else") for row in rows if "nowhere else" in str(row)] == [1]


async def test_every_request_records_what_it_leaves_out_and_why() -> None:
    store = MemoryStore()
    talker = Talker(store=store)
    for turn in range(20):
        await talker.say(f"question {turn} " + "word " * 120)
    carried = [(index, view) for index, view in enumerate(talker.views) if view.status == "cycle"]
    assert carried
    for position, view in carried:
        kept = {index for index, _ in view.kept}
        absent = set(range(2 * position)) - kept
        told: set[int] = set()
        for drop in view.drops:
            first, _, last = drop.what.partition(" ")[2].partition("-")
            told |= set(range(int(first), int(last or first) + 1))
            assert drop.tokens > 0 and ("turn" in drop.reason or "quarter" in drop.reason)
        assert absent and absent <= told
        assert view.record is not None
        assert sum(line["count"] for line in view.record.ledger["dropped"]) == len(view.drops)  # pyright: ignore


async def test_a_run_after_a_restart_still_records_what_is_left_out(tmp_path: Path) -> None:
    talker = Talker(store=tmp_path / "context.db")
    while not talker.views or talker.views[-1].status != "cycle":
        await talker.say("question " + "word " * 120)
    again = Talker(store=tmp_path / "context.db")
    again.history = talker.history
    await again.say("and now?")
    assert again.views[0].status == "cycle"
    assert again.views[0].drops == talker.views[-1].drops


@pytest.mark.parametrize("redact", [None, lambda text: text.replace("secret", "***")], ids=["plain", "redacted"])
async def test_each_view_is_recorded_with_the_rendering_of_its_dynamic_system_prompt(redact: Any) -> None:
    store, sent, history = MemoryStore(), list[list[ModelMessage]](), list[ModelMessage]()

    def day() -> str:
        return f"A secret of day {len(sent)}."

    for turn in range(3):
        compiler = ContextCompiler(budget=3_000, model="none", system=None, store=store, redact=redact)
        agent = Agent(FunctionModel(lambda messages, _: sent.append(messages) or ModelResponse(parts=[TextPart("ok")])))
        agent.system_prompt(dynamic=True)(day)
        run = await agent.run(f"{turn}", message_history=history, conversation_id="c", capabilities=[compiler])
        history = run.all_messages()
    views = (await store.views("c"))[::-1]
    assert all(view.view_tip is not None for view in views)
    recorded = [load_messages(await store.chain(view.view_tip or ""))[0].parts[0].content for view in views]
    rendered = [messages[0].parts[0].content for messages in sent]
    assert rendered == [f"A secret of day {turn}." for turn in range(3)]
    assert recorded == [redact(text) if redact else text for text in rendered]
    assert await store.verify() == ()
