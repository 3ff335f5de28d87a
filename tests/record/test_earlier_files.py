"""A file of schema 3, as the version before wrote it, is read, verified, upgraded and carried on.

`schema_3.db.gz` has three conversations: `pirate`, whose six turns end with a compile, and `lawyer` and `failed`, which
began alike under other instructions and with another outcome of a tool.
"""

from __future__ import annotations

import gzip
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from context_compiler import ContextCompiler
from context_compiler.messages.history import load_messages
from context_compiler.record import rows, schema
from context_compiler.record.maintenance import inexact_requests
from context_compiler.record.rows import NOT_RECORDED
from context_compiler.record.schema import MIGRATIONS
from context_compiler.record.sessions import claim_compile
from context_compiler.record.store import SQLiteStore
from tests.record.entries import ask, request, talk

OLD = Path(__file__).with_name("schema_3.db.gz")


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    path = tmp_path / "context.db"
    path.write_bytes(gzip.decompress(OLD.read_bytes()))
    return path


async def test_a_reader_verifies_an_earlier_file_without_changing_it(earlier: Path):
    before = earlier.read_bytes()
    store = SQLiteStore(earlier, read_only=True)
    assert await store.verify() == ()
    assert await store.perform(inexact_requests) == len(await store.views()) == 8
    assert all(record.status.endswith(NOT_RECORDED) for record in await store.views())
    await store.close()
    assert earlier.read_bytes() == before and ask(earlier, "PRAGMA user_version") == [(3,)]


async def test_an_earlier_file_is_upgraded_when_written(earlier: Path):
    store = SQLiteStore(earlier)
    assert await store.verify() == ()
    assert await store.layers("pirate") == ('{"version": 1}', 1)
    (made,) = await store.summaries("pirate")
    await store.close()
    assert ask(earlier, "PRAGMA user_version") == [(len(MIGRATIONS),)]
    columns = "compiled_prompt, raw_output, summary, json_extract(input_payload, '$.prompts')"
    assert made.summary == "They spoke of ships and harbours." and made.compiled_prompt
    assert ask(earlier, f"SELECT {columns} FROM context_summaries") == [
        (made.compiled_prompt, made.raw_output, made.summary, 1)
    ]


@pytest.mark.parametrize("lacks", [("claims",), ("claims", "numbers")])
async def test_a_file_of_the_previous_version_is_read_and_upgraded(tmp_path: Path, lacks: tuple[str, ...]):
    path = tmp_path / "context.db"
    store = SQLiteStore(path)
    await store.save(request(talk(2)))
    await store.close()
    with sqlite3.connect(path, isolation_level=None) as db:
        for table in lacks:
            db.execute(f"DROP TABLE {table}")
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS) - len(lacks)}")
    db.close()
    reader = SQLiteStore(path, read_only=True)
    assert await reader.verify() == () and len(await reader.views()) == 1
    await reader.close()
    assert ask(path, "PRAGMA user_version") == [(len(MIGRATIONS) - len(lacks),)]
    assert (
        await store.perform(lambda db: claim_compile(db, "k", "one", 60))
        and await store.delete("s") == 1
        and await store.verify() == ()
    )
    assert ask(path, "SELECT highest FROM numbers WHERE name = 'views'") == [(1,)]
    await store.close()


TAMPERING = {
    "a request": "UPDATE views SET tokens_sent = tokens_sent + 1 WHERE id = 2",
    "a compile": "UPDATE context_summaries SET budget_used = 0",
    "the text of a compile": "UPDATE contents SET body = 'other' WHERE hash = (SELECT summary FROM context_summaries)",
    "a missing text": "DELETE FROM contents WHERE hash = (SELECT compiled_prompt FROM context_summaries)",
}


@pytest.mark.parametrize("statement", TAMPERING.values(), ids=TAMPERING)
async def test_an_upgrade_does_not_hide_earlier_changes(earlier: Path, statement: str):
    with sqlite3.connect(earlier) as db:
        assert db.execute(statement).rowcount == 1
    db.close()
    store = SQLiteStore(earlier)
    assert await store.verify() != ()
    await store.close()


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return ModelResponse(parts=[TextPart("and that was that")])


def from_texts(messages: list[ModelMessage]) -> list[ModelMessage]:
    """A history as an application builds it that keeps only texts."""
    texts: list[Any] = [[part.content for part in message.parts] for message in messages]  # pyright: ignore
    return [
        ModelRequest(parts=[UserPromptPart(text) for text in found])
        if isinstance(message, ModelRequest)
        else ModelResponse(parts=[TextPart(text) for text in found])
        for message, found in zip(messages, texts, strict=True)
    ]


@pytest.mark.parametrize("rebuilt", [False, True])
async def test_a_conversation_of_an_earlier_file_continues_without_a_new_compile(earlier: Path, rebuilt: bool):
    asked: list[int] = []

    def summary(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append(1)
        return ModelResponse(parts=[TextPart("notes")])

    store = SQLiteStore(earlier)
    history = load_messages(await store.transcript("pirate"))
    history = from_texts(history) if rebuilt else history
    compiler = ContextCompiler(budget=1_200, model=FunctionModel(summary, model_name="s"), store=store, system=None)
    agent = Agent(FunctionModel(answer, model_name="m"), instructions="Be a pirate.", capabilities=[compiler])
    await agent.run("and then?", message_history=history, conversation_id="pirate")
    (record, *_) = await store.views("pirate")
    assert asked == [] and record.status.startswith("cycle") and NOT_RECORDED not in record.status
    assert record.view_tip is not None
    assert compiler.last_view is not None
    assert load_messages(await store.chain(record.view_tip)) == compiler.last_view.messages
    assert load_messages(await store.transcript("pirate"))[: len(history)] == history
    assert await store.verify() == ()
    await store.close()


def test_migrations_name_the_columns_of_their_own_schema():
    """A column that a later migration adds would be missing in a new file when the earlier ones run."""
    live = {id(columns) for columns in (*rows.SEALED.values(), rows.TEXTS)}
    assert not [name for name, value in vars(schema).items() if value is rows or id(value) in live]
