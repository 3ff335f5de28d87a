"""The markdown of a session: what was said, as anybody can read it, and as it can be read back word for word.

    # Chat Session: name

    *2026-11-21 15:43:40 UTC*

    **User:**

    What was said.

    **Assistant:**

    What was answered.

A line of a message that reads exactly like one of these marks gets a backslash at its end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b

from context_compiler.errors import SettingsError

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
