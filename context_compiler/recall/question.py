"""Analyze a question: the terms, names, dates and kind of answer that it asks for.

The word lists that tell a request for advice, a sequence or a summary cover several languages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from context_compiler.ids import text_hash
from context_compiler.messages.history import History, Reading
from context_compiler.messages.items import Kind, without_files
from context_compiler.messages.prompts import asking_part, asks
from context_compiler.messages.turns import continues_run, is_prompt, prompt_at
from context_compiler.recall.index import LASTING, PLACED, TIMED
from context_compiler.recall.terms import PROSE, prose, terms
from context_compiler.tokens import TokenCounter

_MONTHS = (
    r"Jan(?:uary)?", r"Feb(?:ruary)?", r"Mar(?:ch)?", r"Apr(?:il)?", 
    r"May(?! (?:I|i|you|we)\b)", "June?", "July?", r"Aug(?:ust)?",
    r"Sept?(?:ember)?", r"Oct(?:ober)?", r"Nov(?:ember)?", r"Dec(?:ember)?",
)  # fmt: skip
_NAMED = [re.compile(rf"(?:(?<=[a-z0-9,] )|^){name}\b(?=[\s,.?!]|$)") for name in _MONTHS]
"""Month names. They must be capitalized, so that the verbs "march" and "may" do not count, and neither may "May I"."""
_DATED = re.compile(r"\b\d{4}-(\d\d)(?:-\d\d)?\b")

_DAY = re.compile(
    rf"\b(?:(?P<day>\d\d?)(?:st|nd|rd|th)?(?: of)? (?P<month>{'|'.join(_MONTHS)})"
    rf"|(?P<named>{'|'.join(_MONTHS)})\.? (?P<on>\d\d?)(?:st|nd|rd|th)?)\b(?:,? (?P<year>\d{{4}}))?",
    re.IGNORECASE,
)
_ISO_DAY = re.compile(r"\b\d{4}-\d\d-\d\d\b")
_NUMERIC_DAY = re.compile(r"\b(?P<first>\d\d?)(?P<mark>[./])(?P<second>\d\d?)(?P=mark)(?P<year>\d{4})\b")
"""A date such as 19.1.2024, the day first, or 1/19/2024, which may begin with either."""

_WHEN = re.compile(r"(?i)^\W*when\b|\b(?:what|which) (?:date|day|month|year)\b")
_WHERE = re.compile(
    r"(?i)^\W*where\b|\b(?:what|which) (?:cit(?:y|ies)|countr(?:y|ies)|states?|places?|locations?|towns?|area)\b"
)
_HOW_LONG = re.compile(r"(?i)\bhow long\b")
_SOUGHT = ((TIMED, _WHEN), (PLACED, _WHERE), (LASTING, _HOW_LONG))

_ADVICE = re.compile(
    r"(?i)\bhow (?:should|can|could|do|would|might)\b|\bwhat (?:kind|type|sort|are|is|would|should)\b|\bwhich\b"
    r"|\b(?:can|could|would) you\b|\b(?:help|show) me\b|\b(?:suggest|recommend|advi[sc]e|explain)"
    r"|\bi(?:'m| am) (?:planning|thinking|trying)"
    r"|как мне|посоветуй|помоги|\bwie (?:soll|kann)|\bcomment\b|cómo|推荐|如何|怎么"
)
_BROAD = re.compile(
    r"(?i)summar|\bin (?:what )?order\b(?! to\b)|\bacross\b|\bprogress|\bthroughout\b|\bhow many\b|\bwhen did\b"
    r"|\btimeline\b|\boverview\b"
)
_ORDER = re.compile(
    r"(?i)\border (?:in which|that (?:i|we|you)|of events)\b"
    r"|\b(?:in|what|which) (?:the )?(?:chronological |right |same )?order\b(?! to\b)"
    r"|\bsequence (?:in which|of events)\b|\btimeline\b|\bchronolog"
    r"|\b(?:in welche[rm]|der|zeitlichen?) reihenfolge\b|\bzeitleiste\b"
    r"|\b(?:dans quel|par|l') ?ordre\b|\b(?:en qué|en el|por) orden\b|\bin (?:che|quale) ordine\b|\bin ordine\b"
    r"|\b(?:em que|por|na) ordem\b|\bcronol|\bв каком порядке\b|\bпо порядку\b|хронолог"
    r"|按.{0,4}顺序|什么顺序|时间线|どの順|時系列|順番"
)
"""The question asks for a sequence of events."""
_WHOLE = re.compile(
    r"(?i)\b(?:summar(?:y|ies|i[sz]e)|recap|overview)\b"
    r"|\b(?:everything|all)(?: \w+){0,4} (?:about|regarding|concerning)\b"
    r"|\bzusammenfass|\bfass\w* .{0,80}\bzusammen\b|\büberblick\b|\balles (?:\w+ ){0,4}über\b"
    r"|\brésume[rz]?\b|\btout ce (?:que|qui)\b"
    r"|\bresum(?:en|ir|a|e (?:el|la|los|las|lo|todo))\b|\btodo (?:lo que|sobre)\b"
    r"|\briassu|\btutto (?:ciò|quello)\b|\btudo (?:o que|sobre)\b"
    r"|\bобобщи|\bподытожь|\bподведи итог|\bкратко изложи|\bвс[её],? что\b"
    r"|总结|概括|概述|まとめ|要約"
)
"""The question asks for a summary, or for everything about a subject."""
_TALK = frozenset(
    terms(
        "summary summaries summarize summarise summarized recap overview complete comprehensive clear detailed full"
        " brief everything key main different various aspects items topics concepts things steps order sequence list"
        " walk bring brought mention mentioned discuss discussed discussion discussions talked conversation chat chats"
        " conversations session sessions throughout across over time so far including include provide give tell know"
        " progress progressed progression develop developed development evolve evolved handle handled approach"
        " approached only"
        " zusammenfassung fasse zusammen überblick alles bisher gespräch besprochen résume résumé tout conversation"
        " discuté resume resumen todo conversación riassumi riassunto tutto tudo conversa"
        " обобщи подытожь итог всё разговор"
    )
)
"""Terms with which such questions refer to the conversation itself rather than to its subjects; ignored if others are
left."""
_ME = re.compile(r"(?i)\b(?:i|me|my|mine|i'm|i've|we|our)\b")
_SAID = (
    "(?:said|suggested|recommended|told|mentioned|gave|given|listed|proposed|explained|advised|described|provided"
    "|offered|wrote|say|suggest|recommend|tell|mention|give|list|propose|explain|advise|describe|provide|offer|write)"
)
_YOU = re.compile(
    rf"(?i)\b(?:did|have|had) you (?:\w+ )?{_SAID}\b|(?<!can )(?<!could )(?<!would )\byou {_SAID}\b"
    r"|\byour (?:\w+ )?(?:answer|suggestion|recommendation|advice|reply|response|explanation|list)"
)
_NAME = re.compile(r"\b[A-Z]\w{2,20}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Features of one question."""

    terms: frozenset[str]
    months: frozenset[str]
    """Months named in the question, as two digits."""
    dates: frozenset[str]
    """Dates named in the question, as YYYY-MM-DD, or MM-DD if without a year."""
    sought: int
    """Cue flag of the index that the question word asks for: `TIMED`, `PLACED` or `LASTING`; 0 for none."""
    names: frozenset[str]
    """Capitalized words, which may be names of people."""
    advice: bool
    """True if it asks for help or advice: standing instructions and preferences of the user then matter."""
    broad: bool
    """True if it is about a sequence, a development, a count or the whole conversation."""
    order: bool
    """True if it asks for a sequence of events."""
    whole: bool
    """True if it asks for a summary, or for everything about a subject."""
    mine: bool
    """True if it is about the user who asks."""
    yours: bool
    """True if it is about something the assistant said."""

    @property
    def wide(self) -> bool:
        """True if mentions spread over the conversation answer it better than the best passages do."""
        return self.order or self.whole

    @classmethod
    def of(cls, text: str) -> Question:
        """Analyze the text of a question."""
        text = prose(text)
        order, whole, own = bool(_ORDER.search(text)), bool(_WHOLE.search(text)), frozenset(terms(text))
        broad = order or whole or bool(_BROAD.search(text))
        months = {f"{number:02}" for number, month in enumerate(_NAMED, 1) if month.search(text)}
        dates = frozenset(date for _, date in dated(text))
        return cls(
            terms=(own - _TALK or own) if whole else own,
            months=frozenset(months.union(_DATED.findall(text), (date[5:7] for date in dates if len(date) > 5))),
            dates=dates,
            sought=next((flag for flag, word in _SOUGHT if word.search(text)), 0),
            names=frozenset(_NAME.findall(text)),
            advice=bool(_ADVICE.search(text)) and not broad,
            broad=broad,
            order=order and not whole,
            whole=whole,
            mine=bool(_ME.search(text)),
            yours=bool(_YOU.search(text)),
        )


def dated(text: str) -> Iterator[tuple[str, str]]:
    """Dates in a text: as they are written, and as YYYY-MM-DD, or MM-DD if without a year."""
    for match in _DAY.finditer(text):
        yield match[0], _date(match)
    for match in _ISO_DAY.finditer(text):
        yield match[0], match[0]
    for match in _NUMERIC_DAY.finditer(text):
        first, second = int(match["first"]), int(match["second"])
        either = {(second, first)} if match["mark"] == "." else {(second, first), (first, second)}
        for month, day in sorted(either):
            if 1 <= month <= len(_MONTHS):
                yield match[0], f"{match['year']}-{month:02}-{day:02}"


def _date(match: re.Match[str]) -> str:
    """Format a matched date as YYYY-MM-DD, or MM-DD if it has no year."""
    month = (match["month"] or match["named"]).capitalize()[:3]
    number = 1 + [name[:3] for name in _MONTHS].index(month)
    year = f"{match['year']}-" if match["year"] else ""
    return f"{year}{number:02}-{int(match['day'] or match['on']):02}"


class Pending(NamedTuple):
    """The question that recall answers in the current turn."""

    at: int
    """Position of the prompt that it comes before."""
    text: str

    @property
    def name(self) -> str:
        """Short hash of the text."""
        return text_hash(self.text)[:16]


def pending_question(history: History, counter: TokenCounter) -> Pending | None:
    """The prompt of the current turn, with any questions that were added since its run began; None if there is none.

    Text that was added to a run counts only if it asks something. If it does, the prompt counts, too, only if it asks,
    because added text mostly steers the work on it. Text that a tool returned counts like a user's, but is no prompt
    that anything could come before.
    """
    added, newest = list[str](), None
    for position in reversed(range(len(history))):
        reading = history.readings[position]
        if not reading.has_prompt:
            continue
        if not continues_run(history.readings, position):
            prompt = question_text(reading)
            asking = asking_part(prompt, counter)
            if not added:
                return Pending(position, prompt)
            asked = [asking, *added] if asks(asking, counter, strict=True) else added
            return Pending(position if newest is None else newest, "\n".join(asked))
        if questions := [text for text in _texts(reading) if asks(text, counter, strict=True)]:
            added = [*questions, *added]
            newest = position if newest is None and is_prompt(history.readings, position) else newest
    last = prompt_at(history) if newest is None else newest
    if last is None:
        return None
    return Pending(last, "\n".join(added) or question_text(history.readings[last]))


def question_text(reading: Reading) -> str:
    """Prompt text of a request, without its files; of several prompts, the last one that contains a term.

    A request has several prompts if an earlier one was never answered.
    """
    prompts = _texts(reading)
    return next((text for text in reversed(prompts) if _has_term(text)), "\n".join(prompts))


def _texts(reading: Reading) -> list[str]:
    """Texts of a message's user parts, without their files."""
    return [without_files(item) for item in reading.items if item.kind is Kind.USER and item.mark is None]


def _has_term(text: str) -> bool:
    """True if a text contains a term. It is read in chunks, because the first chunk nearly always decides."""
    return any(any(terms(text[start : start + PROSE])) for start in range(0, len(text), PROSE))
