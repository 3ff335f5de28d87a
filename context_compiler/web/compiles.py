"""One compile: its prompt and answer, its cost, and the identifiers that its summary lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import cast

from context_compiler.compiler.specifics import TextSet, mentions
from context_compiler.compiler.trace import NotFound, session_of
from context_compiler.messages.history import History, reader_of
from context_compiler.messages.rules import find_rules, rules_in_force
from context_compiler.messages.spans import positions
from context_compiler.messages.turns import outline, pair
from context_compiler.record import browse
from context_compiler.record.browse import SessionRow
from context_compiler.record.costs import compile_cost
from context_compiler.record.database import Database
from context_compiler.record.rows import prefix
from context_compiler.record.values import Compile
from context_compiler.tokens import as_counter
from context_compiler.web.data import Inspector

MAX_MESSAGES = 3_000
"""Maximum messages of a history that is searched for lost identifiers."""

LISTED = 200
"""Maximum lost identifiers listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostIdentifier:
    """Identifier of the compiled messages that is missing from the summary."""

    text: str
    turn: int
    """From 1."""
    message: int
    """Position in the raw history."""
    speaker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilePage:
    """Everything that is recorded about a compile."""

    id: int
    session: SessionRow
    compile: Compile
    first: int | None
    """First request that used the compile."""
    last: int | None
    requests: int
    before: int | None
    """Tokens of the compiled messages; None if they are not on the record, or too many."""
    cost: Decimal | None
    """US dollars; None for an unknown price."""
    found: int
    """Number of identifiers in the compiled messages."""
    missing: int
    """Number of them that are in neither the summary nor a rule."""
    lost: tuple[LostIdentifier, ...]
    """The first of those that are missing."""


async def load_compile(inspector: Inspector, number: int) -> CompilePage:
    """Load a compile by its number."""
    return await inspector.read(partial(_load, inspector=inspector, number=number))


def _load(db: Database, inspector: Inspector, number: int) -> CompilePage:
    recorded = browse.find_compile(db, number)
    if recorded is None:
        raise NotFound(f"no compile {number} on this record")
    session, made = recorded
    first, last, count = browse.requests_using_compile(db, number)
    history, span = _span(db, inspector, session, made)
    identifiers = [] if history is None else list(_identifiers(history, span, made))
    lost = [identifier for identifier, kept in identifiers if not kept]
    return CompilePage(
        id=number,
        session=session_of(db, session),
        compile=made,
        first=first,
        last=last,
        requests=count,
        before=None if history is None else sum(history.readings[position].tokens for position in span),
        cost=compile_cost(made),
        found=len(identifiers),
        missing=len(lost),
        lost=tuple(lost[:LISTED]),
    )


def _span(db: Database, inspector: Inspector, session: int, made: Compile) -> tuple[History | None, Sequence[int]]:
    """Return the history of a compile and the positions that it summarized; None and nothing if unavailable."""
    payload = made.input_payload or {}
    tip, spans = payload.get("raw_tip"), cast("list[list[int]]", payload.get("compiled") or [])
    if not isinstance(tip, str) or not spans:
        return None, ()
    nodes = inspector.chain(db, prefix(made.owner) + tip, session)
    span = sorted(positions((start, stop) for start, stop in spans))
    if not nodes or len(nodes) > MAX_MESSAGES or span[-1] >= len(nodes):
        return None, ()
    return reader_of(as_counter(None)).read(inspector.host_messages(db, nodes)), span


def _identifiers(history: History, span: Sequence[int], made: Compile) -> list[tuple[LostIdentifier, bool]]:
    """Return each identifier of the compiled messages once, with True if the summary or a rule contains it."""
    rules = rules_in_force(find_rules(history).rules)  # every request has them beside the summary
    summary = TextSet(made.summary or "", *(rule.text for rule in rules))
    identifiers: dict[str, tuple[LostIdentifier, bool]] = {}
    for mention in mentions(history, outline(history, pair(history)), span):
        if mention.specific.text not in identifiers:
            lost = LostIdentifier(
                text=mention.specific.verbatim, turn=mention.turn + 1, message=mention.position, speaker=mention.speaker
            )
            identifiers[mention.specific.text] = lost, summary.holds(mention.specific)
    return list(identifiers.values())
