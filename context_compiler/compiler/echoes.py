"""Find words of a message elsewhere in a request, by comparing the texts that were sent.

A view repeats words of left-out messages in standing instructions, outline, identifiers, quotes, recall blocks, layers
and the summary; other messages, instructions and tool definitions may contain them too. Only words (letters and digits,
without case) are compared, not the characters between them.

In a text that consists of quotes, a whole line counts however short it is. Elsewhere, sentences of at least four words
count, and at least eight words in a row.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from context_compiler.compiler.patterns import Sort
from context_compiler.compiler.specifics import Specific, TextSet, readable_text, specifics
from context_compiler.messages.display import FORMS, IDENTIFIER, OUTLINE, QUOTED, RECALLED, RULE, VERBATIM
from context_compiler.messages.fences import one_line, visible
from context_compiler.messages.history import Reading
from context_compiler.messages.items import SCANNED, Item, Kind, parse_arguments, plain_text
from context_compiler.messages.tool_lines import call_line, outcome_line

SENTENCE, RUN = 4, 8
"""Minimum number of words of a whole sentence, and of words in a row, that count anywhere; a shorter quoted line must
be a whole sentence or line of the message."""

LISTED = 20
"""Maximum number of entries of any list on a page, and of what is read or cached for one."""


Report = Callable[[int, str, bool], None]
"""Called with the number of a text, the words that it contains, and True if these are an identifier."""

QUOTING = (QUOTED, RECALLED, RULE, OUTLINE)
"""Forms that consist of quoted lines."""

_WORD = re.compile(
    "[\u0e00-\u0e7f\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]"
    "|[^\\W\u0e00-\u0e7f\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]+"
)
"""A word; in scripts without spaces, a character."""
_ENDS = re.compile(r"[.!?…]+[\"')\]*’”»]*\s+|[。！？؟۔।॥]+|\n+")
_ESCAPE = re.compile(r"\\[nrt]")
_LABEL = re.compile(r"\A(?:(?:\[[^\]\n]{1,200}\] )+(?:> )?|(?:- )?turn \d{1,9}: )")
_PHASE_WORDS = re.compile(r" \([^()\n]*\)\Z")
"""Distinctive words at the end of a phase's line in the outline."""
_FIELD = re.compile(r"(?<=[(\s])\w{1,40}=")
"""Name of an argument in a line that quotes a call."""
_COMMON_SORTS = frozenset({Sort.NAME, Sort.RULE})
"""Sorts of specifics that do not identify a message, because many messages share them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Echo:
    """A place in a request that contains words of a message that is not there verbatim."""

    form: str
    """Form of that place, such as quoted, recalled or instruction; verbatim for another message with the same words;
    shortened or carried for the rest of the message itself."""
    sent: int | None
    """Position in the view; None for instructions and tool definitions."""
    words: tuple[str, ...]
    """Sentences, lines or identifiers found there, as the message has them."""


class Sayings:
    """Index of the texts of one request, which are numbered in order."""

    def __init__(self, texts: Iterable[tuple[str, int | None, str]]) -> None:
        """Index texts, given as `(form, position in the view, text)`."""
        self.pieces: list[tuple[str, int | None]] = []
        """Form and position in the view of each text."""
        self.starts: list[int] = []
        """Offset of each text in `text`."""
        self.beginnings: set[tuple[str, ...]] = set()
        """All sequences of `SENTENCE` words, for a quick check before `text` is searched."""
        self.lines: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
        """Quoted lines of at least `SENTENCE` words, as words and text number, by their longest word."""
        self.short: dict[str, int] = {}
        """Text number by shorter quoted line."""
        self.exchanges: list[tuple[str, int]] = []
        """Quoted lines of tool exchanges, with text numbers."""
        self.listed: list[tuple[Specific, int]] = []
        """Listed identifiers, with text numbers."""
        parts: list[str] = []
        size = 0
        for number, (form, sent, text) in enumerate(texts):
            self.pieces.append((form, sent))
            self.starts.append(size)
            words = _words(text)
            self.beginnings.update(zip(*(words[offset:] for offset in range(SENTENCE)), strict=False))
            parts.append(f" {' '.join(words)} \n")
            size += len(parts[-1])
            if form in QUOTING or form == IDENTIFIER:
                self._add_lines(text, form, number)
            if form == IDENTIFIER:
                named = (specific for shown in (text, _FIELD.sub(" ", text)) for specific in specifics(shown, False))
                distinct = {specific.text: specific for specific in named}.values()
                self.listed += [(specific, number) for specific in distinct if specific.sort not in _COMMON_SORTS]
        self.text = "".join(parts)
        """Normalized words of all texts, joined by spaces."""

    def _add_lines(self, text: str, form: str, number: int) -> None:
        for line in text.split("\n"):
            labelled = _LABEL.match(line)
            said = line[labelled.end() :] if labelled else line
            if "(" in said or " → " in said:
                self.exchanges.append((said, number))
            said = _PHASE_WORDS.sub("", said) if form == OUTLINE else said
            for piece in said.split("…"):
                words = _words(piece)
                if len(words) >= SENTENCE:
                    self.lines[max(words, key=len)].append((f" {' '.join(words)} ", number))
                elif words and labelled:
                    self.short.setdefault(" ".join(words), number)


def echoes(request: Sayings, reading: Reading, own: tuple[str, int] | None = None) -> tuple[Echo, ...]:
    """Places in a request that contain words of a message, the fullest form first.

    Args:
        request: Index of the request.
        reading: The message.
        own: Form and position in the view of the rest of the message; None if nothing is left of it.
    """
    said: defaultdict[tuple[str, int | None], dict[str, bool]] = defaultdict(dict)

    def report(number: int, words: str, named: bool) -> None:
        form, sent = request.pieces[number]
        form = QUOTED if form == IDENTIFIER and not named and len(words.split()) >= SENTENCE else form
        form = own[0] if own is not None and form == VERBATIM and sent == own[1] else form
        said[form, sent][words] = named

    for item in reading.items:
        if item.mark is None:
            _compare(request, item, report)
    order = tuple(FORMS)
    places = sorted(said, key=lambda echo: (order.index(echo[0]), -1 if echo[1] is None else echo[1]))
    return tuple(Echo(form=form, sent=sent, words=_distinct(said[form, sent])) for form, sent in places)


def _distinct(words: Mapping[str, bool]) -> tuple[str, ...]:
    """Remove texts that are part of longer ones, and texts that contain a listed identifier."""
    names = [text for text, named in words.items() if named]
    alone = [text for text, named in words.items() if named or not any(name in text for name in names)]
    kept: list[str] = []
    for text in sorted(alone, key=len, reverse=True)[:LISTED]:
        if not any(text in other for other in kept):
            kept.append(text)
    return tuple(kept)


def _compare(request: Sayings, item: Item, report: Report) -> None:
    """Report every text of a request that contains words of a part, with these words."""
    whole = own_text(item)
    for text in (whole,) if len(whole) <= 2 * SCANNED else (whole[:SCANNED], whole[-SCANNED:]):
        said = _WordedText(text)
        for start, stop in said.sentences():
            _compare_sentence(request, said, start, stop, report)
        _compare_lines(request, said, report)
    _compare_exchanges(request, item, report)
    if request.listed:
        own = TextSet(whole)
        held: defaultdict[int, list[str]] = defaultdict(list)
        for specific, number in request.listed:
            if len(held[number]) < LISTED and specific.verbatim not in held[number] and own.holds(specific):
                held[number].append(specific.verbatim)
        for number, names in held.items():
            for name in names:
                report(number, name, True)


class _WordedText:
    """A text and its words."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._spans = [match.span() for match in _WORD.finditer(text)]
        self.words = [text[start:stop].casefold() for start, stop in self._spans]

    def sentences(self) -> Iterator[tuple[int, int]]:
        """Sentences and lines, as `(start, stop)` in words."""
        begins = [start for start, _ in self._spans]
        ends = [0, *(bisect_left(begins, match.end()) for match in _ENDS.finditer(self.text)), len(begins)]
        return ((start, stop) for start, stop in pairwise(ends) if start < stop)

    def shown(self, start: int, stop: int) -> str:
        """Original text of a range of words."""
        return self.text[self._spans[start][0] : self._spans[stop - 1][1]]


def _compare_sentence(request: Sayings, said: _WordedText, start: int, stop: int, report: Report) -> None:
    words = said.words[start:stop]
    if (number := request.short.get(" ".join(words))) is not None:
        report(number, said.shown(start, stop), False)
    if len(words) < SENTENCE:
        return
    if _may_occur(request, words, 0) and (places := _places(request, words)):
        for number in places:
            report(number, said.shown(start, stop), False)
        return
    begin = 0
    while begin + RUN <= len(words):
        end = begin + RUN
        if not (_may_occur(request, words, begin) and (places := _places(request, words[begin:end]))):
            begin += 1
            continue
        while end < len(words) and (longer := _places(request, words[begin : end + 1])):
            places, end = longer, end + 1
        for number in places:
            report(number, said.shown(start + begin, start + end), False)
        begin = end


def _may_occur(request: Sayings, words: Sequence[str], at: int) -> bool:
    return tuple(words[at : at + SENTENCE]) in request.beginnings


def _places(request: Sayings, words: Sequence[str]) -> list[int]:
    """Numbers of the first `LISTED` texts that contain these words in a row."""
    wanted, numbers = f" {' '.join(words)} ", list[int]()
    offset = request.text.find(wanted)
    while offset >= 0 and len(numbers) < LISTED:
        numbers.append(bisect_right(request.starts, offset) - 1)
        after = numbers[-1] + 1
        offset = request.text.find(wanted, request.starts[after]) if after < len(request.starts) else -1
    return numbers


def _compare_lines(request: Sayings, said: _WordedText, report: Report) -> None:
    """Report quoted lines that are part of a text."""
    joined = f" {' '.join(said.words)} "
    for word in request.lines.keys() & set(said.words):
        for line, number in request.lines[word]:
            offset = joined.find(line)
            if offset >= 0:
                first = joined.count(" ", 0, offset)
                report(number, said.shown(first, first + line.count(" ") - 1), False)


def _compare_exchanges(request: Sayings, item: Item, report: Report) -> None:
    """Report quoted lines that contain a tool call, or its outcome."""
    if not request.exchanges or item.kind not in (Kind.CALL, Kind.RETURN):
        return
    tool = item.tool or "tool"
    called = item.kind is Kind.CALL
    line = call_line(tool, item.text) if called else f"→ {outcome_line(item.text, failed=item.failed)}"
    for said, number in request.exchanges:
        if line in said if called else said.endswith(line) and said.startswith(one_line(tool, 64)):
            report(number, line.removeprefix("→ "), False)


def own_text(item: Item) -> str:
    """Text of a part for comparison: the name of its tool, then its text; each argument of a call begins a line."""
    arguments = parse_arguments(item.text) if item.kind is Kind.CALL else None
    if arguments is None:
        return _plain(f"{item.tool}\n{readable_text(item)}" if item.tool else item.text)
    values = (f"{name}:\n{value if isinstance(value, str) else plain_text(value)}" for name, value in arguments.items())
    return _plain("\n".join([item.tool or "", *values]))


def _plain(text: str) -> str:
    """Remove JSON escapes from a text, because quoted pieces of JSON contain them."""
    return _ESCAPE.sub(" \n", visible(text))


def _words(text: str) -> list[str]:
    return [word.casefold() for word in _WORD.findall(_plain(text))]
