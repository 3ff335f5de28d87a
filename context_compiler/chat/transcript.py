"""The markdown file of a session: append-only, on disk before it is on the screen, the same whatever was compiled.

What cannot be written stays in memory and is tried again with whatever comes next. One terminal writes at a time.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path

from filelock import FileLock, Timeout

from context_compiler.errors import SettingsError
from context_compiler.paths import made

POLL = 0.1
"""Seconds between two tries to get the lock."""

TAIL = 4096
"""Bytes of the end that are looked at."""


class Transcript:
    """The file of one session. Writing never raises: `fault` says what keeps something from being written."""

    def __init__(self, folder: str | Path, session: str, *, private: bool = False) -> None:
        """Touch nothing yet.

        Args:
            folder: Where the file is; it is made if need be.
            session: What the conversation is called.
            private: Whether what `folder` lies in is its owner's alone and ignores itself, where it has to be made.

        Raises:
            SettingsError: the session has no name.
        """
        self.session = session
        self.path = Path(folder) / f"{safe_id(session)}.md"
        self.fault: str | None = None
        self._private = private
        # Beside the transcript, because Windows would keep everybody from reading a file that is locked itself.
        self._lock = FileLock(self.path.with_name(f".{self.path.name}.lock"), mode=0o600, thread_local=False)
        self._file: int | None = None
        self._pending = b""
        self._line = ""
        self._answering = False

    @asynccontextmanager
    async def held(self, waiting: Callable[[], None]) -> AsyncGenerator[None]:
        """Be the only terminal that speaks in this session; `waiting` is called once if another one does."""
        told = False
        while not self.taken():
            if not told:
                waiting()
            told = True
            await asyncio.sleep(POLL)
        try:
            yield
        finally:
            self.let_go()

    def taken(self) -> bool:
        """Whether this terminal may speak now; it then may until it lets go.

        Where the file cannot be opened or locked, nobody is kept out: the conversation matters more.
        """
        if self._opened() is None or self._lock.is_locked:
            return True
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            return False
        except OSError as error:
            self.fault = f"{self.path}: cannot be locked: {error.strerror or error}"
        return True

    def let_go(self) -> None:
        """Let others speak."""
        if self._lock.is_locked:
            with suppress(OSError):  # Windows refuses to remove an open file, and removes it on release
                Path(self._lock.lock_file).unlink()
            self._lock.release()

    def _opened(self) -> int | None:
        """The file, made if need be, and opened anew where somebody has removed or replaced it."""
        try:
            if self._file is not None and os.fstat(self._file).st_ino == os.stat(self.path).st_ino:
                return self._file
        except OSError:
            pass
        self._leave()
        try:
            if self._private:
                made(self.path.parent.parent)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
        except OSError as error:
            self.fault = f"{self.path}: {error.strerror or error}"
        return self._file

    def state(self) -> tuple[int, int]:
        """Which file it is and how long; what was written by others shows in it. (0, 0) where there is none."""
        try:
            found = os.stat(self.path)
        except OSError:
            return 0, 0
        return found.st_ino, found.st_size

    def read(self, known: Sequence[Told] = ()) -> list[Told]:
        """Every turn, oldest first; empty where nothing can be read.

        Args:
            known: Turns that are known otherwise. Where there are as many, only the last is read word for word.
        """
        try:
            text = self.path.read_bytes().decode("utf-8", "replace")
        except OSError:
            return []
        if known and turns_in(text) == len(known):
            return [*known[:-1], *parsed(text[text.rfind(LAST) :])]
        return parsed(text)

    def mend(self) -> None:
        """Close what a killed process has left open, so that the next turn begins on a line of its own."""
        file = self._opened()
        if file is None:
            return
        try:
            size = os.fstat(file).st_size
            os.lseek(file, max(0, size - TAIL), os.SEEK_SET)
            tail = os.read(file, TAIL)
        except OSError as error:
            self.fault = f"{self.path}: {error.strerror or error}"
            return
        if not size:
            self._put(title(self.session) + CLOSE)
        elif not tail.endswith(CLOSE.encode()):
            last = tail.rpartition(b"\n")[2].decode("utf-8", "replace")
            self._put(guard(last) + CLOSE)

    def ask(self, text: str, when: datetime) -> None:
        """A turn begins: what the user says."""
        self._put(asked(text, when))

    def ask_on(self, text: str) -> None:
        """The rest of the last prompt, of which the beginning is there already."""
        self._put(guarded(text) + CLOSE)

    def answer(self, piece: str) -> None:
        """A piece of the answer, as it comes."""
        begin = "" if self._answering else f"{ASSISTANT}{CLOSE}"
        self._answering = True
        lines = piece.split("\n")
        for at, part in enumerate(lines):
            self._line = telling(self._line + part)
            if at < len(lines) - 1:
                lines[at] = part + guard(self._line)
                self._line = ""
        self._put(begin + "\n".join(lines))

    def end(self) -> None:
        """The answer is over, whole or not."""
        if self._answering:
            self._put(guard(self._line) + CLOSE)
        self._answering, self._line = False, ""
        if self._file is not None and not self._pending:
            try:
                os.fsync(self._file)
            except OSError as error:
                self.fault = f"{self.path}: {error.strerror or error}"

    def go_on(self, text: str, *, begun: bool) -> None:
        """The rest of the last answer, whose beginning is there already if it was `begun`."""
        self._answering = begun
        self.answer(text)
        self.end()

    def tell(self, turns: Iterable[Told], now: datetime) -> None:
        """Write turns that were had elsewhere, or while nothing could be written."""
        for turn in turns:
            self.ask(turn.user, turn.when or now)
            if turn.assistant:
                self.answer(turn.assistant)
            self.end()

    def _put(self, text: str) -> None:
        self._pending += text.encode("utf-8", "replace")
        file = self._file if self._file is not None else self._opened()
        if file is None:
            return
        try:
            while self._pending:
                self._pending = self._pending[os.write(file, self._pending) :]
            self.fault = None
        except OSError as error:
            self.fault = f"{self.path}: {error.strerror or error}"

    def close(self) -> None:
        """Let go of the file and of its lock."""
        self.let_go()
        self._leave()

    def _leave(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def transcripts(vault: str | Path | None, system: str | Path | None) -> Path:
    """The folder of transcripts, unless somebody says otherwise."""
    if vault is not None:
        return Path(vault, "AssistantMD", "Chat_Sessions")
    return Path(system or ".", "Chat_Sessions")


USER, ASSISTANT = "**User:**", "**Assistant:**"
LONGEST = 200
"""Characters by which a line is known to be no mark."""

_TIME = r"\*\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\*"
_MARK = re.compile(rf"^(?:\*\*(User|Assistant):\*\*|({_TIME}))$", re.MULTILINE)
_LIKE_A_MARK = re.compile(rf"^(?:\*\*(?:User|Assistant):\*\*|{_TIME})\\*$", re.MULTILINE)
_GUARDED = re.compile(rf"^((?:\*\*(?:User|Assistant):\*\*|{_TIME})\\*)\\$", re.MULTILINE)
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_NAME = 80
"""Characters of a session's name that its file keeps."""

CLOSE = "\n\n"
"""What ends every block."""

LAST = f"\n{USER}\n"
"""Where a turn begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One turn as the transcript tells it."""

    user: str
    assistant: str | None = None
    """None where nothing was answered."""
    when: datetime | None = None


def safe_id(session: str) -> str:
    """The name of a session as a file may have it: letters, digits, `_` and `-`; another name for another session.

    Raises:
        SettingsError: it is empty.
    """
    if not session.strip():
        raise SettingsError("session='': give a session a name")
    plain = _UNSAFE.sub("_", session)[:_NAME]
    if plain == session:
        return plain
    return f"{plain}-{blake2b(session.encode('utf-8', 'replace'), digest_size=4).hexdigest()}"


def stamp(when: datetime) -> str:
    """A time as it stands in a transcript."""
    return f"*{when.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC*"


def title(session: str) -> str:
    """The first line of a transcript."""
    name = "".join(char if char.isprintable() else " " for char in session)
    return f"# Chat Session: {' '.join(name.split())}"


def asked(text: str, when: datetime) -> str:
    """A turn up to its answer."""
    return f"{stamp(when)}{CLOSE}{USER}{CLOSE}{guarded(text)}{CLOSE}"


def guarded(text: str) -> str:
    """A text of which no line can be taken for a mark."""
    return _LIKE_A_MARK.sub(lambda found: f"{found[0]}\\", text)


def guard(line: str) -> str:
    """What a whole line of a message needs at its end in order not to be taken for a mark."""
    return "\\" if _LIKE_A_MARK.fullmatch(line) else ""


def telling(line: str) -> str:
    """No more of a line that is still coming than tells whether it is like a mark."""
    return line if len(line) <= LONGEST or _LIKE_A_MARK.fullmatch(line) else f"{line[:LONGEST]} "


def turns_in(text: str) -> int:
    """How many turns a transcript tells of."""
    return text.count(LAST)


def parsed(text: str) -> list[Told]:
    """The turns of a transcript; a block that is still open counts as far as it goes."""
    marks = list(_MARK.finditer(text))
    turns: list[Told] = []
    when: datetime | None = None
    for at, mark in enumerate(marks):
        if mark[2]:
            when = _moment(mark[2])
            continue
        stop = marks[at + 1].start() if at + 1 < len(marks) else len(text)
        said = _unguarded(text[min(mark.end() + 2, stop) : stop].removesuffix("\n\n"))
        if mark[1] == "User":
            turns.append(Told(user=said, when=when))
        elif turns:
            before = turns[-1]
            turns[-1] = Told(user=before.user, assistant=(before.assistant or "") + said, when=before.when)
    return turns


def _moment(text: str) -> datetime | None:
    try:
        return datetime.strptime(text, "*%Y-%m-%d %H:%M:%S UTC*").replace(tzinfo=UTC)
    except ValueError:
        return None


def _unguarded(text: str) -> str:
    return _GUARDED.sub(r"\1", text)
