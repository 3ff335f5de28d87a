"""What a live agent's requests share, and the path of one request: find the cycle, carry on, or advance.

`Live` belongs to one compiler and is shared by its runs; `Run` belongs to one run. Nothing here fails open:
`capability` wraps it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pydantic_ai.messages import ModelMessage

from context_compiler.advancing import RAW, Advanced, advanced, sections_of, why_kept
from context_compiler.agent import Answer
from context_compiler.cycles import fitting, mended
from context_compiler.frozen import Frozen
from context_compiler.history import History
from context_compiler.items import read_items
from context_compiler.limits import Limits
from context_compiler.prompt import Order
from context_compiler.record import Compile
from context_compiler.recording import Where, ledger
from context_compiler.request import AskFor, Request
from context_compiler.run import Live, Run, Sight, marks_of, read
from context_compiler.view import View, opening, since, summary_of

JOURNALLED = 2_000
"""How many of the newest chain ids are looked up: what a durable run has to journal stays small."""

TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A view, and what of it goes on the record."""

    view: View
    raw: History
    sent: History
    frozen: Frozen | None
    turn: int
    row: Compile | None = None
    began: bool = False
    """A new cycle began with this request."""
    ratio: float = 1.0


async def respond(live: Live, run: Run, request: Request) -> Result:
    """The view of one request.

    Raises:
        ContextCompilerError: the template, the model or anything else failed; the caller falls back.
    """
    sight = read(live, run, request)
    ratio = run.frozen.ratio if run.frozen else live.ratios.of(request.family)
    marks = marks_of(live, run, request, sight, ratio)
    opens = sight.options.every_turn and run.opened_turn != sight.turn and _evictable(sight)
    run.opened_turn = sight.turn
    over = request.overhead + sight.history.tokens > marks.high
    frozen = await _cycle(live, run, request, sight, look=over or opens)
    if frozen is None and not over and not opens:
        return _result(live, run, request, sight, RAW, marks, "raw", ratio)
    if frozen is not None:
        ratio = frozen.ratio
        marks = marks_of(live, run, request, sight, ratio)
        messages = _messages(live, run, sight, frozen)
        if request.overhead + _price(live, messages) <= marks.high and not opens:
            return _result(live, run, request, sight, frozen, marks, "cycle", ratio)
        ratio = live.ratios.of(request.family)
        marks = marks_of(live, run, request, sight, ratio)
    return await _advance(live, run, request, sight, frozen, marks, ratio)


def _evictable(sight: Sight) -> bool:
    """Whether there are turns beyond the recent ones."""
    recent = sight.options.recent_turns
    return recent is not None and len(sight.turns.turns) - 1 > recent


async def _cycle(live: Live, run: Run, request: Request, sight: Sight, *, look: bool) -> Frozen | None:
    """The cycle this request belongs to: the run's own, else that of the longest ancestor."""
    config = sight.options.config
    found = fitting(run.frozen, sight.history, config)
    if found is None and look and not run.looked:
        run.looked = True
        ids = list(sight.history.ids[-JOURNALLED:])
        state = await request.find(ids, config)
        found = run.kept = fitting(Frozen.from_json(state) if state else None, sight.history, config)
    if found is not None:
        found = mended(found, sight.pairing, sight.base)
        run.tight = min(run.tight, found.tight)
        run.kept = found if run.kept is run.frozen else run.kept
    run.frozen = found
    return found


def _messages(live: Live, run: Run, sight: Sight, frozen: Frozen) -> list[ModelMessage]:
    """The messages of a view; what a cycle froze is built once."""
    if run.prefix is None or run.prefix[0] is not frozen or frozen.decided >= len(sight.history):
        run.prefix = (frozen, opening(sight.history, frozen, live.reader))
    return [*run.prefix[1], *since(sight.history, frozen.decided, sight.base, live.reader)]


def _price(live: Live, messages: list[ModelMessage]) -> int:
    return sum(live.reader.one(message).tokens for message in messages)


def _within(request: Request, live: Live) -> AskFor | None:
    """Asking, unless the run's usage limits leave too little for that and the request itself."""
    ask, allowance = request.ask, request.allowance
    if ask is None or allowance is None:
        return ask

    async def asked(order: Order) -> Answer:
        need = sum(map(live.counter.text, order.prompts)) + 2 * order.cap + request.overhead
        if need > allowance // 2:
            return Answer(text="", refused=f"the run's usage limits leave {allowance} tokens")
        return await ask(order)

    return asked


async def _advance(
    live: Live, run: Run, request: Request, sight: Sight, frozen: Frozen | None, marks: Limits, ratio: float
) -> Result:
    """Cut back and freeze; again, with less, where the host's own framing turns out to need room."""
    ask = _within(request, live) if run.asked_turn != sight.turn else None
    overhead = request.overhead
    where = Where(
        session_id=request.session_id,
        vault_name=live.vault_name,
        run_id=request.run_id,
        turn_index=sight.turn,
        request_index=run.requests,
    )
    row: Compile | None = None
    for _ in range(TRIES):
        if ask is not None:
            run.asked_turn = sight.turn
        done = await advanced(
            sight.history,
            sight.turns,
            sight.base,
            sight.options,
            marks,
            counter=live.counter,
            previous=frozen,
            overhead=overhead,
            where=where,
            ask=ask,
            ratio=ratio,
            tight=run.tight,
        )
        row = row or done.row
        frozen = done.frozen
        over = _excess(live, request, _messages(live, run, sight, frozen), marks.budget)
        if over <= 0 or not done.fits:
            break
        overhead, ask = overhead + over, None
    return _begun(live, run, request, sight, done, marks, row, ratio)


def _excess(live: Live, request: Request, messages: list[ModelMessage], budget: int) -> int:
    """By how much a request is over its budget once the host has framed it, in exact tokens."""
    framed = request.framing(messages) if request.framing else messages
    cost = sum(item.tokens for message in framed for item in read_items(message, live.counter))
    return request.overhead + max(cost, _price(live, messages)) - budget


def _begun(
    live: Live,
    run: Run,
    request: Request,
    sight: Sight,
    done: Advanced,
    marks: Limits,
    row: Compile | None,
    ratio: float,
) -> Result:
    """The first request of a new cycle."""
    run.frozen = done.frozen if done.frozen.decided else None
    if run.frozen is not None:
        live.cycles.keep(run.frozen)
    cost = request.overhead + _price(live, _messages(live, run, sight, done.frozen))
    status = "compiled" if cost <= marks.budget else "floor_over_budget"
    result = _result(live, run, request, sight, done.frozen, marks, status, ratio, done)
    return replace(result, row=row, began=run.frozen is not None)


def _result(
    live: Live,
    run: Run,
    request: Request,
    sight: Sight,
    frozen: Frozen,
    marks: Limits,
    status: str,
    ratio: float,
    done: Advanced | None = None,
) -> Result:
    """A view with its ledger. Raw history is sent as the same objects in the same list order."""
    untouched = frozen is RAW and not sight.base
    messages = list(request.messages) if untouched else _messages(live, run, sight, frozen)
    sent = sight.history if untouched else live.reader.read(messages, last=run.view)
    run.view = sent
    run.sent, run.budget = request.overhead + sent.tokens, marks.budget
    drops = tuple(done.cut.bench.drops) if done else ()
    kept = () if untouched else why_kept(frozen, sight.turns, len(sight.history))
    sections = {"instructions and schemas": request.overhead, **sections_of(frozen, sent, live.counter)}
    view = View(
        messages=messages,
        tokens=sent.tokens,
        budget=int(marks.budget * ratio),
        status=status,
        summary=summary_of(frozen),
        ledger=ledger(sections, drops, kept),
        drops=drops,
        kept=kept,
    )
    return Result(
        view=view,
        raw=sight.history,
        sent=sent,
        frozen=frozen if frozen is not RAW else None,
        turn=sight.turn,
        ratio=ratio,
    )
