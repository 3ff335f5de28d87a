"""The markdown transcript of a session: append-only, written before text is shown, identical in both modes.

    # Chat Session: name

    *2026-11-21 15:43:40 UTC*

    **User:**

    The prompt.

    **Assistant:**

    The answer.

A message line that looks exactly like one of these markers gets a backslash at its end. Text that cannot be written
stays in memory and is retried with the next write. Only one terminal writes at a time.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path

from filelock import FileLock, Timeout

from context_compiler.errors import SettingsError
from context_compiler.paths import OWNER, decode_text, encoding_of, make_private, owner_folder, unify_lines, vault_of

USER, ASSISTANT = "**User:**", "**Assistant:**"

HEADING = "# Chat Session:"

BLOCK_END = "\n\n"

TURN_START = f"\n{USER}\n"

POLL = 0.1
"""Seconds between attempts to get the lock."""

TAIL = 4096
"""Bytes at the end of the file that `repair` reads."""

MAX_MARKER = 200
"""Maximum characters kept of an unfinished line that cannot be a marker."""

_TIME = r"\*\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\*"
_MARKER = re.compile(rf"^(?:\*\*(User|Assistant):\*\*|({_TIME}))$", re.MULTILINE)
_LIKE_A_MARKER = re.compile(rf"^(?:\*\*(?:User|Assistant):\*\*|{_TIME})\\*$", re.MULTILINE)
_ESCAPED = re.compile(rf"^((?:\*\*(?:User|Assistant):\*\*|{_TIME})\\*)\\$", re.MULTILINE)
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_NAME = 80
"""Maximum characters of the session's name in its file name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptTurn:
    """One turn of a transcript."""

    user: str
    assistant: str | None = None
    """Answer; None if there was none."""
    when: datetime | None = None
    is_ended: bool = True
    """False if the file stops within the last block of the turn."""


class Transcript:
    """The transcript file of one session. Writing never raises; `fault` describes the last failure."""

    def __init__(self, folder: str | Path, session: str, *, private: bool = False) -> None:
        """Prepare the transcript, without touching the disk yet.

        Args:
            folder: Folder of the file; created on the first write.
            session: Name of the conversation.
            private: If the parent of `folder` has to be created, make it readable only by its owner and ignored by git.

        Raises:
            SettingsError: the session has no name.
        """
        self.session = session
        self.path = Path(folder) / f"{safe_id(session)}.md"
        self.fault: str | None = None
        self.foreign = False
        """True if the file, as last read, has text but neither a turn nor the title of a transcript."""
        self._private = private
        # A separate file, because on Windows nobody can read a file that is locked.
        self._lock = FileLock(self.path.with_name(f".{self.path.name}.lock"), mode=0o600, thread_local=False)
        self._file: int | None = None
        self._pending = b""
        self._line = ""
        self._answering = False
        self._after_return = False
        self._encoding = "utf-8"

    @asynccontextmanager
    async def hold(self, on_wait: Callable[[], None]) -> AsyncGenerator[None]:
        """Hold the lock of this session; call `on_wait` once if another terminal has it."""
        waiting = False
        while not self.acquire():
            if not waiting:
                on_wait()
            waiting = True
            await asyncio.sleep(POLL)
        try:
            yield
        finally:
            self.release()

    @property
    def is_free(self) -> bool:
        """True unless a terminal has the lock, or was killed while it had it."""
        return not Path(self._lock.lock_file).exists()

    def acquire(self) -> bool:
        """Take the lock without waiting; False if another terminal has it.

        Also True if the file cannot be opened or locked, because that must not stop the conversation.
        """
        if self._open() is None or self._lock.is_locked:
            return True
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            return False
        except OSError as error:
            self.fault = f"{self.path}: cannot be locked: {error.strerror or error}"
        return True

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._lock.is_locked:
            with suppress(OSError):  # Windows cannot remove an open file; there it is removed on release
                Path(self._lock.lock_file).unlink()
            self._lock.release()

    def _open(self) -> int | None:
        """Return the open file, created if missing and reopened if it was removed or replaced; None if that fails."""
        with suppress(OSError):
            if self._file is not None and os.fstat(self._file).st_ino == os.stat(self.path).st_ino:
                return self._file
        self._close_file()
        try:
            if self._private:
                make_private(self.path.parent.parent)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
            self._encoding = encoding_of(os.read(self._file, 4))  # a tool may have saved the file as UTF-16
        except OSError as error:
            self.fault = f"{self.path}: {error.strerror or error}"
        return self._file

    def state(self) -> tuple[int, int]:
        """Return inode and size of the file, which change when others write; (0, 0) if there is no file."""
        try:
            status = os.stat(self.path)
        except OSError:
            return 0, 0
        return status.st_ino, status.st_size

    def read(self, recorded: Sequence[TranscriptTurn] = ()) -> list[TranscriptTurn]:
        """Read every turn, oldest first; empty if the file cannot be read.

        Args:
            recorded: Turns from the record. If the file has as many turns with the same prompts, only its last turn is
                parsed, and the other answers are those of the record.
        """
        try:
            text = decode_text(self.path.read_bytes(), "replace")
        except OSError:
            return []
        self.foreign = bool(text.strip()) and TURN_START not in text and not text.startswith(HEADING)
        if recorded and text.count(TURN_START) == len(recorded) and _has_prompts(text, recorded[:-1]):
            return [*recorded[:-1], *parse(text[text.rfind(TURN_START) :])]
        return parse(text)

    def repair(self) -> None:
        """Write the title of a new file, or end the block that a killed process left open."""
        file = self._open()
        if file is None:
            return
        try:
            size = os.fstat(file).st_size
            os.lseek(file, max(0, size - TAIL), os.SEEK_SET)
            tail = unify_lines(os.read(file, TAIL).decode(self._encoding, "replace"))
        except OSError as error:
            self.fault = f"{self.path}: {error.strerror or error}"
            return
        if not size:
            name = "".join(char if char.isprintable() else " " for char in self.session)
            self._write(f"{HEADING} {' '.join(name.split())}{BLOCK_END}")
        elif not tail.endswith(BLOCK_END):
            self._write(escape_suffix(tail.rpartition("\n")[2]) + BLOCK_END)

    def begin_turn(self, prompt: str, when: datetime) -> None:
        """Write the time and the prompt of a new turn."""
        time = f"*{when.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC*"
        self._write(f"{time}{BLOCK_END}{USER}{BLOCK_END}{escape(prompt)}{BLOCK_END}")

    def complete_prompt(self, rest: str) -> None:
        """Write the rest of the last prompt; its beginning is already in the file."""
        self._write(escape(rest) + BLOCK_END)

    def write_answer(self, piece: str) -> None:
        """Write a piece of the answer."""
        begin = "" if self._answering else f"{ASSISTANT}{BLOCK_END}"
        self._answering = True
        if self._after_return and piece.startswith("\n"):  # the end of the last piece was the first half of a line end
            piece = piece[1:]
        self._after_return = piece.endswith("\r")
        lines = unify_lines(piece).split("\n")
        for index, part in enumerate(lines):
            self._line = _marker_prefix(self._line + part)
            if index < len(lines) - 1:
                lines[index] = part + escape_suffix(self._line)
                self._line = ""
        self._write(begin + "\n".join(lines))

    def end_turn(self) -> None:
        """End the answer, complete or not, and flush the file to disk."""
        if self._answering:
            self._write(escape_suffix(self._line) + BLOCK_END)
        self._answering, self._line, self._after_return = False, "", False
        if self._file is not None and not self._pending:
            try:
                os.fsync(self._file)
            except OSError as error:
                self.fault = f"{self.path}: {error.strerror or error}"

    def complete_answer(self, rest: str, *, begun: bool) -> None:
        """Write the rest of the last answer; `begun` if its beginning is already in the file."""
        self._answering = begun
        self.write_answer(rest)
        self.end_turn()

    def append(self, turns: Iterable[TranscriptTurn], now: datetime) -> None:
        """Write turns that happened elsewhere, or while the file could not be written."""
        for turn in turns:
            self.begin_turn(turn.user, turn.when or now)
            if turn.assistant:
                self.write_answer(turn.assistant)
            self.end_turn()

    def _write(self, text: str) -> None:
        file = self._file if self._file is not None else self._open()
        self._pending += text.encode(self._encoding, "replace")
        if file is None:
            return
        try:
            while self._pending:
                self._pending = self._pending[os.write(file, self._pending) :]
            self.fault = None
        except OSError as error:
            self.fault = f"{self.path}: {error.strerror or error}"

    def close(self) -> None:
        """Release the lock and close the file."""
        self.release()
        self._close_file()

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def transcript_folder(vault: str | Path | None, system: str | Path | None, owner: str | None = None) -> Path:
    """Return the default folder of transcripts; each owner has a separate one."""
    name = f"Chat_Sessions-{owner_folder(owner)}" if owner else "Chat_Sessions"
    vault = vault_of(vault, owner)
    return Path(system or ".", name) if vault is None else Path(vault, "AssistantMD", name)


def transcript_folders(db: object, vault: Path | None, system: Path, owner: str) -> list[Path]:
    """Folders that chats of an owner may have written to; without an owner, a vault with `{owner}` is skipped."""
    vault = None if not owner and OWNER in str(vault) else vault
    places = (None, db.parent if isinstance(db, Path) else system), (None, system), (vault, system)
    return list(dict.fromkeys(transcript_folder(*parents, owner) for parents in places))


def safe_id(session: str) -> str:
    """Make a file name for a session from letters, digits, `_` and `-`; different sessions get different names.

    Raises:
        SettingsError: the session has no name.
    """
    if not session.strip():
        raise SettingsError("session='': give the session a name")
    plain = _UNSAFE.sub("_", session)[:_NAME]
    if plain == session:
        return plain
    return f"{plain}-{blake2b(session.encode('utf-8', 'replace'), digest_size=4).hexdigest()}"


def escape(text: str) -> str:
    """Append a backslash to each line that looks like a marker, and end each line with a line feed."""
    return _LIKE_A_MARKER.sub(lambda match: f"{match[0]}\\", unify_lines(text))


def escape_suffix(line: str) -> str:
    """Return a backslash if the line looks like a marker, else an empty string."""
    return "\\" if _LIKE_A_MARKER.fullmatch(line) else ""


def _marker_prefix(line: str) -> str:
    """Shorten a long unfinished line that cannot be a marker, to bound the memory that it takes."""
    return line if len(line) <= MAX_MARKER or _LIKE_A_MARKER.fullmatch(line) else f"{line[:MAX_MARKER]} "


def parse(text: str) -> list[TranscriptTurn]:
    """Parse a transcript into turns; an unfinished block is kept as far as it was written."""
    markers = list(_MARKER.finditer(text))
    turns: list[TranscriptTurn] = []
    when: datetime | None = None
    for index, marker in enumerate(markers):
        if marker[2]:
            when = _time(marker[2])
            continue
        stop = markers[index + 1].start() if index + 1 < len(markers) else len(text)
        block = text[min(marker.end() + 2, stop) : stop]
        is_ended = block.endswith(BLOCK_END)
        content = _ESCAPED.sub(r"\1", block.removesuffix(BLOCK_END))
        if marker[1] == "User":
            turns.append(TranscriptTurn(user=content, when=when, is_ended=is_ended))
        elif turns:
            answer = (turns[-1].assistant or "") + content
            turns[-1] = replace(turns[-1], assistant=answer, is_ended=is_ended)
    return turns


def _has_prompts(text: str, turns: Sequence[TranscriptTurn]) -> bool:
    """True if a transcript begins with turns that have the same prompts; nothing else of it is compared."""
    stop = 0
    for turn in turns:
        start = text.find(TURN_START, stop) + len(TURN_START)
        prompt = f"\n{escape(turn.user)}{BLOCK_END}"
        stop = start + len(prompt)
        if not text.startswith(prompt, start) or _MARKER.match(text, stop) is None:
            return False
    return True


def _time(line: str) -> datetime | None:
    try:
        return datetime.strptime(line, "*%Y-%m-%d %H:%M:%S UTC*").replace(tzinfo=UTC)
    except ValueError:
        return None
