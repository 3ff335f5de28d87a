"""What runs a stage, by type: nine handlers, and those that somebody registers."""

from __future__ import annotations

from dataclasses import replace

from context_compiler.pipeline.config import RunConfig
from context_compiler.pipeline.handlers.agent import AgentHandler
from context_compiler.pipeline.handlers.fan_in import FanInHandler
from context_compiler.pipeline.handlers.human import HumanHandler
from context_compiler.pipeline.handlers.manager_loop import ManagerLoopHandler
from context_compiler.pipeline.handlers.parallel import ParallelHandler
from context_compiler.pipeline.handlers.tool import ToolHandler
from context_compiler.pipeline.outcome import Outcome
from context_compiler.pipeline.stage import HandlerLike, Stage

__all__ = ["build_handlers"]


def build_handlers(config: RunConfig) -> dict[str, HandlerLike]:
    """Every handler of a run, by type: the built-in ones, and over them those that were registered."""
    agent = AgentHandler(config)
    builtin: dict[str, HandlerLike] = {
        "start": EndHandler(),
        "exit": EndHandler(),
        "codergen": agent,
        "agent": agent,
        "conditional": ConditionalHandler(),
        "tool": ToolHandler(),
        "wait.human": HumanHandler(),
        "parallel": ParallelHandler(),
        "parallel.fan_in": FanInHandler(agent),
        "stack.manager_loop": ManagerLoopHandler(agent),
    }
    return {**builtin, **config.handlers}


class EndHandler:
    """Succeeds."""

    reads_past = False

    async def execute(self, stage: Stage) -> Outcome:
        """Nothing."""
        return Outcome()


class ConditionalHandler:
    """Passes the outcome before it on, without what that one left in the context."""

    reads_past = False
    retries = False

    async def execute(self, stage: Stage) -> Outcome:
        """The outcome of the stage before, or a success where there is none."""
        before = stage.previous
        return replace(before, context_updates={}, tools=()) if before else Outcome()
