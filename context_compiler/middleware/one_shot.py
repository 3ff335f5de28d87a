"""The whole path on one page: history, turns, cut, order, answer, view.

`advanced` is one advance, for a live agent and a one-shot view alike; `compile_view` is the one-shot view.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from pydantic_ai.messages import ModelMessage, ModelRequest
from pydantic_ai.models import Model

from context_compiler.compiler.advance_through import RAW, Advanced, advanced, sections_of, why_kept
from context_compiler.compiler.agent import Answer, ask, named
from context_compiler.compiler.limits import Asked, Limits, limits
from context_compiler.compiler.plan import Sight
from context_compiler.compiler.prompt import Order
from context_compiler.compiler.rows import Where, ledger, now
from context_compiler.compiler.view import View, assemble, summary_of
from context_compiler.errors import BudgetError, SettingsError
from context_compiler.fidelity import Fidelity
from context_compiler.layers.context import (
    NO_LAYERS,
    LayerBlock,
    insert_block,
    layer_block,
    layers_room,
    node_need,
    node_template,
    with_layer_tokens,
)
from context_compiler.layers.session import LayerSource, load_state
from context_compiler.messages.history import History, Reader
from context_compiler.messages.items import Kind
from context_compiler.messages.turns import pair
from context_compiler.middleware.config import RECALL, Many, Wishes, how_many, share
from context_compiler.record.store import Store, open_store
from context_compiler.record.values import Compile, Drop, Entry, Record, with_null_reasons
from context_compiler.settings import Settings, check_amount
from context_compiler.template import Template
from context_compiler.template.library import TemplateLibrary
from context_compiler.tokens import Count, TokenCounter, as_counter


async def compile_view(
    messages: Sequence[ModelMessage],
    template: str | Template = "extractive",
    budget: int | float = 2_000,
    *,
    fidelity: Fidelity | str | None = None,
    model: Model | str | None = "none",
    store: str | Path | Store | None = None,
    vault: str | Path | None = None,
    system: str | Path | None = "system",
    session: str | None = None,
    recent_turns: Many | None = None,
    recall: float = RECALL,
    counter: TokenCounter | Count | None = None,
    strict: bool = False,
    timeout: float = 60.0,
    layers: LayerSource | None = None,
    role: str | None = None,
) -> View:
    """Compile a history into one view within a budget, outside any run.

    Args:
        messages: The raw history; never changed. A view ends with its last request.
        template: A name, a path inside the roots, or a `Template`.
        budget: Tokens of the view's messages; a float is a share of 32,000.
        fidelity: Caps the summary and what is quoted; None is the template's, which caps the summary alone.
        model: Who writes the summary: a model or its name; None and `"none"` are no model at all.
        store: Where to record the view: a path or a `Store`; None records nothing.
        vault: A folder whose `AssistantMD/ContextTemplates/` comes first.
        system: A folder whose `ContextTemplates/` comes second.
        session: The label of the conversation on the record.
        recent_turns: Turns before the last one to keep if they fit; None is the template's.
        recall: 0 quotes earlier turns without regard to what the last request asks; any other share asks it first.
        counter: What counts tokens.
        strict: Raise instead of sending what is over the budget, or within it only because the prompt was cut.
        timeout: Seconds for the model.
        layers: Where the layers of `session` are: `Layers`, or a function from it to its state. They stand before the
            last request's prompt.
        role: Which node is told of them: understand, think, act or reply.

    Raises:
        SettingsError: Only one of `layers` and `role` is given, or they without a `session`.
        LayersError: The role is unknown, or the layers are broken.
        TemplateError: The template is missing or wrong.
        FidelityError: The fidelity is unknown.
        CompileError: The model failed.
        BudgetError: `strict`, and even the least does not fit, or only with the prompt cut.
        StoreError: The view could not be recorded.
    """
    started = perf_counter()
    wishes = Wishes(
        template=template,
        fidelity=None if fidelity is None else Fidelity.parse(fidelity, where="compile_view"),
        recent_turns=how_many("recent_turns", recent_turns),
        recall=share("recall", recall),
    )
    asked = Asked(budget=check_amount(budget, name="budget"))
    library = TemplateLibrary(vault=vault, system=system)
    alias = named(model) if model is not None else "none"
    options = wishes.options(library, Settings.from_environment(), model=alias, family="", window=None)
    reader = Reader(as_counter(counter))
    history = reader.read(_to_last_request(messages))
    sight = Sight(history=history, pairing=pair(history), options=options, reader=reader)
    marks = limits(asked, fixed=sight.carried, fidelity=options.fidelity)
    told = await _told(layers, role, session, library, sight, marks)
    free = replace(marks, budget=marks.budget - told.tokens)
    where = Where(session_id=session or _label(history), turn_index=sight.turn)

    async def answer(given: Order) -> Answer:
        return await ask(given.prompts, model or "none", timeout=timeout)

    sent = reader.read(insert_block(assemble(history, RAW, sight.base, reader), told))
    done: Advanced | None = None
    if sent.tokens > marks.budget:
        done = await advanced(sight, free, where=where, ask=answer, one_shot=True)
        sent = reader.read(insert_block(assemble(history, done.frozen, sight.base, reader), told))
    view = _view(sight, done, sent, marks, told, after=len(messages) - len(history))
    if strict and (lost := _unkept(view, done)):
        raise BudgetError(f"{lost}: give a larger budget")
    record = _record(view, history, done.row if done else None, where, sent, (perf_counter() - started) * 1000)
    return replace(view, record=await _kept(record, history, sent, store))


async def _told(
    layers: LayerSource | None,
    role: str | None,
    session: str | None,
    library: TemplateLibrary,
    sight: Sight,
    marks: Limits,
) -> LayerBlock:
    """What stands of the layers before the prompt."""
    if layers is None and role is None:
        return NO_LAYERS
    if layers is None or role is None or session is None:
        raise SettingsError(f"layers={layers!r}, role={role!r}, session={session!r}: give all three, or no layers")
    node_need(role)
    room = layers_room(marks.room, sight.history.readings[-1].tokens if sight.history.readings else 0)
    state = await load_state(layers, session)
    return layer_block(role, state, node_template(role, library), room=room, counter=sight.counter)


def _to_last_request(messages: Sequence[ModelMessage]) -> Sequence[ModelMessage]:
    """Up to the last request: what follows it is an answer that has been given already."""
    last = max((index for index, message in enumerate(messages) if isinstance(message, ModelRequest)), default=-1)
    return messages[: last + 1]


def _label(history: History) -> str:
    """A name for a conversation that has none: that of its first message."""
    return f"conversation-{history.ids[0][-12:]}" if history.ids else "empty"


def _view(sight: Sight, done: Advanced | None, sent: History, marks: Limits, told: LayerBlock, *, after: int) -> View:
    """What was sent, and why; `after` messages stood behind the last request."""
    frozen = done.frozen if done else RAW
    drops = [*told.drops, *(done.cut.bench.drops if done else [])]
    if after:
        what = "1 message" if after == 1 else f"{after} messages"
        drops = [*drops, Drop(what=what, reason="after the last request: a view ends with it")]
    kept = why_kept(frozen, sight)
    return View(
        messages=list(sent.messages),
        tokens=sent.tokens,
        budget=marks.budget,
        status="raw" if done is None else "compiled" if sent.tokens <= marks.budget else "floor_over_budget",
        summary=summary_of(frozen),
        ledger=ledger(with_layer_tokens(sections_of(frozen, sent, sight.counter), told), drops, kept),
        drops=tuple(drops),
        kept=kept,
        quoted=(*told.sections, *(done.quoted if done else ())),
    )


def _unkept(view: View, done: Advanced | None) -> str:
    """Why a view is not what a strict caller wants; empty where it is."""
    if view.tokens > view.budget:
        return f"even the least takes {view.tokens} of {view.budget} tokens"
    if done is None:
        return ""
    bench = done.cut.bench
    for index in range(bench.outline.active.start, bench.outline.active.stop):
        reading, shape = bench.history.readings[index], bench.here(index)
        said = max((item.tokens for item in reading.items if item.kind is Kind.USER), default=0)
        if reading.asks and (shape is None or (shape.limit is not None and said > shape.limit)):
            return f"{view.budget} tokens are kept only by cutting the prompt, which takes {reading.tokens}"
    return ""


def _record(view: View, history: History, row: Compile | None, where: Where, sent: History, latency: float) -> Record:
    """What goes on the record of a view outside any run."""
    record = Record(
        session_id=where.session_id,
        vault_name=where.vault_name,
        turn_index=where.turn_index,
        run_id=None,
        request_index=0,
        raw_tip=history.tip,
        view_tip=sent.tip,
        status=view.status,
        error=None,
        budget=view.budget,
        tokens_raw=history.tokens,
        tokens_sent=view.tokens,
        tokens_exact=view.tokens,
        ratio=1.0,
        ledger=view.ledger,
        request_hash=None,
        latency_ms=latency,
        created_at=now(),
        compile=row,
    )
    return with_null_reasons(record)


async def _kept(record: Record, history: History, sent: History, store: str | Path | Store | None) -> Record:
    """The record as the store kept it; what was opened here is closed again."""
    if store is None:
        return record
    opened = open_store(store)
    try:
        return await opened.save(Entry(record=record, raw=history, view=sent, compile=record.compile))
    finally:
        if opened is not store:
            await opened.close()
