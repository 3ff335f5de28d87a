"""Return values of a manager's calls. Tokens are exact, scores are from 0 to 1."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Remembered text; its id is derived from its content and from the previous memory."""

    id: str
    text: str
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Memory relevant to a query, with the fraction of the query that it covers."""

    memory: Memory
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroundedContext:
    """Memories relevant to a query, best first: `relevance_scores[i]` belongs to `memories[i]`."""

    memories: tuple[Memory, ...] = ()
    summary: str = ""
    """Beginnings of the first three memories, joined by `; `."""
    relevance_scores: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextTurnResult:
    """Result of one turn."""

    grounding_used: tuple[str, ...]
    """Ids of the memories in the grounding."""
    summarization_triggered: bool
    checkpoint_created: str | None
    quality_score: float
    token_count: int
    """Tokens of the messages that `get_context_messages` returns now."""
    rollback_triggered: bool = False
    trouble: tuple[str, ...] = ()
    """Failures that did not stop the turn; empty if there were none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SummarizationResult:
    """Result of a summary. Tokens are counted before messages are cut to the limit."""

    tokens_before: int
    tokens_after: int
    turns_summarized: int
    """0 if there was nothing to summarize."""
    summary: str
    survival: float = 1.0
    """Fraction of the paths, numbers, names and prohibitions that the summary itself contains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackResult:
    """Result of a rollback."""

    commit_restored: str
    turns_lost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """State of memory and session at one moment; the id is derived from their content."""

    id: str
    parent: str | None
    """Previous commit of the memory; None for the first."""
    message: str
    author: str
    created_at: datetime
    memories: int
    """Number of memories."""
    turns: int
    """Number of turns of the session; 0 if only memory was committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """Memories added and removed between two commits, oldest first."""

    added: tuple[Memory, ...]
    removed: tuple[Memory, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Score of one turn."""

    turn: int
    """Position of the turn, from 0."""
    quality: float
    """Score from the manager's scorer."""
    health: float
    """Score from `HealthScorer`, whatever the manager's scorer is."""
    tokens: int
    """Tokens of the messages before they are cut to `max_tokens`."""
    summarized: bool = False
    checkpoint: str | None = None
    rolled_back: bool = False
    trouble: str | None = None
    created_at: datetime


SCORED = ("turn", "quality", "health", "tokens", "summarized", "checkpoint", "rolled_back", "trouble")
"""Fields of a score except its time, in storage order."""
