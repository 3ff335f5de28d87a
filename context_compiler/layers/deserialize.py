"""What a registry is read back from: its own form, or the older one with one mapping per fact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, cast, get_args

from pydantic import ValidationError

from context_compiler.errors import LayersError
from context_compiler.layers.conversation import listed
from context_compiler.layers.models import EntitySnapshot, Status
from context_compiler.layers.refs import prefix_of

STATUSES: tuple[str, ...] = get_args(Status)
Row = Mapping[str, Any]
"""The fields of one entity; never changed, only replaced."""
FIELDS = ("ref", "type", "label", "status", "turn_created", "turn_last_ref", "retention_reason")
KINDS = {(str, str, str, str, int, int, str), (str, str, str, str, int, int, type(None))}
"""What the fields are; ten thousand entities are read back whenever a turn begins, so this is looked at at once."""
_VALUES = itemgetter(*FIELDS)
_FACTS = {
    "status": "ref_actions",
    "type": "ref_types",
    "label": "ref_labels",
    "turn_created": "ref_turn_created",
    "turn_last_ref": "ref_turn_last_ref",
    "retention_reason": "ref_active_reason",
}
"""Fields of an entity, and where the older form keeps each."""


@dataclass(slots=True, kw_only=True)
class Loaded:
    """Everything a registry knows."""

    current_turn: int = 0
    entities: dict[str, Row] = field(default_factory=dict[str, Row])
    ids: dict[str, str] = field(default_factory=dict[str, str])
    data: dict[str, Any] = field(default_factory=dict[str, Any])
    demoted: set[str] = field(default_factory=set[str])
    counters: dict[str, int] = field(default_factory=dict[str, int])
    gen_counters: dict[str, int] = field(default_factory=dict[str, int])


def loaded(given: Mapping[str, Any]) -> Loaded:
    """Read a registry.

    Raises:
        LayersError: something in it is wrong; the message says what.
    """
    if not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] # outside data
        raise LayersError(f"id_registry is a {type(given).__name__}; give a SessionIdRegistry or its to_dict()")
    turn = given.get("current_turn") or 0
    if isinstance(turn, bool) or not isinstance(turn, int) or turn < 0:
        raise LayersError(f"id_registry: current_turn is {turn!r}; give a number from 0")
    rows: Any = given.get("entities")
    entities = _entities(_older(given) if rows is None else rows)
    found = Loaded(
        current_turn=turn,
        entities=entities,
        ids=_ids(given, entities),
        data={ref: data for ref, data in _mapping(given, "data", "pending_artifacts").items() if ref in entities},
        demoted={str(ref) for ref in listed(given, "demoted")}.intersection(entities),
        counters=_counted(given, "counters"),
        gen_counters=_counted(given, "gen_counters"),
    )
    if "version" not in given:
        _count_up(found)
    return found


def _entities(given: Any) -> dict[str, Row]:
    if not isinstance(given, list | tuple):
        raise LayersError(f"id_registry: entities is a {type(given).__name__}; give a list")
    rows: list[Row] = [
        dict(row) if _sound(row) else _checked(row, at) for at, row in enumerate(cast("list[Any]", given))
    ]
    return {row["ref"]: row for row in rows}


def _sound(row: Any) -> bool:
    """Whether these are the fields of an entity, all of them and nothing else: as a registry writes them."""
    one = cast("dict[str, Any]", row)
    if type(row) is not dict or len(one) != len(FIELDS):
        return False
    try:
        values = _VALUES(one)
    except KeyError:
        return False
    return tuple(map(type, values)) in KINDS and bool(values[0]) and values[3] in STATUSES


def _checked(row: Any, at: int) -> Row:
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


def _ids(given: Mapping[str, Any], entities: Mapping[str, Row]) -> dict[str, str]:
    """Ids by ref; the older form held a placeholder for what was not saved."""
    found = _mapping(given, "ids", "ref_to_uuid")
    texts = ((ref, id if type(id) is str else str(id)) for ref, id in found.items() if id is not None)
    return {ref: text for ref, text in texts if ref in entities and text[:11] != "__pending__"}


def _counted(given: Mapping[str, Any], name: str) -> dict[str, int]:
    found = {str(key): count for key, count in _mapping(given, name).items()}
    wrong = next((key for key, count in found.items() if isinstance(count, bool) or not isinstance(count, int)), None)
    if wrong is not None:
        raise LayersError(f"id_registry: {name}.{wrong} is {found[wrong]!r}; give a number from 0")
    own = {key: count for key, count in found.items() if name == "counters" or key.startswith("gen_")}
    return own or {f"gen_{prefix_of(key)}": count for key, count in found.items()}


def _count_up(found: Loaded) -> None:
    """Counters that somebody else kept stand at least where the refs are, so that no ref is given twice."""
    for ref in found.entities:
        prefix, _, number = ref.rpartition("_")
        if prefix and number.isdecimal():
            counters = found.gen_counters if ref.startswith("gen_") else found.counters
            counters[prefix] = max(counters.get(prefix, 0), int(number))


def _older(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The entities of the older form; an action by the user is that action."""
    facts = {name: _mapping(given, key) for name, key in _FACTS.items()}
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
