"""Handlers by type: the built-in ones, and those that the application registers."""

from __future__ import annotations

from dataclasses import replace

from context_compiler.pipeline.config import RunConfig
from context_compiler.pipeline.handlers.agent import AgentHandler
from context_compiler.pipeline.handlers.fan_in import FanInHandler
from context_compiler.pipeline.handlers.human import HumanHandler
from context_compiler.pipeline.handlers.manager_loop import ManagerLoopHandler
from context_compiler.pipeline.handlers.parallel import ParallelHandler
from context_compiler.pipeline.handlers.tool import ToolHandler
from context_compiler.pipeline.stage import HandlerLike, Stage
from context_compiler.pipeline.state import Outcome

__all__ = ["build_handlers"]


def build_handlers(config: RunConfig) -> dict[str, HandlerLike]:
    """Build the handlers of a run, by type; registered handlers replace built-in ones."""
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
    """Does nothing and succeeds, as the start or end of a graph."""

    reads_past = False

    async def execute(self, stage: Stage) -> Outcome:
        """Return a success."""
        return Outcome()


class ConditionalHandler:
    """Repeats the outcome of the previous stage, without its context updates, so that edges can test it."""

    reads_past = False
    retries = False

    async def execute(self, stage: Stage) -> Outcome:
        """Return the outcome of the previous stage, or a success if there is none."""
        previous = stage.previous
        return replace(previous, context_updates={}, tools=()) if previous else Outcome()
