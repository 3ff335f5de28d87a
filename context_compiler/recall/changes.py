"""Detect by rules which sentences a later sentence revises or contradicts.

A sentence is a revision if it gives an old and a new value ("make it 8 retries, not 5", "moved from May 3 to May 5",
"switched from MySQL to Postgres"), if a verb of change precedes its only value of that kind ("the page load time has
improved to 0.9 seconds"), or if it says "I've never …". It revises an earlier sentence that gives the old value, or
another value of the same kind and unit, in the same words. "Never" contradicts the same verb in the first person.
Targets and bounds are not values. The rules are for English, and prefer to miss a change rather than invent one.
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from context_compiler.messages.history import History
from context_compiler.messages.items import Kind
from context_compiler.messages.prompts import sentence_ends
from context_compiler.recall.statements import LONGEST, Statement, claimed, differs, negated, statements
from context_compiler.recall.terms import prose, stem, terms
from context_compiler.resilience import check_time

BESIDE = 90
"""Characters on each side of a value that describe its subject."""

FEW = 3
"""Number of terms directly before a value that name its attribute; minimum number of terms of a sentence that the same
terms with "not" contradict, and of messages that begin with a name until names are no subjects."""

COMPARED = 24
"""Maximum number of earlier messages compared with a revision: those that share most of its terms."""

EXCHANGE = 2
"""Maximum number of messages in which a value is taken back: those that named it last, an order and its reply."""

Texts = Sequence[tuple[bool, str]]
"""Texts of a message, each with True if the user said it."""


_FENCED = re.compile(r"```.*?(?:```|\Z)", re.S)
_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?)\.?"
)
_VALUE = re.compile(
    rf"(?i)\b(?P<date>{_MONTH} \d{{1,2}}(?:st|nd|rd|th)?\b|\d{{4}}-\d\d-\d\d\b)(?:,? \d{{4}}\b)?"
    r"|\b(?P<time>\d{1,2}(?::\d\d)? ?[ap]\.?m\b|(?<!:)\d{1,2}:\d\d\b(?!:))"
    r"|(?P<number>(?<![\w.,/:$-])\$?\d[\d,]*(?:\.\d+)?(?![\d/:]|[.,-]\d))"
    r"(?P<unit>%| ?percent\b|(?:[ -]?(?!(?:and|or|not|to|in|on|by|for|of|per|after|with|at|from|the|a|under|while"
    r"|instead|rather)\b)[A-Za-z]+){0,3})"
)
_VERB = (
    r"(?:updat(?:ed?|ing)|adjusted|revised|increas(?:ed?|ing)|decreased|rais(?:ed?|ing)|lowered|reduced|reached"
    r"|improved?|grown|grew|bumped|dropped|expanded|extended|rescheduled|mov(?:ed?|ing)|postponed|pushed|delayed"
    r"|changed?|shifted|switched|gone|went)"
)
_HINT = re.compile(rf"(?i)\b(?:{_VERB}|now|currently|new|never|not|instead|rather than|migrated|renamed)\b")
_LEAD = r"(?: (?:use|have|around|about|over|nearly|almost|a|an|only|exactly))*"
_NEW = r"\bnew (?:\w+ ){0,3}(?:deadline|date|time|day|is|of)(?: is| of| for| on)?"
_TO_NUMBER = re.compile(
    rf"(?i)(?:\breached|\b(?:is|are|has|have|down|up) (?:now|currently)(?: (?:at|averaging|down to|up to))?"
    rf"|\bnow (?:is|are|at|averaging|down to|up to|has|have)|{_NEW}|\b{_VERB}\b[^.?!;]{{0,60}}? to){_LEAD} *\Z"
)
"""Text directly before a new number."""
_TO_DATE = re.compile(
    rf"(?i)(?:{_NEW}|\b{_VERB}\b[^.?!;]{{0,60}}? (?:to|until|till))(?: the)?(?: {_MONTH} \d{{1,2}}\w*,? at)? *\Z"
)
"""Text directly before a new date or time."""
_AMOUNT = r"\$?\d[\w.,:%]{0,30}"
_FROM = re.compile(
    rf"(?i)\b{_VERB}\b[^.?!]{{0,60}}?\bfrom (?P<old>[^.?!]{{1,30}}?) to (?=\S)"
    rf"|(?<!\w)(?P<new>{_AMOUNT}(?: \w{{1,30}}){{0,3}}?),? (?:not|instead of|rather than)"
    rf" (?P<other>{_AMOUNT}(?: \w{{1,30}})?)"
    rf"|\bnot (?P<was>{_AMOUNT}(?: \w{{1,30}}){{0,2}}),? but (?=\S)"
)
"""An old value and a new one."""
_NAMES = re.compile(
    r"(?:(?<=[a-z] )|(?<=[`\"“]))(?P<new>[A-Z][\w.+#-]*\w)[`\"”]?,? (?:not|instead of|rather than)"
    r" [`\"“]?(?P<old>[A-Z][\w.+#-]*\w)(?! [A-Z])"
    r"|\b(?:[Ss]witched|[Mm]igrated|[Rr]enamed)\b[^.?!;,]{0,40}? from"
    r" [`\"“]?(?P<was>[A-Z][\w.+#-]*\w)[`\"”]? to [`\"“]?(?P<now>[A-Z][\w.+#-]*\w)(?! [A-Z])"
)
_AFTER_ALL = re.compile(r"\b[Nn]ot (?:(?:on|in|at|for) )?(?P<old>[A-Z]\w+|\d[\w:.]*\w),? after all\b")
"""A value that is taken back; what was said of it last is replaced."""
_NEVER = re.compile(
    r"(?i)\bI(?:['’]ve| have) never (?:actually |really |even |ever )?"
    r"(?P<verb>\w+) (?P<what>[^.?!,;]{4,160}?)(?=[.?!,;]|$| so | but | and I\b)"
)
_SAYS_NEVER = re.compile(r"(?i)\bnever\b")
_DID = re.compile(
    r"(?i)\bI(?:['’]ve| have|['’]m| am)? (?:(?:just|also|already|recently|once|finally|successfully) )*"
    r"(?P<verb>\w{2,20})\b"
)
_AIM = re.compile(
    r"(?i)\b(?:goal|target|aim|want|hope|plan|at least|under|below|above|up to|over|max|min(?!ut)|ensur|reach(?!ed)"
    r"|achiev(?!ed)|getting|remaining|if\b|should|could|would|within|by\b|exceed|than\b)"
)
_AIMED = re.compile(r"(?i)\b(?:target|goal|limit)\b")
_NAME = re.compile(r"(?<=[a-z,;] )[A-Z][A-Za-z]{2,}")
_SCALES = frozenset(terms("ms second minute hour day week month year percent people person kb mb gb cm mm km kg")) | {
    "%",
    "$",
}
"""Units that too many quantities have in common to identify one."""
_GENERAL = frozenset(
    terms(
        "help want need trying like make sure get use using used work working meet new now update change also"
        " still really time day week month year number thing way good best create add effectively further recent"
        " recently kinda actually ensure considering any ever project problem plan schedule improve increase"
        " reduce reach optimize worried wondering thinking understand current currently set app code after before"
        " around about implement issue extend move reschedule adjust average total already complete achieve given"
        " manage decrease drop grow grown raise lower bump revise reached expand noticed measured around averaging"
    )
)


@dataclass(frozen=True, slots=True)
class Value:
    """A number, a date or a time in a sentence."""

    kind: str
    text: str
    at: int
    unit: frozenset[str]
    """Terms of the unit after a number; empty for a date or time."""
    about: frozenset[str]
    """Subject terms around it."""
    near: frozenset[str]
    """The last `FEW` subject terms before it."""
    names: frozenset[str]
    """Names before it, in lower case."""
    before: str
    """Text before it, up to `BESIDE` characters."""
    aim: bool
    """True if it is a target or a bound, not a fact."""

    def comparable(self, other: Value) -> bool:
        """True if both have the same kind and, for numbers, a common unit."""
        return self.kind == other.kind and (self.kind != "number" or bool(self.unit & other.unit))


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """Content of a revising sentence."""

    about: frozenset[str]
    """Subject terms."""
    new: Value | None = None
    """New value; None if it changes a name or denies an action."""
    old: str = ""
    """Old value or name; empty if it is not given."""
    never: str = ""
    """Stem of the verb after "never"; empty for other revisions."""
    taken_back: bool = False
    """True if only what was said last of the old value is revised."""


def revisions(text: str) -> Iterator[tuple[str, Revision]]:
    """Revising sentences of a text, each with what it changes."""
    for sentence in sentences(text) if _HINT.search(text) else ():
        if not _HINT.search(sentence):
            continue
        pair, found_values = _FROM.search(sentence), values(sentence)
        name, never = _NAMES.search(sentence), _NEVER.search(sentence)
        if pair is not None:
            old = pair["old"] or pair["other"] or pair["was"]
            start = pair.start() if pair["new"] else pair.end()
            new = next((other for other in found_values if other.at >= start), None)
            if new is not None and re.search(r"\d", old):
                yield sentence, Revision(new=new, old=_plain(old), about=new.about)
        else:
            for value in found_values:
                lead = _TO_NUMBER if value.kind == "number" else _TO_DATE
                alone = sum(value.comparable(other) and not other.aim for other in found_values) == 1
                if alone and not (value.aim and value.kind == "number") and lead.search(value.before):
                    yield sentence, Revision(new=value, about=value.about)
        if (taken_back := _AFTER_ALL.search(sentence)) is not None:
            yield sentence, Revision(old=taken_back["old"], about=frozenset(terms(taken_back["old"])), taken_back=True)
        if name is not None:
            new_name, old = name["new"] or name["now"], name["old"] or name["was"]
            yield sentence, Revision(old=old, about=_subject_terms(sentence) - _subject_terms(f"{old} {new_name}"))
        if never is not None:
            yield sentence, Revision(never=stem(never["verb"].lower()), about=_subject_terms(never["what"]))


def revises(revision: Revision, sentence: str) -> bool:
    """True if an earlier sentence says something else about the same subject."""
    if revision.never:
        return not _SAYS_NEVER.search(sentence) and any(
            _contradicts_never(revision, value, sentence) for value in _DID.finditer(sentence)
        )
    if revision.new is None:
        there = re.search(rf"(?<!\w){re.escape(revision.old)}(?!\w)", sentence)
        shared = len(revision.about & frozenset(terms(sentence)))
        return there is not None and not sentence.endswith("?") and shared >= min(2, len(revision.about))
    found_values, new = values(sentence), revision.new
    if any(new.comparable(value) and value.text == new.text for value in found_values):
        return False
    return any(
        _replaces(revision, new, value, found_values, sentence) for value in found_values if new.comparable(value)
    )


def _replaces(revision: Revision, new: Value, old: Value, others: Sequence[Value], sentence: str) -> bool:
    """True if the value `old` of an earlier sentence is replaced by `new`."""
    shared = (old.about & new.about) - new.unit
    if old.aim and old.kind == "number":
        return False
    if revision.old:
        same = revision.old == old.text or revision.old.startswith(f"{old.text} ")
        return same and len(shared) + bool((new.unit & old.unit) - _SCALES) >= (1 if new.kind == "number" else 2)
    if sum(old.comparable(value) and not value.aim for value in others) > 1 or new.names - set(
        re.findall(r"\w+", sentence.lower())
    ):
        return False
    enough = max(2, len(new.near)) if new.unit & _SCALES else 1 if new.unit and new.unit == old.unit else 2
    return len(shared) >= 2 and len(new.near & old.about) >= enough


def _contradicts_never(revision: Revision, did: re.Match[str], sentence: str) -> bool:
    """True if a first-person verb in an earlier sentence states what "never" denies."""
    verb = did["verb"].lower()
    if stem(verb) != revision.never or verb == revision.never:
        return False
    shared = revision.about & _subject_terms(sentence[did.end() : did.end() + BESIDE])
    return bool(shared) and (
        len(shared) >= 3 or 2 * len(shared) >= len(revision.about) and len(shared) >= min(2, len(revision.about))
    )


@lru_cache(maxsize=4_096)
def sentences(text: str) -> tuple[str, ...]:
    """Sentences of a text, without fenced code."""
    plain = _FENCED.sub(" ", prose(text))
    edges = [0, *sentence_ends(plain), len(plain)]
    pieces = (plain[start:end].strip() for start, end in zip(edges, edges[1:], strict=False))
    return tuple(piece for piece in pieces if 0 < len(piece) <= LONGEST)


@lru_cache(maxsize=4_096)
def values(sentence: str) -> tuple[Value, ...]:
    """Values of a sentence; a number without a unit does not count."""
    return tuple(filter(None, (_value(sentence, match) for match in _VALUE.finditer(sentence))))


def _value(sentence: str, match: re.Match[str]) -> Value | None:
    before = re.sub(r"\A\w*", "", sentence[max(0, match.start() - BESIDE - 1) : match.start()])
    behind = re.sub(r"\w*\Z", "", sentence[match.end() : match.end() + BESIDE + 1])
    number, unit = match["number"], (match["unit"] or "").strip().lower()
    units = frozenset[str]()
    if number:
        plain = "$" if number.startswith("$") else "%" if unit in ("%", "percent") else ""
        units = frozenset({plain}) if plain else _subject_terms(unit)
        if not units:
            return None
    words = re.findall(r"[A-Za-z][\w'-]*", _VALUE.sub(" ", before))
    return Value(
        kind="number" if number else "date" if match["date"] else "time",
        text=_plain(number or match["date"] or match["time"]),
        at=match.start(),
        unit=units,
        about=_subject_terms(f"{before} {unit} {behind}"),
        near=frozenset([term for word in words for term in sorted(_subject_terms(word))][-FEW:]),
        names=frozenset(map(str.lower, _NAME.findall(before))),
        before=before,
        aim=bool(_AIM.search(re.split("[,;] ", before[-30:])[-1]) or _AIMED.search(behind[:25])),
    )


def _plain(value: str) -> str:
    return re.sub(r"[^\w.$]+", " ", value.replace(",", "").lower()).strip(" .")


def _subject_terms(text: str) -> frozenset[str]:
    """Subject terms of a text: without its values, ids, digits and general words."""
    named = terms(_VALUE.sub(lambda match: f" {match['unit'] or ''} ", text))
    return frozenset(term for term in named if term[0] != "=" and not term[0].isdigit() and len(term) > 1) - _GENERAL


_SPEAKER = re.compile(r"[A-Z][\w.'’ ()-]{0,80}:\s+")
"""Name of a speaker at the beginning of a message, as in minutes of a meeting."""


class Change(NamedTuple):
    """A sentence and the later one that replaces what it says."""

    sentence: str
    at: int
    """Position of the later message."""
    later: str
    """The later sentence."""
    old: str = ""
    """The replaced value as it was written; empty if it is not known."""
    new: str = ""
    """The new value as it is written; empty if it is not known."""


class _Said(NamedTuple):
    """A sentence that may be replaced."""

    at: int
    by_user: bool
    sentence: str

    def may_replace(self, other: _Said) -> bool:
        """True if its speaker may correct the other sentence: the user both, an assistant its own words."""
        if self.at == other.at or self.by_user < other.by_user:
            return False
        return self.by_user == other.by_user or not (_SELF.search(self.sentence) or _SELF.search(other.sentence))


_SELF = re.compile(r"(?i)\b(?:I|my|me|mine|you|your)\b")


Claim = tuple[str, ...]
"""Terms of a sentence, in order: a set of them would take seven times the memory."""


class Changes:
    """Replaced sentences of one conversation; only ever extended at its end."""

    def __init__(self) -> None:
        """Start with no message read."""
        self._said: list[Texts] = []
        self._read = self._texts = self._labelled = 0
        self._messages_with: defaultdict[str, list[int]] = defaultdict(list)
        """Positions of the messages that contain a subject term, by term."""
        self._stated: defaultdict[frozenset[str], list[tuple[_Said, Statement]]] = defaultdict(list)
        """Statements by their subject."""
        self._subjects: defaultdict[str, set[frozenset[str]]] = defaultdict(set)
        """Subjects of statements, by each of their terms."""
        self._claims: defaultdict[Claim, list[tuple[_Said, bool]]] = defaultdict(list)
        """Sentences by their terms, with True if they deny."""
        self._claims_with: defaultdict[str, list[Claim]] = defaultdict(list)
        """Terms of sentences, by each of them."""
        self.later: defaultdict[int, list[Change]] = defaultdict(list)
        """Changes of each message, by its position."""
        self.newest = -1
        """Position of the newest message that revises an earlier one, or says a revised value again; -1 for none."""

    def extend(self, history: History) -> None:
        """Read the messages of a history that were not read yet."""
        self.read([message_texts(history, position) for position in range(len(self._said), len(history))])

    def read(self, messages: Sequence[Texts]) -> None:
        """Read the texts of the messages that follow, after those for which the time did not suffice before."""
        said = [text for message in messages for _, text in message]
        self._texts += len(said)
        self._labelled += sum(_SPEAKER.match(text) is not None for text in said)
        self._said += messages
        for position in range(self._read, len(self._said)):
            check_time()
            texts = [(by_user, self._without_speaker(text)) for by_user, text in self._said[position]]
            pieces = [sentences(text) for _, text in texts]
            for (by_user, text), own in zip(texts, pieces, strict=True):
                for sentence, revision in revisions(text):
                    self._compare(position, sentence, revision)
                for sentence in own:
                    said = _Said(position, by_user, sentence)
                    self._state(said)
                    self._claim(said)
            words = "\n".join(chain.from_iterable(pieces))
            for term in frozenset(terms(words)) - _GENERAL:
                self._messages_with[term].append(position)
            self._read = position + 1

    def akin(self, text: str) -> list[int]:
        """Positions of the messages that share most terms with a text, in order; at most `COMPARED`."""
        sharing = self._sharing(frozenset(terms(text)) - _GENERAL)
        return sorted(sharing[:COMPARED])

    def _without_speaker(self, text: str) -> str:
        """Text of a message without the name of its speaker, if most messages begin with one."""
        label = _SPEAKER.match(text)
        named = self._labelled >= FEW and 2 * self._labelled >= self._texts
        return text[label.end() :] if label and named else text

    def of(self, position: int, text: str, until: int = sys.maxsize) -> list[Change]:
        """Newest change of each sentence in a text of a message, up to the message at `until`."""
        newest_changes: dict[str, Change] = {}
        for change in self.later.get(position, ()):
            if change.sentence in text and change.at <= until:
                newest = self._newest(change, until)
                if newest.at >= newest_changes.get(change.sentence, newest).at:
                    newest_changes[change.sentence] = newest
        return [*newest_changes.values()]

    def _newest(self, change: Change, until: int) -> Change:
        """The change that a chain of changes ends with."""
        own = self.later.get(change.at, ())
        while after := [later for later in own if later.sentence == change.later and later.at <= until]:
            last = max(after, key=lambda later: later.at)
            change = change._replace(at=last.at, later=last.later, new=last.new)
            own = self.later.get(change.at, ())
        return change

    def outdated(self) -> dict[str, int]:
        """Position of the message that replaced a value last, by the value in lower case."""
        changes = chain.from_iterable(self.later.values())
        return {old: at for at, old in sorted((change.at, change.old.lower()) for change in changes if change.old)}

    def changing(self, positions: Iterable[int]) -> set[int]:
        """Positions of the messages that revise these messages, directly or through other revisions."""
        revising = set[int]()
        waiting = [*positions]
        while waiting:
            later = {change.at for position in waiting for change in self.later.get(position, ())}
            waiting = [*(later - revising)]
            revising |= later
        return revising

    def _state(self, said: _Said) -> None:
        """Compare the statements of a sentence with earlier ones on the same subject, and keep them."""
        for statement in statements(said.sentence):
            subjects = {statement.subject}
            if statement.announced:
                subjects.update(*(self._subjects.get(term, ()) for term in statement.subject))
            for subject in subjects:
                for earlier, other in self._stated.get(subject, ())[-COMPARED:]:
                    if said.may_replace(earlier) and statement.about_the_same(other):
                        self._replace(earlier, said, other, statement)
            self._stated[statement.subject].append((said, statement))
            for term in statement.subject:
                self._subjects[term].add(statement.subject)

    def _replace(self, earlier: _Said, said: _Said, old: Statement, new: Statement) -> None:
        """Note that a statement has another value now, or that an old value is said again and so counts once more."""
        before = self.later.pop(earlier.at, [])
        same = {(earlier.sentence, old.written), (earlier.sentence, said.at)}
        own = [
            change for change in before if same.isdisjoint({(change.sentence, key) for key in (change.old, change.at)})
        ]
        if differs(old.value, new.value):
            own.append(Change(earlier.sentence, said.at, said.sentence, old.written, new.written))
        if own:
            self.later[earlier.at] = own
        if own or before:
            self.newest = said.at

    def _claim(self, said: _Said) -> None:
        """Compare a sentence with earlier ones that say the same with or without "not", and keep it."""
        denies, own = negated(said.sentence), tuple(sorted(claimed(said.sentence)))
        if denies is None or sum(self._tells(term, said.at) for term in own) < 2:
            return
        keys = {own} if len(own) >= FEW else set[Claim]()
        if denies and _ENDED.search(said.sentence):
            keys = set[Claim].intersection(*(set(self._claims_with.get(term, ())) for term in own))
        for key in keys:
            for earlier, denied in self._claims.get(key, ()) if len(key) <= 2 * len(own) else ():
                if denied != denies and said.may_replace(earlier):
                    self.later[earlier.at].append(Change(earlier.sentence, said.at, said.sentence))
                    self.newest = said.at
        for term in own if own not in self._claims else ():
            self._claims_with[term].append(own)
        self._claims[own].append((said, denies))

    def _tells(self, term: str, read: int) -> bool:
        """True if a term is in no more messages than the square root of the number `read`; others identify nothing."""
        return len(self._messages_with.get(term, ())) ** 2 <= read

    def _compare(self, position: int, sentence: str, revision: Revision) -> None:
        sharing = self._sharing([*revision.about, *(revision.new.unit if revision.new else ())])
        for candidate in sharing[: EXCHANGE if revision.taken_back else COMPARED]:
            earlier = [
                earlier_sentence
                for _, text in self._said[candidate]
                for earlier_sentence in sentences(text)
                if revises(revision, earlier_sentence)
            ]
            self.later[candidate] += [Change(earlier_sentence, position, sentence) for earlier_sentence in earlier]
            self.newest = position if earlier else self.newest

    def _sharing(self, shared: Iterable[str]) -> list[int]:
        """Positions of the messages with any of these terms, those with most of them first; ties to the later one."""
        counts = Counter(position for term in shared for position in self._messages_with.get(term, ()))
        return sorted(counts, key=lambda position: (-counts[position], -position))


_ENDED = re.compile(
    r"(?i)\bno longer\b|(?:n['’]t|not|never)\b(?:(?!n['’]t\b|not\b|never\b).)*\bany ?more\b"
    r"|\b(?:we|it|they)(?:['’]ve| have| has)? stopped\b|^(?:please )?stop\b"
)
"""Words by which something ends."""


def message_texts(history: History, position: int) -> Texts:
    """Texts of a message that may state facts: those of the user (True), and short ones of the assistant (False)."""
    return [
        (item.kind is Kind.USER, item.text)
        for item in history.readings[position].items
        if item.mark is None and (item.kind is Kind.USER or item.kind is Kind.TEXT and len(item.text) <= LONGEST)
    ]


def with_changes(changes: Changes, position: int, text: str) -> str:
    """Text of a message in which each replaced sentence is followed by the one that replaces it."""
    for change in changes.of(position, text):
        text = text.replace(change.sentence, f"{change.sentence} [changed later: {change.later}]", 1)
    return text


def corrections(changes: Changes, text: str) -> str:
    """Lines with the sentences whose new values a text does not give although it gives those that they replace."""
    lines: dict[str, None] = {}
    for change in sorted((change for own in changes.later.values() for change in own), key=lambda change: change.at):
        if change.old and _gives(text, change.old, change) and not _gives(text, change.new, change):
            lines[change.later] = None
    return "\n".join(f"- changed later: {later}" for later in lines)


def _gives(text: str, value: str, change: Change) -> bool:
    """True if a sentence of a text contains a value together with half of the words of the subject of a change."""
    about = frozenset(terms(change.sentence)) - frozenset(terms(change.old))
    return any(
        _holds(sentence, value) and 2 * len(about.intersection(terms(sentence))) >= len(about)
        for sentence in (sentences(text) if _holds(text, value) else ())
    )


def _holds(text: str, value: str) -> bool:
    return re.search(rf"(?i)(?<!\w){re.escape(value)}(?!\w)", text) is not None
