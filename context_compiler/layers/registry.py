"""`SessionIdRegistry` is the one source of truth for entities: what exists, under which ref, and since when.

Models see refs such as `recipe_1` and never the ids of a database. A ref stays with its entity for the whole
session; saving a generated entity keeps it too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from context_compiler.errors import LayersError
from context_compiler.layers.deserialize import Loaded, Row, loaded
from context_compiler.layers.formatting import text_in
from context_compiler.layers.models import EntitySnapshot, Status
from context_compiler.layers.refs import Refs, id_text, plain, prefix_of, shown_data

VERSION = 1


class SessionIdRegistry:
    """The entities of one session."""

    def __init__(self) -> None:
        """Start with none, before the first turn."""
        self.current_turn = 0
        self._keep: dict[str, Row] = {}
        self.refs = Refs()
        """Which ref stands for which id."""
        self._data: dict[str, Any] = {}
        self._demoted: set[str] = set()
        self._counters: dict[str, int] = {}
        self._gen_counters: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._keep)

    def __iter__(self) -> Iterator[EntitySnapshot]:
        """Every entity, in the order of registration."""
        return map(EntitySnapshot.model_validate, self._keep.values())

    def __contains__(self, ref: object) -> bool:
        return isinstance(ref, str) and ref in self._keep

    def __getitem__(self, ref: str) -> EntitySnapshot:
        return EntitySnapshot.model_validate(self._keep[ref])

    def rows(self) -> Collection[Row]:
        """The fields of every entity, not to be changed: of ten thousand most are only passed over."""
        return self._keep.values()

    def register_read(self, type: str, id: object, label: str, *, data: object = None) -> str:
        """An entity was read from the database; its ref."""
        return self._register(type, id, label, "read", data)

    def register_created(
        self, type: str, id: object, label: str, *, data: object = None, gen_ref: str | None = None
    ) -> str:
        """An entity was saved; its ref.

        One that was generated before keeps the ref it has: `gen_ref`, or else the unsaved one of that type and label.
        """
        saved = gen_ref if gen_ref is not None else self._unsaved(type, label)
        if saved is not None and self.ref_of(type, id) is None:
            self._save(saved, type, id)
        return self._register(type, id, label, "created", data)

    def register_updated(self, type: str, id: object, label: str = "", *, data: object = None) -> str:
        """An entity was changed; its ref."""
        return self._register(type, id, label, "updated", data)

    def register_deleted(self, type: str, id: object, label: str = "") -> str:
        """An entity was deleted; its ref, under which it can still be spoken of."""
        ref = self._register(type, id, label, "deleted", None)
        self._data.pop(ref, None)
        return ref

    def register_linked(self, type: str, id: object, label: str = "", *, data: object = None) -> str:
        """An entity was linked to another; its ref."""
        return self._register(type, id, label, "linked", data)

    def register_generated(self, type: str, label: str, data: object) -> str:
        """An entity was made up and is not saved; its ref."""
        ref = self._new_ref(f"gen_{prefix_of(type)}")
        self._put(ref, type, label, "generated")
        self._data[ref] = plain(data, f"the content of {ref}")
        return ref

    def set_turn(self, turn: int) -> None:
        """A turn begins; turns are counted from 1.

        Raises:
            LayersError: it is no number from 0.
        """
        if isinstance(turn, bool) or not isinstance(turn, int) or turn < 0:  # pyright: ignore[reportUnnecessaryIsInstance] # outside data
            raise LayersError(f"turn {turn!r} is no turn; count them from 1")
        self.current_turn = turn

    def touch(self, ref: str) -> bool:
        """Somebody spoke of an entity, which makes it active again; whether it is known."""
        return self._change(ref, turn_last_ref=self.current_turn)

    def retain(self, ref: str, reason: str) -> bool:
        """Keep an entity for a reason although it grows old; whether it is known.

        Raises:
            LayersError: there is no reason.
        """
        if not isinstance(reason, str) or not reason.strip():  # pyright: ignore[reportUnnecessaryIsInstance] # outside data
            raise LayersError(f"{ref} cannot be retained without a reason; say why it is kept")
        return self._change(ref, retention_reason=reason.strip())

    def demote(self, ref: str) -> bool:
        """Let an entity leave what is active or retained at once, until somebody speaks of it; whether it is known."""
        if not self._change(ref, retention_reason=None):
            return False
        self._demoted.add(ref)
        return True

    def drop(self, ref: str) -> bool:
        """Forget an entity altogether; whether it was known. Its ref is not given to another."""
        if ref not in self:
            return False
        del self._keep[ref]
        self._demoted.discard(ref)
        self._data.pop(ref, None)
        self.refs.drop(ref)
        return True

    def clear(self) -> None:
        """Forget every entity; counters go on, so that no ref ever means two things."""
        self.refs = Refs()
        for kept in (self._keep, self._data, self._demoted):
            kept.clear()

    def is_demoted(self, ref: str) -> bool:
        """Whether an entity was let go of and not spoken of since."""
        return ref in self and ref in self._demoted

    def resolve(self, ref: str) -> str | None:
        """The id of an entity in the database; None where it is unknown or not saved."""
        return self.refs.ids.get(ref) if ref in self else None

    def ref_of(self, type: str, id: object) -> str | None:
        """The ref of an entity that the database knows."""
        return self.refs.of(type, id)

    def data_of(self, ref: str) -> object:
        """The content of an entity as last seen, without ids; None where it is not at hand."""
        return (
            shown_data(self._data[ref], self.refs, self._keep[ref]["type"])
            if ref in self and ref in self._data
            else None
        )

    def translated(self, text: str) -> str:
        """The text with every known id that is a UUID replaced by its ref."""
        return self.refs.translated(text)

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON as far as the content of entities is."""
        return {
            "version": VERSION,
            "current_turn": self.current_turn,
            "entities": [dict(row) for row in self._keep.values()],
            "ids": dict(self.refs.ids),
            "data": dict(self._data),
            "demoted": sorted(self._demoted),
            "counters": dict(self._counters),
            "gen_counters": dict(self._gen_counters),
        }

    @classmethod
    def from_dict(cls, given: Mapping[str, Any] | None) -> SessionIdRegistry:
        """Back from `to_dict`, or from the older form with one mapping per fact; missing keys are empty.

        Raises:
            LayersError: something in it is wrong; the message says what.
        """
        registry = cls()
        if given is not None:
            registry._take(loaded(given))
        return registry

    def _take(self, found: Loaded) -> None:
        self.current_turn = found.current_turn
        self._keep, self._data = found.entities, found.data
        self.refs = Refs(found.ids, {ref: row["type"] for ref, row in found.entities.items()})
        self._demoted, self._counters, self._gen_counters = found.demoted, found.counters, found.gen_counters

    def _register(self, type: str, id: object, label: str, status: Status, data: object) -> str:
        name = id_text(id)
        ref = self.refs.of(type, name)
        if ref is None:
            ref = self._new_ref(prefix_of(type))
            self.refs.add(type, name, ref)
        self._put(ref, type, label, status)
        if data is not None:
            self._data[ref] = plain(data, f"the content of {ref}")
        return ref

    def _put(self, ref: str, type: str, label: str, status: Status) -> None:
        old = self._keep.get(ref)
        self._demoted.discard(ref)
        self._keep[ref] = {
            "ref": ref,
            "type": type,
            "label": text_in(label) or (old["label"] if old else ref),
            "status": status,
            "turn_created": old["turn_created"] if old else self.current_turn,
            "turn_last_ref": self.current_turn,
            "retention_reason": old["retention_reason"] if old else None,
        }

    def _change(self, ref: str, **facts: object) -> bool:
        if ref not in self:
            return False
        self._demoted.discard(ref)
        self._keep[ref] = {**self._keep[ref], **facts}
        return True

    def _new_ref(self, prefix: str) -> str:
        counters = self._gen_counters if prefix.startswith("gen_") else self._counters
        counters[prefix] = counters.get(prefix, 0) + 1
        return f"{prefix}_{counters[prefix]}"

    def _unsaved(self, type: str, label: str) -> str | None:
        wanted = prefix_of(type), text_in(label).strip().casefold()
        for row in self._keep.values():
            if row["status"] == "generated" and (prefix_of(row["type"]), row["label"].strip().casefold()) == wanted:
                return row["ref"]
        return None

    def _save(self, ref: str, type: str, id: object) -> None:
        if ref not in self or self._keep[ref]["status"] != "generated":
            raise LayersError(f"{ref} is no unsaved entity; leave gen_ref out, or give the ref that was generated")
        self.refs.add(type, id_text(id), ref)


def registry_of(given: SessionIdRegistry | Mapping[str, Any] | None) -> SessionIdRegistry:
    """A registry as it is, or read back from what its `to_dict` gave; LayersError when it is neither."""
    return given if isinstance(given, SessionIdRegistry) else SessionIdRegistry.from_dict(given)
