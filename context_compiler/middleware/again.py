"""A recorded history compiled again under other settings, for comparison with what was sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from pydantic_ai.messages import ModelMessage

from context_compiler.compiler.view import View
from context_compiler.fidelity import Fidelity
from context_compiler.middleware.arguments import RECALL
from context_compiler.middleware.capability import ContextCompiler
from context_compiler.middleware.one_shot import compile_view
from context_compiler.middleware.replay import LiveSession
from context_compiler.record.store import Store
from context_compiler.record.values import SETTINGS, Record
from context_compiler.settings import Amount
from context_compiler.template import Template


def recorded_settings(record: Record) -> dict[str, Any]:
    """`recall` and `trigger` of a recorded request."""
    settings = record.ledger.get(SETTINGS)
    known = cast("dict[str, Any]", settings) if isinstance(settings, dict) else {}
    return {"recall": known.get("recall", RECALL), "trigger": known.get("trigger")}


async def compile_again(
    raw: Sequence[ModelMessage],
    template: Template,
    budget: Amount,
    *,
    fixed: int = 0,
    fidelity: Fidelity | None = None,
    model: str = "none",
    session: str | None = None,
    store: Store | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> View:
    """Compile the raw history of a recorded request again.

    Args:
        raw: The history.
        template: The template.
        budget: Budget of the whole request.
        fixed: Tokens of the request's instructions and tools; the messages get the rest of the budget.
        fidelity: None is the template's.
        model: Model that writes the summary, or `none`.
        session: Name under which the view is recorded.
        store: Record of the view; None records nothing.
        arguments: `recall` and `trigger`. If any is given, the view is that of an agent that continues with the
            history: cut to the thresholds, with a recall block; it is never recorded.
    """
    room = max(1, budget - fixed) if isinstance(budget, int) else budget
    if not arguments:
        return await compile_view(
            raw, template, room, fidelity=fidelity, model=model, store=store, session=session, system=None
        )
    views: list[View] = []
    settings: dict[str, Any] = {"budget": room, "fidelity": fidelity, "model": model, "store": None, "system": None}
    compiler = ContextCompiler(template, on_view=views.append, **settings, **arguments)
    await LiveSession([compiler]).request(raw)
    view = views[-1]
    return replace(view, record=view.record and replace(view.record, id=None))  # its number is of a record in memory
