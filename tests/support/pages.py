"""The pages of this project."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")
