"""This package: one view of a history, and the capability of a live agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model

from benchmarks.approaches import Approach
from context_compiler import ContextCompiler, compile_view
from context_compiler.middleware.replay import LiveSession


async def one_shot(messages: list[ModelMessage], budget: int) -> Sequence[ModelMessage]:
    return (await compile_view(messages, "extractive", budget, system=None)).messages


def live(budget: int, **given: Any) -> list[ContextCompiler]:
    return [ContextCompiler(budget=budget, model="none", store=None, system=None, **given)]


def asking(model: Model, budget: int) -> list[ContextCompiler]:
    return [ContextCompiler(budget=budget, model=model, store=None, system=None)]


APPROACHES = (
    Approach(
        name="ours",
        title="context-compiler, one view",
        setup='`compile_view(messages, "extractive", budget)`',
        ours=True,
        view=one_shot,
        dashes=dict.fromkeys(("session", "compiles"), "makes single views and has no session"),
    ),
    Approach(
        name="ours-unseen",
        title="context-compiler, weights that never saw the set",
        setup="the same, its ranking fitted on all other labelled sets",
        ours=True,
        view=one_shot,
        dashes=dict.fromkeys(("session", "compiles"), "makes single views and has no session"),
    ),
    Approach(
        name="ours-live",
        title="context-compiler, live agent",
        setup='`ContextCompiler(budget=budget, model="none")`: compiles above half of the budget, the default',
        ours=True,
        session=lambda budget: LiveSession(live(budget)),
        summarising=asking,
    ),
    Approach(
        name="ours-live-full",
        title="context-compiler, live agent, trigger=1.0",
        setup='`ContextCompiler(budget=budget, model="none", trigger=1.0)`: compiles only when the budget is used up',
        ours=True,
        session=lambda budget: LiveSession(live(budget, trigger=1.0)),
    ),
    Approach(
        name="ours-live-bland",
        title="context-compiler, live agent, bland summaries",
        setup="`ContextCompiler(budget=budget)`, the default, with a model whose summaries say nothing",
        ours=True,
    ),
    Approach(
        name="ours-live-good",
        title="context-compiler, live agent, good summaries",
        setup="`ContextCompiler(budget=budget)`, the default, with a model that answers with recorded summaries",
        ours=True,
    ),
    Approach(
        name="ours-live-economy",
        title="context-compiler, live agent, economy",
        setup='`ContextCompiler(budget=budget, model="none", recall=0.15)`: smaller recall blocks',
        ours=True,
        session=lambda budget: LiveSession(live(budget, recall=0.15)),
    ),
    Approach(
        name="ours-live-parity",
        title="context-compiler, live agent, parity",
        setup='`ContextCompiler(budget=budget, model="none", recall=1.0)`: recall blocks take all free room',
        ours=True,
    ),
    Approach(
        name="ours-live-off",
        title="context-compiler, live agent, recall off",
        setup='`ContextCompiler(budget=budget, model="none", recall=0)`: no recall blocks',
        ours=True,
    ),
)
