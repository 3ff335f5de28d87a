"""Locks that give a run one owner at a time, across processes; the lock of a killed process is free."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from context_compiler.errors import PipelineError
from context_compiler.paths import made

GRACE_S = 0.05
"""Time for a former owner to remove its lock file."""


@contextmanager
def own_run(path: Path, run_id: str) -> Generator[None]:
    """Hold the lock of a run, a file at `path`, until the context ends.

    Raises:
        PipelineError: somebody else holds it, or the file cannot be made.
    """
    lock = FileLock(path, mode=0o600, thread_local=False)
    try:
        made(path.parent)
        lock.acquire(timeout=GRACE_S, poll_interval=GRACE_S / 5)
    except Timeout:
        raise PipelineError(f"run {run_id!r} is under way elsewhere: wait for it, or end it") from None
    except OSError as error:
        raise PipelineError(f"{path}: {error.strerror or error}; the run needs a folder it may write to") from error
    try:
        yield
    finally:
        with suppress(OSError):  # Windows refuses to remove an open file, and removes it on release
            path.unlink()
        lock.release()
