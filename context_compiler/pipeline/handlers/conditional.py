"""A junction: how the stage before it went is passed on, so that its edges can ask for it."""

from __future__ import annotations

from dataclasses import replace

from context_compiler.pipeline.outcome import Outcome
from context_compiler.pipeline.stage import Stage


class ConditionalHandler:
    """Passes the outcome before it on, without what that one left in the context."""

    reads_past = False
    retries = False

    async def execute(self, stage: Stage) -> Outcome:
        """The outcome of the stage before, or a success where there is none."""
        before = stage.previous
        return replace(before, context_updates={}, tools=()) if before else Outcome()
