"""Find specifics, the texts that a summary must keep verbatim: paths, commands, URLs, ids, numbers, dates, rules.

`patterns` defines how each sort looks; where matches overlap, the earlier entry of its table wins. Time is linear in
the length of a text, because every repetition is bounded, and only the two ends of a very long text are read.
"""

from __future__ import annotations

import json
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from context_compiler.cache import CACHED
from context_compiler.compiler.patterns import COMMANDS, TABLE, UNIT, UNIT_WIDE, Sort, is_command
from context_compiler.messages.fences import one_line
from context_compiler.messages.history import History
from context_compiler.messages.instructions import is_instruction
from context_compiler.messages.items import SCANNED, Item, Kind, parse_arguments
from context_compiler.messages.prompts import MAX_SENTENCE, sentence_ends
from context_compiler.messages.turns import Outline
from context_compiler.resilience import check_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Specific:
    """One text that a summary must not lose."""

    sort: Sort
    text: str
    """Form for comparison, from `comparable_text`."""
    verbatim: str
    offset: int
    """Offset of its first character in the text that contains it."""


@lru_cache(maxsize=1)
def _compiled() -> tuple[tuple[Sort, re.Pattern[str], frozenset[str], Callable[[str], bool]], ...]:
    return tuple(
        (sort, re.compile(pattern, re.ASCII), frozenset(signs), check) for sort, pattern, signs, check in TABLE
    )


@lru_cache(maxsize=1)
def _command_patterns() -> tuple[tuple[re.Pattern[str], bool], ...]:
    return tuple((re.compile(pattern), twice) for pattern, twice in COMMANDS)


@lru_cache(maxsize=CACHED)
def specifics(text: str, rules: bool = True) -> tuple[Specific, ...]:
    """Specifics of a text, in order; of a very long text, those in its two ends.

    Without `rules`, sentences that forbid or bind are not searched, which takes a third of the time.
    """
    if len(text) <= 2 * SCANNED:
        return tuple(_find_specifics(text, 0, rules))
    return (*_find_specifics(text[:SCANNED], 0, rules), *_find_specifics(text[-SCANNED:], len(text) - SCANNED, rules))


@lru_cache(maxsize=1)
def _plain_characters() -> dict[int, str]:
    """Translation of digits of other scripts and of full-width letters, one to one, so that offsets do not change."""
    digits = {
        code: digit for code in range(128, 0x1FBFA) if (digit := unicodedata.decimal(chr(code), None)) is not None
    }
    wide = {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F) if chr(code - 0xFEE0).isalnum()}
    return {code: str(digit) for code, digit in digits.items()} | wide


def _find_specifics(original: str, start: int, rules: bool) -> Iterator[Specific]:
    text = original if original.isascii() else original.translate(_plain_characters())
    taken = bytearray(len(text))
    places: list[tuple[int, int, Sort]] = []
    characters = set(text)
    for sort, pattern, signs, check in _compiled():
        if signs and signs.isdisjoint(characters):
            continue
        for match in pattern.finditer(text):
            begin, end = match.span(match.lastindex or 0)
            end = begin + len(_trimmed(text[begin:end], sort))
            if end > begin and not any(taken[begin:end]) and check(text[begin:end]):
                taken[begin:end] = b"\x01" * (end - begin)
                places.append((begin, end, sort))
    places += [(begin, end, Sort.COMMAND) for begin, end in _commands(text)]
    places += [(begin, end, Sort.RULE) for begin, end in _rules(text)] if rules else []
    for begin, end, sort in sorted(places):
        verbatim = original[begin:end]
        yield Specific(sort=sort, text=comparable_text(verbatim), verbatim=verbatim, offset=start + begin)


def _trimmed(text: str, sort: Sort) -> str:
    """Match without the punctuation of the sentence around it."""
    if sort in (Sort.NAME, Sort.NUMBER, Sort.DATE):
        return text
    text = text.rstrip(".,;:!?*_'\"=") if sort is Sort.URL or sort is Sort.PATH else text.rstrip(".:-_")
    while text.endswith(")") and text.count(")") > text.count("("):
        text = text[:-1].rstrip(".,;:!?")
    return text


def _commands(text: str) -> Iterator[tuple[int, int]]:
    seen: set[int] = set()
    for pattern, twice in _command_patterns():
        for match in pattern.finditer(text):
            begin, end = match.span(1)
            if begin not in seen and (not twice or is_command(text[begin:end])):
                seen.add(begin)
                yield begin, begin + len(text[begin:end].rstrip())


_BINDS = re.compile(
    r"(?i)\b(?:must not|mustn't|must never|may not|never|not (?:be )?(?:allowed|permitted|supported|available"
    r"|eligible)|forbidden|prohibited"
    r"|cannot be|can't be|do(?:es)? not (?:support|allow|use|touch|change|delete|offer)|no longer)\b|不(?:要|能|可|得"
    r"|允许)|禁止|ないで|してはいけ"
)
_NO_RULE = re.compile(r"(?i)\bnever ?mind\b|\bi(?:'ve| have)? never\b|[?？]\s*$|[{};=]|^\s*[>#|]")


def _rules(text: str) -> Iterator[tuple[int, int]]:
    """Sentences that forbid or bind."""
    begin = 0
    for end in (*sentence_ends(text), len(text)):
        sentence = text[begin:end]
        rule = sentence.strip()
        if 5 < len(rule) <= min(MAX_SENTENCE, 400) and not _NO_RULE.search(rule):
            if _BINDS.search(rule) or is_instruction(one_line(rule, MAX_SENTENCE)):
                start = begin + len(sentence) - len(sentence.lstrip())
                yield start, start + len(rule)
        begin = end


_GROUPED = re.compile(r"(?<=\d)[,'’\u202f\u00a0](?=\d{3}(?!\d))")
_APART = re.compile(rf"(?<=\d)[ -](?=(?:{UNIT_WIDE}|(?:{UNIT}|[ap]\.?m)\b))")
_QUOTES = re.compile("[\"'`“”„«»‘’「」『』]+")


def comparable_text(text: str) -> str:
    """Normalize a text for comparison: no case, quotation marks, digit grouping, or space before a unit."""
    folded = _QUOTES.sub("", _GROUPED.sub("", unicodedata.normalize("NFKC", text))).replace("\\\\", "\\")
    return _APART.sub("", " ".join(folded.split())).casefold().strip()


class TextSet:
    """Texts in which specifics can be looked up."""

    def __init__(self, *texts: str) -> None:
        """Normalize the texts."""
        self._text = "\n".join(map(comparable_text, texts))

    def holds(self, specific: Specific) -> bool:
        """True if the texts contain the specific as a whole, not within a longer word or number."""
        wanted = specific.text
        if not wanted:
            return True
        position = self._text.find(wanted)
        while position >= 0:
            if _is_whole(self._text, position, position + len(wanted)):
                return True
            position = self._text.find(wanted, position + 1)
        return False


def _is_whole(text: str, start: int, end: int) -> bool:
    before, after = text[start - 1 : start], text[end : end + 1]
    joined = text[start].isascii() and text[start].isalnum() and before.isascii() and before.isalnum()
    return not joined and not (
        text[end - 1].isascii() and text[end - 1].isalnum() and after.isascii() and after.isalnum()
    )


SPEAKERS = {
    Kind.USER: "user",
    Kind.TEXT: "assistant",
    Kind.COMPACTION: "assistant",
    Kind.CALL: "tool",
    Kind.RETURN: "tool",
    Kind.FEEDBACK: "tool",
}
"""Speakers of the kinds of items that are searched."""

SHELL_ARGUMENTS = ("command", "cmd", "script", "bash")
"""Names of arguments that contain a shell command."""

_ACTION = re.compile(r"(?:```\w{0,12}\n[^`]{1,2000}```|<command>[^<]{1,2000}</command>)\s*\Z")
_ESCAPE = re.compile(r"\\[nrt]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mention:
    """One occurrence of a specific in a history."""

    specific: Specific
    position: int
    """Position of its message."""
    part: int
    turn: int
    """0-based; -1 before the first prompt."""
    speaker: str
    """user, assistant or tool."""
    field: str
    """Data field of which it is a value, else the name of the tool; empty for text of user or assistant."""
    called: bool
    """True if it occurs in a tool call or a shell command."""


def readable_text(item: Item) -> str:
    """Text of a part with line breaks instead of JSON escapes; each argument of a call is on its own line."""
    if item.kind is Kind.CALL and (arguments := parse_arguments(item.text)) is not None:
        texts = (value if isinstance(value, str) else _flat(value) for value in arguments.values())
        return "\n".join(map("{}: {}".format, arguments, texts))
    return _ESCAPE.sub(" \n", item.text) if item.text[:1] in ("{", "[") else item.text


def _flat(value: object) -> str:
    return _ESCAPE.sub(" \n", json.dumps(value, ensure_ascii=False))


def runs_command(item: Item) -> bool:
    """True if an answer ends with a shell block, as models without tool calls write it."""
    return item.kind is Kind.TEXT and _ACTION.search(item.text[-2_100:]) is not None


READ = 600_000
"""Maximum number of characters read, newest messages first, because recent and often used specifics matter most."""


def mentions(history: History, outline: Outline, positions: Iterable[int], *, rules: bool = True) -> list[Mention]:
    """All occurrences of specifics in these messages, oldest first, except in text that this package wrote.

    Without `rules`, sentences that forbid or bind are left out.
    """
    starts = outline.starts
    occurrences: list[Mention] = []
    for position in _newest(history, positions):
        check_time()
        turn = outline.turns[bisect_right(starts, position) - 1].index
        for part, item in enumerate(history.readings[position].items):
            if item.mark is not None or item.kind not in SPEAKERS:
                continue
            called = item.kind is Kind.CALL or runs_command(item)
            text = readable_text(item)
            for specific in (*specifics(text, rules), *_shell_commands(item)):
                key = field_before(text, specific.offset)
                occurrences.append(
                    Mention(
                        specific=specific,
                        position=position,
                        part=part,
                        turn=turn,
                        speaker=SPEAKERS[item.kind],
                        field=key[1] if key else item.tool or "",
                        called=called,
                    )
                )
    return occurrences


def _newest(history: History, positions: Iterable[int]) -> list[int]:
    """Newest of these positions whose messages have at most `READ` characters together, in order."""
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
"""Field name before a value, or before a list of values that contains it."""


LISTED = 200
"""Characters before a value in which the beginning of its list is searched."""


def field_before(text: str, offset: int) -> re.Match[str] | None:
    """Match of the field name before a value; None without a search if no sign that follows a name is near."""
    start = max(0, offset - LISTED)
    if text.find(":", start, offset) < 0 and text.find("=", start, offset) < 0:
        return None
    return FIELD.search(text, start, offset)


def _shell_commands(item: Item) -> tuple[Specific, ...]:
    """Shell command in the arguments of a call, as a tuple of at most one."""
    arguments = parse_arguments(item.text) if item.kind is Kind.CALL else None
    command = next(
        (value for key, value in (arguments or {}).items() if key in SHELL_ARGUMENTS and isinstance(value, str)), ""
    )
    line = command.strip().partition("\n")[0][:300]
    if not line:
        return ()
    offset = max(0, readable_text(item).find(line))
    return (Specific(sort=Sort.COMMAND, text=comparable_text(line), verbatim=line, offset=offset),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Survival:
    """Number of specifics of a span that some texts still contain; equal ones count once."""

    found: int
    """Number of specifics in the span."""
    kept: int
    """Number of them in the texts."""

    @property
    def share(self) -> float:
        """Fraction that survived, from 0 to 1; 1 if there was nothing to lose."""
        return self.kept / self.found if self.found else 1.0


def lost_specifics(history: History, outline: Outline, span: Iterable[int]) -> tuple[Specific, ...]:
    """Distinct specifics of these messages, in the order of their first occurrence."""
    specifics = {mention.specific.text: mention.specific for mention in reversed(mentions(history, outline, span))}
    return tuple(reversed(specifics.values()))


def survival(lost: Iterable[Specific], *texts: str) -> Survival:
    """Count how many of these specifics the texts contain."""
    shown = TextSet(*texts)
    kept = [shown.holds(specific) for specific in lost]
    return Survival(found=len(kept), kept=sum(kept))
