"""List identifiers of left-out messages that later tool calls may need, most likely first.

Past calls show which ones: a field whose values were used in calls will probably be used again.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import log2

from context_compiler.compiler.cut_order import Selection
from context_compiler.compiler.patterns import Sort
from context_compiler.compiler.policy import LARGE
from context_compiler.compiler.specifics import Mention, TextSet, field_before, mentions, readable_text, runs_command
from context_compiler.messages.fences import one_line
from context_compiler.messages.history import History
from context_compiler.messages.items import Item, Kind
from context_compiler.messages.prompts import sentence_ends
from context_compiler.messages.shapes import WHOLE, apply_shape
from context_compiler.messages.tool_lines import call_line
from context_compiler.messages.turns import Place, calls_of_results
from context_compiler.recall import changes_of
from context_compiler.recall.passages import MIN_QUOTE, NARROW, WIDTH
from context_compiler.tokens import TokenCounter

ARGUMENTS = frozenset({Sort.ID, Sort.PATH, Sort.URL})
"""Kinds of identifiers used as call arguments; they precede all others in the list."""

SHARE = 0.15
"""Fraction of the room for messages: maximum size of the list if tools are used."""

CLAUSE = NARROW // LARGE
"""Maximum number of characters that are quoted on each side of an identifier in prose."""

TRIES = 24
"""Number of consecutive identifiers that may fail to fit; the next failure ends the list."""

AND = "; "
"""Separator of lines that share a label."""

ENDS = ".!?…。！？\n"
"""Characters after which a sentence begins."""

_SYNTAX = re.compile(r"""["{}\[\]]+|(?<!\w)'|'(?!\w)""")


@dataclass(slots=True, kw_only=True)
class MissingIdentifier:
    """An identifier that the view does not contain."""

    mentions: list[Mention]
    """All mentions in messages that are not whole in the view, oldest first."""

    @property
    def calls(self) -> list[Mention]:
        """Mentions in calls."""
        return [mention for mention in self.mentions if mention.called]

    @property
    def homes(self) -> tuple[Mention, ...]:
        """Mentions from which it may be quoted: the last call with it (else the last mention), the last, the first."""
        return (self.calls or self.mentions)[-1], self.mentions[-1], self.mentions[0]


def missing_identifiers(selection: Selection) -> list[MissingIdentifier]:
    """Identifiers that the kept messages do not contain, most likely needed first."""
    whole = {index for index, shape in enumerate(selection.draft.shapes) if shape == WHOLE}
    identifiers: dict[str, MissingIdentifier] = {}
    beside: Counter[tuple[int, int]] = Counter()
    called: set[str] = set()
    fields: defaultdict[str, set[str]] = defaultdict(set)
    for mention in mentions(selection.history, selection.draft.outline, range(len(selection.history)), rules=False):
        text = mention.specific.text
        fields[mention.field].add(text)
        if mention.called:
            called.add(text)
        if mention.position in whole:
            continue
        beside[mention.position, mention.part] += 1
        identifiers.setdefault(text, MissingIdentifier(mentions=[])).mentions.append(mention)
    rates = {name: (len(values & called) + 0.5) / (len(values) + 2) for name, values in fields.items() if name}
    holds = TextSet(*_kept_texts(selection)).holds
    length = max(1, len(selection.history))
    outdated = changes_of(selection.history).outdated()

    def rank(identifier: MissingIdentifier) -> tuple[bool, float]:
        specific, last = identifier.homes[0].specific, identifier.mentions[-1]
        crowd = min(beside[home.position, home.part] for home in identifier.homes)
        rate = max(rates.get(mention.field, 0.0) for mention in identifier.mentions)
        worth = bool(identifier.calls) + rate + last.position / length + log2(1 + len(identifier.mentions))
        argument = specific.sort in ARGUMENTS
        long = 0.0 if argument else log2(1 + len(specific.verbatim))  # a long command takes the room of ten numbers
        return not argument, log2(1 + crowd) + long - worth

    current = (
        identifier
        for text, identifier in identifiers.items()
        if identifier.mentions[-1].position >= outdated.get(text.lower(), 0)
    )
    return sorted((identifier for identifier in current if not holds(identifier.homes[0].specific)), key=rank)


def _kept_texts(selection: Selection) -> Iterator[str]:
    """Texts of the kept messages in their shapes."""
    for index, shape in enumerate(selection.draft.shapes):
        if shape is None or shape.bare:
            continue
        reading, message = selection.history.readings[index], selection.history.messages[index]
        if shape == WHOLE:
            yield from (readable_text(item) for item in reading.items if item.kind is not Kind.THINKING)
            continue
        shaped = apply_shape(message, reading, shape, selection.counter)
        for part in shaped.parts if shaped else ():
            yield str(getattr(part, "content", "") or getattr(part, "args", ""))


def uses_tools(history: History) -> bool:
    """True if at least one message in eight calls a tool or a shell, or is a result.

    Unlike tool work (`policy.TOOL_WORK`), results count, and shell blocks of models that do not call tools.
    """
    acting = sum(reading.exchanges or any(map(runs_command, reading.items)) for reading in history.readings)
    return acting * 8 >= len(history.readings)


def identifier_room(history: History, room: int) -> int:
    """Tokens to reserve for the list, out of the `room` for messages; 0 if tools are rarely used."""
    return int(room * SHARE) if uses_tools(history) else 0


def identifiers_and_quotes(
    selection: Selection, shown: Sequence[str], limit: int, quoting: Callable[[int], str], *, lost: bool
) -> str:
    """Write the list and quotes, together in at most `limit` tokens; each gets what the other does not need.

    Args:
        selection: The messages that stay and those that are left out.
        shown: Texts beside them that need not be repeated: the note, and standing instructions.
        limit: Maximum number of tokens.
        quoting: Returns quotes of at most the given number of tokens.
        lost: True if a model wrote a summary; the identifiers it lost are listed.
    """
    most = int(selection.limits.room * SHARE) if lost or uses_tools(selection.history) else 0
    missing = missing_identifiers(selection) if most >= MIN_QUOTE else []
    part = limit // LARGE
    without = limit - part if selection.lasting and selection.tool_work else part
    own = min(most, limit if lost and (selection.tool_work or not selection.lasting) else without)
    quotes = quoting(limit - own)
    listed = list_identifiers(selection, missing, (*shown, quotes), own)
    used = selection.counter.text(listed) + 2 if listed else 0
    if own - used > MIN_QUOTE:
        quotes = quoting(limit - used)
    rest = min(most, limit - selection.counter.text(quotes) - 2)
    if rest - used > MIN_QUOTE:
        listed = list_identifiers(selection, missing, (*shown, quotes), rest)
    return "\n\n".join(block for block in (listed, quotes) if block)


def list_identifiers(
    selection: Selection, missing: Iterable[MissingIdentifier], shown: Sequence[str], limit: int
) -> str:
    """Write the list: missing identifiers that `shown` does not contain either, with a few words around them.

    Args:
        selection: The messages that stay and those that are left out.
        missing: Identifiers that the kept messages do not contain, best first.
        shown: Texts beside the messages: note and quotes.
        limit: Maximum number of tokens.
    """
    if limit < MIN_QUOTE:
        return ""
    holds = TextSet(*shown).holds
    listed = _List(selection)
    left, missed = limit - 2, 0
    for identifier in (identifier for identifier in missing if not holds(identifier.homes[0].specific)):
        if missed > TRIES or left < 4:
            break
        cost = listed.add(dict.fromkeys(identifier.homes), left)
        if cost > left:
            missed += 1
        elif cost:
            left, missed = left - cost, 0
    return listed.text()


@dataclass(slots=True, kw_only=True)
class _Piece:
    """A span of one part that is quoted, and its tokens with a separator."""

    start: int
    end: int
    tokens: int


@dataclass(slots=True)
class _Part:
    """Quoted pieces of one part, in order, none longer than `WIDTH`."""

    item: Item
    text: str = field(init=False)
    pieces: list[_Piece] = field(default_factory=list[_Piece])

    def __post_init__(self) -> None:
        self.text = readable_text(self.item)

    @property
    def data(self) -> bool:
        """True if the text is JSON, whose syntax is not quoted."""
        return self.text[:1] in ("{", "[")

    @property
    def prose(self) -> bool:
        """True if a user or the model wrote it."""
        return self.item.kind in (Kind.USER, Kind.TEXT)

    def touched(self, start: int, end: int) -> slice:
        """Pieces that a span joins because it touches them."""
        first = bisect_left(self.pieces, start, key=lambda piece: piece.end)
        return slice(first, bisect_right(self.pieces, end, key=lambda piece: piece.start))

    def holds(self, mention: Mention) -> bool:
        """True if the mention is in a piece."""
        start = mention.specific.offset
        end = start + len(mention.specific.verbatim)
        return any(piece.start <= start and end <= piece.end for piece in self.pieces[self.touched(start, end)])

    def longer(self, mention: Mention, counter: TokenCounter) -> tuple[slice, _Piece]:
        """Piece that quotes a mention too, and the pieces that it replaces."""
        start = mention.specific.offset
        end = start + len(mention.specific.verbatim)
        wide = self._around(start, end)
        old = self.touched(*wide)
        joined = self.pieces[old]
        low, high = min([wide[0], *(piece.start for piece in joined)]), max([wide[1], *(piece.end for piece in joined)])
        if joined and high - low > WIDTH:  # the text between them is quoted already, so the bare identifier will do
            slot = bisect_left(self.pieces, start, key=lambda piece: piece.start)
            low, high, old = start, end, slice(slot, slot)
        return old, _Piece(start=low, end=high, tokens=counter.text(self.separator + self.shown(low, high)))

    def _around(self, start: int, end: int) -> tuple[int, int]:
        """Span to quote for an identifier: its clause in prose, elsewhere from the name of its field."""
        if self.prose:
            return _clause(self.text, start, end)
        key = field_before(self.text, start)
        return (key.start() if key else start), end

    @property
    def separator(self) -> str:
        """Text between two pieces."""
        return ", " if self.data else " … "

    def shown(self, start: int, end: int) -> str:
        """Text of a span on one line."""
        text = self.text[start:end]
        return one_line(_SYNTAX.sub("", text) if self.data else text, WIDTH)

    def quotation(self) -> str:
        """Text of all pieces."""
        quoted = self.separator.join(self.shown(piece.start, piece.end) for piece in self.pieces)
        if not self.prose or not self.pieces:
            return quoted
        first, last = self.text[: self.pieces[0].start].rstrip(" "), self.text[self.pieces[-1].end :].lstrip(" ")
        before = "… " if first and first[-1] not in ENDS else ""
        after = " …" if last and last[0] not in ENDS and quoted[-1:] not in ENDS else ""
        return f"{before}{quoted}{after}"


@dataclass(slots=True, kw_only=True)
class _Line:
    """One line of the list, with all identifiers of one call or message."""

    label: str
    before: str
    """Text before the pieces of the first part."""
    first: _Part
    short: str = ""
    """Short form of a call, used if it contains all identifiers of the pieces."""
    brief: bool = True
    answer: _Part | None = None
    """Pieces of the result of a call."""

    @property
    def text(self) -> str:
        """Text after the label."""
        quoted = self.first.quotation()
        if self.first.item.kind is Kind.CALL:
            quoted = self.short if self.brief else f"(… {quoted})"
        return f"{self.before}{quoted}" + (f" → {self.answer.quotation()}" if self.answer else "")


class _List:
    """The lines of the list; a result is on the line of its call.

    Every identifier is quoted and counted once, as a part of one short piece, so the time is linear in their number.
    """

    def __init__(self, selection: Selection) -> None:
        self._history, self._counter = selection.history, selection.counter
        self._calls = {result: call for result, call in calls_of_results(selection.history.readings) if call}
        self._lines: dict[Place, _Line] = {}
        self._labels: set[str] = set()

    def add(self, homes: Iterable[Mention], left: int) -> int:
        """Quote an identifier from the home that costs the fewest tokens; returns them.

        The list stays as it is if they are more than `left`, or 0 because the identifier is quoted already.
        """
        cost, commit = min((self._cost(home) for home in homes), key=lambda option: option[0])
        if 0 < cost <= left:
            commit()
        return cost

    def _cost(self, mention: Mention) -> tuple[int, Callable[[], None]]:
        """Tokens that quoting a mention adds, and the step that adds it."""
        own = mention.position, mention.part
        key = self._calls.get(own, own)
        line = self._lines.get(key) or self._new_line(key, mention)
        part = line.first if key == own else line.answer or _Part(self._item(own))
        has_line, in_call = key in self._lines, key == own
        brief = bool(line.short) and line.brief and (not in_call or TextSet(line.short).holds(mention.specific))
        if has_line and (part.holds(mention) or (in_call and brief)):
            return 0, lambda: None
        old, piece = part.longer(mention, self._counter)
        cost = piece.tokens - sum(replaced.tokens for replaced in part.pieces[old])
        if in_call and line.brief and line.short:  # pieces cost something only instead of the short form
            cost = 0 if brief else cost + sum(quoted.tokens for quoted in part.pieces) - self._counter.text(line.short)
        if not has_line:
            label = AND if line.label in self._labels else f"{line.label}\n"
            cost += self._counter.text(f"{label}{line.before}{line.short}")

        def commit() -> None:
            part.pieces[old] = [piece]
            line.brief = brief
            if not in_call:
                line.answer = part
            self._lines[key] = line
            self._labels.add(line.label)

        return max(1, cost), commit

    def _item(self, place: Place) -> Item:
        return self._history.readings[place[0]].items[place[1]]

    def _new_line(self, key: Place, mention: Mention) -> _Line:
        item = self._item(key)
        tool = one_line(item.tool or "tool", 40) if item.kind in (Kind.CALL, Kind.RETURN) else ""
        short = call_line(item.tool or "tool", item.text) if item.kind is Kind.CALL else ""
        return _Line(
            label=f"[turn {mention.turn + 1} · {mention.speaker}] {tool}",
            before=" → " if item.kind is Kind.RETURN else "",
            first=_Part(item),
            short=short[short.find("(") :],
        )

    def text(self) -> str:
        """Text of all lines; those with the same label share it."""
        by_label: dict[str, list[str]] = {}
        for key in sorted(self._lines):
            by_label.setdefault(self._lines[key].label, []).append(self._lines[key].text)
        return "\n".join(label + AND.join(texts) for label, texts in by_label.items())


def _clause(text: str, start: int, end: int) -> tuple[int, int]:
    """Sentence around a span, as far as it is within `CLAUSE` characters; then it begins and ends between words."""
    low, high = max(0, start - CLAUSE), min(len(text), end + CLAUSE)
    edges = [low + edge for edge in sentence_ends(text[low:high])]
    before, after = [edge for edge in edges if edge <= start], [edge for edge in edges if edge >= end]
    first = before[-1] if before else low and (text.find(" ", low, start) + 1 or start)
    last = after[0] if after else high if high == len(text) else max(end, text.rfind(" ", end, high))
    return first, max(end, first + len(text[first:last].rstrip()))
