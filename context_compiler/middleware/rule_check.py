"""The check of a view before it is sent: does it contain every rule, and if not, is there room to add it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydantic_ai.tools import RunContext

from context_compiler.compiler.cycle import Blocks, Cycle
from context_compiler.compiler.policy import LARGE
from context_compiler.compiler.reasons import RULE_BEYOND_SHARE, RULE_OVER_BUDGET
from context_compiler.compiler.rules import RuleNote, absent_rules, fitting_rules, listed_rules, rule_origin, rules_cost
from context_compiler.errors import ContextCompilerError, SettingsError
from context_compiler.messages.history import History
from context_compiler.messages.rules import Rule
from context_compiler.middleware.arguments import DeclaredRule
from context_compiler.middleware.state import RequestContext, Run
from context_compiler.record.values import Drop
from context_compiler.resilience import call_within, try_await


async def declared_rules(
    rules: Sequence[DeclaredRule], run: Run, ctx: RunContext[Any], timeout: float
) -> tuple[tuple[str, ...], list[Exception]]:
    """Texts of the rules that an application declares, and the errors of functions that failed.

    An async function fails after `timeout` seconds. The last answer of a function that fails stays in force for its
    run.
    """
    run.lacks_rules = False
    texts: list[str] = []
    errors: list[Exception] = []
    for number, rule in enumerate(rules):
        if isinstance(rule, str):
            texts.append(rule)
            continue
        outcome = await try_await(_answer(rule, ctx, timeout))
        if outcome.error is not None:
            errors.append(outcome.error)
            run.lacks_rules |= number not in run.declared
        else:
            run.declared[number] = outcome.value or ""
        texts.append(run.declared.get(number, ""))
    return tuple(text.strip() for text in texts if text.strip()), errors


async def _answer(rule: Callable[[RunContext[Any]], object], ctx: RunContext[Any], timeout: float) -> str:
    """Rule that a function returns; empty for None."""
    late = ContextCompilerError(f"a function in rules= took longer than {timeout:g} s (timeout)")
    text: object = await call_within(timeout, rule, ctx, late)
    if text is not None and not isinstance(text, str):
        raise SettingsError(f"rules=: a function returned {type(text).__name__}: return a text or None")
    return text or ""


def inserted_texts(blocks: Blocks | None, notes: tuple[RuleNote, ...]) -> dict[int, tuple[str, ...]]:
    """Our texts directly before prompts, by position: rules first, then the recall block."""
    texts = blocks.texts() if blocks else {}
    inserted: dict[int, tuple[str, ...]] = {}
    for note in notes:
        inserted[note.at] = (*inserted.get(note.at, ()), note.text)
    return inserted | {position: (*inserted.get(position, ()), text) for position, text in texts.items()}


def missing_rules(
    context: RequestContext, cycle: Cycle, notes: tuple[RuleNote, ...], sent: History
) -> tuple[tuple[RuleNote, ...], tuple[Rule, ...], str]:
    """At most one note with the rules that a view lacks and has room for, the other rules that it lacks, and why.

    Together with the rules that the view lists already, they may take the share of the room that is for rules.
    """
    history, counter, listed = context.history, context.counter, listed_rules(cycle, notes)
    users = {rule.text for rule in (*context.rules, *context.found_rules.rules)}
    is_complete = not context.run.lacks_rules and context.found_rules.length == len(history)
    revoked = tuple(text for text in listed if is_complete and text not in users)  # the application has withdrawn them
    missing = absent_rules(context.rules, sent)
    if not (missing or revoked) or not history.ids:
        return (), (), ""
    limits = context.limits(cycle)
    most = (limits.room + limits.rules) // LARGE
    share = most - rules_cost([text for text in listed if text in users], counter)
    free = limits.budget - context.request.overhead - sent.tokens
    room, why = min(share, free), RULE_BEYOND_SHARE.text.format(tokens=f"{most:,}")
    why = why if share <= free else RULE_OVER_BUDGET.text
    added = fitting_rules(missing, room, counter)
    lost = tuple(rule for rule in missing if rule not in added)
    if not (added or revoked):
        return (), lost, why
    position = len(history) - 1
    note = RuleNote(at=position, tip=history.ids[position], rules=tuple(rule.text for rule in added), revoked=revoked)
    return (note,), lost, why


def lost_drops(rules: Sequence[Rule], why: str = RULE_OVER_BUDGET.text) -> tuple[Drop, ...]:
    """Drops of rules for which a view has no room."""
    return tuple(Drop(what=rule_origin(rule), reason=why) for rule in rules)
