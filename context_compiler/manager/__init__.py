"""A manager keeps a long session healthy: grounded in memory, summed up in time, scored, and able to go back.

Names load when they are first used, so that nothing is paid for what is not needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from context_compiler.lazy import public

if TYPE_CHECKING:
    from context_compiler.manager.agents import context_manager, context_manager_with_versioning
    from context_compiler.manager.config import ContextConfig
    from context_compiler.manager.manager import ContextManager
    from context_compiler.manager.memory import MemoryRepository, MemorySystem, Saved, SessionShelf, Snapshot
    from context_compiler.manager.quality import ContextState, HealthScorer, QualityScorer, Scorer
    from context_compiler.manager.results import (
        Commit,
        ContextTurnResult,
        Diff,
        GroundedContext,
        Match,
        Memory,
        RollbackResult,
        Score,
        SummarizationResult,
    )
    from context_compiler.manager.sqlite import SQLiteMemory
    from context_compiler.manager.volatile import VolatileMemory

__all__ = [
    "Commit",
    "ContextConfig",
    "ContextManager",
    "ContextState",
    "ContextTurnResult",
    "Diff",
    "GroundedContext",
    "HealthScorer",
    "Match",
    "Memory",
    "MemoryRepository",
    "MemorySystem",
    "QualityScorer",
    "RollbackResult",
    "SQLiteMemory",
    "Saved",
    "Score",
    "Scorer",
    "SessionShelf",
    "Snapshot",
    "SummarizationResult",
    "VolatileMemory",
    "context_manager",
    "context_manager_with_versioning",
]

_HOMES = {
    "Commit": "manager.results",
    "ContextConfig": "manager.config",
    "ContextManager": "manager.manager",
    "ContextState": "manager.quality",
    "ContextTurnResult": "manager.results",
    "Diff": "manager.results",
    "GroundedContext": "manager.results",
    "HealthScorer": "manager.quality",
    "Match": "manager.results",
    "Memory": "manager.results",
    "MemoryRepository": "manager.memory",
    "MemorySystem": "manager.memory",
    "QualityScorer": "manager.quality",
    "RollbackResult": "manager.results",
    "SQLiteMemory": "manager.sqlite",
    "Saved": "manager.memory",
    "Score": "manager.results",
    "Scorer": "manager.quality",
    "SessionShelf": "manager.memory",
    "Snapshot": "manager.memory",
    "SummarizationResult": "manager.results",
    "VolatileMemory": "manager.volatile",
    "context_manager": "manager.agents",
    "context_manager_with_versioning": "manager.agents",
}

__getattr__, __dir__ = public(__name__, _HOMES)
