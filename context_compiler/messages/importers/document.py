"""A file is one JSON value, or one JSON value a line; whatever else it is gets an error with line and column."""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from math import isinf

from context_compiler.errors import TranscriptError


class _Unkeepable(ValueError):
    """A literal that no JSON can keep."""

    def __init__(self, literal: str) -> None:
        super().__init__(literal)
        self.literal = literal


def _refuse(literal: str) -> object:
    raise _Unkeepable(literal)


def _finite(literal: str) -> float:
    value = float(literal)
    if isinf(value):
        raise _Unkeepable(literal)
    return value


_STRICT = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)


def strict(text: str) -> object:
    """One JSON value, without NaN, infinities or numbers beyond what can be kept.

    Raises:
        ValueError: it is not such a value.
        RecursionError: it is nested too deeply.
    """
    return _STRICT.decode(text)


def load(data: bytes, *, file: str) -> object:
    """The value of a JSON file, or the list of the values of a JSONL file.

    Raises:
        TranscriptError: `data` is empty, not UTF-8, or not JSON.
    """
    text = _decoded(data, file)
    if not text.strip():
        raise TranscriptError("is empty; name a file that holds a transcript", file=file)
    try:
        return strict(text)
    except (ValueError, RecursionError) as error:
        lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        if len(lines) > 1 and _is_value(lines[0][1]):
            return [_line(line, number, index, file) for index, (number, line) in enumerate(lines)]
        raise TranscriptError(_why(error, text), file=file) from None


def _decoded(data: bytes, file: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        wide = data.startswith((BOM_UTF16_LE, BOM_UTF16_BE))
        found = "it looks like UTF-16" if wide else f"byte {error.start} is not UTF-8"
        raise TranscriptError(f"is not UTF-8 text ({found}); save it as UTF-8", file=file) from None


def _is_value(line: str) -> bool:
    try:
        strict(line)
    except (ValueError, RecursionError):
        return False
    return True


def _line(line: str, number: int, index: int, file: str) -> object:
    try:
        return strict(line)
    except (ValueError, RecursionError) as error:
        raise TranscriptError(_why(error, line, number), file=file, index=index) from None


def _why(error: Exception, text: str, line: int = 1) -> str:
    """What is wrong with a text that starts at `line`, and where."""
    if isinstance(error, RecursionError):
        return f"is nested too deeply to be read (line {line}); no transcript needs that"
    if isinstance(error, _Unkeepable):
        place = _place(text, _position(text, error.literal), line)
        return f"is not JSON: {error.literal[:40]} at {place} is no finite number; write null or a string instead"
    if isinstance(error, json.JSONDecodeError):
        nul = "; the file holds NUL bytes, is it UTF-16 or binary?" if "\0" in text else ""
        return f"is not JSON: {error.msg.removesuffix(' at')} at {_place(text, error.pos, line)}{nul}"
    return f"is not JSON that can be kept (from line {line}): a number has too many digits; write it as a string"


def _place(text: str, position: int, line: int) -> str:
    column = position - text.rfind("\n", 0, position)
    return f"line {line + text.count(chr(10), 0, position)}, column {column}"


def _position(text: str, literal: str) -> int:
    """Where a literal stands outside of strings."""
    for match in re.finditer(rf'"(?:[^"\\]|\\.)*"|({re.escape(literal)})', text, re.DOTALL):
        if match.group(1) is not None:
            return match.start(1)
    return 0
