"""The path of one request: find the cycle, carry on, or advance; and the one place that assembles a view.

Nothing here fails open: `middleware` wraps it.
"""

from __future__ import annotations

from dataclasses import replace

from pydantic_ai.messages import ModelMessage, ModelResponse

from context_compiler.compiler.advance import Advance, Ask, advance
from context_compiler.compiler.agent import SummaryResponse
from context_compiler.compiler.cycle import RAW, Cycle, fitting, mended
from context_compiler.compiler.prompt import SummaryRequest
from context_compiler.compiler.recall_block import due, texts, with_block
from context_compiler.compiler.rows import failed_row
from context_compiler.compiler.view import (
    LEFT_OUT,
    View,
    mark_in,
    marked_request,
    opening,
    sections_of,
    since,
    summary_of,
    token_breakdown,
    why_kept,
)
from context_compiler.errors import CompileError, ContextCompilerError
from context_compiler.layers.context import insert_block, with_layer_tokens
from context_compiler.messages.history import History
from context_compiler.messages.turns import pair
from context_compiler.middleware.request import Host, Request
from context_compiler.middleware.state import CompilerState, Opening, RequestContext, Result, Run, read_request

JOURNALLED = 2_000
"""How many of the newest chain ids are looked up: what a durable run has to journal stays small."""

TRIES = 3
"""How often a view is cut anew because the host's own framing turned out to need room."""


async def respond(compiler: CompilerState, run: Run, request: Request, host: Host) -> Result:
    """The view of one request.

    Raises:
        ContextCompilerError: the template, the model or anything else failed; the caller falls back.
    """
    context = read_request(compiler, run, request, host)
    cycle = await _current_cycle(context, host)
    opens = _opens(context, cycle)
    run.open_turn(context.turn)
    grown = None
    if not opens:
        grown = _raw(context) if cycle is None else _carry_on(context, cycle)
    return grown or await _new_cycle(context, cycle, host)


async def _current_cycle(context: RequestContext, host: Host) -> Cycle | None:
    """The cycle this request belongs to: the run's own, else, once a run, that of the longest ancestor."""
    run, history, config = context.run, context.history, context.policy.config
    found = fitting(run.cycle, history, config) if run.cycle else None
    if not run.begun:
        run.begin()
        start = await host.begin(list(history.ids[-JOURNALLED:]), config)
        found = fitting(Cycle.from_json(start["cycle"]), history, config) if start["cycle"] else None
        run.start(found, start["ratios"])
    whole = mended(found, context.pairing, context.base) if found is not None else None
    run.enter(whole, mended=found)
    return whole


def _opens(context: RequestContext, cycle: Cycle | None) -> bool:
    """True at the first request of a user turn, where `every_turn` is asked for and there is something to cut."""
    recent, opened = context.policy.recent_turns, (context.run.opened_turn, cycle and cycle.turn)
    if not context.policy.every_turn or recent is None or context.turn in opened:
        return False
    return len(context.outline.turns) - 1 > recent


def _raw(context: RequestContext) -> Result | None:
    """The raw history, up to the high threshold."""
    if context.request.fixed + context.history.tokens > context.limits().high:
        return None
    return assemble_view(context, None, "raw")


def _carry_on(context: RequestContext, cycle: Cycle) -> Result | None:
    """The cycle and everything since, up to the high threshold; at a new user turn with what its prompt asks for."""
    result, limits, policy = assemble_view(context, cycle, "cycle"), context.limits(cycle), context.policy
    if result.cost > limits.high:
        return None
    at = due(cycle, context) if policy.recall and limits.cap(policy.fidelity) else None
    if at is None:
        return result
    wider = with_block(cycle, context, at, limits=limits, cost=result.cost)
    return assemble_view(context, wider, "cycle", earlier=result)


async def _new_cycle(context: RequestContext, previous: Cycle | None, host: Host) -> Result:
    """Cut back and freeze; again, with less, where the host's own framing turns out to need room."""
    context.run.relax()
    more, tries, row, result = 0, 1, None, None
    while True:
        done = await advance_request(context, previous, _asking(context, host), more)
        previous, row = done.cycle, row or done.row
        result = assemble_view(context, previous, "compiled", done, earlier=result)
        over = result.cost - result.limit
        if over <= 0 or not done.selection.fits or tries == TRIES:
            break
        more, tries = more + over, tries + 1
    if over > 0:
        result = replace(result, view=replace(result.view, status="floor_over_budget"))
    return replace(started(result), row=row)


async def advance_request(context: RequestContext, previous: Cycle | None, ask: Ask | None, more: int = 0) -> Advance:
    """One advance of this request; `more` tokens are known to be needed beside its overhead."""
    overhead = context.request.fixed + more
    return await advance(context, context.limits(), where=context.where, ask=ask, previous=previous, overhead=overhead)


def _asking(context: RequestContext, host: Host) -> Ask | None:
    """How to ask for a summary: once a user turn, and only where the run's usage limits leave room for it."""
    run = context.run
    if run.asked_turn == context.turn:
        return None

    async def ask(wanted: SummaryRequest) -> SummaryResponse:
        run.ask(context.turn)
        given = sum(map(context.counter.text, wanted.prompts)) + wanted.cap * (len(wanted.prompts) - 1)
        if not host.affords(given + context.request.overhead, wanted.cap * len(wanted.prompts)):
            return SummaryResponse(text="", refused="the run's usage limits leave too little for a compile")
        try:
            return await host.ask(wanted)
        except CompileError as error:
            run.fail(failed_row(context.where, context.history, context.policy, wanted, error))
            raise

    return ask


def started(result: Result) -> Result:
    """The first request of a new cycle, which the run is in from now on if it decides on anything."""
    cycle = result.cycle if result.cycle and result.cycle.decided else None
    return replace(result, cycle=cycle, next_cycle=cycle, began=cycle is not None)


def assemble_view(
    context: RequestContext,
    cycle: Cycle | None,
    status: str,
    done: Advance | None = None,
    *,
    earlier: Result | None = None,
) -> Result:
    """A view with the breakdown of its tokens: of a cycle, or of raw history, sent as the same objects in order.

    Args:
        context: The request.
        cycle: None for raw history.
        status: Of the view.
        done: The advance that the cycle comes of, in this request.
        earlier: An assembly of the same request, whose parts are taken over where they are the same.

    Raises:
        ContextCompilerError: the view may not go out as it is.
    """
    request, history, told, live = context.request, context.history, context.request.told, context.host is not None
    frozen, limits = cycle or RAW, context.limits(cycle)
    untouched = cycle is None and not context.base and not told.text and not (live and _unled(request.messages))
    if untouched:
        start, messages, sent = None, list(request.messages), history
    else:
        start = _opening(context, frozen, earlier)
        messages = _messages(context, frozen, start[1])
        messages = insert_block(messages, told) if told.text else messages
        sent = context.reader.read(messages, last=earlier.sent if earlier else context.run.view)
        if live:
            _check(sent, history)
    drops = (*told.drops, *(done.selection.draft.drops if done else ()), *request.dropped)
    kept = () if live and untouched else why_kept(frozen, context)
    return Result(
        view=View(
            messages=messages,
            tokens=sent.tokens,
            budget=int(limits.budget * limits.ratio),
            status=status,
            summary=summary_of(frozen),
            ledger=token_breakdown(_sections(context, frozen, sent, untouched), drops, kept),
            drops=drops,
            kept=kept,
            quoted=(*told.sections, *(done.quoted if done else ())),
        ),
        raw=history,
        sent=sent,
        cycle=cycle,
        next_cycle=cycle,
        turn=context.turn,
        cost=request.overhead + sent.tokens if untouched else _cost(context, messages),
        limit=limits.budget,
        ratio=limits.ratio,
        row=done.row if done else None,
        opening=start,
        pairing=context.pairing,
    )


def _sections(context: RequestContext, cycle: Cycle, sent: History, untouched: bool) -> dict[str, int]:
    """Exact tokens of a request by section."""
    blocks = texts(cycle, context.history).values() if cycle.blocks else ()
    sections, told = sections_of(cycle, sent, context.counter, blocks), context.request.told
    sections = with_layer_tokens(sections, told) if told.text else sections
    return sections if context.host is None else {"instructions and schemas": context.request.overhead, **sections}


def _opening(context: RequestContext, cycle: Cycle, earlier: Result | None) -> Opening:
    """The messages that a cycle froze, built once: those of a cycle that differs in nothing they hold are the same."""
    known = (earlier and earlier.opening) or context.run.opening
    if known is None or cycle.decided >= len(context.history) or not _opens_alike(known[0], cycle):
        return cycle, opening(context.history, cycle, context.reader)
    return cycle, known[1]


def _opens_alike(one: Cycle, other: Cycle) -> bool:
    return one is other or replace(one, blocks=other.blocks, summary_id=other.summary_id) == other


def _messages(context: RequestContext, cycle: Cycle, first: list[ModelMessage]) -> list[ModelMessage]:
    """The messages of a view: what its cycle froze, and everything since."""
    history = context.history
    recalled = texts(cycle, history) if cycle.blocks else {}
    later = since(history, cycle.decided, context.base, context.reader, recalled)
    messages = [*first, *later]
    if context.host is None:
        return messages
    unmarked = context.request.marked and not any(map(mark_in, first))
    return [marked_request(LEFT_OUT, {"v": 1}), *messages] if unmarked or _unled(messages) else messages


def _unled(messages: list[ModelMessage]) -> bool:
    """True if the first message would be the assistant's, which providers reject; some hosts render loaded tools so."""
    for message in messages:
        kinds = {part.part_kind for part in message.parts}
        if isinstance(message, ModelResponse) or "tool-availability-delta" in kinds:
            return True
        if kinds & {"user-prompt", "compaction"}:
            return False
    return False


def _cost(context: RequestContext, messages: list[ModelMessage]) -> int:
    """Exact tokens of a request as the host renders it."""
    framed = context.host.framing(messages) if context.host is not None else messages
    one = context.reader.one
    tokens = sum(one(message).tokens for message in messages)
    if framed is not messages:
        tokens = max(tokens, sum(one(message).tokens for message in framed))
    return context.request.overhead + tokens


def _check(sent: History, raw: History) -> None:
    """Refuse a view that may not go out: pairs stay whole, and the active request is last.

    Raises:
        ContextCompilerError: raw history is better than that.
    """
    if not sent.readings or sent.readings[-1].request != raw.readings[-1].request:
        raise ContextCompilerError("the view does not end with the active request")
    last, asked = sent.readings[-1], raw.readings[-1]
    if (asked.prompts and not last.prompts) or not set(last.answers) <= set(asked.answers):
        raise ContextCompilerError("the view ends with another request than the active one")
    if pair(sent).broken:
        raise ContextCompilerError("the view has a call without its answer, or an answer without its call")
