"""Preambles: texts that describe the run so far to a stage, within the token budget of its fidelity for any input.

If space is short, the oldest stages are left out first, then values are shortened, then values are left out. The same
input gives the same text. A value is bounded and on one line, so it cannot form a heading, a fence, or our own markup.
Each mode has a template in `templates/fidelity/`.

The input can be the objects of any engine: everything is looked up by attribute or key, and nothing is required. A log
entry is a mapping with `node` (or `name`), `outcome` (or `status`), `notes`, `tools` and `duration`; if several entries
are about one stage, the last non-empty value of each field counts.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from heapq import nsmallest
from itertools import islice
from types import MappingProxyType
from typing import Any, cast

from context_compiler.fidelity import Fidelity
from context_compiler.messages.fences import neutralize
from context_compiler.pipeline.artifacts import MAX_SHOWN_BYTES, REFERENCES_KEY, artifact_reference
from context_compiler.template import Template, shipped_template
from context_compiler.tokens import Count, TokenCounter, as_counter

NODE = ("node", "name", "node_id", "stage")
OUTCOME = ("outcome", "status")
NOTES = ("notes", "note", "failure_reason")
TOOLS = ("tools", "tools_used", "tool_calls")
DURATION = ("duration", "elapsed", "duration_seconds")
COMPLETE = (OUTCOME[0], NOTES[0], TOOLS[0], DURATION[0])
"""Fields that make older entries about a stage irrelevant once all of them are set."""
RETRIES = "internal.retry_count."
"""Prefix of the context keys that contain the retries of a stage."""

_HIDDEN = frozenset(
    "current_node preamble fidelity_preamble outcome preferred_label run_id node_outcomes completed_nodes thread_key "
    "fidelity internal graph node_retries".split()
)
"""Context keys that are not shown, because they are for bookkeeping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedStage:
    """A completed stage, as of its latest completion."""

    name: str
    outcome: str
    fields: Mapping[str, object]
    """Fields of its log entries, merged."""


def context_values(context: object) -> Mapping[str, object]:
    """Return the values of a context, given a mapping or an object with a snapshot, values, or items."""
    if isinstance(context, Mapping):
        return cast("Mapping[str, object]", context)
    for name in ("values", "snapshot", "to_dict", "data", "items"):
        member: Any = getattr(context, name, None)
        member = member() if callable(member) else member
        member = _from_pairs(member) if name == "items" else member
        values: Any = getattr(member, "values", None)
        for candidate in (member, values):
            if isinstance(candidate, Mapping):
                outer = cast("Mapping[str, object]", candidate)
                inner = outer.get("values")
                nested = isinstance(inner, Mapping) and set(outer) <= {"values", "logs"}
                return cast("Mapping[str, object]", inner) if nested else outer
    return {}


def _from_pairs(items: object) -> Mapping[str, object] | None:
    """Build a mapping from pairs; None if the value is anything else."""
    try:
        return dict(cast("Iterable[tuple[str, object]]", items))
    except (TypeError, ValueError):
        return None


def completed_stages(
    names: Iterable[object], logs: Iterable[object], most: int
) -> tuple[list[tuple[str, Mapping[str, object]]], int]:
    """Return the last `most` completed stages with their merged log entries, and the number of completed stages.

    Each stage appears once, in the order of its latest completion.
    """
    order = list(dict.fromkeys(reversed([stage if type(stage) is str else node_name(stage) for stage in names])))
    latest: dict[str, dict[str, object]] = {name: {} for name in order[:most]}
    incomplete = set(latest)
    for entry in reversed(list(logs)) if latest else ():
        if not incomplete:
            break
        if isinstance(entry, Mapping):
            fields = cast("Mapping[str, object]", entry)
            name = fields.get("node") or _first_value(fields, NODE)
            name = name if isinstance(name, str) else safe_str(name)
            if name in incomplete:
                latest[name] = {key: value for key, value in fields.items() if value is not None} | latest[name]
                if all(fields.get(key) is not None for key in COMPLETE):
                    incomplete.discard(name)  # older entries cannot change its fields
    return [(name, latest[name]) for name in reversed(order[:most])], len(order)


def completed_stage(name: str, fields: Mapping[str, object], context: Mapping[str, object]) -> CompletedStage:
    """Build a completed stage, with its outcome from the logs or from `node_outcomes` in the context."""
    outcome = _first_value(fields, OUTCOME)
    if outcome is None:
        outcomes = context.get("node_outcomes", context.get("internal.node_outcomes"))
        if isinstance(outcomes, Mapping):
            outcome = cast("Mapping[str, object]", outcomes).get(name)
            if isinstance(outcome, Mapping):
                fields = {**cast("Mapping[str, object]", outcome), **fields}
                outcome = _first_value(fields, OUTCOME)
    outcome = getattr(outcome, "status", outcome)
    outcome = getattr(outcome, "value", outcome)
    return CompletedStage(name=name, outcome="unknown" if outcome is None else safe_str(outcome), fields=fields)


def _first_value(fields: Mapping[str, object], names: Sequence[str]) -> object:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def node_name(node: object) -> str:
    """Return the name of a stage, given the stage or its name."""
    return node if isinstance(node, str) else safe_str(getattr(node, "name", node))


def visible_entries(context: Mapping[str, object], most: int) -> tuple[list[tuple[str, object]], int]:
    """Return the first `most` visible context entries in the order of their keys, and the number of others."""
    keys = {text: key for key in context if _is_visible(text := key if type(key) is str else safe_str(key))}
    first = nsmallest(most, keys) if len(keys) > most else sorted(keys)
    return [(key, context[keys[key]]) for key in first], len(keys) - len(first)


@lru_cache(maxsize=65_536)
def _is_visible(key: str) -> bool:
    if key.startswith(("_", "internal.", "graph.")) or "._" in key:
        return False
    return key not in _HIDDEN and not key.startswith(("context.internal.", "context.graph."))


def stage_retries(context: Mapping[str, object], pipeline: object) -> Iterator[tuple[str, str]]:
    """Yield retried stages as `(name, "2/3")`: 2 retries used of 3 allowed."""
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
        return {node_name(node): node for node in cast("Sequence[object]", nodes)}
    return {}


def stage_count(pipeline: object) -> int:
    """Return the number of stages of a pipeline; 0 if unknown."""
    nodes: Any = getattr(pipeline, "nodes", None)
    return len(cast("Sequence[object]", nodes)) if isinstance(nodes, Mapping | list | tuple | set | frozenset) else 0


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_FAILING = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Exceptions to expect from `__str__` of a foreign object."""


def safe_str(value: object) -> str:
    """Convert anything to text, without memory addresses; never raises."""
    if type(value) is str:
        return value
    try:
        return _ADDRESS.sub("", str(value))
    except _FAILING:
        return f"<{type(value).__name__}>"


MAX_CACHED = 400
"""Maximum length of a string whose rendering is cached, because successive stages show many of the same strings."""
DEEPEST = 8
"""Maximum depth of nested containers in a value that is shown."""
CUT = "…"
"""Mark of a cut text."""

_LEADING = re.compile(r"[#`~>=|*+_-]|\d{1,9}[.)]|<")


def preamble_line(text: object, most: int) -> str:
    """Put the beginning of a string on one line of at most `most` characters; an ellipsis marks a cut."""
    whole = text if isinstance(text, str) else safe_str(text)
    if type(whole) is str and len(whole) <= MAX_CACHED:
        return _cached_line(whole, most)
    return _make_line(whole, most)


def _make_line(whole: str, most: int) -> str:
    line = " ".join(neutralize(" ".join(whole[: most + 1].split())).split())
    cut = len(whole) > most + 1 or len(line) > most
    return line[: most - 1].rstrip() + CUT if cut else line


_cached_line = lru_cache(maxsize=8_192)(_make_line)


def escape_lead(line: str) -> str:
    """Escape a line so that it does not start a heading, fence, quote or list after `- `."""
    return f"\\{line}" if _LEADING.match(line) else line


def show_value(value: object, reference: str, most: int) -> str:
    """Serialize a value to JSON of about `most` characters; a cut value becomes a string with an ellipsis.

    A value above 8 kB becomes a string with `reference` and a preview.
    """
    if type(value) is str and len(value) <= MAX_CACHED:
        return _cached_value(value, most)
    return _show_value(value, reference, most)


def _show_value(value: object, reference: str, most: int) -> str:
    text, whole = encode(value, MAX_SHOWN_BYTES)
    if whole and len(text.encode("utf-8", "replace")) <= MAX_SHOWN_BYTES:
        return text if len(text) <= most else quote(_preview(value, text, most))
    size = f"{len(value):,} characters" if isinstance(value, str) else f"more than {MAX_SHOWN_BYTES // 1024} kB"
    return quote(f"{reference} ({size}): {_preview(value, text, most)}")


@lru_cache(maxsize=8_192)
def _cached_value(value: str, most: int) -> str:
    return _show_value(value, "", most)


def _preview(value: object, text: str, most: int) -> str:
    return preamble_line(value if isinstance(value, str) else text, most)


def quote(text: str) -> str:
    """Serialize a string to JSON without active markup."""
    return json.dumps(neutralize(text), ensure_ascii=False)


def encode(value: object, room: int) -> tuple[str, bool]:
    """Serialize a value to JSON, cut after about `room` characters; also return True if the JSON is complete.

    Keys are sorted, and other types are converted by `str`. A cut text is not valid JSON.
    """
    pieces: list[str] = []
    for piece in _json_pieces(value, room, 0):
        pieces.append(piece)
        room -= len(piece)
        if room < 0:
            return "".join(pieces), False
    return "".join(pieces), True


def _json_pieces(value: object, room: int, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        yield quote(value[: room + 1])
    elif value is None or isinstance(value, bool):
        yield json.dumps(value)
    elif isinstance(value, int):
        yield str(int(value)) if int(value).bit_length() < 4_000 else f'"{int(value).bit_length():,} bits"'
    elif isinstance(value, float):
        yield repr(float(value)) if math.isfinite(value) else f'"{float(value)}"'
    elif isinstance(value, Mapping | Set | list | tuple) and depth >= DEEPEST:
        yield f'"{CUT}"'
    elif isinstance(value, Mapping):
        yield from _object_pieces(cast("Mapping[object, object]", value), room, depth)
    elif isinstance(value, Set):
        inner = nsmallest(room, (safe_str(member) for member in cast("Set[object]", value)))
        yield from _array_pieces(inner, room, depth)
    elif isinstance(value, list | tuple):
        yield from _array_pieces(cast("Collection[object]", value), room, depth)
    else:
        yield quote(safe_str(value)[: room + 1])


def _object_pieces(value: Mapping[object, object], room: int, depth: int) -> Iterator[str]:
    yield "{"
    for index, key in enumerate(nsmallest(room // 4 + 1, value, key=safe_str)):
        yield f"{', ' if index else ''}{quote(safe_str(key)[: room + 1])}: "
        yield from _json_pieces(value[key], room, depth + 1)
    yield "}"


def _array_pieces(values: Iterable[object], room: int, depth: int) -> Iterator[str]:
    yield "["
    for index, value in enumerate(islice(values, room + 1)):
        if index:
            yield ", "
        yield from _json_pieces(value, room, depth + 1)
    yield "]"


MIN_VALUE_LENGTH = 40
"""Length to which values are shortened before whole values are left out."""
ENTRY, NESTED, JOINED = 3, 4, 1
"""Tokens of the markup around an entry: on its own line, on an indented line, or on a shared line."""
LABELLED = 5
"""Tokens of the caption of the tools of a stage, and of the caption of its duration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeLimits:
    """Limits of a fidelity: the budget in tokens, lengths in characters."""

    budget: int
    notes: int = 0
    """Maximum length of the notes of a stage; 0 hides them."""
    outcomes: bool = True
    """True if outcomes are shown although notes are hidden."""
    details: bool = False
    """True if tools, durations and retries are shown."""
    value: int = 0
    """Maximum length of a context value; 0 hides the context."""


class Page:
    """A preamble under construction, with the tokens left in it."""

    def __init__(self, *, limits: ModeLimits, template: Template, count: TokenCounter) -> None:
        self.limits, self._template, self._count = limits, template, count
        self._values: dict[str, Any] = {"stages": [], "context": [], "retries": [], "goal": ""}
        self._omitted: dict[str, int] = {"omitted": 0, "context_omitted": 0, "retries_omitted": 0}
        self._references: Mapping[str, object] = {}
        self._free = 0
        """Tokens left after the head and the goal."""

    def clip(self, text: object, tokens: int) -> str:
        """Put a string on one line, cut to a number of tokens."""
        line = preamble_line(text, 16 * tokens)
        if self._count.text(line) <= tokens:
            return line
        return self._count.head(line, max(1, tokens - 2)).rstrip(f"{CUT} ") + CUT

    def head(self, lines: Mapping[str, object], *, position: int, total: int) -> None:
        """Set the values that every preamble shows; each of `lines` is cut to an eighth of the budget."""
        clipped = {name: self.clip(line, self.limits.budget // 8) for name, line in lines.items()}
        self._values |= {**clipped, "position": position, "total": total}

    def goal(self, goal: object) -> None:
        """Set the goal, cut to a quarter of the budget, or to the free tokens of a page without stages and context."""
        room = max(0, self.limits.budget - self._count.text(self._render()))
        most = room - 4 if self.limits.budget <= 100 else min(self.limits.budget // 4, room)
        self._values["goal"] = text = self.clip(goal, max(1, most))
        self._free = room - self._count.text(text) - ENTRY

    def fill(
        self,
        stages: Sequence[tuple[str, Mapping[str, object]]],
        count: int,
        values: Mapping[str, object],
        retries: Sequence[tuple[str, str]],
    ) -> None:
        """Fill in stages, context and retries; each gets a share of the free tokens, and tokens that others leave.

        Args:
            stages: The most recent completed stages, oldest first.
            count: Number of all completed stages.
            values: The context.
            retries: Retried stages, from `stage_retries`.
        """
        references = values.get(REFERENCES_KEY)
        self._references = cast("Mapping[str, object]", references) if isinstance(references, Mapping) else {}
        room = max(0, self._free) - 8 * sum(bool(section) for section in (stages, values, retries))
        room -= self._add_entries(
            "retries", [self._retry_entry(name, used) for name, used in retries[: room // 8]], room // 8, len(retries)
        )
        half = room // 2 if self.limits.value else room
        wanted, left = visible_entries(values, room // 4 + 1) if self.limits.value else ([], 0)
        rough = self._add_context(wanted, left, half)
        recent = (self._stage_entry(completed_stage(*stage, values)) for stage in reversed(stages))
        room -= self._add_entries("stages", recent, room - rough, count)
        self._values["stages"].reverse()
        if self._omitted["context_omitted"] or room > half:
            self._add_context(wanted, left, room)

    def text(self) -> str:
        """Render the page within its budget."""
        while True:
            text = self._render()
            if self._count.text(text) <= self.limits.budget:
                return text
            if not self._shorten():
                return self._count.head(text, self.limits.budget)

    def _render(self) -> str:
        left = {name: f"{count:,}" if count else "" for name, count in self._omitted.items()}
        return self._template.render({**self._values, **left})

    def _shorten(self) -> bool:
        """Remove the least important content; False if nothing is left to remove."""
        for name, omitted, position, least in (("stages", "omitted", 0, 1), ("context", "context_omitted", -1, 0)):
            entries: list[object] = self._values[name]
            if len(entries) > least:
                del entries[position]
                self._omitted[omitted] += 1
                return True
        if self._values["retries"]:
            self._omitted["retries_omitted"] += len(self._values["retries"])
            self._values["retries"] = []
            return True
        goal: str = self._values["goal"]
        self._values["goal"] = goal[: len(goal) // 2].rstrip(f"{CUT} ") + CUT if len(goal) > len(CUT) + 1 else ""
        return len(goal) > len(CUT)

    def _add_entries(self, name: str, entries: Iterable[Mapping[str, str]], room: int, every: int) -> int:
        """Add entries while they fit into `room` tokens; return the tokens used."""
        added: list[Mapping[str, str]] = []
        spent = 0
        for entry in entries:
            cost = self._markup_tokens(name, entry) + sum(_token_count(self._count, text) for text in entry.values())
            if spent + cost > room:
                break
            spent += cost
            added.append(entry)
        self._values[name] = added
        self._omitted["omitted" if name == "stages" else f"{name}_omitted"] = every - len(added)
        return spent

    def _markup_tokens(self, name: str, entry: Mapping[str, str]) -> int:
        """Tokens of the markup around an entry in the template."""
        if not self.limits.notes:
            return JOINED if name == "stages" else NESTED
        return ENTRY + LABELLED * (bool(entry.get("tools")) + bool(entry.get("duration")))

    def _add_context(self, wanted: Sequence[tuple[str, object]], left: int, room: int) -> int:
        """Add context values, shortened until they all fit, then as many as fit; return the tokens used."""
        most, spent = self.limits.value, 0
        while most and wanted:
            most = most if 8 * len(wanted) < room else MIN_VALUE_LENGTH
            entries = (self._value_entry(key, value, most) for key, value in wanted)
            spent = self._add_entries("context", entries, room, len(wanted))
            if not self._omitted["context_omitted"] or most <= MIN_VALUE_LENGTH:
                break
            most = max(MIN_VALUE_LENGTH, most // 2)
        self._omitted["context_omitted"] = left + len(wanted) - len(self._values["context"])
        return spent

    def _value_entry(self, key: str, value: object, most: int) -> Mapping[str, str]:
        name, reference = preamble_line(key, 120), self._references.get(key)
        reference = reference if isinstance(reference, str) else artifact_reference(key)
        shown = quote(name) if self.limits.details else escape_lead(name)
        return {"name": shown, "said": show_value(value, reference, most)}

    def _retry_entry(self, name: str, text: str) -> Mapping[str, str]:
        return {"name": escape_lead(preamble_line(name, 120)), "said": preamble_line(text, 40)}

    def _stage_entry(self, stage: CompletedStage) -> Mapping[str, str]:
        name, outcome = escape_lead(preamble_line(stage.name, 120)), preamble_line(stage.outcome, 60)
        if not self.limits.notes:
            return {"said": f"{name} ({outcome})" if self.limits.outcomes else name}
        notes = preamble_line(_first_value(stage.fields, NOTES) or "", self.limits.notes)
        entry = {"said": f"{name}: {outcome}" + (f" — {notes}" if notes else "")}
        if self.limits.details:
            entry["tools"] = _tool_names(_first_value(stage.fields, TOOLS))
            entry["duration"] = _format_duration(_first_value(stage.fields, DURATION))
        return entry


def _token_count(count: TokenCounter, text: str) -> int:
    return _cached_token_count(count, text) if len(text) <= MAX_CACHED else count.text(text)


@lru_cache(maxsize=8_192)
def _cached_token_count(count: TokenCounter, text: str) -> int:
    return count.text(text)


def _tool_names(tools: object) -> str:
    """List the names of tools, given names or calls."""
    if not isinstance(tools, list | tuple):
        return preamble_line(tools or "", 300)
    names = [_call_name(tool) for tool in cast("Sequence[object]", tools)[:100]]
    return preamble_line(", ".join(dict.fromkeys(safe_str(name) for name in names if name)), 300)


def _call_name(call: object) -> object:
    if not isinstance(call, Mapping):
        return call
    fields = cast("Mapping[str, object]", call)
    return fields.get("name") or fields.get("tool_name")


def _format_duration(duration: object) -> str:
    """Format seconds as `1.2s`, and anything else as text."""
    if isinstance(duration, int | float) and not isinstance(duration, bool):
        return f"{duration:.1f}s"[:40]
    return preamble_line("" if duration is None else duration, 40)


LIMITS = MappingProxyType(
    {
        Fidelity.TRUNCATE: ModeLimits(budget=100),
        Fidelity.COMPACT: ModeLimits(budget=500, value=160),
        Fidelity.SUMMARY_LOW: ModeLimits(budget=600, outcomes=False),
        Fidelity.SUMMARY_MEDIUM: ModeLimits(budget=1_500, notes=200, value=400),
        Fidelity.SUMMARY_HIGH: ModeLimits(budget=3_000, notes=2_000, details=True, value=2_000),
    }
)


def build_fidelity_preamble(
    mode: str,
    pipeline: object,
    context: object,
    completed_nodes: Sequence[object] | None,
    current_node: object,
    logs: Iterable[object] | None,
    *,
    counter: TokenCounter | Count | None = None,
) -> str:
    """Build the markdown that precedes the prompt of a stage in a new conversation; empty at `full`.

    For any input, it has at most 100 tokens at `truncate`, 500 at `compact`, 600 at `summary:low`, 1,500 at
    `summary:medium`, and 3,000 at `summary:high`, as counted by `counter`.

    Args:
        mode: A fidelity.
        pipeline: An object with `name`, `goal` and `nodes`, such as a `Graph`.
        context: A mapping, or an object with a `snapshot()`. Internal keys are hidden, and a value above 8 kB becomes
            a reference and a preview. `truncate` shows only its `run_id`.
        completed_nodes: Names of stages, in the order of completion.
        current_node: The stage about to run, or its name.
        logs: Mappings with `node`, `outcome`, `notes`, `tools` and `duration`; the last value about a stage counts.
        counter: Token counter; o200k by default.

    Raises:
        FidelityError: `mode` is not a fidelity.
    """
    fidelity = Fidelity.parse(mode, where="mode")
    if fidelity is Fidelity.FULL:
        return ""
    values, limits = context_values(context), LIMITS[fidelity]
    stages, count = completed_stages(completed_nodes or (), logs or (), limits.budget // 4 if fidelity.cap else 0)
    total = stage_count(pipeline) or count + 1
    template = shipped_template(f"fidelity/{fidelity.replace(':', '-')}")
    page = Page(limits=limits, template=template, count=as_counter(counter))
    page.head(
        {
            "pipeline": safe_str(getattr(pipeline, "name", "") or ""),
            "run_id": values.get("run_id") or values.get("internal.run_id") or "unknown",
            "current": node_name(current_node),
            "last_outcome": completed_stage(*stages[-1], values).outcome if stages else "none",
        },
        position=min(count + 1, total),
        total=total,
    )
    page.goal(getattr(pipeline, "goal", "") or "")
    if fidelity is not Fidelity.TRUNCATE:
        page.fill(stages, count, values, list(stage_retries(values, pipeline)) if limits.details else [])
    return page.text()
