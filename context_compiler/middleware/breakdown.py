"""The breakdown of a view: its tokens by section, the state of its rules, and everything that it leaves out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from context_compiler.compiler.advance import Advance
from context_compiler.compiler.cycle import Blocks, Cycle
from context_compiler.compiler.rules import RuleNote, listed_rules, rule_states
from context_compiler.compiler.view import broken_drops, cycle_drops, sections_of
from context_compiler.layers.context import with_layer_tokens
from context_compiler.messages.history import History
from context_compiler.messages.rules import Rule
from context_compiler.middleware.state import ListedDrops, RequestContext
from context_compiler.record.values import FIXED, Drop, by_reason


def rule_numbers(
    context: RequestContext, cycle: Cycle, notes: tuple[RuleNote, ...], lost: Sequence[Rule]
) -> dict[str, object]:
    """The state of each rule in a view, as a part of the breakdown; empty if there are none."""
    states = rule_states(context.rules, context.found_rules.rules, listed_rules(cycle, notes), lost)
    return {"rules": states} if states else {}


def numbers_of(context: RequestContext, done: Advance | None) -> dict[str, Mapping[str, object]]:
    """Numbers that decided a cut, in the model's tokens, as a part of the breakdown; empty if nothing was cut now."""
    if done is None:
        return {}
    selection, live = done.selection, context.host is not None
    overhead, limits = context.request.overhead + done.selection.limits.rules, done.selection.limits
    recent = selection.draft.recent if not live or selection.order or selection.policy.every_turn else None
    numbers = {
        "size": int((selection.draft.before + (overhead if live else context.request.overhead)) * limits.ratio),
        "threshold": int(limits.high * limits.ratio) if live else None,
        "target": int((selection.target + overhead) * limits.ratio),
        "turns": recent,
        "ordered": selection.order is not None,
    }
    return {"cut": numbers}


def drops_of(context: RequestContext, cycle: Cycle, done: Advance | None, lost: tuple[Drop, ...]) -> ListedDrops:
    """Everything that a view leaves out: as drops, and as rows by reason."""
    request = context.request
    if context.host is None and done is not None:
        drops = (*request.layers.drops, *done.selection.draft.drops, *request.dropped, *lost)
        return drops, by_reason(drops)
    drops, lines = _cycle_drops(context, cycle) if cycle.decided else ((), ())
    others = (*request.layers.drops, *broken_drops(cycle.decided, context), *request.dropped, *lost)
    return ((*drops, *others), by_reason((*drops, *others))) if others else (drops, lines)


def _cycle_drops(context: RequestContext, cycle: Cycle) -> ListedDrops:
    """Drops of a cycle; cached, because all requests of a cycle leave out the same messages unless a pin changes."""
    name = cycle.tip, cycle.config, context.steering.pins
    entry = context.compiler.drops.get(name)
    if entry is None or replace(entry[0], summary_id=cycle.summary_id) != cycle:
        drops = cycle_drops(cycle, context)
        entry = cycle, (drops, by_reason(drops))
        context.compiler.drops.keep(name, entry)
    return entry[1]


def section_tokens(
    context: RequestContext, cycle: Cycle, sent: History, blocks: Blocks | None, notes: tuple[RuleNote, ...]
) -> dict[str, int]:
    """Exact tokens of a request by section."""
    texts, layers = blocks.texts().values() if blocks else (), context.request.layers
    sections = sections_of(cycle, sent, context.counter, texts, [note.text for note in notes])
    sections = with_layer_tokens(sections, layers) if layers.text else sections
    return sections if context.host is None else {FIXED: context.request.overhead, **sections}
