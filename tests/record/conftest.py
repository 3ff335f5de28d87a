"""All stores, so that every test of a promise runs on each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from context_compiler.record.store import MemoryStore, SQLiteStore, Store, open_place
from tests.record.entries import Talk, compiled, cycle, request, talk
from tests.support.postgres import Cluster

EMPTIED = """
DO $$ BEGIN
    IF to_regclass('context_compiler.views') IS NULL THEN
        RETURN;
    ELSIF pg_relation_size('context_compiler.contents') > 1000000 THEN
        TRUNCATE {named};
    ELSE  -- as fast as there are few rows, while each table that is truncated gets new files
        SET LOCAL session_replication_role = replica;
        {deletes}
    END IF;
    {numbers}
END $$
"""

STORES = ["memory", "sqlite", "postgres"]


@pytest.fixture(scope="session")
def record_database(postgres: Cluster) -> Iterator[str]:
    """The name of a database with the tables of a record, for one test after the other."""
    name = f"record_{uuid4().hex}"
    postgres.run(f"CREATE DATABASE {name} TEMPLATE template0")
    yield name
    postgres.run(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def record_url(postgres: Cluster, record_database: str) -> Iterator[str]:
    """The address of an empty record in PostgreSQL."""
    tables = pytest.importorskip("context_compiler.record.postgres_tables", exc_type=ImportError)
    yield postgres.url(record_database)
    named = [f"context_compiler.{table}" for table in tables.TABLES]
    postgres.execute(
        EMPTIED.format(
            named=", ".join(named),
            deletes="".join(f"DELETE FROM {table};" for table in named),
            numbers="".join(f"ALTER SEQUENCE context_compiler.{table}_numbers RESTART;" for table in tables.NUMBERED),
        ),
        record_database,
    )


def open_one(request: pytest.FixtureRequest, folder: Path) -> SQLiteStore | MemoryStore | Any:
    """The empty store that a test asks for by its parameter."""
    if request.param == "postgres":
        return open_place(request.getfixturevalue("record_url"))
    return MemoryStore() if request.param == "memory" else SQLiteStore(folder / "context.db")


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    made = open_one(request, tmp_path)
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
