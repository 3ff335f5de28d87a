"""Directives such as `@model openai:gpt-5` at the top of a text; everything below the top is content.

One function for any application: it is given the known names, and returns their values, the text without them, and
any other line at the top unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

_LINE = re.compile(r" {0,3}@(?P<name>[A-Za-z][A-Za-z0-9_-]{0,63})(?::(?!//)|(?=[ \t\r])|$)(?P<value>.*)")
_LINK = ("[[", "]]")
_QUOTES = (('"', '"'), ("'", "'"), ("`", "`"), _LINK)


MOST_FINDINGS = 100
"""Limit of findings per text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Directive:
    """One line at the top of a text."""

    name: str
    """The known name; of an unknown directive, as written."""
    value: str
    """Without quotes or brackets; empty if none was given."""
    line: int
    """From 1, in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem with a line at the top of a text; none of them makes the text unusable."""

    kind: Literal["unknown", "empty", "repeated"]
    message: str
    fix: str
    """Remedy."""
    line: int
    path: str | None = None
    """None if the text comes from no file."""
    near: str | None = None
    """A similar known name."""

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}: " if self.path else f"line {self.line}: "
        return f"{place}{self.message}; {self.fix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Directives:
    """A text and its directives."""

    text: str
    """The content, preceded by the lines with unknown directives, as written."""
    values: Mapping[str, str]
    """Values by known name; the last of several counts."""
    found: tuple[Directive, ...]
    """All directives, known or not, in order."""
    findings: tuple[Finding, ...]


def read_directives(text: str, known: Iterable[str], *, path: str | None = None, line: int = 1) -> Directives:
    r"""Take the directives off the top of a text. Never raises; problems are findings.

    `@name value` and `@name: value` are the same, and so are `-` and `_` in a name, and large and small letters.
    Blank lines may stand between directives; the first other line ends them, and from there on a line that
    begins with `@` is content. So is `\@name` anywhere.

    Args:
        text: Of a step, a prompt, a note.
        known: The names that are directives here; any other is handed back in the text as it was written.
        path: The file it is from, for findings.
        line: The line of the file at which it begins, from 1.
    """
    names = {_fold(name): name for name in known}
    lines = text.split("\n")
    values: dict[str, str] = {}
    found: list[Directive] = []
    findings: list[Finding] = []
    taken: set[int] = set()
    for at, spelt, value in _top(lines):
        name = names.get(_fold(spelt))
        one = Directive(name=name or spelt, value=value, line=line + at)
        found.append(one)
        if len(findings) < MOST_FINDINGS:
            findings += _findings(one, path, known=name is not None, given=values, names=names)
        if name is not None:
            taken.add(at)
            values |= {name: value} if value else {}
    return Directives(text=_without(lines, taken), values=values, found=tuple(found), findings=tuple(findings))


def _top(lines: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    """Directives above the content: line index, name, value."""
    for at, one in enumerate(lines):
        match = _LINE.fullmatch(one)
        if match is not None:
            yield at, match["name"], _unwrap(match["value"])
        elif one.strip():
            return


def _without(lines: Sequence[str], taken: Collection[int]) -> str:
    """The text without the given lines and without blank lines on top; unchanged if there are none."""
    rest = [one for at, one in enumerate(lines) if at not in taken]
    start = next((at for at, one in enumerate(rest) if one.strip()), len(rest))
    return "\n".join(rest[start:] if taken else rest)


def _unwrap(value: str) -> str:
    """A value without the quotes or brackets around it; the target of a wiki link with a caption."""
    said = value.strip()
    for _ in _QUOTES:
        pair = next((pair for pair in _QUOTES if _within(said, *pair)), None)
        if pair is None:
            break
        said = said[len(pair[0]) : len(said) - len(pair[1])].strip()
        said = said.partition("|")[0].strip() if pair == _LINK else said
    return said


def _within(said: str, opening: str, closing: str) -> bool:
    return len(said) >= len(opening) + len(closing) and said.startswith(opening) and said.endswith(closing)


def _fold(name: str) -> str:
    return name.replace("_", "-").lower()


def _findings(
    one: Directive, path: str | None, *, known: bool, given: Mapping[str, str], names: Mapping[str, str]
) -> Iterator[Finding]:
    """Findings about a directive."""
    if not known:
        close = get_close_matches(_fold(one.name), names, n=1, cutoff=0.6)
        near = names[close[0]] if close else None
        message = f"@{one.name} is not known here and stays in the text"
        fix = f"did you mean @{near}?" if near else f"known are {', '.join(f'@{name}' for name in names.values())}"
        yield Finding(kind="unknown", message=message, fix=fix, line=one.line, path=path, near=near)
    elif not one.value:
        message, fix = f"@{one.name} has no value and is passed over", f"give one, such as @{one.name} NAME"
        yield Finding(kind="empty", message=message, fix=fix, line=one.line, path=path)
    elif one.name in given:
        message, fix = f"@{one.name} is given more than once, and the last one counts", "keep one"
        yield Finding(kind="repeated", message=message, fix=fix, line=one.line, path=path)
