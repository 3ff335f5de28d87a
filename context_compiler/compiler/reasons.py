"""Reasons why a message is left out of a view, shortened in it or kept in it, and their texts.

`Drop.reason`, `View.kept` and the record hold the text of a reason. Only this module finds out what a text means.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from context_compiler.messages.display import CARRIED, SHORTENED, VERBATIM

DROPS, SHORTENS = "drops", "shortens"
"""Effects of a step."""


@dataclass(frozen=True, slots=True)
class StepInfo:
    """A step of the cut order."""

    name: str
    effect: str
    """`DROPS` or `SHORTENS`."""

    number: int
    """Place in the cut order, from 1; 0 for a cut outside of it."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Reason of a cut, with the step that gives it."""

    text: str
    """Text on the record; `{turns}` or `{tokens}` in it is a number."""
    step: StepInfo


CUT_ORDER = (
    "shorten parts above a quarter of the room",
    "drop older turns",
    "shorten tool exchanges of earlier turns",
    "shrink the summary",
    "drop recent turns",
    "shorten tool exchanges of this turn",
    "leave out the summary",
    "truncate the newest tool exchange",
    "drop tool exchanges of this turn",
    "drop pinned messages",
    "truncate what is left, harder each time",
    "drop what truncation cannot shorten",
    "drop earlier prompts of this turn",
    "shorten prompts to less than a quarter of the room",
    "shorten the system text of others",
)
"""Names of the steps of the cut order; those of the summary cut no message."""


def _step(name: str, effect: str) -> StepInfo:
    return StepInfo(name, effect, CUT_ORDER.index(name) + 1 if name in CUT_ORDER else 0)


_OLDER = _step("drop older turns", DROPS)
_RECENT = _step("drop recent turns", DROPS)
_ACTIVE = _step("drop tool exchanges of this turn", DROPS)
_TRUNCATION = _step("truncate what is left, harder each time", SHORTENS)
_LAST_RESORT = "last resort: only the last exchange is sent"

OVERSIZED_PROMPT = Reason("a prompt larger than the budget", _step("shorten prompts larger than the budget", SHORTENS))
OVERSIZED_SYSTEM_TEXT = Reason(
    "system text that would fill the budget alone",
    _step("shorten system text that would fill the budget alone", SHORTENS),
)
LARGE_PART = Reason(
    "a part above a quarter of the budget", _step("shorten parts above a quarter of the room", SHORTENS)
)
EARLIER_TURN = Reason("an earlier turn", _OLDER)
BEFORE_LAST_TURN = Reason("older than what was then the last turn", _OLDER)
BEFORE_LAST_TURNS = Reason("older than what were then the last {turns} turns", _OLDER)
OLDEST_TURN = Reason("one of the oldest turns, which go first", _OLDER)
STUB = Reason("tool exchange as a stub", _step("shorten tool exchanges of earlier turns", SHORTENS))
RECENT_TURN = Reason("a recent turn, but the request was over budget", _RECENT)
RECENT_TURN_AHEAD = Reason("a recent turn, but the request was over the threshold", _RECENT)
ACTIVE_STUB = Reason("tool exchange of this turn as a stub", _step("shorten tool exchanges of this turn", SHORTENS))
NEWEST_EXCHANGE = Reason("newest tool exchange, over budget", _step("truncate the newest tool exchange", SHORTENS))
ACTIVE_EXCHANGE = Reason("tool exchange of this turn, over budget", _ACTIVE)
ACTIVE_EXCHANGE_AHEAD = Reason("tool exchange of this turn, over the threshold", _ACTIVE)
ACTIVE_EXCHANGE_ORDERED = Reason("tool exchange of this turn, by order", _ACTIVE)
PIN_WAITS = Reason("pinned, over budget", _step("drop pinned messages", DROPS))
TRUNCATION = Reason("clamped to fit", _TRUNCATION)
NOT_TRUNCATABLE = Reason("cannot be shortened, over budget", _step("drop what truncation cannot shorten", SHORTENS))
EARLIER_PROMPT = Reason("earlier prompt of this turn, over budget", _step("drop earlier prompts of this turn", DROPS))
SMALL_PROMPT = Reason(
    "a prompt below a quarter of the room, over budget",
    _step("shorten prompts to less than a quarter of the room", SHORTENS),
)
SYSTEM_TEXT = Reason("system text, over budget", _step("shorten the system text of others", SHORTENS))
TURNS_ORDERED = Reason("summarised from here on", _step("summarise from a turn on, by hand", DROPS))
BROKEN = Reason(
    "broken: a call without its answer, or an answer without its call",
    _step("leave out half of a tool exchange", DROPS),
)
LAST_RESORT = Reason(_LAST_RESORT, _step("send the last exchange alone", DROPS))
LAST_RESORT_TRUNCATION = Reason(f"{TRUNCATION.text}, {_LAST_RESORT}", _TRUNCATION)
AFTER_LAST_REQUEST = Reason(
    "after the last request: a view ends with it", _step("a view ends with the last request", DROPS)
)
_RULES = _step("list the rules of the conversation, the newest that fit", DROPS)
RULE_BEYOND_SHARE = Reason("a rule, beyond the {tokens} tokens for rules", _RULES)
RULE_OVER_BUDGET = Reason("a rule, over budget", _RULES)

REASONS = (
    *(OVERSIZED_PROMPT, OVERSIZED_SYSTEM_TEXT, LARGE_PART, EARLIER_TURN, BEFORE_LAST_TURN, BEFORE_LAST_TURNS, STUB),
    *(RECENT_TURN, RECENT_TURN_AHEAD, ACTIVE_STUB, ACTIVE_EXCHANGE, ACTIVE_EXCHANGE_AHEAD, ACTIVE_EXCHANGE_ORDERED),
    *(NEWEST_EXCHANGE, PIN_WAITS, TRUNCATION, NOT_TRUNCATABLE),
    *(EARLIER_PROMPT, SMALL_PROMPT, SYSTEM_TEXT, TURNS_ORDERED, BROKEN, LAST_RESORT, LAST_RESORT_TRUNCATION),
    *(OLDEST_TURN, AFTER_LAST_REQUEST, RULE_BEYOND_SHARE, RULE_OVER_BUDGET),
)

DROPPED_EARLIER, SHORTENED_EARLIER = "left out by an earlier cut", "shortened by an earlier cut"
"""Texts for a cut whose reason was not kept."""

CURRENT_TURN, KEPT_TURN, PINNED = "current turn", "recent turn", "pinned"
"""Texts for a message that is in a view."""

CARRIED_PIN, CARRIED_FOR_HOST = "carried because it is pinned", "carried for the host"
"""Texts for a message of which only parts are in a view."""

AS_STUB, WRITTEN, OTHER_SHAPE = ", as a stub", "written for this view", "kept in another shape"
"""End of the text for a message whose tool exchange is a stub; texts for a message that a view adds, and for one whose
position is unknown."""


@lru_cache(maxsize=1_000)
def _form(text: str) -> str:
    """Text of a reason without its numbers."""
    return re.sub(r"\d[\d,]*|{[^{}]*}", "#", text)


_BY_FORM = {_form(reason.text): reason for reason in REASONS}


def reason_of(text: str) -> Reason | None:
    """Reason of a cut by its text; None for any other text."""
    return _BY_FORM.get(_form(text))


def kept_form(text: str) -> str:
    """Display form of a message of the conversation, from the reason in `View.kept`."""
    if text.startswith((CARRIED_PIN, CARRIED_FOR_HOST)):
        return CARRIED
    return SHORTENED if text.endswith(AS_STUB) or text == OTHER_SHAPE else VERBATIM
