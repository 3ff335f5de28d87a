"""A recorded request under other settings, for comparison with what was sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from pydantic_ai.messages import ModelMessage

from context_compiler.compiler.policy import DEFAULT_BUDGET
from context_compiler.compiler.view import View
from context_compiler.fidelity import Fidelity
from context_compiler.messages.history import reader_of
from context_compiler.middleware.arguments import RECALL
from context_compiler.middleware.capability import ContextCompiler
from context_compiler.middleware.one_shot import compile_view
from context_compiler.middleware.replay import LiveSession, replay, with_answer
from context_compiler.record.store import MemoryStore, Store
from context_compiler.record.values import SETTINGS, Entry, Record, fixed_tokens, message_tokens, template_name
from context_compiler.settings import Amount, amount_tokens
from context_compiler.template import Template
from context_compiler.tokens import as_counter

BUDGET = 2_000
"""Budget in tokens if neither the record nor the caller gives one."""

NEWEST = 100
"""Requests of a conversation, the newest, that an agent sends again so that its view grows and is cut as it was."""


def recorded_settings(record: Record) -> dict[str, Any]:
    """`recall` and `trigger` of a recorded request."""
    settings = record.ledger.get(SETTINGS)
    values = cast("dict[str, Any]", settings) if isinstance(settings, dict) else {}
    return {"recall": values.get("recall", RECALL), "trigger": values.get("trigger")}


def differs(record: Record, **given: object) -> bool:
    """True if a setting that is given, and not None, differs from that of a recorded request."""
    made = record.compile
    was = {"template": template_name(record), "fidelity": made and made.fidelity, "budget": record.budget}
    was |= recorded_settings(record)
    return any(value is not None and value != was[name] for name, value in given.items())


def sent_view(messages: Sequence[ModelMessage], record: Record) -> View:
    """The view of a recorded request as it was sent."""
    return View(
        messages=list(messages),
        tokens=message_tokens(record, raw=False),
        budget=record.budget or 0,
        status=record.status.partition(";")[0],
        summary=(record.compile and record.compile.summary) or "",
        ledger=record.ledger,
        record=replace(record, id=None),
    )


def whole_tokens(view: View, record: Record) -> int:
    """Tokens of a request with another view, as its model counts them."""
    return round((view.tokens + fixed_tokens(record)) * record.ratio)


async def compile_again(
    raw: Sequence[ModelMessage],
    record: Record,
    template: Template,
    *,
    budget: Amount | None = None,
    fidelity: Fidelity | None = None,
    recall: Amount | None = None,
    trigger: Amount | None = None,
    model: str = "none",
    session: str | None = None,
    store: Store | None = None,
) -> View:
    """Compile the raw history of a recorded request again. Settings that are None are as they were.

    A request of an agent gets the view of an agent, which has sent the `NEWEST` requests before it under these settings
    too: cut to the thresholds, with recall blocks.

    Args:
        raw: The history.
        record: The request.
        template: The template.
        budget: Budget of the whole request.
        fidelity: Limits the summary and the quotes; None is the template's.
        recall: Given, the view is that of an agent in any case.
        trigger: The same.
        model: Model that writes the summary, of this request alone; `none` asks no model.
        session: Name under which the view is recorded.
        store: Record of the view; None records nothing.
    """
    fixed, whole = fixed_tokens(record), amount_tokens(budget or record.budget or BUDGET, of=DEFAULT_BUDGET) or BUDGET
    room = max(1, int(whole / record.ratio) - fixed)
    settings: dict[str, Any] = {"fidelity": fidelity, "model": model, "system": None, **recorded_settings(record)}
    if record.run_id is None and recall is None and trigger is None:
        del settings["trigger"]  # a view of its own has none
        return await compile_view(raw, template, room, store=store, session=session, **settings)
    settings |= {name: value for name, value in (("recall", recall), ("trigger", trigger)) if value is not None}
    if settings["trigger"] is not None:
        high = amount_tokens(settings["trigger"], of=whole) or 1
        settings["trigger"] = max(1, int(high / record.ratio) - fixed)
    views, memory, reader = list[View](), MemoryStore(), reader_of(as_counter(None))
    compiler = ContextCompiler(
        template, budget=room, store=memory, record_timeout=None, on_view=views.append, **settings
    )
    await replay(with_answer(raw), LiveSession([compiler]), reader, last=NEWEST if model == "none" else 1)
    made = replace((await memory.views(limit=1))[0], id=None, summary_id=None)
    await memory.close()
    if store is not None and session is not None:
        history, sent = reader.read(raw), reader.read(views[-1].messages)
        tokens = {"tokens_raw": record.tokens_raw, "tokens_sent": whole_tokens(views[-1], record)}
        made = replace(made, session_id=session, raw_tip=history.chain.tip, budget=whole, **tokens)
        entry = Entry(record=made, raw=history.chain, view=sent.view_chain, compile=made.compile)
        made = replace(await store.save(entry), compile=made.compile)
    return replace(views[-1], record=made)
