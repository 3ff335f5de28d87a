"""The rules of a conversation in its views: which are in force, which a view lists, and which find no room.

Rules come from the application (`rules=`) and from the user's own prompts. A rule whose message a view keeps is there
already. The others are listed in one fence, which is frozen with the cycle. A rule that comes later is put before the
prompt of its turn, and stays there until the next cycle. All of them together may take a quarter of the room.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pydantic_ai.messages import UserPromptPart

from context_compiler.compiler.cycle import Cycle
from context_compiler.compiler.steering import Steering
from context_compiler.messages.fences import RULES_TITLE, fence, neutralize
from context_compiler.messages.history import History
from context_compiler.messages.items import MESSAGE_OVERHEAD, Kind, user_content
from context_compiler.messages.prompts import replace_sentence
from context_compiler.messages.rules import Rule, contradicts
from context_compiler.messages.shapes import Shape, apply_shape, shortens_prompt
from context_compiler.recall.passages import Passage
from context_compiler.tokens import TokenCounter

RULE_WHY = "a rule"
"""Reason of a quote that lists a rule."""

LISTED, IN_MESSAGE, NO_ROOM, DISMISSED = "listed", "in its message", "left out", "not in force"
"""States of a rule in a request."""

STATES = 200
"""Maximum number of rules whose states are recorded, and of rules no longer in force that quotes leave out."""

REVOKED = "No longer a rule:"
"""Line before rules that the application has withdrawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleNote:
    """Rules that a view puts before a message because they came after its cycle began."""

    at: int
    """Position of the message in the raw history."""
    tip: str
    """Chain id of the message."""
    rules: tuple[str, ...]
    revoked: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Fenced text as sent."""
        return rules_text(self.rules, self.revoked)


def rule_origin(rule: Rule) -> str:
    """Origin of a rule, as the record shows it."""
    return f"rule of message {rule.position}" if rule.position >= 0 else "rule of rules="


def rules_text(rules: Sequence[str], revoked: Sequence[str] = ()) -> str:
    """Rules as a view lists them, in a fence; empty for none."""
    lines = [f"- {text}" for text in rules]
    lines += [REVOKED, *(f"- {text}" for text in revoked)] if revoked else []
    return fence(RULES_TITLE, "\n".join(lines)) if lines else ""


def rules_cost(rules: Sequence[str], counter: TokenCounter) -> int:
    """Tokens of listed rules as a part of a view, at most; 0 for none."""
    if not rules:
        return 0
    apart = _frame(counter) + sum(_line(text, counter) for text in rules)
    return max(apart, counter.text(rules_text(rules)) + MESSAGE_OVERHEAD)


def _frame(counter: TokenCounter) -> int:
    return counter.text(fence(RULES_TITLE, "")) + MESSAGE_OVERHEAD + 1


def _line(text: str, counter: TokenCounter) -> int:
    return counter.text(f"- {neutralize(text)}\n")


def fitting_rules(rules: Sequence[Rule], room: int, counter: TokenCounter) -> tuple[Rule, ...]:
    """Newest rules that fit in `room` tokens, in order. Those that the application declares count as the newest."""
    kept, left = list[Rule](), room - _frame(counter)
    for rule in sorted(rules, key=lambda candidate: (candidate.position < 0, candidate.position), reverse=True):
        cost = _line(rule.text, counter)
        if cost <= left:
            kept.append(rule)
            left -= cost
    while kept and rules_cost([candidate.text for candidate in kept], counter) > room:
        kept.pop()
    return tuple(candidate for candidate in rules if candidate in set(kept))


def unlisted(
    rules: Iterable[Rule], history: History, shapes: Sequence[Shape | None], note: str, counter: TokenCounter
) -> list[Rule]:
    """Rules that neither a message with one of these shapes nor the note of a view contains word for word."""

    def is_said(rule: Rule) -> bool:
        shape = shapes[rule.position] if rule.position >= 0 else None
        if shape is None or shape.bare:
            return False
        message, reading = history.messages[rule.position], history.readings[rule.position]
        if not shortens_prompt(reading, shape):
            return True
        shaped = apply_shape(message, reading, shape, counter)
        prompts = [part for part in shaped.parts if isinstance(part, UserPromptPart)] if shaped is not None else []
        pieces = [piece for part in prompts for piece in user_content(part.content)]
        return any(_in_one_line(rule.text) in _in_one_line(str(getattr(piece, "content", piece))) for piece in pieces)

    return [rule for rule in rules if neutralize(rule.text) not in note and not is_said(rule)]


def without_rules(candidates: Iterable[Passage], rules: Sequence[str]) -> list[Passage]:
    """Passages without the rules that a view contains anyway, because a view says nothing twice."""
    passages: list[Passage] = []
    for passage in candidates:
        text = passage.text
        for rule in rules:
            text = replace_sentence(text, rule, "…")
        if text == passage.text:
            passages.append(passage)
        elif any(map(str.isalnum, text)):
            passages.append(replace(passage, text=text))
    return passages


def _in_one_line(text: str) -> str:
    return " ".join(text.split())


def absent_rules(rules: Sequence[Rule], sent: History) -> list[Rule]:
    """Rules that a view does not contain word for word in what users said or this package wrote."""
    if not rules:
        return []
    shown = "\n".join(item.text for _, item in sent.items() if item.kind is Kind.USER or item.mark is not None)
    lost = [rule for rule in rules if rule.text not in shown and neutralize(rule.text) not in shown]
    if lost:
        plain = _in_one_line(shown)
        lost = [rule for rule in lost if _in_one_line(rule.text) not in plain]
    return lost


def rule_states(
    rules: Sequence[Rule], all_rules: Sequence[Rule], listed: Sequence[str], lost: Sequence[Rule]
) -> list[dict[str, str]]:
    """State of each rule in a request, without its text: those in force, then those that were replaced."""
    states: list[dict[str, str]] = []
    standing = {rule.name for rule in rules}
    for rule in stated_rules(rules, all_rules):
        state = NO_ROOM if rule in lost else LISTED if rule.text in listed else IN_MESSAGE
        if rule.name not in standing:
            newer = next((candidate for candidate in rules if contradicts(candidate.text, rule.text)), None)
            state = f"replaced by the {rule_origin(newer)}" if newer is not None else DISMISSED
        states.append({"rule": rule_origin(rule), "state": state})
    return states


def stated_rules(rules: Sequence[Rule], all_rules: Sequence[Rule]) -> list[Rule]:
    """Rules whose states are recorded, in order: those in force, then those that were replaced."""
    standing = {rule.name for rule in rules}
    return [*rules[-STATES:], *(rule for rule in all_rules[-STATES:] if rule.name not in standing)]


def valid_notes(notes: Sequence[RuleNote], history: History, cycle: Cycle, steering: Steering) -> tuple[RuleNote, ...]:
    """Notes whose messages this history contains after those on which its cycle decides, without dismissed rules.

    A note that is older than the cycle loses the rules that the cycle lists itself.
    """
    listed, valid = set(cycle.rules), list[RuleNote]()
    for note in notes:
        there = cycle.decided <= note.at < len(history) and history.ids[note.at] == note.tip
        if there and not any(map(steering.dismisses, note.rules)):
            rules = tuple(text for text in note.rules if text not in listed)
            revoked = tuple(text for text in note.revoked if text in listed)
            listed = listed.union(rules).difference(revoked)
            valid += [replace(note, rules=rules, revoked=revoked)] if rules or revoked else []
    return tuple(valid)


def listed_rules(cycle: Cycle, notes: Sequence[RuleNote]) -> list[str]:
    """Rules that a view lists, without those that a later note revokes."""
    listed = list(cycle.rules)
    for note in notes:
        listed = [text for text in (*listed, *note.rules) if text not in note.revoked]
    return listed
