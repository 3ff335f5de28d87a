"""Who sees what: one table for the four nodes, from which builders, prompts and views all follow."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
    depth: Depth
    """How many turns, and from 5 on older ones in short."""
    reasoning: Reasoning
    engagement: bool = False
    """What the whole is about."""
    pending: bool = False
    """What the user has yet to answer."""
    do_not_read: bool = False
    """A line with what is known already and need not be read again."""
    curation: bool = False
    """What Understand kept and let go of in this turn."""
    results: bool = False
    """What the steps of this turn gave back, whole, with the last note and the archive."""


_UNDERSTAND = Need(entity="curation", depth="full", reasoning="own decisions", engagement=True, pending=True)
_THINK = replace(_UNDERSTAND, entity="refs_and_labels", depth=5, reasoning="last turn", do_not_read=True, curation=True)
_ACT = Need(entity="full", depth=2, reasoning="current steps", results=True)
_REPLY = Need(entity="reply", depth=2, reasoning="outcomes", engagement=True, pending=True)

NEEDS = MappingProxyType[Node, Need]({"understand": _UNDERSTAND, "think": _THINK, "act": _ACT, "reply": _REPLY})


def need_of(node: str) -> Need:
    """What a node is told.

    Raises:
        LayersError: there is no such node; the message lists them.
    """
    found = next((need for name, need in NEEDS.items() if name == node), None)
    if found is None:
        raise LayersError(f"role {node!r} is unknown; use one of {', '.join(NEEDS)}")
    return found
