"""Two states of a run differ in few places: a state in pieces, and the pieces that are new or gone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import compress, islice
from operator import is_, is_not
from typing import Any, TypeAlias

from context_compiler.pipeline.checkpoint import head
from context_compiler.pipeline.outcome import Outcome
from context_compiler.pipeline.state import RunState, Thread

Name: TypeAlias = tuple[str, str]
"""A section, and a name in it."""
Cell: TypeAlias = tuple[str, str, Any]
"""The same, and plain data."""

HEAD = "head"
MAPPINGS = {
    "node_outcomes": "outcomes",
    "node_retries": "retries",
    "node_visits": "visits",
    "context": "context",
    "artifacts": "artifacts",
    "branches": "branches",
}
"""Sections that are mappings, and the fields they come from."""
UNTOLD = ("artifacts", "branches")
"""Mappings of which no stage tells what it touched."""
SEQUENCES = {"completed_nodes": "completed", "logs": "logs"}
THREADS, MARKS = "threads", "marks"


def changes(former: RunState | None, state: RunState) -> tuple[list[Name], list[Cell]]:
    """The pieces that are gone, and those that are new or other; all of them when there is no former state."""
    gone: list[Name] = []
    new: list[Cell] = [(HEAD, "", head(state))]
    names, keys = _touched(former, state)
    for section, field in MAPPINGS.items():
        known = keys if field == "context" else None if field in UNTOLD else names
        _mapping(section, getattr(former, field, {}), getattr(state, field), known, gone, new)
    for section, field in SEQUENCES.items():
        _sequence(section, getattr(former, field, ()), getattr(state, field), gone, new)
    before: Mapping[str, Thread] = former.threads if former is not None else {}
    for key in before.keys() | state.threads.keys():
        old, now = before.get(key, Thread()), state.threads.get(key, Thread())
        if old is not now:
            _sequence(f"{THREADS}:{key}", old.messages, now.messages, gone, new)
            _sequence(f"{MARKS}:{key}", old.marks, now.marks, gone, new)
    return gone, new


def _touched(former: RunState | None, state: RunState) -> tuple[Collection[str] | None, Collection[str] | None]:
    """Names of stages and keys that may be other, as the last stage tells if no state between is missing; None: any."""
    touched = state.touched
    if former is None or touched is None or former.lineage != state.lineage or former.sequence < touched.since:
        return None, None
    return touched.names, touched.keys


def _mapping(
    section: str,
    old: Mapping[str, Any],
    now: Mapping[str, Any],
    known: Collection[str] | None,
    gone: list[Name],
    new: list[Cell],
) -> None:
    if old is now:
        return
    if known is not None:
        gone += [(section, name) for name in sorted(known) if name in old and name not in now]
        changed = [(name, now[name]) for name in sorted(known) if name in now and old.get(name) is not now[name]]
    elif len(old) <= len(now) and all(map(is_, old, now)):  # the usual case, at the speed of C: nothing was removed
        other = compress(now.items(), map(is_not, old.values(), now.values()))
        changed = [*other, *islice(now.items(), len(old), None)]
    else:
        gone += [(section, name) for name in old.keys() - now.keys()]
        changed = [(name, value) for name, value in now.items() if name not in old or old[name] is not value]
    for name, value in changed:
        new.append((section, name, value.document() if isinstance(value, Outcome) else value))


def _sequence(section: str, old: Sequence[Any], now: Sequence[Any], gone: list[Name], new: list[Cell]) -> None:
    same = min(len(old), len(now))
    while same and old[same - 1] is not now[same - 1]:  # they only grow at their end, or are cut there
        same -= 1
    gone += [(section, _number(at)) for at in range(len(now), len(old))]
    new += [(section, _number(at), now[at]) for at in range(same, len(now))]


def _number(at: int) -> str:
    return f"{at:09d}"


def gathered(cells: Iterable[Cell]) -> dict[str, Any]:
    """The document of a state from its pieces, which come in the order of their sections and names.

    Raises:
        LookupError: the head is missing.
    """
    sections: dict[str, list[tuple[str, Any]]] = {}
    for section, name, body in cells:
        sections.setdefault(section, []).append((name, body))
    document: dict[str, Any] = dict(sections[HEAD][0][1])
    document |= {section: dict(sections.get(section, ())) for section in MAPPINGS}
    document |= {section: [body for _, body in sections.get(section, ())] for section in SEQUENCES}
    document[THREADS] = {key: {"messages": messages, MARKS: marks} for key, messages, marks in _threads(sections)}
    return document


def _threads(sections: Mapping[str, list[tuple[str, Any]]]) -> Iterator[tuple[str, list[Any], list[Any]]]:
    for section, rows in sections.items():
        if section.startswith(f"{THREADS}:"):
            key = section.removeprefix(f"{THREADS}:")
            marks = sections.get(f"{MARKS}:{key}", ())
            yield key, [body for _, body in rows], [body for _, body in marks]
