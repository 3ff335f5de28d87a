"""Entities of a session (`SessionIdRegistry`), and their curation.

Models see refs such as `recipe_1`, never database ids. An entity keeps its ref for the whole session, even when a
generated entity is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from operator import itemgetter
from typing import Any, cast

from context_compiler.errors import LayersError
from context_compiler.layers.models import CurationSummary, EntitySnapshot, Row, Status, as_mapping, list_field
from context_compiler.layers.refs import (
    Answer,
    RecordingRefs,
    Refs,
    as_text,
    encode_json,
    id_text,
    mask_data,
    ref_prefix,
    to_plain_data,
)
from context_compiler.layers.stored import VERSION, mapping_field, stored_counters, stored_rows, stored_turn


@dataclass(frozen=True, slots=True, kw_only=True)
class _ContentText:
    """Content of an entity as shown to nodes, with the inputs it was rendered from."""

    data: object
    type: str
    answers: Sequence[Answer]
    text: str

    def is_current(self, refs: Refs) -> bool:
        """True if the ids in the content still map to the same refs."""
        return all(lookup(refs, *arguments) == past for lookup, arguments, past in self.answers)


class SessionIdRegistry:
    """Entities of one session."""

    def __init__(self) -> None:
        """Start empty, before the first turn."""
        self.current_turn = 0
        self._rows: dict[str, Row] = {}
        self.refs = Refs()
        """Mapping between refs and database ids."""
        self._data: dict[str, Any] = {}
        self._texts: dict[str, _ContentText] = {}
        """Rendered content of entities, by ref."""
        self._demoted: dict[str, None] = {}
        self._unsaved: dict[str, None] = {}
        """Refs of the generated entities that are not saved, in order, so that saving one need not look at all."""
        self._counters: dict[str, int] = {}
        self._gen_counters: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[EntitySnapshot]:
        """Iterate over all entities, in order of registration."""
        return map(EntitySnapshot.model_validate, self._rows.values())

    def __contains__(self, ref: object) -> bool:
        return isinstance(ref, str) and ref in self._rows

    def __getitem__(self, ref: str) -> EntitySnapshot:
        return EntitySnapshot.model_validate(self._rows[ref])

    def find(self, name: str) -> list[EntitySnapshot]:
        """Find entities by name: by exact ref, else by exact label, else by part of the label; labels ignore case."""
        exact = as_text(name).strip()
        wanted = exact.casefold()
        if exact in self or not exact:
            return [self[exact]] if exact else []
        labels = {ref: row["label"].casefold() for ref, row in self._rows.items()}
        same = [ref for ref, label in labels.items() if label.strip() == wanted]
        return [self[ref] for ref in same or [ref for ref, label in labels.items() if wanted in label]]

    def rows_near(self, turn: int) -> list[Row]:
        """Return the rows of entities that are unsaved, retained, or mentioned since a turn, in order; read-only."""
        return [row for row in self._rows.values() if row["turn_last_ref"] >= turn or _is_kept(row)]

    def register_read(self, type: str, id: object, label: str, *, data: object = None) -> str:
        """Register an entity read from the database; return its ref."""
        return self._register(type, id, label, "read", data)

    def register_created(
        self, type: str, id: object, label: str, *, data: object = None, gen_ref: str | None = None
    ) -> str:
        """Register a saved entity; return its ref.

        A generated entity keeps its ref: the one given as `gen_ref`, else the unsaved one of the same type and label.
        """
        saved = gen_ref if gen_ref is not None else self._find_unsaved(type, label)
        if saved is not None and self.ref_of(type, id) is None:
            self._save_generated(saved, type, id)
        return self._register(type, id, label, "created", data)

    def register_updated(self, type: str, id: object, label: str = "", *, data: object = None) -> str:
        """Register a changed entity; return its ref. Without `data`, its content is unknown until it is read again."""
        return self._register(type, id, label, "updated", data)

    def register_deleted(self, type: str, id: object, label: str = "") -> str:
        """Register a deleted entity; return its ref, which can still be mentioned."""
        return self._register(type, id, label, "deleted", None)

    def register_linked(self, type: str, id: object, label: str = "", *, data: object = None) -> str:
        """Register an entity linked to another; return its ref."""
        return self._register(type, id, label, "linked", data)

    def register_generated(self, type: str, label: str, data: object) -> str:
        """Register an entity that was generated and is not saved yet; return its ref."""
        ref = self._new_ref(f"gen_{ref_prefix(type)}")
        self._put(ref, type, label, "generated")
        self._unsaved[ref] = None
        self._data[ref] = to_plain_data(data, f"the content of {ref}")
        return ref

    def set_turn(self, turn: int) -> None:
        """Set the number of the current turn, counted from 1; 0 is before the first turn.

        Raises:
            LayersError: The number is negative or not an integer.
        """
        if isinstance(turn, bool) or not isinstance(turn, int) or turn < 0:  # pyright: ignore[reportUnnecessaryIsInstance] # outside data
            raise LayersError(f"turn {turn!r} is not a turn; count them from 1")
        self.current_turn = turn

    def touch(self, ref: str) -> bool:
        """Mark an entity as mentioned, which makes it active again; False if it is unknown."""
        return self._change(ref, turn_last_ref=self.current_turn)

    def retain(self, ref: str, reason: str) -> bool:
        """Keep an entity in context for a stated reason, however old it becomes; False if it is unknown.

        Raises:
            LayersError: The reason is empty.
        """
        if not isinstance(reason, str) or not reason.strip():  # pyright: ignore[reportUnnecessaryIsInstance] # outside data
            raise LayersError(f"{ref} cannot be retained without a reason; say why it is kept")
        return self._change(ref, retention_reason=reason.strip())

    def demote(self, ref: str) -> bool:
        """Make an entity neither active nor retained until it is mentioned again; False if it is unknown."""
        if not self._change(ref, retention_reason=None):
            return False
        self._demoted[ref] = None
        return True

    def drop(self, ref: str) -> bool:
        """Remove an entity; False if it was unknown. Its ref is not reused."""
        if ref not in self:
            return False
        row = self._rows.pop(ref)
        self._demoted.pop(ref, None)
        self._unsaved.pop(ref, None)
        self._data.pop(ref, None)
        self.refs.drop(row["type"], ref)
        return True

    def clear(self) -> None:
        """Remove all entities. The counters continue, so that no ref is ever used twice."""
        self.refs = Refs()
        self._rows, self._data, self._texts, self._demoted, self._unsaved = {}, {}, {}, {}, {}

    def is_demoted(self, ref: str) -> bool:
        """True if an entity was demoted and has not been mentioned since."""
        return ref in self and ref in self._demoted

    def resolve(self, ref: str) -> str | None:
        """Return the database id of an entity; None if it is unknown or not saved."""
        return self.refs.ids.get(ref) if ref in self else None

    def ref_of(self, type: str, id: object) -> str | None:
        """Return the ref of a database entity; None if it is unknown."""
        return self.refs.of(type, id)

    def data_of(self, ref: str) -> object:
        """Return the content of an entity as last seen, with ids masked; None if it is not available."""
        if ref not in self or ref not in self._data:
            return None
        return mask_data(self._data[ref], self.refs, self._rows[ref]["type"])

    def has_content(self, ref: str) -> bool:
        """True if the content of an entity is available."""
        return ref in self and self._data.get(ref) is not None

    def content_text(self, ref: str, render: Callable[[object], str]) -> str:
        """Return `render(data_of(ref))`, cached until the content or the ref of an id in it changes."""
        data, type = self._data[ref], self._rows[ref]["type"]
        cached = self._texts.get(ref)
        if cached is None or cached.data is not data or cached.type != type or not cached.is_current(self.refs):
            refs = RecordingRefs(self.refs)
            text = render(mask_data(data, refs, type))
            cached = self._texts[ref] = _ContentText(data=data, type=type, answers=refs.answers, text=text)
        return cached.text

    def replace_uuids(self, text: str) -> str:
        """Return the text with the UUID of every known entity replaced by its ref."""
        return self.refs.replace_uuids(text)

    def to_dict(self) -> dict[str, Any]:
        """Return the whole registry as a JSON-compatible mapping."""
        return {
            "version": VERSION,
            "current_turn": self.current_turn,
            "entities": [dict(row) for row in self._rows.values()],
            "ids": dict(self.refs.ids),
            "data": dict(self._data),
            "demoted": sorted(self._demoted),
            "counters": dict(self._counters),
            "gen_counters": dict(self._gen_counters),
        }

    def copy(self) -> SessionIdRegistry:
        """Return an independent copy. Contents of entities are shared, because they are replaced, never modified."""
        other = SessionIdRegistry()
        other.current_turn, other._rows, other._data = self.current_turn, self._rows.copy(), dict(self._data)
        other.refs, other._demoted = self.refs.copy(), self._demoted.copy()
        other._texts, other._unsaved = dict(self._texts), self._unsaved.copy()
        other._counters, other._gen_counters = dict(self._counters), dict(self._gen_counters)
        return other

    def trimmed(self, turn: int, near: Collection[str], most: int) -> SessionIdRegistry:
        """Return a copy to store after a turn.

        Args:
            turn: Number of the turn.
            near: Refs of the entities whose content is kept.
            most: Maximum number of entities. Above it, the least recently mentioned ones are removed, except those
                that are near, unsaved or retained.
        """
        kept = self.copy()
        kept.current_turn = turn
        kept._data = {ref: data for ref, data in self._data.items() if ref in near}
        kept._texts = {ref: text for ref, text in self._texts.items() if ref in near}
        surplus = len(self._rows) - most
        if surplus > 0:
            oldest = sorted(self._rows.values(), key=itemgetter("turn_last_ref"))
            far = (row["ref"] for row in oldest if row["ref"] not in near and not _is_kept(row))
            for ref in islice(far, surplus):
                kept.drop(ref)
        return kept

    def to_json(self) -> str:
        """Serialize `to_dict` to JSON.

        Raises:
            LayersError: The content of an entity contains itself.
        """
        try:
            return encode_json(self.to_dict())
        except (ValueError, RecursionError) as error:
            raise LayersError(f"the registry cannot be stored as JSON: {error}") from None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any] | None) -> SessionIdRegistry:
        """Parse the form of `to_dict`; missing keys are empty.

        Raises:
            LayersError: A value is wrong; the message names it.
        """
        registry = cls()
        if data is None:
            return registry
        registry.current_turn = stored_turn(data)
        rows = registry._rows = stored_rows(data)
        ids = {ref: str(id) for ref, id in mapping_field(data, "ids").items() if id is not None and ref in rows}
        registry._data = {ref: value for ref, value in mapping_field(data, "data").items() if ref in rows}
        registry._demoted = dict.fromkeys({str(ref) for ref in list_field(data, "demoted")}.intersection(rows))
        registry._unsaved = {ref: None for ref, row in rows.items() if row["status"] == "generated"}
        registry._counters = stored_counters(data, "counters")
        registry._gen_counters = stored_counters(data, "gen_counters")
        registry.refs = Refs(ids, {ref: row["type"] for ref, row in rows.items()})
        return registry

    def _register(self, type: str, id: object, label: str, status: Status, data: object) -> str:
        name = id_text(id)
        ref = self.refs.of(type, name)
        if ref is None:
            ref = self._new_ref(ref_prefix(type))
            self.refs.add(type, name, ref)
        self._put(ref, type, label, status)
        if data is not None:
            self._data[ref] = to_plain_data(data, f"the content of {ref}")
        elif status in ("updated", "deleted"):  # what is stored is how it was before
            self._data.pop(ref, None)
        return ref

    def _put(self, ref: str, type: str, label: str, status: Status) -> None:
        old = self._rows.get(ref)
        self._demoted.pop(ref, None)
        self._unsaved.pop(ref, None)
        row: Row = {
            "ref": ref,
            "type": type,
            "label": as_text(label) or (old["label"] if old else ref),
            "status": status,
            "turn_created": old["turn_created"] if old else self.current_turn,
            "turn_last_ref": self.current_turn,
            "retention_reason": old["retention_reason"] if old else None,
        }
        self._rows[ref] = row

    def _change(self, ref: str, **facts: object) -> bool:
        if ref not in self:
            return False
        self._demoted.pop(ref, None)
        self._rows[ref] = {**self._rows[ref], **facts}
        return True

    def _new_ref(self, prefix: str) -> str:
        counters = self._gen_counters if prefix.startswith("gen_") else self._counters
        counters[prefix] = counters.get(prefix, 0) + 1
        return f"{prefix}_{counters[prefix]}"

    def _find_unsaved(self, type: str, label: str) -> str | None:
        wanted = ref_prefix(type), as_text(label).strip().casefold()
        for row in map(self._rows.__getitem__, self._unsaved):
            if (ref_prefix(row["type"]), row["label"].strip().casefold()) == wanted:
                return row["ref"]
        return None

    def _save_generated(self, ref: str, type: str, id: object) -> None:
        if ref not in self or self._rows[ref]["status"] != "generated":
            raise LayersError(f"{ref} is not an unsaved entity; leave gen_ref out, or give the ref that was generated")
        self.refs.add(type, id_text(id), ref)


def _is_kept(row: Row) -> bool:
    """True if an entity is unsaved, or retained for a reason: such entities do not age."""
    return row["status"] == "generated" or bool(row["retention_reason"])


class StoredEntities(Mapping[str, Any]):
    """Lazy `to_dict` of a registry: a mapping that is built when it is first read."""

    def __init__(self, registry: SessionIdRegistry) -> None:
        self._registry = registry

    def __getitem__(self, key: str) -> Any:
        return self._all[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @cached_property
    def _all(self) -> dict[str, Any]:
        return self._registry.to_dict()


def registry_of(value: SessionIdRegistry | Mapping[str, Any] | None) -> SessionIdRegistry:
    """Return a registry unchanged, or parse its dumped form; None becomes an empty registry.

    Raises:
        LayersError: The value is neither, or a value in it is wrong.
    """
    return value if isinstance(value, SessionIdRegistry) else SessionIdRegistry.from_dict(value)


UNKNOWN_REF = "no such entity"
NO_REASON = "no reason was given"


@dataclass(frozen=True, slots=True, kw_only=True)
class CurationResult:
    """Curation that was applied, and the refs that were ignored."""

    summary: CurationSummary
    ignored: Mapping[str, str]
    """Reason for each ref that was ignored."""


def curate(
    registry: SessionIdRegistry,
    *,
    retained: Iterable[str] = (),
    demoted: Iterable[str] = (),
    reasons: Mapping[str, str] | None = None,
) -> CurationResult:
    """Retain and demote entities in a registry; a ref in both lists is demoted.

    Args:
        registry: Changed in place.
        retained: Refs to keep although they were not mentioned recently; each needs a reason.
        demoted: Refs to demote.
        reasons: Reason by ref.

    Raises:
        LayersError: The refs are not a list, or the reasons not a mapping.
    """
    why = {str(ref): as_text(reason) for ref, reason in as_mapping(reasons, "reasons").items()}
    ignored: dict[str, str] = {}
    gone = dict.fromkeys(_check_refs("demoted", demoted))
    kept = [ref for ref in dict.fromkeys(_check_refs("retained", retained)) if ref not in gone]
    for ref in (*kept, *gone):
        if ref not in registry:
            ignored[ref] = UNKNOWN_REF
        elif ref not in gone and not why.get(ref, "").strip():
            ignored[ref] = NO_REASON
        elif ref in gone:
            registry.demote(ref)
        else:
            registry.retain(ref, why[ref])
    done = [ref for ref in (*kept, *gone) if ref not in ignored]
    summary = CurationSummary(
        retained=[ref for ref in done if ref not in gone],
        demoted=[ref for ref in done if ref in gone],
        reasons={ref: why[ref] for ref in done if why.get(ref, "").strip()},
    )
    return CurationResult(summary=summary, ignored=ignored)


def merge_curations(before: CurationSummary, after: CurationSummary) -> CurationSummary:
    """Merge two curations of one turn; for a ref in both, the later one wins."""
    again = {*after.retained, *after.demoted}
    return CurationSummary(
        retained=[*(ref for ref in before.retained if ref not in again), *after.retained],
        demoted=[*(ref for ref in before.demoted if ref not in again), *after.demoted],
        reasons={ref: why for ref, why in before.reasons.items() if ref not in again} | after.reasons,
    )


def _check_refs(name: str, refs: object) -> list[str]:
    if refs is None or isinstance(refs, str | bytes) or not isinstance(refs, Iterable):
        raise LayersError(f"{name} is a {type(refs).__name__}; give a list of refs")
    return [str(ref) for ref in cast("Iterable[object]", refs)]
