"""Handlers: the built-in ones by type, and those registered by the application."""

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
    """All handlers of a run by type; registered ones replace built-in ones."""
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
        """Do nothing."""
        return Outcome()


class ConditionalHandler:
    """Passes on the outcome of the stage before it, without its context updates."""

    reads_past = False
    retries = False

    async def execute(self, stage: Stage) -> Outcome:
        """The outcome of the stage before; success if there is none."""
        before = stage.previous
        return replace(before, context_updates={}, tools=()) if before else Outcome()
