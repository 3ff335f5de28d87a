"""What is sent when a view could not be made: the first of a fixed list that fits, at last the least possible.

With a cycle: the last good view and everything since, then raw history, then a view without a model. Without
one: raw history first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from pydantic_ai.messages import ModelMessage

from context_compiler.compiler.limits import whole_budget
from context_compiler.compiler.rows import ledger
from context_compiler.compiler.view import View
from context_compiler.messages.history import History, Reader
from context_compiler.middleware.assembly import built
from context_compiler.middleware.cycles import fitting
from context_compiler.middleware.request import Request
from context_compiler.middleware.respond import advance, begun
from context_compiler.middleware.state import Case, Live, Result, Run, read
from context_compiler.resilience import attempt, attempted, floor

Sees = Callable[[], Case]
"""Reads the request, which may fail too."""

EMPTY = History(messages=(), readings=(), ids=(), sums=(0,))


async def fallback(live: Live, run: Run, request: Request, error: Exception) -> Result:
    """What goes out instead of a view that failed with `error`, and why. Never raises."""
    budget, allowed = _limit(live, run, request)

    def why(name: str) -> str:
        return f"{type(error).__name__}: {error}; {request.instead or f'sent: {name}'}"

    for name, way in _ways(live, run, request):
        result = (await attempted(way())).value
        if result is None or (allowed is not None and result.cost > allowed):
            continue
        if result.began:
            result = begun(live, run, result)
        view = replace(result.view, status="fallback", error=why(name))
        return replace(result, view=view, row=run.failed or result.row)
    cut = attempt(lambda: floor(request.messages, None if allowed is None else max(0, allowed - request.overhead)))
    messages, name = (list(request.messages), "raw history") if allowed is None else (cut.value, "the last exchange")
    return _bare(live.reader, run, request, messages or list(request.messages), budget, why(name))


def _limit(live: Live, run: Run, request: Request) -> tuple[int, int | None]:
    """The budget, and what may go out now that we fail, in exact tokens; None is no limit."""
    budget, allowed = whole_budget(live.asked, window=request.window, max_tokens=request.max_tokens)
    if allowed is None and run.refused:
        allowed = budget
    share = run.tight / run.ratios.of(request.family)
    return budget, None if allowed is None else int(allowed * share)


def _ways(live: Live, run: Run, request: Request) -> list[tuple[str, Callable[[], Awaitable[Result | None]]]]:
    """Everything that may be sent instead of a view, the best first; each reads the request anew."""
    asked: Sees = partial(read, live, run, request)
    plain: Sees = partial(read, live, run, request, plain=True)
    return [
        ("the last good view", lambda: _last(plain)),
        ("raw history", lambda: _raw(plain)),
        ("a view without a model", lambda: _unasked(asked)),
        ("a view without a model or template", lambda: _unasked(plain)),
    ]


async def _last(sees: Sees) -> Result | None:
    case = sees()
    run = case.run
    cycle = fitting(run.frozen, case.history, run.frozen.config) if run.frozen else None
    if cycle is None:
        return None
    carried = attempt(lambda: built(case, cycle, "fallback"))
    if carried.error is not None:
        run.frozen = None  # it would fail at every request from now on
    return carried.value


async def _raw(sees: Sees) -> Result | None:
    return built(sees(), None, "fallback")


async def _unasked(sees: Sees) -> Result | None:
    case = sees()
    previous = fitting(case.run.frozen, case.history, case.options.config)
    done = await advance(case, previous, None)
    return replace(built(case, done.frozen, "fallback", done), row=done.row, began=True)


def _bare(reader: Reader, run: Run, request: Request, messages: list[ModelMessage], budget: int, why: str) -> Result:
    """A result that needs none of our own reading, as far as reading fails."""
    raw = attempt(lambda: reader.read(request.messages)).value or EMPTY
    sent = attempt(lambda: reader.read(messages)).value or EMPTY
    sections = {"instructions and schemas": request.overhead, "messages": sent.tokens}
    view = View(
        messages=messages,
        tokens=sent.tokens,
        budget=budget,
        status="fallback",
        ledger=ledger(sections, (), ()),
        error=why,
    )
    turn = max(0, sum(reading.prompts for reading in raw.readings) - 1)
    cost = request.overhead + sent.tokens
    return Result(view=view, raw=raw, sent=sent, frozen=None, turn=turn, cost=cost, limit=0, row=run.failed)
