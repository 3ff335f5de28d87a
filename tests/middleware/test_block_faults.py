"""Recall blocks when something fails, or a turn goes on elsewhere: the same bytes, or none, and never an error."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter

from context_compiler import ContextCompiler, View, build_compiling_history_processor
from context_compiler.tokens import TokenCounter
from tests.recall.test_blocks import ASK, BUDGET, SECRET, TITLE, block_of, past, talked, text_of, words
from tests.support.agents import Notes, Talker, compiler, run, unstamped
from tests.support.builders import prose
from tests.support.warm import python

ROOT = Path(__file__).parents[2]


def look(path: str) -> str:
    return f"{path}: {prose(len(path), 20)}"


class Broken(TokenCounter):
    """A counter that fails on the frame of a new recall block, once it is broken."""

    broken = False

    def text(self, text: str) -> int:
        if self.broken and f"BEGIN {TITLE}" in text and len(text) < 120:
            raise ZeroDivisionError("ranking is broken")
        return super().text(text)


def looking(times: int) -> list[Any]:
    """A turn of some tool calls, and its answer."""
    return [*([("look", {"path": f"file {number}"})] for number in range(times)), "Fine."]


@pytest.mark.parametrize("model", [True, False])
async def test_a_failure_in_ranking_sends_the_view_without_its_block_and_later_turns_have_theirs(model: bool) -> None:
    counter = Broken()
    errors: list[Exception] = []
    views: list[View] = []
    notes = Notes("The conversation went on.") if model else None
    ours = compiler(notes, budget=BUDGET, counter=counter, on_error=errors.append, on_view=views.append)
    talker = Talker(["Fine.", *looking(2), "Fine."])
    _, history = await talked(ours, ["Hello."], talker, tools=[look])
    counter.broken = True
    _, history = await talked(ours, [ASK], talker, tools=[look], history=history)
    assert [type(error).__name__ for error in errors] == ["ZeroDivisionError"], "once a turn"
    assert [view.status for view in views[1:]] == ["cycle"] * 3, "it is no fallback"
    assert all(TITLE not in sent.text and ASK in sent.text for sent in talker.sent[1:4])
    counter.broken = False
    await talked(ours, [f"Once more: {ASK}"], talker, tools=[look], history=history)
    assert SECRET in block_of(talker.last.messages, f"Once more: {ASK}")


async def test_a_failing_ranking_costs_only_the_block_of_a_compiled_view() -> None:
    counter = Broken()
    counter.broken = True
    errors: list[Exception] = []
    talker, _ = await talked(compiler(budget=BUDGET, counter=counter, on_error=errors.append), [ASK])
    assert len(errors) == 1 and TITLE not in talker.last.text
    assert "BEGIN QUOTED" in talker.last.text and talker.last.tokens <= BUDGET


@pytest.mark.parametrize("budget", [1_500, 2_500, 4_000])
async def test_a_question_has_its_answer_while_every_summary_fails(budget: int) -> None:
    ours, talker = compiler(Notes(RuntimeError("down")), budget=budget), Talker(lambda _, __: words(len(_), 40))
    history: list[ModelMessage] = []
    lost: list[int] = []
    for number in range(36):
        prompt = (
            f"By the way: {SECRET}" if number == 1 else ASK if number % 5 == 4 else words(number, 12 * (number % 7))
        )
        _, history = await talked(ours, [prompt or "Go on."], talker, history=history)
        lost += [number] if prompt == ASK and "48151" not in talker.last.text else []
        assert talker.last.tokens <= budget
    assert not lost


async def test_a_failing_ranking_beside_a_failing_summary_still_sends_the_last_good_view() -> None:
    counter, talker = Broken(), Talker(lambda messages, _: words(len(messages), 40))
    options: dict[str, Any] = {"budget": 2_500, "counter": counter}
    errors, views = list[Exception](), list[View]()
    ours = compiler(Notes(RuntimeError("down")), on_error=errors.append, on_view=views.append, **options)
    history: list[ModelMessage] = []
    for number in range(16):
        counter.broken = number > 12
        prompt = ASK if number % 3 == 2 else words(number, 40)
        _, history = await talked(ours, [prompt], talker, history=history)
        assert talker.last.tokens <= 2_500 and prompt in talker.last.text
    sent = [view.error.rpartition("; ")[2] for view in views[13:] if view.error]
    assert set(sent) == {"sent: the last good view"}, sent


@pytest.mark.parametrize("stored", [True, False])
async def test_a_processor_of_histories_sends_one_block_through_a_tool_loop(stored: bool, tmp_path: Path) -> None:
    """The host stores the processor's views, so each request of the loop starts from the view before it."""
    options: Any = {"store": tmp_path / "record.db"} if stored else {"store": None}
    processor = build_compiling_history_processor(budget=BUDGET, model="none", system=None, **options)
    talker = Talker(["Fine.", *looking(3), *looking(1)])
    agent = Agent(talker.model, tools=[look], capabilities=[ProcessHistory(processor)])
    history: list[ModelMessage] = (await run(agent, "Hello.", message_history=past(), conversation_id="c")).messages
    history = (await run(agent, ASK, message_history=history, conversation_id="c")).messages
    blocks = [block_of(sent.messages, ASK) for sent in talker.sent[1:5]]
    assert SECRET in blocks[0] and blocks == [blocks[0]] * 4
    for before, after in zip(talker.sent[1:4], talker.sent[2:5], strict=True):
        assert said(after.messages)[: len(said(before.messages))] == said(before.messages)
    await run(agent, "Thanks, go on.", message_history=history, conversation_id="c")
    assert all(sent.text.count(f"BEGIN {TITLE}") <= 1 and sent.tokens <= BUDGET for sent in talker.sent)


def said(messages: list[ModelMessage]) -> list[str]:
    """Texts as a provider gets them, without metadata."""
    return [text_of(part) for message in messages for part in message.parts]


PROGRAM = """
import asyncio, json, sys
from pathlib import Path
from pydantic_ai.messages import ModelMessagesTypeAdapter
from pydantic_ai import Agent
from tests.middleware.test_block_faults import look, looking
from tests.recall.test_blocks import ASK, BUDGET, past
from tests.support.agents import Talker, compiler

async def turn(record):
    kept = Path(sys.argv[1]) / f"{record}.json"
    given = {"store": kept.with_name("record.db")} if record == "kept" else {"record": "off"}
    first = not kept.exists()
    talker = Talker(looking(2) if first else looking(2)[1:])
    agent = Agent(talker.model, tools=[look], capabilities=[compiler(budget=BUDGET, **given)])
    if first:
        async with agent.iter(ASK, message_history=past(), conversation_id="c") as steps:
            async for node in steps:
                if talker.sent and Agent.is_call_tools_node(node):
                    kept.write_bytes(ModelMessagesTypeAdapter.dump_json(steps.all_messages() + [node.model_response]))
                    break
    else:
        history = ModelMessagesTypeAdapter.validate_json(kept.read_bytes())
        await agent.run(message_history=history, conversation_id="c")
    for sent in talker.sent:
        print(record, ModelMessagesTypeAdapter.dump_json(sent.messages).decode())


for record in ("kept", "off"):
    asyncio.run(turn(record))
"""


def test_a_new_process_in_the_middle_of_a_turn_finds_the_same_block(tmp_path: Path) -> None:
    """Without a record it is found anew, whatever the seed of hashing is."""
    all_sent: dict[str, list[list[ModelMessage]]] = {"kept": [], "off": []}
    for program, seed in ((python(), "random"), (sys.executable, "1")):
        done = subprocess.run(
            [program, "-W", "ignore", "-c", PROGRAM, str(tmp_path)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        for line in done.stdout.splitlines():
            record, _, messages = line.partition(" ")
            all_sent[record].append(ModelMessagesTypeAdapter.validate_json(messages))
    for record, (first, second, third) in all_sent.items():
        assert SECRET in block_of(first, ASK)
        if record == "kept":
            assert unstamped(second[: len(first)]) == unstamped(first)
        assert block_of(second, ASK) == block_of(first, ASK)
        assert unstamped(third[: len(second)]) == unstamped(second)


@dataclass
class Journalled(ContextCompiler):
    """Answers `begin` as a durable engine does: from its journal, once it is there."""

    journal: dict[str, Any] = field(default_factory=dict[str, Any])

    async def begin(self, ctx: RunContext[Any], ids: list[str], config: str) -> dict[str, Any]:
        if "begin" not in self.journal:
            self.journal["begin"] = json.dumps(await super().begin(ctx, ids, config))
        return json.loads(self.journal["begin"])


@pytest.mark.parametrize("stored", [True, False])
async def test_a_durable_run_that_is_replayed_sends_the_same_blocks(stored: bool, tmp_path: Path) -> None:
    """The record has the block by then, or nothing at all; the journal has what the run began with."""
    journal: dict[str, Any] = {}
    _, history = await talked(compiler(budget=BUDGET, store=tmp_path / "first.db"), ["Hello."])
    sent: list[list[ModelMessage]] = []
    for file in ("first.db", "first.db" if stored else "second.db"):
        options: Any = {"budget": BUDGET, "model": "none", "system": None, "store": tmp_path / file}
        talker, _ = await talked(
            Journalled(journal=journal, **options), [ASK], Talker(looking(2)), tools=[look], history=history
        )
        sent += [request.messages for request in talker.sent]
    assert len(sent) == 6 and SECRET in block_of(sent[0], ASK)
    for first, again in zip(sent[:3], sent[3:], strict=True):
        assert unstamped(again) == unstamped(first)


async def test_recorded_blocks_cost_less_than_twice_their_text(tmp_path: Path) -> None:
    prompts = [f"What was item {number} about, and what did it cost?" for number in range(5, 35)]
    written, blocks = list[int](), list[str]()
    for recall in (0, 0.5):
        folder = tmp_path / str(recall)
        ours = compiler(budget=BUDGET, store=folder / "record.db", recall=recall)
        talker, _ = await talked(ours, ["Hello.", *prompts])
        with closing(sqlite3.connect(folder / "record.db")) as db:
            db.execute("VACUUM INTO ?", (str(folder / "packed.db"),))  # free pages and the log differ from run to run
        written.append((folder / "packed.db").stat().st_size)
        blocks = [block_of(sent.messages, prompt) for sent, prompt in zip(talker.sent[1:], prompts, strict=True)]
    assert all(blocks)
    assert written[1] - written[0] < 2 * sum(map(len, blocks))
