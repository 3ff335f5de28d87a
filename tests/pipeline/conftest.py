"""Places that runs are kept in; every test of them is a test of all four."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from context_compiler.pipeline import FileRuns, MemoryRuns, RunConfig, RunStore, SQLiteRuns, SQLRuns
from context_compiler.pipeline import open_runs as open_place

Open = Callable[[], RunStore]
OpenSQL = Callable[[], SQLRuns]


def opened(address: str) -> SQLRuns:
    """Runs at an address of PostgreSQL."""
    store = open_place(RunConfig(runs=address))
    assert isinstance(store, SQLRuns)
    return store


@pytest.fixture(params=["memory", "files", "sqlite", "postgres"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens the same store again and again; in memory it is one and the same object."""
    if request.param == "postgres":
        address: str = request.getfixturevalue("postgres_url")
        return lambda: opened(address)
    memory = MemoryRuns()
    stores: dict[str, Open] = {
        "memory": lambda: memory,
        "files": lambda: FileRuns(tmp_path / "runs"),
        "sqlite": lambda: SQLiteRuns(tmp_path / "runs.db"),
    }
    return stores[request.param]


@pytest.fixture(params=["sqlite", "postgres"])
def open_runs(request: pytest.FixtureRequest, tmp_path: Path) -> OpenSQL:
    """Opens the same database again and again, as processes do."""
    if request.param == "postgres":
        address: str = request.getfixturevalue("postgres_url")
        return lambda: opened(address)
    return lambda: SQLiteRuns(tmp_path / "runs.db")
