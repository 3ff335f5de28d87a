"""The path of one request of a live agent: find the cycle, carry on, or advance.

Nothing here fails open: `middleware` wraps it.
"""

from __future__ import annotations

from dataclasses import replace

from context_compiler.advance.through import RAW, Advanced, advanced
from context_compiler.agent import Answer
from context_compiler.budget.frozen import Frozen
from context_compiler.errors import CompileError
from context_compiler.limits import Limits
from context_compiler.live.building import built
from context_compiler.live.cycles import fitting, mended
from context_compiler.live.request import AskFor, Request
from context_compiler.live.run import Live, Result, Run, Sight, marks_of, read, where_of
from context_compiler.prompt import Order
from context_compiler.recall.blocks import due, with_block
from context_compiler.record.recording import failed_row

JOURNALLED = 2_000
"""How many of the newest chain ids are looked up: what a durable run has to journal stays small."""

TRIES = 3
"""How often a view is cut anew because the host's own framing turned out to need room."""


async def respond(live: Live, run: Run, request: Request) -> Result:
    """The view of one request.

    Raises:
        ContextCompilerError: the template, the model or anything else failed; the caller falls back.
    """
    sight = read(live, run, request, live.options(request))
    frozen = await _cycle(run, request, sight)
    ratio = frozen.ratio if frozen else run.ratios.of(request.family)
    marks = marks_of(live, run, request, sight, ratio)
    opens = _opens(run, sight, frozen)
    run.opened_turn = sight.turn
    if not opens:
        if frozen is None and request.fixed + sight.history.tokens <= marks.high:
            return built(live, run, request, sight, RAW, marks, "raw", ratio)
        if frozen is not None:
            result = built(live, run, request, sight, frozen, marks, "cycle", ratio)
            if result.cost <= marks.high:
                return _recalled(live, run, request, sight, frozen, marks, result)
    return await _advance(live, run, request, sight, frozen)


def _opens(run: Run, sight: Sight, frozen: Frozen | None) -> bool:
    """Whether this is the first request of a user turn, `every_turn` is asked for, and there is something to cut."""
    recent = sight.options.recent_turns
    if not sight.options.every_turn or recent is None or sight.turn in (run.opened_turn, frozen and frozen.turn):
        return False
    return len(sight.turns.turns) - 1 > recent


async def _cycle(run: Run, request: Request, sight: Sight) -> Frozen | None:
    """The cycle this request belongs to: the run's own, else, once a run, that of the longest ancestor."""
    config = sight.options.config
    found = fitting(run.frozen, sight.history, config)
    if not run.begun:
        run.begun = True
        start = await request.begin(list(sight.history.ids[-JOURNALLED:]), config)
        run.ratios.restore(start["ratios"])
        found = Frozen.from_json(start["cycle"]) if start["cycle"] else None
        found = run.kept = fitting(found, sight.history, config)
        run.tight = found.tight if found else run.tight
    if found is not None:
        whole = mended(found, sight.pairing, sight.base)
        run.kept = whole if run.kept is found else run.kept
        found = whole
    run.frozen = found
    return found


def _recalled(
    live: Live, run: Run, request: Request, sight: Sight, frozen: Frozen, marks: Limits, result: Result
) -> Result:
    """The view with what its prompt asks for, where a new user turn begins; else as it is."""
    options = sight.options
    at = due(frozen, sight.history, sight.turn) if options.recall and marks.cap(options.fidelity) else None
    if at is None:
        return result
    run.frozen = with_block(
        frozen,
        sight.history,
        sight.turns,
        at,
        turn=sight.turn,
        share=options.recall,
        limits=marks,
        cost=result.cost,
        counter=live.counter,
    )
    if run.prefix is not None and run.prefix[0] is frozen:
        run.prefix = (run.frozen, run.prefix[1])
    live.cycles.keep(run.frozen)
    return built(live, run, request, sight, run.frozen, marks, "cycle", result.ratio)


def _asking(live: Live, run: Run, request: Request, sight: Sight) -> AskFor | None:
    """How to ask for notes: once a user turn, and only where the run's usage limits leave room for it."""
    if run.asked_turn == sight.turn:
        return None

    async def asked(order: Order) -> Answer:
        run.asked_turn = sight.turn
        given = sum(map(live.counter.text, order.prompts)) + order.cap * (len(order.prompts) - 1)
        if not request.affords(given + request.overhead, order.cap * len(order.prompts)):
            return Answer(text="", refused="the run's usage limits leave too little for a compile")
        try:
            return await request.ask(order)
        except CompileError as error:
            run.failed = failed_row(where_of(live, run, request, sight), sight.history, sight.options, order, error)
            raise

    return asked


async def _advance(live: Live, run: Run, request: Request, sight: Sight, frozen: Frozen | None) -> Result:
    """Cut back and freeze; again, with less, where the host's own framing turns out to need room."""
    run.tight = run.tight if run.refused else 1.0
    ratio = run.ratios.of(request.family)
    marks = marks_of(live, run, request, sight, ratio)
    more, tries, row = 0, 1, None
    while True:
        ask = _asking(live, run, request, sight)
        done = await advance(live, run, request, sight, marks, frozen, ask, ratio, more)
        frozen, row = done.frozen, row or done.row
        result = built(live, run, request, sight, frozen, marks, "compiled", ratio, done)
        over = result.cost - marks.budget
        if over <= 0 or not done.fits or tries == TRIES:
            break
        more, tries = more + over, tries + 1
    if over > 0:
        result = replace(result, view=replace(result.view, status="floor_over_budget"))
    return begun(live, run, replace(result, row=row))


async def advance(
    live: Live,
    run: Run,
    request: Request,
    sight: Sight,
    marks: Limits,
    previous: Frozen | None,
    ask: AskFor | None,
    ratio: float,
    more: int = 0,
) -> Advanced:
    """One advance of this request; `more` tokens are known to be needed beside its overhead."""
    return await advanced(
        sight.history,
        sight.turns,
        sight.base,
        sight.options,
        marks,
        counter=live.counter,
        previous=previous,
        overhead=request.fixed + more,
        where=where_of(live, run, request, sight),
        ask=ask,
        ratio=ratio,
        tight=run.tight,
    )


def begun(live: Live, run: Run, result: Result) -> Result:
    """The first request of a new cycle, which the run is in from now on."""
    frozen = result.frozen if result.frozen and result.frozen.decided else None
    run.frozen = frozen
    if frozen is not None:
        live.cycles.keep(frozen)
    return replace(result, frozen=frozen, began=frozen is not None)
