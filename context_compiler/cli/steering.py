"""Output of manual compiles, undos and pins, shared by the chat and `sessions`."""

from __future__ import annotations

from collections.abc import Sequence

from context_compiler.cli.screen import Column, Screen, print_list
from context_compiler.cli.text import number, one_line, plural
from context_compiler.compiler.steering import Pin
from context_compiler.messages.rules import Rule
from context_compiler.messages.spans import spans
from context_compiler.middleware.manual import TOKENS, CompileResult
from context_compiler.record.values import Drop, positions_of
from context_compiler.tokens.prices import dollars

PINS = (Column("turn", right=True), Column("role"), Column("tokens", right=True), Column("begins", elastic=True))

RULES = (Column("from"), Column("rule"))

PLACES = 6
"""Maximum ranges of messages that are named on a terminal."""

LINES = 12
"""Maximum lines of a summary on a terminal."""


def print_outcome(screen: Screen, result: CompileResult, *, rest: str) -> None:
    """Print the result of a compile, preview or undo, and any summary; `rest` is the command that shows all of it."""
    if not result.done:
        screen.line(
            ("nothing was changed: " if result.kind != "preview" else "nothing would change: ", "yellow"), result.why
        )
        return
    screen.facts(_facts(result, every=not screen.rich))
    if result.why:
        screen.line((result.why, "yellow"))
    if result.kind == "preview":
        screen.line(("a preview: no model was asked, and nothing was changed", "dim"))
    elif result.summary:
        lines = result.summary.strip().splitlines()
        shown = lines if len(lines) <= LINES or not screen.rich else lines[:LINES]
        more = [f"… {plural(len(lines) - LINES, 'line')} more: {rest}"] if len(shown) < len(lines) else []
        screen.indented("\n".join([*shown, *more]))


def _facts(result: CompileResult, *, every: bool) -> list[tuple[str, object]]:
    most = "at most " if result.kind == "preview" and result.usage else ""
    change = f"{number(result.before)} → {most}{number(result.after)} tokens, without its prompt and recall block"
    facts: list[tuple[str, object]] = [("next request", change)]
    if result.kind == "undo":
        return [*facts, ("restored", "the previous summary" if result.summary else "the whole history")]
    facts.append(("kept", f"{plural(result.turns, 'turn')} word for word, {number(result.kept)} tokens"))
    dropped = sum(drop.tokens for drop in result.left_out)
    places = _places(result.left_out)
    more = [] if every or len(places) <= PLACES else [f"{len(places) - PLACES:,} more"]
    named = ", ".join([*(places if not more else places[:PLACES]), *more])
    facts.append(("dropped", f"{named} ({number(dropped)} tokens)"))
    if result.focus:
        facts.append(("focus", one_line(result.focus, 80)))
    if result.usage:
        spent = ", ".join(
            f"{number(result.usage[name])} {name.partition('_')[0]}" for name in TOKENS if name in result.usage
        )
        facts.append(("cost", f"{most}{spent} tokens of {result.model}, price {dollars(result.cost)}"))
    else:
        facts.append(("cost", "nothing: passages are quoted, no model is asked"))
    return facts


def _places(drops: Sequence[Drop]) -> list[str]:
    """Names of everything that is dropped, each message once even if several steps have cut it."""
    positions = sorted({index for drop in drops for index in positions_of(drop.what)})
    runs = [f"messages {a}-{b - 1}" if b - a > 1 else f"message {a}" for a, b in spans(positions)]
    return [*runs, *dict.fromkeys(drop.what for drop in drops if not positions_of(drop.what))]


def print_rules(rules: Sequence[Rule], *, json: bool = False, **facts: object) -> None:
    """Print the rules of a conversation, or a JSON document of `facts` and them."""
    rows = [("rules=" if rule.position < 0 else f"m{rule.position}", one_line(rule.text)) for rule in rules]
    print_list({**facts, "rules": rules}, RULES, rows, json=json, empty="no rule was found")


def print_pins(pins: Sequence[Pin], *, json: bool = False, **facts: object) -> None:
    """Print the pinned messages, or a JSON document of `facts` and them."""
    rows = [(pin.turn, pin.role, number(pin.tokens), one_line(pin.text)) for pin in pins]
    print_list({**facts, "pins": pins}, PINS, rows, json=json, empty="nothing is pinned")
