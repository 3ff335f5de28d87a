"""A page is filled within its budget: what must be there first, then stages from the newest, then the context."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from context_compiler.pipeline.excerpts import (
    CUT,
    KEPT,
    OFTEN,
    artifact_reference,
    as_text,
    one_line,
    plain_lead,
    quoted,
    shown,
)
from context_compiler.pipeline.progress import DURATION, NOTES, TOOLS, Done, done, visible
from context_compiler.template import Template
from context_compiler.tokens import TokenCounter

LEAST = 40
"""Characters to which a value is shortened before whole values are left out."""
ENTRY, NESTED, JOINED = 3, 4, 1
"""Tokens of the signs around an entry: on a line of its own, on one that is indented, on one with others."""
LABELLED = 5
"""Tokens of what stands before the tools of a stage, and before its duration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What one mode shows, in characters but for the budget, which is in tokens."""

    budget: int
    notes: int = 0
    """Of what a stage noted."""
    outcomes: bool = True
    details: bool = False
    """Whether tools, durations and retries are shown."""
    value: int = 0
    """Of one value of the context; 0: the context is not shown."""


class Page:
    """One preamble while it is being filled: what is on it, and what there is room for."""

    def __init__(self, *, shape: Shape, template: Template, count: TokenCounter) -> None:
        self.shape, self._template, self._count = shape, template, count
        self._values: dict[str, Any] = {"stages": [], "context": [], "retries": [], "goal": ""}
        self._left: dict[str, int] = {"omitted": 0, "context_omitted": 0, "retries_omitted": 0}
        self._kept: Mapping[str, object] = {}
        self._free = 0
        """Tokens that are free beside head and goal."""

    def clipped(self, text: object, tokens: int) -> str:
        """A text on one line, of at most so many tokens."""
        line = one_line(text, 16 * tokens)
        if self._count.text(line) <= tokens:
            return line
        return self._count.head(line, max(1, tokens - 2)).rstrip(f"{CUT} ") + CUT

    def head(self, **values: object) -> None:
        """What is always there."""
        self._values |= values

    def goal(self, goal: object) -> None:
        """The goal, with at most a quarter of the page, or what is left where nothing else is to come."""
        room = self._room()
        quarter = self.shape.budget // 4
        most = room - 4 if self.shape.budget <= 100 else min(quarter, room)
        self._values["goal"] = said = self.clipped(goal, max(1, most))
        self._free = room - self._count.text(said) - ENTRY

    def fill(
        self,
        stages: Sequence[tuple[str, Mapping[str, object]]],
        count: int,
        values: Mapping[str, object],
        again: Sequence[tuple[str, str]],
    ) -> None:
        """Stages (of `count`), context and retries: each has its share of the room, and what another leaves.

        Only the last of the stages need be there.
        """
        kept = values.get(KEPT)
        self._kept = cast("Mapping[str, object]", kept) if isinstance(kept, Mapping) else {}
        room = max(0, self._free) - 8 * sum(bool(one) for one in (stages, values, again))
        room -= self._put(
            "retries", [self._entry(name, said) for name, said in again[: room // 8]], room // 8, len(again)
        )
        half = room // 2 if self.shape.value else room
        wanted, left = visible(values, room // 4 + 1) if self.shape.value else ([], 0)
        rough = self._context(wanted, left, half)
        recent = (self._stage(done(*one, values)) for one in reversed(stages))
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
        """Take away what goes first; False: nothing is left to take."""
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
        """As many entries as fit, from the first on; the tokens they take."""
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
        """Tokens of what the template sets around an entry."""
        if not self.shape.notes:
            return JOINED if name == "stages" else NESTED
        return ENTRY + LABELLED * (bool(entry.get("tools")) + bool(entry.get("duration")))

    def _context(self, wanted: Sequence[tuple[str, object]], left: int, room: int) -> int:
        """The values of the context, as long as they may be for all of them to fit, else as many as fit."""
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
        return {"name": quoted(name) if in_json else plain_lead(name), "said": shown(value, self._reference(key), most)}

    def _reference(self, key: str) -> str:
        said = self._kept.get(key)
        return said if isinstance(said, str) else artifact_reference(key)

    def _entry(self, name: str, said: str) -> Mapping[str, str]:
        return {"name": plain_lead(one_line(name, 120)), "said": one_line(said, 40)}

    def _stage(self, one: Done) -> Mapping[str, str]:
        name, outcome = plain_lead(one_line(one.name, 120)), one_line(one.outcome, 60)
        if not self.shape.notes:
            return {"said": f"{name} ({outcome})" if self.shape.outcomes else name}
        notes = one_line(one.said(NOTES) or "", self.shape.notes)
        entry = {"said": f"{name}: {outcome}" + (f" — {notes}" if notes else "")}
        if self.shape.details:
            entry |= {"tools": _tools(one.said(TOOLS)), "duration": _duration(one.said(DURATION))}
        return entry


def _cost(count: TokenCounter, text: str) -> int:
    return _remembered(count, text) if len(text) <= OFTEN else count.text(text)


@lru_cache(maxsize=8_192)
def _remembered(count: TokenCounter, text: str) -> int:
    return count.text(text)


def _tools(tools: object) -> str:
    """Names of tools, as a list of names or of calls."""
    if not isinstance(tools, list | tuple):
        return one_line(tools or "", 300)
    names = [_called(one) for one in cast("Sequence[object]", tools)[:100]]
    return one_line(", ".join(dict.fromkeys(as_text(one) for one in names if one)), 300)


def _called(call: object) -> object:
    if not isinstance(call, Mapping):
        return call
    fields = cast("Mapping[str, object]", call)
    return fields.get("name") or fields.get("tool_name")


def _duration(duration: object) -> str:
    """Seconds as `1.2s`; anything else as it is."""
    if isinstance(duration, int | float) and not isinstance(duration, bool):
        return f"{duration:.1f}s"[:40]
    return one_line("" if duration is None else duration, 40)
