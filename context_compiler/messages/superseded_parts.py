"""What a host keeps in messages stays when they go, unless nobody reads it any more."""

from __future__ import annotations

from context_compiler.messages.history import History
from context_compiler.messages.items import Kind


def needless(history: History) -> dict[int, frozenset[int]]:
    """Parts that need not stay when their message goes: their positions, by position of the message.

    That is system text that an earlier message said already, and what the host noted for itself before the last
    compaction: it reads its notes from there on.
    """
    staying = [index for index, reading in enumerate(history.readings) if reading.stays]
    noted = any(item.kind is Kind.CONTROL for index in staying for item in history.readings[index].items)
    window = _window(history) if noted else (0, 0)
    said: set[str] = set()
    found: dict[int, set[int]] = {}
    for index in staying:
        for at, item in enumerate(history.readings[index].items):
            if item.kind is not Kind.SYSTEM:
                gone = item.kind is Kind.CONTROL and (index, at) < window
            else:
                gone = item.text in said
                said.add(item.text)
            if gone:
                found.setdefault(index, set()).add(at)
    return {index: frozenset(parts) for index, parts in found.items()}


def _window(history: History) -> tuple[int, int]:
    """Where the host's window opens: message and part of the last compaction, or the first of all."""
    for index in range(len(history) - 1, -1, -1):
        reading = history.readings[index]
        ends = [at for at, item in enumerate(reading.items) if item.kind is Kind.COMPACTION and item.mark is None]
        if not ends:
            continue
        if not reading.request:
            return index, ends[-1]
        while index and history.readings[index - 1].request:
            index -= 1
        return index, 0
    return 0, 0
