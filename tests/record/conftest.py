"""All stores, so that every test of a promise runs on each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from context_compiler.record.postgres import PostgresStore
from context_compiler.record.store import MemoryStore, SQLiteStore, Store
from tests.record.entries import Talk, compiled, cycle, request, talk


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    if request.param == "postgres":
        made: Store = PostgresStore(request.getfixturevalue("postgres_url"))
    else:
        made = MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "context.db")
    yield made
    assert await made.verify() == ()
    await made.close()


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    """A store in a file; not one that a test may damage."""
    made = SQLiteStore(tmp_path / "context.db")
    yield made
    await made.close()


@pytest.fixture
async def full(file: SQLiteStore) -> AsyncIterator[SQLiteStore]:
    """A closed record with a row in every table."""
    raw = talk(4)
    made = compiled(raw.ids[2], cache_key="k")
    await file.save(request(raw, Talk("a summary", "and", "then"), compile=made, cycle=cycle(raw.ids[2], '{"a": 1}')))
    await file.save(request(raw.then("more", "words"), run_id=None))
    assert await file.verify() == ()
    await file.close()
    yield file
