"""Every request is one row that says what was at hand, what was sent, what both cost, and why anything is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter

from context_compiler import SQLiteStore, TokenCounter, View
from context_compiler.messages.bodies import load_messages
from tests.middleware.keeping import BUDGET, Kept, unexplained
from tests.support.agents import NOTES, Notes, Talker, compiler, run
from tests.support.histories import long_history, prose
from tests.support.openai_server import OpenAIServer


async def test_every_request_is_a_row_and_empty_columns_are_explained(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    await kept.turn("hello", conversation_id="mine")
    await kept.turn(history=long_history(30), conversation_id="mine")
    records = await kept.records()
    assert [record.status.partition(";")[0] for record in records] == ["raw", "raw", "compiled", "cycle"]
    assert [record.request_index for record in records] == [0, 1, 0, 1]
    assert [record.turn_index for record in records] == [0, 0, 31, 31]
    assert {record.session_id for record in records} == {"mine"} and len({record.run_id for record in records}) == 2
    for record in records:
        assert not unexplained(record) and record.id is not None
        assert record.compile is None or not unexplained(record.compile)
        assert record.budget == BUDGET and record.request_hash and record.latency_ms > 0
        assert record.tokens_sent == record.tokens_exact <= record.tokens_raw and record.ratio == 1.0
    assert len({record.request_hash for record in records}) == 1
    made, again = records[2], records[3]
    assert made.compile is not None and again.summary_id == made.summary_id is not None


async def test_a_compile_is_a_row_with_its_inputs_and_outputs(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    await kept.turn("{{ braces }} and now?", history=long_history(30))
    compile = (await kept.records())[0].compile
    assert compile is not None and compile.status.startswith("ok")
    assert compile.compiled_prompt == kept.notes.prompts[0]
    assert compile.raw_output == NOTES and compile.summary == NOTES
    assert (compile.template_name, compile.template_source) == ("chat_compiler", "builtin")
    assert compile.template_path and Path(compile.template_path).is_file() and len(compile.template_hash) == 64
    assert (compile.model_alias, compile.fidelity) == ("notes", "summary:medium")
    assert compile.usage == {"input_tokens": 100, "output_tokens": 20, "requests": 1}
    assert compile.budget_used > 50 and compile.latency_ms > 0 and compile.turn_index == 31
    assert {"recent_turns", "latest_input"} <= set(compile.sections_included) | {"latest_input"}
    assert compile.input_payload and compile.input_payload["left_out"] and compile.input_payload["raw_tip"]
    assert not unexplained(compile)


async def test_a_json_answer_is_also_stored_as_json(tmp_path: Path) -> None:
    kept = Kept(tmp_path, Notes('```json\n{"goal": "find out"}\n```'))
    await kept.turn(history=long_history(30))
    compile = (await kept.records())[0].compile
    assert compile is not None and compile.summary_json == {"goal": "find out"} and not unexplained(compile)


async def test_the_ledger_lists_tokens_by_part_and_dropped_messages(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    await kept.turn(history=long_history(30))
    record = (await kept.records())[0]
    tokens: Any = record.ledger["tokens"]
    assert sum(tokens.values()) == record.tokens_exact and min(tokens.values()) >= 0
    dropped: Any = record.ledger["dropped"]
    assert dropped and all(line["count"] and line["reason"] and line["what"] for line in dropped)
    assert json.loads(json.dumps(record.ledger)) == record.ledger


async def test_a_sent_request_can_be_read_back_message_by_message(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    await kept.turn(history=long_history(30))
    store = SQLiteStore(kept.file)
    for record, sent in zip(await kept.records(), kept.talker.sent, strict=True):
        assert record.view_tip is not None
        messages = load_messages(await store.chain(record.view_tip))
        texts = [part.content for message in messages for part in message.parts if part.part_kind == "text"]
        assert texts == [
            part.content for message in sent.messages for part in message.parts if part.part_kind == "text"
        ]
    assert await store.verify() == ()
    await store.close()


async def test_the_transcript_is_the_history_of_the_host_with_the_last_answer(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    for number in range(4):
        await kept.turn(f"Question {number}", conversation_id="mine")
        assert await kept.ours.transcript("mine") == kept.messages
    dumped = ModelMessagesTypeAdapter.dump_json(kept.messages)
    other = Kept(tmp_path)
    assert ModelMessagesTypeAdapter.dump_json(await other.ours.transcript("mine")) == dumped
    assert await other.ours.transcript("nobody's") == []


async def test_views_can_be_listed_for_one_conversation_or_for_all(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    await kept.turn(conversation_id="one")
    await kept.turn(history=[], conversation_id="two")
    assert [record.session_id for record in await kept.ours.views()] == ["two", "two", "one", "one"]
    assert [record.request_index for record in await kept.ours.views("one")] == [1, 0]


async def test_a_deleted_conversation_can_be_continued(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    await kept.turn(history=long_history(30), conversation_id="mine")
    store = SQLiteStore(kept.file)
    assert await store.delete("mine") == 2
    assert await store.sessions() == [] and await store.verify() == ()
    await store.close()
    await kept.turn("Question again", conversation_id="mine")
    assert await kept.ours.transcript("mine") == kept.messages
    assert b"TOPSECRET" not in kept.file.read_bytes()


async def test_a_learnt_ratio_is_on_the_record_and_keeps_the_budget(tmp_path: Path) -> None:
    """A provider that counts twice what we count is given half as much."""
    counter = TokenCounter()
    with OpenAIServer("fine", count=lambda text: 2 * counter.text(text)) as server:
        ours = compiler(budget=4_000, store=tmp_path / "record.db")
        agent = Agent(server.model("some-other-model"), capabilities=[ours])
        messages: list[ModelMessage] = []
        for number in range(30):
            messages = (await run(agent, f"Question {number}: {prose(number, 90)}", message_history=messages)).messages
        assert max(server.prompt_tokens[12:]) <= 4_000 * 1.1
    records = await ours.views()
    assert records[0].ratio > 1.5 and records[0].tokens_sent == round(records[0].tokens_exact * records[0].ratio)
    assert records[-1].ratio == 1.0 and {record.budget for record in records} == {4_000}


@pytest.mark.parametrize(("keep", "why"), [("full", ""), ("off", "record is off")])
async def test_a_row_describes_its_summary_truthfully(tmp_path: Path, keep: str, why: str) -> None:
    views: list[View] = []
    ours = compiler(Notes(), budget=BUDGET, store=tmp_path / "a.db", record=keep, on_view=views.append)
    await run(Agent(Talker("ok").model, capabilities=[ours]), "and now?", message_history=long_history(40))
    record = views[0].record
    assert record is not None and record.status.startswith("compiled")
    assert (record.summary_id is None) == bool(why) and (f"summary_id: {why}" in record.status) == bool(why)
