"""Index of a session's entities, updated with every change, so that a turn costs only as much as it changes."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from context_compiler.layers.models import EntitySnapshot
from context_compiler.layers.refs import Answer, Refs

Row = Mapping[str, Any]
"""Fields of one entity. A row is replaced, never modified."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentText:
    """Content of an entity as shown to nodes, with the inputs it was rendered from."""

    data: object
    type: str
    answers: Sequence[Answer]
    text: str

    def is_current(self, refs: Refs) -> bool:
        """True if the ids in the content still map to the same refs."""
        return all(lookup(refs, *arguments) == past for lookup, arguments, past in self.answers)


class EntityIndex:
    """Entities by turn of last mention, with cached snapshots and rendered content.

    An entity is *marked* if it is unsaved or retained for a reason: such entities do not age.
    """

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        """Index the given entities, in order of registration."""
        self.derived: dict[Hashable, Any] = {}
        """Cache of values computed from all entities; cleared at every change."""
        self._positions: dict[str, int] = {}
        """Position of each ref in order of registration."""
        self._next = 0
        """Position of the next new entity."""
        self._turns: dict[int, dict[str, None]] = {}
        """Refs by the turn of their last mention."""
        self._newest = 0
        """Newest turn in which an entity was mentioned."""
        self._own_turns: set[int] = set()
        """Turns whose set of refs is not shared with a copy, and may be modified."""
        self._marked: set[str] = set()
        self._snapshots: dict[str, tuple[Row, EntitySnapshot]] = {}
        self.contents: dict[str, ContentText] = {}
        """Rendered content of entities, by ref."""
        for row in rows:
            self.add(row)

    def copy(self) -> EntityIndex:
        """Return an independent index of the same entities."""
        other = EntityIndex()
        other._positions, other._next, other._marked = self._positions.copy(), self._next, set(self._marked)
        other._turns, other._newest = self._turns.copy(), self._newest
        self._own_turns = set()
        other._snapshots, other.contents = dict(self._snapshots), dict(self.contents)
        return other

    def add(self, row: Row) -> None:
        """Add an entity at the next position; a known entity keeps its own."""
        ref = row["ref"]
        if ref not in self._positions:
            self._positions[ref] = self._next
            self._next += 1
        self._writable_turn(row["turn_last_ref"])[ref] = None
        self._newest = max(self._newest, row["turn_last_ref"])
        if row["status"] == "generated" or row["retention_reason"]:
            self._marked.add(ref)
        self.derived.clear()

    def remove(self, row: Row) -> None:
        """Remove an entity that may be added again, at its position."""
        ref, turn = row["ref"], row["turn_last_ref"]
        refs = self._writable_turn(turn)
        refs.pop(ref, None)
        if not refs:
            del self._turns[turn]
        self._marked.discard(ref)
        self._snapshots.pop(ref, None)
        self.derived.clear()

    def drop(self, row: Row) -> None:
        """Remove an entity for good."""
        self.remove(row)
        del self._positions[row["ref"]]

    def _writable_turn(self, turn: int) -> dict[str, None]:
        """Return the refs of a turn for modification; copies them first if another index shares them."""
        refs = self._turns.get(turn)
        if turn not in self._own_turns or refs is None:
            self._own_turns.add(turn)
            refs = self._turns[turn] = {} if refs is None else dict(refs)
        return refs

    def since(self, turn: int) -> list[str]:
        """Return the refs that were mentioned in this turn or later or are marked, in order of registration."""
        turns = range(turn, self._newest + 1) if self._newest - turn < len(self._turns) else list(self._turns)
        refs = self._marked.union(*(self._turns.get(last, ()) for last in turns if last >= turn))
        return sorted(refs, key=self._positions.__getitem__)

    def generated(self, rows: Mapping[str, Row]) -> Iterator[Row]:
        """Iterate over the rows of the unsaved entities, in order of registration."""
        marked = sorted(self._marked, key=self._positions.__getitem__)
        return (row for ref in marked if (row := rows[ref])["status"] == "generated")

    def unmarked(self) -> Iterator[str]:
        """Iterate over the refs that are saved and not retained, the least recently mentioned first."""
        for turn in sorted(self._turns):
            yield from sorted(self._turns[turn].keys() - self._marked, key=self._positions.__getitem__)

    def snapshot(self, row: Row) -> EntitySnapshot:
        """Return the snapshot of an entity; the same object until the entity changes."""
        cached = self._snapshots.get(row["ref"])
        if cached is None or cached[0] is not row:
            cached = self._snapshots[row["ref"]] = row, EntitySnapshot.model_validate(row)
        return cached[1]

    def forget(self, near: Collection[str]) -> None:
        """Evict cached contents of entities that are not `near`, and snapshots unless they are near or marked."""
        self.contents = {ref: content for ref, content in self.contents.items() if ref in near}
        snapshots = self._snapshots.items()
        self._snapshots = {ref: snapshot for ref, snapshot in snapshots if ref in near or ref in self._marked}
