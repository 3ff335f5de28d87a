"""Inverted index of one conversation; every message is a document, and the index is append-only.

A tool result is indexed at the position of its call, because the exchange is quoted there. Postings are flat arrays of
(message position, term frequency): about 12 bytes for each occurrence and 200 for each distinct term.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from itertools import chain
from math import log1p

from context_compiler.cache import Memo
from context_compiler.messages.history import History, Reading
from context_compiler.messages.instructions import instruction_sentences
from context_compiler.messages.items import SCANNED, Item, Kind
from context_compiler.recall.changes import Changes
from context_compiler.recall.passages import ROOM, WIDTH, answer_text
from context_compiler.recall.terms import passage_terms, terms
from context_compiler.resilience import check_time

SPEAKERS = 4
NOBODY, USER, ASSISTANT, TOOL = range(SPEAKERS)
"""Speakers of messages: codes from 0 to `SPEAKERS - 1`."""

STANDING, PREFERENCE, TIMED, PLACED, LASTING = (1 << bit for bit in range(5))
"""Cue flags of a short message: of the user, it gives a standing instruction or states a preference; of either speaker,
it names a time, a place, a duration."""

BRIEF = 30
"""Maximum size in terms of a message that gets a flag: longer ones are mainly about something else, and most name some
time or place, so a flag would not distinguish them."""

USUAL = 2.4
"""Natural logarithm of the size, about ten terms, up to which a message has no excess length."""

NOTHING = 2
"""Maximum number of terms of a message that says nothing by itself, such as "OK." or "Thanks, Ann!"."""

OFTEN = 3
"""Evidence needed that a name belongs to a speaker: minimum number of times that the other one used it, and minimum
ratio to the times that the speaker did."""

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
"""A name used to address somebody, such as "Thanks, Ann!"."""


class Index:
    """Messages of one conversation by term; only ever extended at its end."""

    def __init__(self) -> None:
        """Create an empty index."""
        self.tip: str | None = None
        """Chain id of the last indexed message, which identifies the indexed history; None if it is empty."""
        self.posts: dict[str, array[int]] = {}
        """Postings by term, flattened: position, frequency, position, frequency, …"""
        self.sizes = array("I")
        """Size of each message in terms."""
        self.costs = array("I")
        """Size of each message in terms without tool exchanges, of which only a line is quoted."""
        self.excess = array("d")
        """Excess length of each message: the logarithm of its `costs` minus `USUAL`, at least 0. A message that says
        nothing has that of a long one."""
        self.speakers = bytearray()
        self.cues = bytearray()
        self.sessions = array("I")
        """Ordinal of the session of each message. A session is a stretch of messages from the same day."""
        self.days: list[str] = []
        """Day of each session, as YYYY-MM-DD; empty if unknown."""
        self.called: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        """Number of times each speaker addressed somebody by a name, by name."""
        self._calls: dict[tuple[str, bool], list[int]] = {}
        self.total = 0
        """Total terms."""
        self.saying = 0
        """Number of messages with at least one term."""
        self.changes = Changes()
        """Sentences that later ones revise; extended when passages are first marked."""

    def __len__(self) -> int:
        return len(self.sizes)

    @classmethod
    def of(cls, history: History) -> Index:
        """Index a whole history."""
        index = cls()
        index.extend(history)
        return index

    def extends_to(self, history: History) -> bool:
        """True if a history begins with the indexed messages."""
        return len(self) <= len(history) and (not len(self) or history.ids[len(self) - 1] == self.tip)

    def extend(self, history: History) -> None:
        """Index the new messages of a history that begins with the indexed ones.

        Raises:
            OutOfTimeError: The time is used up; the messages indexed so far are kept.
            ValueError: The history begins with other messages.
        """
        if not self.extends_to(history):
            raise ValueError("the history does not begin with the messages that were indexed")
        for position in range(len(self), len(history)):
            check_time()
            self._add(position, history.readings[position])
            self.tip = history.ids[position]

    @property
    def average(self) -> float:
        """Average size in terms of the messages that have any."""
        return self.total / self.saying if self.saying else 1.0

    def speakers_named(self, names: Collection[str]) -> dict[str, int]:
        """Those of the names that belong to one of the two speakers, with that speaker.

        A name belongs to the speaker whom the other one addresses by it.
        """
        speakers: dict[str, int] = {}
        for name in sorted(names):
            for called, times in self.called.items():
                if called[:3] != name[:3] or not _same_name(name, called):
                    continue
                by_user, by_assistant = times[USER], times[ASSISTANT]
                if by_user >= max(OFTEN, OFTEN * by_assistant):
                    speakers[name] = ASSISTANT
                elif by_assistant >= max(OFTEN, OFTEN * by_user):
                    speakers[name] = USER
        return speakers

    def _add(self, position: int, reading: Reading) -> None:
        day = reading.day
        if not self.days or (day and day != self.days[-1]):
            self.days.append(day)
        for column in (self.sizes, self.costs):
            column.append(0)
        self.speakers.append(NOBODY)
        self.cues.append(0)
        self.sessions.append(len(self.days) - 1)
        counts: dict[int, Counter[str]] = {}
        for item in reading.items:
            speaker = _SPEAKERS.get(item.kind, NOBODY)
            if item.mark is not None or speaker == NOBODY:
                continue
            home = self._place(position, item)
            answer = answer_text(item)
            speaker, text = (ASSISTANT, answer) if answer else (speaker, item.text)
            if speaker != TOOL and len(text) <= WIDTH:
                own = passage_terms(text.strip())  # the message is one passage, whose terms are counted only once
            else:
                own = Counter(chain.from_iterable(map(terms, _scanned(item, answer))))
            counts[home] = counts[home] + own if home in counts else own
            if self.speakers[home] in (NOBODY, TOOL):
                self.speakers[home] = speaker
            self._note(home, speaker, text, own.total())
        for home, own in counts.items():
            for term, times in own.items():
                posts = self.posts.get(term)
                if posts is None:
                    self.posts[term] = array("I", (home, times))
                else:
                    posts.extend((home, times))
        size = self.costs[position]
        self.excess.append(USUAL if 0 < size <= NOTHING else max(0.0, log1p(size) - USUAL))

    def _place(self, position: int, item: Item) -> int:
        """Position at which a part is indexed: that of the call for a tool result, else its own."""
        if item.call_id is None:
            return position
        key = item.call_id, item.native
        if item.kind is not Kind.CALL:
            calls = self._calls.get(key)
            return calls.pop() if calls else position
        earlier = self._calls.get(key)
        self._calls[key] = [*earlier, position] if earlier and earlier[0] == position else [position]
        return position

    def _note(self, position: int, speaker: int, text: str, size: int) -> None:
        """Update the statistics of a message and its speaker with one part of `size` terms."""
        self.saying += size > 0 and not self.sizes[position]
        self.sizes[position] += size
        self.total += size
        if speaker == TOOL:
            return
        self.costs[position] += size
        for name in _CALLED.findall(text[:SCANNED]):
            self.called[name][speaker] += 1
        if size <= BRIEF:
            self.cues[position] |= sum(flag for flag, naming in _NAMING if naming.search(text))
        if speaker == USER and size <= BRIEF:
            self.cues[position] |= STANDING * bool(instruction_sentences(text)) | PREFERENCE * bool(_LIKES.search(text))


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


def _same_name(name: str, called: str) -> bool:
    """True if two names are equal, or one is a short form of the other."""
    short, long = sorted((name, called), key=len)
    return long == short or (len(short) > 2 and long.startswith(short))


_kept = Memo[str, Index](ROOM, weigh=lambda index: min(len(index) + index.total, ROOM))
"""Indexes by the chain id of the last message that each has indexed; their size is in terms, of about 12 bytes."""


def index_of(history: History) -> Index:
    """Index of a history; extends a cached index of its longest known prefix, if there is one."""
    index = next((kept for name in reversed(history.ids) if (kept := _kept.take(name)) is not None), None) or Index()
    try:
        index.extend(history)
    finally:
        if index.tip is not None:
            _kept.keep(index.tip, index)
    return index


def changes_of(history: History) -> Changes:
    """Replaced sentences of a whole history."""
    changes = index_of(history).changes
    changes.extend(history)
    return changes
