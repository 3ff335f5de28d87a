"""This package: one view of a history, and the capability of a live agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage

from benchmarks.approaches import Approach
from context_compiler import ContextCompiler, compile_view
from context_compiler.middleware.replay import LiveSession

LIVE: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "ours-live": ("none", {}, "", ": compiles above half of the budget, the default"),
    "ours-live-full": ("none", {"trigger": 1.0}, ", trigger=1.0", ": compiles only when the budget is used up"),
    "ours-live-bland": ("bland", {}, ", bland summaries", ", the default, with a model whose summaries say nothing"),
    "ours-live-good": (
        *("good", {}, ", good summaries"),
        ", the default, with a model that answers with recorded summaries",
    ),
    "ours-live-economy": ("none", {"recall": 0.15}, ", economy", ": smaller recall blocks"),
    "ours-live-off": ("none", {"recall": 0}, ", recall off", ": no recall blocks"),
}
"""Settings of a live agent: writer of summaries, other arguments of `ContextCompiler`, title and description."""


async def one_shot(messages: list[ModelMessage], budget: int) -> Sequence[ModelMessage]:
    return (await compile_view(messages, "extractive", budget, system=None)).messages


def _one_view(name: str, title: str, setup: str) -> Approach:
    dashes = {"session": "makes single views and has no session"}
    return Approach(name=name, title=f"context-compiler, {title}", setup=setup, ours=True, view=one_shot, dashes=dashes)


def _live(name: str) -> Approach:
    writer, settings, title, setup = LIVE[name]
    shown = ["budget=budget", *(['model="none"'] if writer == "none" else [])]
    shown += [f"{argument}={value}" for argument, value in settings.items()]
    return Approach(
        name=name,
        title=f"context-compiler, live agent{title}",
        setup=f"`ContextCompiler({', '.join(shown)})`{setup}",
        ours=True,
        session=lambda budget: LiveSession(
            [ContextCompiler(budget=budget, model="none", store=None, system=None, **settings)]
        ),
    )


APPROACHES = (
    _one_view("ours", "one view", '`compile_view(messages, "extractive", budget)`'),
    _one_view(
        "ours-unseen", "weights that never saw the set", "the same, its ranking fitted on all other labelled sets"
    ),
    *map(_live, LIVE),
)
