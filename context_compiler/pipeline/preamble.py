"""Preambles: what a stage is shown of the run so far, within the token budget of its fidelity for any input.

If space is short the oldest stages go first, then values get shorter, then values go. The same input gives the same
text. Values appear on one line, bounded, and cannot form a heading, a fence, or markup of ours. Each mode is a
template in `templates/fidelity/`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache, lru_cache
from heapq import nsmallest
from itertools import islice
from types import MappingProxyType
from typing import Any, cast

from context_compiler.fidelity import Fidelity
from context_compiler.messages.fences import neutralize
from context_compiler.pipeline.progress import (
    DURATION,
    NOTES,
    TOOLS,
    CompletedStage,
    completed_stage,
    completed_stages,
    context_values,
    node_name,
    safe_str,
    stage_count,
    stage_retries,
    visible_entries,
)
from context_compiler.template import Template, shipped_templates
from context_compiler.tokens import Count, TokenCounter, as_counter

LARGEST = 8 * 1024
"""Maximum size of a value shown in full, in bytes; a larger one becomes a reference and a preview."""
KEPT = "internal.kept"
"""Context key of references to values stored elsewhere than under their usual reference, by key."""
OFTEN = 400
"""Maximum length of a text whose rendering is cached: successive stages show much of the same."""
DEEPEST = 8
"""Maximum depth of nested containers."""
CUT = "…"

_UNFIT = re.compile(r"[^A-Za-z0-9_.-]")
_LEADING = re.compile(r"[#`~>=|*+_-]|\d{1,9}[.)]|<")


def one_line(text: object, most: int) -> str:
    """The beginning of a text on one line, stripped; an ellipsis marks a cut."""
    whole = text if isinstance(text, str) else safe_str(text)
    if type(whole) is str and len(whole) <= OFTEN:
        return _remembered_line(whole, most)
    return _on_one_line(whole, most)


def _on_one_line(whole: str, most: int) -> str:
    line = " ".join(neutralize(" ".join(whole[: most + 1].split())).split())
    cut = len(whole) > most + 1 or len(line) > most
    return line[: most - 1].rstrip() + CUT if cut else line


_remembered_line = lru_cache(maxsize=8_192)(_on_one_line)


def escape_lead(line: str) -> str:
    """Escape a line so that after `- ` it starts no heading, fence, quote or list."""
    return f"\\{line}" if _LEADING.match(line) else line


def artifact_reference(key: str) -> str:
    """The usual reference of a context value that is too large to show."""
    return f"artifact://context.{_UNFIT.sub('_', key[:100])}"


def show_value(value: object, reference: str, most: int) -> str:
    """A value as JSON of about `most` characters; a cut one is a string with an ellipsis.

    A value above 8 kB becomes `reference` and a preview.
    """
    if type(value) is str and len(value) <= OFTEN:
        return _remembered(value, most)
    return _show_value(value, reference, most)


def _show_value(value: object, reference: str, most: int) -> str:
    text, whole = encode(value, LARGEST)
    if whole and len(text.encode("utf-8", "replace")) <= LARGEST:
        return text if len(text) <= most else quote(_preview(value, text, most))
    size = f"{len(value):,} characters" if isinstance(value, str) else f"more than {LARGEST // 1024} kB"
    return quote(f"{reference} ({size}): {_preview(value, text, most)}")


@lru_cache(maxsize=8_192)
def _remembered(value: str, most: int) -> str:
    return _show_value(value, "", most)


def _preview(value: object, text: str, most: int) -> str:
    return one_line(value if isinstance(value, str) else text, most)


def quote(text: str) -> str:
    """A JSON string without active markup."""
    return json.dumps(neutralize(text), ensure_ascii=False)


def encode(value: object, room: int) -> tuple[str, bool]:
    """The part of a value's JSON that fits into `room` characters, and True if it is complete.

    Keys are sorted; `str` is the fallback for other types. A cut text is not JSON.
    """
    pieces: list[str] = []
    for piece in _pieces(value, room, 0):
        pieces.append(piece)
        room -= len(piece)
        if room < 0:
            return "".join(pieces), False
    return "".join(pieces), True


def _pieces(value: object, room: int, depth: int) -> Iterator[str]:
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
        yield from _object(cast("Mapping[object, object]", value), room, depth)
    elif isinstance(value, Set):
        inner = nsmallest(room, (safe_str(one) for one in cast("Set[object]", value)))
        yield from _array(inner, room, depth)
    elif isinstance(value, list | tuple):
        yield from _array(cast("Collection[object]", value), room, depth)
    else:
        yield quote(safe_str(value)[: room + 1])


def _object(value: Mapping[object, object], room: int, depth: int) -> Iterator[str]:
    yield "{"
    for at, key in enumerate(nsmallest(room // 4 + 1, value, key=safe_str)):
        yield f"{', ' if at else ''}{quote(safe_str(key)[: room + 1])}: "
        yield from _pieces(value[key], room, depth + 1)
    yield "}"


def _array(values: Iterable[object], room: int, depth: int) -> Iterator[str]:
    yield "["
    for at, one in enumerate(islice(values, room + 1)):
        if at:
            yield ", "
        yield from _pieces(one, room, depth + 1)
    yield "]"


LEAST = 40
"""Minimum length of a shortened value, before whole values are left out."""
ENTRY, NESTED, JOINED = 3, 4, 1
"""Tokens of markup around an entry: on its own line, indented, or on a shared line."""
LABELLED = 5
"""Tokens of the captions of a stage's tools and duration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeLimits:
    """Limits of a mode: a budget in tokens, the rest in characters."""

    budget: int
    notes: int = 0
    """Of a stage's notes."""
    outcomes: bool = True
    details: bool = False
    """True if tools, durations and retries are shown."""
    value: int = 0
    """Of one context value; 0 hides the context."""


class Page:
    """A preamble under construction, with the space left in it."""

    def __init__(self, *, shape: ModeLimits, template: Template, count: TokenCounter) -> None:
        self.shape, self._template, self._count = shape, template, count
        self._values: dict[str, Any] = {"stages": [], "context": [], "retries": [], "goal": ""}
        self._left: dict[str, int] = {"omitted": 0, "context_omitted": 0, "retries_omitted": 0}
        self._kept: Mapping[str, object] = {}
        self._free = 0
        """Tokens free beside head and goal."""

    def clip(self, text: object, tokens: int) -> str:
        """A text on one line, cut to a number of tokens."""
        line = one_line(text, 16 * tokens)
        if self._count.text(line) <= tokens:
            return line
        return self._count.head(line, max(1, tokens - 2)).rstrip(f"{CUT} ") + CUT

    def head(self, **values: object) -> None:
        """Set the values that are always present."""
        self._values |= values

    def goal(self, goal: object) -> None:
        """Set the goal: at most a quarter of the page, or the rest of a page that has nothing else."""
        room = self._room()
        quarter = self.shape.budget // 4
        most = room - 4 if self.shape.budget <= 100 else min(quarter, room)
        self._values["goal"] = said = self.clip(goal, max(1, most))
        self._free = room - self._count.text(said) - ENTRY

    def fill(
        self,
        stages: Sequence[tuple[str, Mapping[str, object]]],
        count: int,
        values: Mapping[str, object],
        again: Sequence[tuple[str, str]],
    ) -> None:
        """Fill in stages (of `count`), context and retries; each gets a share of the space, and what others leave.

        Only the most recent stages are needed.
        """
        kept = values.get(KEPT)
        self._kept = cast("Mapping[str, object]", kept) if isinstance(kept, Mapping) else {}
        room = max(0, self._free) - 8 * sum(bool(one) for one in (stages, values, again))
        room -= self._put(
            "retries", [self._entry(name, said) for name, said in again[: room // 8]], room // 8, len(again)
        )
        half = room // 2 if self.shape.value else room
        wanted, left = visible_entries(values, room // 4 + 1) if self.shape.value else ([], 0)
        rough = self._context(wanted, left, half)
        recent = (self._stage(completed_stage(*one, values)) for one in reversed(stages))
        room -= self._put("stages", recent, room - rough, count)
        self._values["stages"].reverse()
        if self._left["context_omitted"] or room > half:
            self._context(wanted, left, room)

    def text(self) -> str:
        """The page, within its budget."""
        while True:
            text = self._rendered()
            if self._count.text(text) <= self.shape.budget:
                return text
            if not self._shorten():
                return self._count.head(text, self.shape.budget)

    def _rendered(self) -> str:
        left = {name: f"{count:,}" if count else "" for name, count in self._left.items()}
        return self._template.render({**self._values, **left})

    def _room(self) -> int:
        return max(0, self.shape.budget - self._count.text(self._rendered()))

    def _shorten(self) -> bool:
        """Remove the least important content; False if nothing is left to remove."""
        for name, omitted, at in (("stages", "omitted", 0), ("context", "context_omitted", -1)):
            entries: list[object] = self._values[name]
            if len(entries) > (name == "stages"):
                del entries[at]
                self._left[omitted] += 1
                return True
        if self._values["retries"]:
            self._left["retries_omitted"] += len(self._values["retries"])
            self._values["retries"] = []
            return True
        goal: str = self._values["goal"]
        self._values["goal"] = goal[: len(goal) // 2].rstrip(f"{CUT} ") + CUT if len(goal) > len(CUT) + 1 else ""
        return len(goal) > len(CUT)

    def _put(self, name: str, entries: Iterable[Mapping[str, str]], room: int, every: int) -> int:
        """Add entries while they fit; the tokens used."""
        kept: list[Mapping[str, str]] = []
        spent = 0
        for entry in entries:
            cost = self._signs(name, entry) + sum(_cost(self._count, said) for said in entry.values())
            if spent + cost > room:
                break
            spent += cost
            kept.append(entry)
        self._values[name] = kept
        self._left["omitted" if name == "stages" else f"{name}_omitted"] = every - len(kept)
        return spent

    def _signs(self, name: str, entry: Mapping[str, str]) -> int:
        """Tokens of the template's markup around an entry."""
        if not self.shape.notes:
            return JOINED if name == "stages" else NESTED
        return ENTRY + LABELLED * (bool(entry.get("tools")) + bool(entry.get("duration")))

    def _context(self, wanted: Sequence[tuple[str, object]], left: int, room: int) -> int:
        """Add context values, shortened until all of them fit, or as many as fit."""
        most, spent = self.shape.value, 0
        while most and wanted:
            most = most if 8 * len(wanted) < room else LEAST
            entries = (self._value(key, value, most) for key, value in wanted)
            spent = self._put("context", entries, room, len(wanted))
            if not self._left["context_omitted"] or most <= LEAST:
                break
            most = max(LEAST, most // 2)
        self._left["context_omitted"] = left + len(wanted) - len(self._values["context"])
        return spent

    def _value(self, key: str, value: object, most: int) -> Mapping[str, str]:
        name = one_line(key, 120)
        in_json = self.shape.details
        return {
            "name": quote(name) if in_json else escape_lead(name),
            "said": show_value(value, self._reference(key), most),
        }

    def _reference(self, key: str) -> str:
        said = self._kept.get(key)
        return said if isinstance(said, str) else artifact_reference(key)

    def _entry(self, name: str, said: str) -> Mapping[str, str]:
        return {"name": escape_lead(one_line(name, 120)), "said": one_line(said, 40)}

    def _stage(self, one: CompletedStage) -> Mapping[str, str]:
        name, outcome = escape_lead(one_line(one.name, 120)), one_line(one.outcome, 60)
        if not self.shape.notes:
            return {"said": f"{name} ({outcome})" if self.shape.outcomes else name}
        notes = one_line(one.said(NOTES) or "", self.shape.notes)
        entry = {"said": f"{name}: {outcome}" + (f" — {notes}" if notes else "")}
        if self.shape.details:
            entry |= {"tools": _tools(one.said(TOOLS)), "duration": _duration(one.said(DURATION))}
        return entry


def _cost(count: TokenCounter, text: str) -> int:
    return _remembered_cost(count, text) if len(text) <= OFTEN else count.text(text)


@lru_cache(maxsize=8_192)
def _remembered_cost(count: TokenCounter, text: str) -> int:
    return count.text(text)


def _tools(tools: object) -> str:
    """Names of tools, given names or calls."""
    if not isinstance(tools, list | tuple):
        return one_line(tools or "", 300)
    names = [_call_name(one) for one in cast("Sequence[object]", tools)[:100]]
    return one_line(", ".join(dict.fromkeys(safe_str(one) for one in names if one)), 300)


def _call_name(call: object) -> object:
    if not isinstance(call, Mapping):
        return call
    fields = cast("Mapping[str, object]", call)
    return fields.get("name") or fields.get("tool_name")


def _duration(duration: object) -> str:
    """Seconds as `1.2s`; anything else as text."""
    if isinstance(duration, int | float) and not isinstance(duration, bool):
        return f"{duration:.1f}s"[:40]
    return one_line("" if duration is None else duration, 40)


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
    """The text before the prompt of a stage that starts a new conversation, as markdown; empty at `full`.

    At most 100, 500, 600, 1,500 or 3,000 tokens for any input, as `counter` counts.

    Args:
        mode: One of the six fidelities.
        pipeline: Something with `name`, `goal` and `nodes`, such as a `Graph`.
        context: A mapping, or something with a `snapshot()`; internal keys are hidden, and a value above 8 kB is a
            reference and a preview. `truncate` shows its `run_id`.
        completed_nodes: Names of stages, in the order of completion.
        current_node: The stage about to run, or its name.
        logs: Mappings with `node`, `outcome`, `notes`, `tools` and `duration`; the last one about a stage counts.
        counter: Token counter; o200k by default.

    Raises:
        FidelityError: `mode` is not one of the six.
    """
    fidelity = Fidelity.parse(mode, where="mode")
    if fidelity is Fidelity.FULL:
        return ""
    values, shape = context_values(context), LIMITS[fidelity]
    stages, count = completed_stages(completed_nodes or (), logs or (), shape.budget // 4 if fidelity.cap else 0)
    total = stage_count(pipeline) or count + 1
    page = Page(shape=shape, template=_template(fidelity), count=as_counter(counter))
    name, current = safe_str(getattr(pipeline, "name", "") or ""), node_name(current_node)
    run_id = values.get("run_id") or values.get("internal.run_id") or "unknown"
    last = completed_stage(*stages[-1], values).outcome if stages else "none"
    short = shape.budget // 8
    page.head(
        pipeline=page.clip(name, short),
        run_id=page.clip(run_id, short),
        current=page.clip(current, short),
        last_outcome=page.clip(last, short),
        position=min(count + 1, total),
        total=total,
    )
    page.goal(getattr(pipeline, "goal", "") or "")
    if fidelity is not Fidelity.TRUNCATE:
        page.fill(stages, count, values, list(stage_retries(values, pipeline)) if shape.details else [])
    return page.text()


@cache
def _template(fidelity: Fidelity) -> Template:
    name = f"fidelity/{fidelity.replace(':', '-')}"
    path = shipped_templates() / f"{name}.md"
    return Template.parse(path.read_text(encoding="utf-8"), name=name, source="builtin", path=str(path))
