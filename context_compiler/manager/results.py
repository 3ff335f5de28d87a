"""What a manager's calls give back. Tokens are exact, scores lie between 0 and 1."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Something that was remembered, named by its content and by what was remembered before it."""

    id: str
    text: str
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A memory that a query asks for, and how much of the query it answers."""

    memory: Memory
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroundedContext:
    """What memory has to say to a query: `relevance_scores[i]` belongs to `memories[i]`, the best first."""

    memories: tuple[Memory, ...] = ()
    summary: str = ""
    """The beginnings of the first three, joined by `; `."""
    relevance_scores: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextTurnResult:
    """What one turn brought about."""

    grounding_used: tuple[str, ...]
    """The ids of the memories that the turn is grounded in."""
    summarization_triggered: bool
    checkpoint_created: str | None
    quality_score: float
    token_count: int
    """Of everything that `get_context_messages` gives now."""
    rollback_triggered: bool = False
    trouble: tuple[str, ...] = ()
    """What failed on the way, and what was done without; empty when all went well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SummarizationResult:
    """What a summary saved, of what would be sent if nothing were cut."""

    tokens_before: int
    tokens_after: int
    turns_summarized: int
    """0 when there was nothing to summarise."""
    summary: str
    survival: float = 1.0
    """The share of paths, numbers, names and prohibitions that the summary itself holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackResult:
    """Where a session has gone back to."""

    commit_restored: str
    turns_lost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A memory and a session as they stood at one moment; its id is derived from all that it holds."""

    id: str
    parent: str | None
    """The commit that the memory was at before; None for the first."""
    message: str
    author: str
    created_at: datetime
    memories: int
    """How many there were."""
    turns: int
    """How many the session had; 0 where only memory was kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """What was remembered in one commit and not in the other, oldest first."""

    added: tuple[Memory, ...]
    removed: tuple[Memory, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One turn as it was scored."""

    turn: int
    """Its 0-based number."""
    quality: float
    """By the manager's scorer."""
    health: float
    """By `HealthScorer`, whatever the manager's is."""
    tokens: int
    """Of what would be sent if nothing were cut; above `max_tokens` where single turns are."""
    summarized: bool = False
    checkpoint: str | None = None
    rolled_back: bool = False
    trouble: str | None = None
    created_at: datetime
