"""The whole path on one page: history, turns, cut, order, answer, view.

`advanced` is one advance, for a live agent and a one-shot view alike; `compile_view` is the one-shot view.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic_ai.messages import ModelMessage, ModelRequest
from pydantic_ai.models import Model

from context_compiler.advancing import RAW, Advanced, advanced, carried, repaired, sections_of, why_kept
from context_compiler.agent import Answer, ask, named
from context_compiler.config import Many, Wishes, how_many
from context_compiler.errors import BudgetError
from context_compiler.fidelity import Fidelity
from context_compiler.history import History, Reader
from context_compiler.library import TemplateLibrary
from context_compiler.limits import Asked, Limits, checked, limits
from context_compiler.prompt import Order
from context_compiler.record import Drop, Entry, Record
from context_compiler.recording import NO_IDENTIFIERS, Where, ledger, now
from context_compiler.settings import Settings
from context_compiler.store import Store, open_store
from context_compiler.template import Template
from context_compiler.tokens import Count, TokenCounter, as_counter
from context_compiler.turns import Outline, outline, pair
from context_compiler.view import View, assemble, summary_of


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
    counter: TokenCounter | Count | None = None,
    strict: bool = False,
    timeout: float = 60.0,
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
        counter: What counts tokens.
        strict: Raise instead of sending the least that is possible.
        timeout: Seconds for the model.

    Raises:
        TemplateError: The template is missing or wrong.
        FidelityError: The fidelity is unknown.
        CompileError: The model failed.
        BudgetError: `strict`, and even the least does not fit.
        StoreError: The view could not be recorded.
    """
    price = as_counter(counter)
    reader = Reader(price)
    alias = named(model) if model is not None else "none"
    wishes = Wishes(
        template=template,
        fidelity=None if fidelity is None else Fidelity.parse(fidelity, where="compile_view"),
        recent_turns=how_many("recent_turns", recent_turns),
    )
    options = wishes.options(
        TemplateLibrary(vault=vault, system=system), Settings.from_environment(), model=alias, family="", window=None
    )
    asked_for = Asked(budget=checked(budget, name="budget"))
    history = reader.read(_to_last_request(messages))
    shapes = pair(history)
    turns = outline(history, shapes)
    marks = limits(asked_for, fixed=carried(history), fidelity=options.fidelity)
    where = Where(session_id=session or _label(history), turn_index=max(0, turns.active.index) if turns.turns else 0)

    async def answer(given: Order) -> Answer:
        return await ask(given.prompts, model or "none", timeout=timeout)

    base = repaired(shapes)
    whole = assemble(history, RAW, base, reader)
    done: Advanced | None = None
    if _cost(reader, whole) > marks.budget:
        done = await advanced(
            history,
            turns,
            base,
            options,
            marks,
            counter=price,
            previous=None,
            overhead=0,
            where=where,
            ask=answer,
            one_shot=True,
        )
        whole = assemble(history, done.frozen, base, reader)
    view = _one_shot(history, turns, done, whole, reader, marks, len(messages))
    if strict and view.tokens > marks.budget:
        raise BudgetError(f"even the least takes {view.tokens} of {marks.budget} tokens: give a larger budget")
    return await _recorded(view, history, done, where, reader, store)


def _to_last_request(messages: Sequence[ModelMessage]) -> Sequence[ModelMessage]:
    """Up to the last request: what follows it is an answer that has been given already."""
    last = max((index for index, message in enumerate(messages) if isinstance(message, ModelRequest)), default=-1)
    return messages[: last + 1]


def _label(history: History) -> str:
    """A name for a conversation that has none: that of its first message."""
    return f"conversation-{history.ids[0][-12:]}" if history.ids else "empty"


def _cost(reader: Reader, messages: Sequence[ModelMessage]) -> int:
    return sum(reader.one(message).tokens for message in messages)


def _one_shot(
    history: History,
    turns: Outline,
    done: Advanced | None,
    messages: list[ModelMessage],
    reader: Reader,
    marks: Limits,
    given: int,
) -> View:
    frozen = done.frozen if done else RAW
    drops = [*done.cut.bench.drops] if done else []
    if given > len(history):
        drops.append(
            Drop(what=f"{given - len(history)} messages", reason="after the last request: a view ends with it")
        )
    view = reader.read(messages)
    kept = why_kept(frozen, turns, len(history))
    status = "raw" if done is None else "compiled" if view.tokens <= marks.budget else "floor_over_budget"
    return View(
        messages=messages,
        tokens=view.tokens,
        budget=marks.budget,
        status=status,
        summary=summary_of(frozen),
        ledger=ledger(sections_of(frozen, view, reader.counter), drops, kept),
        drops=tuple(drops),
        kept=kept,
    )


async def _recorded(
    view: View, history: History, done: Advanced | None, where: Where, reader: Reader, store: str | Path | Store | None
) -> View:
    """The view with its record; kept where a store is given."""
    sent = reader.read(view.messages)
    record = Record(
        session_id=where.session_id,
        vault_name=where.vault_name,
        turn_index=where.turn_index,
        run_id=None,
        request_index=0,
        raw_tip=history.tip,
        view_tip=sent.tip,
        status=f"{view.status}; {NO_IDENTIFIERS}; run_id, request_hash: no run",
        error=None,
        budget=view.budget,
        tokens_raw=history.tokens,
        tokens_sent=view.tokens,
        tokens_exact=view.tokens,
        ratio=1.0,
        ledger=view.ledger,
        request_hash=None,
        latency_ms=0.0,
        created_at=now(),
        compile=done.row if done else None,
    )
    if store is not None:
        record = await open_store(store).save(
            Entry(record=record, raw=history, view=sent, compile=done.row if done else None)
        )
    return View(**{name: getattr(view, name) for name in View.__slots__ if name != "record"}, record=record)
