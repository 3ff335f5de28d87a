"""What has been measured is on disk at once, and is not measured again while code and data are the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

PRINTING = {"__main__.py", "goals.py", "page.py", "results.py", "tables.py"}
"""Modules of the benchmarks that change no figure."""


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One figure, or several that come together: a measure of an approach on a set at a budget."""

    measure: str
    approach: str
    data: str
    budget: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a cell came to: values, or a dash with its reason."""

    cell: Cell
    stamp: str
    """Names the code and the data it was made with."""
    value: Mapping[str, Any] | None = None
    dash: str = ""
    seconds: float = 0.0
    ran: str = ""
    """The day, the machine and the versions."""


def code(*, ours: bool) -> str:
    """A name for the code: of the benchmarks, and of the package where that is what is measured."""
    mark = hashlib.sha256()
    folders = [ROOT / "benchmarks", *([ROOT / "context_compiler", ROOT / "templates"] if ours else [])]
    for folder in folders:
        for path in sorted([*folder.rglob("*.py"), *folder.rglob("*.md")]):
            if path.parent == ROOT / "benchmarks" and path.name in PRINTING:
                continue
            mark.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return mark.hexdigest()[:16]


class Results:
    """The results in a folder."""

    def __init__(self, folder: Path, *, resume: bool) -> None:
        """Go on with what is there, or begin anew."""
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "results.jsonl"
        self._known: dict[Cell, Result] = {}
        if not resume:
            self.path.unlink(missing_ok=True)
        elif self.path.exists():
            self._known = {one.cell: one for one in _read(self.path)}

    def __iter__(self) -> Iterator[Result]:
        return iter(self._known.values())

    def find(self, cell: Cell, stamp: str) -> Result | None:
        """The result of a cell, if it was made with the same code and data."""
        known = self._known.get(cell)
        return known if known is not None and known.stamp == stamp else None

    def keep(self, result: Result) -> None:
        """Write a result down at once."""
        self._known[result.cell] = result
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(result)) + "\n")


def _read(path: Path) -> Iterator[Result]:
    """Every whole line; the last one of a process that was killed may be half a line."""
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            given: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        cell = Cell(**given.pop("cell"))
        yield Result(cell=cell, **given)
