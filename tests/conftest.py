"""Bounded property tests, the folder of real transcripts, a loop for `run_sync`: what all tests share."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from context_compiler.middleware import store_access
from context_compiler.middleware.windows import WINDOWS
from context_compiler.record.store import SQLiteStore, open_place, open_store
from tests.support.slow import function_name, only_slow, served, slow_names

QUICK = "not slow"
"""The marks of a quick run."""

ROOM = 2 << 30
"""Bytes that must be free in memory for the temporary folders of a run."""


def _folder_in_memory() -> str:
    """Where temporary folders are made: in memory, where there is room; a disk makes databases wait for each commit."""
    try:
        there = os.statvfs("/dev/shm")
    except (AttributeError, OSError):
        return tempfile.gettempdir()
    roomy = there.f_bavail * there.f_frsize >= ROOM and not there.f_flag & (os.ST_NOEXEC | os.ST_RDONLY)
    return "/dev/shm" if roomy else tempfile.gettempdir()


pytest_plugins = ["tests.support.postgres"]

sys.dont_write_bytecode = False  # compiling all tests anew takes longer than a third of the quick ones
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", _folder_in_memory())
gc.disable()  # until all is collected: nothing of it is garbage

SLOW_DATA = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile("quick", max_examples=12, derandomize=True, deadline=None, suppress_health_check=SLOW_DATA)
settings.register_profile("thorough", max_examples=1_000, deadline=None, suppress_health_check=SLOW_DATA)
settings.load_profile("quick")  # `pytest --hypothesis-profile=thorough` for the other


def pytest_configure(config: pytest.Config) -> None:
    """Where pytest-xdist is, give each worker a half in order, from which the other takes when it is done."""
    if getattr(config.option, "dist", "no") == "load":
        config.option.dist = "worksteal"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files out of a quick run that have no test for it: importing what they test takes as long as many tests."""
    a_quick_run = config.option.markexpr == QUICK and collection_path.match("test_*.py")
    return True if a_quick_run and only_slow(collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, name: str) -> list[pytest.Item] | None:
    """Make no cases of a slow function in a quick run: making them takes as long as running them."""
    a_quick_run = collector.config.option.markexpr == QUICK and name.startswith("test_")
    return [] if a_quick_run and function_name(f"{collector.nodeid}::{name}") in slow_names() else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what was measured to be slow."""
    slow = slow_names()
    for item in items:
        if served(item) or function_name(item.nodeid) in slow:
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Leave what was collected out of later garbage collections."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # the garbage of a file is collected at its end
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Collect the garbage of a file at its end, and leave what remains out of later collections."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Real transcripts, which are not part of this repository; the test is skipped without them."""
    path = os.environ.get("CONTEXT_COMPILER_DATA")
    folder = Path(path) if path else Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real transcripts at {folder}; CONTEXT_COMPILER_DATA may name their folder")
    return folder


@pytest.fixture
def impatient(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that wait for another process that is writing, but not as long as they do by default; in milliseconds."""
    patience = getattr(request, "param", 100)
    for function in (SQLiteStore.__init__, open_place, open_store):
        monkeypatch.setitem(function.__kwdefaults__, "busy_timeout_ms", patience)
    monkeypatch.setattr(store_access, "BUSY_TIMEOUT_MS", patience)


@pytest.fixture
def sync_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """The loop that `run_sync` finds in a test that is not async; the host would leave its own one open."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield loop
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.run_until_complete(loop.shutdown_default_executor())
    asyncio.set_event_loop(None)
    loop.close()


@pytest.fixture(autouse=True)
def unknown_windows() -> None:
    """No context window of an earlier test is known; a later server may have the same port."""
    WINDOWS.forget()
