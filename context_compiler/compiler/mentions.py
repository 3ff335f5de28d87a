"""Every specific of a past stands somewhere: in which message, who said it, and whether a call was made with it."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from context_compiler.compiler.patterns import Sort
from context_compiler.compiler.specifics import Specific, comparable, specifics
from context_compiler.messages.history import History
from context_compiler.messages.items import Item, Kind, arguments
from context_compiler.messages.turns import Outline

SPEAKERS = {
    Kind.USER: "user",
    Kind.TEXT: "assistant",
    Kind.COMPACTION: "assistant",
    Kind.CALL: "tool",
    Kind.RETURN: "tool",
    Kind.FEEDBACK: "tool",
}
"""Whose words are looked at, and what they are called."""

COMMANDS = ("command", "cmd", "script", "bash")
"""Arguments that hold a command."""

_ACTION = re.compile(r"(?:```\w{0,12}\n[^`]{1,2000}```|<command>[^<]{1,2000}</command>)\s*\Z")
_ESCAPE = re.compile(r"\\[nrt]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mention:
    """One place where a specific stands."""

    specific: Specific
    position: int
    """Of its message."""
    part: int
    turn: int
    """0-based; -1 before the first prompt."""
    speaker: str
    """user, assistant or tool."""
    field: str
    """The field of the data that it is a value of, else the tool that returned it; empty for what was said."""
    called: bool
    """It stands in what a tool, or a shell, was asked to do."""


def readable(item: Item) -> str:
    """What a part says, with line breaks for the escapes of JSON: an argument a line."""
    if item.kind is Kind.CALL and (given := arguments(item.text)) is not None:
        return "\n".join(f"{key}: {value if isinstance(value, str) else _flat(value)}" for key, value in given.items())
    return _ESCAPE.sub(" \n", item.text) if item.text[:1] in ("{", "[") else item.text


def _flat(value: object) -> str:
    return _ESCAPE.sub(" \n", json.dumps(value, ensure_ascii=False))


def acts(item: Item) -> bool:
    """Whether an answer ends with a block for a shell: how models act that call no tools."""
    return item.kind is Kind.TEXT and _ACTION.search(item.text[-2_100:]) is not None


READ = 600_000
"""Characters of a past that are read, the newest: what is looked for in it is the recent and the often used."""


def mentions(history: History, outline: Outline, positions: Iterable[int], *, rules: bool = True) -> list[Mention]:
    """Every specific of these messages wherever it stands, oldest first; nothing that this package wrote.

    Without `rules`, sentences that forbid or bind are left out.
    """
    starts = [turn.start for turn in outline.turns]
    found: list[Mention] = []
    for position in _newest(history, positions):
        turn = outline.turns[bisect_right(starts, position) - 1].index
        for part, item in enumerate(history.readings[position].items):
            if item.mark is not None or item.kind not in SPEAKERS:
                continue
            called = item.kind is Kind.CALL or acts(item)
            said = readable(item)
            for one in (*specifics(said, rules), *_commands(item)):
                found.append(
                    Mention(
                        specific=one,
                        position=position,
                        part=part,
                        turn=turn,
                        speaker=SPEAKERS[item.kind],
                        field=field_of(said, one.offset) or (item.tool or ""),
                        called=called,
                    )
                )
    return found


def _newest(history: History, positions: Iterable[int]) -> list[int]:
    """The newest positions that together hold so much text that it is worth reading, in order."""
    left, kept = READ, list[int]()
    for position in sorted(positions, reverse=True):
        left -= sum(len(item.text) for item in history.readings[position].items)
        if left < 0 and kept:
            break
        kept.append(position)
    return kept[::-1]


FIELD = re.compile(
    r"""\b(\w{1,40})["']?\s{0,2}[:=]\s{0,2}(?:["'\[{(]{0,3}|\[[^\[\]{}]{0,160})\Z""",
)
"""What stands before a value, or before one of a list of values: the name of its field."""

LISTED = 200
"""Characters before a value in which the beginning of its list is looked for."""


def field_of(text: str, offset: int) -> str:
    """The name of the field that what stands there is a value of; empty where it is none."""
    named = FIELD.search(text, max(0, offset - LISTED), offset)
    return named[1] if named else ""


def _commands(item: Item) -> tuple[Specific, ...]:
    """What a call gives a shell to do."""
    given = arguments(item.text) if item.kind is Kind.CALL else None
    said = next((value for key, value in (given or {}).items() if key in COMMANDS and isinstance(value, str)), "")
    line = said.strip().partition("\n")[0][:300]
    if not line:
        return ()
    at = max(0, readable(item).find(line))
    return (Specific(sort=Sort.COMMAND, text=comparable(line), verbatim=line, offset=at),)
