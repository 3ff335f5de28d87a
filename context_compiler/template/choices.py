"""What the front matter of a template may choose, and what a wrong choice is told.

Keys are spelt with `_` or `-`. A key that is not ours is left alone with a warning, because note-taking tools
add their own; a wrong value of one of ours is an error on its line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from difflib import get_close_matches
from typing import Literal, TypedDict, TypeVar, cast

from context_compiler.errors import FidelityError, SettingsError
from context_compiler.fidelity import Fidelity
from context_compiler.settings import Amount, Count, check_amount, count
from context_compiler.template.front_matter import Entry, Misread

Compiler = Literal["agent", "none", "extractive"]
COMPILERS = ("agent", "none", "extractive")

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionRule:
    """What a template says about one section of what a compile is told."""

    priority: int = 0
    """The higher, the longer the section is kept."""
    budget: int | None = None
    """Tokens it may have; None sets no limit of its own."""


class Choices(TypedDict, total=False):
    """The choices that a file makes, read."""

    description: str
    compiler: Compiler
    fidelity: Fidelity
    recent_turns: Count
    recent_tool_results: Count
    token_threshold: Amount | None
    sections: Mapping[str, SectionRule]


def read(entries: Mapping[str, Entry]) -> tuple[Choices, tuple[str, ...]]:
    """Every choice, and a warning for each key that is not ours.

    Raises:
        Misread: a choice is not allowed, or made twice.
    """
    found, warnings = _known(entries, tuple(READERS), "")
    choices = {key: _value(key, entry, READERS[key]) for key, entry in found.items()}
    return cast(Choices, choices), warnings


def _known(entries: Mapping[str, Entry], ours: tuple[str, ...], where: str) -> tuple[dict[str, Entry], tuple[str, ...]]:
    found: dict[str, Entry] = {}
    warnings: list[str] = []
    for spelt, entry in entries.items():
        key = spelt.strip().replace("-", "_")
        if key not in ours:
            near = get_close_matches(key.lower(), ours, n=1)
            hint = f"did you mean {near[0]}?" if near else "it has no effect"
            warnings.append(f"line {entry.line}: unknown key {where}{_short(spelt)}; {hint}")
        elif key in found:
            raise Misread(f"{where}{key} is given twice, with _ and with -", entry.line)
        elif entry.value is not None:
            found[key] = entry
    return found, tuple(warnings)


def _value(key: str, entry: Entry, reader: Callable[[Entry], Value]) -> Value:
    try:
        return reader(entry)
    except (FidelityError, SettingsError) as error:
        raise Misread(str(error), entry.line) from None
    except ValueError as allowed:
        raise Misread(f"{key}: {_short(entry.value)} is not allowed; give {allowed}", entry.line) from None


def _short(value: object) -> str:
    text = repr(value) if not isinstance(value, dict) else "a mapping"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _description(entry: Entry) -> str:
    if isinstance(entry.value, str | int | float | date):
        return str(entry.value).strip()
    raise ValueError("a text")


def _compiler(entry: Entry) -> Compiler:
    if entry.value in COMPILERS:
        return entry.value
    raise ValueError(f"one of {', '.join(COMPILERS)}")


def _fidelity(entry: Entry) -> Fidelity:
    return Fidelity.parse(entry.value, where="fidelity")


def _count(entry: Entry) -> Count:
    return count(entry.value)


def _threshold(entry: Entry) -> Amount:
    if entry.value == 0 and not isinstance(entry.value, bool):
        return 0
    return check_amount(entry.value, name="token_threshold") or 0


def _section(entry: Entry) -> SectionRule:
    if not isinstance(entry.value, Mapping):
        raise ValueError("a mapping such as {priority: 2, budget: 1500}")
    found, unknown = _known(entry.inner, ("priority", "budget"), "")
    if unknown:
        raise ValueError("priority, budget, or both, and nothing else")
    given = {key: _value(key, one, _WHOLE[key]) for key, one in found.items()}
    return SectionRule(priority=given.get("priority") or 0, budget=given.get("budget"))


def _sections(entry: Entry) -> Mapping[str, SectionRule]:
    if not isinstance(entry.value, Mapping):
        raise ValueError("a mapping of section names, each with {priority: ..., budget: ...}")
    return {
        name.strip().replace("-", "_"): _value(f"section {name}", one, _section) for name, one in entry.inner.items()
    }


def _whole(least: int) -> Callable[[Entry], int]:
    def whole(entry: Entry) -> int:
        if isinstance(entry.value, int) and not isinstance(entry.value, bool) and entry.value >= least:
            return entry.value
        raise ValueError(f"a whole number from {least}")

    return whole


_WHOLE = {"priority": _whole(0), "budget": _whole(1)}

READERS: Mapping[str, Callable[[Entry], object]] = {
    "description": _description,
    "compiler": _compiler,
    "fidelity": _fidelity,
    "recent_turns": _count,
    "recent_tool_results": _count,
    "token_threshold": _threshold,
    "sections": _sections,
}


def contract(body: str) -> str | None:
    """What stands in the fenced blocks of `body` that are marked yaml, yml or json; None without any."""
    blocks: list[str] = []
    mark, kept = "", False
    for line in body.split("\n"):
        bare = line.strip() if len(line) - len(line.lstrip(" ")) < 4 else ""
        if mark:
            if bare.startswith(mark) and not bare.strip(mark[0]):
                mark = ""
            elif kept:
                blocks[-1] += line + "\n"
        elif bare.startswith(("```", "~~~")):
            mark = bare[: len(bare) - len(bare.lstrip(bare[0]))]
            info = bare[len(mark) :].split()
            kept = bool(info) and info[0].lower() in ("yaml", "yml", "json")
            blocks += [""] if kept else []
    return "\n".join(blocks).rstrip("\n") or None
