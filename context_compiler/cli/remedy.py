"""The remedy of `views why`, which compiles a history again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from context_compiler.messages.bodies import load_messages
from context_compiler.middleware.remedies import Remedy, find_remedy
from context_compiler.record.browse import RequestRow
from context_compiler.record.values import Record
from context_compiler.template import TemplateLibrary


async def find(
    bodies: Sequence[bytes],
    row: RequestRow,
    record: Record,
    position: int,
    words: str,
    *,
    vault: Path | None,
    system: Path,
) -> Remedy:
    """Find what would have kept a message, or words of it, in a request with this history."""
    library = TemplateLibrary(vault=vault, system=system)
    return await find_remedy(load_messages(bodies), row, record, library, position, words)
