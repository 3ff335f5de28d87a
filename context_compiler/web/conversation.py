"""A request as a conversation: one line for each part until it is opened, calls beside results, highlighted code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, cast

from markupsafe import Markup, escape
from pygments import formatters, highlight, lexers
from pygments.util import ClassNotFound

from context_compiler.messages.display import Segment, ShownMessage, ShownPart
from context_compiler.resilience import attempt

LINE = 150
"""Maximum characters of the line of a folded part."""

LONG = 1_200
"""Characters above which the text of a prompt or answer is folded."""

PAINTED = 30_000
"""Maximum characters that are highlighted in one part."""

FOLDED = ("call", "return", "thinking")
"""Kinds of parts that are folded, whatever their length."""

_FENCE = re.compile(r"^```([\w+#.-]*)[^\n]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"(?<![\w./-])[\w./-]*\w\.[A-Za-z]\w{0,9}\b")
_LEXERS = cast("Any", lexers)
_FORMAT = cast("Any", formatters).HtmlFormatter(nowrap=True, classprefix="h-")


def calls_of(messages: Iterable[ShownMessage]) -> Mapping[str, ShownPart]:
    """The calls of some messages, by id, so that a result can be shown with its call."""
    return {part.call: part for message in messages for part in message.parts if part.kind == "call" and part.call}


def is_folded(part: ShownPart) -> bool:
    """True for a part that is one line until it is opened; one of several segments is folded segment by segment."""
    return part.kind in FOLDED or (len(part.segments) == 1 and len(part.segments[0].text) > LONG)


def gist(part: ShownPart | Segment) -> str:
    """A part in one line: the arguments of a call, or the first words of a text and its number of lines."""
    text = part.text if isinstance(part, Segment) else text_of(part)
    is_call = isinstance(part, ShownPart) and part.kind == "call"
    parsed: object = attempt(lambda: json.loads(text)).value if is_call else None
    if isinstance(parsed, dict):
        arguments = (f"{name}={_short(value)}" for name, value in cast("dict[str, object]", parsed).items())
        return _cut(", ".join(arguments))
    lines = text.strip().count("\n") + 1
    return _cut(" ".join(text[: 4 * LINE].split())) + (f" · {lines:,} lines" if lines > 1 else "")


def text_of(part: ShownPart) -> str:
    """The whole text of a part."""
    return "\n\n".join(segment.text for segment in part.segments)


def painted(part: ShownPart, calls: Mapping[str, ShownPart]) -> Markup:
    """The text of a part as HTML: JSON and code are highlighted, and JSON is indented."""
    text = text_of(part)
    if part.kind == "call" or text.lstrip()[:1] in ("{", "["):
        parsed = attempt(lambda: json.loads(text))
        if parsed.value is not None and len(text) <= PAINTED:
            return _paint(json.dumps(parsed.value, indent=2, ensure_ascii=False), "json")
    if part.kind == "return":
        call = calls.get(part.call)
        named = _FILE.findall(text_of(call)) if call is not None else []
        return _paint(text, named[0].lower() if named else "")
    markup, start = Markup(), 0
    for fence in _FENCE.finditer(text):
        markup += escape(text[start : fence.start(2)]) + _paint(fence[2], fence[1].lower())
        start = fence.end(2)
    return markup + escape(text[start:])


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return _cut(" ".join(text.split()), 60)


def _cut(text: str, length: int = LINE) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _paint(text: str, language: str) -> Markup:
    """Highlight a text in a language, or in that of a file name; escape it only, if the language is unknown."""
    lexer = _lexer(language) if language and len(text) <= PAINTED else None
    return escape(text) if lexer is None else Markup(highlight(text, lexer, _FORMAT))


@lru_cache(maxsize=200)
def _lexer(language: str) -> Any:
    find = _LEXERS.get_lexer_for_filename if "." in language else _LEXERS.get_lexer_by_name
    try:
        return find(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None
