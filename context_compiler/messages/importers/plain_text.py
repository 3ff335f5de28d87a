"""Conversations as markdown or plain text: a line names the speaker, and the lines after it are the message.

A speaker is `**User:**`, `## Assistant`, `[Human]` and the like on a line of its own, or `User: Hello` with the text on
the same line. Lines inside a code fence never name a speaker. The transcripts of this project's own chat have this
format, but only `**User:**` and `**Assistant:**` name a speaker there; such a line of a message ends with a backslash.
"""

from __future__ import annotations

import re
from datetime import datetime

from pydantic_ai.messages import SystemPromptPart, TextPart, UserPromptPart

from context_compiler.messages.importers.draft import UNDATED, Draft, parse_time

_NAMES = {
    **dict.fromkeys(("user", "human", "you", "me", "you said"), "user"),
    **dict.fromkeys(("assistant", "ai", "bot", "model", "chatgpt", "claude", "gemini", "chatgpt said"), "assistant"),
    "system": "system",
}
"""Names of speakers in lower case, with their roles."""

_NAME = rf"({'|'.join(sorted(map(re.escape, _NAMES), key=len, reverse=True))})"
_MARKED = re.compile(
    rf"(?:#{{1,6}} )?(?:\*\*|__|\[)?{_NAME}(?:\*\*|__|\])?:?(?:\*\*|__|\])?[ \t]{{0,20}}$", re.IGNORECASE
)
_INLINE = re.compile(rf"(?:\*\*|__)?{_NAME}(?:\*\*|__)?:(?:\*\*|__)?[ \t]{{1,20}}(?=\S)", re.IGNORECASE)
_TIME = re.compile(r"\*(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) UTC\*$")
_OWN = "# Chat Session:"
_OWN_SPEAKERS = {"**User:**": ("user", ""), "**Assistant:**": ("assistant", "")}
_ESCAPED = re.compile(r"(?:\*\*(?:User|Assistant):\*\*|\*\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\*)\\+$")

MAX_SPEAKER_LINE = 200
"""Maximum characters of a line that can name a speaker on its own; also those searched for `User: …`."""


def looks_like_text(prose: str) -> bool:
    """True if one of the first lines, such as the one after a title, names a speaker."""
    lines = [line for line in prose.split("\n", 20)[:20] if line.strip()]
    return any(_speaker(line) is not None for line in lines[:6])


def _speaker(line: str) -> tuple[str, str] | None:
    """Role of the speaker that a line names, and the rest of the line; None if it names none."""
    marked = _MARKED.match(line) if len(line) <= MAX_SPEAKER_LINE else None
    if marked and len(marked[0].strip()) > len(marked[1]):
        return _NAMES[marked[1].lower()], ""
    inline = _INLINE.match(line[:MAX_SPEAKER_LINE])
    return (_NAMES[inline[1].lower()], line[inline.end() :]) if inline else None


def read(draft: Draft, prose: str) -> None:
    """Read a text line by line.

    Raises:
        TranscriptError: No line names a speaker.
    """
    own = prose.lstrip().startswith(_OWN)
    role, lines, fence, when = None, list[str](), "", None
    has_speaker = False
    for line in prose.split("\n"):
        stamp = _TIME.match(line) if own and len(line) < MAX_SPEAKER_LINE else None
        speaker = None if fence else _OWN_SPEAKERS.get(line) if own else _speaker(line)
        if stamp is not None:
            _add(draft, role, lines, when)
            role, lines, when = None, [], parse_time(f"{stamp[1]}+00:00")
        elif speaker is not None:
            _add(draft, role, lines, when)
            (role, rest), has_speaker = speaker, True
            lines = [rest] if rest else []
            draft.at += 1
        else:
            lines.append(line[:-1] if own and _ESCAPED.match(line[:MAX_SPEAKER_LINE]) else line)
        fence = _fence(speaker[1] if speaker else line, fence) if not own else ""
    _add(draft, role, lines, when)
    if not has_speaker:
        raise draft.error("no line names a speaker; begin each message with a line such as **User:** or **Assistant:**")


def _fence(line: str, fence: str) -> str:
    """Marks that opened the code fence that is open after a line, as in CommonMark; empty if none is open."""
    line = line.strip()
    marks = next((line[: len(line) - len(line.lstrip(mark))] for mark in "`~" if line.startswith(mark * 3)), "")
    if fence:
        return "" if marks == line and marks.startswith(fence) else fence
    return "" if marks.startswith("`") and "`" in line[len(marks) :] else marks


def _add(draft: Draft, role: str | None, lines: list[str], when: datetime | None) -> None:
    prose = "\n".join(lines).strip("\n").rstrip()
    if role is None or not prose:
        if role is None and prose and draft.at:
            draft.note("text without a speaker left out")
        return
    if role == "assistant":
        draft.respond([TextPart(content=prose)], time=when)
    elif role == "system":
        draft.request([SystemPromptPart(content=prose, timestamp=when or UNDATED)], time=when)
    else:
        draft.request([UserPromptPart(content=prose, timestamp=when or UNDATED)], time=when)
