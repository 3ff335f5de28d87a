"""Values computed from the entities of a session, and kept up to date: a turn costs what it changes."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from context_compiler.layers.models import EntitySnapshot
from context_compiler.layers.refs import Answer, Refs, are_current, encode_json

Row = Mapping[str, Any]
"""Fields of one entity; replaced, never changed."""
PAGE = 256
"""Entities whose JSON text is kept together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentText:
    """Content of an entity as shown, and what it was made of."""

    data: object
    type: str
    answers: Sequence[Answer]
    text: str

    def is_current(self, refs: Refs) -> bool:
        """True if the ids in the content are still shown by the same refs."""
        return are_current(self.answers, refs)


class EntityIndex:
    """Entities by the turn of their last mention, those unsaved or kept for a reason, and their texts."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        """Start with the entities in order of registration."""
        self.derived: dict[Hashable, Any] = {}
        """Values of all entities as they are now; dropped at every change."""
        self._place: dict[str, int] = {}
        self._turns: dict[int, set[str]] = {}
        self._own: set[int] = set()
        """Turns whose refs no copy shares."""
        self._marked: set[str] = set()
        self._snapshots: dict[str, tuple[Row, EntitySnapshot]] = {}
        self.contents: dict[str, ContentText] = {}
        """Content of entities as shown, by ref."""
        self._members: dict[int, list[str]] = {}
        """Refs of each page; a list is replaced, never changed."""
        self._pages: dict[int, str] = {}
        for row in rows:
            self.add(row)

    def copy(self) -> EntityIndex:
        """Another one of the same entities."""
        other = EntityIndex()
        other._place, other._marked = dict(self._place), set(self._marked)
        other._turns, self._own = dict(self._turns), set()
        other._snapshots, other._pages = dict(self._snapshots), dict(self._pages)
        other._members, other.contents = dict(self._members), dict(self.contents)
        return other

    def add(self, row: Row) -> None:
        """Add an entity; one that was known keeps its place."""
        ref = row["ref"]
        place = self._place.get(ref)
        if place is None:
            place = self._place[ref] = len(self._place)
            self._members[place // PAGE] = [*self._members.get(place // PAGE, ()), ref]
        self._of_turn(row["turn_last_ref"]).add(ref)
        if row["status"] == "generated" or row["retention_reason"]:
            self._marked.add(ref)
        self._pages.pop(place // PAGE, None)
        self.derived.clear()

    def remove(self, row: Row) -> None:
        """Remove an entity; its place stays, because a ref is not reused."""
        ref, turn = row["ref"], row["turn_last_ref"]
        refs = self._of_turn(turn)
        refs.discard(ref)
        if not refs:
            del self._turns[turn]
        self._marked.discard(ref)
        self._snapshots.pop(ref, None)
        self._pages.pop(self._place[ref] // PAGE, None)
        self.derived.clear()

    def _of_turn(self, turn: int) -> set[str]:
        """Refs of a turn, to be changed."""
        if turn not in self._own or turn not in self._turns:
            self._own.add(turn)
            self._turns[turn] = set(self._turns.get(turn, ()))
        return self._turns[turn]

    def since(self, turn: int) -> list[str]:
        """Refs of a turn or later, and those that are marked, in order of registration."""
        found = self._marked.union(*(refs for last, refs in self._turns.items() if last >= turn))
        return sorted(found, key=self._place.__getitem__)

    def unmarked(self) -> Iterator[str]:
        """Refs that are saved and kept for no reason, the least recently mentioned first."""
        for turn in sorted(self._turns):
            yield from sorted(self._turns[turn] - self._marked, key=self._place.__getitem__)

    def snapshot(self, row: Row) -> EntitySnapshot:
        """State of an entity; the same object until the entity changes."""
        known = self._snapshots.get(row["ref"])
        if known is None or known[0] is not row:
            known = self._snapshots[row["ref"]] = row, EntitySnapshot.model_validate(row)
        return known[1]

    def forget(self, near: Collection[str]) -> None:
        """Forget what was computed of entities that are neither near nor marked."""
        self.contents = {ref: one for ref, one in self.contents.items() if ref in near}
        known = self._snapshots.items()
        self._snapshots = {ref: one for ref, one in known if ref in near or ref in self._marked}

    def to_json(self, rows: Mapping[str, Row]) -> str:
        """JSON text of all entities in order, of which only the pages that changed are written."""
        for page, refs in self._members.items():
            if page not in self._pages:
                self._pages[page] = encode_json([rows[ref] for ref in refs if ref in rows])[1:-1]
        return f"[{','.join(filter(None, (self._pages[page] for page in self._members)))}]"
