"""Advance a conversation to its next cycle: cut the view back, have a summary written if worthwhile, freeze the result.

`select` decides which messages stay, `freeze` writes the note and the quotes and fixes the view until the next advance.
Between the two, `advance` may ask a model for a summary; everything else here is pure. Each advance that leaves
messages out has a row in the record (`compile_row`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from context_compiler.compiler.compile_row import Reply, Where, compile_row
from context_compiler.compiler.cut_order import (
    EARLIER_STEPS,
    Draft,
    Selection,
    completed_groups,
    drop_active_groups,
    drop_all_older_turns,
    reduce,
    relieve_system_text,
    stub_active_exchanges,
    truncate_large_parts,
    truncate_large_prompts,
)
from context_compiler.compiler.cycle import RAW, Cycle, restore_late_calls, runs
from context_compiler.compiler.identifiers import identifier_room
from context_compiler.compiler.policy import LARGE, SMALL, Limits, Plan
from context_compiler.compiler.quotes import cost, written_for
from context_compiler.compiler.reasons import ACTIVE_EXCHANGE_ORDERED, BROKEN, PIN_WAITS, TURNS_ORDERED
from context_compiler.compiler.steering import Order
from context_compiler.compiler.summary import (
    SummaryRequest,
    SummaryResponse,
    reason_for_no_model,
    refusal,
    summary_request,
)
from context_compiler.compiler.view import Quote
from context_compiler.fidelity import Fidelity
from context_compiler.messages.rules import rule_name
from context_compiler.messages.shapes import WHOLE, Shape
from context_compiler.messages.spans import positions, spans
from context_compiler.messages.turns import is_prompt, lone_loads
from context_compiler.recall import changes_of
from context_compiler.record.values import Compile
from context_compiler.resilience import in_time

STUBS = 8
"""Divisor of the room: maximum size of the stubs of the current turn that stay unless the view is over the budget."""

INSIDE = 3
"""Number of newest tool exchanges of the current turn that stay if the agent itself asks for a compile."""


def select(
    plan: Plan, limits: Limits, *, previous: Cycle | None, spare: int = 0, order: Order | None = None
) -> Selection:
    """Decide which messages stay: cut back to the low threshold, or to the budget for a one-shot view.

    1. Start from the shapes of the previous cycle, with everything since whole. Pinned messages come back.
    2. Truncate prompts that are too large, and reserve tokens for summary and quotes.
    3. Drop what a user's order or the template's number of recent turns says.
    4. Raise the target to what stays in any case. Cut finished messages until it is met, after truncating large parts
       if the request exceeds the budget. The previous turn is spared if it is small enough.
    5. If the request still exceeds the budget, take the whole cut order, sparing nothing.

    Args:
        plan: The raw history and the policy.
        limits: Budget and thresholds.
        previous: The cycle before; None for the first.
        spare: Tokens that a one-shot view has left after everything quotable is quoted. They go to more turns, beyond
            the template's number unless the caller named a fidelity.
        order: A compile that a user asks for, which also cuts below the threshold; None otherwise.
    """
    history, outline, policy, one_shot = plan.history, plan.outline, plan.policy, plan.one_shot
    overhead = plan.fixed + limits.rules + limits.framing
    recent = policy.recent_turns if policy.recent_turns is not None else len(outline.turns)
    draft = _start_draft(plan, limits, previous, recent)
    limits = relieve_system_text(draft, limits, overhead)
    target = _target(limits, one_shot=one_shot, order=order) - overhead
    draft.room = limits.room
    _keep_pins(draft, plan)
    if one_shot and not policy.recent_named:
        older = spare and not (policy.fidelity_named and policy.fidelity is not Fidelity.FULL)
        wanted = len(outline.turns) if older else recent
        draft.recent = min(wanted, _affordable_turns(draft, limits.room // SMALL + spare))
    over = draft.total > limits.budget - overhead
    truncate_large_prompts(draft)
    draft.reserve(_reserved_tokens(plan, limits))
    if order is not None:
        _drop_by_order(draft, plan, order, previous)
    elif one_shot or policy.every_turn:
        drop_all_older_turns(draft)
    high = target if one_shot else limits.high - overhead
    draft, target = _cut_finished(draft, limits, target, high, over=over, live=not one_shot)
    fits = reduce(draft, limits.budget - overhead)
    out = tuple(index for index in range(len(history)) if draft.here(index) is None)
    return Selection(
        draft=draft,
        policy=policy,
        limits=limits,
        target=target,
        out=out,
        span=_not_covered(out, previous),
        rules=plan.rules,
        retired_rules=plan.retired_rules,
        previous=previous,
        lasting=not one_shot,
        tool_work=plan.tool_work,
        fits=fits,
        steering=plan.steering,
        order=order,
    )


def _cut_finished(draft: Draft, limits: Limits, target: int, high: int, *, over: bool, live: bool) -> tuple[Draft, int]:
    """Cut finished messages down to a target, raised to what stays in any case; return the draft and that target."""
    target = max(target, min(draft.untouchable + draft.summary, high))
    spared = live and _keep_last_turn(draft, limits, target)
    draft.ahead = live
    large = partial(truncate_large_parts, earlier=live)
    reduce(draft, target, steps=(large, *EARLIER_STEPS) if over else EARLIER_STEPS)
    if not spared:
        draft = cut_current_turn(draft, target, high, over=over)
        target = max(target, min(draft.total, high))
    draft.spared, draft.notes, draft.ahead = range(0), 0, False
    return draft, target


def cut_current_turn(draft: Draft, low: int, high: int, *, over: bool = False) -> Draft:
    """Cut finished exchanges of the current turn: to `low` if stubs suffice, else half way from there to `high`.

    If no more is left anyway, they stay whole. If the request is `over` the budget, large parts are truncated first.
    """
    # stubs go only if they are many: an agent that no longer sees that it has read something reads it again
    half_way, must = (low + high) // 2, draft.untouchable + draft.summary
    if draft.total <= half_way:
        return draft
    steps = (truncate_large_parts, stub_active_exchanges) if over else (stub_active_exchanges,)
    for target in (low, max(half_way, must + draft.room // STUBS)):
        trial = draft.copy()
        if reduce(trial, target, steps=steps):
            return trial
    reduce(trial, max(half_way, must + draft.room // STUBS // 2), steps=(drop_active_groups,))
    return trial


def _not_covered(out: Sequence[int], previous: Cycle | None) -> tuple[int, ...]:
    """Positions that the summary of the previous cycle does not cover."""
    covered = positions(previous.covered) if previous else set[int]()
    return tuple(index for index in out if index not in covered)


def _target(limits: Limits, *, one_shot: bool, order: Order | None) -> int:
    """Size in tokens to which the request is cut back; larger if an order wants the beginning kept."""
    if one_shot:
        return limits.budget
    low = limits.low - limits.extra_cut
    return max(low, limits.high - limits.room // SMALL) if order and order.start else low


def _keep_pins(draft: Draft, plan: Plan) -> None:
    """Restore pinned messages and protect them from cuts; from here on, the draft is cut."""
    draft.pins = plan.pinned(draft.room)
    draft.waiting = plan.pinned() - draft.pins
    for index in sorted(draft.pins):
        draft.put(index, plan.base.get(index, WHOLE))
    draft.before = draft.total


def brought_up_to_date(cycle: Cycle, plan: Plan, room: int) -> Cycle:
    """Restore in a cycle what became needed since it was made, and drop dismissed rules; the prefix changes once.

    Calls are restored whose answers arrived since, and pinned messages that it leaves out or shortens. A pin that found
    no room waits for the next turn. Otherwise every request of this turn would be cut again. A rule in a restored
    message is no longer listed.
    """
    cycle = restore_late_calls(cycle, plan.history, plan.pairing, plan.base)
    if not plan.steering.pins and not plan.steering.dismissed:
        return cycle
    listed = {rule.name for rule in plan.rules}
    rules = tuple(text for text in cycle.rules if rule_name(text) in listed or not plan.steering.dismisses(text))
    cycle = cycle if rules == cycle.rules else replace(cycle, rules=rules)
    before, why = dict(cycle.kept), cycle.why if cycle.turn == plan.turn else ()
    kept = dict(before)
    waiting = {index for start, stop, reason in why if reason == PIN_WAITS.text for index in range(start, stop)}
    for index in plan.pinned(room) - waiting:
        if index < cycle.decided:
            kept[index] = plan.base.get(index, WHOLE)
    if kept == before:
        return cycle
    restored = {index for index, shape in kept.items() if before.get(index) != shape}
    said = {rule.text for rule in plan.found_rules.rules if rule.position in restored}
    rules = tuple(text for text in rules if text not in said)
    return replace(cycle, rules=rules, kept=tuple(sorted(kept.items())))


def _drop_by_order(draft: Draft, plan: Plan, order: Order, previous: Cycle | None) -> None:
    """Drop what a user wants summarized: everything from a position on, else all but the recent turns.

    Unless the caller gave their number, recent turns are at most half of the conversation. Summary and quotes get at
    most a quarter of the tokens that they replace, so that an order saves something even below the threshold.
    """
    earlier, before = draft.outline.turns[:-1], draft.total
    if order.start:
        draft.drop(range(order.start, draft.outline.active.start), TURNS_ORDERED)
    else:
        if not plan.policy.recent_named:
            draft.recent = min(draft.recent, len(earlier) // 2)
        drop_all_older_turns(draft)
    if order.inside:
        for group in completed_groups(draft.outline.active, draft.history)[:-INSIDE]:
            draft.drop(range(group.start, group.stop), ACTIVE_EXCHANGE_ORDERED)
    written = plan.counter.text(previous.note) + plan.counter.text(previous.quotes) if previous is not None else 0
    draft.reserve(min(draft.summary, (before - draft.total) // LARGE + written))


def _keep_last_turn(draft: Draft, limits: Limits, target: int) -> bool:
    """Spare the turn before the current one as long as the budget allows; True if it is spared.

    It is spared if it takes at most a quarter of the room, and if a further turn of its size fits below the high
    threshold: otherwise the next request would cut again. The tokens reserved for the note are protected anyway.
    """
    draft.notes = min(limits.max_notes, draft.summary)
    turns = draft.outline.turns[:-1]
    last = range(turns[-1].start, turns[-1].stop) if turns and draft.recent else range(0)
    stay = draft.pins.union(last)
    others = sum(draft.costs[index] for index in draft.before_active() if index not in stay)
    most = target + limits.extra_cut + limits.high - limits.low
    size, share = sum(draft.costs[index] for index in last), draft.room // LARGE
    if size <= share and draft.total - others + size <= most:
        draft.spared = last
    return bool(draft.spared)


def unused_tokens(done: Selection, cycle: Cycle) -> int:
    """Tokens left over in a one-shot view after everything quotable is quoted.

    It is 0 if less than a quarter of the room is left, or if the caller chose the number of turns.
    """
    if done.policy.recent_named:
        return 0
    left = done.target - done.kept - cost(cycle.note, done.counter) - cost(cycle.quotes, done.counter)
    return left if left > done.limits.room // LARGE else 0


def _affordable_turns(draft: Draft, room: int) -> int:
    """Number of newest turns before the current one that fit whole in `room` tokens."""
    for count, turn in enumerate(reversed(draft.outline.turns[:-1])):
        room -= sum(draft.costs[turn.start : turn.stop])
        if room < 0:
            return count
    return len(draft.outline.turns)


def _reserved_tokens(plan: Plan, limits: Limits) -> int:
    """Tokens to reserve for summary and quotes; a fidelity named by the caller caps both together."""
    cap = limits.cap(plan.policy.fidelity)
    if plan.policy.fidelity_named or not cap:
        return cap
    return limits.max_notes or cap + identifier_room(plan.history, limits.used)


def _start_draft(plan: Plan, limits: Limits, previous: Cycle | None, recent: int) -> Draft:
    """Create a draft with everything that the previous cycle kept, and everything since."""
    start = _start_shapes(plan, previous)
    draft = Draft(
        plan.history, plan.outline, plan.counter, start, room=limits.room, recent=recent, refs=plan.policy.refs
    )
    begun = previous.decided if previous is not None else 0
    skipped = [index for index, shape in plan.base.items() if shape.skip and index >= begun]
    draft.record_shortened(skipped, BROKEN)
    return draft


def _start_shapes(plan: Plan, previous: Cycle | None) -> list[Shape | None]:
    """Shapes to start from: those of the previous cycle, with `tool_history` applied to earlier turns.

    Prompts of the current turn start whole, because the reason why one was truncated may no longer hold.
    """
    history, ties = plan.history, plan.outline.ties
    shapes: list[Shape | None] = [plan.base.get(index, WHOLE) for index in range(len(history))]
    if previous is not None:
        shapes[: previous.decided] = [None] * previous.decided
        for index, shape in previous.kept:
            asked = index >= plan.outline.active.start and is_prompt(history.readings, index) and not shape.bare
            shapes[index] = replace(shape, limit=None, prompt=None, ref="") if asked else shape
    if plan.policy.tool_history != "paired":
        start, alone = plan.outline.active.start, lone_loads(history)
        for index in range(start):
            shape = shapes[index]
            tied = ties.get(index, (0,))[-1] >= start
            if shape is not None and not shape.bare and not tied and history.readings[index].exchanges:
                skip = shape.skip.union(part for position, part in alone if position == index)
                shapes[index] = replace(shape, skip=skip, tools=plan.policy.tool_history)
    return shapes


def freeze(
    selection: Selection, *, summary: str, row: int | None, turn: int, asked: bool, compiled: int | None = None
) -> tuple[Cycle, tuple[Quote, ...]]:
    """Write note and quotes and fix the view until the next advance; returns the cycle and its quotes with reasons.

    Args:
        selection: The messages that stay.
        summary: Text that a model has just written; empty if none did.
        row: Row of that compile in the record; None if it is not stored yet.
        turn: Ordinal of the current user turn.
        asked: A model was asked in this turn, with or without success.
        compiled: Number of messages of the span that the summary covers; None for all.
    """
    old = selection.previous or RAW
    kept_summary = summary or old.summary
    waiting = set(selection.span[compiled:]) if compiled is not None else set[int]()
    fresh = spans(index for index in selection.out if index not in waiting)
    text = written_for(selection, kept_summary)
    shapes, decided = selection.draft.shapes, decided_by(selection)
    revising = in_time(lambda: changes_of(selection.history).newest, -1) if text.note or text.quotes else -1
    cycle = Cycle(
        decided=decided,
        tip=selection.history.ids[decided - 1] if decided else "",
        kept=tuple((index, shape) for index, shape in enumerate(shapes[:decided]) if shape is not None),
        note=text.note,
        quotes=text.quotes,
        channel=text.channel,
        own=text.own,
        summary=kept_summary,
        summary_id=row if summary else old.summary_id,
        covered=fresh if summary else old.covered,
        compiled_turn=turn if asked else old.compiled_turn,
        turn=turn,
        tight=selection.limits.tight,
        ratio=selection.limits.ratio,
        config=selection.policy.config,
        lead=(selection.order and selection.order.start) or 0,
        why=_reasons(selection.draft, old.why),
        rules=text.rules if decided else (),
        revised_by=selection.history.ids[revising] if revising >= decided else "",
        size=selection.kept + cost(text.note, selection.counter) + cost(text.quotes, selection.counter),
    )
    return cycle, text.quoted


def decided_by(selection: Selection) -> int:
    """Number of leading messages on which a cycle of this selection decides; all later ones are whole."""
    shapes = selection.draft.shapes
    return next((index + 1 for index in range(len(shapes) - 1, -1, -1) if shapes[index] != WHOLE), 0)


def _reasons(draft: Draft, earlier: Sequence[tuple[int, int, str]]) -> tuple[tuple[int, int, str], ...]:
    """Reasons why messages are left out or shortened, as spans; the last reason for a message counts."""
    why = {index: reason for start, stop, reason in earlier for index in range(start, stop)}
    for cut in draft.cuts:
        why.update(dict.fromkeys(range(cut.start, cut.stop), cut.reason.text))
    why.update({index: PIN_WAITS.text for index in draft.waiting if draft.shapes[index] != WHOLE})
    return tuple(runs(sorted(why.items())))


Ask = Callable[[SummaryRequest], Awaitable[SummaryResponse]]
"""Asks a model for a summary; raises `CompileError` if that fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """Outcome of one advance, and its row of the record."""

    cycle: Cycle
    selection: Selection
    row: Compile | None
    """Row of the record; None if nothing was left out, or if the row is stored already."""
    quoted: tuple[Quote, ...]


async def advance(
    plan: Plan,
    limits: Limits,
    *,
    where: Where,
    ask: Ask | None,
    previous: Cycle | None = None,
    order: Order | None = None,
) -> Advance:
    """Cut back, ask a model for a summary if that is worthwhile, and freeze the result.

    Args:
        plan: The raw history and the policy.
        limits: Budget and thresholds.
        where: Identifies the request.
        ask: Asks the model; None if it was asked in this turn already.
        previous: The cycle before; None for the first.
        order: A compile that a user asks for; None otherwise.

    Raises:
        CompileError: The model was asked and failed. An answer that is empty or saves nothing is refused instead.
    """
    select_with = partial(select, plan, limits, previous=previous, order=order)
    done = select_with()
    reply = await _ask_model(done, where.turn_index, ask)
    summary = reply.answer.text if reply.answer and reply.status == "ok" else ""
    freeze_selection = partial(
        freeze,
        summary=summary,
        row=reply.answer.row if reply.answer else None,
        compiled=reply.compiled,
        turn=where.turn_index,
        asked=reply.request is not None or ask is None,
    )
    cycle, quoted = freeze_selection(done)
    cycle = cycle if plan.one_shot else replace(cycle, tool_work=plan.tool_work, at=plan.prompt_start)
    spare = unused_tokens(done, cycle) if plan.one_shot and reply.request is None else 0
    if spare:
        done = select_with(spare=spare)
        cycle, quoted = freeze_selection(done)
    stored = reply.answer is not None and reply.answer.row
    row = None if stored or not done.out else compile_row(where, done, reply, cycle)
    return Advance(cycle=cycle, selection=done, row=row, quoted=quoted)


async def _ask_model(done: Selection, turn: int, ask: Ask | None) -> Reply:
    error = reason_for_no_model(done, turn) or ("asked in this turn already" if ask is None else None)
    if ask is None or error is not None:
        return Reply(status="deterministic", error=error)
    request = summary_request(done)
    answer = await ask(request)
    error = answer.refused or (None if answer.done else answer.fault) or refusal(done, answer.text)
    return Reply(status="refused" if error else "ok", error=error or answer.fault, request=request, answer=answer)
