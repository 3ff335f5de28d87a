"""Prose that is not a template of the user's: what a compiler is told, and what stands above a summary.

It lives in `templates/parts/` beside the shipped templates, so that all prose is in one place.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def shipped_templates() -> Path:
    """The folder of the shipped templates: inside the package when installed, beside it in a checkout."""
    package = Path(__file__).parent.parent
    inside = package / "_templates"
    return inside if inside.is_dir() else package.parent / "templates"


@cache
def prose(name: str) -> str:
    """One shipped text by name, without surrounding blank lines."""
    return (shipped_templates() / "parts" / f"{name}.md").read_text(encoding="utf-8").strip()
