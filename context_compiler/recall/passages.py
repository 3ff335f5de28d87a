"""Passages: short verbatim pieces of past messages, and the labelled lines in which they are quoted.

The first line has a label with turn, date and speaker. To save tokens, a later line has one only if the day or the
speaker changes, and names its turn only if the caller wants numbers. The cost of a passage therefore depends on its
neighbours; `Quotation` keeps the exact total.

A tool call and its outcome are one line, at the position of the call. If there is a question, pieces of the tool's
result (rows of JSON, lines of text) are passages too.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import nlargest
from itertools import chain, pairwise
from sys import getsizeof

from context_compiler.cache import CACHED, Memo
from context_compiler.messages.fences import TERMINAL, one_line
from context_compiler.messages.history import History, day
from context_compiler.messages.items import SCANNED, Item, Kind, parse_arguments, plain_text, separate_parts
from context_compiler.messages.prompts import sentence_ends
from context_compiler.messages.tool_lines import PARSED, call_line, outcome_line
from context_compiler.messages.turns import OUTPUT, Outline, calls_of_results
from context_compiler.recall.terms import holds_whole
from context_compiler.resilience import check_time
from context_compiler.tokens import TokenCounter, character_boundary

WIDTH = 480
"""Maximum length of a passage in characters; a longer text is split at the end of a sentence or line. What
`_escape_labels` puts before a passage does not count."""

NARROW = 240
"""Preferred maximum length in characters of a piece of a tool result, used if a line or row ends within it."""

MIN_QUOTE = 8
"""Minimum room in tokens for a quote, a list or a note; with less, there is none."""

PIECES = 24
"""Maximum number of pieces of one tool result that become passages, and of phases in an outline."""

UNDATED = "undated"

ROOM = 4_000_000
"""Size of each cache of what was made of whole messages."""

Judge = Callable[[str], float]
"""Computes the weight of a text for a question; 0 if they have nothing in common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A piece of a message, small enough to quote, with its price."""

    position: int
    """Position of its message."""
    order: int
    """Number within its message. Pieces of one text have consecutive numbers; between two parts a number is skipped."""
    turn: int
    """0-based; -1 before the first prompt."""
    speaker: str
    """user, assistant or tool."""
    text: str
    """Verbatim, including white space up to the next piece; a tool exchange is reduced to one line."""
    date: str
    """Day of the message, as YYYY-MM-DD; empty if unknown."""
    tokens: int
    """Tokens as the only line of a quotation: full label, text and line end. The next five fields say what is saved
    after another line."""
    label: int
    """Tokens of the full label; saved if the line before is the previous piece of the same text."""
    opening: int
    """Tokens of the label's fixed words and separators, which only the first line has."""
    day: int
    """Tokens of the date; saved if the line before has the same date."""
    year: int
    """Tokens of the year in the date; saved if the line before has the same year."""
    number: int
    """Tokens of the turn number; saved in lines that do not name it."""
    first: bool
    """True if it begins its part."""
    tool: str = ""
    """Name of the tool, for a piece of its result; else empty."""
    changed: int | None = None
    """Turn in which a later message revises this one; None if none does."""
    outdated: tuple[str, ...] = ()
    """Sentences that a later message revises."""
    beside: tuple[tuple[int, int], ...] = ()
    """Places of the passages that revise it; it is quoted only beside all of them."""

    @property
    def place(self) -> tuple[int, int]:
        """Key of the passage within its history: `(position, order)`."""
        return self.position, self.order

    def cost_after(self, before: Passage | None, *, numbered: bool = False) -> int:
        """Tokens of the passage directly after the line `before`; None if it is the first line."""
        if before is None:
            return self.tokens
        if self.continues(before):
            return self.tokens - self.label
        number = 0 if numbered and before.turn != self.turn else self.number
        if before.date != self.date:
            year = self.year if before.date[:4] == self.date[:4] else 0
            return self.tokens - self.opening - (0 if numbered else self.number) - year
        if number and before.who == self.who:
            return self.tokens - self.label
        return self.tokens - self.opening - self.day - number

    @property
    def who(self) -> str:
        """Speaker as a label names it: with the tool, and the turn of a change."""
        who = f"{self.speaker} {self.tool}" if self.tool else self.speaker
        return who if self.changed is None else f"{who}, changed at turn {self.changed + 1}"

    def continues(self, before: Passage) -> bool:
        """True if this is the next piece of the same text, so that both share a line."""
        together = before.position == self.position and before.order + 1 == self.order
        return together and before.changed == self.changed


def passages(
    history: History, outline: Outline, positions: Iterable[int], counter: TokenCounter, bears: Judge | None = None
) -> tuple[Passage, ...]:
    """Split messages into quotable passages, in order.

    User and assistant text becomes pieces of at most `WIDTH` characters, media become placeholders, and a tool call
    with its result becomes one line. Thinking, system text, and parts written by the host or this package are skipped.

    Args:
        history: The raw history.
        outline: Its turns.
        positions: Positions of the messages to split.
        counter: Prices the passages.
        bears: Weighs pieces of tool results. The `PIECES` heaviest of each result with a weight above 0 become passages
            too; None for no pieces of results.
    """
    wanted = sorted(set(positions))
    starts = outline.starts
    exchanges = _exchanges(history, set(wanted), results=bears is not None)
    price, names, readings = _price(counter), history.ids, history.readings
    pieces: list[Passage] = []
    turn, stop, last = 0, 0, len(history)
    for position in wanted:
        if position >= stop:
            turns_begun = bisect_right(starts, position)
            turn = outline.turns[turns_begun - 1].index
            stop = starts[turns_begun] if turns_begun < len(starts) else last
        reading = readings[position]
        if reading.exchanges:
            check_time()
            pieces += _of_message(history, position, turn, exchanges, price, bears)
        else:
            key = (id(counter), names[position], turn, reading.day)
            kept = _known.get(key)
            if kept is None:
                check_time()
                kept = counter, _of_message(history, position, turn, exchanges, price)
                _known.keep(key, kept)
            pieces += kept[1]
    return tuple(pieces)


def _weigh(kept: tuple[TokenCounter, tuple[Passage, ...]]) -> int:
    _, pieces = kept
    return getsizeof(pieces) + sum(len(passage.text) for passage in pieces)


_known: Memo[tuple[int, str, int, str], tuple[TokenCounter, tuple[Passage, ...]]] = Memo(ROOM, _weigh)
"""Passages of messages without tool exchanges, by counter, chain id, turn and day."""


def new_passages(candidates: Iterable[Passage], *shown: str) -> list[Passage]:
    """Filter passages for those whose text is not contained, in whole words, in any of the texts `shown`."""
    left = [*candidates]
    for text in shown:
        runs = _shown.get_or_make(text, lambda text=text: _runs(text))
        left = [
            passage
            for passage in left
            if not (runs.issuperset(_opening(passage.text)) and holds_whole(text, passage.text.strip()))
        ]
    return left


_shown: Memo[str, frozenset[Hashable]] = Memo(ROOM, getsizeof)
"""Words and pairs of adjacent words in the texts that views show. The text of a view is the same for many turns."""


def _runs(shown: str) -> frozenset[Hashable]:
    words = shown.split()
    return frozenset(chain(words, pairwise(words)))


@lru_cache(maxsize=8_192)
def _opening(text: str) -> Sequence[Hashable]:
    """First pairs of words of a passage, or its only word, without any that may be cut off.

    Any text that contains the passage has all of them, and few other texts do, so few have to be searched.
    """
    words = text.split(maxsplit=8)[1:-1]
    return [*pairwise(words)] or words


def _of_message(
    history: History,
    position: int,
    turn: int,
    exchanges: Mapping[tuple[int, int], _Exchange],
    price: _Price,
    bears: Judge | None = None,
) -> tuple[Passage, ...]:
    """Quotable passages of one message."""
    message, order = history.messages[position], 0
    passages_of_message: list[Passage] = []
    for index, (part, item) in enumerate(zip(separate_parts(message), history.readings[position].items, strict=True)):
        exchange = exchanges.get((position, index))
        date = day(getattr(part, "timestamp", None)) or day(getattr(message, "timestamp", None))
        pieces = result_pieces(exchange.result) if exchange is not None and bears is not None else ()
        heaviest = _heaviest(pieces, bears) if bears is not None else []
        speaker, texts = _quotable_pieces(item, (exchange.call if heaviest else exchange.line) if exchange else "")
        if texts:
            passage = price.labelled(turn, date, speaker)
            passages_of_message += [
                passage(position, order + number, text, number == 0) for number, text in enumerate(texts)
            ]
        order += len(texts) + 1
        if heaviest and exchange is not None:
            passage = price.labelled(turn, date, "tool", _NO_NAME.sub("_", exchange.tool)[:64])
            passages_of_message += [passage(position, order + number, pieces[number], True) for number in heaviest]
        order += len(pieces) + 1 if pieces else 0
    return tuple(passages_of_message)


def _heaviest(pieces: Sequence[str], bears: Judge) -> list[int]:
    """Indices of the `PIECES` heaviest pieces, in order."""
    weights = [(weight, -number) for number, piece in enumerate(pieces) if (weight := bears(piece))]
    return sorted(-number for _, number in nlargest(PIECES, weights))


_SPEAKERS = {Kind.USER: "user", Kind.TEXT: "assistant", Kind.MEDIA: "assistant", Kind.COMPACTION: "assistant"}

_NO_NAME = re.compile(r"[^\w.:-]+")
"""Characters that a label replaces in the name of a tool."""


_LABEL = re.compile(
    r"(?im)((?:^|[\r\v\f\x1c-\x1e\x85\u2028\u2029])[^\S\n]{0,80})"
    r"(?=\[(?:(?:from )?turn \d|(?:\d+ )?(?:[\w-]+ ){0,2}(?:user|assistant|tool(?: [\w.:-]+)?)"
    r"(?:, changed at turn \d+)?\]))"
)
"""A line, or a piece, that begins with what looks like a label. It is prefixed with `> `, so that a text cannot forge a
quotation of another speaker."""


def _quotable_pieces(item: Item, exchange: str) -> tuple[str, list[str]]:
    """Speaker and quotable pieces of a part; `exchange` is the line of its tool exchange, empty for none."""
    answer = answer_text(item)
    if exchange and not answer:
        return "tool", [exchange]
    if item.mark is not None or not (answer or item.kind in _SPEAKERS):
        return "", []
    text = _escape_labels((answer or item.text).strip())
    speaker = _SPEAKERS.get(item.kind, "assistant")
    return speaker, [_escape_labels(piece) for piece in text_pieces(text) if not piece.isspace()] if text else []


def answer_text(item: Item) -> str:
    """Text of a final answer that was given through an output tool; empty for anything else."""
    if item.kind is not Kind.CALL or not (item.tool or "").startswith(OUTPUT) or len(item.text) > PARSED:
        return ""
    arguments = parse_arguments(item.text) or {}
    texts = [plain_text(value) for value in arguments.values()]
    named = [f"{name}: {text}" for name, text in zip(arguments, texts, strict=True)]
    return "\n".join(named if len(texts) > 1 else texts)


def _escape_labels(text: str) -> str:
    return _LABEL.sub(r"\1> ", text) if "[" in text else text


def text_pieces(text: str) -> Iterator[str]:
    """Split a text into pieces of at most `WIDTH` characters.

    A piece ends at its last sentence or line end, else between words, else at its full width.
    """
    start = 0
    while len(text) - start > WIDTH:
        window = text[start : start + WIDTH]
        size = max(sentence_ends(window), default=0) or window.rfind(" ") + 1
        end = start + size if size else character_boundary(text, start + WIDTH, -1)
        yield text[start:end]
        start = end
    yield text[start:]


_LINE = re.compile(r"\n")
_JSON = re.compile(r'"(?:[^"\\]|\\.)*"?|[{}\[\]]|,\s*')
"""A JSON token that matters for splitting: a string, a bracket or a comma."""

_results: Memo[str, tuple[str, ...]] = Memo(ROOM, lambda pieces: getsizeof(pieces) + sum(map(len, pieces)))


def result_pieces(text: str) -> tuple[str, ...]:
    """Pieces of a tool result; of a very long one only the two ends are split."""
    pieces = _results.get(text)
    if pieces is None:
        ends = (text,) if len(text) <= 2 * SCANNED else (text[:SCANNED], text[-SCANNED:])
        texts = (_escape_labels(TERMINAL.sub("", end).strip()) for end in ends)
        pieces = tuple(_escape_labels(piece) for text in texts for piece in _result_rows(text))
        _results.keep(text, pieces)
    return pieces


def _result_rows(text: str) -> Iterator[str]:
    """Split a result at the ends of JSON rows, fields or text lines, else between words, else at full width."""
    start, row_end = 0, _field_end if text[:1] in ("{", "[") else _line_end
    while len(text) - start > NARROW:
        window = text[start : start + WIDTH]
        size = row_end(window) or (len(window) if len(window) < WIDTH else window.rfind(" ") + 1)
        end = start + size if size else character_boundary(text, start + WIDTH, -1)
        if not text[start:end].isspace():
            yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def _line_end(window: str) -> int:
    """End of the last line within `NARROW` characters, else of the first line; 0 if no line ends in the window."""
    ends = [match.end() for match in _LINE.finditer(window)]
    return max((end for end in ends if end <= NARROW), default=ends[0] if ends else 0)


def _field_end(window: str) -> int:
    """End of the row that begins the window, else of the outermost field within `NARROW` characters; 0 if none ends."""
    depth, ends = 0, list[tuple[int, int]]()
    for match in _JSON.finditer(window):
        sign = match[0][0]
        depth += (sign in "{[") - (sign in "}]")
        if sign == ",":
            ends.append((depth, match.end()))
    whole = [end for depth, end in ends if depth <= (window[:2] == "[{")] if window.lstrip("[")[:1] == "{" else []
    if whole and (whole[0] > NARROW or len(window) < WIDTH):
        return max((end for end in whole if end <= NARROW), default=whole[0])
    near = [(depth, -end) for depth, end in ends if end <= NARROW]
    return -min(near)[1] if near else 0


@dataclass(slots=True)
class _Exchange:
    """A tool call with its outcome, or a result without its call."""

    call: str
    """The call as one line; the tool's name if there is only a result."""
    tool: str
    outcome: str = ""
    result: str = ""

    @property
    def line(self) -> str:
        """The exchange as one line."""
        return f"{self.call} → {self.outcome}" if self.outcome else self.call


def _exchanges(history: History, wanted: set[int], *, results: bool) -> dict[tuple[int, int], _Exchange]:
    """Tool exchanges of the `wanted` messages, by message and part.

    With `results`, a call gets its outcome even if the result is in a message that is not wanted.
    """
    readings = history.readings
    exchanges = {
        (position, index): _Exchange(call_line(item.tool or "tool", item.text), item.tool or "tool")
        for position in wanted
        for index, item in enumerate(readings[position].items if readings[position].exchanges else ())
        if item.kind is Kind.CALL and item.call_id is not None
    }
    any_calls = any(readings[position].exchanges for position in wanted)
    for (position, index), call in calls_of_results(readings if any_calls else ()):
        item = readings[position].items[index]
        if (item.tool or "").startswith(OUTPUT):
            continue
        if call in exchanges and (results or position in wanted):
            exchanges[call].outcome, exchanges[call].result = outcome_line(item.text, failed=item.failed), item.text
        elif position in wanted:
            name = one_line(item.tool or "tool", 64)
            exchanges[position, index] = _Exchange(name, name, outcome_line(item.text, failed=item.failed), item.text)
    return exchanges


class _Price:
    """Prices passages by the pieces of their lines; the pieces of labels are cached."""

    def __init__(self, counter: TokenCounter) -> None:
        self._text = counter.text
        self._count = lru_cache(maxsize=CACHED)(counter.text)
        self._spare = 0 if counter.text("a") else 1
        """Extra token for each piece if the counter rounds down, because the sum would be too small."""

    def labelled(self, turn: int, date: str, speaker: str, tool: str = "") -> Callable[[int, int, str, bool], Passage]:
        """Price the label of the passages of one part, and return a function that builds each passage with its price.

        The function takes the position of the message, the number of the passage there, its text, and True if it is the
        first.
        """
        pieces = (
            "from turn · ·.",
            f" {date or UNDATED}",
            f"[{turn + 1}",
            f"[{speaker} {tool}]" if tool else f"[{speaker}]",
        )
        text_tokens, spare = self._text, self._spare
        opening, day, number, who = (self._count(piece) + spare for piece in pieces)
        short = self._count(f" {_in_year(date)}") + spare if date else day
        label, year = opening + day + number + who, max(0, day - short)

        def passage(position: int, order: int, text: str, first: bool) -> Passage:
            return Passage(
                position=position,
                order=order,
                turn=turn,
                speaker=speaker,
                text=text,
                date=date,
                tokens=label + text_tokens(f" {text}\n") + spare,
                label=label,
                opening=opening,
                day=day,
                year=year,
                number=number,
                first=first,
                tool=tool,
            )

        return passage


_price = lru_cache(_Price)


def _in_year(date: str) -> str:
    """Date without its year: `May 15`."""
    return f"{_MONTHS[int(date[5:7]) - 1]} {int(date[8:])}"


_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def write_quotation(chosen: Sequence[Passage], *, numbered: bool = False) -> str:
    """Write passages as labelled lines. The result is untrusted data, so the caller must fence it.

    The first line is `[from turn 12 · 2024-05-15 · user] text`. Later lines of the same day and speaker, also those of
    later turns, begin with a space. Others have a label: `[assistant] text` on the same day, `[May 28 user] text` on
    another day of the same year. If `numbered`, every line of another turn has one, with its number: `[14 user] text`,
    `[20 May 28 user] text`.
    """
    lines: list[str] = []
    before: Passage | None = None
    for passage in chosen:
        if before is not None and passage.continues(before):
            lines[-1] += passage.text
        else:
            lines.append(f"{_label(passage, before, numbered)} {passage.text}")
        before = passage
    return "\n".join(line.rstrip() for line in lines)


def _label(passage: Passage, before: Passage | None, numbered: bool) -> str:
    """Label of a line; empty if the line before has the same."""
    who = passage.who
    if before is None:
        return f"[from turn {passage.turn + 1}{f' · {passage.date}' if passage.date else ''} · {who}]"
    number = f"{passage.turn + 1} " if numbered else ""
    if before.date != passage.date:
        same_year = passage.date and before.date[:4] == passage.date[:4]
        return f"[{number}{_in_year(passage.date) if same_year else passage.date or UNDATED} {who}]"
    number = number if before.turn != passage.turn else ""
    return f"[{number}{who}]" if number or before.who != who else ""


class Quotation:
    """Collects passages up to a number of tokens; the total is exact for any combination of neighbours."""

    def __init__(self, candidates: Sequence[Passage], room: int, *, numbered: bool = False) -> None:
        """Start with none taken, and `room` tokens left; `candidates` are in order of the conversation."""
        self._numbered = numbered
        self.candidates = candidates
        self._taken: list[int] = []
        self.left = room

    def take(self, index: int) -> bool:
        """Take a candidate if it fits; True if it was taken."""
        slot = bisect_left(self._taken, index)
        cost = self._cost(index, slot)
        if cost > self.left:
            return False
        self._taken.insert(slot, index)
        self.left -= cost
        return True

    def fits(self, index: int) -> bool:
        """True if a candidate would fit."""
        return self._cost(index, bisect_left(self._taken, index)) <= self.left

    def _cost(self, index: int, slot: int) -> int:
        """Tokens that a candidate adds as the `slot`-th of those taken, including the change in the line after it."""
        passage, before = self.candidates[index], self.candidates[self._taken[slot - 1]] if slot else None
        cost = passage.cost_after(before, numbered=self._numbered)
        if slot < len(self._taken):
            after = self.candidates[self._taken[slot]]
            cost += after.cost_after(passage, numbered=self._numbered)
            cost -= after.cost_after(before, numbered=self._numbered)
        return cost

    def index(self, place: tuple[int, int]) -> int:
        """Index of the candidate with this place."""
        return bisect_left(self.candidates, place, key=lambda passage: passage.place)

    def has(self, index: int) -> bool:
        """True if a candidate was taken."""
        at = bisect_left(self._taken, index)
        return at < len(self._taken) and self._taken[at] == index

    @property
    def passages(self) -> tuple[Passage, ...]:
        """Passages taken, in order."""
        return tuple(self.candidates[index] for index in self._taken)
