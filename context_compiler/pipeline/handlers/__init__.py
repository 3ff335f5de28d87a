"""What runs a stage, by type: nine handlers, and those that somebody registers."""

from __future__ import annotations

from context_compiler.pipeline.config import RunConfig
from context_compiler.pipeline.handlers.agent import AgentHandler
from context_compiler.pipeline.handlers.conditional import ConditionalHandler
from context_compiler.pipeline.handlers.ends import EndHandler
from context_compiler.pipeline.handlers.fan_in import FanInHandler
from context_compiler.pipeline.handlers.human import HumanHandler
from context_compiler.pipeline.handlers.manager_loop import ManagerLoopHandler
from context_compiler.pipeline.handlers.parallel import ParallelHandler
from context_compiler.pipeline.handlers.tool import ToolHandler
from context_compiler.pipeline.stage import Handles

__all__ = ["handlers_of"]


def handlers_of(config: RunConfig) -> dict[str, Handles]:
    """Every handler of a run, by type: the built-in ones, and over them those that were registered."""
    agent = AgentHandler(config)
    builtin: dict[str, Handles] = {
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
