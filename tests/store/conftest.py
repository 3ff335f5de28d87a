"""Both stores, so that every test of a promise runs on each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from context_compiler.store import MemoryStore, SQLiteStore, Store


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
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
