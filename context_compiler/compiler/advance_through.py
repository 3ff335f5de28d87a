"""One advance from end to end, for a live agent and a one-shot view alike: cut, perhaps ask a model, freeze."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial

from context_compiler.compiler.advance import cut, freeze, unused
from context_compiler.compiler.agent import Answer
from context_compiler.compiler.cycle import Frozen
from context_compiler.compiler.limits import Limits
from context_compiler.compiler.plan import Cut, Sight
from context_compiler.compiler.prompt import Order
from context_compiler.compiler.rows import Where, compile_row
from context_compiler.compiler.summary_request import order, refusal, why_no_model
from context_compiler.compiler.view import Quote, summary_of
from context_compiler.messages.history import History
from context_compiler.messages.shapes import Shape
from context_compiler.record.values import Compile
from context_compiler.tokens import TokenCounter

Ask = Callable[[Order], Awaitable[Answer]]
"""The compile agent, seen from here: an order in, an answer out, no memory."""

RAW = Frozen(
    decided=0,
    tip="",
    kept=(),
    note="",
    quotes="",
    channel="user",
    summary="",
    summary_id=None,
    covered=(),
    compiled_turn=-1,
    turn=-1,
    tight=1.0,
    ratio=1.0,
    blocks=(),
    config="",
)
"""The state before any cycle: everything stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advanced:
    """What one advance decided, and the row that says so."""

    frozen: Frozen
    cut: Cut
    row: Compile | None
    """None when nothing was left out."""
    quoted: tuple[Quote, ...]


async def advanced(
    sight: Sight,
    marks: Limits,
    *,
    where: Where,
    ask: Ask | None,
    previous: Frozen | None = None,
    overhead: int = 0,
    one_shot: bool = False,
) -> Advanced:
    """Cut back, ask a model if that is worth it, and freeze what comes of it.

    Raises:
        CompileError: the model was asked and failed; an answer that is empty or saves nothing is refused instead.
    """
    tried = partial(cut, sight, marks, previous=previous, overhead=overhead, one_shot=one_shot)
    done = tried()
    reply = await _asked(done, where.turn_index, ask)
    summary = reply.answer.text if reply.answer and reply.status == "ok" else ""
    fixed = partial(
        freeze,
        summary=summary,
        row=reply.answer.row if reply.answer else None,
        turn=where.turn_index,
        asked=reply.order is not None or ask is None,
    )
    frozen, quoted = fixed(done)
    spare = unused(done, frozen) if one_shot and reply.order is None else 0
    if spare:
        done = tried(spare=spare)
        frozen, quoted = fixed(done)
    return Advanced(frozen=frozen, cut=done, row=_row(where, done, reply, frozen), quoted=quoted)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reply:
    """What came of asking a model, or why none was asked."""

    status: str
    error: str | None
    order: Order | None = None
    answer: Answer | None = None


async def _asked(done: Cut, turn: int, ask: Ask | None) -> _Reply:
    error = why_no_model(done, turn) or ("asked in this turn already" if ask is None else None)
    if ask is None or error is not None:
        return _Reply(status="deterministic", error=error)
    given = order(done)
    answer = await ask(given)
    error = answer.refused or refusal(done, answer.text)
    return _Reply(status="refused" if error else "ok", error=error, order=given, answer=answer)


def _row(where: Where, done: Cut, reply: _Reply, frozen: Frozen) -> Compile | None:
    """The row of a compile; None where nothing was left out, or where it is on the record already."""
    if not done.out or (reply.answer and reply.answer.row):
        return None
    return compile_row(
        where,
        done,
        order=reply.order,
        answer=reply.answer,
        status=reply.status,
        error=reply.error,
        summary=summary_of(frozen),
        quotes=frozen.quotes,
        budget_used=done.counter.text(frozen.note) + done.counter.text(frozen.quotes),
    )


def why_kept(frozen: Frozen, sight: Sight) -> tuple[tuple[int, str], ...]:
    """Every message of a view and why it is there."""
    shapes = dict(frozen.kept)
    active = sight.outline.active.start if sight.outline.turns else 0
    reasons: list[tuple[int, str]] = []
    for index in range(len(sight.history)):
        shape = shapes.get(index) if index < frozen.decided else Shape()
        if shape is None:
            continue
        reason = "carried for the host" if shape.bare else "active turn" if index >= active else "recent turn"
        reasons.append((index, f"{reason}, as a skeleton" if shape.skeleton else reason))
    return tuple(reasons)


def sections_of(frozen: Frozen, view: History, counter: TokenCounter, blocks: Iterable[str] = ()) -> dict[str, int]:
    """Exact tokens of a view's messages by section: note, quotes, recall blocks, and the messages themselves."""
    note, quotes, recall = counter.text(frozen.note), counter.text(frozen.quotes), sum(map(counter.text, blocks))
    messages = view.tokens - note - quotes - recall
    return {"summary": note, "quotes": quotes, "recall": recall, "messages": messages}
