"""Compiles in the background: begun early, used when done, one a conversation, and nothing of them is left behind."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
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
from pydantic_ai.usage import RequestUsage, UsageLimits
from typer.testing import CliRunner

from context_compiler import MemoryStore, SQLiteStore, View
from context_compiler.chat import ChatSession
from context_compiler.cli.root import app
from context_compiler.errors import CompileError, SettingsError
from context_compiler.record import browse
from context_compiler.record.rows import Removed
from context_compiler.record.store import open_place
from context_compiler.record.values import Compile, Record
from tests.support.agents import NOTES, Ran, Talker, compiler, run
from tests.support.histories import assert_pairs_whole, prose

ROOT = Path(__file__).parents[2]
BUDGET = 3_000
RULE = "Never write to the ledger on a Friday."


class Gate:
    """A compiler's model that answers only while it is open."""

    def __init__(self, answer: str | Exception = NOTES, *, opened: bool = False, tokens: int = 100) -> None:
        self._tokens = tokens
        self.asked = self.busy = self.most = self.cancelled = 0
        self.model = FunctionModel(self._answer, model_name="gate")
        self._open, self._said = asyncio.Event(), answer
        if opened:
            self.open()

    def open(self) -> None:
        self._open.set()

    def shut(self) -> None:
        self._open.clear()

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.asked, self.busy = self.asked + 1, self.busy + 1
        self.most = max(self.most, self.busy)
        try:
            await self._open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.busy -= 1
        if isinstance(self._said, Exception):
            raise self._said
        usage = RequestUsage(input_tokens=self._tokens, output_tokens=20)
        return ModelResponse(parts=[TextPart(self._said)], usage=usage, model_name="gate")


class Chat:
    """A conversation of many turns, and everything that was seen of it."""

    def __init__(self, gate: Gate, **wanted: Any) -> None:
        self.gate, self.views, self.errors = gate, list[View](), list[Exception]()
        defaults = {"budget": BUDGET, "trigger": 0.5, "recall": 0, "background": True, "on_view": self.views.append}
        self.ours = compiler(None, **{**defaults, "model": gate.model, "on_error": self.errors.append, **wanted})
        self.talker = Talker("I see.")
        self.agent = Agent(self.talker.model, capabilities=[self.ours])
        self.messages: list[ModelMessage] = []

    async def turn(self, words: int = 60, **options: Any) -> Ran:
        number = sum(isinstance(message, ModelResponse) for message in self.messages)
        done = await run(
            self.agent, f"Question {number}: {prose(number, words)}", **{"message_history": self.messages, **options}
        )
        self.messages = done.messages
        await settle()
        return done

    async def until(self, reached: Callable[[], object], words: int = 60, **options: Any) -> None:
        for _ in range(60):
            if reached():
                return
            await self.turn(words, **options)
        raise AssertionError("it never came to that")

    @property
    def status(self) -> str:
        return self.views[-1].status if self.views else ""

    async def records(self) -> list[Record]:
        return (await self.ours.views())[::-1]

    async def compiles(self) -> list[Compile]:
        return [one.compile for one in await self.records() if one.compile is not None and one.compile.compiled_prompt]


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_no_request_waits_and_the_first_that_uses_a_compile_is_recorded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    chat = Chat(Gate())
    await chat.until(lambda: chat.gate.asked)
    assert chat.status == "raw" and chat.views[-1].tokens < BUDGET // 2, "it begins before the trigger"
    began = len(chat.views)
    await chat.until(lambda: chat.views[-1].tokens > BUDGET // 2 + 200)
    assert {view.status for view in chat.views} == {"raw"}, "past the trigger, the view grows on"
    chat.gate.open()
    await settle()
    with caplog.at_level(logging.INFO, "context_compiler"):
        await chat.turn()
    assert chat.status == "compiled" and "Goal" in chat.talker.last.text
    assert "1 compile, made in the background" in caplog.text
    last = (await chat.records())[-1]
    assert last.compile is not None and last.compile.status.startswith(f"ok; made in the background since turn {began}")
    assert (last.turn_index, last.compile.turn_index) == (len(chat.views) - 1, began - 1)
    assert [row.summary_id is not None for row in await chat.records()] == [*[False] * (len(chat.views) - 1), True]
    assert not chat.errors


async def test_a_call_answered_after_a_compile_began_is_sent_with_its_result() -> None:
    chat = Chat(Gate(), budget=8_000)
    await chat.until(lambda: chat.views and chat.views[-1].tokens > 3_300)
    calls = [ToolCallPart("order", {}, tool_call_id=ident) for ident in ("now", "later")]
    chat.messages += [
        ModelRequest(parts=[UserPromptPart("Order them.")]),
        ModelResponse(parts=[TextPart("I order both."), *calls]),
        ModelRequest(parts=[ToolReturnPart("order", "It is here.", tool_call_id="now")]),
    ]
    await chat.turn(words=200)
    assert chat.gate.asked, "it begins at the request that the open call is left out of"
    chat.gate.open()
    await settle()
    await chat.until(lambda: chat.status not in ("raw", "mended"), words=30)
    assert chat.status == "compiled" and not chat.errors
    assert "made in the background" in (await chat.compiles())[-1].status
    assert_pairs_whole(chat.talker.last.messages)


async def test_a_message_pinned_and_a_rule_dismissed_since_it_began_are_respected() -> None:
    chat = Chat(Gate(), store=MemoryStore())
    await chat.turn(conversation_id="one")
    chat.messages = (await run(chat.agent, RULE, message_history=chat.messages, conversation_id="one")).messages
    await chat.until(lambda: chat.gate.asked, conversation_id="one")
    text = prose(0, 60)
    await chat.ours.pin("one", 0)
    await chat.ours.dismiss_rule("one", RULE)
    await chat.until(lambda: chat.views[-1].tokens > BUDGET // 2 + 200, conversation_id="one")
    chat.gate.open()
    await settle()
    await chat.turn(conversation_id="one")
    assert chat.status == "compiled" and "made in the background" in (await chat.compiles())[-1].status
    assert text in chat.talker.last.text and RULE not in chat.talker.last.text
    assert not any("pinned" in drop.reason for drop in chat.views[-1].drops) and not chat.errors


async def test_a_huge_result_that_came_while_it_was_made_is_cut_and_the_prompt_stays_whole() -> None:
    def look(path: str) -> str:
        return prose(1, 9_000)

    chat = Chat(Gate(), trigger=None)
    await chat.until(lambda: chat.gate.asked)
    chat.gate.open()
    await settle()
    assert chat.status == "raw"
    talker = Talker([[("look", {"path": "a"})], "I see."])
    agent = Agent(talker.model, tools=[look], capabilities=[chat.ours])
    await run(agent, "Look at a, and at nothing else.", message_history=chat.messages)
    assert chat.status == "compiled" and chat.views[-1].tokens_sent <= BUDGET
    assert "Goal" in talker.last.text and "Look at a, and at nothing else." in talker.last.text
    assert chat.views[-1].tokens_sent > BUDGET // 5, "the head and the tail of the result stay too"


async def test_a_conversation_has_one_compile_at_a_time_and_uses_each_once() -> None:
    chat = Chat(Gate(opened=True), budget=3 * BUDGET)  # each compile saves more than it reads
    for _ in range(36):
        await chat.turn(words=150)
    assert chat.gate.most == 1
    used = [view.status for view in chat.views].count("compiled")
    assert used >= 2 and chat.gate.asked - used in (0, 1)
    assert {row.status.partition(";")[0] for row in await chat.compiles()} == {"ok"}
    assert all(view.tokens <= 3 * BUDGET for view in chat.views)


async def test_compiles_that_gain_too_little_are_refused_until_enough_was_left_out() -> None:
    chat = Chat(Gate(opened=True), budget=2_200)
    await chat.until(lambda: chat.status == "compiled")
    assert not chat.gate.asked and not await chat.compiles(), "the first cut gains too little"
    await chat.until(lambda: chat.gate.asked)
    await chat.until(lambda: chat.status == "compiled")
    assert chat.gate.asked == 1 and (await chat.compiles())[-1].status.startswith("ok; made in the background")
    assert not chat.errors and all(view.tokens <= 2_200 for view in chat.views)


async def test_two_runs_of_one_conversation_begin_one(tmp_path: Path) -> None:
    first = Chat(Gate())
    await first.until(lambda: first.gate.asked)
    history = first.messages[:-2]
    await first.ours.aclose()
    chat = Chat(Gate(), store=tmp_path / "record.db")
    options = {"message_history": history, "conversation_id": "one"}
    await asyncio.gather(*(run(chat.agent, f"And now? {prose(1, words)}", **options) for words in (80, 160, 240)))
    await settle()
    assert chat.gate.asked == 1
    await chat.ours.aclose()


async def test_conversations_do_not_wait_for_each_other() -> None:
    chat = Chat(Gate())
    await chat.until(lambda: chat.gate.asked, conversation_id="a")
    chat.messages = []
    await chat.until(lambda: chat.gate.asked == 2, conversation_id="b")
    assert chat.gate.most == 2 and {view.status for view in chat.views} == {"raw"}
    await chat.ours.aclose()


async def test_a_request_over_the_budget_waits_for_the_compile_under_way() -> None:
    chat = Chat(Gate())
    await chat.until(lambda: chat.gate.asked)
    waiting = asyncio.ensure_future(chat.turn(words=1_800))
    done, _ = await asyncio.wait({waiting}, timeout=0.05)
    assert not done
    chat.gate.open()
    await waiting
    assert chat.status == "compiled" and chat.gate.asked == 1 and chat.talker.last.tokens <= BUDGET
    assert "since turn" in (await chat.compiles())[-1].status


async def test_a_chat_of_questions_does_not_wait_either() -> None:
    chat = Chat(Gate(opened=True), budget=8_000, trigger=None, recall=0.5)
    for number in range(48):
        said = f"Note {number}: {prose(number, 120)} What was said in notes {number // 2} and {number // 3}, and why?"
        chat.messages = (await run(chat.agent, said, message_history=chat.messages)).messages
        await settle()
    made = [row.status for row in await chat.compiles()]
    assert len(made) >= 2 and all("; made in the background since turn" in status for status in made)


async def test_a_run_that_is_cancelled_while_it_waits_leaves_the_compile_to_the_next() -> None:
    chat = Chat(Gate())
    await chat.until(lambda: chat.gate.asked)
    waiting = asyncio.ensure_future(chat.turn(words=1_800))
    await asyncio.wait({waiting}, timeout=0.02)
    waiting.cancel()
    await asyncio.wait({waiting})
    chat.gate.open()
    await chat.turn(words=1_800)
    assert chat.status == "compiled" and (chat.gate.asked, chat.gate.cancelled) == (1, 0)


async def test_a_compile_outlives_the_time_limit_of_the_run_that_started_it() -> None:
    gate = Gate()
    chat = Chat(gate)
    await chat.until(lambda: gate.busy, timeout=2.0)
    await asyncio.sleep(2.1)
    assert gate.busy and not gate.cancelled
    gate.open()
    await chat.until(lambda: chat.status == "compiled")
    assert gate.asked == 1 and not gate.cancelled and not chat.errors


async def test_the_cost_of_a_compile_is_charged_to_the_run_that_uses_it() -> None:
    chat = Chat(Gate(opened=True))
    used: list[int] = []
    for _ in range(25):
        done = await chat.agent.run(f"Question: {prose(len(used), 60)}", message_history=chat.messages)
        chat.messages = done.all_messages()
        used.append(done.usage.input_tokens if chat.status == "compiled" else 0)
        await settle()
    paid = [tokens for tokens in used if tokens]
    assert paid and all(tokens > 100 for tokens in paid)


def edited(messages: list[ModelMessage], at: int) -> list[ModelMessage]:
    return [*messages[:at], ModelRequest(parts=[UserPromptPart("Something else.")]), *messages[at + 1 :]]


@pytest.mark.parametrize("over", [False, True])
async def test_a_compile_of_an_edited_history_is_discarded(over: bool) -> None:
    chat = Chat(Gate())
    await chat.until(lambda: chat.gate.asked)
    if over:
        chat.gate.open()
        await settle()
        chat.gate.shut()
    chat.messages = edited(chat.messages, 0)
    done = await chat.agent.run("Go on.", message_history=chat.messages)
    await settle()
    assert chat.gate.cancelled == (0 if over else 1)
    [thrown] = await chat.compiles()
    assert thrown.status.startswith("skipped; made in the background") and "has changed" in (thrown.error or "")
    assert thrown.usage.get("input_tokens", 0) == (100 if over else 0) and done.usage.requests == 1
    assert chat.status == "raw" and not chat.errors
    await chat.ours.aclose()


async def test_a_regenerated_turn_still_uses_the_compile() -> None:
    chat = Chat(Gate())
    await chat.until(lambda: chat.gate.asked)
    chat.gate.open()
    await settle()
    chat.messages = chat.messages[:-2]
    await chat.until(lambda: chat.status == "compiled")
    assert chat.gate.asked == 1


async def test_a_compile_that_quotes_a_change_which_was_taken_back_is_discarded() -> None:
    chat = Chat(Gate(), store=MemoryStore())
    told = await run(chat.agent, "The port of the mail server is 8080.", conversation_id="one")
    chat.messages = told.messages
    while not chat.gate.asked:
        await chat.turn(words=40, conversation_id="one")
        kept = chat.messages
        changed = f"{prose(99, 90)}\n\nActually, the port of the mail server is 9000 now, not 8080."
        await run(chat.agent, changed, message_history=kept, conversation_id="one")
        await settle()
        chat.messages = kept
    chat.gate.open()
    await settle()
    await chat.until(lambda: chat.status != "raw", conversation_id="one")
    assert chat.status == "compiled" and "8080" in chat.talker.last.text
    assert "changed at" not in chat.talker.last.text and "9000" not in chat.talker.last.text
    assert chat.gate.asked == 1
    await chat.turn(conversation_id="one")
    assert chat.status == "cycle" and not chat.errors


async def test_a_refusal_lowers_the_budget_no_longer_than_to_the_next_compile() -> None:
    chat = Chat(Gate(opened=True), budget=3 * BUDGET)
    await chat.until(lambda: chat.status == "compiled", words=150)
    chat.talker.say([ModelHTTPError(400, "gate", {"error": {"message": "prompt is too long"}}), "I see."])
    await chat.turn()
    budgets = [view.budget for view in chat.views]
    assert budgets[-1] < budgets[0] == 3 * BUDGET
    chat.talker.say("I see.")
    await chat.until(lambda: chat.gate.asked == 2 and chat.status == "compiled", words=150)
    await chat.turn()
    assert chat.status == "cycle" and chat.views[-1].budget == 3 * BUDGET and not chat.errors


async def test_a_conversation_is_recognised_by_its_text() -> None:
    chat = Chat(Gate(opened=True), budget=3 * BUDGET)  # each compile saves more than it reads
    for _ in range(36):
        plain = [
            ModelRequest(parts=message.parts) if isinstance(message, ModelRequest) else ModelResponse(message.parts)
            for message in chat.messages
        ]
        await chat.turn(words=150, message_history=plain)
    used = [view.status for view in chat.views].count("compiled")
    assert used >= 2 and chat.gate.asked - used in (0, 1)


async def test_a_manual_compile_waits_for_the_one_under_way_and_replaces_it() -> None:
    chat = Chat(Gate(), store=MemoryStore())
    await chat.until(lambda: chat.gate.asked, conversation_id="one")
    by_hand = asyncio.ensure_future(chat.ours.compile_now("one"))
    await settle()
    assert not by_hand.done() and chat.gate.asked == 1
    chat.gate.open()
    assert (await by_hand).done
    assert (chat.gate.asked, chat.gate.most) == (2, 1), "one after the other"
    await chat.turn(conversation_id="one")
    assert "Goal" in chat.talker.last.text and not chat.errors
    assert [row.status.partition(";")[0] for row in await chat.compiles()].count("skipped") == 1


async def test_a_failure_is_reported_and_the_conversation_continues() -> None:
    chat = Chat(Gate(RuntimeError("no"), opened=True), budget=3 * BUDGET)
    await chat.until(lambda: chat.errors, words=150)
    assert isinstance(chat.errors[0], CompileError | RuntimeError) and chat.status == "raw"
    failed = (await chat.compiles())[0]
    assert failed.status.startswith("failed; made in the background since turn")
    for _ in range(14):
        await chat.turn(words=150)
    assert "fallback" not in {view.status for view in chat.views}
    assert all(view.tokens <= 3 * BUDGET for view in chat.views) and "compiled" in {view.status for view in chat.views}


async def test_closing_cancels_the_compile_under_way() -> None:
    chat = Chat(Gate())
    async with chat.ours:
        await chat.until(lambda: chat.gate.asked)
        before = asyncio.all_tasks()
        assert len(before) > 1
    assert asyncio.all_tasks() == {asyncio.current_task()} and chat.gate.cancelled == 1
    chat.gate.open()
    await chat.until(lambda: chat.status == "compiled")


@pytest.mark.parametrize("again", [None, "talk", "another"])
@pytest.mark.parametrize("store", ["memory", "redacted", "postgres"])
async def test_a_compile_does_not_restore_data_deleted_since_it_began(
    store: str, again: str | None, request: pytest.FixtureRequest
) -> None:
    storage = open_place(request.getfixturevalue("postgres_url")) if store == "postgres" else MemoryStore()
    chat = Chat(Gate(opened=True), store=storage, redact=str.strip if store == "redacted" else None)
    await chat.until(lambda: chat.gate.asked, conversation_id="talk")
    assert await storage.delete("talk")
    if again:
        await chat.agent.run("Something new.", conversation_id=again)
    await chat.ours.aclose()
    rows = [str(row) async for row in storage.export()]
    assert bool(rows) == bool(again) and not any("Question 0" in row for row in rows)
    assert await storage.verify() == () and (again == "talk") != any(
        isinstance(error, Removed) for error in chat.errors
    )
    spent = [row.usage.get("input_tokens") for row in await storage.summaries("talk")]
    assert spent == ([100] if again == "talk" else [])
    await storage.close()


async def test_a_compile_by_hand_is_refused_if_its_conversation_is_deleted_meanwhile() -> None:
    store = MemoryStore()
    chat = Chat(Gate(), store=store, background=False)
    for _ in range(8):
        await chat.turn(conversation_id="talk")
    by_hand = asyncio.ensure_future(chat.ours.compile_now("talk"))
    await settle()
    assert chat.gate.busy and await store.delete("talk") == 8
    chat.gate.open()
    assert not (await by_hand).done and chat.errors
    assert [row async for row in store.export()] == [] and await store.verify() == ()


async def test_an_unused_compile_is_recorded_with_its_cost(tmp_path: Path) -> None:
    chat = Chat(Gate(opened=True), store=tmp_path / "context.db")
    await chat.until(lambda: chat.gate.asked)
    assert not await chat.compiles()
    await chat.ours.aclose()
    await chat.ours.aclose()
    store = SQLiteStore(tmp_path / "context.db")
    (info,) = await store.sessions()
    paid = [row for row in await store.summaries(info.session_id) if row.usage]
    assert [row.usage["input_tokens"] for row in paid] == [100] and "no request used it" in (paid[0].error or "")
    assert paid[0].status.startswith("skipped; made in the background") and not await store.verify()
    arguments = ["stats", "--db", str(tmp_path / "context.db"), "--json"]
    total = json.loads((await asyncio.to_thread(CliRunner().invoke, app, arguments)).stdout)["total"]
    assert total["by_model"] == 1 and "gate" in total["costs"]["unknown"]
    await chat.turn()
    await store.close()


@pytest.mark.parametrize("end", ["answered", "failed", "closed", "cancelled"])
async def test_a_compile_is_shown_as_under_way_until_it_ends_however_long_the_chat_is_idle(
    tmp_path: Path, end: str
) -> None:
    gate, file = Gate(RuntimeError("no") if end == "failed" else NOTES), tmp_path / "context.db"
    chat, reader = Chat(gate, store=file), SQLiteStore(file, read_only=True)

    async def shown() -> list[str]:
        return [call.model for call in await reader.perform(browse.calls_in_progress)]

    before = asyncio.all_tasks()
    await chat.until(lambda: gate.asked, conversation_id="a chat")
    await chat.turn(5, conversation_id="a chat")
    assert await shown() == ["gate"]
    if end == "closed":
        await chat.ours.aclose()
    elif end == "cancelled":
        for task in asyncio.all_tasks() - before:
            task.cancel()
    else:
        gate.open()
    async with asyncio.timeout(60):
        while await shown():
            await asyncio.sleep(0.01)
    assert chat.status == "raw"
    await chat.ours.aclose()
    await reader.close()


async def test_a_compile_stopped_by_a_user_is_no_longer_shown(tmp_path: Path) -> None:
    gate, file = Gate(), tmp_path / "context.db"
    chat, reader = Chat(gate, store=file, background=False), SQLiteStore(file, read_only=True)

    async def asked() -> None:
        while not gate.asked:
            await chat.turn(conversation_id="a chat")

    turn = asyncio.create_task(asked())
    async with asyncio.timeout(60):
        while not (gate.asked and await reader.perform(browse.calls_in_progress)):
            await asyncio.sleep(0.01)
    turn.cancel()
    await asyncio.wait({turn})
    async with asyncio.timeout(60):
        while await reader.perform(browse.calls_in_progress):
            await asyncio.sleep(0.01)
    await chat.ours.aclose()
    await reader.close()


async def test_closing_a_chat_ends_it_too(tmp_path: Path) -> None:
    gate = Gate()
    agent = Agent(Talker("I see.").model)
    chat = ChatSession(
        agent, endless=True, background=True, budget=BUDGET, model=gate.model, store=None, system=None, folder=tmp_path
    )
    for number in range(40):
        if gate.asked:
            break
        await chat.say(f"Question {number}: {prose(number, 60)}")
        await settle()
    assert gate.asked == 1
    await chat.close()
    assert gate.cancelled == 1 and asyncio.all_tasks() == {asyncio.current_task()}


PROGRAM = """
import asyncio
from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel
from context_compiler import ContextCompiler

async def never(messages, info):
    print("asked", flush=True)
    try:
        await asyncio.sleep(3_600)
    finally:
        print("ended", flush=True)

def talking():
    model = FunctionModel(never)
    ours = ContextCompiler(budget=2_000, model=model, recall=0, store=None, system=None, background=True)
    return Agent(FunctionModel(lambda messages, info: ModelResponse([TextPart("ok")])), capabilities=[ours])

async def main():
    history, agent = [], talking()
    for number in range(9):
        history = (await agent.run("many words " * 100 + str(number), message_history=history)).all_messages()

history, agent = [], talking()
for number in range(9):
    history = agent.run_sync("many words " * 100 + str(number), message_history=history).all_messages()
asyncio.run(main())
"""


def test_a_program_that_ends_during_a_compile_ends_silently() -> None:
    """With a loop that is run to its end, and with one that is only left, as `run_sync` does."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "asked\nasked\nended\nended\n", "")


def test_another_event_loop_starts_a_new_compile() -> None:
    gate, chats = Gate(), list[Chat]()

    async def first() -> None:
        chats.append(Chat(gate))
        await chats[0].until(lambda: gate.asked)

    async def second() -> None:
        gate.open()
        await chats[0].until(lambda: chats[0].status == "compiled")

    asyncio.run(first())
    asyncio.run(second())
    assert (gate.asked, gate.cancelled) == (2, 1) and not chats[0].errors


async def test_in_a_durable_workflow_a_request_waits_for_its_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "temporalio.workflow", SimpleNamespace(in_workflow=lambda: True))
    chat = Chat(Gate(opened=True))
    await chat.until(lambda: chat.status == "compiled")
    [made] = await chat.compiles()
    assert "background" not in made.status and made.turn_index == len(chat.views) - 1


async def test_a_long_history_is_compiled_in_the_background_too() -> None:
    chat = Chat(Gate(), budget=120_000)
    await chat.until(lambda: chat.gate.asked, words=14_000)
    chat.gate.open()
    await settle()
    await chat.until(lambda: chat.status == "compiled", words=14_000)
    assert "made in the background" in (await chat.compiles())[-1].status


def test_background_compiling_cannot_be_combined_with_every_turn() -> None:
    with pytest.raises(SettingsError, match="every_turn"):
        compiler(None, background=True, every_turn=True)


async def test_a_compile_that_an_earlier_run_began_stops_no_run_that_cannot_pay_for_it(tmp_path: Path) -> None:
    chat = Chat(Gate(opened=True, tokens=50_000), store=tmp_path / "context.db")
    await chat.until(lambda: chat.gate.asked)
    limits = UsageLimits(input_tokens_limit=20_000)
    await chat.until(lambda: chat.status == "compiled", usage_limits=limits)
    (compile,) = [record.compile for record in await chat.records() if record.compile]
    assert compile.usage["input_tokens"] == 50_000 and not chat.errors
