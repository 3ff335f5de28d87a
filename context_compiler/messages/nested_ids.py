"""What nested data hold of identifiers can be told in a line, each with the field that it is the value of."""

from __future__ import annotations

from collections import deque
from typing import cast

IDS = ("id", "path", "file", "file_path", "filename", "key", "sha", "url")
ID_ENDS = ("_id", "number")
"""Fields whose values a later call may need."""

WALKED = 400
"""Values looked at."""

LONGEST, WIDTH = 80, 76
"""Characters of one identifier, and of all that are told."""


def names(key: str) -> bool:
    """Whether the values of such a field are identifiers."""
    lowered = key.lower()
    return lowered in IDS or lowered.endswith(ID_ENDS)


def inner(value: object) -> str:
    """The identifiers within a nested value as `field=value, …`, the outer ones first; empty where it holds none."""
    found: dict[str, None] = {}
    waiting = deque([value])
    for _ in range(WALKED):
        if not waiting:
            break
        at = waiting.popleft()
        if isinstance(at, list):
            waiting.extend(cast(list[object], at)[:WALKED])
            continue
        for key, one in (cast(dict[str, object], at) if isinstance(at, dict) else {}).items():
            if isinstance(one, str | int) and names(key) and 1 < len(str(one)) <= LONGEST:
                said = f"{key[:40]}={one}"
                if said not in found and sum(map(len, found)) + len(said) > WIDTH:
                    return ", ".join([*found, "…"])
                found[said] = None
            elif isinstance(one, dict | list):
                waiting.append(cast(object, one))
    return ", ".join(found)
