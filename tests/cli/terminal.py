"""A terminal with nobody before it: a program behind a pseudo-terminal, typed at and looked at."""

from __future__ import annotations

import os
import pty
import re
import select
import struct
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path

from tests.support.warm import ROOT, Child

ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-Z0-9]|[=>78])")
WHERE = "\x1b[6n"
"""The question where the cursor is."""

WAIT = 120.0
"""Seconds for anything to appear."""


class Terminal:
    """One program and what it has written."""

    def __init__(self, process: Child, file: int) -> None:
        self.process, self._file = process, file
        self.raw = ""
        self._seen = 0

    @property
    def text(self) -> str:
        """All that was written, without what only moves or colours."""
        return ANSI.sub("", self.raw).replace("\r", "")

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._file, keys.encode())

    def wait_for(self, words: str, *, seconds: float = WAIT) -> str:
        """Wait until words appear after those that were waited for last; what was written until then."""
        end = time.monotonic() + seconds
        while words not in self.text[self._seen :]:
            assert time.monotonic() < end, f"no {words!r} in:\n{self.text[self._seen :][-500:]}"
            self._read(0.1)
        position = self.text.index(words, self._seen) + len(words)
        said, self._seen = self.text[self._seen : position], position
        return said

    def _read(self, seconds: float) -> bool:
        """Read what there is now, or soon; False if there is nothing."""
        if not select.select([self._file], [], [], seconds)[0]:
            return False
        try:
            said = os.read(self._file, 65_536).decode("utf-8", "replace")
        except OSError:
            return False
        self.raw += said
        for _ in range(said.count(WHERE)):
            self.type("\x1b[1;1R")
        return bool(said)

    def wait_until(self, happened: Callable[[], bool], *, seconds: float = WAIT) -> None:
        """Wait until something has happened that is not to be seen on the screen."""
        end = time.monotonic() + seconds
        while not happened():
            assert time.monotonic() < end, f"nothing happened; last on the screen:\n{self.text[-500:]}"
            self._read(0.05)

    def foreground(self) -> int:
        """The process group that the keys go to."""
        return os.tcgetpgrp(self._file)

    def interrupt(self) -> None:
        """Ctrl-C."""
        os.write(self._file, b"\x03")

    def kill(self) -> None:
        """End the program at once."""
        self.process.kill()
        self.process.wait(60)

    def ended(self) -> int:
        """Wait for the end; the exit code."""
        end = time.monotonic() + WAIT
        while (code := self.process.poll()) is None:
            assert time.monotonic() < end, f"still there:\n{self.text[-500:]}"
            self._read(0.1)
        while self._read(0):
            pass
        return code


@contextmanager
def terminal(
    folder: Path, *args: str, columns: int = 100, lines: int = 40, kind: str = "xterm-256color"
) -> Iterator[Terminal]:
    """The command line on a terminal of its own."""
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("CONTEXT_COMPILER_")}
    env = {**inherited, "TERM": kind, "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"}
    process = Child(args, cwd=folder, env=env, terminal=slave)
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(60)
        os.close(master)
