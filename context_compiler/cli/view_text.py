"""Text of `views show`: the figures, messages and tools of a recorded request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, cast

from context_compiler.cli.screen import Column, Screen
from context_compiler.cli.show import ABOUT, TOKEN_COLUMNS, print_messages, size_recorded, token_rows
from context_compiler.cli.text import first_word, number, plural, timestamp
from context_compiler.cli.views import STATUSES
from context_compiler.record.costs import compile_cost, request_cost
from context_compiler.record.totals import IMPORTED
from context_compiler.record.values import Record, Tool, message_tokens, positions_of
from context_compiler.tokens import TokenCounter
from context_compiler.tokens.prices import NANO_USD, dollars

TOOLS = (
    Column("tool", names=True),
    Column("kind"),
    Column("tokens", right=True),
    Column("description", style="dim", elastic=True),
)
KEPT = (Column("why", style="green"), Column("messages", right=True))
RULES = (Column("rule"), Column("state", style="green"))
LEFT_OUT = (
    Column("why", style="yellow", elastic=True),
    Column("messages", right=True),
    Column("tokens", right=True),
    Column("what", style="dim", wraps=True),
)
NAMED = 6
"""Maximum names per reason in the list of what was left out, on a terminal."""


def print_view(screen: Screen, record: Record, bodies: Sequence[bytes], *, raw: bool, every: bool) -> None:
    """Print a request: its figures, and its messages as they were sent or before (`raw`)."""
    print_facts(screen, record)
    raw = raw or record.status.startswith(IMPORTED)
    if not raw:
        _print_ledger(screen, record, every=every or not screen.rich)
    tokens = message_tokens(record, raw=raw)
    title = "Raw history" if raw else "Messages as sent"
    screen.heading(f"{title}: {len(bodies)}, {number(tokens)} tokens")
    print_messages(screen, size_recorded(bodies, tokens), about=ABOUT)


def print_tools(screen: Screen, tools: Sequence[Tool]) -> None:
    """Print the tools of a request, with their tokens."""
    counter = TokenCounter()
    tool_tokens: Callable[[Tool, TokenCounter], int] = import_module("context_compiler.middleware.request").tool_tokens
    rows = [(tool.name, tool.kind, tool_tokens(tool, counter), tool.description or "") for tool in tools]
    screen.table(TOOLS, rows)
    total = number(sum(row[2] for row in rows))
    screen.line(f"{plural(len(rows), 'tool')}, {total} tokens; --json has their schemas")


def print_facts(screen: Screen, record: Record) -> None:
    """Print everything about a request except its messages."""
    compiled = record.compile
    sent = "" if record.status.startswith(IMPORTED) else f" → {number(record.tokens_sent)} sent"
    screen.line((f"view {record.id}", "bold"), f" of session {record.session_id}, turn {record.turn_index + 1}")
    facts = [
        ("when", f"{timestamp(record.created_at)} UTC"),
        ("status", _status(record.status)),
        ("error", record.error),
        ("tokens", f"{number(record.tokens_raw)} raw{sent}"),
        ("cost of input", None if record.status.startswith(IMPORTED) else _cost(record)),
        ("budget", None if record.budget is None else number(record.budget)),
        ("owner", record.owner),
        ("run", None if record.run_id is None else f"{record.run_id}, request {record.request_index + 1} of it"),
        ("request hash", record.request_hash),
    ]
    if compiled is not None:
        usage = {name: value for name, value in compiled.usage.items() if name != NANO_USD}
        cost = ", ".join(f"{number(value)} {name.replace('_', ' ')}" for name, value in usage.items())
        facts += [
            ("template", f"{compiled.template_name} ({compiled.template_source}) {compiled.template_path or ''}"),
            ("template hash", compiled.template_hash),
            ("fidelity", compiled.fidelity),
            ("model", compiled.model_alias),
            ("compile", _status(compiled.status, COMPILES)),
            ("compile note", compiled.error),
            ("sections", ", ".join(compiled.sections_included)),
            ("left out of prompt", ", ".join(f"{drop.what} ({drop.reason})" for drop in compiled.sections_dropped)),
            (
                "compile cost",
                f"{dollars(compile_cost(compiled))}, {cost}, {number(compiled.latency_ms)} ms" if cost else None,
            ),
            ("identifiers kept", None if compiled.survival is None else f"{compiled.survival:.0%}"),
        ]
    screen.facts(facts)


def _cost(record: Record) -> str:
    cost = request_cost(record)
    if cost.sent is None:
        unpriced = f"no price is known for {cost.model.rstrip(':')}" if cost.model else "the request names no model"
        return f"unknown: {unpriced}"
    cached = f"{number(cost.cached)} tokens cached"
    return f"{dollars(cost.sent)} of {cost.model}, {cached}; everything {dollars(cost.everything)}"


COMPILES = {
    "ok": "a model wrote the summary",
    "deterministic": "no model was asked",
    "refused": "the answer of the model was not used, or a limit did not allow to ask it",
    "failed": "no summary came of it",
    "skipped": "made in the background, and no longer of use",
}
"""Explanations of the statuses of compiles, by first word."""


def _status(status: str, meanings: Mapping[str, str] = STATUSES) -> str:
    word = first_word(status)
    return f"{word}: {meanings[word]}" if word in meanings else word


def _print_ledger(screen: Screen, record: Record, *, every: bool) -> None:
    screen.heading("Tokens")
    screen.table(TOKEN_COLUMNS, token_rows(record.ledger, record.tokens_sent))
    kept = cast("Mapping[str, int]", record.ledger.get("kept") or {})
    if kept:
        screen.heading("Kept")
        screen.table(KEPT, kept.items())
    rules = cast("list[Mapping[str, Any]]", record.ledger.get("rules") or [])
    if rules:
        screen.heading("Rules")
        screen.table(RULES, [(rule.get("rule", ""), rule.get("state", "")) for rule in rules])
    dropped = record.ledger.get("dropped")
    lines = cast("list[Mapping[str, Any]]", dropped) if isinstance(dropped, list) else []
    if lines:
        screen.heading("Left out")
        screen.table(LEFT_OUT, [_drop_row(line, every=every) for line in lines])


def _drop_row(line: Mapping[str, Any], *, every: bool) -> tuple[object, ...]:
    """Format what was left out for one reason; it names all messages, or the first few and the number of the others."""
    parts = [str(item) for item in cast("list[object]", line.get("what", []))]
    messages = sum(len(positions_of(part)) for part in parts)
    named = ", ".join(parts)
    if len(parts) > NAMED and not every:
        named = f"{', '.join(parts[:NAMED])} … and {len(parts) - NAMED} more (--all)"
    return line.get("reason", ""), messages or "", number(line.get("tokens", 0)), named
