"""Untrusted text made safe to quote: fenced, neutralized, or on one line of limited width.

Text inside a fence can neither close it, nor open another, nor pass for one of our own notes.

What looks like one of our lines gets a backslash in front: seen by a reader, taken off by a reader. Nothing
else is changed but what no model should be sent: control characters and halves of surrogate pairs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from unicodedata import normalize

SUMMARY_PREFIX = "Context summary (compiled):"
"""First line of the note that replaces earlier turns."""

INVISIBLE = "\u200b"
"""Placeholder in the folded text for every invisible character."""

WIDE = "\u2a76"
"""Placeholder in the folded text for the two signs that are several equals signs in one."""


def fence(name: str, text: str) -> str:
    """Put `text` between a BEGIN and an END line that carry `name`, so that it cannot end the block itself."""
    title = re.sub(r"[^\w -]", "_", name).upper()
    return f"=== BEGIN {title} ===\n{neutralize(text)}\n=== END {title} ==="


def neutralize(text: str) -> str:
    r"""Disarm every line of `text` that could pass for a fence or for `SUMMARY_PREFIX`.

    Case, spacing, look-alike letters and signs, and characters that show nothing are seen through. All line
    breaks become `\n`; other control characters but the tab are taken out. Doing it twice changes nothing more.
    """
    clean = text
    if not text.replace("\n", "").isprintable():  # most text is, and this is fast
        clean = _HALVES.sub("\ufffd", _UNSEEN.sub("", _BREAKS.sub("\n", text)))
    seen = clean if clean.isascii() else _LOOKING.sub(lambda run: run[0].translate(_LOOKS_LIKE), clean)
    edges = [0, *sorted(_forgeries(seen)), len(clean)]
    return "\\".join(clean[start:stop] for start, stop in pairwise(edges))


_BREAKS = re.compile("\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_UNSEEN = re.compile("[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f]")
_HALVES = re.compile("[\ud800-\udfff]")


def _folding_table() -> dict[int, str]:
    """Characters that resemble those of our markers, mapped one to one so that positions are kept."""
    ours = set("=():" + "begindcontexsumarypld")
    blocks = (
        (0xFF01, 0xFF5F),
        (0x1D400, 0x1D6A4),
        (0x24B6, 0x24EA),
        (0x1D00, 0x1D2C),
        (0x2070, 0x209D),
        (0xFE50, 0xFE6C),
        (0x2160, 0x2180),
        (0x1F130, 0x1F14A),
    )
    table = {
        code: folded
        for start, stop in blocks
        for code in range(start, stop)
        if len(folded := normalize("NFKC", chr(code)).casefold()) == 1 and folded in ours
    }
    for latin, others in _CONFUSED.items():
        table |= {ord(other): latin for other in others}
    for code in (code for start, stop in _WITH_ACCENTS for code in range(start, stop)):
        bare, *accents = normalize("NFD", chr(code))
        if accents and (folded := table.get(ord(bare), bare.casefold())) in ours:
            table.setdefault(code, folded)
    for start, stop in _SHOWING_NOTHING:
        table |= {code: INVISIBLE for code in range(start, stop)}
    return table


_CONFUSED = {
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

_WITH_ACCENTS = ((0xC0, 0x250), (0x370, 0x530), (0x1E00, 0x2000))
"""Letters that may be one of ours below an accent."""

_SHOWING_NOTHING = (
    (0xAD, 0xAE),
    (0x300, 0x370),
    (0x61C, 0x61D),
    (0x115F, 0x1161),
    (0x17B4, 0x17B6),
    (0x180B, 0x1810),
    (0x200B, 0x2010),
    (0x202A, 0x202F),
    (0x2060, 0x2070),
    (0x2800, 0x2801),
    (0x3164, 0x3165),
    (0xFE00, 0xFE10),
    (0xFEFF, 0xFF00),
    (0xFFA0, 0xFFA1),
    (0xFFF9, 0xFFFD),
    (0xE0000, 0xE0200),
)

_LOOKS_LIKE = _folding_table()
_LOOKING = re.compile("[|\x80-\U0010ffff]+")
"""Runs that `_LOOKS_LIKE` may translate; most text has none, and `translate` is slow."""


def _spaced_pattern(letters: str) -> str:
    return f"{INVISIBLE}*".join(map(re.escape, letters))


_BLANK = rf"[ \t\xa0\u1680\u2000-{INVISIBLE}\u3000]"
_GAP = f"{_BLANK}{{0,40}}"
_SIGNS = f"(?:=(?={_BLANK}{{0,3}}[={WIDE}])|{WIDE})[={WIDE}]*+(?:{_BLANK}{{1,3}}+[={WIDE}]++)*"
_RUN = re.compile(_SIGNS)
_NAMED = re.compile(rf"{_GAP}(?:{_spaced_pattern('begin')}|{_spaced_pattern('end')})(?![^\W_])", re.IGNORECASE)
_CLOSED = re.compile(rf"[\w {INVISIBLE}-]{{1,60}}?{_SIGNS}")
_LEAD = re.compile(rf"[\s{INVISIBLE}>#*_~`|.+-]{{0,40}}")
_MARKER = re.compile(_GAP.join(map(_spaced_pattern, ("context", "summary", "(", "compiled", ")", ":"))), re.IGNORECASE)


def _forgeries(seen: str) -> Iterator[int]:
    """Positions that need a backslash: lines that begin like a fence, fences inside a line, and our marker."""
    for run in _RUN.finditer(seen) if "=" in seen or WIDE in seen else ():
        start = run.start()
        named = _NAMED.match(seen, run.end())
        if named and not _disarmed(seen, start):
            line = seen.rfind("\n", max(0, start - 41), start) + 1
            opens = (line or start <= 40) and _LEAD.fullmatch(seen, line, start)
            signs = 3 if WIDE in run[0] else run[0].count("=")
            if opens or (signs > 2 and _CLOSED.match(seen, named.end())):
                yield start
    said = "context" in seen.replace(INVISIBLE, "").lower()
    for marker in _MARKER.finditer(seen) if said else ():
        if not _disarmed(seen, marker.start()):
            yield marker.start()


def _disarmed(seen: str, start: int) -> bool:
    return start > 0 and seen[start - 1] == "\\"


WIDTH = 160
"""Default characters of a line."""

NAME = 24
"""Characters of a word that is left out whole rather than cut."""

SCANNED = 20_000
"""Characters looked at from each end of a result."""

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


def _before_word(text: str, at: int) -> int:
    """Last position up to `at` that cuts no word; words longer than `NAME` are cut."""
    start = at
    while start > max(0, at - NAME) and _joins(text, start):
        start -= 1
    return start if start and not _joins(text, start) else at


def _after_word(text: str, at: int) -> int:
    end = at
    while end < min(len(text), at + NAME) and _joins(text, end):
        end += 1
    return end if end < len(text) and not _joins(text, end) else at


def _joins(text: str, at: int) -> bool:
    """True if the characters on both sides of a position belong to one word."""
    sides = text[max(0, at - 1) : at + 1]
    return len(sides) == 2 and all(side.isalnum() or side in "_-" for side in sides)


def one_line(text: str, width: int = WIDTH) -> str:
    """The text on one line, without control characters, terminal colours and marks that turn its direction."""
    if len(text) > SCANNED * 2:
        text = f"{text[:SCANNED]}…{text[-SCANNED:]}"
    return clip(_SPACE.sub(" ", visible(text)).strip(), width)


def visible(text: str) -> str:
    """The text without control characters, terminal colours and marks that turn its direction."""
    return _HIDDEN.sub("", TERMINAL.sub("", text))
