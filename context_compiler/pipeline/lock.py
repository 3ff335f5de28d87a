"""A run has one owner at a time, also across processes; one that is killed owns nothing any more."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from context_compiler.errors import PipelineError
from context_compiler.paths import made

_locks: Any = import_module("fcntl") if find_spec("fcntl") else None
"""None where the system has no such locks: there, nothing keeps two processes apart."""


@contextmanager
def owned(path: Path, run_id: str) -> Generator[None]:
    """Hold the lock of a run, a file at `path`, until the context ends.

    Raises:
        PipelineError: somebody else holds it, or the file cannot be made.
    """
    handle = _taken(path, run_id)
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            path.unlink()
        os.close(handle)


def _taken(path: Path, run_id: str) -> int:
    while True:
        try:
            made(path.parent)
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise PipelineError(f"{path}: {error.strerror or error}; the run needs a folder it may write to") from error
        try:
            if _locks is not None:
                _locks.flock(handle, _locks.LOCK_EX | _locks.LOCK_NB)
        except OSError:
            os.close(handle)
            raise PipelineError(f"run {run_id!r} is under way elsewhere: wait for it, or end it") from None
        with suppress(FileNotFoundError):
            if os.stat(path).st_ino == os.fstat(handle).st_ino:
                return handle
        os.close(handle)  # the former owner removed the file between our opening and locking it
