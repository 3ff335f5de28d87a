"""Anything at all is shown in a bounded number of characters, on one line, without being serialised whole.

What is shown can neither begin a heading nor a fence, nor pass for a note of ours.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from functools import lru_cache
from heapq import nsmallest
from itertools import islice
from typing import cast

from context_compiler.messages.fences import neutral

LARGEST = 8 * 1024
"""Bytes of a value that is shown itself; of a larger one, a reference and a preview."""
KEPT = "internal.kept"
"""The key of the context that says where values are kept that are not under their usual references, by their keys."""
OFTEN = 400
"""Characters of a text that is remembered as shown: every stage of a run is told much of what the one before was."""
DEEPEST = 8
"""Containers within containers that are shown."""
CUT = "…"

_FAILING = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What the `__str__` of a stranger's object can trip over."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_UNFIT = re.compile(r"[^A-Za-z0-9_.-]")
_LEADING = re.compile(r"[#`~>=|*+_-]|\d{1,9}[.)]|<")


def one_line(text: object, most: int) -> str:
    """The beginning of a text on one line, without blanks at its ends; what is cut ends in an ellipsis."""
    whole = text if isinstance(text, str) else as_text(text)
    if type(whole) is str and len(whole) <= OFTEN:
        return _remembered_line(whole, most)
    return _on_one_line(whole, most)


def _on_one_line(whole: str, most: int) -> str:
    line = " ".join(neutral(" ".join(whole[: most + 1].split())).split())
    cut = len(whole) > most + 1 or len(line) > most
    return line[: most - 1].rstrip() + CUT if cut else line


_remembered_line = lru_cache(maxsize=8_192)(_on_one_line)


def plain_lead(line: str) -> str:
    """A line that can follow `- ` without turning into a heading, a fence, a quote or a list."""
    return f"\\{line}" if _LEADING.match(line) else line


def as_text(value: object) -> str:
    """`str` of anything: never raises, and says nothing of where in memory a thing lies."""
    if type(value) is str:
        return value
    try:
        return _ADDRESS.sub("", str(value))
    except _FAILING:
        return f"<{type(value).__name__}>"


def artifact_reference(key: str) -> str:
    """Under which name a value of the context that is too large to show can be kept."""
    return f"artifact://context.{_UNFIT.sub('_', key[:100])}"


def shown(value: object, reference: str, most: int) -> str:
    """A value as JSON of at most about `most` characters; one that is cut is a string that ends in an ellipsis.

    A value above 8 kB becomes `reference`, which says where it is kept, and a preview.
    """
    if type(value) is str and len(value) <= OFTEN:
        return _remembered(value, most)
    return _shown(value, reference, most)


def _shown(value: object, reference: str, most: int) -> str:
    text, whole = encoded(value, LARGEST)
    if whole and len(text.encode("utf-8", "replace")) <= LARGEST:
        return text if len(text) <= most else quoted(_preview(value, text, most))
    size = f"{len(value):,} characters" if isinstance(value, str) else f"more than {LARGEST // 1024} kB"
    return quoted(f"{reference} ({size}): {_preview(value, text, most)}")


@lru_cache(maxsize=8_192)
def _remembered(value: str, most: int) -> str:
    return _shown(value, "", most)


def _preview(value: object, text: str, most: int) -> str:
    return one_line(value if isinstance(value, str) else text, most)


def quoted(text: str) -> str:
    """A JSON string, disarmed."""
    return json.dumps(neutral(text), ensure_ascii=False)


def encoded(value: object, room: int) -> tuple[str, bool]:
    """As much of a value's JSON as `room` characters hold, and whether that is all of it.

    Keys are sorted; what JSON does not know is its `str`. A cut text is no JSON.
    """
    pieces: list[str] = []
    for piece in _pieces(value, room, 0):
        pieces.append(piece)
        room -= len(piece)
        if room < 0:
            return "".join(pieces), False
    return "".join(pieces), True


def _pieces(value: object, room: int, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        yield quoted(value[: room + 1])
    elif value is None or isinstance(value, bool):
        yield json.dumps(value)
    elif isinstance(value, int):
        yield str(int(value)) if int(value).bit_length() < 4_000 else f'"{int(value).bit_length():,} bits"'
    elif isinstance(value, float):
        yield repr(float(value)) if math.isfinite(value) else f'"{float(value)}"'
    elif isinstance(value, Mapping | Set | list | tuple) and depth >= DEEPEST:
        yield f'"{CUT}"'
    elif isinstance(value, Mapping):
        yield from _object(cast("Mapping[object, object]", value), room, depth)
    elif isinstance(value, Set):
        inner = nsmallest(room, (as_text(one) for one in cast("Set[object]", value)))
        yield from _array(inner, room, depth)
    elif isinstance(value, list | tuple):
        yield from _array(cast("Collection[object]", value), room, depth)
    else:
        yield quoted(as_text(value)[: room + 1])


def _object(value: Mapping[object, object], room: int, depth: int) -> Iterator[str]:
    yield "{"
    for at, key in enumerate(nsmallest(room // 4 + 1, value, key=as_text)):
        yield f"{', ' if at else ''}{quoted(as_text(key)[: room + 1])}: "
        yield from _pieces(value[key], room, depth + 1)
    yield "}"


def _array(values: Iterable[object], room: int, depth: int) -> Iterator[str]:
    yield "["
    for at, one in enumerate(islice(values, room + 1)):
        if at:
            yield ", "
        yield from _pieces(one, room, depth + 1)
    yield "]"
