"""Text that is safe to print on a terminal, and formatting of numbers, times, names and JSON.

Transcripts are untrusted, so all of their text passes through `safe` before it is printed.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, cast

from rich.cells import cell_len

from context_compiler.messages.printable import number as number
from context_compiler.messages.printable import safe as safe
from context_compiler.messages.printable import safe_line
from context_compiler.messages.printable import share as share
from context_compiler.messages.printable import timestamp as timestamp
from context_compiler.paths import is_address

_UNPRINTED = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def one_line(text: str, width: int = 0) -> str:
    """Make a string safe and put it on one line, truncated with an ellipsis to `width` columns unless that is 0."""
    line = safe_line(text)
    if not width or cell_len(line) <= width:
        return line
    cut = line[:width]
    while cell_len(cut) > width - 1:
        cut = cut[:-1]
    return cut.rstrip() + "…"


def abbreviate(names: Sequence[str], width: int) -> list[str]:
    """Truncate names in the middle to `width` columns; `expand` finds them again.

    A name stays whole if its abbreviation would be ambiguous, if it has characters that are not one column wide, or
    if it looks like an abbreviation itself.
    """
    room, short = width - 1, dict.fromkeys(names, "")
    fit = {name for name in short if len(name) == cell_len(name) > width > 4 and not re.search(r"…|\.\.", name)}
    for head in (room // 2, room * 3 // 4, room // 4):
        tail = room - head
        ends = Counter((name[:head], name[-tail:]) for name in short)
        for name, abbreviation in short.items():
            if name in fit and not abbreviation and ends[name[:head], name[-tail:]] == 1:
                short[name] = f"{name[:head]}…{name[-tail:]}"
    return [short[name] or name for name in names]


def expand(word: str, names: Iterable[str]) -> list[str]:
    """Find names that match an abbreviation, `begin…end` or `begin...end`; none if either end is empty."""
    head, _, tail = word.replace("...", "…").partition("…")
    ends = [name for name in dict.fromkeys(names) if name.startswith(head) and name.endswith(tail)]
    return [name for name in ends if head and tail and len(name) > len(head) + len(tail)]


def fit_pieces(line: str, width: int) -> str:
    """Keep the first pieces of `one · two · three` that fit; truncate the first one if necessary."""
    pieces = one_line(line).split(" · ")
    while len(pieces) > 1 and cell_len(" · ".join(pieces)) > width:
        pieces.pop()
    return one_line(" · ".join(pieces), width)


def plural(count: int, noun: str, nouns: str = "") -> str:
    """Format a count and its noun: `1 view`, `2 views`; `nouns` is the plural if it is not the noun with an `s`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {nouns or f'{noun}s'}"


def sent_share(sent: float, raw: float) -> str:
    """Format the part of a history that was sent; a dash if layers and recalled passages are more than was saved."""
    return "–" if sent > raw else share(sent, raw)


def first_word(status: str) -> str:
    """Return a status without its notes on NULL columns."""
    return status.split(";")[0].strip()


SUGGESTED = 3
"""Maximum names that an error message suggests."""


def suggestions(wrong: str, candidates: Iterable[str], *, list_command: str = "") -> str:
    """Format the end of an error message: similar names, and the command that lists all."""
    names = list(dict.fromkeys(candidates))
    close = get_close_matches(wrong, names, n=SUGGESTED, cutoff=0.5)
    close = (close or [name for name in names if wrong and wrong in name] or names)[:SUGGESTED]
    listed = ", ".join(repr(one_line(name, 60)) for name in close)
    if len(names) > len(close):
        return f"; there are {len(names):,}, such as {listed}" + (
            f"; `{list_command}` lists them all" if list_command else ""
        )
    return f"; there {'is' if len(names) == 1 else 'are'} {listed}" if close else ""


def plain_value(value: object) -> object:
    """Convert a value for JSON: dataclasses become objects, times ISO 8601 strings."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain_value(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain_value(inner) for key, inner in cast(Mapping[Any, object], value).items()}
    if isinstance(value, frozenset | set):
        value = sorted(cast("Iterable[str]", value))
    if isinstance(value, list | tuple):
        return [plain_value(inner) for inner in cast("Iterable[object]", value)]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    if is_address(value):
        return str(value)  # an option of the command line has no password then
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


def json_text(value: object, *, indent: int | None = 2) -> str:
    """Serialize to JSON that is safe to print: control characters are escaped."""
    wide = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "").startswith("utf")
    text = json.dumps(plain_value(value), ensure_ascii=not wide, indent=indent)
    return _UNPRINTED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
