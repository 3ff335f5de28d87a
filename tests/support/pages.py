"""The pages of this project."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))))


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")
