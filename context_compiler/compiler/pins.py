"""Positions of pinned messages in a recorded history, now or at an earlier time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from context_compiler.ids import chain_id, identity
from context_compiler.record import browse
from context_compiler.record.browse import Node
from context_compiler.record.database import Database
from context_compiler.record.sessions import actions_of
from context_compiler.record.values import mapping_of, standing_pins

NAMED = 5_000
"""Maximum messages of a history in which pins are found by position; in a longer one, equal messages share a pin."""


def pinned_positions(
    db: Database, session: int, chain: Sequence[Node], positions: Sequence[int], before: datetime | None = None
) -> tuple[int, ...]:
    """Those of some positions in a history of a session whose messages are pinned, or were pinned before a time."""
    actions = [action for action in actions_of(db, session) if before is None or action.created_at < before]
    pins = {tip: mapping_of(state).get("name") for tip, state in standing_pins(actions).items()}
    if not pins or not positions:
        return ()
    names = set(pins.values())
    bodies = browse.bodies(db, [chain[position].content for position in positions])
    named = zip(positions, map(identity, bodies), strict=True)
    alike = {position: name for position, name in named if name in names}
    if not alike or len(chain) > NAMED:
        return tuple(alike)
    tips = list[str]()
    for body in browse.bodies(db, [node.content for node in chain]):
        tips.append(chain_id(tips[-1] if tips else None, identity(body)))
    moved = {name for tip, name in pins.items() if tip not in tips}
    return tuple(position for position, name in alike.items() if tips[position] in pins or name in moved)
