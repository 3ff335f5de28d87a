"""Describe a tool exchange in two lines of text: one for the call, one for its outcome."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from context_compiler.messages.fences import SCANNED, TERMINAL, WIDTH, clip, one_line
from context_compiler.messages.items import parse_arguments

PARSED = 200_000
"""Maximum characters of JSON to parse; longer JSON is treated as plain text."""

NAMED, OTHER = 96, 40
"""Maximum characters of an informative argument, and of any other, on a line with several arguments."""

SLIVER = 24
"""Minimum characters to which a field is clipped; with less space it is left out."""

_INFORMATIVE = (
    "command", "cmd", "file_path", "filepath", "path", "file", "filename", "id", "name", "query", "pattern", "url",
    "question", "expression", "code",
)  # fmt: skip
"""Informative argument names, most informative first."""
_INFORMATIVE_ENDS = ("_id", "_ids", "path", "file", "number", "name")

_FAILURE = re.compile(
    r"""(?ix)
    ^\W{0,4} (?:
        (?:\w+\s){0,3} error\b (?: \[ | \s?:\s | ! )
      | errors?$
      | (?-i: [A-Z][\w.]{0,80} (?:Error|Exception|Failure)\b )
      | (?: fatal | panic | critical ) \s?:
      | (?: failed | failure | traceback | unable\s to | invalid\s | cannot\s | can't\s | no\ such\s )
      | (?: access | permission ) \s denied
    )
    | \b (?:exit|exited|return|returned) (?:\ with)? [ _] (?:code|status) \ ?[:=]?\ ? -?[1-9]\d{0,4} \b
    | \b (?: command\ not\ found | no\ such\ file\ or\ directory | permission\ denied | segmentation\ fault ) \b
    | \b (?: timed\ out | HTTP\s?[45]\d\d ) \b
    | ^ (?: npm\ (?:ERR!|error)\s | make:\ \*\*\* | E\s{1,4}\S )
    """
)
"""An error line. Every repetition is bounded, so that matching is linear."""

_MENTION = re.compile(r"(?i)\b(?:error|exception|failed|failure|denied|invalid|not found|refused|aborted|timeout)\b")
_EXCEPTION = re.compile(r"^\W{0,4}[A-Za-z_][\w.]{0,80}(?:Error|Exception|Interrupt|Exit|Warning)\b\s*(?::|$)")
_STATUS_KEYS = ("error", "errors", "exception", "message", "detail", "reason", "stderr", "exit_code", "status")
"""Keys under which a result reports errors or its status, most important first."""


def call_line(tool: str, args_text: str, *, width: int = WIDTH) -> str:
    """Describe a call as `name(key=value, …)`: most informative arguments first, long values clipped in the middle.

    Args:
        tool: Name of the tool.
        args_text: Its arguments as JSON; anything but a JSON object is shown unchanged.
        width: Maximum characters of the line.
    """
    name = one_line(tool, 64) or "tool"
    arguments = parse_arguments(args_text) if len(args_text) <= PARSED else None
    if arguments is None:
        bare = one_line(args_text, max(width - len(name) - 2, 1))
        return clip(f"{name}({bare})", width)
    alone = len(arguments) == 1
    room = width - len(name) - 2
    shown = (
        _field(key, arguments[key], room if alone else _width(key, arguments[key])) for key in _rank_keys(arguments)
    )
    return clip(f"{name}({_join_fields(shown, len(arguments), room)})", width)


def _join_fields(fields: Iterable[str], total: int, room: int) -> str:
    """Join the first of `total` fields that fit, the last of them clipped; a `…` shows that more were left out."""
    shown: list[str] = []
    for number, field in enumerate(fields, 1):
        left = room - (2 if shown else 0) - (3 if number < total else 0)  # for ", " before it and ", …" after it
        if len(field) > left:
            shown.append(clip(field, left) if left >= SLIVER else "…")
            shown.extend(["…"] if left >= SLIVER and number < total else [])
            break
        shown.append(field)
        room -= len(field) + (2 if len(shown) > 1 else 0)
    return ", ".join(shown)


def _rank_keys(fields: Mapping[str, object]) -> list[str]:
    """Sort keys: scalars before nested values, informative names first; ties keep their order."""
    return sorted(fields, key=lambda key: _rank(key, fields[key]))


def _rank(key: str, value: object) -> tuple[bool, int, bool]:
    lowered = key.lower()
    position = _INFORMATIVE.index(lowered) if lowered in _INFORMATIVE else len(_INFORMATIVE)
    if position == len(_INFORMATIVE) and lowered.endswith(_INFORMATIVE_ENDS):
        position -= 1
    return _is_nested(value), position, isinstance(value, str) and len(value) > 400


def _is_nested(value: object) -> bool:
    """True unless the value is a scalar or a short list of scalars."""
    if isinstance(value, list):
        entries = cast(list[object], value)
        return len(entries) > 8 or any(isinstance(entry, dict | list) for entry in entries)
    return isinstance(value, dict)


def _width(key: str, value: object) -> int:
    lowered = key.lower()
    named = lowered in _INFORMATIVE or lowered in _STATUS_KEYS or lowered.endswith(_INFORMATIVE_ENDS)
    return NAMED if named or isinstance(value, dict | list) else OTHER


def _field(key: str, value: object, width: int) -> str:
    name = one_line(key, 40)
    return f"{name}={one_line(_value_text(value), max(width - len(name) - 1, 1))}"


def _value_text(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def outcome_line(text: str, *, failed: bool, width: int = WIDTH) -> str:
    """Describe the outcome of a call: the error if there is one, else the first informative line.

    Args:
        text: The result, as the model would read it.
        failed: True if the host reports a failure; then any line that mentions an error counts as the error.
        width: Maximum characters of the line.
    """
    if not text.strip():
        return clip("(empty)", width)
    shown = _describe_json(text, width) or _describe_lines(text, failed)
    return one_line(shown, width) or clip("(empty)", width)


def _describe_json(text: str, width: int) -> str:
    """Describe a JSON result by its most important values; empty if the text is not JSON."""
    if len(text) > PARSED or text.lstrip()[:1] not in ("{", "["):
        return ""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    if isinstance(value, list):
        entries = cast(list[object], value)
        count = f"[{len(entries)} entries]"
        if ids := nested_ids(entries):
            return one_line(f"{count} {ids}", width)
        return f"{count} {_describe_value(entries[0], width - len(count) - 1)}" if entries else count
    return _describe_value(value, width)


def _describe_value(value: object, width: int) -> str:
    shown = _value_text(value)
    if not isinstance(value, dict) or not value:
        return one_line(shown, width)
    fields = cast(dict[str, object], value)
    keys = sorted(_rank_keys(fields), key=lambda key: _urgency(key, fields[key]))
    return _join_fields(
        (_field(key, _summarize_nested(fields[key]), _width(key, fields[key])) for key in keys), len(keys), width
    )


def _urgency(key: str, value: object) -> int:
    """Sort key: errors first, then identifiers, then values that contain identifiers."""
    if key in _STATUS_KEYS:
        return _STATUS_KEYS.index(key)
    nested = _is_nested(value)
    if is_id_field(key) or (nested and nested_ids(value)):
        return len(_STATUS_KEYS) + nested
    return len(_STATUS_KEYS) + 2


def _summarize_nested(value: object) -> object:
    """Replace a nested value by its size and the identifiers in it; return other values unchanged."""
    if not _is_nested(value):
        return value
    size = len(cast(Sequence[object], value))
    if ids := nested_ids(value):
        return f"{{{size} keys: {ids}}}" if isinstance(value, dict) else f"[{size}: {ids}]"
    return f"{{{size} keys}}" if isinstance(value, dict) else f"[{size} entries]"


def _describe_lines(text: str, failed: bool) -> str:
    ends = (text,) if len(text) <= SCANNED * 2 else (text[:SCANNED], text[-SCANNED:])
    lines = [line for end in ends for line in TERMINAL.sub("", end).splitlines() if line.strip()]
    error = _error_line(lines, failed)
    if error:
        return error
    shown = next((line for line in lines if sum(map(str.isalnum, line[:200])) >= 3), lines[0] if lines else text)
    return f"{clip(shown.strip(), WIDTH)} (+{len(lines) - 1} lines)" if len(lines) > 1 else shown


def _error_line(lines: Sequence[str], failed: bool) -> str:
    """Find the error line: the exception at the end of a traceback, else the first error; empty if there is none."""
    heads = [line.strip()[:400] for line in lines]
    errors = [line for line in heads if _FAILURE.search(line)]
    if errors and errors[0].lower().startswith("traceback"):
        return next((line for line in reversed(errors) if _EXCEPTION.match(line)), errors[0])
    if errors:
        return errors[0]
    return next((line for line in heads if _MENTION.search(line)), "") if failed else ""


IDS = ("id", "path", "file", "file_path", "filename", "key", "sha", "url")
ID_ENDS = ("_id", "number")
"""Names, and ends of names, of fields whose values a later call may need."""

VALUES_SEARCHED = 400
"""Maximum nested values to search."""

MAX_ID_WIDTH, IDS_WIDTH = 80, 76
"""Maximum characters of one identifier, and of all identifiers together."""


def is_id_field(key: str) -> bool:
    """True for field names whose values are identifiers."""
    lowered = key.lower()
    return lowered in IDS or lowered.endswith(ID_ENDS)


def nested_ids(value: object) -> str:
    """List the identifiers in a nested value as `field=value, …`, outer ones first; empty if there are none."""
    entries: dict[str, None] = {}
    waiting = deque([value])
    for _ in range(VALUES_SEARCHED):
        if not waiting:
            break
        container = waiting.popleft()
        if isinstance(container, list):
            waiting.extend(cast(list[object], container)[:VALUES_SEARCHED])
            continue
        for key, inner in (cast(dict[str, object], container) if isinstance(container, dict) else {}).items():
            if isinstance(inner, str | int) and is_id_field(key) and 1 < len(str(inner)) <= MAX_ID_WIDTH:
                entry = f"{key[:40]}={inner}"
                if entry not in entries and sum(map(len, entries)) + len(entry) > IDS_WIDTH:
                    return ", ".join([*entries, "…"])
                entries[entry] = None
            elif isinstance(inner, dict | list):
                waiting.append(cast(object, inner))
    return ", ".join(entries)
