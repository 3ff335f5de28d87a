"""The file: made at first use, found again, left alone by readers, and never in the way of a program's end."""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from context_compiler.errors import StoreError
from context_compiler.record.schema import VERSION, create, version_of
from context_compiler.record.store import MemoryStore, SQLiteStore, open_store
from tests.record.entries import Talk, ask, cycle, request, talk
from tests.support.agents import compiler, run

TABLES = {
    "contents": ["hash", "body"],
    "nodes": ["id", "parent", "content", "position", "instructions"],
    "sessions": ["id", "session_id", "vault_name", "raw_tip", "created_at", "owner", "seal"],
    "copies": ["session", "node", "content"],
    "cycles": ["session", "raw_tip", "config", "state", "seal"],
    "messages_fts": ["text", "node"],
}


async def test_nothing_is_created_before_the_first_use(tmp_path: Path):
    store = SQLiteStore(tmp_path / "system" / "context.db")
    await store.close()
    assert list(tmp_path.iterdir()) == []


async def test_the_first_use_makes_a_private_file_in_an_ignored_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    store = SQLiteStore(tmp_path / "system" / "context.db")
    with caplog.at_level(logging.INFO, "context_compiler.store"):
        await store.save(request(talk(1)))
        await store.close()
        await store.save(request(talk(2)))
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "system" / "context.db-wal").stat().st_mode) == 0o600
    assert (tmp_path / "system" / ".gitignore").read_text() == "*\n"
    assert [record.getMessage() for record in caplog.records] == [f"recording requests in {store.path}"]
    await store.close()


async def test_a_folder_that_was_there_is_left_as_it_is(tmp_path: Path):
    store = SQLiteStore(tmp_path / "context.db")
    await store.sessions()
    await store.close()
    assert [path.name for path in tmp_path.iterdir()] == ["context.db"]


async def test_the_file_uses_write_ahead_logging_and_has_the_documented_tables(file: SQLiteStore):
    await file.sessions()
    assert ask(file.path, "PRAGMA journal_mode") == [("wal",)]
    assert ask(file.path, "PRAGMA user_version") == [(VERSION,)]
    for table, columns in TABLES.items():
        assert [row[1] for row in ask(file.path, f"PRAGMA table_info({table})")] == columns


async def test_bodies_are_kept_once_and_compressed_when_that_pays(file: SQLiteStore):
    text = "the same words " * 100
    await file.save(request(Talk(text), Talk("a summary", text), cycle=cycle(Talk(text).tip, "short")))
    kept = ask(file.path, "SELECT typeof(body), length(body) FROM contents")
    assert ("text", len("short")) in kept
    assert all(size < 400 for kind, size in kept if kind == "blob" and isinstance(size, int))
    assert {kind for kind, _ in kept} == {"text", "blob"}


async def test_raw_messages_are_searchable_and_views_are_not(file: SQLiteStore):
    raw = talk(2, about="sailing")
    await file.save(request(raw, Talk("a summary of sailing")))
    found = ask(file.path, "SELECT node FROM messages_fts WHERE messages_fts MATCH 'sailing' ORDER BY rowid")
    assert [node for (node,) in found] == list(raw.ids)


async def test_a_message_without_text_is_not_indexed(file: SQLiteStore):
    await file.save(request(Talk("", " \n", "words")))
    assert ask(file.path, "SELECT text FROM messages_fts") == [("words",)]


async def test_the_other_name_is_used_where_only_that_exists(tmp_path: Path):
    former = SQLiteStore(tmp_path / "context_compiler.db")
    await former.save(request(talk(1)))
    await former.close()
    store = SQLiteStore(tmp_path / "context.db")
    assert len(await store.views()) == 1
    await store.close()
    assert not (tmp_path / "context.db").exists()


async def test_the_usual_name_wins_where_both_exist(tmp_path: Path):
    for name in ("context.db", "context_compiler.db"):
        store = SQLiteStore(tmp_path / name)
        await store.save(request(talk(1), session_id=name))
        await store.close()
    store = SQLiteStore(tmp_path / "context.db")
    assert [info.session_id for info in await store.sessions()] == ["context.db"]
    await store.close()


async def test_a_reader_sees_new_data_and_changes_nothing(file: SQLiteStore):
    await file.save(request(talk(2)))
    reader = SQLiteStore(file.path, read_only=True)
    assert len(await reader.views()) == 1
    await file.save(request(talk(3)))
    assert len(await reader.views()) == 2
    assert await reader.verify() == ()
    assert len([row async for row in reader.export()]) > 0
    with pytest.raises(StoreError, match="open it without read_only"):
        await reader.save(request(talk(4)))
    await reader.close()
    assert len(await file.views()) == 2


async def test_a_reader_creates_nothing(tmp_path: Path):
    reader = SQLiteStore(tmp_path / "system" / "context.db", read_only=True)
    with pytest.raises(StoreError, match=r"context\.db: there is no record here"):
        await reader.sessions()
    assert list(tmp_path.iterdir()) == []


async def test_a_reader_refuses_an_empty_file(tmp_path: Path):
    (tmp_path / "context.db").touch()
    with pytest.raises(StoreError, match="open it once for writing"):
        await SQLiteStore(tmp_path / "context.db", read_only=True).sessions()


async def test_an_empty_file_becomes_a_record(tmp_path: Path):
    (tmp_path / "context.db").touch()
    store = SQLiteStore(tmp_path / "context.db")
    await store.save(request(talk(1)))
    await store.close()
    assert ask(store.path, "PRAGMA user_version") == [(VERSION,)]


async def test_creating_the_tables_again_changes_nothing(file: SQLiteStore):
    await file.save(request(talk(1)))
    await file.close()
    db = sqlite3.connect(file.path, isolation_level=None)
    before = list(db.iterdump())
    create(db)
    assert list(db.iterdump()) == before
    db.close()


def test_a_file_that_another_process_is_creating_is_not_refused_as_foreign(tmp_path: Path):
    class Interrupted(sqlite3.Connection):
        """Between two of its questions another connection makes the tables."""

        def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
            answer = super().execute(sql, *arguments)
            if "application_id" in sql:
                create(other)
            return answer

    other = sqlite3.connect(tmp_path / "context.db", isolation_level=None)
    other.execute("PRAGMA journal_mode = WAL")
    db = sqlite3.connect(tmp_path / "context.db", isolation_level=None, factory=Interrupted)
    assert version_of(db) == 0
    assert version_of(db) == VERSION
    db.close()
    other.close()


async def test_a_newer_schema_is_refused(file: SQLiteStore):
    await file.sessions()
    await file.close()
    ask(file.path, "PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="another version of context-compiler .schema 99"):
        await file.save(request(talk(1)))


async def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path: Path):
    path = tmp_path / "context.db"
    ask(path, "CREATE TABLE sessions (id)")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="belongs to another program"):
        await SQLiteStore(path).save(request(talk(1)))
    assert path.read_bytes() == before


def test_a_relative_path_means_the_folder_it_was_given_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    store = SQLiteStore()
    monkeypatch.chdir(tmp_path)
    assert store.path == tmp_path / "here" / "system" / "context.db"
    assert SQLiteStore("~/context.db").path == Path(os.path.expanduser("~/context.db"))


def test_a_store_can_be_opened_from_each_kind_of_argument(tmp_path: Path):
    store = MemoryStore()
    assert open_store(store) is store
    assert isinstance(open_store(None), MemoryStore)
    for path in (tmp_path / "x.db", str(tmp_path / "x.db")):
        opened = open_store(path)
        assert isinstance(opened, SQLiteStore)
        assert opened.path == tmp_path / "x.db"
    with pytest.raises(StoreError, match="MemoryStore"):
        open_store(":memory:")


async def test_an_older_record_is_refused_with_its_path_and_a_remedy_and_the_run_goes_on(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "context.db")
    await store.save(request(talk(1)))
    await store.close()
    with closing(sqlite3.connect(store.path)) as db:
        db.execute(f"PRAGMA user_version = {VERSION - 1}")
    for read_only in (False, True):
        with pytest.raises(StoreError, match=r"context\.db: .* written by another version .* move it away"):
            await SQLiteStore(store.path, read_only=read_only).sessions()
    errors: list[Exception] = []
    ours = compiler(budget=2_000, store=store.path, on_error=errors.append)
    done = await run(Agent(TestModel(), capabilities=[ours]), "hello")
    assert done.output and "move it away" in str(errors[0])
    await ours.aclose()
