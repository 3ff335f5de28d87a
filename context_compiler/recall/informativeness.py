"""Query-independent worth of a message, estimated from its wording and its speaker.

Each sign below adds to the logarithm of the worth; the weights were fitted (Poisson regression, rounded) on
labelled conversations, where they predict what later questions need. Signs differ between a chat with an
assistant, where the user's own messages and standing instructions matter, and a talk between two people, where
answers, openings and names do; a conversation may lie between the two. Worth grows far less than length, so
that short messages come first where it is held against the price. Words are those of spaced scripts and pairs
of characters of the others; the words for times and questions are English.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from math import exp, log
from typing import NamedTuple

from context_compiler.messages.instructions import instruction_sentences
from context_compiler.recall.passages import Passage

ASKED = {"user": 2.4, "standing": 1.7}
"""Weights in a chat with an assistant."""
TALK = {"answers": 0.7, "opens": 0.7, "names": 0.3, "rare": 0.4, "asks": -1.2, "you": -0.8}
"""Weights in a talk between two people."""
BOTH = {"mass": 0.4, "times": 0.4, "slight": -1.5}

RARE = 2.0
"""Words with a smaller idf than this say nothing: those in more than about every eighth passage."""
SLIGHT = 4
"""With fewer words a message is a nod."""
TURN_OF_TALK = 60
"""Words; people who talk say no more at once, on average."""
LONGEST = 32
"""Longer words are keys, hashes and the like, each of which is rare and none of which says anything."""

_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fff\u3040-\ua4cf\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
_WORD = re.compile(rf"[{_UNSPACED}]+|[^\W_{_UNSPACED}]+(?:['’][^\W_{_UNSPACED}]+)?")
_ASCII = re.compile(r"[a-z0-9]+(?:'[a-z0-9]+)?")
_NAME = re.compile(r"(?<=[a-z,;] )[A-Z][a-z]")
_STOPS = re.compile(r"[.!?？。]+")
_TIMES = frozenset(
    "yesterday today tomorrow tonight last next ago week weekend month year morning recently since soon summer winter"
    " spring monday tuesday wednesday thursday friday saturday sunday january february march april may june july august"
    " september october november december jan feb mar apr jun jul aug sep oct nov dec".split()
).union(map(str, range(1900, 2100)))
_YOU = ("you", "your", "yours", "you're", "you've", "you'll")


def words(text: str) -> list[str]:
    """The words of a text in lower case; where a script has no spaces, every pair of characters."""
    lowered = text.lower()
    if lowered.isascii():
        return _ASCII.findall(lowered)
    return list(_split(_WORD.findall(lowered)))


def _split(runs: Sequence[str]) -> Iterator[str]:
    for run in runs:
        if run[0] < "\u0e00" or len(run) < 3:
            yield run
        else:
            yield from map("".join, pairwise(run))


def worths(candidates: Sequence[Passage]) -> list[float]:
    """Worth of each passage's message; candidates are in order, and messages complete."""
    said = [words(passage.text) for passage in candidates]
    messages = _messages(candidates, said, _idf(said))
    talk = _talk(candidates, messages)
    found: dict[int, float] = {}
    for position, message in messages.items():
        sign = BOTH["mass"] * log(1 + sum(message.known)) + BOTH["slight"] * (message.size < SLIGHT)
        sign += BOTH["times"] * min(2, len(_TIMES.intersection(message.words)))
        if talk < 1:
            sign += (1 - talk) * _asked(message)
        if talk > 0:
            sign += talk * _talked(message, messages.get(position - 1))
        found[position] = exp(sign)
    return [found[passage.position] for passage in candidates]


def _idf(said: Sequence[Sequence[str]]) -> dict[str, float]:
    spread = Counter(word for own in said for word in set(own))
    logs = {times: log(len(said) / times) for times in set(spread.values())}
    return {
        word: logs[times] if logs[times] >= RARE and len(word) <= LONGEST else 0.0 for word, times in spread.items()
    }


class _Message(NamedTuple):
    """Word statistics of one message."""

    speaker: str
    text: str
    words: Sequence[str]
    known: Sequence[float]
    """The idf of its words that say something, each once."""
    opens: bool
    """It is the first of its day."""

    @property
    def size(self) -> int:
        """In words."""
        return len(self.words)

    @property
    def asks(self) -> bool:
        """It ends with a question."""
        return self.text.rstrip().endswith(("?", "？"))


def _messages(
    candidates: Sequence[Passage], said: Sequence[Sequence[str]], idf: Mapping[str, float]
) -> dict[int, _Message]:
    found: dict[int, _Message] = {}
    day: str | None = None
    for position, group in groupby(zip(candidates, said, strict=True), key=lambda pair: pair[0].position):
        own = list(group)
        last = own[-1][0]
        spoken = [word for _, some in own for word in some]
        found[position] = _Message(
            speaker="user" if any(passage.speaker == "user" for passage, _ in own) else last.speaker,
            text=" ".join(passage.text for passage, _ in own),
            words=spoken,
            known=[weight for word in dict.fromkeys(spoken) if (weight := idf[word])],
            opens=last.date != day,
        )
        day = last.date
    return found


def _talk(candidates: Sequence[Passage], messages: Mapping[int, _Message]) -> float:
    """1 for a talk between equals, 0 for a chat with an assistant, by each side's share of the text."""
    if sum(passage.speaker == "tool" for passage in candidates) * 20 > len(candidates):
        return 0.0
    sizes = {
        speaker: [message.size for message in messages.values() if message.speaker == speaker]
        for speaker in ("user", "assistant")
    }
    if not all(sizes.values()):
        return 0.0
    user, assistant = (sum(own) / len(own) for own in sizes.values())
    return min(1.0, max(0.0, (3 - assistant / max(user, 1)) / 1.5)) if user <= TURN_OF_TALK else 0.0


def _asked(message: _Message) -> float:
    if message.speaker != "user":
        return 0.0
    return ASKED["user"] + (ASKED["standing"] if instruction_sentences(message.text) else 0)


def _talked(message: _Message, before: _Message | None) -> float:
    own, text = message.words, message.text
    return (
        TALK["rare"] * sum(message.known) / max(1, len(message.known))
        + TALK["answers"] * (before is not None and before.asks)
        + TALK["opens"] * message.opens
        + TALK["names"] * min(4, len(_NAME.findall(text)))
        + TALK["asks"] * (text.count("?") + text.count("？")) / max(1, len(_STOPS.findall(text)))
        + TALK["you"] * min(1.0, 5 * sum(map(own.count, _YOU)) / max(1, len(own)))
    )
