"""Parse the front matter of a template file: its entries with their lines, and the choices that they make.

The front matter is a YAML mapping between two `---` lines at the top of the file; without it, the whole file is the
body. Keys may be spelled with `_` or `-`. An unknown key only causes a warning, because note-taking tools add their
own. A wrong value is an error that names the line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from difflib import get_close_matches
from functools import lru_cache, partial
from typing import Any, Literal, TypeVar, cast

import yaml

from context_compiler.errors import FidelityError, SettingsError
from context_compiler.fidelity import Fidelity
from context_compiler.settings import Amount, check_amount, parse_count

MAX_FRONT_MATTER = 16_000
"""Maximum characters of front matter, which takes well under a second to parse."""
DEEPEST = 10
"""Maximum nesting of lists and mappings."""


class FrontMatterError(Exception):
    """The front matter cannot be read; `line` is the 1-based line in the file."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Value of a key in the front matter, with its line."""

    value: object
    """Of a mapping, its inner entries by name."""
    line: int
    """1-based line of the key in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedFile:
    """A template file split into front matter and body."""

    entries: Mapping[str, Entry]
    body: str
    offset: int
    """Number of lines above the body in the file."""


@lru_cache(maxsize=32)
def split_front_matter(text: str) -> ParsedFile:
    """Split a file into front matter and body; results are cached by text.

    Raises:
        FrontMatterError: The front matter is not a plain YAML mapping, is never closed, or is too long.
    """
    lines = text.split("\n")
    end = _closing_line(lines) if _is_rule(lines[0]) else 0
    matter, body = lines[1:end], "\n".join(lines[end + 1 if end else 0 :])
    above = len(lines) - body.lstrip("\n").count("\n") - 1
    return ParsedFile(entries=_parse_yaml("\n".join(matter)) if end else {}, body=body.strip("\n"), offset=above)


def _closing_line(lines: list[str]) -> int:
    """Index of the line that closes the front matter; 0 if the first line is just a horizontal rule of markdown."""
    end = next((number for number, line in enumerate(lines) if number and _is_rule(line)), 0)
    if not end and len(lines) > 1 and re.match(r"[\w-]+\s*:", lines[1]):
        raise FrontMatterError("the front matter is never closed; end it with a line ---", 1)
    return end


def _is_rule(line: str) -> bool:
    return line.rstrip() == "---"


def _parse_yaml(text: str) -> Mapping[str, Entry]:
    if len(text) > MAX_FRONT_MATTER:
        raise FrontMatterError(f"the front matter is longer than {MAX_FRONT_MATTER:,} characters", 1)
    try:
        _refuse_bombs(text)
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is not None and not isinstance(node, yaml.MappingNode):
            raise FrontMatterError("the front matter is not a list of `key: value` lines", 2)
        return _mapping_entries(loader, node) if node else {}
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise FrontMatterError(f"this is not YAML: {error.problem}", mark.line + 2 if mark else 1) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise FrontMatterError(f"this is not YAML: {error}", 1) from None
    except (LookupError, AttributeError):  # raised by the YAML reader if a tag does not fit its value
        raise FrontMatterError("this is not YAML: a value does not fit its tag (!!name)", 1) from None


def _refuse_bombs(text: str) -> None:
    """Reject aliases and deep nesting, because they can make a kilobyte expand to gigabytes."""
    events = cast(Iterable[yaml.Event], yaml.parse(text, Loader=yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType] # untyped stub
    depth = 0
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise FrontMatterError(f"this is nested more than {DEEPEST} levels deep", event.start_mark.line + 2)
        if isinstance(event, yaml.AliasEvent):
            raise FrontMatterError("aliases (*name) cannot be used in front matter", event.start_mark.line + 2)


def _mapping_entries(reader: yaml.SafeLoader, mapping: yaml.MappingNode) -> Mapping[str, Entry]:
    """Entries of a mapping by name; if a name occurs twice, the last one counts, as in YAML."""
    entries: dict[str, Entry] = {}
    for key, value in mapping.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        if isinstance(value, yaml.MappingNode):
            read = _mapping_entries(reader, value)
        else:
            read = cast(object, reader.construct_object(value, deep=True))  # pyright: ignore[reportUnknownMemberType] # untyped stub
            repr(read)  # a hexadecimal number of thousands of digits is a ValueError here, and not later in a message
        entries[key.value] = Entry(value=read, line=key.start_mark.line + 2)
    return entries


Compiler = Literal["agent", "none", "extractive"]
COMPILERS = ("agent", "none", "extractive")

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionRule:
    """Priority and budget of one section of a compile prompt."""

    priority: int = 0
    """Sections with a lower priority are cut first."""
    budget: int | None = None
    """Maximum tokens of the section; None sets no limit of its own."""


def read_choices(entries: Mapping[str, Entry]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Parse the known entries of the front matter, by field of `Template`; return a warning for each unknown key too.

    Raises:
        FrontMatterError: A value is not allowed, or a key is given twice.
    """
    known_entries, warnings = _known_entries(entries, tuple(READERS))
    return {key: _read_value(key, entry, READERS[key]) for key, entry in known_entries.items()}, warnings


def choice_errors(entries: Mapping[str, Entry]) -> list[FrontMatterError]:
    """Find all wrong values of the front matter."""
    wrong: list[FrontMatterError] = []
    for spelt, entry in entries.items():
        try:
            read_choices({spelt: entry})
        except FrontMatterError as error:
            wrong.append(error)
    if not wrong:
        try:
            read_choices(entries)
        except FrontMatterError as error:  # two spellings of one key
            wrong.append(error)
    return wrong


def _known_entries(entries: Mapping[str, Entry], ours: tuple[str, ...]) -> tuple[dict[str, Entry], tuple[str, ...]]:
    known_entries: dict[str, Entry] = {}
    warnings: list[str] = []
    for spelt, entry in entries.items():
        key = spelt.strip().replace("-", "_")
        if key not in ours:
            near = get_close_matches(key.lower(), ours, n=1)
            hint = f"did you mean {near[0]}?" if near else "it has no effect"
            warnings.append(f"line {entry.line}: unknown key {_short(spelt)}; {hint}")
        elif key in known_entries:
            raise FrontMatterError(f"{key} is given twice, with _ and with -", entry.line)
        elif entry.value is not None:
            known_entries[key] = entry
    return known_entries, tuple(warnings)


def _read_value(key: str, entry: Entry, reader: Callable[[object], Value]) -> Value:
    try:
        return reader(entry.value)
    except (FidelityError, SettingsError) as error:
        raise FrontMatterError(str(error), entry.line) from None
    except ValueError as allowed:
        raise FrontMatterError(f"{key}: {_short(entry.value)} is not allowed; give {allowed}", entry.line) from None


def _short(value: object) -> str:
    text = repr(value) if not isinstance(value, dict) else "a mapping"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _description(value: object) -> str:
    if isinstance(value, str | int | float | date):
        return str(value).strip()
    raise ValueError("a text")


def _compiler(value: object) -> Compiler:
    if value in COMPILERS:
        return value
    raise ValueError(f"one of {', '.join(COMPILERS)}")


def _threshold(value: object) -> Amount:
    if value == 0 and not isinstance(value, bool):
        return 0
    return check_amount(value, name="token_threshold") or 0


def _section(value: object) -> SectionRule:
    if not isinstance(value, Mapping):
        raise ValueError("a mapping such as {priority: 2, budget: 1500}")
    known_entries, unknown = _known_entries(cast(Mapping[str, Entry], value), ("priority", "budget"))
    if unknown:
        raise ValueError("priority, budget, or both, and nothing else")
    values = {key: _read_value(key, inner, _WHOLE[key]) for key, inner in known_entries.items()}
    return SectionRule(priority=values.get("priority") or 0, budget=values.get("budget"))


def _sections(value: object) -> Mapping[str, SectionRule]:
    if not isinstance(value, Mapping):
        raise ValueError("a mapping of section names, each with {priority: ..., budget: ...}")
    return {
        name.strip().replace("-", "_"): _read_value(f"section {name}", rule, _section)
        for name, rule in cast(Mapping[str, Entry], value).items()
    }


def _whole_number(least: int) -> Callable[[object], int]:
    def whole(value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and value >= least:
            return value
        raise ValueError(f"a whole number from {least}")

    return whole


_WHOLE = {"priority": _whole_number(0), "budget": _whole_number(1)}

READERS: Mapping[str, Callable[[object], object]] = {
    "description": _description,
    "compiler": _compiler,
    "fidelity": partial(Fidelity.parse, where="fidelity"),
    "recent_turns": parse_count,
    "recent_tool_results": parse_count,
    "token_threshold": _threshold,
    "sections": _sections,
}


def contract(body: str) -> str | None:
    """Content of the fenced blocks in `body` that are marked yaml, yml or json; None if there are none."""
    blocks: list[str] = []
    fence, kept = "", False
    for line in body.split("\n"):
        bare = line.strip() if len(line) - len(line.lstrip(" ")) < 4 else ""
        if fence:
            if bare.startswith(fence) and not bare.strip(fence[0]):
                fence = ""
            elif kept:
                blocks[-1] += line + "\n"
        elif bare.startswith(("```", "~~~")):
            fence = bare[: len(bare) - len(bare.lstrip(bare[0]))]
            info = bare[len(fence) :].split()
            kept = bool(info) and info[0].lower() in ("yaml", "yml", "json")
            blocks += [""] if kept else []
    return "\n".join(blocks).rstrip("\n") or None
