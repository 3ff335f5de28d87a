"""List identifiers of left-out messages that later tool calls may need, most likely first.

Past calls show which ones: a field whose values were used in calls will probably be used again.
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
from context_compiler.messages.items import Item, Kind
from context_compiler.messages.shapes import WHOLE, apply_shape
from context_compiler.messages.tool_lines import call_line
from context_compiler.messages.turns import Place, calls_of_results
from context_compiler.recall import changes_of
from context_compiler.tokens import TokenCounter

ARGUMENTS = frozenset({Sort.ID, Sort.PATH, Sort.URL})
"""Kinds of identifiers used as call arguments; they precede all others in the list."""

LONG = 1.0
"""Score lost for each doubling of length by other kinds, because a long command takes the room of ten numbers."""

CALLED, REPEATED, RECENT, MANY, IN_FIELD = 2.0, 0.5, 1.0, 0.5, 2.0
"""Score added for use in a call, each doubling of mentions, recency (from 0 to 1), and the fraction of its field's
values that were used in calls; score lost (`MANY`) for each doubling of identifiers in the same part."""


SHARE = 0.15
"""Fraction of the room for messages: maximum size of the list if tools are used."""

PART = 3
"""Divisor of the tokens for the list and quotes. Without a model's summary, and in a live chat, the list gets one part,
because passages that answer the question matter more. For a live agent doing tool work, it gets the other two parts:
most responses are further calls, and the prompt has its own recall block."""

MIN_TOKENS = 24
"""Minimum size in tokens that a list must be allowed."""

SPARE = 12
"""Minimum tokens left by the quotes for the list to be rewritten."""

NEAR, FAR = 1, 2
"""Words quoted on each side of an identifier in a short list and in a longer one."""
FULL_LIST = 400
"""Minimum limit in tokens of a list that is not short."""
CALL = 72
"""Maximum length in characters of a call if the identifiers are in its result."""
TRIES = 24
"""Number of consecutive identifiers that may fail to fit; the next failure ends the list."""

AND = "; "
"""Separator of lines that share a label."""

WIDTH = 48
"""Characters on each side of an identifier that are searched for words to quote."""

_WORD = re.compile(r"\w[\w.-]*")
_SYNTAX = re.compile(r'["{}\[\]]+')


@dataclass(slots=True, kw_only=True)
class MissingIdentifier:
    """An identifier that the view does not contain."""

    homes: list[Mention]
    """Mentions from which it may be quoted: the last call with it (else the last mention), the last, and the first."""
    times: int = 0
    """Number of mentions."""
    called: bool = False
    """True if a call used it."""
    last: int = 0
    """Position of the last message that contains it."""
    fields: set[str] = field(default_factory=set[str])
    """Names of the fields of which it is a value."""


def missing_identifiers(selection: Selection) -> list[MissingIdentifier]:
    """Identifiers that the kept messages do not contain, most likely needed first."""
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
        _add_mention(found.setdefault(text, MissingIdentifier(homes=[mention, mention, mention])), mention)
    rates = {name: (len(values & called) + 0.5) / (len(values) + 2) for name, values in fields.items() if name}
    holds = TextSet(*_kept_texts(selection)).holds
    length = max(1, len(selection.history))
    outdated = changes_of(selection.history).outdated()

    def rank(one: MissingIdentifier) -> tuple[bool, float]:
        crowd = min(beside[home.position, home.part] for home in one.homes)
        rate = max((rates.get(name, 0.0) for name in one.fields), default=0.0)
        worth = CALLED * one.called + REPEATED * log2(1 + one.times) + RECENT * one.last / length
        specific = one.homes[0].specific
        argument = specific.sort in ARGUMENTS
        long = 0.0 if argument else LONG * log2(1 + len(specific.verbatim))
        return not argument, MANY * log2(1 + crowd) + long - worth - IN_FIELD * rate

    current = (one for text, one in found.items() if one.last >= outdated.get(text.lower(), 0))
    return sorted((one for one in current if not holds(one.homes[0].specific)), key=rank)


def _add_mention(one: MissingIdentifier, mention: Mention) -> None:
    one.times, one.last = one.times + 1, mention.position
    one.called = one.called or mention.called
    one.fields.add(mention.field)
    one.homes[1] = mention
    if mention.called or not one.homes[0].called:
        one.homes[0] = mention


def _kept_texts(selection: Selection) -> Iterator[str]:
    """Texts of the kept messages in their shapes."""
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
    missing = missing_identifiers(selection) if most >= MIN_TOKENS else []
    part = limit // PART
    without = limit - part if selection.lasting and selection.tool_work else part
    own = min(most, limit if lost and not selection.chat else without)
    quotes = quoting(limit - own)
    listed = list_identifiers(selection, missing, (*shown, quotes), own)
    used = selection.counter.text(listed) + 2 if listed else 0
    if own - used > MIN_TOKENS:
        quotes = quoting(limit - used)
    rest = min(most, limit - selection.counter.text(quotes) - 2)
    if rest - used > SPARE:
        listed = list_identifiers(selection, missing, (*shown, quotes), rest)
    return "\n\n".join(block for block in (listed, quotes) if block)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """One line of the list, with all identifiers of one call or message."""

    mentions: tuple[Mention, ...] = ()
    label: str = ""
    text: str = ""


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
    if limit < MIN_TOKENS:
        return ""
    holds = TextSet(*shown).holds
    lines: dict[Place, _Line] = {}
    labels: set[str] = set()
    left = limit - 2
    written = _Writer(selection, NEAR if limit < FULL_LIST else FAR)
    missed = 0
    for one in (one for one in missing if not holds(one.homes[0].specific)):
        if missed > TRIES or left < 4:
            break
        cost, key, line = min(
            (_cost_and_line(home, lines, labels, written, selection.counter) for home in dict.fromkeys(one.homes)),
            key=lambda found: found[0],
        )
        if cost > left:
            missed += 1
        elif cost:
            lines[key], left, missed = line, left - cost, 0
            labels.add(line.label)
    return _join_lines(lines)


def _cost_and_line(
    home: Mention, lines: Mapping[Place, _Line], labels: set[str], written: _Writer, counter: TokenCounter
) -> tuple[int, Place, _Line]:
    """Tokens that quoting an identifier from `home` adds, with the line and its key; 0 if it is quoted already."""
    key = written.key(home)
    line = lines.get(key, _Line())
    if line.mentions and TextSet(line.text).holds(home.specific):
        return 0, key, line
    longer = written.line((*line.mentions, home))
    if line.text:
        return counter.text(longer.text) - counter.text(line.text), key, longer
    shares = longer.label in labels
    return counter.text(f"{AND}{longer.text}" if shares else f"{longer.label}{longer.text}\n"), key, longer


def _join_lines(lines: Mapping[Place, _Line]) -> str:
    """Join all lines; those with the same label share it."""
    found: dict[str, list[str]] = {}
    for key in sorted(lines):
        found.setdefault(lines[key].label, []).append(lines[key].text)
    return "\n".join(label + AND.join(texts) for label, texts in found.items())


class _Writer:
    """Writes lines of the list; a result is written with its call."""

    def __init__(self, selection: Selection, words: int) -> None:
        self._history, self._words = selection.history, words
        self._calls = {result: call for result, call in calls_of_results(selection.history.readings) if call}
        self._spans: dict[Mention, tuple[int, int]] = {}  # each is needed for every longer version of its line

    def key(self, mention: Mention) -> Place:
        """Key of the line for a mention: a call and its result share one, any other part has its own."""
        own = mention.position, mention.part
        return self._calls.get(own, own)

    def line(self, mentions: tuple[Mention, ...]) -> _Line:
        """Line that quotes mentions with the same key."""
        first = mentions[0]
        position, part = self.key(first)
        item = self._history.readings[position].items[part]
        asked = [one for one in mentions if (one.position, one.part) == (position, part)]
        answers = [one for one in mentions if (one.position, one.part) != (position, part)]
        text = self._quote_around(item, asked)
        if item.kind is Kind.CALL:
            short = call_line(item.tool or "tool", item.text, width=CALL)
            named = TextSet(short)
            text = short[short.find("(") :] if all(named.holds(one.specific) for one in asked) else f"(… {text})"
        elif item.kind is Kind.RETURN:
            text = f" → {text}"
        if answers:
            at, place = answers[0].position, answers[0].part
            text += " → " + self._quote_around(self._history.readings[at].items[place], answers)
        tool = one_line(item.tool or "tool", 40) if item.kind in (Kind.CALL, Kind.RETURN) else ""
        return _Line(mentions=mentions, label=f"[turn {first.turn + 1} · {first.speaker}] {tool}", text=text)

    def _quote_around(self, item: Item, wanted: Iterable[Mention]) -> str:
        """Quote mentions in order, with the text around each; pieces that are close together are joined."""
        text, spans = readable_text(item), list[list[int]]()
        data = text[:1] in ("{", "[")
        for one in sorted(wanted, key=lambda mention: mention.specific.offset):
            start, end = self._span(text, one)
            if spans and start <= spans[-1][1] + 4:
                spans[-1][1] = max(end, spans[-1][1])
            else:
                spans.append([start, end])
        shown = (text[start:end] for start, end in spans)
        return (", " if data else " … ").join(one_line(_SYNTAX.sub("", one) if data else one, 400) for one in shown)

    def _span(self, text: str, mention: Mention) -> tuple[int, int]:
        if mention not in self._spans:
            start = mention.specific.offset
            self._spans[mention] = _around(text, start, start + len(mention.specific.verbatim), self._words)
        return self._spans[mention]


def _around(text: str, start: int, end: int, words: int) -> tuple[int, int]:
    """Span to quote for an identifier: from the name of its field, else with `words` words on each side."""
    key = FIELD.search(text, max(0, start - LISTED), start)
    if key:
        return key.start(), end
    before = list(_WORD.finditer(text, max(0, start - WIDTH), start))[-words:]
    after = list(_WORD.finditer(text, end, min(len(text), end + WIDTH)))[:words]
    return (before[0].start() if before else start), (after[-1].end() if after else end)
