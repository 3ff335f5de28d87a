"""Progress of a run, read from any engine's objects: stages, outcomes, notes, retries, and visible context.

Everything is looked up by attribute or key, and nothing is required. A log entry is a mapping with `node` (or `name`),
`outcome` (or `status`), `notes`, `tools` and `duration`; of several about one stage, the last non-empty value counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import nsmallest
from typing import Any, cast

NODE = ("node", "name", "node_id", "stage")
OUTCOME = ("outcome", "status")
NOTES = ("notes", "note", "failure_reason")
TOOLS = ("tools", "tools_used", "tool_calls")
DURATION = ("duration", "elapsed", "duration_seconds")
COMPLETE = (OUTCOME[0], NOTES[0], TOOLS[0], DURATION[0])
"""Fields after which older entries about a stage add nothing."""
RETRIES = "internal.retry_count."

_HIDDEN = frozenset(
    {
        *("current_node", "preamble", "fidelity_preamble", "outcome", "preferred_label", "run_id", "node_outcomes"),
        *("completed_nodes", "thread_key", "fidelity", "internal", "graph", "node_retries"),
    }
)
"""Context keys hidden as bookkeeping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedStage:
    """A completed stage, at its latest completion."""

    name: str
    outcome: str
    told: Mapping[str, object] = field(default_factory=dict[str, object])
    """Merged log entries."""

    def said(self, names: Sequence[str]) -> object:
        """The first of several fields that is set in the logs."""
        return _first(self.told, names)


def context_values(context: object) -> Mapping[str, object]:
    """Values of a context: a mapping, or an object with a snapshot, values, or items."""
    if isinstance(context, Mapping):
        return cast("Mapping[str, object]", context)
    for name in ("values", "snapshot", "to_dict", "data", "items"):
        there: Any = getattr(context, name, None)
        there = there() if callable(there) else there
        there = _from_pairs(there) if name == "items" else there
        values: Any = getattr(there, "values", None)
        for one in (there, values):
            if isinstance(one, Mapping):
                found = cast("Mapping[str, object]", one)
                inner = found.get("values")
                both = isinstance(inner, Mapping) and set(found) <= {"values", "logs"}
                return cast("Mapping[str, object]", inner) if both else found
    return {}


def _from_pairs(items: object) -> Mapping[str, object] | None:
    """A mapping from pairs; None for anything else."""
    try:
        return dict(cast("Iterable[tuple[str, object]]", items))
    except (TypeError, ValueError):
        return None


def completed_stages(
    names: Iterable[object], logs: Iterable[object], most: int
) -> tuple[list[tuple[str, Mapping[str, object]]], int]:
    """The last `most` completed stages with their log entries, and the number of completed stages.

    Each stage appears once, in the order of its latest completion.
    """
    order = list(dict.fromkeys(reversed([one if type(one) is str else node_name(one) for one in names])))
    told: dict[str, dict[str, object]] = {name: {} for name in order[:most]}
    open_ = set(told)
    for entry in reversed(list(logs)) if told else ():
        if not open_:
            break
        if isinstance(entry, Mapping):
            fields = cast("Mapping[str, object]", entry)
            name = fields.get("node") or _first(fields, NODE)
            name = name if isinstance(name, str) else safe_str(name)
            if name in open_:
                told[name] = {key: value for key, value in fields.items() if value is not None} | told[name]
                if all(fields.get(key) is not None for key in COMPLETE):
                    open_.discard(name)  # nothing that was said of it before can count
    return [(name, told[name]) for name in reversed(order[:most])], len(order)


def completed_stage(name: str, told: Mapping[str, object], context: Mapping[str, object]) -> CompletedStage:
    """A completed stage with its outcome, from the logs or the context's `node_outcomes`."""
    outcome = _first(told, OUTCOME)
    if outcome is None:
        outcomes = context.get("node_outcomes", context.get("internal.node_outcomes"))
        if isinstance(outcomes, Mapping):
            outcome = cast("Mapping[str, object]", outcomes).get(name)
            if isinstance(outcome, Mapping):
                told = {**cast("Mapping[str, object]", outcome), **told}
                outcome = _first(told, OUTCOME)
    outcome = getattr(outcome, "status", outcome)
    outcome = getattr(outcome, "value", outcome)
    return CompletedStage(name=name, outcome="unknown" if outcome is None else safe_str(outcome), told=told)


def _first(fields: Mapping[str, object], names: Sequence[str]) -> object:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def node_name(node: object) -> str:
    """Name of a stage, given the stage or its name."""
    return node if isinstance(node, str) else safe_str(getattr(node, "name", node))


def visible_entries(context: Mapping[str, object], most: int) -> tuple[list[tuple[str, object]], int]:
    """The first `most` visible context entries by key, and the number of others."""
    keys = {text: key for key in context if _shows(text := key if type(key) is str else safe_str(key))}
    first = nsmallest(most, keys) if len(keys) > most else sorted(keys)
    return [(key, context[keys[key]]) for key in first], len(keys) - len(first)


@lru_cache(maxsize=65_536)
def _shows(key: str) -> bool:
    if key.startswith(("_", "internal.", "graph.")) or "._" in key:
        return False
    return key not in _HIDDEN and not key.startswith(("context.internal.", "context.graph."))


def stage_retries(context: Mapping[str, object], pipeline: object) -> Iterator[tuple[str, str]]:
    """Retried stages as `(name, "2/3")`: retries used, retries allowed."""
    counts = {key: value for key, value in context.items() if safe_str(key).startswith(RETRIES)}
    if not counts:
        return
    nodes = _nodes(pipeline)
    for key in sorted(counts, key=safe_str):
        name = safe_str(key).removeprefix(RETRIES)
        most: object = getattr(nodes.get(name), "max_retries", None)
        most = getattr(pipeline, "default_max_retries", 0) if most is None else most
        yield name, f"{safe_str(counts[key])[:20]}/{safe_str(most)[:20]}"


def _nodes(pipeline: object) -> Mapping[str, object]:
    nodes: object = getattr(pipeline, "nodes", None)
    if isinstance(nodes, Mapping):
        return cast("Mapping[str, object]", nodes)
    if isinstance(nodes, list | tuple):
        return {node_name(one): one for one in cast("Sequence[object]", nodes)}
    return {}


def stage_count(pipeline: object) -> int:
    """Number of stages of a pipeline; 0 if unknown."""
    nodes: Any = getattr(pipeline, "nodes", None)
    return len(cast("Sequence[object]", nodes)) if isinstance(nodes, Mapping | list | tuple | set | frozenset) else 0


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_FAILING = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Exceptions that `__str__` of a foreign object may raise."""


def safe_str(value: object) -> str:
    """`str` of anything, without memory addresses; never raises."""
    if type(value) is str:
        return value
    try:
        return _ADDRESS.sub("", str(value))
    except _FAILING:
        return f"<{type(value).__name__}>"
