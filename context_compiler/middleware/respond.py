"""The path of one request of a live agent: find the cycle, carry on, or advance.

Nothing here fails open: `middleware` wraps it.
"""

from __future__ import annotations

from dataclasses import replace

from context_compiler.compiler.advance_through import Advanced, advanced
from context_compiler.compiler.agent import Answer
from context_compiler.compiler.cycle import Frozen
from context_compiler.compiler.prompt import Order
from context_compiler.compiler.recall_block import due, with_block
from context_compiler.compiler.rows import failed_row
from context_compiler.errors import CompileError
from context_compiler.middleware.assembly import built
from context_compiler.middleware.cycles import fitting, mended
from context_compiler.middleware.request import AskFor, Request
from context_compiler.middleware.state import Case, Live, Result, Run, read

JOURNALLED = 2_000
"""How many of the newest chain ids are looked up: what a durable run has to journal stays small."""

TRIES = 3
"""How often a view is cut anew because the host's own framing turned out to need room."""


async def respond(live: Live, run: Run, request: Request) -> Result:
    """The view of one request.

    Raises:
        ContextCompilerError: the template, the model or anything else failed; the caller falls back.
    """
    case = read(live, run, request)
    cycle = await _known_cycle(case)
    opens = _opens(case, cycle)
    run.opened_turn = case.turn
    grown = None
    if not opens:
        grown = _raw(case) if cycle is None else _carried_on(case, cycle)
    return grown or await _new_cycle(case, cycle)


async def _known_cycle(case: Case) -> Frozen | None:
    """The cycle this request belongs to: the run's own, else, once a run, that of the longest ancestor."""
    run, history, config = case.run, case.history, case.options.config
    found = fitting(run.frozen, history, config)
    if not run.begun:
        run.begun = True
        start = await case.request.begin(list(history.ids[-JOURNALLED:]), config)
        run.ratios.restore(start["ratios"])
        found = Frozen.from_json(start["cycle"]) if start["cycle"] else None
        found = run.kept = fitting(found, history, config)
        run.tight = found.tight if found else run.tight
    if found is not None:
        whole = mended(found, case.pairing, case.base)
        run.kept = whole if run.kept is found else run.kept
        found = whole
    run.frozen = found
    return found


def _opens(case: Case, cycle: Frozen | None) -> bool:
    """Whether this is the first request of a user turn, `every_turn` is asked for, and there is something to cut."""
    recent = case.options.recent_turns
    if not case.options.every_turn or recent is None or case.turn in (case.run.opened_turn, cycle and cycle.turn):
        return False
    return len(case.outline.turns) - 1 > recent


def _raw(case: Case) -> Result | None:
    """The raw history, up to the high mark."""
    if case.request.fixed + case.history.tokens > case.marks().high:
        return None
    return built(case, None, "raw")


def _carried_on(case: Case, cycle: Frozen) -> Result | None:
    """The cycle and everything since, up to the high mark; at a new user turn also what its prompt asks for."""
    result, marks, options = built(case, cycle, "cycle"), case.marks(cycle), case.options
    if result.cost > marks.high:
        return None
    at = due(cycle, case) if options.recall and marks.cap(options.fidelity) else None
    if at is None:
        return result
    wider = with_block(cycle, case, at, limits=marks, cost=result.cost)
    case.run.reword(wider)
    case.live.cycles.keep(wider)
    return built(case, wider, "cycle")


async def _new_cycle(case: Case, previous: Frozen | None) -> Result:
    """Cut back and freeze; again, with less, where the host's own framing turns out to need room."""
    run = case.run
    run.tight = run.tight if run.refused else 1.0
    more, tries, row = 0, 1, None
    while True:
        done = await advance(case, previous, _asking(case), more)
        previous, row = done.frozen, row or done.row
        result = built(case, previous, "compiled", done)
        over = result.cost - result.limit
        if over <= 0 or not done.cut.fits or tries == TRIES:
            break
        more, tries = more + over, tries + 1
    if over > 0:
        result = replace(result, view=replace(result.view, status="floor_over_budget"))
    return begun(case.live, run, replace(result, row=row))


async def advance(case: Case, previous: Frozen | None, ask: AskFor | None, more: int = 0) -> Advanced:
    """One advance of this request; `more` tokens are known to be needed beside its overhead."""
    overhead = case.request.fixed + more
    return await advanced(case, case.marks(), where=case.where, ask=ask, previous=previous, overhead=overhead)


def _asking(case: Case) -> AskFor | None:
    """How to ask for notes: once a user turn, and only where the run's usage limits leave room for it."""
    run, request = case.run, case.request
    if run.asked_turn == case.turn:
        return None

    async def asked(order: Order) -> Answer:
        run.asked_turn = case.turn
        given = sum(map(case.counter.text, order.prompts)) + order.cap * (len(order.prompts) - 1)
        if not request.affords(given + request.overhead, order.cap * len(order.prompts)):
            return Answer(text="", refused="the run's usage limits leave too little for a compile")
        try:
            return await request.ask(order)
        except CompileError as error:
            run.failed = failed_row(case.where, case.history, case.options, order, error)
            raise

    return asked


def begun(live: Live, run: Run, result: Result) -> Result:
    """The first request of a new cycle, which the run is in from now on."""
    frozen = result.frozen if result.frozen and result.frozen.decided else None
    run.frozen = frozen
    if frozen is not None:
        live.cycles.keep(frozen)
    return replace(result, frozen=frozen, began=frozen is not None)
