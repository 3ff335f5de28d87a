"""Make untrusted text safe to quote: fence it, neutralize it, or put it on one line of limited width.

Text inside a fence cannot close that fence, open another, or pass for a note of this package, because a backslash is
put in front of everything that looks like one of our markers. Otherwise, only characters that no model should receive
are changed: control characters and lone surrogates.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from unicodedata import normalize

SUMMARY_PREFIX = "Context summary (compiled):"
"""First line of the note that replaces earlier turns."""

QUOTED_TITLE = "QUOTED"
"""Title of the fence around what a view quotes from messages that it leaves out."""
RECALLED_TITLE = "RECALLED"
"""Title of the fence around a recall block."""
OTHERS_TITLE = "FROM OTHER CONVERSATIONS"
"""Title of the fence around passages of the owner's other conversations."""
RULES_TITLE = "RULES"
"""Title of the fence around the rules of a conversation."""
LAYERS_TITLE = "CONTEXT LAYERS"
"""Title of the fence around the layers of a node."""

LEFT_OUT = "[Earlier messages of this conversation are left out.]"
"""Line before a response that would otherwise begin a view, which no provider accepts."""

BETWEEN = "[Messages in between are left out.]"
"""Line between two responses that would otherwise follow each other, which some providers reject."""

ELLIPSIS = "[…]"
"""Line of the assistant between two prompts that would otherwise follow each other, which some models reject."""

PLACEHOLDERS = (LEFT_OUT, BETWEEN, ELLIPSIS)
"""Lines in place of messages that a view leaves out."""

INVISIBLE = "\u200b"
"""Character that replaces every invisible character in the folded text."""

WIDE = "\u2a76"
"""Character that replaces, in the folded text, the two characters that look like several equals signs."""


def fence(name: str, text: str) -> str:
    """Put `text` between BEGIN and END lines with `name`, neutralized so that it cannot close the fence."""
    title = re.sub(r"[^\w -]", "_", name).upper()
    return f"=== BEGIN {title} ===\n{neutralize(text)}\n=== END {title} ==="


def neutralize(text: str) -> str:
    r"""Put a backslash before everything in `text` that could pass for a fence or for `SUMMARY_PREFIX`.

    The search ignores case, spacing and invisible characters, and recognizes look-alike characters. All line breaks
    become `\n`; other control characters except the tab are removed. The function is idempotent.
    """
    clean = text
    if not text.replace("\n", "").isprintable():  # a fast check that spares most texts the three substitutions
        clean = _SURROGATES.sub("\ufffd", _CONTROLS.sub("", _BREAKS.sub("\n", text)))
    folded = clean if clean.isascii() else _FOLDABLE.sub(lambda run: run[0].translate(_FOLDING), clean)
    edges = [0, *sorted(_forgeries(folded)), len(clean)]
    return "\\".join(clean[start:stop] for start, stop in pairwise(edges))


_BREAKS = re.compile("\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f]")
_SURROGATES = re.compile("[\ud800-\udfff]")


def _folding_table() -> dict[int, str]:
    """Map characters that resemble those of our markers to them, one to one so that positions do not shift."""
    ours = set("=():" + "begindcontexsumarypld")
    blocks = (
        (0xFF01, 0xFF5F), (0x1D400, 0x1D6A4), (0x24B6, 0x24EA), (0x1D00, 0x1D2C), (0x2070, 0x209D), (0xFE50, 0xFE6C),
        (0x2160, 0x2180), (0x1F130, 0x1F14A),
    )  # fmt: skip
    table = {
        code: folded
        for start, stop in blocks
        for code in range(start, stop)
        if len(folded := normalize("NFKC", chr(code)).casefold()) == 1 and folded in ours
    }
    for latin, others in _LOOK_ALIKES.items():
        table |= {ord(other): latin for other in others}
    for code in (code for start, stop in _ACCENTED for code in range(start, stop)):
        bare, *accents = normalize("NFD", chr(code))
        if accents and (folded := table.get(ord(bare), bare.casefold())) in ours:
            table.setdefault(code, folded)
    for start, stop in _INVISIBLE:
        table |= {code: INVISIBLE for code in range(start, stop)}
    return table


_LOOK_ALIKES = {
    "=": "\ua78a\u1400\u2e40\u30a0\u2550\u2261\u2248\u2243\u225f\u224c\u22cd\u2263\U0001f7f0",
    WIDE: "\u2a75\u2a76",
    ":": "\u02d0\u0589\u05c3\u2236\ua789\ufe30\u02f8",
    "(": "\u2768\u207d\u208d\u2985\u3014",
    ")": "\u2769\u207e\u208e\u2986\u3015",
    "a": "\u0430\u0410\u03b1\u0391\u0251",
    "b": "\u0412\u0432\u0392\u03b2\u0299\u042c\u044c\u13f4\ua4d0",
    "c": "\u0441\u0421\u03f2\u03f9\u1d04",
    "d": "\u0501\u0500\u1d05\u13a0\ua4d3",
    "e": "\u0435\u0415\u0395\u03b5\u0451\u0401\u1d07\u13ac\ua4f0",
    "g": "\u0261\u050d\u050c\u0262\u13c0\ua4d6",
    "i": "\u0456\u0406\u0399\u03b9\u0131\u0130\u026a\u04c0\u0457\u0407\ua4f2|",
    "l": "\u029f\u04cf",
    "m": "\u043c\u041c\u039c\u1d0d",
    "n": "\u039d\u0274\u0578\u03b7\u043f\ua4e0",
    "o": "\u043e\u041e\u03bf\u039f\u1d0f",
    "p": "\u0440\u0420\u03c1\u03a1\u1d18",
    "r": "\u0433\u0280",
    "s": "\u0455\u0405\ua731",
    "t": "\u0442\u0422\u03c4\u03a4\u1d1b",
    "u": "\u03c5\u057d\u1d1c",
    "x": "\u0445\u0425\u03c7\u03a7",
    "y": "\u0443\u0423\u04af\u04ae\u03a5\u03b3\u028f",
}

_ACCENTED = ((0xC0, 0x250), (0x370, 0x530), (0x1E00, 0x2000))
"""Ranges in which a letter may be one of our markers' letters with an accent."""

_INVISIBLE = (
    (0xAD, 0xAE), (0x300, 0x370), (0x61C, 0x61D), (0x115F, 0x1161), (0x17B4, 0x17B6), (0x180B, 0x1810),
    (0x200B, 0x2010), (0x202A, 0x202F), (0x2060, 0x2070), (0x2800, 0x2801), (0x3164, 0x3165), (0xFE00, 0xFE10),
    (0xFEFF, 0xFF00), (0xFFA0, 0xFFA1), (0xFFF9, 0xFFFD), (0xE0000, 0xE0200),
)  # fmt: skip

_FOLDING = _folding_table()
_FOLDABLE = re.compile("[|\x80-\U0010ffff][|\x80-\U0010ffff]*")
"""Runs of characters that `_FOLDING` may change. Only these are translated, because `translate` is slow. The search is
much faster than that for the same pattern with a `+`."""


def _spaced_pattern(letters: str) -> str:
    return f"{INVISIBLE}*".join(map(re.escape, letters))


_BLANK = rf"[ \t\xa0\u1680\u2000-{INVISIBLE}\u3000]"
_GAP = f"{_BLANK}{{0,40}}"
_SIGNS = f"(?:=(?={_BLANK}{{0,3}}[={WIDE}])|{WIDE})[={WIDE}]*+(?:{_BLANK}{{1,3}}+[={WIDE}]++)*"
_RUN = re.compile(_SIGNS)
_KEYWORD = re.compile(rf"{_GAP}(?:{_spaced_pattern('begin')}|{_spaced_pattern('end')})(?![^\W_])", re.IGNORECASE)
_TITLE = re.compile(rf"[\w {INVISIBLE}-]{{1,60}}?{_SIGNS}")
_LEAD = re.compile(rf"[\s{INVISIBLE}>#*_~`|.+-]{{0,40}}")
_MARKER = re.compile(_GAP.join(map(_spaced_pattern, ("context", "summary", "(", "compiled", ")", ":"))), re.IGNORECASE)


def _forgeries(folded: str) -> Iterator[int]:
    """Positions that need a backslash: lines that begin like a fence, fences inside a line, and `SUMMARY_PREFIX`."""
    for run in _RUN.finditer(folded) if "=" in folded or WIDE in folded else ():
        start = run.start()
        keyword = _KEYWORD.match(folded, run.end())
        if keyword and not _is_escaped(folded, start):
            line = folded.rfind("\n", max(0, start - 41), start) + 1
            opens = (line or start <= 40) and _LEAD.fullmatch(folded, line, start)
            signs = 3 if WIDE in run[0] else run[0].count("=")
            if opens or (signs > 2 and _TITLE.match(folded, keyword.end())):
                yield start
    possible = b"context" in folded.encode("ascii", "ignore").lower()
    for marker in _MARKER.finditer(folded) if possible else ():
        if not _is_escaped(folded, marker.start()):
            yield marker.start()


def _is_escaped(folded: str, start: int) -> bool:
    return start > 0 and folded[start - 1] == "\\"


WIDTH = 160
"""Default maximum characters of a line."""

NAME = 24
"""Maximum characters of a word that `clip` drops whole; longer words are cut."""

SCANNED = 20_000
"""Characters read from each end of a long result."""

TERMINAL = re.compile(r"\x1b(?:\[[0-9;?]{0,32}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\))")
_HIDDEN = re.compile(
    r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ud800-\udfff]+"
)
_SPACE = re.compile(r"[\s\x1c-\x1f\x85\u2028\u2029]+")


def clip(text: str, width: int) -> str:
    """Shorten a text to `width` characters by replacing its middle with a `…`."""
    if len(text) <= width:
        return text
    if width < 2:
        return "…"[: max(width, 0)]
    tail = len(text) - (width - 1) * 2 // 5
    head = width - 1 - (len(text) - tail)
    return f"{text[: _before_word(text, head)]}…{text[_after_word(text, tail) :]}"


def _before_word(text: str, position: int) -> int:
    """Last position up to `position` that is not inside a word; words longer than `NAME` are cut there."""
    start = position
    while start > max(0, position - NAME) and _is_inside_word(text, start):
        start -= 1
    return start if start and not _is_inside_word(text, start) else position


def _after_word(text: str, position: int) -> int:
    """First position from `position` on that is not inside a word; words longer than `NAME` are cut there."""
    end = position
    while end < min(len(text), position + NAME) and _is_inside_word(text, end):
        end += 1
    return end if end < len(text) and not _is_inside_word(text, end) else position


def _is_inside_word(text: str, position: int) -> bool:
    """True if the characters on both sides of a position belong to one word."""
    sides = text[max(0, position - 1) : position + 1]
    return len(sides) == 2 and all(side.isalnum() or side in "_-" for side in sides)


def one_line(text: str, width: int = WIDTH) -> str:
    """Put a text on one line, clipped to `width` characters and cleaned as by `visible`."""
    if len(text) > SCANNED * 2:
        text = f"{text[:SCANNED]}…{text[-SCANNED:]}"
    return clip(_SPACE.sub(" ", visible(text)).strip(), width)


def visible(text: str) -> str:
    """Remove control characters, terminal escape sequences and direction marks from a text."""
    return _HIDDEN.sub("", TERMINAL.sub("", text))
