"""Parser for stored registries: the form of `SessionIdRegistry.to_dict`."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any, cast, get_args

from context_compiler.errors import LayersError
from context_compiler.layers.models import EntitySnapshot, Row, Status, parse_layer

VERSION = 1

STATUSES: tuple[str, ...] = get_args(Status)
ROW_FIELDS = ("ref", "type", "label", "status", "turn_created", "turn_last_ref", "retention_reason")
VALUE_TYPES = {(str, str, str, str, int, int, str), (str, str, str, str, int, int, type(None))}
"""Valid types of a row's values, for a check that is faster than pydantic: a registry can contain thousands of rows."""
_VALUES = itemgetter(*ROW_FIELDS)


def stored_turn(fields: Mapping[str, Any]) -> int:
    """Check the form of a stored registry, and return the number of its turn.

    Raises:
        LayersError: A value is wrong; the message names it.
    """
    if not isinstance(fields, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] # outside data
        raise LayersError(f"id_registry is a {type(fields).__name__}; give a SessionIdRegistry or its to_dict()")
    if fields and fields.get("version") != VERSION:
        raise LayersError(
            f"id_registry has version {fields.get('version')!r}, this one knows {VERSION};"
            " give a SessionIdRegistry or its to_dict(), or begin a new session"
        )
    turn = fields.get("current_turn") or 0
    if isinstance(turn, bool) or not isinstance(turn, int) or turn < 0:
        raise LayersError(f"id_registry: current_turn is {turn!r}; give a number from 0")
    return turn


def stored_rows(fields: Mapping[str, Any]) -> dict[str, Row]:
    """Parse the entities, by ref; LayersError if one is wrong."""
    listed: Any = fields.get("entities", ())
    if not isinstance(listed, list | tuple):
        raise LayersError(f"id_registry: entities is a {type(listed).__name__}; give a list")
    rows: list[Row] = [
        dict(row)
        if _is_valid_row(row)
        else parse_layer(EntitySnapshot, row, f"id_registry: entities[{index}]").model_dump()
        for index, row in enumerate(cast("list[Any]", listed))
    ]
    return {row["ref"]: row for row in rows}


def _is_valid_row(row: Any) -> bool:
    """True if the row has exactly the fields of an entity, each of the right type, as a registry writes it."""
    fields = cast("dict[str, Any]", row)
    if type(row) is not dict or len(fields) != len(ROW_FIELDS):
        return False
    try:
        values = _VALUES(fields)
    except KeyError:
        return False
    return tuple(map(type, values)) in VALUE_TYPES and bool(values[0]) and values[3] in STATUSES


def mapping_field(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the mapping stored under a key; empty if there is none.

    Raises:
        LayersError: The value is not a mapping.
    """
    value: Any = fields.get(name) or {}
    if not isinstance(value, Mapping):
        raise LayersError(f"id_registry: {name} is a {type(value).__name__}; give a mapping by ref")
    return cast("Mapping[str, Any]", value)


def stored_counters(fields: Mapping[str, Any], name: str) -> dict[str, int]:
    """Parse the counters stored under a key; LayersError if one is wrong."""
    counts = {str(key): count for key, count in mapping_field(fields, name).items()}
    wrong = next((key for key, count in counts.items() if isinstance(count, bool) or not isinstance(count, int)), None)
    if wrong is not None:
        raise LayersError(f"id_registry: {name}.{wrong} is {counts[wrong]!r}; give a number from 0")
    return counts
