"""What the steps of a turn gave back, and what is archived, for the node that works with them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from context_compiler.layers.formatting import CUT, label, one_line, without_ids

RESULT = 8_000
"""Characters of one step's result that are shown."""
ARCHIVED = 160
"""Characters of each archived content that are shown, to know what there is."""


def format_results(results: Mapping[str, Any], note: str | None) -> str:
    """The results of this turn's steps, whole, and the last note; empty where there are none."""
    lines = [f"Result of step {number}: {_shown(result, RESULT)}" for number, result in results.items()]
    if note:
        lines.append(f"Note from the previous step: {without_ids(one_line(note))}")
    return "\n".join(lines)


def format_archive(archive: Mapping[str, Any]) -> str:
    """What is archived and can be retrieved by its key, one line each; empty where nothing is."""
    lines = [f"- {label(key)}: {_shown(content, ARCHIVED)}" for key, content in archive.items()]
    return "\n".join(["Archived content:", *lines]) if lines else ""


def _shown(content: object, most: int) -> str:
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, default=str)
    line = without_ids(one_line(text))
    return line if len(line) <= most else f"{line[:most]}{CUT} ({len(line):,} characters)"
