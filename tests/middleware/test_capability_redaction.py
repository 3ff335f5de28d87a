"""What nobody wants kept is not kept: without content, redacted, and nowhere in spans or the log."""

from __future__ import annotations

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

from context_compiler import SQLiteStore, TokenCounter
from context_compiler.messages.bodies import load_messages
from context_compiler.messages.history import Reader
from context_compiler.record.redaction import Redactor
from tests.middleware.keeping import BUDGET, SECRET, Kept, look, unexplained
from tests.support.agents import Notes, run
from tests.support.histories import answer, assistant, call, histories, long_history, prose, user


@pytest.mark.parametrize("keep", ["metadata", "off"])
async def test_content_is_not_stored_if_the_record_excludes_it(tmp_path: Path, keep: str) -> None:
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
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert SECRET.encode() not in stored and b"Question 1" not in stored and b"find out why" not in stored
    assert kept.ours.last_view is not None and kept.ours.last_view.record is not None


async def test_metadata_contains_no_error_that_repeats_messages(tmp_path: Path) -> None:
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


async def test_redacted_text_is_nowhere_in_the_file(tmp_path: Path) -> None:
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


async def test_files_in_utf_8_are_redacted_whatever_their_type(tmp_path: Path) -> None:
    binary, latin = b"\x89PNG " + SECRET.encode(), "café".encode("latin-1")
    files = [
        BinaryContent(json.dumps({"key": SECRET}).encode(), media_type="application/json"),
        BinaryContent(binary, media_type="image/png"),
        BinaryContent(latin, media_type="text/plain"),
    ]
    kept = Kept(tmp_path, redact=redact)
    await kept.turn("look", history=[user("these files", *files), assistant("ok.")], conversation_id="mine")
    content: Any = (await kept.ours.transcript("mine"))[0].parts[0].content
    assert [file.data for file in content[1:]] == [b'{"key": "[gone]"}', binary, latin]


def _asked() -> Any:
    return assistant(call("look", "s", path=SECRET, **{SECRET: "x"}))


@pytest.mark.parametrize("kind", [ValueError, AttributeError, RuntimeError, OSError])
async def test_a_failing_redaction_stores_nothing_and_neither_a_run_nor_another_request_fails(
    tmp_path: Path, kind: type[Exception]
) -> None:
    errors: list[Exception] = []

    def fail(text: str) -> str:
        if SECRET in text:
            raise kind(text)
        return text

    kept = Kept(tmp_path, redact=fail, on_error=errors.append)
    for _ in range(3):
        await kept.turn(SECRET)
    assert kept.talker.last.text and {type(error.__cause__) for error in errors} == {kind}
    assert SECRET not in str(errors) and await kept.records() == []
    await kept.turn("And now?", history=[], conversation_id="other")
    assert {record.session_id for record in await kept.records()} == {"other"}


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(history=histories(future=False))
def test_messages_can_be_read_back_after_any_redaction(history: list[ModelMessage]) -> None:
    reader = Reader(TokenCounter())
    for leave in (lambda text: "█", lambda text: "", lambda text: None):
        chain = Redactor(leave).chain(reader.read(history))  # pyright: ignore
        assert len(load_messages(chain.bodies)) == len(history)
        assert "src/" not in b"".join(chain.bodies).decode() and "".join(chain.texts).strip("█") == ""


async def test_spans_contain_figures_and_no_messages(tmp_path: Path) -> None:
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
    assert re.fullmatch(
        r"\d+,\d{3} → (\d+,)?\d{3} tokens(?: \(\d+ recalled, \d+%\))?, \d+ turns kept, 1 compile, \d+\.\d s"
        r", price unknown",
        lines[0],
    ), lines[0]
    records = await kept.records()
    assert f"{records[0].tokens_raw:,} → {records[0].tokens_sent:,} tokens" in lines[0]
