"""An inverted index of a conversation that only grows, one document a message.

A tool's answer counts as said where the call was made, because there the exchange is quoted. Terms name the
messages they occur in with how often, in arrays: about 12 bytes an occurrence and 200 a distinct term.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence
from math import log1p

from context_compiler.cache import Memo
from context_compiler.messages.history import History, Reading
from context_compiler.messages.items import Item, Kind
from context_compiler.messages.prompts import instruction_sentences
from context_compiler.recall.changes import Changes
from context_compiler.recall.passages import answer_text
from context_compiler.recall.terms import terms

SPEAKERS = 4
NOBODY, USER, ASSISTANT, TOOL = range(SPEAKERS)
"""Speaker of a message."""

STANDING, PREFERENCE = 1, 2
"""Flags of a user's message: a standing instruction, a preference."""

TIMED, PLACED, LASTING = 4, 8, 16
"""Flags of a short message: it names a time, a place, a duration."""

CUES = 32
"""The flags of a message are below this number."""

BRIEF = 80
"""Terms; of a longer message it says little that it names a time or a place."""

SHORT = 30
"""Words; a longer message has other business than to lay something down."""

USUAL = 3.4
"""The logarithm of the terms of a message that is not long, about 30."""

MOST_EXCESS = 3.0
"""Cap on the excess length of a message, as a logarithm: beyond about 600 terms it is a document, and a passage of
it is as good as any."""

SCANNED = 200_000
"""Characters looked at from each end of a text."""

_LIKES = re.compile(
    r"(?i)\bi(?:'d| would|'m| am)? (?:\w+ )?"
    r"(?:prefer|like|love|enjoy|hate|dislike|rather|want|need|into|fond|favou?r)\b"
    r"|\bmy (?:\w+ )?(?:favou?rite|preference|style)|предпочита|люблю|lieber|bevorzug|préfér|prefier|喜欢|喜歡|好き"
)
_TIME = re.compile(
    r"(?i)\b(?:yesterday|today|tomorrow|tonight|ago|recently|(?:last|next|this|past) (?:night|week|weekend|month|year"
    r"|spring|summer|fall|autumn|winter|mon|tue|wed|thu|fri|sat|sun)\w*|(?:mon|tues?|wednes|thurs?|fri|satur|sun)day"
    r"|january|february|march|april|june|july|august|september|october|november|december|(?:19|20)\d\d)\b"
)
_PLACE = re.compile(
    r"\b(?:in|at|from|to|near|around|visit(?:ed)?) (?:the )?"
    r"(?!(?:January|February|March|April|May|June|July|August|September|October|November|December|I)\b|\w+day\b)[A-Z]\w+"
)
_DURATION = re.compile(
    r"(?i)\b(?:\d+|an?|one|two|three|four|five|six|seven|eight|nine|ten|few|couple(?: of)?|several|some|many|past|last)"
    r" (?:\w+ )?(?:minute|hour|day|week|month|year|decade)s?\b|\bsince\b"
)
_NAMING = ((TIMED, _TIME), (PLACED, _PLACE), (LASTING, _DURATION))

_CALLED = re.compile(
    r"(?:^|[.!?,] |\b(?:[Hh]ey|[Hh]i|[Hh]ello|[Tt]hanks|[Tt]hank you|[Ww]ow|[Yy]eah|[Ss]ure|[Bb]ye),? )"
    r"([A-Z]\w{2,20})[!,.?]"
)
"""Forms of address in which people use a name."""


ROOM = 4_000_000
"""Terms of the indexes kept in memory to be extended, about 50 MB; of the four used last, whatever their size."""


class Index:
    """The messages of one conversation by term. It grows at its end and is never changed otherwise."""

    def __init__(self) -> None:
        """An index of nothing."""
        self.tip: str | None = None
        """Names the history that was read last."""
        self.posts: dict[str, array[int]] = {}
        """Term to position, times, position, times, …"""
        self.sizes = array("I")
        """Terms of each message."""
        self.costs = array("I")
        """Terms of each message as it would be quoted: of a tool's exchange only a line."""
        self.excess = array("d")
        """Excess length of each message as it would be quoted, as a logarithm."""
        self.speakers = bytearray()
        self.cues = bytearray()
        self.sessions = array("I")
        """The ordinal of each message's session."""
        self.days: list[str] = []
        """The day of each session, as YYYY-MM-DD; empty when unknown."""
        self.called: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        """A name, and how often each speaker called somebody by it."""
        self.spoken = [0, 0, 0, 0]
        """Messages by speaker."""
        self.words = [0, 0, 0, 0]
        """Terms by speaker."""
        self._calls: dict[tuple[str, bool], int] = {}
        self.totals = array("L")
        """Terms of each session."""
        self.saying = 0
        """Messages that say anything."""
        self.bases: dict[int | None, array[float]] = {}
        """Query-independent score of each message, by the speaker a question is about."""
        self.changes = Changes()
        """Sentences that later ones change; read when passages are first marked."""

    def __len__(self) -> int:
        return len(self.sizes)

    @classmethod
    def of(cls, history: History) -> Index:
        """The index of a whole history."""
        index = cls()
        index.extend(history)
        return index

    def extends_to(self, history: History) -> bool:
        """True if a history begins with the indexed messages."""
        return len(self) <= len(history) and (not len(self) or history.ids[len(self) - 1] == self.tip)

    def extend(self, history: History) -> None:
        """Read what is new of a history that begins with what was read.

        Raises:
            ValueError: It begins otherwise.
        """
        if not self.extends_to(history):
            raise ValueError("this history begins otherwise than the one that was indexed")
        for position in range(len(self), len(history)):
            self._add(position, history.readings[position])
        self.tip = history.tip

    @property
    def average(self) -> float:
        """Terms of a message that says anything, on average."""
        return sum(self.totals) / self.saying if self.saying else 1.0

    def _add(self, position: int, reading: Reading) -> None:
        day = reading.day
        if not self.days or (day and day != self.days[-1]):
            self.days.append(day)
            self.totals.append(0)
        for column in (self.sizes, self.costs):
            column.append(0)
        self.speakers.append(NOBODY)
        self.cues.append(0)
        self.sessions.append(len(self.days) - 1)
        found: defaultdict[int, Counter[str]] = defaultdict(Counter)
        for item in reading.items:
            speaker = _SPEAKERS.get(item.kind, NOBODY)
            if item.mark is not None or speaker == NOBODY:
                continue
            at = self._place(position, item)
            answer = answer_text(item)
            own = Counter(term for piece in _scanned(item, answer) for term in terms(piece))
            found[at].update(own)
            speaker = ASSISTANT if answer else speaker
            if self.speakers[at] in (NOBODY, TOOL):
                self.speakers[at] = speaker
            self._note(at, speaker, answer or item.text, own.total())
        for at, own in found.items():
            for term, times in own.items():
                self.posts.setdefault(term, array("I")).extend((at, times))
        self.excess.append(min(MOST_EXCESS, max(0.0, log1p(self.costs[position]) - USUAL)))

    def _place(self, position: int, item: Item) -> int:
        """Position that a part is indexed at: a tool's result at its call."""
        if item.call_id is None:
            return position
        key = item.call_id, item.native
        if item.kind is Kind.CALL:
            self._calls[key] = position
            return position
        return self._calls.pop(key, position)

    def _note(self, at: int, speaker: int, text: str, size: int) -> None:
        """Update the statistics of a message and its speaker with one part."""
        self.saying += size > 0 and not self.sizes[at]
        self.sizes[at] += size
        self.totals[self.sessions[at]] += size
        if speaker == TOOL:
            return
        self.costs[at] += size
        self.spoken[speaker] += 1
        self.words[speaker] += size
        for name in _CALLED.findall(text[:SCANNED]):
            self.called[name][speaker] += 1
        if size <= BRIEF:
            self.cues[at] |= sum(flag for flag, naming in _NAMING if naming.search(text))
        if speaker == USER and size <= SHORT:
            self.cues[at] |= STANDING * bool(instruction_sentences(text)) | PREFERENCE * bool(_LIKES.search(text))


_SPEAKERS = {
    Kind.USER: USER,
    Kind.TEXT: ASSISTANT,
    Kind.MEDIA: ASSISTANT,
    Kind.COMPACTION: ASSISTANT,
    Kind.CALL: TOOL,
    Kind.RETURN: TOOL,
}


def _scanned(item: Item, answer: str) -> Sequence[str]:
    text = answer or item.text
    text = text if len(text) <= 2 * SCANNED else f"{text[:SCANNED]} … {text[-SCANNED:]}"
    return (item.tool or "", text) if item.kind is Kind.CALL and not answer else (text,)


_kept = Memo[str, Index](ROOM, weigh=lambda index: min(len(index) + sum(index.totals), ROOM // 4))
"""By the history that was read last."""


def indexed(history: History) -> Index:
    """The index of a history: that of the longest beginning of it seen lately, continued, else a new one."""
    index = next((one for name in reversed(history.ids) if (one := _kept.take(name)) is not None), None) or Index()
    index.extend(history)
    if index.tip is not None:
        _kept.keep(index.tip, index)
    return index
