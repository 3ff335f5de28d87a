"""Format values for people; remove control characters, escape sequences and direction marks from untrusted text."""

from __future__ import annotations

import re
from datetime import datetime

_BREAKS = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_SEQUENCES = re.compile(
    "(?:\x1b[\\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9c-\x9f]{0,4096}"
    "(?:\x07|\x1b\\\\|\x9c)"  # titles, links, clipboards
    "|(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]"  # colors, cursor
    "|\x1b[ -/]*[0-~]"
)
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_SURROGATES = re.compile("[\ud800-\udfff]")


def safe(text: str) -> str:
    """Remove control characters, escape sequences and direction marks; keep line breaks and expand tabs."""
    if text.isascii() and text.isprintable():  # nearly all texts, and much faster
        return text
    clean = _SEQUENCES.sub("", _BREAKS.sub("\n", text))
    return _SURROGATES.sub("\ufffd", _CONTROLS.sub("", clean)).expandtabs(4)


def safe_line(text: str) -> str:
    """Clean a text with `safe`, then put it on one line with single spaces."""
    return " ".join(safe(text).split())


def number(value: float) -> str:
    """Format a number with thousands separators: 12,345."""
    return f"{value:,.0f}"


def share(part: float, whole: float) -> str:
    """Format `part` of `whole` as a percentage; empty if the whole is 0."""
    return f"{part / whole:.0%}" if whole else ""


def timestamp(when: datetime | None) -> str:
    """Format a time to the second; empty for None."""
    return f"{when:%Y-%m-%d %H:%M:%S}" if when else ""
