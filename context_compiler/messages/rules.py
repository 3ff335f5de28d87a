"""Find the rules in users' prompts: lasting orders and prohibitions in the user's own words, as whole sentences.

A rule is an order or a prohibition (`instructions`) that is not about the task at hand: one with a lasting word such as
"always" or "when I ask", or a plain order without words such as "this" or "the second paragraph". Wishes are no rules,
and neither is what a prompt quotes or what was pasted into it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache

from context_compiler.cache import Memo
from context_compiler.ids import text_hash
from context_compiler.messages.fences import one_line
from context_compiler.messages.history import History, Reading
from context_compiler.messages.instructions import (
    FILLER,
    LISTED,
    ORDERS,
    QUOTED,
    UNSPACED,
    is_instruction,
    plain_sentence,
)
from context_compiler.messages.items import Kind
from context_compiler.messages.prompts import PARAGRAPH, count_fences, sentence_ends, sentence_spans
from context_compiler.resilience import OutOfTimeError, in_steps

MAX_CACHED_PROMPTS = 1_024
"""Number of prompts whose rules are cached; the same prompts recur at every request."""

MAX_RULE = 400
"""Maximum characters of a rule in a prompt; a longer sentence is taken for data."""

OWN_WORDS = 1_200
"""Characters of a prompt above which only its beginning and its end, half of them each and no more than a paragraph,
are taken for the user's own words."""

_LASTING = re.compile(
    rf"^{FILLER}(?:when|before|while|after) (?!trying|booking)[a-z]+ing\b"
    r"|\b(?:always|never|from (?:now|here|this (?:point|moment|day)) on|henceforth|at all times|no matter what|whenever"
    r"|under no circumstances?|(?:every|each|any) ?time|in future|(?:going|moving) forward(?!,? i\b)|for the rest of"
    r"|(?:unless|until) (?:i|we|otherwise|told|asked)|without (?:first |my |asking|telling|checking|consulting)"
    r"|(?:ask|check with|tell|warn|consult) me (?:first|before)|(?:when|if) i (?:ask|say|type|tell|write)|as a rule"
    r"|my rule|(?:before|after|when) you|you are (?:not |never )?(?:allowed|permitted|to)|auf keinen fall"
    r"|ab (?:jetzt|sofort)|immer(?! noch\b| wieder\b)|niemals?|nie|künftig|in zukunft|toujours(?! pas\b)|jamais"
    r"|désormais|dorénavant|siempre|nunca|jamás"
    r"|de ahora en adelante|sempre|d'ora in poi|mai|vanaf nu|od teraz|всегда|никогда|отныне|впредь)\b"
    f"|{'|'.join(UNSPACED)}"
)
"""Words that make an order a lasting one."""

_MARKED = re.compile(
    r"^(?:as a rule|my rule(?: is)?|the rule(?: is)?)[,:] |, (?:always|at all times|as a rule)[.!]?$"
    r"|^(?:after|before|when(?:ever)?) you [^,]+, (?!(?:for|the|i|we|it|that|what|how|why|do|is|are|can)\b)[a-z]+ "
    r"|^stop [a-z]+ing[.!]?$|\bmay not be [a-z]+ed\b"
    r"|^(?:[a-z]+ ){1,3}must (?:never|always|not) "
)
"""Orders that are recognized by their marks, whatever their verb."""

_EACH = re.compile(r"\b(?:each|every)\b")
_AT_HAND = re.compile(
    r"\b(?:this|these|those|it(?! is\b)|them|here|now|today|tonight|tomorrow|yet|once|immediately|right away|above"
    r"|below|just|following|attached)\b(?! (?:conversation|chat|session|project|repo(?:sitory)?|codebase|point on))"
    r"|(?:^|\b(?:to|in|on|of|with|for|about|at|from|do|change|touch|use|send|delete|remove|include|mention|say)) that\b"
    r"|\b(?:first|second|third|fourth|last|next|previous|final|original) [a-z]"
    r"|\bthe (?:[a-z]+ )?(?:paragraph|sentence|section|title|ending|beginning|intro(?:duction)?|conclusion|e?-?mail"
    r"|letter|essay|text|draft|outline|table|image|picture|photo|story|scene|poem|article|list|plan|question|answer"
    r"|line|page|chapter|meeting|invitation|booking|flight|order)s?\b"
)
"""Words that tie an order to the task at hand."""

_THIS_TEXT = re.compile(
    r"\bth(?:is|at|ese) (?:[a-z]+ )?(?:e?-?mail|message|letter|question|paragraph|sentence|section|text|draft|ticket"
    r"|essay|post|story|article|line|one|time)s?\b|\bthose [a-z]|\b(?:second|third|fourth|last|next) (?:paragraph|line"
    r"|sentence|section|page|chapter|row|column)\b"
)
"""Words that tie even a lasting order to the task at hand."""

_SAYS = re.compile(
    rf"^{FILLER}(?:(?:because|since|that|hm+|honestly|frankly|actually|really),? )*"
    r"(?:i|we|he|she|they|it|there|that|this)(?:'m|'ve|'d|'re|'s)? "
    r"(?!(?:[a-z']+ ){0,3}(?:you\b|(?:always|never) want))"
)
"""Beginnings of sentences that say something and order nothing."""

_OF_OTHERS = re.compile(
    rf"^{FILLER}(?:(?:[\w'.]+ ){{1,4}}(?:wrote|writes|said|says|states|reads)"
    r"|(?:translate|draft|write|add|rephrase|correct|proofread|summari[sz]e|explain|review)\b[^:]{0,80}): "
)
"""Words of somebody else, or a text to work on, after a colon."""

_ASKS_HELP = re.compile(
    r"\b(?:can|could|would|will) you (?!(?:please )?(?:always|never|only|stop|avoid)\b)|\bhow (?:can|do) i\b"
)
_WEAK = re.compile(
    rf"^{FILLER}(?:make sure|be sure|make certain|ensure|see to it|keep (?:it|in mind)|bear in mind|remember that)\b"
    r"(?!,? (?:that )?(?:each|every)\b)"
)
"""Orders that are mostly about the task at hand."""

_IDLE = re.compile(
    r"(?:\bdon't|\bdo not|^never) (?:just|ask again|wait|hold|hesitate|make me|forget|worry|be|give up|quit|miss)\b"
    r"|^no (?:news|idea|luck|answer|reply|surprises?|pressure|hurry|stress|comment|chance|big deal"
    r"|offen[sc]e|excuses?|(?:[a-z]+ )*(?:that|well))\b"
)
_GIVES = re.compile(
    r"\b(?:rules?|guidelines?|conventions?|preferences?|instructions?|requirements?|constraints?|keep in mind|remember"
    r"|note|always|never|please|regeln|vorgaben|règles|consignes|reglas|normas)\b"
    r"|^(?:important|style|wichtig|how i work|my|meine?|mes|mis|(?:a few|some) things)\b"
)
"""Lines before a list of rules, in small letters."""

_DECLARED = re.compile(
    r"(?im)^(?:[^\n]{0,400}[.!?] )?(?:please,? )?(?:(?:here|these|there) are |(?:follow|keep to|stick to|obey) )?"
    r"(?:my|our|these|the following|some|a few|two|three|four|five|six|seven|eight|nine|ten|\d{1,2}|meine|mes|mis)"
    r" (?:ground |house |simple |basic |important |hard |strict )?(?:rules|regeln|règles|reglas)\b(?! of\b)"
    r"[^\n:]{0,80}:[ \t]*\n+(?P<items>(?:[ \t]{0,8}(?:[-*•–]|\d{1,2}[.)])[ \t]+\S[^\n]*(?:\n|\Z))+)"
)
"""A list that its author calls rules."""

_PLAIN = re.compile(
    rf"^{FILLER}(?:{'|'.join(ORDERS)}|no\b|prefer\b|(?:you|[a-z]+(?: [a-z]+)?) (?:must|shall|may|should) (?:not|only)\b"
    r"|i(?:'d| would)? (?:(?:don't|do not) want|want|need|like|rather|prefer) you\b)"
)
"""Orders without a lasting word."""
_REPLY = re.compile(r"^(?:yes|yeah|yep|no|ok|okay|sure|right|good|great|fine|perfect|agreed|exactly),")
"""Beginnings of an answer, whose order is about what was asked."""

FENCE = "\n```\n"

_rules: Memo[str, tuple[str, ...]] = Memo(MAX_CACHED_PROMPTS)
"""Cached rules by the hash of the prompt, because a prompt may have megabytes."""


def rule_sentences(prompt: str) -> tuple[str, ...]:
    """Rules in a prompt: whole sentences, word for word, each on one line."""
    return _rules.get_or_make(text_hash(prompt), lambda: tuple(_own_rules(prompt)))


def _own_rules(prompt: str) -> Iterator[str]:
    """Rules among the sentences of a prompt that are its author's own: not quoted, not code, and not pasted.

    What follows a line with a colon at its end is pasted, unless the line announces rules. What its author calls a rule
    is one. A rule goes on after a line that is full.
    """
    own = _own_part(prompt)
    quoted = [match.span() for match in QUOTED.finditer(own)]
    declared = [match.span("items") for match in _DECLARED.finditer(own)]
    for start, end, fenced in sentence_spans(own, wrapped=True):
        # A full stop and a blank may follow the closing quotation mark.
        within = any(first < start < last or (first <= start and end <= last + 2) for first, last in quoted)
        shown = LISTED.sub("", one_line(own[start:end], 2 * MAX_RULE))
        if fenced:
            continue
        if shown.endswith((":", "：")) and "\n" in own[start:end] and not _announces_rules(shown.lower()):
            return
        if within or not 3 < len(shown) <= MAX_RULE:
            continue
        if any(first <= start < last for first, last in declared) or is_rule(shown):
            yield shown


def _announces_rules(line: str) -> bool:
    """True if a line before a colon, in small letters, announces rules, and no text of somebody else."""
    return bool(_GIVES.search(line)) and not (_THIS_TEXT.search(line) or _OF_OTHERS.search(f"{line} "))


def _own_part(prompt: str) -> str:
    """Beginning of the first and end of the last paragraph of a prompt that is too long to be its author's own words.

    A shorter prompt is returned whole.
    """
    text = prompt.strip()
    if len(text) <= OWN_WORDS:
        return text
    first, last, half = text.partition(PARAGRAPH)[0], text.rpartition(PARAGRAPH)[2], OWN_WORDS // 2
    stop = max((end for end in (*sentence_ends(first), len(first)) if end <= half), default=0)
    start = min((end for end in (0, *sentence_ends(last)) if end >= len(last) - half), default=len(last))
    begin, end = first[:stop], last[start:]
    # What is left out may open or close a fenced block.
    closing, opening = (FENCE * (count_fences(part) % 2) for part in (begin, text[: len(text) - len(end)]))
    return "".join((begin, closing, PARAGRAPH, opening, end))


def is_rule(sentence: str) -> bool:
    """True if a sentence is a lasting order or prohibition."""
    plain = plain_sentence(sentence)
    if not (is_instruction(sentence) or _MARKED.search(plain)):
        return False
    if any(kind.search(plain) for kind in (_SAYS, _OF_OTHERS, _ASKS_HELP, _IDLE, _THIS_TEXT)):
        return False
    if _LASTING.search(plain) or _MARKED.search(plain) or (_EACH.search(plain) and not _WEAK.search(plain)):
        return True
    return bool(_PLAIN.search(plain)) and not any(kind.search(plain) for kind in (_WEAK, _AT_HAND, _REPLY))


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that every request of a conversation contains, word for word."""

    text: str
    position: int = -1
    """Position of the user's message that contains it; -1 if the application declares it."""

    @property
    def name(self) -> str:
        """The rule without case and punctuation, under which repetitions are recognized."""
        return rule_name(self.text)


def rule_name(text: str) -> str:
    """A rule without case and punctuation."""
    return "".join(filter(str.isalnum, text.casefold()))


@dataclass(frozen=True, slots=True)
class Found:
    """Rules in the first `length` messages of a history, and what tells if people talk with each other in it."""

    length: int = 0
    rules: tuple[Rule, ...] = ()
    prompts: tuple[int, int] = (0, 0)
    """Number of prompts, and their characters."""
    answers: tuple[int, int] = (0, 0)
    """Number of answers with text, and their characters."""
    personal: int = 0
    """Number of answers that tell of a life of their own."""
    tools: bool = False
    """True if a tool was called."""

    @property
    def between_people(self) -> bool:
        """True if the answers are those of a person: not much longer than the prompts, and some of them personal."""
        (prompts, said), (answers, answered) = self.prompts, self.answers
        alike = answered * prompts <= LENGTH_RATIO * said * answers
        return alike and not self.tools and self.personal > max(2, PERSONAL * answers)


LENGTH_RATIO, PERSONAL = 1.5, 0.09
"""In a conversation between people, answers have at most this multiple of the length of prompts, and more than this
fraction of them, and more than two, are personal."""

_PERSONAL = re.compile(
    r"(?i)\bI(?:'ve|'d| have)? (?:\w+ly |just |also |still |even |been )?(?:went|saw|met|bought|got|felt|took|started"
    r"|tried|visited|signed|loved?|enjoy|had|been|was|were|grew|lost|won|joined|came|watched|spent|ran|used to|miss"
    r"|wish|remember)\b|\bmy (?:own |new |best )?(?:kids?|family|wife|husband|mom|dad|mother|father|brother|sister"
    r"|friends?|son|daughter|dogs?|cats|boss|girlfriend|boyfriend|job|hometown)\b|\b(?:u[hm]+|yeah|haha|lol)\b"
    r"|\bI'm (?:so |really |super |also |still )?(?:proud|excited|thankful|grateful|stoked|lucky|loving|feeling)\b"
)


def find_rules(history: History, memo: Memo[str, Found] | None = None) -> Found:
    """Find the rules that users gave in a history, oldest first, with all repetitions.

    Only the users' own words count: no tool results, no answers, nothing this package wrote, and no code or quotations
    in a prompt.

    Args:
        history: The raw history.
        memo: What was found in earlier histories, by their tips; a history that continues one is read from there.
    """
    ids = history.ids
    earlier = (memo.get(name) for name in reversed(ids[-NEAR:])) if memo is not None else ()
    result = next((entry for entry in earlier if entry is not None), Found())
    with suppress(OutOfTimeError):  # the next request goes on from there
        for position in in_steps(range(result.length, len(history))):
            result = _with_message(result, position, history.readings[position])
    if memo is not None and ids:
        memo.keep(ids[-1], result)
    return result


def _with_message(result: Found, position: int, reading: Reading) -> Found:
    said = [item.text for item in reading.items if item.mark is None and item.kind in (Kind.USER, Kind.TEXT)]
    size = sum(map(len, said))
    result = replace(result, length=position + 1, tools=result.tools or reading.exchanges)
    if reading.has_prompt and size:
        rules = (Rule(sentence, position) for text in said for sentence in rule_sentences(text))
        return replace(result, rules=(*result.rules, *rules), prompts=_counted(result.prompts, size))
    if reading.request or not size:
        return result
    personal = result.personal + any(map(_PERSONAL.search, said))
    return replace(result, answers=_counted(result.answers, size), personal=personal)


def _counted(sizes: tuple[int, int], size: int) -> tuple[int, int]:
    return sizes[0] + 1, sizes[1] + size


NEAR = 8
"""Number of newest messages among which the end of an earlier history is looked for."""


def rules_in_force(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Rules without those that a later one repeats or contradicts, in order."""
    stand: list[Rule] = []
    for rule in rules:
        stand = [other for other in stand if other.name != rule.name and not contradicts(rule.text, other.text)]
        stand.append(rule)
    return tuple(stand)


_CUES = re.compile(
    r"(?i)\b(?:from now on|always|please|again|instead|only|never|do not|don't|dont|any ?more|henceforth|in future"
    r"|at all times|you (?:must|should|may)|must|should|not)\b|[^\w\s]"
)
_NEGATION = re.compile(r"(?i)\b(?:never|do not|don't|dont|must not|mustn't|should not|may not|avoid|stop|no)\b")
_LIMITS = frozenset(
    "exceed above below under over than most least within until maximum minimum max min limit to".split()
)
MAX_VALUE = 4
"""Maximum words of a value in a rule after "as", such as "day and month"."""


@lru_cache(maxsize=4_096)  # each rule is compared with all others, at every request
def _claim(text: str) -> tuple[list[str], bool]:
    """Words of a rule without its cues, and True if it forbids something."""
    return _CUES.sub(" ", text).casefold().split(), bool(_NEGATION.search(text))


def contradicts(newer: str, older: str) -> bool:
    """True if two rules cannot both be kept: one forbids what the other orders, or they give another value.

    A value is a number, or in an order the one word after "in", such as "in euros", or a few words after "as". All else
    must be the same: "3 backups" and "5 logs" can both be kept, and so can two prohibitions with different objects.
    """
    (words, forbidden), (others, forbidden_before) = _claim(newer), _claim(older)
    forbids = forbidden, forbidden_before
    if words == others:
        return forbids[0] != forbids[1]
    # Rules that begin and end alike differ in the value between.
    both = min(len(words), len(others))
    start = next((index for index in range(both) if words[index] != others[index]), both)
    both -= start
    end = next((offset for offset in range(both) if words[-1 - offset] != others[-1 - offset]), both)
    values = (words[start : len(words) - end], others[start : len(others) - end])
    most = MAX_VALUE if words[start - 1 : start] == ["as"] else 1
    if start < 1 or forbids[0] != forbids[1] or len(values[0]) != len(values[1]) or not 0 < len(values[0]) <= most:
        return False
    if all(value[0][:1].isdigit() for value in values):
        return not forbids[0] or "exceed" in words or not _LIMITS.isdisjoint(words[:start])
    return start > 1 and not forbids[0] and words[start - 1] in ("in", "as")
