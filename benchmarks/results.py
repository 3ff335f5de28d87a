"""Results on disk: written at once, and not measured again while code and data are the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

PRINTING = {"__main__.py", "goals.py", "page.py", "results.py", "tables.py"}
"""Modules of the benchmarks that do not affect figures."""


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One measurement: a measure of an approach on a set at a budget."""

    measure: str
    approach: str
    data: str
    budget: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Result of a cell: values, or a dash with its reason."""

    cell: Cell
    stamp: str
    """Hash of the code and the data that produced it."""
    value: Mapping[str, Any] | None = None
    dash: str = ""
    seconds: float = 0.0
    ran: str = ""
    """Date, machine and versions."""


def code(*, ours: bool) -> str:
    """Return a hash of the benchmarks' code, and of the package too if `ours`."""
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
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "results.jsonl"
        self._known: dict[Cell, Result] = {}
        if not resume:
            self.path.unlink(missing_ok=True)
        elif self.path.exists():
            self._known = {result.cell: result for result in _read(self.path)}

    def __iter__(self) -> Iterator[Result]:
        return iter(self._known.values())

    def find(self, cell: Cell, stamp: str) -> Result | None:
        """Return the result of a cell if it was made with the same code and data, else None."""
        result = self._known.get(cell)
        return result if result is not None and result.stamp == stamp else None

    def keep(self, result: Result) -> None:
        """Write a result to disk at once."""
        self._known[result.cell] = result
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(result)) + "\n")


def _read(path: Path) -> Iterator[Result]:
    """Yield the results of every whole line; a killed process may have left an incomplete last line."""
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            document: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        cell = Cell(**document.pop("cell"))
        yield Result(cell=cell, **document)
