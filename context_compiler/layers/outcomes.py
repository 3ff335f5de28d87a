"""What a step came to, in a few words, and which entities it touched, from whatever its tool gave back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from context_compiler.layers.conversation import record_of, text_of
from context_compiler.layers.formatting import one_line
from context_compiler.layers.refs import Above, endless

ITEMS = 10
"""Names of what a blocked step was about."""

RefOf = Callable[[str, object], str | None]
"""The ref of an entity by type and id; by id alone where the type is empty."""


def generic_outcome(result: object) -> str:
    """What a step came to where nobody said so: how many records, or what was named."""
    if isinstance(result, bool) or result is None:
        return "Completed"
    if isinstance(result, int):
        return "Processed 1 record" if result == 1 else f"Affected {result} records"
    operations = list(_operations(result))
    if len(operations) > 1:
        return f"Processed {sum(len(rows) for _, _, rows in operations)} records across {len(operations)} operations"
    if operations:
        tool, _, rows = operations[0]
        return _counted(rows) if not rows or "read" in tool or "find" in tool else _written(rows)
    if isinstance(result, Mapping):
        return _written([cast("Mapping[str, object]", result)])
    if isinstance(result, list | tuple):
        return _counted(cast("Sequence[object]", result))
    return "Completed"


def _counted(rows: Sequence[object]) -> str:
    return {0: "No records found", 1: "Found 1 record"}.get(len(rows), f"Found {len(rows)} records")


def _written(rows: Sequence[object]) -> str:
    if len(rows) != 1:
        return f"Affected {len(rows)} records"
    name = _name(rows[0])
    return f"Created/updated '{one_line(name, 80)}'" if name else "Processed 1 record"


def _name(row: object) -> str:
    if not isinstance(row, Mapping):
        return ""
    one = cast("Mapping[str, Any]", row)
    return next((text for key in ("name", "title", "label") if (text := text_of(one, key))), "")


def count_of(result: object) -> int | None:
    """How many records a step gave back; None where that cannot be said."""
    operations = list(_operations(result))
    if operations:
        return sum(len(rows) for _, _, rows in operations)
    return len(cast("Sequence[object]", result)) if isinstance(result, list | tuple) else None


def _operations(result: object) -> Iterator[tuple[str, str, Sequence[object]]]:
    """Tool, table and rows of each call, where a result is `(tool, rows)` or `(tool, table, rows)` or a list of such.

    A pair of two texts is no call.
    """
    if isinstance(result, tuple):
        parts = cast("tuple[object, ...]", result)
        if (
            len(parts) in (2, 3)
            and all(isinstance(part, str) for part in parts[:-1])
            and not isinstance(parts[-1], str)
        ):
            yield str(parts[0]), str(parts[1]) if len(parts) == 3 else "", _rows(parts[-1])
    elif isinstance(result, list):
        for one in cast("list[object]", result):
            if isinstance(one, tuple):
                yield from _operations(cast(object, one))


def _rows(found: object) -> Sequence[object]:
    if isinstance(found, list | tuple):
        return cast("Sequence[object]", found)
    return [] if found is None else [found]


def entities_involved(result: object, subdomain: str, ref_of: RefOf) -> list[str]:
    """Refs of everything in a result, each once, in order: from pairs, triples, mappings and lists."""
    return list(dict.fromkeys(_refs(result, subdomain, ref_of)))


def _refs(result: object, type: str, ref_of: RefOf, above: Above = ()) -> Iterator[str]:
    if endless(result, above):
        return
    inside = (*above, id(result))
    operations = list(_operations(result))
    if operations:
        for _, table, rows in operations:
            yield from _refs(list(rows), table or type, ref_of, inside)
    elif isinstance(result, Mapping):
        yield from _row_refs(cast("Mapping[str, Any]", result), type, ref_of, inside)
    elif isinstance(result, list | tuple):
        for one in cast("Sequence[object]", result):
            yield from _refs(one, type, ref_of, inside)
    elif isinstance(result, str) and (found := ref_of("", result)):
        yield found


def _row_refs(row: Mapping[str, Any], type: str, ref_of: RefOf, above: Above) -> Iterator[str]:
    found = ref_of("", row["ref"]) if row.get("ref") else None
    if found is None and row.get("id") is not None:
        found = ref_of(type, row["id"]) or ref_of("", row["id"])
    if found:
        yield found
    for inner in row.values():
        if isinstance(inner, list | tuple):
            yield from _refs(list(cast("Sequence[object]", inner)), "", ref_of, above)


def blocked_reason(given: object) -> str | None:
    """Why a turn could not go on: what happened, and what was tried on what; None when it was not blocked."""
    if not given:
        return None
    if isinstance(given, str):
        return given.strip() or None
    action = record_of(given, "blocked_action")
    details = text_of(action, "details") or text_of(action, "reason_code") or "Blocked"
    tried = record_of(action.get("attempted_context"), "blocked_action.attempted_context")
    tool, table = text_of(tried, "tool"), text_of(tried, "table")
    if not tool:
        return details
    items = [_item(one) for one in _rows(tried.get("items"))[:ITEMS]]
    where = f"{tool} on {table}" if table else tool
    return f"{details} | {where}: {', '.join(items)}" if items else f"{details} | {where}"


def _item(given: object) -> str:
    return (given if isinstance(given, str) else _name(given)) or "unnamed"
