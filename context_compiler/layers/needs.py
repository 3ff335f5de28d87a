"""Who sees what: one table for the four nodes, from which builders, prompts and views all follow."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from context_compiler.errors import LayersError
from context_compiler.layers.conversation import Depth
from context_compiler.layers.entities import Mode

Node = Literal["understand", "think", "act", "reply"]
Reasoning = Literal["own decisions", "last turn", "current steps", "outcomes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one kind of node is told."""

    entity: Mode
    """curation: all tiers, everything · refs_and_labels: and of retained ones refs only · full: active and generated
    with content · reply: labels of active and generated."""
    do_not_read: bool
    """A line with what is known already and need not be read again."""
    depth: Depth
    """How many turns, and from 5 on older ones in short."""
    engagement: bool
    pending: bool
    reasoning: Reasoning
    curation: bool
    """What Understand kept and let go of in this turn."""
    results: bool
    """What the steps of this turn gave back, whole, with the last note and the archive."""


NEEDS = MappingProxyType[Node, Need](
    {
        "understand": Need(
            entity="curation",
            do_not_read=False,
            depth="full",
            engagement=True,
            pending=True,
            reasoning="own decisions",
            curation=False,
            results=False,
        ),
        "think": Need(
            entity="refs_and_labels",
            do_not_read=True,
            depth=5,
            engagement=True,
            pending=True,
            reasoning="last turn",
            curation=True,
            results=False,
        ),
        "act": Need(
            entity="full",
            do_not_read=False,
            depth=2,
            engagement=False,
            pending=False,
            reasoning="current steps",
            curation=False,
            results=True,
        ),
        "reply": Need(
            entity="reply",
            do_not_read=False,
            depth=2,
            engagement=True,
            pending=True,
            reasoning="outcomes",
            curation=False,
            results=False,
        ),
    }
)


def need_of(node: str) -> Need:
    """What a node is told.

    Raises:
        LayersError: there is no such node; the message lists them.
    """
    found = next((need for name, need in NEEDS.items() if name == node), None)
    if found is None:
        raise LayersError(f"role {node!r} is unknown; use one of {', '.join(NEEDS)}")
    return found
