"""The rules of a recorded request with their texts, which the record has only in the messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from context_compiler.compiler.rules import LISTED, NO_ROOM, REVOKED, rule_origin, stated_rules
from context_compiler.compiler.steering import steering_of
from context_compiler.compiler.trace import Sent, Tracer
from context_compiler.messages.display import RULE, VERBATIM, segments
from context_compiler.messages.fences import neutralize
from context_compiler.messages.history import Reading
from context_compiler.messages.items import Kind
from context_compiler.messages.printable import safe
from context_compiler.messages.rules import Rule, rule_sentences, rules_in_force
from context_compiler.record.browse import RequestRow
from context_compiler.record.database import Database
from context_compiler.record.sessions import actions_of
from context_compiler.record.values import Record

_POSITION = re.compile(r"rule of message (\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRule:
    """A rule of the conversation, and its state in a request."""

    origin: str
    """The message that contains it, or `rules=`."""
    state: str
    text: str
    """Empty if the record does not have it, such as a rule of the application that found no room."""
    left_out: bool
    """True if it found no room in the request."""


def shown_rules(tracer: Tracer, db: Database, sent: Sent, row: RequestRow, record: Record) -> Iterator[ShownRule]:
    """Iterate over the rules of a request: those in force, then those that were replaced."""
    states = cast("list[Mapping[str, str]]", record.ledger.get("rules") or [])
    users = _users_rules(tracer, db, sent, [rule["rule"] for rule in states])
    steering, _ = steering_of([done for done in actions_of(db, row.session) if done.created_at < record.created_at])
    standing = rules_in_force(rule for rule in users if not steering.dismisses(rule.text))
    texts: dict[str, list[str]] = {}
    for rule in stated_rules(standing, users):
        texts.setdefault(rule_origin(rule), []).append(rule.text)
    declared = rule_origin(Rule(""))
    listed = [rule for rule in states if rule["rule"] == declared and rule["state"] == LISTED]
    others = _listed_texts(tracer, db, sent) if listed else []
    own = {neutralize(rule.text) for rule in users}
    others = [text for text in others if text not in own]
    texts[declared] = others if len(others) == len(listed) else []
    for rule in states:
        origin, state = rule["rule"], rule["state"]
        has = bool(texts.get(origin)) and (origin != declared or state == LISTED)
        text = texts[origin].pop(0) if has else ""
        yield ShownRule(origin=origin, state=state, text=safe(text), left_out=state == NO_ROOM)


def _users_rules(tracer: Tracer, db: Database, sent: Sent, origins: Iterable[str]) -> list[Rule]:
    """Rules in the messages that these origins name, in order."""
    named = {int(match[1]) for origin in origins if (match := _POSITION.match(origin))}
    places = sorted(position for position in named if position < len(sent.raw))
    readings = tracer.uncounted(db, [sent.raw[position] for position in places])
    return [
        Rule(sentence, position)
        for position, reading in zip(places, readings, strict=True)
        for item in reading.items
        if item.mark is None and item.kind in (Kind.USER, Kind.TEXT)
        for sentence in rule_sentences(item.text)
    ]


def _listed_texts(tracer: Tracer, db: Database, sent: Sent) -> list[str]:
    """Rules that a request lists, as sent."""
    nodes = [node for node, form in zip(sent.view, sent.form, strict=True) if form != VERBATIM]
    return [text for reading in tracer.uncounted(db, nodes) for text in _rule_lines(reading)]


def _rule_lines(reading: Reading) -> Iterator[str]:
    for item in reading.items:
        for piece in segments(item.text) if item.mark is not None else ():
            if piece.form == RULE:
                lines = piece.text.partition(f"\n{REVOKED}\n")[0]
                yield from (line.rstrip("\n") for line in re.split(r"^- ", lines, flags=re.MULTILINE) if line.strip())
