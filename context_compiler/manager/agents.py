"""A manager for an agent: its model writes the summaries."""

from __future__ import annotations

from typing import Any

from pydantic_ai.agent import AbstractAgent

from context_compiler.manager.config import ContextConfig
from context_compiler.manager.manager import ContextManager
from context_compiler.manager.memory import MemoryRepository, MemorySystem


def context_manager(
    agent: AbstractAgent[Any, Any], memory: MemorySystem, config: ContextConfig | None = None, **more: Any
) -> ContextManager:
    """A manager whose summaries the agent's model writes; `more` goes to `ContextManager`.

    Raises:
        SettingsError: the agent has no model.
    """
    return ContextManager(memory, agent, config, **more)


def context_manager_with_versioning(
    agent: AbstractAgent[Any, Any],
    memory: MemorySystem,
    repo: MemoryRepository,
    config: ContextConfig | None = None,
    **more: Any,
) -> ContextManager:
    """The same, with checkpoints to go back to.

    Raises:
        SettingsError: the agent has no model.
    """
    return ContextManager.with_versioning(memory, repo, agent, config, **more)
