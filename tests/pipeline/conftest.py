"""Places that runs are kept in; every test of them is a test of all three."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from context_compiler.pipeline import FileRuns, MemoryRuns, RunStore, SQLiteRuns

Open = Callable[[], RunStore]


@pytest.fixture(params=["memory", "files", "sqlite"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens the same store again and again; in memory it is one and the same object."""
    memory = MemoryRuns()
    stores: dict[str, Open] = {
        "memory": lambda: memory,
        "files": lambda: FileRuns(tmp_path / "runs"),
        "sqlite": lambda: SQLiteRuns(tmp_path / "runs.db"),
    }
    return stores[request.param]
