"""A template file is front matter and body; every entry of the front matter knows its line.

The front matter is a YAML mapping between two `---` lines at the very top. A file without one is all body.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import cast

import yaml

MOST_FRONT_MATTER = 16_000
"""Characters of front matter: more than people write, and read in well under a second."""
DEEPEST = 10
"""Lists and mappings within each other."""


class Misread(Exception):
    """Front matter that cannot be read; `line` is 1-based, in the file."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One value of the front matter, where its key stands, and the entries inside it if it is a mapping."""

    value: object
    line: int
    """1-based, in the file."""
    inner: Mapping[str, Entry] = field(default_factory=dict[str, "Entry"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A template file, taken apart."""

    entries: Mapping[str, Entry]
    body: str
    offset: int
    """Lines of the file above the body."""


@lru_cache(maxsize=32)
def taken_apart(text: str) -> Source:
    """Take a file apart, once for every text: many compilers of one process read the same few templates.

    Raises:
        Misread: there is front matter that is not a plain YAML mapping, never ends, or is far too long.
    """
    lines = text.split("\n")
    end = _end(lines) if _is_rule(lines[0]) else 0
    matter, body = lines[1:end], "\n".join(lines[end + 1 if end else 0 :])
    above = len(lines) - body.lstrip("\n").count("\n") - 1
    return Source(entries=_entries("\n".join(matter)) if end else {}, body=body.strip("\n"), offset=above)


def _end(lines: list[str]) -> int:
    """Where front matter ends; 0 when the first line is only a rule above plain markdown."""
    end = next((number for number, line in enumerate(lines) if number and _is_rule(line)), 0)
    if not end and len(lines) > 1 and re.match(r"[\w-]+\s*:", lines[1]):
        raise Misread("the front matter is never closed; end it with a line ---", 1)
    return end


def _is_rule(line: str) -> bool:
    return line.rstrip() == "---"


def _entries(text: str) -> Mapping[str, Entry]:
    if len(text) > MOST_FRONT_MATTER:
        raise Misread(f"the front matter is longer than {MOST_FRONT_MATTER:,} characters", 1)
    try:
        _refuse_bombs(text)
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is not None and not isinstance(node, yaml.MappingNode):
            raise Misread("the front matter is not a list of `key: value` lines", 2)
        return _inside(loader, node) if node else {}
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise Misread(f"this is not YAML: {error.problem}", mark.line + 2 if mark else 1) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise Misread(f"this is not YAML: {error}", 1) from None
    except (LookupError, AttributeError):  # what the reader trips over where a tag does not fit its value
        raise Misread("this is not YAML: a value is not of the kind that its tag (!!name) says", 1) from None


def _refuse_bombs(text: str) -> None:
    """With aliases a kilobyte can stand for gigabytes, and deep nesting takes the reader forever."""
    events = cast(Iterable[yaml.Event], yaml.parse(text, Loader=yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType] # untyped stub
    depth = 0
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise Misread(f"this is nested more than {DEEPEST} deep", event.start_mark.line + 2)
        if isinstance(event, yaml.AliasEvent):
            raise Misread("aliases (*name) cannot be used in front matter", event.start_mark.line + 2)


def _inside(reader: yaml.SafeLoader, mapping: yaml.MappingNode) -> Mapping[str, Entry]:
    """The entries of a mapping by name; of two with the same name the last one counts, as in YAML."""
    found: dict[str, Entry] = {}
    for key, value in mapping.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        line = key.start_mark.line + 2
        if isinstance(value, yaml.MappingNode):
            inner = _inside(reader, value)
            found[key.value] = Entry(value=inner, line=line, inner=inner)
        else:
            plain = cast(object, reader.construct_object(value, deep=True))  # pyright: ignore[reportUnknownMemberType] # untyped stub
            found[key.value] = Entry(value=plain, line=line)
    return found
