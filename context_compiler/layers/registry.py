"""Entities of a session: `SessionIdRegistry`, its stored form, and curation.

Models see refs such as `recipe_1`, never database ids. A ref belongs to its entity for the whole session, also after a
generated entity is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from typing import Any, cast, get_args

from pydantic import ValidationError

from context_compiler.errors import LayersError
from context_compiler.layers.index import ContentText, EntityIndex, Row
from context_compiler.layers.models import CurationSummary, EntitySnapshot, Status, as_mapping, list_field
from context_compiler.layers.refs import (
    RecordingRefs,
    Refs,
    as_text,
    id_text,
    mask_data,
    ref_prefix,
    splice_json,
    to_plain_data,
)

VERSION = 1


class SessionIdRegistry:
    """Entities of one session."""

    def __init__(self) -> None:
        """Start empty, before the first turn."""
        self.current_turn = 0
        self._keep: dict[str, Row] = {}
        self.refs = Refs()
        """Mapping between refs and database ids."""
        self._data: dict[str, Any] = {}
        self._demoted: set[str] = set()
        self._counters: dict[str, int] = {}
        self._gen_counters: dict[str, int] = {}
        self._index: EntityIndex | None = None

    def __len__(self) -> int:
        return len(self._keep)

    def __iter__(self) -> Iterator[EntitySnapshot]:
        """Every entity, in order of registration."""
        return map(EntitySnapshot.model_validate, self._keep.values())

    def __contains__(self, ref: object) -> bool:
        return isinstance(ref, str) and ref in self._keep

    def __getitem__(self, ref: str) -> EntitySnapshot:
        return EntitySnapshot.model_validate(self._keep[ref])

    def find(self, name: str) -> list[EntitySnapshot]:
        """Entities by name: the one with this ref, else those with this label, else those whose label contains it."""
        given = as_text(name).strip()
        wanted = given.casefold()
        if given in self or not given:
            return [self[given]] if given else []
        labels = {ref: row["label"].casefold() for ref, row in self._keep.items()}
        same = [ref for ref, label in labels.items() if label.strip() == wanted]
        return [self[ref] for ref in same or [ref for ref, label in labels.items() if wanted in label]]

    def rows_near(self, turn: int) -> list[Row]:
        """Fields of the entities that are unsaved, kept for a reason, or mentioned since a turn, in order; read-only.

        The others, of ten thousand nearly all, are not looked at.
        """
        return [self._keep[ref] for ref in self.index.since(turn)]

    @property
    def index(self) -> EntityIndex:
        """Values computed from the entities."""
        if self._index is None:
            self._index = EntityIndex(self._keep.values())
        return self._index

    def register_read(self, type: str, id: object, label: str, *, data: object = None) -> str:
        """Register an entity read from the database; return its ref."""
        return self._register(type, id, label, "read", data)

    def register_created(
        self, type: str, id: object, label: str, *, data: object = None, gen_ref: str | None = None
    ) -> str:
        """Register a saved entity; return its ref.

        A generated entity keeps its ref: the one given as `gen_ref`, else the unsaved one of the same type and label.
        """
        saved = gen_ref if gen_ref is not None else self._unsaved(type, label)
        if saved is not None and self.ref_of(type, id) is None:
            self._save(saved, type, id)
        return self._register(type, id, label, "created", data)

    def register_updated(self, type: str, id: object, label: str = "", *, data: object = None) -> str:
        """Register a changed entity; return its ref."""
        return self._register(type, id, label, "updated", data)

    def register_deleted(self, type: str, id: object, label: str = "") -> str:
        """Register a deleted entity; return its ref, which stays valid for mentions."""
        ref = self._register(type, id, label, "deleted", None)
        self._data.pop(ref, None)
        return ref

    def register_linked(self, type: str, id: object, label: str = "", *, data: object = None) -> str:
        """Register an entity linked to another; return its ref."""
        return self._register(type, id, label, "linked", data)

    def register_generated(self, type: str, label: str, data: object) -> str:
        """Register an entity made up and not saved; return its ref."""
        ref = self._new_ref(f"gen_{ref_prefix(type)}")
        self._put(ref, type, label, "generated")
        self._data[ref] = to_plain_data(data, f"the content of {ref}")
        return ref

    def set_turn(self, turn: int) -> None:
        """Begin a turn; turns are counted from 1.

        Raises:
            LayersError: It is not a number from 0.
        """
        if isinstance(turn, bool) or not isinstance(turn, int) or turn < 0:  # pyright: ignore[reportUnnecessaryIsInstance] # outside data
            raise LayersError(f"turn {turn!r} is no turn; count them from 1")
        self.current_turn = turn

    def touch(self, ref: str) -> bool:
        """Mark an entity as mentioned, which makes it active again; return False if it is unknown."""
        return self._change(ref, turn_last_ref=self.current_turn)

    def retain(self, ref: str, reason: str) -> bool:
        """Keep an entity for a reason although it ages; return False if it is unknown.

        Raises:
            LayersError: The reason is empty.
        """
        if not isinstance(reason, str) or not reason.strip():  # pyright: ignore[reportUnnecessaryIsInstance] # outside data
            raise LayersError(f"{ref} cannot be retained without a reason; say why it is kept")
        return self._change(ref, retention_reason=reason.strip())

    def demote(self, ref: str) -> bool:
        """Make an entity neither active nor retained until it is mentioned again; return False if it is unknown."""
        if not self._change(ref, retention_reason=None):
            return False
        self._demoted.add(ref)
        self.index.derived.clear()
        return True

    def drop(self, ref: str) -> bool:
        """Forget an entity; return False if it was unknown. Its ref is not reused."""
        if ref not in self:
            return False
        row = self._keep.pop(ref)
        if self._index is not None:
            self._index.remove(row)
        self._demoted.discard(ref)
        self._data.pop(ref, None)
        self.refs.drop(row["type"], ref)
        return True

    def clear(self) -> None:
        """Forget every entity; counters continue, so that no ref ever has two meanings."""
        self.refs, self._index = Refs(), None
        for kept in (self._keep, self._data, self._demoted):
            kept.clear()

    def is_demoted(self, ref: str) -> bool:
        """True if an entity was demoted and not mentioned since."""
        return ref in self and ref in self._demoted

    def resolve(self, ref: str) -> str | None:
        """Database id of an entity; None if it is unknown or not saved."""
        return self.refs.ids.get(ref) if ref in self else None

    def ref_of(self, type: str, id: object) -> str | None:
        """Ref of an entity of the database."""
        return self.refs.of(type, id)

    def data_of(self, ref: str) -> object:
        """Content of an entity as last seen, without ids; None if it is not available."""
        return (
            mask_data(self._data[ref], self.refs, self._keep[ref]["type"])
            if ref in self and ref in self._data
            else None
        )

    def has_content(self, ref: str) -> bool:
        """True if `data_of` has the content of an entity."""
        return ref in self and self._data.get(ref) is not None

    def content_text(self, ref: str, render: Callable[[object], str]) -> str:
        """Text that `render` makes of `data_of`; made again where the content or an id in it has changed."""
        data, type = self._data[ref], self._keep[ref]["type"]
        known = self.index.contents.get(ref)
        if known is None or known.data is not data or known.type != type or not known.is_current(self.refs):
            refs = RecordingRefs(self.refs)
            text = render(mask_data(data, refs, type))
            known = self.index.contents[ref] = ContentText(data=data, type=type, answers=refs.answers, text=text)
        return known.text

    def translated(self, text: str) -> str:
        """Text with the UUID of every known entity replaced by its ref."""
        return self.refs.translated(text)

    def to_dict(self) -> dict[str, Any]:
        """Everything as a mapping, ready for JSON."""
        return self._dump([dict(row) for row in self._keep.values()])

    def copy(self) -> SessionIdRegistry:
        """Another registry with the same content; content is shared, because it is replaced and never changed."""
        other = SessionIdRegistry()
        other.current_turn, other._keep, other._data = self.current_turn, dict(self._keep), dict(self._data)
        other.refs, other._demoted = self.refs.copy(), set(self._demoted)
        other._counters, other._gen_counters = dict(self._counters), dict(self._gen_counters)
        other._index = None if self._index is None else self._index.copy()
        return other

    def shortened(self, turn: int, near: Collection[str], most: int) -> SessionIdRegistry:
        """The registry as it is kept after a turn.

        Without the content of entities that are not `near`, and without the least recently mentioned of more than
        `most`, unless they are near or kept for a reason.
        """
        kept = self.copy()
        kept.current_turn = turn
        kept._data = {ref: data for ref, data in self._data.items() if ref in near}
        surplus = len(self._keep) - most
        if surplus > 0:
            far = (ref for ref in kept.index.unmarked() if ref not in near)
            for ref in list(islice(far, surplus)):
                kept.drop(ref)
        kept.index.forget(near)
        return kept

    def dump(self) -> dict[str, Any]:
        """Everything as `to_dict` gives it, with rows that are shared: read-only."""
        return self._dump(list(self._keep.values()))

    def to_json(self) -> str:
        """JSON text of `dump`.

        Raises:
            LayersError: The content of an entity contains itself.
        """
        try:
            return splice_json(self._dump(()), "entities", self.index.to_json(self._keep))
        except (ValueError, RecursionError) as error:
            raise LayersError(f"the registry cannot be kept as JSON: {error}") from None

    def _dump(self, rows: Sequence[Row]) -> dict[str, Any]:
        return {
            "version": VERSION,
            "current_turn": self.current_turn,
            "entities": rows,
            "ids": dict(self.refs.ids),
            "data": dict(self._data),
            "demoted": sorted(self._demoted),
            "counters": dict(self._counters),
            "gen_counters": dict(self._gen_counters),
        }

    @classmethod
    def from_dict(cls, given: Mapping[str, Any] | None) -> SessionIdRegistry:
        """Registry from `to_dict`, or from the older form with one mapping per fact; missing keys are empty.

        Raises:
            LayersError: A value is wrong; the message says which.
        """
        registry = cls()
        if given is not None:
            registry._take(parse_registry(given))
        return registry

    def _take(self, found: RegistryData) -> None:
        self.current_turn = found.current_turn
        self._keep, self._data, self._index = found.entities, found.data, None
        self.refs = Refs(found.ids, {ref: row["type"] for ref, row in found.entities.items()})
        self._demoted, self._counters, self._gen_counters = found.demoted, found.counters, found.gen_counters

    def _register(self, type: str, id: object, label: str, status: Status, data: object) -> str:
        name = id_text(id)
        ref = self.refs.of(type, name)
        if ref is None:
            ref = self._new_ref(ref_prefix(type))
            self.refs.add(type, name, ref)
        self._put(ref, type, label, status)
        if data is not None:
            self._data[ref] = to_plain_data(data, f"the content of {ref}")
        return ref

    def _put(self, ref: str, type: str, label: str, status: Status) -> None:
        old = self._keep.get(ref)
        self._demoted.discard(ref)
        row: Row = {
            "ref": ref,
            "type": type,
            "label": as_text(label) or (old["label"] if old else ref),
            "status": status,
            "turn_created": old["turn_created"] if old else self.current_turn,
            "turn_last_ref": self.current_turn,
            "retention_reason": old["retention_reason"] if old else None,
        }
        self._replace(ref, row)

    def _replace(self, ref: str, row: Row) -> None:
        if self._index is not None:
            if ref in self._keep:
                self._index.remove(self._keep[ref])
            self._index.add(row)
        self._keep[ref] = row

    def _change(self, ref: str, **facts: object) -> bool:
        if ref not in self:
            return False
        self._demoted.discard(ref)
        self._replace(ref, {**self._keep[ref], **facts})
        return True

    def _new_ref(self, prefix: str) -> str:
        counters = self._gen_counters if prefix.startswith("gen_") else self._counters
        counters[prefix] = counters.get(prefix, 0) + 1
        return f"{prefix}_{counters[prefix]}"

    def _unsaved(self, type: str, label: str) -> str | None:
        wanted = ref_prefix(type), as_text(label).strip().casefold()
        for row in self._keep.values():
            if row["status"] == "generated" and (ref_prefix(row["type"]), row["label"].strip().casefold()) == wanted:
                return row["ref"]
        return None

    def _save(self, ref: str, type: str, id: object) -> None:
        if ref not in self or self._keep[ref]["status"] != "generated":
            raise LayersError(f"{ref} is no unsaved entity; leave gen_ref out, or give the ref that was generated")
        self.refs.add(type, id_text(id), ref)


def registry_of(given: SessionIdRegistry | Mapping[str, Any] | None) -> SessionIdRegistry:
    """Return a registry as it is, or read what its `to_dict` gave; raises LayersError if it is neither."""
    return given if isinstance(given, SessionIdRegistry) else SessionIdRegistry.from_dict(given)


STATUSES: tuple[str, ...] = get_args(Status)
ROW_FIELDS = ("ref", "type", "label", "status", "turn_created", "turn_last_ref", "retention_reason")
VALUE_TYPES = {(str, str, str, str, int, int, str), (str, str, str, str, int, int, type(None))}
"""Types of the fields: a fast check, because all entities are read at the beginning of every turn."""
_VALUES = itemgetter(*ROW_FIELDS)
_OLDER_KEYS = {
    "status": "ref_actions",
    "type": "ref_types",
    "label": "ref_labels",
    "turn_created": "ref_turn_created",
    "turn_last_ref": "ref_turn_last_ref",
    "retention_reason": "ref_active_reason",
}
"""Fields of an entity, and the key of each in the older form."""


@dataclass(slots=True, kw_only=True)
class RegistryData:
    """Stored state of a registry."""

    current_turn: int = 0
    entities: dict[str, Row] = field(default_factory=dict[str, Row])
    ids: dict[str, str] = field(default_factory=dict[str, str])
    data: dict[str, Any] = field(default_factory=dict[str, Any])
    demoted: set[str] = field(default_factory=set[str])
    counters: dict[str, int] = field(default_factory=dict[str, int])
    gen_counters: dict[str, int] = field(default_factory=dict[str, int])


def parse_registry(given: Mapping[str, Any]) -> RegistryData:
    """Read the stored form of a registry.

    Raises:
        LayersError: A value is wrong; the message says which.
    """
    if not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] # outside data
        raise LayersError(f"id_registry is a {type(given).__name__}; give a SessionIdRegistry or its to_dict()")
    turn = given.get("current_turn") or 0
    if isinstance(turn, bool) or not isinstance(turn, int) or turn < 0:
        raise LayersError(f"id_registry: current_turn is {turn!r}; give a number from 0")
    rows: Any = given.get("entities")
    entities = _parse_entities(_older_rows(given) if rows is None else rows)
    found = RegistryData(
        current_turn=turn,
        entities=entities,
        ids=_parse_ids(given, entities),
        data={ref: data for ref, data in _mapping(given, "data", "pending_artifacts").items() if ref in entities},
        demoted={str(ref) for ref in list_field(given, "demoted")}.intersection(entities),
        counters=_parse_counters(given, "counters"),
        gen_counters=_parse_counters(given, "gen_counters"),
    )
    if "version" not in given:
        _raise_counters(found)
    return found


def _parse_entities(given: Any) -> dict[str, Row]:
    if not isinstance(given, list | tuple):
        raise LayersError(f"id_registry: entities is a {type(given).__name__}; give a list")
    rows: list[Row] = [
        dict(row) if _is_valid_row(row) else _parse_row(row, at) for at, row in enumerate(cast("list[Any]", given))
    ]
    return {row["ref"]: row for row in rows}


def _is_valid_row(row: Any) -> bool:
    """True if the row has exactly the fields of an entity, with the right types, as a registry writes them."""
    one = cast("dict[str, Any]", row)
    if type(row) is not dict or len(one) != len(ROW_FIELDS):
        return False
    try:
        values = _VALUES(one)
    except KeyError:
        return False
    return tuple(map(type, values)) in VALUE_TYPES and bool(values[0]) and values[3] in STATUSES


def _parse_row(row: Any, at: int) -> Row:
    try:
        return EntitySnapshot.model_validate(row).model_dump()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = "".join(f".{step}" for step in first["loc"])
        raise LayersError(f"id_registry: entities[{at}]{place}: {first['msg']}") from None


def _mapping(given: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    name = next((name for name in names if given.get(name) is not None), names[0])
    found: Any = given.get(name) or {}
    if not isinstance(found, Mapping):
        raise LayersError(f"id_registry: {name} is a {type(found).__name__}; give a mapping by ref")
    return cast("Mapping[str, Any]", found)


def _parse_ids(given: Mapping[str, Any], entities: Mapping[str, Row]) -> dict[str, str]:
    """Ids by ref; the older form has a placeholder for unsaved entities."""
    found = _mapping(given, "ids", "ref_to_uuid")
    texts = ((ref, id if type(id) is str else str(id)) for ref, id in found.items() if id is not None)
    return {ref: text for ref, text in texts if ref in entities and text[:11] != "__pending__"}


def _parse_counters(given: Mapping[str, Any], name: str) -> dict[str, int]:
    found = {str(key): count for key, count in _mapping(given, name).items()}
    wrong = next((key for key, count in found.items() if isinstance(count, bool) or not isinstance(count, int)), None)
    if wrong is not None:
        raise LayersError(f"id_registry: {name}.{wrong} is {found[wrong]!r}; give a number from 0")
    own = {key: count for key, count in found.items() if name == "counters" or key.startswith("gen_")}
    return own or {f"gen_{ref_prefix(key)}": count for key, count in found.items()}


def _raise_counters(found: RegistryData) -> None:
    """Raise counters of a foreign form to the highest ref in use, so that no ref is given twice."""
    for ref in found.entities:
        prefix, _, number = ref.rpartition("_")
        if prefix and number.isdecimal():
            counters = found.gen_counters if ref.startswith("gen_") else found.counters
            counters[prefix] = max(counters.get(prefix, 0), int(number))


def _older_rows(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Entities of the older form; an action by the user, such as `created:user`, counts as the action."""
    facts = {name: _mapping(given, key) for name, key in _OLDER_KEYS.items()}
    known = (*_mapping(given, "ref_to_uuid"), *_mapping(given, "pending_artifacts"), *facts["status"])
    refs = dict.fromkeys(map(str, known))
    found: list[dict[str, Any]] = []
    for ref in refs:
        one = {name: known[ref] for name, known in facts.items() if known.get(ref) is not None}
        action = str(one.get("status", "generated" if ref.startswith("gen_") else "read")).partition(":")[0]
        one["status"] = action if action in STATUSES else "read"
        one.setdefault("type", ref.removeprefix("gen_").rpartition("_")[0] or ref)
        found.append({"label": ref, **one, "ref": ref})
    return found


UNKNOWN_REF = "no such entity"
NO_REASON = "no reason was given"


@dataclass(frozen=True, slots=True, kw_only=True)
class CurationResult:
    """Applied curation, and ignored refs."""

    summary: CurationSummary
    ignored: Mapping[str, str]
    """Reason for each ref that was ignored."""


Curated = CurationResult
"""Earlier name of `CurationResult`."""


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
        retained: Refs to keep although they were not mentioned lately; each needs a reason.
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
    """Two curations of one turn as one; for a ref in both, the later one counts."""
    again = {*after.retained, *after.demoted}
    return CurationSummary(
        retained=[*(ref for ref in before.retained if ref not in again), *after.retained],
        demoted=[*(ref for ref in before.demoted if ref not in again), *after.demoted],
        reasons={ref: why for ref, why in before.reasons.items() if ref not in again} | after.reasons,
    )


def _check_refs(name: str, given: object) -> list[str]:
    if given is None or isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise LayersError(f"{name} is a {type(given).__name__}; give a list of refs")
    return [str(ref) for ref in cast("Iterable[object]", given)]
