"""Snapshots: all requests of a conversation as text, each as its difference from the one before, kept beside a test."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import SequenceMatcher, unified_diff
from itertools import islice
from pathlib import Path

from context_compiler.messages.display import role
from context_compiler.messages.history import Reading
from context_compiler.messages.printable import safe
from context_compiler.testing.conversation import Conversation
from context_compiler.testing.request import Request, reading_text

SHOWN = 60
"""Maximum number of lines of a difference that a failure shows."""

UPDATE = "--contexts-update (of `context-compiler test`: --update)"

BEGINNING = 70
"""Characters that are shown of a message that left."""

_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d)?)?")


def snapshot_text(conversation: Conversation) -> str:
    """All requests as text, each as its difference from the one before; dates are left out, because they change."""
    before: Request | None = None
    lines: list[str] = []
    for request in conversation.every:
        view = f", {request.status}" if request.status else ""
        lines += [f"{request}: {request.tokens:,} tokens{view}", *_changes(before, request), ""]
        before = request
    return _DATE.sub("<date>", "\n".join(lines))


def _changes(before: Request | None, request: Request) -> Iterator[str]:
    old = before.readings if before else ()
    if before is None or before.beside != request.beside:
        yield from _written("instructions and tools", request.beside)
    names = [[reading.name for reading in readings] for readings in (old, request.readings)]
    for _, start, stop, first, last in SequenceMatcher(None, *names, autojunk=False).get_opcodes():
        if names[0][start:stop] == names[1][first:last]:
            continue
        yield from (f"- {role(reading)}: {_begins(reading)}" for reading in old[start:stop])
        for reading in request.readings[first:last]:
            yield from _written(role(reading), reading_text(reading))


def _written(name: str, text: str) -> list[str]:
    first, *rest = safe(text).strip().splitlines() or [""]
    return [f"+ {name}: {first}".rstrip(), *(f"+   {line}".rstrip() for line in rest)] if text.strip() else []


def _begins(reading: Reading) -> str:
    line = " ".join(safe(reading_text(reading)).split())
    return line if len(line) <= BEGINNING else f"{line[:BEGINNING]}…"


def assert_snapshot(conversation: Conversation, path: str | Path, *, update: bool = False) -> None:
    """Compare the requests of a conversation with a snapshot file.

    Args:
        conversation: A conversation.
        path: The file.
        update: Write the file instead.
    """
    __tracebackhide__ = True
    file, now = Path(path), snapshot_text(conversation)
    if update:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(now, encoding="utf-8", newline="\n")
        return
    if not file.is_file():
        raise AssertionError(f"{file}: there is no such snapshot yet; {UPDATE} writes it")
    before = file.read_text(encoding="utf-8")
    if before != now:
        changes = list(unified_diff(before.splitlines(), now.splitlines(), "snapshot", "now", lineterm="", n=1))
        more = f"\n… {len(changes) - SHOWN:,} more lines" if len(changes) > SHOWN else ""
        shown = "\n".join(islice(changes, SHOWN))
        raise AssertionError(f"{file}: the requests have changed; {UPDATE} accepts them\n{shown}{more}")
