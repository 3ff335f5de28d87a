"""What is sent when a view could not be made: the first of a fixed list that fits, at last the least possible.

With a cycle: the last good view and everything since, then raw history, then a view without a model. Without
one: raw history first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from pydantic_ai.messages import ModelMessage

from context_compiler.advancing import RAW, advanced
from context_compiler.cycles import fitting
from context_compiler.failing import attempt, attempted, floor
from context_compiler.frozen import Frozen
from context_compiler.history import History, Reader
from context_compiler.library import TemplateLibrary
from context_compiler.limits import whole_budget
from context_compiler.live import Result
from context_compiler.recording import Where, ledger
from context_compiler.request import Request
from context_compiler.run import Live, Run, marks_of, read
from context_compiler.tokens import TokenCounter
from context_compiler.view import View, assemble, summary_of
from context_compiler.wanted import Wanted

EMPTY = History(messages=(), readings=(), ids=(), sums=(0,))


async def fallback(
    live: Live | None, wanted: Wanted, counter: TokenCounter, run: Run, request: Request, error: Exception
) -> Result:
    """What goes out instead of a view, and why. Never raises.

    Args:
        live: What the compiler's requests share; None when not even that could be made.
        wanted: What the user asked for.
        counter: What prices messages.
        run: The run's state.
        request: The request.
        error: What failed.
    """
    reader = live.reader if live is not None else Reader(counter)
    budget, allowed = whole_budget(wanted.asked(), window=request.window, max_tokens=request.max_tokens)
    ways: list[tuple[str, Callable[[], Awaitable[tuple[list[ModelMessage], Frozen | None]]]]] = []
    if live is not None:
        without = replace(
            live, wishes=replace(live.wishes, template="extractive"), library=TemplateLibrary(system=None)
        )
        ways = [
            ("raw history", lambda: _raw(request)),
            ("a view without a model", lambda: _plain(without, run, request)),
        ]
        if run.frozen is not None:
            ways.insert(0, ("the last good view", lambda: _last(live, run, request)))
    for name, way in ways:
        outcome = await attempted(way())
        if outcome.value is None:
            continue
        messages, frozen = outcome.value
        cost = attempt(lambda messages=messages: request.overhead + sum(reader.one(one).tokens for one in messages))
        if messages and (allowed is None or (cost.error is None and (cost.value or 0) <= allowed)):
            return _result(reader, run, request, messages, frozen, budget, f"{error}; sent: {name}")
    return _least(reader, run, request, budget, allowed, error)


async def _raw(request: Request) -> tuple[list[ModelMessage], Frozen | None]:
    return list(request.messages), None


async def _last(live: Live, run: Run, request: Request) -> tuple[list[ModelMessage], Frozen | None]:
    sight = read(live, run, request)
    frozen = fitting(run.frozen, sight.history, run.frozen.config if run.frozen else "")
    return (assemble(sight.history, frozen, sight.base, live.reader), frozen) if frozen else ([], None)


async def _plain(live: Live, run: Run, request: Request) -> tuple[list[ModelMessage], Frozen | None]:
    sight = read(live, run, request)
    done = await advanced(
        sight.history,
        sight.turns,
        sight.base,
        sight.options,
        marks_of(live, run, request, sight, 1.0),
        counter=live.counter,
        previous=None,
        overhead=request.overhead,
        where=Where(session_id=request.session_id, turn_index=sight.turn),
        ask=None,
    )
    return assemble(sight.history, done.frozen, sight.base, live.reader), None


def _least(reader: Reader, run: Run, request: Request, budget: int, allowed: int | None, error: Exception) -> Result:
    """The floor, cut without any of our own reading; raw history where not even that works."""
    room = None if allowed is None else max(0, allowed - request.overhead)
    cut = attempt(lambda: floor(request.messages, room))
    messages = cut.value or list(request.messages)
    return _result(reader, run, request, messages, None, budget, f"{error}; sent: the last exchange alone")


def _result(
    reader: Reader,
    run: Run,
    request: Request,
    messages: list[ModelMessage],
    frozen: Frozen | None,
    budget: int,
    why: str,
) -> Result:
    raw = attempt(lambda: reader.read(request.messages)).value or EMPTY
    sent = attempt(lambda: reader.read(messages)).value or EMPTY
    run.sent = 0
    sections = {"instructions and schemas": request.overhead, "messages": sent.tokens}
    view = View(
        messages=messages,
        tokens=sent.tokens,
        budget=budget,
        status="fallback",
        summary=summary_of(frozen or RAW),
        ledger=ledger(sections, (), ()),
        error=why,
    )
    turn = max(0, sum(reading.prompts for reading in raw.readings) - 1)
    return Result(view=view, raw=raw, sent=sent, frozen=frozen, turn=turn)
