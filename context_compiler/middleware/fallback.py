"""Fallback views: if no view can be made, the first entry of a fixed list that fits is sent.

In order: the last good view plus everything since (if there is a cycle), raw history, a view without a model, and a
view with neither a model nor the caller's template. The last resort is the last exchange alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from pydantic_ai.messages import ModelMessage

from context_compiler.compiler.block_sizes import BlockSizes
from context_compiler.compiler.cut_order import drop_of
from context_compiler.compiler.cycle import valid_cycle
from context_compiler.compiler.policy import rules_of
from context_compiler.compiler.reasons import LAST_RESORT, LAST_RESORT_TRUNCATION
from context_compiler.compiler.recall_block import lacks_room_for_block
from context_compiler.compiler.rules import absent_rules
from context_compiler.compiler.view import View, token_breakdown
from context_compiler.errors import ContextCompilerError
from context_compiler.messages.history import History
from context_compiler.messages.rules import Found, find_rules
from context_compiler.middleware.last_exchange import last_exchange
from context_compiler.middleware.request import Host, Request
from context_compiler.middleware.respond import (
    add_recall,
    assemble_view,
    cut_back,
    known_blocks,
    recall_for_turn,
    rendered_cost,
    starting_cycle,
)
from context_compiler.middleware.rule_check import lost_drops
from context_compiler.middleware.state import EMPTY, CompilerState, RequestContext, Result, Run, read_request
from context_compiler.record.values import FIXED, Drop, by_reason
from context_compiler.resilience import attempt, try_await


async def fallback(compiler: CompilerState, run: Run, request: Request, host: Host, error: Exception) -> Result:
    """Make the view that is sent after `error` prevented the normal one. Never raises."""
    budget, allowed = compiler.arguments.whole_budget(request)
    if allowed is None and run.refused:
        allowed = budget
    ratio = run.ratios.of(request.family)
    if allowed is not None:
        allowed = int(allowed * (run.tight / ratio))  # in exact tokens

    def why(name: str) -> str:
        return f"{type(error).__name__}: {error}; {request.instead or f'sent: {name}'}"

    for name, make, plain in _CANDIDATES:
        read = partial(read_request, compiler, run, request, host, plain=plain)
        result = (await try_await(make(read))).value
        if result is None or (allowed is not None and result.cost * max(1.0, result.ratio / ratio) > allowed):
            continue
        view = replace(result.view, status="fallback", error=why(name))
        return replace(result, view=view, row=run.failed or result.row)
    limit = None if allowed is None else max(0, allowed - request.overhead)
    cut = attempt(lambda: last_exchange(request.messages, limit))
    whole = dict(enumerate(request.messages))
    messages, name = (whole, "raw history") if allowed is None else (cut.value, "the last exchange")
    return _bare_result(compiler, run, request, messages or whole, budget, allowed, why(name))


async def _last_good_view(read: Callable[[], RequestContext]) -> Result | None:
    context = read()
    run = context.run
    cycle = valid_cycle(run.cycle, context.history, run.cycle.config) if run.cycle else None
    if cycle is None:
        return None
    blocks = known_blocks(context, cycle.config)
    carried = attempt(lambda: assemble_view(context, cycle, "fallback", blocks=blocks))
    if carried.value is None:
        run.enter(None)  # it would fail at every later request too
        return None
    if blocks is not None:
        return carried.value
    sizes, cost = BlockSizes(context, context.limits(cycle), cycle), carried.value.cost
    if attempt(lambda: lacks_room_for_block(sizes, cost)).value:
        return None
    return recall_for_turn(context, cycle, carried.value)


async def _raw_history(read: Callable[[], RequestContext]) -> Result | None:
    context = read()
    result = assemble_view(context, None, "fallback")
    cost = max(result.cost, rendered_cost(context, result.view.messages, result.sent))
    return replace(result, cost=cost, next_cycle=context.run.cycle)


async def _view_without_model(read: Callable[[], RequestContext]) -> Result | None:
    context = read()
    previous = valid_cycle(context.run.cycle, context.history, context.policy.config)
    trial = await cut_back(context, previous, None)
    return starting_cycle(add_recall(context, trial.result, trial.done))


_CANDIDATES = (
    ("the last good view", _last_good_view, True),
    ("raw history", _raw_history, True),
    ("a view without a model", _view_without_model, False),
    ("a view without a model or template", _view_without_model, True),
)
"""Candidates for a fallback view, best first: name, function that reads the request again, and if without template."""


def _bare_result(
    compiler: CompilerState,
    run: Run,
    request: Request,
    kept: Mapping[int, ModelMessage],
    budget: int,
    allowed: int | None,
    why: str,
) -> Result:
    """Build a result without a plan that sends the messages `kept`, by raw position.

    A history that cannot be read is left empty. `allowed` is the maximum in exact tokens; None means no limit.
    """
    messages = list(kept.values())
    raw = attempt(lambda: compiler.reader.read(request.messages)).value or EMPTY
    sent = attempt(lambda: compiler.reader.read(messages)).value or EMPTY
    sections = {FIXED: request.overhead, "messages": sent.tokens}
    cost = request.overhead + sent.tokens
    rules = attempt(lambda: find_rules(raw)).value if compiler.arguments.detect_rules else None
    lost = absent_rules(rules_of(raw, request.rules, run.steering, rules or Found()), sent)
    drops = (*_last_drops(raw, sent, list(kept)), *lost_drops(lost))
    view = View(
        messages=messages,
        tokens=sent.tokens,
        budget=budget,
        status="fallback" if allowed is None or cost <= allowed else "floor_over_budget",
        ledger=token_breakdown(sections, by_reason(drops), ()),
        drops=drops,
        error=why,
    )
    return Result(
        view=view,
        raw=raw,
        sent=sent,
        cycle=None,
        next_cycle=run.cycle,
        turn=max(0, sum(reading.has_user_part for reading in raw.readings) - 1),
        cost=cost,
        limit=0,
        row=run.failed,
    )


def unreadable_parts(request: Request, result: Result) -> ContextCompilerError | None:
    """Error that names the parts of a request that cannot be read, such as a deeply nested result; None if all can."""
    sources = {"history": (request.messages, result.raw), "view": (result.view.messages, result.sent)}
    names = [name for name, (messages, history) in sources.items() if messages and not len(history)]
    lost = f"the {' and the '.join(names)} of a request cannot be read: its row is recorded without it"
    return ContextCompilerError(lost) if names else None


def _last_drops(raw: History, sent: History, kept: Sequence[int]) -> Iterator[Drop]:
    """Drops for everything that the last exchange leaves out or shortens; `kept` are the raw positions of `sent`."""
    start = 0
    for reading, position in zip((*sent.readings, None), (*kept, len(raw)), strict=False):
        if start < position <= len(raw):
            yield drop_of(start, position, LAST_RESORT.text, raw.sums[position] - raw.sums[start])
        if reading is not None and position < len(raw) and (gone := raw.readings[position].tokens - reading.tokens):
            yield drop_of(position, position + 1, LAST_RESORT_TRUNCATION.text, gone)
        start = position + 1
