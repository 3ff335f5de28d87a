"""Managed sessions: grounded in memory, summarized when they grow, scored, checkpointed and rolled back."""

from __future__ import annotations

from context_compiler.manager.config import ContextConfig
from context_compiler.manager.manager import ContextManager, context_manager, context_manager_with_versioning
from context_compiler.manager.memory import (
    MemoryRepository,
    MemorySystem,
    Saved,
    SessionShelf,
    Snapshot,
    SQLiteMemory,
    VolatileMemory,
)
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
