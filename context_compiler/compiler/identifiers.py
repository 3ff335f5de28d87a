"""Identifiers of left-out messages that later calls may need, likeliest first.

What calls were made with says what calls are made with: where the values of a field have been used, its other
values are likely to be.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import log2

from context_compiler.compiler.cut_order import Selection
from context_compiler.compiler.patterns import Sort
from context_compiler.compiler.specifics import FIELD, LISTED, Mention, TextSet, mentions, readable_text, runs_command
from context_compiler.messages.fences import one_line
from context_compiler.messages.history import History
from context_compiler.messages.items import Kind
from context_compiler.messages.shapes import WHOLE, apply_shape
from context_compiler.messages.tool_lines import call_line
from context_compiler.tokens import TokenCounter

LATER = frozenset({Sort.ID, Sort.PATH, Sort.URL})
"""Sorts of identifier that calls are made with."""

LONG = 1.0
"""Score lost per doubling of length: a long command takes the room of ten numbers."""

CALLED, REPEATED, RECENT, MANY, IN_FIELD = 2.0, 0.5, 1.0, 0.5, 2.0
"""Scores for having been called with, repeated, recent, alone, and in a used field."""


@dataclass(slots=True, kw_only=True)
class MissingIdentifier:
    """Something that the view does not hold."""

    homes: list[Mention]
    """Places to quote it from: the last call made with it, its last mention, and its first."""
    times: int = 0
    called: bool = False
    last: int = 0
    """The position of the last message that holds it."""
    fields: set[str] = field(default_factory=set[str])


def missing_identifiers(selection: Selection) -> list[MissingIdentifier]:
    """Identifiers that the kept messages do not hold, those used in calls first."""
    whole = {index for index, shape in enumerate(selection.draft.shapes) if shape == WHOLE}
    found: dict[str, MissingIdentifier] = {}
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
        _note(found.setdefault(text, MissingIdentifier(homes=[mention, mention, mention])), mention)
    rates = {name: (len(values & called) + 0.5) / (len(values) + 2) for name, values in fields.items() if name}
    holds = TextSet(*_kept_texts(selection)).holds
    length = max(1, len(selection.history))

    def rank(need: MissingIdentifier) -> tuple[bool, float]:
        alone = min(beside[home.position, home.part] for home in need.homes)
        rate = max((rates.get(name, 0.0) for name in need.fields), default=0.0)
        worth = CALLED * need.called + REPEATED * log2(1 + need.times) + RECENT * need.last / length
        one = need.homes[0].specific
        later = one.sort in LATER
        long = 0.0 if later else LONG * log2(1 + len(one.verbatim))
        return not later, MANY * log2(1 + alone) + long - worth - IN_FIELD * rate

    return sorted((need for need in found.values() if not holds(need.homes[0].specific)), key=rank)


def _note(need: MissingIdentifier, mention: Mention) -> None:
    need.times, need.last = need.times + 1, mention.position
    need.called = need.called or mention.called
    need.fields.add(mention.field)
    need.homes[1] = mention
    if mention.called or not need.homes[0].called:
        need.homes[0] = mention


def _kept_texts(selection: Selection) -> Iterator[str]:
    """Text of the kept messages, as they are kept."""
    for index, shape in enumerate(selection.draft.shapes):
        if shape is None or shape.bare:
            continue
        reading, message = selection.history.readings[index], selection.history.messages[index]
        if shape == WHOLE:
            yield from (readable_text(item) for item in reading.items if item.kind is not Kind.THINKING)
            continue
        left = apply_shape(message, reading, shape, selection.counter)
        yield from (
            (str(getattr(part, "content", "") or getattr(part, "args", "")) for part in left.parts) if left else ()
        )


SHARE = 0.15
"""Of the room for messages: what the ledger may have where tools are used."""

PART = 3
"""Divisor of the room for identifiers and quotes that applies without a model and in a live chat: the ledger has a
third, because what answers the question comes first. In tool work of a live agent it has the rest: a prompt has a block
of its own, and most requests are answered with another call."""

SMALLEST = 24
"""With less room, in tokens, there is no ledger."""

SPARE = 12
"""Tokens; more that quotes have no use for are the ledger's again."""

NEAR, FAR = 1, 2
"""Words on each side of an identifier, where room is short and where it is not."""
SHORT = 400
"""Tokens; a ledger with less room is short."""
CALL = 72
"""Characters of a call, where what matters is in its answer."""
TRIES = 24
"""Identifiers in a row that may not fit before the ledger is closed."""

AND = "; "
"""Between what shares a label."""

Key = tuple[int, int]
"""Message and part."""

WIDTH = 48
"""Characters on each side in which they are looked for."""

_WORD = re.compile(r"\w[\w.-]*")
_SYNTAX = re.compile(r'["{}\[\]]+')


def uses_tools(history: History) -> bool:
    """True if tools or a shell are called more than once in a while."""
    acting = sum(reading.exchanges or any(map(runs_command, reading.items)) for reading in history.readings)
    return acting * 8 >= len(history.readings)


def identifier_room(history: History, room: int) -> int:
    """Tokens reserved for preserved identifiers, out of the room for messages."""
    return int(room * SHARE) if uses_tools(history) else 0


def identifiers_and_quotes(
    selection: Selection, shown: Sequence[str], room: int, quoting: Callable[[int], str], *, lost: bool
) -> str:
    """Ledger and quotes, together at most `room` tokens: what the ledger does not need is the quotes'.

    Args:
        selection: What stays and what is out.
        shown: What stands beside them: the note, and what is pinned.
        room: The most tokens that both may cost.
        quoting: Gives quotes of at most so many tokens.
        lost: A model has written a summary, and what it lost is listed.
    """
    most = int(selection.limits.room * SHARE) if lost or uses_tools(selection.history) else 0
    missing = missing_identifiers(selection) if most >= SMALLEST else []
    part = room // PART
    without = room - part if selection.lasting and selection.tools else part
    own = min(most, room if lost and not selection.chat else without)
    quotes = quoting(room - own)
    listed = list_identifiers(selection, missing, (*shown, quotes), own)
    used = selection.counter.text(listed) + 2 if listed else 0
    if own - used > SMALLEST:
        quotes = quoting(room - used)
    rest = min(most, room - selection.counter.text(quotes) - 2)
    if rest - used > SPARE:
        listed = list_identifiers(selection, missing, (*shown, quotes), rest)
    return "\n\n".join(block for block in (listed, quotes) if block)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """One line of the ledger, as far as it has got."""

    mentions: tuple[Mention, ...] = ()
    label: str = ""
    text: str = ""


def list_identifiers(
    selection: Selection, missing: Iterable[MissingIdentifier], shown: Sequence[str], room: int
) -> str:
    """Missing identifiers that `shown` does not hold either, at most `room` tokens.

    Args:
        selection: What stays and what is out.
        missing: What the messages kept do not hold.
        shown: What stands beside the messages: note and quotes.
        room: The most tokens that it may cost.
    """
    if room < SMALLEST:
        return ""
    holds = TextSet(*shown).holds
    lines: dict[Key, _Line] = {}
    labels: set[str] = set()
    left = room - 2
    written = _Writer(selection, NEAR if room < SHORT else FAR)
    missed = 0
    for one in (one for one in missing if not holds(one.homes[0].specific)):
        if missed > TRIES or left < 4:
            break
        cost, key, line = min(
            (_added(home, lines, labels, written, selection.counter) for home in dict.fromkeys(one.homes)),
            key=lambda found: found[0],
        )
        if cost > left:
            missed += 1
        elif cost:
            lines[key], left, missed = line, left - cost, 0
            labels.add(line.label)
    return _together(lines)


def _added(
    home: Mention, lines: Mapping[Key, _Line], labels: set[str], written: _Writer, counter: TokenCounter
) -> tuple[int, Key, _Line]:
    """Tokens that quoting an identifier from there adds, and the line to quote; 0 if it is quoted already."""
    key = written.key(home)
    line = lines.get(key, _Line())
    if line.mentions and TextSet(line.text).holds(home.specific):
        return 0, key, line
    longer = written.line((*line.mentions, home))
    if line.text:
        return counter.text(longer.text) - counter.text(line.text), key, longer
    shares = longer.label in labels
    return counter.text(f"{AND}{longer.text}" if shares else f"{longer.label}{longer.text}\n"), key, longer


def _together(lines: Mapping[Key, _Line]) -> str:
    """Every line; what has the same label shares it."""
    found: dict[str, list[str]] = {}
    for key in sorted(lines):
        found.setdefault(lines[key].label, []).append(lines[key].text)
    return "\n".join(label + AND.join(texts) for label, texts in found.items())


class _Writer:
    """Writes lines of the ledger; knows which call an answer belongs to."""

    def __init__(self, selection: Selection, words: int) -> None:
        self._history, self._words = selection.history, words
        self._calls: dict[tuple[int, int], tuple[int, int]] = {}
        waiting: defaultdict[object, list[tuple[int, int]]] = defaultdict(list)
        for position, reading in enumerate(selection.history.readings):
            for part, item in enumerate(reading.items if reading.exchanges else ()):
                if item.kind is Kind.CALL:
                    waiting[item.call_id].append((position, part))
                elif item.kind is Kind.RETURN and waiting[item.call_id]:
                    self._calls[position, part] = waiting[item.call_id].pop(0)

    def key(self, mention: Mention) -> tuple[int, int]:
        """Key of a line: a call and its result share one, else each part has its own."""
        own = mention.position, mention.part
        return self._calls.get(own, own)

    def line(self, mentions: tuple[Mention, ...]) -> _Line:
        """The line that quotes these, which share a key."""
        first = mentions[0]
        position, part = self.key(first)
        item = self._history.readings[position].items[part]
        asked = [one for one in mentions if (one.position, one.part) == (position, part)]
        answers = [one for one in mentions if (one.position, one.part) != (position, part)]
        text = _pieces(readable_text(item), asked, self._words)
        if item.kind is Kind.CALL:
            short = call_line(item.tool or "tool", item.text, width=CALL)
            named = TextSet(short)
            text = short[short.find("(") :] if all(named.holds(one.specific) for one in asked) else f"(… {text})"
        elif item.kind is Kind.RETURN:
            text = f" → {text}"
        if answers:
            at, place = answers[0].position, answers[0].part
            text += " → " + _pieces(readable_text(self._history.readings[at].items[place]), answers, self._words)
        tool = one_line(item.tool or "tool", 40) if item.kind in (Kind.CALL, Kind.RETURN) else ""
        return _Line(mentions=mentions, label=f"[turn {first.turn + 1} · {first.speaker}] {tool}", text=text)


def _pieces(text: str, wanted: Iterable[Mention], words: int) -> str:
    """The text with what stands around each of these, in order; what lies close together is one piece."""
    spans: list[list[int]] = []
    data = text[:1] in ("{", "[")
    for one in sorted(wanted, key=lambda mention: mention.specific.offset):
        start, end = one.specific.offset, one.specific.offset + len(one.specific.verbatim)
        start, end = _around(text, start, end, words)
        if spans and start <= spans[-1][1] + 4:
            spans[-1][1] = max(end, spans[-1][1])
        else:
            spans.append([start, end])
    shown = (text[start:end] for start, end in spans)
    return (", " if data else " … ").join(one_line(_SYNTAX.sub("", piece) if data else piece, 400) for piece in shown)


def _around(text: str, start: int, end: int, words: int) -> tuple[int, int]:
    """Span of the text around an identifier: its field, else words on each side."""
    key = FIELD.search(text, max(0, start - LISTED), start)
    if key:
        return key.start(), end
    before = list(_WORD.finditer(text, max(0, start - WIDTH), start))[-words:]
    after = list(_WORD.finditer(text, end, min(len(text), end + WIDTH)))[:words]
    return (before[0].start() if before else start), (after[-1].end() if after else end)
