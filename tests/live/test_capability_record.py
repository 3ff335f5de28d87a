"""Every request is one row that says what was at hand, what was sent, what both cost, and why anything is missing."""

from __future__ import annotations

import dataclasses
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic_ai import Agent
from pydantic_ai.capabilities import Instrumentation
from pydantic_ai.messages import BinaryContent, ModelMessage, ModelMessagesTypeAdapter
from pydantic_ai.models.instrumented import InstrumentationSettings

from context_compiler import SQLiteStore, TokenCounter, View
from context_compiler.history import Reader, load_messages
from context_compiler.record import Compile, Record
from context_compiler.record.redaction import Redactor
from tests.support.agents import NOTES, Notes, Talker, compiler, run
from tests.support.histories import answer, assistant, call, histories, long_history, prose, user
from tests.support.openai_server import OpenAIServer

BUDGET = 3_000
SECRET = "sk-live-4711-TOPSECRET"


def look(path: str) -> str:
    return prose(len(path), 30)


class Kept:
    """One agent that records into a file, and the file."""

    def __init__(self, folder: Path, notes: Notes | None = None, **wanted: Any) -> None:
        self.file = folder / "record.db"
        self.notes = notes or Notes()
        self.talker = Talker(lambda messages, info: [("look", {"path": "a"})] if len(self.talker.sent) % 2 else "done")
        self.ours = compiler(self.notes, **{"budget": BUDGET, "store": self.file, **wanted})
        self.agent = Agent(self.talker.model, tools=[look], capabilities=[self.ours], instructions="Be brief.")
        self.messages: list[ModelMessage] = []

    async def turn(self, prompt: str = "and now?", history: Any = None, **given: Any) -> None:
        history = self.messages if history is None else history
        self.messages = (await run(self.agent, prompt, message_history=history, **given)).messages

    async def records(self) -> list[Record]:
        return (await self.ours.views())[::-1]


def unexplained(row: Record | Compile) -> list[str]:
    """Columns that are empty although the status does not say why."""
    names = [field.name for field in dataclasses.fields(row) if field.name not in ("id", "compile")]
    return [name for name in names if getattr(row, name) is None and not re.search(rf"\b{name}\b", row.status)]


async def test_every_request_is_a_row_whose_empty_columns_are_explained(tmp_path: Path) -> None:
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


async def test_a_compile_is_a_row_with_all_that_went_in_and_came_out(tmp_path: Path) -> None:
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


async def test_an_answer_that_is_json_is_kept_as_such_too(tmp_path: Path) -> None:
    kept = Kept(tmp_path, Notes('```json\n{"goal": "find out"}\n```'))
    await kept.turn(history=long_history(30))
    compile = (await kept.records())[0].compile
    assert compile is not None and compile.summary_json == {"goal": "find out"} and not unexplained(compile)


async def test_the_ledger_says_where_the_tokens_went_and_what_was_dropped(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    await kept.turn(history=long_history(30))
    record = (await kept.records())[0]
    tokens: Any = record.ledger["tokens"]
    assert sum(tokens.values()) == record.tokens_exact and min(tokens.values()) >= 0
    dropped: Any = record.ledger["dropped"]
    assert dropped and all(line["count"] and line["reason"] and line["what"] for line in dropped)
    assert json.loads(json.dumps(record.ledger)) == record.ledger


async def test_what_was_sent_can_be_read_back_message_by_message(tmp_path: Path) -> None:
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


async def test_the_transcript_is_what_the_host_has_with_the_last_answer(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    for number in range(4):
        await kept.turn(f"Question {number}", conversation_id="mine")
        assert await kept.ours.transcript("mine") == kept.messages
    dumped = ModelMessagesTypeAdapter.dump_json(kept.messages)
    other = Kept(tmp_path)
    assert ModelMessagesTypeAdapter.dump_json(await other.ours.transcript("mine")) == dumped
    assert await other.ours.transcript("nobody's") == []


async def test_views_can_be_had_of_one_conversation_or_of_all(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    await kept.turn(conversation_id="one")
    await kept.turn(history=[], conversation_id="two")
    assert [record.session_id for record in await kept.ours.views()] == ["two", "two", "one", "one"]
    assert [record.request_index for record in await kept.ours.views("one")] == [1, 0]


async def test_a_conversation_can_be_forgotten_and_goes_on_all_the_same(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    await kept.turn(history=long_history(30), conversation_id="mine")
    store = SQLiteStore(kept.file)
    assert await store.delete("mine") == 2
    assert await store.sessions() == [] and await store.verify() == ()
    await store.close()
    await kept.turn("Question again", conversation_id="mine")
    assert await kept.ours.transcript("mine") == kept.messages
    assert b"TOPSECRET" not in kept.file.read_bytes()


@pytest.mark.parametrize("keep", ["metadata", "off"])
async def test_content_that_nobody_wants_kept_is_not_kept(tmp_path: Path, keep: str) -> None:
    kept = Kept(tmp_path, record=keep)
    await kept.turn(f"my key is {SECRET}", history=long_history(30))
    await kept.turn("and again?")
    assert kept.notes.asked == 1, "cycle and answer live in memory"
    records = await kept.records()
    assert len(records) == (4 if keep == "metadata" else 0)
    for record in records:
        assert not unexplained(record) and record.raw_tip is None and record.view_tip is None and record.tokens_sent
        if record.compile is not None:
            assert not unexplained(record.compile) and record.compile.compiled_prompt is None
    assert await kept.ours.transcript("x") == []
    found = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert SECRET.encode() not in found and b"Question 1" not in found and b"find out why" not in found
    assert kept.ours.last_view is not None and kept.ours.last_view.record is not None


async def test_metadata_keeps_no_error_that_repeats_what_was_said(tmp_path: Path) -> None:
    def repeats(number: int) -> str:
        raise ValueError(f"could not digest {notes.prompts[-1]}")

    notes = Notes(repeats)
    kept = Kept(tmp_path, notes, record="metadata")
    await kept.turn(SECRET, history=[*long_history(30), user(SECRET)])
    record = (await kept.records())[0]
    assert record.error is not None and record.error.startswith("CompileError") and "sent: " in record.error
    assert record.compile is not None and record.compile.error and not unexplained(record.compile)
    assert SECRET.encode() not in kept.file.read_bytes()


ODD = {
    SECRET: [SECRET, {"deep": SECRET}],
    "kind": SECRET,
    "file": {"kind": "binary", "data": SECRET},
    "of": {"kind": "binary", "note": SECRET},
}


def redact(text: str) -> str:
    return text.replace(SECRET, "[gone]")


async def test_what_is_redacted_is_nowhere_in_the_file(tmp_path: Path) -> None:
    def repeats(number: int) -> str:
        if number > 1:
            raise ValueError(f"could not digest {SECRET}")
        return f"- **Specifics**: the key is {SECRET}"

    note = BinaryContent(f"the key is {SECRET}".encode(), media_type="text/plain")
    history = [
        user(f"my key is {SECRET}, never tell anybody", note),
        *long_history(30)[1:-1],
        user("look"),
        *[message for message in (_asked(), user(answer("s", ODD)))],
        *long_history(2)[3:-1],
    ]
    kept = Kept(tmp_path, Notes(repeats), redact=redact)
    await kept.turn(f"use {SECRET}", history=history, conversation_id="mine")
    await kept.turn(f"Question {prose(1, 400)} {SECRET}", history=[*history, *history], conversation_id="mine")
    store = SQLiteStore(kept.file)
    assert await store.verify() == ()
    rows = [json.dumps(row, default=str) async for row in store.export()]
    await store.close()
    assert rows and not [row for row in rows if SECRET in row]
    for path in tmp_path.iterdir():
        assert SECRET.encode() not in path.read_bytes()
    said = json.dumps(ModelMessagesTypeAdapter.dump_python(await kept.ours.transcript("mine"), mode="json"))
    assert "[gone]" in said and "never tell anybody" in said
    for record in await kept.records():
        assert not unexplained(record) and (record.compile is None or not unexplained(record.compile))
    assert SECRET in kept.talker.last.text, "the model is told everything"


def _asked() -> Any:
    return assistant(call("look", "s", path=SECRET, **{SECRET: "x"}))


async def test_a_redaction_that_fails_keeps_nothing_and_costs_no_run(tmp_path: Path) -> None:
    errors: list[Exception] = []

    def fail(text: str) -> str:
        raise ValueError("no")

    kept = Kept(tmp_path, redact=fail, on_error=errors.append)
    await kept.turn(SECRET)
    assert kept.talker.last.text and {type(error) for error in errors} == {ValueError}
    assert await kept.records() == []


@pytest.mark.slow
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(history=histories(future=False))
def test_whatever_redaction_leaves_can_be_read_back(history: list[ModelMessage]) -> None:
    reader = Reader(TokenCounter())
    for leave in (lambda text: "█", lambda text: "", lambda text: None):
        chain = Redactor(leave).chain(reader.read(history))  # pyright: ignore
        assert len(load_messages(chain.bodies)) == len(history)
        assert "src/" not in b"".join(chain.bodies).decode() and "".join(chain.texts).strip("█") == ""


async def test_spans_carry_figures_and_nothing_that_was_said(tmp_path: Path) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    kept = Kept(tmp_path)
    watched = Instrumentation(InstrumentationSettings(tracer_provider=provider, include_content=False))
    agent = Agent(kept.talker.model, tools=[look], capabilities=[watched, kept.ours])
    await run(agent, f"use {SECRET}", message_history=[user(SECRET), *long_history(30)[1:]])
    spans = exporter.get_finished_spans()
    ours = [span for span in spans if span.name == "context_compiler.view"]
    records = await kept.records()
    assert [(span.attributes or {})["context_compiler.status"] for span in ours] == ["compiled", "cycle"]
    for span, record in zip(ours, records, strict=True):
        facts = dict(span.attributes or {})
        assert facts["context_compiler.tokens_raw"] == record.tokens_raw
        assert facts["context_compiler.tokens_sent"] == record.tokens_sent
        assert facts["context_compiler.budget"] == BUDGET
    assert not [span for span in spans if SECRET in span.to_json() or "find out why" in span.to_json()]


async def test_a_compile_is_one_line_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="context_compiler")
    kept = Kept(tmp_path)
    await kept.turn(f"use {SECRET}", history=long_history(30))
    said = [record for record in caplog.records if record.name == "context_compiler"]
    lines = [record.getMessage() for record in said]
    assert len(lines) == 1 and said[0].levelno == logging.INFO
    assert re.fullmatch(r"\d+,\d{3} → (\d+,)?\d{3} tokens, \d+ turns kept, 1 compile, \d+\.\d s", lines[0]), lines[0]
    records = await kept.records()
    assert f"{records[0].tokens_raw:,} → {records[0].tokens_sent:,} tokens" in lines[0]


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
    assert records[-1].ratio == 1.0 and {record.budget for record in records[:-1]} <= set(range(3_990, 4_001))


@pytest.mark.parametrize(("keep", "why"), [("full", ""), ("off", "record is off")])
async def test_a_row_says_of_its_summary_only_what_is_so(tmp_path: Path, keep: str, why: str) -> None:
    views: list[View] = []
    ours = compiler(Notes(), budget=BUDGET, store=tmp_path / "a.db", record=keep, on_view=views.append)
    await run(Agent(Talker("ok").model, capabilities=[ours]), "and now?", message_history=long_history(40))
    record = views[0].record
    assert record is not None and record.status.startswith("compiled")
    assert (record.summary_id is None) == bool(why) and (f"summary_id: {why}" in record.status) == bool(why)
