"""Where a run begins and ends nothing is done; whether it may end, the engine has looked at before."""

from __future__ import annotations

from context_compiler.pipeline.outcome import Outcome
from context_compiler.pipeline.stage import Stage


class EndHandler:
    """Succeeds."""

    reads_past = False

    async def execute(self, stage: Stage) -> Outcome:
        """Nothing."""
        return Outcome()
