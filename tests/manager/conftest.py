"""Both memories, so that every test of a promise runs on each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from context_compiler.manager import SQLiteMemory, VolatileMemory

AnyMemory = VolatileMemory | SQLiteMemory


@pytest.fixture(params=["volatile", "sqlite"])
async def memory(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AnyMemory]:
    made: AnyMemory
    if request.param == "volatile":
        made = VolatileMemory()
    else:
        made = SQLiteMemory("s", tmp_path / "context.db")
    yield made
    assert await made.store.verify() == ()
    await made.close()
