"""Values computed from the entities of a session, and kept up to date: a turn costs what it changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from context_compiler.layers.models import EntitySnapshot
from context_compiler.layers.overlay import Overlay
from context_compiler.layers.refs import Answer, Refs, are_current

Row = Mapping[str, Any]
"""Fields of one entity; replaced, never changed."""
PAGE = 64
"""Entities that are stored together."""
Page = tuple[str, str]
"""Name and JSON text of entities that are stored together."""


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
        self._place = Overlay[str, int]()
        self._next = 0
        """Place of the next new entity."""
        self._turns = Overlay[int, Overlay[str, None]]()
        self._newest = 0
        """Newest turn with an entity so far."""
        self._own: set[int] = set()
        """Turns whose refs no copy shares."""
        self._marked: set[str] = set()
        self._snapshots: dict[str, tuple[Row, EntitySnapshot]] = {}
        self.contents: dict[str, ContentText] = {}
        """Content of entities as shown, by ref."""
        self._members: dict[int, list[str]] = {}
        """Refs of each page; a list is replaced, never changed."""
        self._pages: dict[int, Page] = {}
        """Pages that did not change since they were named."""
        for row in rows:
            self.add(row)

    def copy(self) -> EntityIndex:
        """Another one of the same entities."""
        other = EntityIndex()
        other._place, other._next, other._marked = self._place.copy(), self._next, set(self._marked)
        other._turns, other._newest = self._turns.copy(), self._newest
        self._own = set()
        other._snapshots, other._pages = dict(self._snapshots), dict(self._pages)
        other._members, other.contents = dict(self._members), dict(self.contents)
        return other

    def add(self, row: Row, place: int | None = None) -> None:
        """Add an entity, at the given place or the next; one that was known keeps its place."""
        ref = row["ref"]
        known = self._place.get(ref)
        if known is None:
            known = self._place[ref] = self._next if place is None else place
            self._next = max(self._next, known + 1)
            self._members[known // PAGE] = [*self._members.get(known // PAGE, ()), ref]
        self._of_turn(row["turn_last_ref"])[ref] = None
        self._newest = max(self._newest, row["turn_last_ref"])
        if row["status"] == "generated" or row["retention_reason"]:
            self._marked.add(ref)
        self._pages.pop(known // PAGE, None)
        self.derived.clear()

    def remove(self, row: Row) -> None:
        """Remove an entity; its place stays, because a ref is not reused."""
        ref, turn = row["ref"], row["turn_last_ref"]
        refs = self._of_turn(turn)
        refs.pop(ref, None)
        if not refs:
            del self._turns[turn]
        self._marked.discard(ref)
        self._snapshots.pop(ref, None)
        self._pages.pop(self._place[ref] // PAGE, None)
        self.derived.clear()

    def _of_turn(self, turn: int) -> Overlay[str, None]:
        """Refs of a turn, to be changed."""
        refs = self._turns.get(turn)
        if turn not in self._own or refs is None:
            self._own.add(turn)
            refs = self._turns[turn] = Overlay[str, None]() if refs is None else refs.copy()
        return refs

    def since(self, turn: int) -> list[str]:
        """Refs of a turn or later, and those that are marked, in order of registration."""
        turns = range(turn, self._newest + 1) if self._newest - turn < len(self._turns) else list(self._turns)
        found = self._marked.union(*(self._turns.get(last, ()) for last in turns if last >= turn))
        return sorted(found, key=self._place.__getitem__)

    def generated(self, rows: Mapping[str, Row]) -> Iterator[Row]:
        """Fields of the unsaved entities, in order of registration."""
        marked = sorted(self._marked, key=self._place.__getitem__)
        return (row for ref in marked if (row := rows[ref])["status"] == "generated")

    def unmarked(self) -> Iterator[str]:
        """Refs that are saved and kept for no reason, the least recently mentioned first."""
        for turn in sorted(self._turns):
            yield from sorted(self._turns[turn].keys() - self._marked, key=self._place.__getitem__)

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

    def numbers(self) -> list[int]:
        """Numbers of the pages."""
        return list(self._members)

    def members(self, page: int) -> Sequence[str]:
        """Refs that are or were on a page."""
        return self._members.get(page, ())

    def named(self, page: int) -> Page | None:
        """Name and text of a page that did not change since; None for any other."""
        return self._pages.get(page)

    def set_page(self, page: int, stored: Page) -> None:
        """Set the name and text of a page, whose entities are as the text says."""
        self._pages[page] = stored

    def clear_page(self, page: int) -> None:
        """Forget the places on a page, all of whose entities are removed."""
        self._pages.pop(page, None)
        for ref in self._members.pop(page, ()):
            self._place.pop(ref, None)

    def pages(self, write: Callable[[Sequence[str]], Page | None]) -> dict[int, Page]:
        """Every page with an entity; `write` names those that changed, from their refs."""
        for page in [page for page in self._members if page not in self._pages]:
            written = write(self._members[page])
            if written is None:
                self.clear_page(page)
            else:
                self._pages[page] = written
        return self._pages
