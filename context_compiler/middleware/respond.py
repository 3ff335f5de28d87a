"""The path of one request: find its cycle, continue it or advance, and assemble the view.

Only recall fails open here, because a view works without it; `middleware` handles all other errors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pydantic_ai.messages import ModelMessage

from context_compiler.compiler.advance import Advance, Ask, advance, brought_up_to_date
from context_compiler.compiler.block_sizes import BlockSizes
from context_compiler.compiler.compile_row import failed_row
from context_compiler.compiler.cycle import (
    RAW,
    Block,
    Blocks,
    Cycle,
    valid_blocks,
    valid_cycle,
    with_turn,
)
from context_compiler.compiler.policy import LARGE
from context_compiler.compiler.recall_block import find_first_block, lacks_room_for_block, shorten_block, wanted_tokens
from context_compiler.compiler.rules import RuleNote, valid_notes
from context_compiler.compiler.steering import Steering
from context_compiler.compiler.summary import SummaryRequest, SummaryResponse
from context_compiler.compiler.view import (
    LEFT_OUT,
    Inserted,
    View,
    begins_with_assistant,
    block_quotes,
    check_view,
    find_mark,
    messages_since,
    opening,
    summary_of,
    token_breakdown,
    why_kept,
    with_opening_text,
    without_folded_instructions,
)
from context_compiler.errors import CompileError
from context_compiler.layers.context import insert_block
from context_compiler.messages.history import History, common_prefix
from context_compiler.middleware.background import discard, finish, limits_for_questions, pending, start
from context_compiler.middleware.breakdown import drops_of, numbers_of, rule_numbers, section_tokens
from context_compiler.middleware.request import Host, Request
from context_compiler.middleware.rule_check import inserted_texts, lost_drops, missing_rules
from context_compiler.middleware.state import CompilerState, Opening, RequestContext, Result, Run, read_request
from context_compiler.record.values import Compile
from context_compiler.resilience import attempt

JOURNALLED = 2_000
"""Maximum number of newest chain ids that a durable run looks up, because it records them in its journal."""

RENDERED_ABOVE = 4
"""Divisor of the budget: from this fraction on, raw history is counted as the host renders it, which is slow."""

MAX_CUTS, MAX_LOOSENINGS = 3, 6
"""Maximum tries to cut a view that the host's framing puts over the budget, and then to loosen that cut."""


async def respond(compiler: CompilerState, run: Run, request: Request, host: Host) -> Result:
    """Make the view of one request.

    Raises:
        ContextCompilerError: The template, the model or anything else failed; the caller falls back.
    """
    context, cycle = await _current_cycle(read_request(compiler, run, request, host), host)
    compiles = _compiles_every_turn(context, cycle)
    run.opened_turn = context.turn
    made = run.prepared
    if made is not None and valid_cycle(made.cycle, context.history, context.policy.config) is not None:
        run.prepared = None
        return await _new_cycle(context, cycle, host, made)
    if not compiles and compiler.arguments.background:
        return await _respond_in_background(context, cycle, host)
    return (None if compiles else _extend(context, cycle)) or await _new_cycle(context, cycle, host)


def _extend(context: RequestContext, cycle: Cycle | None, *, to_budget: bool = False) -> Result | None:
    """Extend the previous view by everything since, up to the high threshold or the budget; None if it is too long."""
    return _raw_view(context, to_budget) if cycle is None else _continue_cycle(context, cycle, to_budget)


async def _respond_in_background(context: RequestContext, cycle: Cycle | None, host: Host) -> Result:
    """Make the view if compiles are made in the background.

    A compile starts at the soft threshold and is used from the high threshold on. Until it is finished, the view keeps
    growing. A request waits for it only if it would be over the budget or has no room for what its prompt asks for.
    """
    useless, error = await discard(context, host)
    begun, result = pending(context), _extend(context, cycle)
    ready = begun is not None and begun.task.done()
    if result is None and not ready:
        result = _extend(context, cycle, to_budget=True)
        if result is not None and begun is None and not await start(context, cycle, host):
            result = None
    elif result is not None and begun is None and _is_over_soft(context, cycle, result):
        await start(context, cycle, host)
    if result is None:
        first = None
        if begun is not None:
            first, useless, error = await finish(context, begun, host)
        result = await _new_cycle(context, cycle, host, first)
    return replace(result, row=result.row or useless, fault=result.fault or error)


def _is_over_soft(context: RequestContext, cycle: Cycle | None, result: Result) -> bool:
    """True if a request without its recall blocks is above the soft threshold."""
    bare = result.cost - (result.blocks.tokens(context.counter) if result.blocks else 0)
    return bare > limits_for_questions(context, context.limits(cycle), cycle).background_threshold


async def _current_cycle(context: RequestContext, host: Host) -> tuple[RequestContext, Cycle | None]:
    """Find the cycle of this request: the run's own, or at the first request that of its longest known prefix.

    The user's steering is looked up at the same time; the returned request includes it.
    """
    run, history, config = context.run, context.history, context.policy.config
    run.switch(config)
    valid = valid_cycle(run.cycle, history, config) if run.cycle else None
    if not run.begun:
        run.begun = True
        run.notes = context.compiler.notes.get(context.request.conversation) or ()
        start = await host.begin(history.tips(JOURNALLED if host.is_durable else None), config)
        if start.get("steering"):
            run.steer(Steering.from_data(start["steering"]))
            config = run.config
            policy = replace(context.policy, config=config)
            context = replace(context, policy=policy, steering=run.steering)
        valid = valid_cycle(Cycle.from_json(start["cycle"]), history, config) if start["cycle"] else None
        blocks = Blocks.from_json(start["blocks"], config) if start.get("blocks") else None
        adopted = bool(start.get("adopted"))
        run.start(valid, blocks and valid_blocks(blocks, history, config), start["ratios"], adopted=adopted)
        if valid is not None and adopted:
            valid = replace(valid, ratio=run.ratios.of(context.request.family))
    valid = valid and with_turn(valid, context.turn, context.prompt_start)
    cycle = valid and brought_up_to_date(valid, context, context.limits(valid).room)
    run.enter(cycle, mended=valid)
    if cycle is not None and run.refused:
        cycle = replace(cycle, tight=run.tight)  # a provider's refusal applies to the rest of the cycle
    return context, cycle


def _compiles_every_turn(context: RequestContext, cycle: Cycle | None) -> bool:
    """True if `every_turn` requires a compile at this request, the first of a user turn."""
    recent, opened = context.policy.recent_turns, (context.run.opened_turn, cycle and cycle.turn)
    if not context.policy.every_turn or recent is None or context.turn in opened or context.is_paused:
        return False
    return len(context.outline.turns) - 1 > recent


def _raw_view(context: RequestContext, to_budget: bool = False) -> Result | None:
    """The raw history, up to the high threshold or the budget; None if it is too long, also as the host renders it."""
    limits, tokens = context.limits(), context.request.fixed + context.history.tokens
    most = limits.budget if to_budget else limits.high
    if tokens > most:
        return None
    result = assemble_view(context, None, "raw")
    if context.request.fixed + result.sent.tokens > most:
        return None
    if tokens * RENDERED_ABOVE < limits.budget:
        return result
    result = replace(result, cost=max(result.cost, rendered_cost(context, result.view.messages, result.sent)))
    return result if result.cost <= limits.budget else None


def _continue_cycle(context: RequestContext, cycle: Cycle, to_budget: bool = False) -> Result | None:
    """The cycle plus everything since and the turn's recall blocks, up to the high threshold or the budget.

    In a chat, a view is not cut in the middle of a turn while it fits the budget, or would fit with a slightly shorter
    block: the block complements messages that a cut would remove. In other sessions it is cut, because a block that is
    shortened for a long turn soon loses what the prompt asks for.
    """
    limits, blocks = context.limits(cycle), known_blocks(context)
    most = limits.budget if to_budget else limits.high
    if blocks is None:
        plain = assemble_view(context, cycle, "cycle")
        keep = context.is_paused or cycle.tight < 1  # a new cycle would get back the budget that the provider refused
        narrow = (
            not keep and attempt(lambda: lacks_room_for_block(BlockSizes(context, limits, cycle), plain.cost)).value
        )
        if plain.cost > most or narrow:
            return None
        return recall_for_turn(context, cycle, plain)
    result = assemble_view(context, cycle, "cycle", blocks=blocks)
    gives = 0 if cycle.tool_work or context.long_turns else blocks.own.tokens(context.counter) // LARGE
    fits = result.cost <= limits.budget + gives
    if result.cost - blocks.tokens(context.counter) > most and (cycle.tool_work or not fits):
        return None
    return _fit_budget(context, cycle, result) if fits or context.run.retried else None


def known_blocks(context: RequestContext, config: str = "", *, any_turn: bool = False) -> Blocks | None:
    """The recall blocks of the current turn, or of `any_turn`, of this or another `config`; None if not known.

    Those of the turn are not known any more once a question is added to it.
    """
    blocks = context.run.blocks and valid_blocks(context.run.blocks, context.history, config or context.policy.config)
    if blocks is None or any_turn:
        return blocks
    asked = "" if context.question is None else context.question.name
    return blocks if blocks.own.at >= context.prompt_start and blocks.own.asked == asked else None


def recall_for_turn(
    context: RequestContext, cycle: Cycle, plain: Result, done: Advance | None = None, *, shortened: Block | None = None
) -> Result:
    """Add recall blocks to the view of the first request of a user turn, or of one whose cycle is new.

    Args:
        context: The request.
        cycle: Cycle that decides what is left out.
        plain: View without blocks.
        done: Advance of this request that produced the cycle; None if it was continued.
        shortened: Block shortened because the provider refused a request of the turn; the new one is not larger.
    """
    question, history, policy = context.question, context.history, context.policy
    if question is None or cycle is RAW:
        return plain
    position = question.at
    sizes = BlockSizes(context, context.limits(cycle), cycle)
    earlier: tuple[Block, ...] = ()
    text, fault = "", None
    if context.recalls:
        most = sizes.most(question.text)
        earlier = sizes.kept(known_blocks(context, any_turn=True), plain.cost, most) if done is None else ()
        earlier = tuple(block for block in earlier if block.at != position)  # it answered what was asked before
        cost = plain.cost + sum(block.tokens(context.counter) for block in earlier)
        saved = context.request.fixed + history.tokens - cost  # a block may not cost more than sending the raw history
        room = min(sizes.free(cost), saved)
        shown = [*(block.text for block in earlier), *(note.text for note in plain.notes)]
        if shortened and shortened.tokens(context.counter) <= room:
            text = shortened.text
        else:
            room = min(room, shortened.tokens(context.counter)) if shortened else room
            outcome = attempt(lambda: find_first_block(sizes, position, most, room, shown))
            text, fault = outcome.value or "", outcome.error
    cuts = shortened.cuts if shortened and text else 0
    own = Block(position, history.ids[position], context.turn, text, cuts, question.name)
    blocks = Blocks(own=own, earlier=earlier, config=policy.config, decided=cycle.decided)
    if not blocks.all:
        return replace(plain, blocks=blocks, fault=fault)
    result = replace(assemble_view(context, cycle, plain.view.status, done, blocks=blocks, earlier=plain), fault=fault)
    return _fit_budget(context, cycle, result, done) or replace(plain, blocks=blocks.without())


def _fit_budget(context: RequestContext, cycle: Cycle, result: Result, done: Advance | None = None) -> Result | None:
    """Shorten or remove the block of a view until it is within its budget; None if that is not enough."""
    blocks, over = result.blocks, result.cost - result.limit
    if over <= 0:
        return result
    if blocks is None or not blocks.own.text:
        return None
    refused = context.run.refused
    sizes = BlockSizes(context, context.limits(cycle), cycle)
    room = sizes.shortened(blocks.own, over, refused=refused)
    outcome = attempt(lambda: shorten_block(sizes, blocks.own, room) if room > 0 else None)
    if outcome.value is None or not outcome.value.text:
        return None
    fewer = replace(blocks, own=outcome.value)
    result = assemble_view(context, cycle, result.view.status, done, blocks=fewer, earlier=result)
    return result if result.cost <= result.limit else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One attempt at a new cycle: an advance and its view."""

    start: Cycle | None
    """Cycle that was advanced."""
    framing: int
    """Tokens reserved for the host's framing of messages; 0 at the first attempt."""
    done: Advance
    result: Result
    row: Compile | None
    """Row of the compile in this or an earlier attempt."""

    @property
    def over(self) -> int:
        """Tokens over the budget; negative if some are left."""
        return self.result.cost - self.result.limit


async def _new_cycle(
    context: RequestContext, previous: Cycle | None, host: Host, first: Advance | None = None
) -> Result:
    """Make the first view of a new cycle with its recall block; `first` is an advance that was made before."""
    if not context.run.refused:
        context.run.tight = 1.0
    trial = None if first is None else _make_trial(context, previous, first)
    if trial is None or trial.over > 0:  # too many messages have arrived since `first` was made
        trial = await cut_back(context, previous, host, trial)
    if trial.over > 0:
        result = replace(trial.result, view=replace(trial.result.view, status="floor_over_budget"))
    else:
        result = add_recall(context, trial.result, trial.done)
    wanted = first is not None or context.policy.every_turn
    raw = None if wanted else _no_larger_raw_view(context, result)
    return replace(raw or starting_cycle(_with_cause(context, previous, result)), row=trial.row)


def _no_larger_raw_view(context: RequestContext, result: Result) -> Result | None:
    """The raw history, if it fits the budget and is no larger than a compiled view; None otherwise.

    A cut made for a smaller budget, such as that of a provider's refusal, can cost more than it saves.
    """
    if context.request.fixed + context.history.tokens > result.cost:
        return None
    raw = _raw_view(context, to_budget=True)
    return raw if raw is not None and raw.cost <= result.cost else None


def _with_cause(context: RequestContext, previous: Cycle | None, result: Result) -> Result:
    """Note what would have been sent without the cut, and the threshold that this was compared with."""
    cost: int | None = context.request.fixed + context.history.tokens
    if previous is not None:
        cost = attempt(lambda: assemble_view(context, previous, "cycle").cost).value
    if cost is None:  # such a view must not be sent
        return result
    high, ledger = context.limits(previous).high, result.view.ledger
    numbers = {"size": int(cost * result.ratio), "threshold": int(high * result.ratio)}
    return replace(result, view=replace(result.view, ledger={**ledger, "cut": {**ledger["cut"], **numbers}}))


def _make_trial(
    context: RequestContext, start: Cycle | None, done: Advance, framing: int = 0, before: Trial | None = None
) -> Trial:
    earlier, row = (before.result, before.row) if before is not None else (None, None)
    result = assemble_view(context, done.cycle, "compiled", done, earlier=earlier)
    return Trial(start=start, framing=framing, done=done, result=result, row=row or done.row)


async def cut_back(
    context: RequestContext, previous: Cycle | None, host: Host | None, trial: Trial | None = None
) -> Trial:
    """Cut back and freeze; if the host's framing puts the view over the budget, try again with less room.

    Without a `host`, no model is asked.
    """
    block = BlockSizes(context, context.limits(previous), previous or RAW).expected(known_blocks(context))
    extra_cut, framing, tries = _extra_cut(context, previous), 0, 0
    while True:
        start, tries = previous if trial is None else trial.done.cycle, tries + 1
        ask = summary_callback(context, host) if host is not None else None
        done = await advance_request(context, start, ask, framing, block=block, extra_cut=extra_cut)
        trial, selection = _make_trial(context, start, done, framing, trial), done.selection
        if trial.over <= 0 or not selection.fits or tries == MAX_CUTS:
            break
        framing += trial.over + max(0, _free(context, trial) - framing)
    if trial.over < 0 and framing and (selection.cut_from_prompts or not selection.fits):
        return await _loosen(context, trial, block)
    return trial


def _free(context: RequestContext, trial: Trial) -> int:
    """Tokens that the messages of an attempt leave of the budget."""
    selection = trial.done.selection
    return trial.result.limit - context.request.fixed - selection.limits.rules - selection.draft.total


async def _loosen(context: RequestContext, trial: Trial, block: int) -> Trial:
    """Search the smallest cut of prompts that fits, between the cut of an attempt with reserved framing and none.

    The host drops its framing together with the text that it belongs to, so its size cannot be known in advance.
    """
    whole = _free(context, trial) - trial.done.selection.cut_from_prompts
    guesses, loose = [trial.framing + trial.over, whole], 0  # nothing reserved was not enough
    for _ in range(MAX_LOOSENINGS):
        framing = guesses.pop(0) if guesses else (trial.framing + loose) // 2
        if not loose <= framing < trial.framing:
            continue
        done = await advance_request(context, trial.start, None, framing, block=block)
        looser = replace(_make_trial(context, trial.start, done, framing, trial), row=trial.row)
        if looser.over <= 0:
            trial = looser
            if not done.selection.cut_from_prompts:
                break
        else:
            loose = max(loose, framing)
    return trial


def _extra_cut(context: RequestContext, previous: Cycle | None) -> int:
    """Extra tokens to cut at a prompt that asks for earlier text, if the thresholds leave its block no room."""
    if previous is None or known_blocks(context) is not None:
        return 0
    limits = context.limits(previous)
    sizes = BlockSizes(context, limits, previous)
    wanted = attempt(lambda: wanted_tokens(sizes) if sizes.extra_cut(sizes.expected(None)) else 0).value
    return sizes.extra_cut(wanted) if wanted else 0


def add_recall(context: RequestContext, plain: Result, done: Advance) -> Result:
    """Add the recall block of the turn to the view of a new cycle.

    A block found before is searched again, because it does not repeat what the former quotes and messages contained,
    and they may be gone now. Blocks of earlier turns are dropped.
    """
    blocks = known_blocks(context)
    shortened = blocks.own if blocks is not None and blocks.own.cuts and context.run.refused else None
    if blocks is not None and shortened is not None and not shortened.text:
        return replace(plain, blocks=replace(blocks, earlier=()))  # there was no room for it
    if done.selection.out or done.selection.abridged:
        return recall_for_turn(context, done.cycle, plain, done, shortened=shortened)
    return replace(plain, blocks=blocks and replace(blocks, own=replace(blocks.own, text="", cuts=0), earlier=()))


async def advance_again(compiler: CompilerState, run: Run, request: Request, host: Host, *, result: Result) -> Result:
    """Replace `result`, which is over the budget or has too little room by the current ratio.

    No model is called, because it is called at most once per user turn; an existing summary is kept.

    Raises:
        ContextCompilerError: The template or anything else failed.
    """
    context = read_request(compiler, run, request, host)
    run.asked_turn = context.turn
    again = await _new_cycle(context, result.cycle, host)
    return replace(again, row=result.row or again.row, fault=result.fault or again.fault)


async def advance_request(
    context: RequestContext,
    previous: Cycle | None,
    ask: Ask | None,
    framing: int = 0,
    *,
    block: int = 0,
    extra_cut: int = 0,
) -> Advance:
    """Advance this request; for the last three see `Limits`."""
    limits = replace(context.limits(), framing=framing, block_reserve=block, extra_cut=extra_cut)
    return await advance(context, limits, where=context.where, ask=ask, previous=previous)


def summary_callback(context: RequestContext, host: Host) -> Ask | None:
    """Callback that asks for a summary, within the usage limits; None if this user turn has asked already."""
    run = context.run
    if run.asked_turn == context.turn:
        return None

    async def ask(wanted: SummaryRequest) -> SummaryResponse:
        if context.is_paused:
            return SummaryResponse(text="", refused="the last compile of this conversation was undone")
        run.asked_turn = context.turn
        if not context.affords(wanted, host):
            return SummaryResponse(text="", refused="the run's usage limits leave too little for a compile")
        try:
            return await host.ask(wanted)
        except CompileError as error:
            run.failed = failed_row(context.where, context.history, context.policy, wanted, error)
            raise

    return ask


def starting_cycle(result: Result) -> Result:
    """Mark a result as the first of a new cycle, if its cycle decides on any message."""
    cycle = result.cycle if result.cycle and result.cycle.decided else None
    return replace(result, cycle=cycle, next_cycle=cycle, began=cycle is not None)


def assemble_view(
    context: RequestContext,
    cycle: Cycle | None,
    status: str,
    done: Advance | None = None,
    *,
    blocks: Blocks | None = None,
    earlier: Result | None = None,
) -> Result:
    """Assemble the view of a cycle, or of raw history unchanged, with the breakdown of its tokens.

    Args:
        context: The request.
        cycle: Cycle of the view; None for raw history.
        status: Status of the view; `raw` becomes `mended` if a part without a partner is left out or becomes text.
        done: Advance of this request that produced the cycle.
        blocks: Recall blocks of the turn.
        earlier: An earlier assembly of the same request, whose unchanged parts are reused.

    Raises:
        ContextCompilerError: The view is malformed and must not be sent.
    """
    request, history, layers, live = context.request, context.history, context.request.layers, context.host is not None
    frozen, limits = cycle or RAW, context.limits(cycle)
    notes = valid_notes(context.run.notes, history, frozen, context.steering)
    start, messages, sent = _write(context, cycle, blocks, notes, earlier)
    added, lost, why = missing_rules(context, frozen, notes, sent)
    if added:
        notes = (*notes, *added)
        start, messages, sent = _write(context, cycle, blocks, notes, earlier)
    drops, lines = drops_of(context, frozen, done, lost_drops(lost, why))
    kept = () if live and start is None else why_kept(frozen, context)
    breakdown = token_breakdown(section_tokens(context, frozen, sent, blocks, notes), lines, kept)
    return Result(
        view=View(
            messages=messages,
            tokens=sent.tokens,
            budget=limits.whole,
            status="mended" if status == "raw" and context.base else status,
            summary=summary_of(frozen),
            ledger=breakdown | rule_numbers(context, frozen, notes, lost) | numbers_of(context, done),
            drops=drops,
            kept=kept,
            unsaid=context.absent if frozen.decided else (),
            quoted=(*layers.sections, *(done.quoted if done else ()), *(block_quotes(blocks) if blocks else ())),
        ),
        raw=history,
        sent=sent,
        cycle=cycle,
        next_cycle=cycle,
        turn=context.turn,
        cost=request.overhead + sent.tokens if start is None else rendered_cost(context, messages, sent),
        limit=limits.budget,
        ratio=limits.ratio,
        row=done.row if done else None,
        opening=start,
        pairing=context.pairing,
        blocks=blocks,
        notes=notes,
        lost=lost,
    )


def _write(
    context: RequestContext,
    cycle: Cycle | None,
    blocks: Blocks | None,
    notes: tuple[RuleNote, ...],
    earlier: Result | None,
) -> tuple[Opening | None, list[ModelMessage], History]:
    """Write the messages of a view and read them; without an opening if raw history is sent unchanged."""
    request, layers, live = context.request, context.request.layers, context.host is not None
    touched = cycle or context.base or layers.text or notes or (live and begins_with_assistant(request.messages))
    if not touched:
        return None, list(request.messages), context.history
    frozen, inserted = cycle or RAW, inserted_texts(blocks, notes)
    start = _opening(context, frozen, inserted, earlier)
    messages = _messages(context, inserted, start)
    messages = insert_block(messages, layers) if layers.text else messages
    sent = context.reader.read(messages, last=earlier.sent if earlier else context.run.view)
    if live or context.history.readings[-1].request:
        check_view(sent, context.history)
    return start, messages, sent


def _opening(context: RequestContext, cycle: Cycle, inserted: Inserted, earlier: Result | None) -> Opening:
    """The frozen messages of a cycle; reused if the cycle differs in nothing but the row of its compile."""
    last, stop, history = (earlier and earlier.opening) or context.run.opening, cycle.decided, context.history
    within = {position: texts for position, texts in inserted.items() if position <= stop}
    following = (history.messages[stop], context.base.get(stop)) if stop < len(history) else None
    if last is not None and last.inserted == within and following is not None and last.following == following:
        if last.cycle is cycle or replace(last.cycle, summary_id=cycle.summary_id) == cycle:
            return last
    point = context.request.cache_point
    messages, start = opening(history, cycle, context.base, context.reader, within, cache_point=point)
    return Opening(cycle=cycle, inserted=within, following=following, messages=messages, start=start)


def _messages(context: RequestContext, inserted: Inserted, first: Opening) -> list[ModelMessage]:
    """The messages of a view: the frozen ones of its cycle and everything since."""
    later = {position: texts for position, texts in inserted.items() if position >= first.start}
    since = messages_since(context.history, first.start, context.base, context.reader, later)
    messages = without_folded_instructions([*first.messages, *since], context.reader)
    if context.host is None:
        return messages
    unmarked = context.request.marked and not any(map(find_mark, first.messages))
    lacks = unmarked or begins_with_assistant(messages)
    return with_opening_text(messages, LEFT_OUT, {"v": 1}) if lacks else messages


def rendered_cost(context: RequestContext, messages: list[ModelMessage], sent: History) -> int:
    """Exact tokens of a request as the host renders its messages; `sent` are the same messages as read before."""
    framed = context.host.framing(messages) if context.host is not None else messages
    shared = common_prefix(sent.messages, framed)
    tokens = sent.sums[shared] + sum(context.reader.one(message).tokens for message in framed[shared:])
    return context.request.overhead + max(sent.tokens, tokens)
