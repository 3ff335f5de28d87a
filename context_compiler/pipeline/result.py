"""How a run has ended, as whoever ran it is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from context_compiler.pipeline.outcome import Outcome
from context_compiler.pipeline.state import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a run has ended."""

    state: RunState

    @property
    def run_id(self) -> str:
        """The id of the run, which is that of its first attempt."""
        return self.state.lineage.root_run_id

    @property
    def status(self) -> str:
        """Success or fail."""
        return self.state.status

    @property
    def ok(self) -> bool:
        """Whether it ended well."""
        return self.state.status == "success"

    @property
    def failure_reason(self) -> str:
        """Why it failed; empty: it did not."""
        return self.state.failure_reason

    @property
    def completed(self) -> tuple[str, ...]:
        """The stages of the last attempt in the order in which they were completed."""
        return self.state.completed

    @property
    def outcomes(self) -> Mapping[str, Outcome]:
        """The last outcome of each stage."""
        return self.state.outcomes

    @property
    def context(self) -> Mapping[str, Any]:
        """The values that the run ended with."""
        return self.state.context
