"""Read what a sentence states about a subject: a value (number, date, time, name, id), or that something holds no more.

A value counts only behind a verb that describes a state ("is", "runs in", "moved to") or the colon of a label; events
("paid $50") do not replace each other. Two statements are about the same if the words before the value are the same and
those behind it do not differ. Words that announce a change ("now", "raised to") are no part of a subject. The rules are
for English, and prefer to miss a statement rather than invent one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from context_compiler.recall.terms import terms

LONGEST = 300
"""Maximum length in characters of a sentence that is read."""

TAIL = 6
"""Number of words behind a value that belong to it."""

MONTHS = (
    "january february march april may june july august september october november december jan feb mar apr jun jul aug"
    " sep sept oct nov dec".split()
)
DAYS = "monday tuesday wednesday thursday friday saturday sunday".split()
_STATES = frozenset(
    "is are am be = : equals runs run running lives live listens listen costs cost starts start begins begin ends end"
    " opens open closes close belongs belong prefers prefer wants want needs need requires require holds points point"
    " sits stays stay capped set scheduled fixed hosted based due named called contains contain ships ship"
    " has have must should may can pinned owned led assigned planned booked located currently".split()
)
_CHANGES = frozenset(
    "moved move moves moving changed changes change changing switched switch raised raise lowered lower reduced reduce"
    " increased increase decreased improved bumped cut extended extend postponed postpone rescheduled reschedule"
    " rescheduling shifted pushed renamed rename updated update replaced becomes became migrated adjusted reached"
    " dropped grown rose fell switching".split()
)
_ASKED_FOR = frozenset(
    "use report send deploy keep put write call run ask set ship post store answer book pay listen name start"
    " schedule make treat".split()
)
_CUES = _CHANGES | frozenset("now new instead latest actually correction currently current updated".split())
_ANNOUNCING = frozenset(terms(" ".join(_CUES))) | frozenset(
    terms("quick final revised always still today sorry exactly just only total later")
)
_PLANNING = frozenset(terms("set scheduled fixed due planned booked"))
"""Terms that are no part of a subject, because what was planned may move without being planned again."""
_KEYS = frozenset(terms("id ids"))
"""Terms of subjects whose values name records of a list: another value is another record."""
_ENDS = frozenset("and but so because which who please until if while though although when since".split())
_UNSURE = re.compile(
    r"(?i)\?|\b(?:if|would|could|maybe|perhaps|might|suppose|imagine|example|e\.g|used to|originally|previously"
    rf"|formerly|(?:was|were|had been)(?! (?:{'|'.join(sorted(_CHANGES))}) to\b)|unless|wonder\w*|not sure"
    r"|let's say|considering|thinking)\b"
)
_NEGATED = re.compile(
    r"(?i)\b(?:no longer|not|never|no more|any ?more|stop(?:ped|s)?|cannot|without"
    r"|(?:do|does|did|is|are|was|were|ca|wo|should|must)n['’]t)\b"
)
_NUMBER = re.compile(r"[$€£]?\d[\d,]*(?:\.\d+)?(?:%|[kKmM])?")
_CLOCK = re.compile(r"(?i)\d{1,2}(?::\d\d)?(?:[ap]\.?m\.?)?|noon|midnight")
_ISO = re.compile(r"\d{4}-\d\d(?:-\d\d)?|\d{1,2}[./]\d{1,2}[./]\d{2,4}")
_DAY = re.compile(r"\d{1,2}(?:st|nd|rd|th)?")
_ID = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[\w./:@+#-]+|[\w-]+(?:[./:@_]+[\w-]+)+/?|https?://\S+|/[\w./-]+")
_NAMED = re.compile(r"[A-Z][\w+#'’-]*")
_LABEL = re.compile(r"^[A-Z][A-Z ]{2,30}:\s|^(?:[A-Z][\w-]*:\s)")
_TRIM = "\"'`“”‘’()[]<>*,;!?"


@dataclass(frozen=True, slots=True)
class Statement:
    """A value that a sentence gives to a subject."""

    subject: frozenset[str]
    """Terms before the value, earlier values included."""
    kind: str
    """number, date, time, name or id."""
    value: str
    """Normalized."""
    tail: frozenset[str]
    """Terms directly behind the value, such as a unit."""
    announced: bool
    """True if words say that it is new."""
    written: str
    """The value as it is written."""

    def about_the_same(self, other: Statement) -> bool:
        """True if both give a value of one kind to one subject."""
        if self.kind != other.kind or not (self.subject and other.subject):
            return False
        if _KEYS & self.subject and not self.announced:
            return False
        same = self.tail == other.tail
        if self.subject == other.subject:
            nested = self.tail <= other.tail or other.tail <= self.tail
            enough = 1 if self.announced and self.kind != "name" else 2  # "The owner is now Tom" may be of anything
            return len(self.subject) >= 2 and nested or same and len(self.subject | self.tail) >= enough
        shared, every = self.subject & other.subject, self.subject | other.subject
        return (
            self.announced
            and len(shared) >= 2
            and 3 * len(shared) >= 2 * len(every)
            and (self.subject <= other.subject or other.subject <= self.subject)
            and same
        )


def differs(one: str, other: str) -> bool:
    """True if two values of one kind exclude each other; a short form of a name or date does not."""
    return not set(one.split()) <= set(other.split()) and not set(other.split()) <= set(one.split())


@lru_cache(maxsize=4_096)
def statements(sentence: str) -> tuple[Statement, ...]:
    """Statements of a sentence; none if it asks, supposes or tells of the past."""
    if len(sentence) > LONGEST or _UNSURE.search(sentence):
        return ()
    label = _LABEL.match(sentence)
    words = sentence.split()
    opening = len(label[0].split()) if label else 0
    return tuple(_read(words, opening))


def _read(words: Sequence[str], opening: int) -> Iterator[Statement]:
    bare = [word.strip(_TRIM).rstrip(".:") for word in words]
    index, states, announced = 0, opening > 0 and opening < len(words) and len(words) - opening <= 3, False
    lowered = [word.lower() for word in bare]
    while index < len(words):
        kind, stop = _value(bare, words, index, opening)
        last = words[stop - 1].rstrip("\"'`”’)*")[-1:]
        if kind and states and index and last != ":":  # before a colon, it says which one is meant
            value = " ".join(bare[index:stop])
            if lowered[index - 1] != "from":
                ended = last in ".,;!"
                tail = () if ended else _tail(words, lowered, stop)
                yield Statement(
                    subject=frozenset(terms(" ".join(bare[:index]))) - _ANNOUNCING - _PLANNING,
                    kind=kind,
                    value=_normal(kind, value),
                    tail=frozenset(terms(" ".join(tail))) - _ANNOUNCING,
                    announced=announced or not _CUES.isdisjoint(lowered[stop : stop + 3]),
                    written=value,
                )
            index = stop
            continue
        word = lowered[index]
        states |= word in _STATES or word in _CHANGES or words[index].endswith(":")
        states |= index == opening and word in _ASKED_FOR
        states &= words[index][-1] not in ",;"
        announced |= word in _CUES
        index = max(stop, index + 1)


def _value(bare: Sequence[str], words: Sequence[str], index: int, opening: int) -> tuple[str, int]:
    """Kind of the value that begins at a word, and the place behind it; an empty kind for none."""
    word, low = bare[index], bare[index].lower()
    follows = bare[index + 1].lower() if index + 1 < len(bare) else ""
    if low in MONTHS and _DAY.fullmatch(follows) and word[:1].isupper():
        year = index + 2 < len(bare) and re.fullmatch(r"(?:19|20)\d\d", bare[index + 2])
        return "date", index + (3 if year else 2)
    if _DAY.fullmatch(low) and follows in MONTHS:
        return "date", index + 2
    if _ISO.fullmatch(low) or low in DAYS or (low in MONTHS and low != "may" and index):
        return "date", index + 1
    if _CLOCK.fullmatch(low) and (not low.isdigit() or re.fullmatch(r"[ap]\.?m\.?", follows)):
        return "time", index + (2 if re.fullmatch(r"[ap]\.?m\.?", follows) else 1)
    if _NUMBER.fullmatch(word):
        return "number", index + 1
    if _ID.fullmatch(word):
        return "id", index + 1
    if (
        index > opening
        and _NAMED.fullmatch(word)
        and words[index][0] not in '"“'
        and low not in ("i", "i'm", "i've", "i'll", "i'd")
    ):
        stop = index + 1
        while stop < len(bare) and _NAMED.fullmatch(bare[stop]) and words[stop - 1][-1:] not in ".,;:!)":
            stop += 1
        return "name", stop
    return "", index + 1


def _tail(words: Sequence[str], lowered: Sequence[str], stop: int) -> Sequence[str]:
    """Words directly behind a value, up to the end of its clause."""
    tail: list[str] = []
    for index in range(stop, min(stop + TAIL, len(words))):
        if lowered[index] in _ENDS or words[index] in ("-", "–", "—"):
            break
        tail.append(lowered[index])
        if words[index][-1:] in ".,;:!)":
            break
    return tail


def _normal(kind: str, value: str) -> str:
    """Value in a form in which equal values are equal; a date as `5m 19d 2027`."""
    text = value.lower().replace(",", "")
    if kind != "date":
        return re.sub(r"[^\w ]+", "", text) if kind in ("name", "time") else text
    if iso := re.fullmatch(r"(\d{4})-(\d\d)-(\d\d)", text):
        return f"{int(iso[2])}m {int(iso[3])}d {iso[1]}"
    return " ".join(map(_date_word, text.split()))


def _date_word(word: str) -> str:
    if word in MONTHS:
        return f"{next(number for number, name in enumerate(MONTHS, start=1) if name.startswith(word[:3]))}m"
    return f"{int(re.sub(r'[^0-9]', '', word))}d" if _DAY.fullmatch(word) else word


@lru_cache(maxsize=4_096)
def negated(sentence: str) -> bool | None:
    """True if a sentence denies something, False if it states it; None for questions, suppositions and the past."""
    return None if _UNSURE.search(sentence) or len(sentence) > LONGEST else bool(_NEGATED.search(sentence))


@lru_cache(maxsize=4_096)
def claimed(sentence: str) -> frozenset[str]:
    """Terms of a sentence without its negation and without words that announce a change."""
    return frozenset(term for term in terms(_NEGATED.sub(" ", sentence)) if len(term) > 1) - _ANNOUNCING
