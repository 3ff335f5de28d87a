"""One corpus of hostile texts for everything that reads text of others: work grows with the text and no faster."""

from __future__ import annotations

import ast
import importlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage

from context_compiler import TokenCounter
from context_compiler.cli.text import safe
from context_compiler.compiler.specifics import specifics
from context_compiler.messages.fences import neutralize
from context_compiler.messages.history import Reader
from context_compiler.messages.instructions import instruction_sentences
from context_compiler.messages.tool_lines import call_line, outcome_line
from context_compiler.messages.turns import outline, pair
from context_compiler.pipeline import dot
from context_compiler.recall.passages import passages
from context_compiler.recall.selection import Candidates
from context_compiler.recall.terms import terms
from tests.support.builders import assistant, user
from tests.support.growth import assert_bounded, cpu
from tests.support.sources import MODULES, nodes, text, without_extras

COUNTER = TokenCounter()

WORDS = (
    "a",
    "a ",
    "A",
    "Aa",
    "a,",
    "a.",
    "a-",
    "a/",
    "/a",
    "a=",
    "ab:",
    "a@",
    "a@a.",
    "é",
    "日",
    "я",
    "漢。",
    "T1",
    "1",
    "1.",
)
SIGNS = (
    " ",
    "\n",
    "\t \n",
    "=",
    "-",
    "- ",
    "_",
    "(",
    "[",
    "{",
    "<",
    '"',
    "'",
    "`",
    "\\",
    '\\"',
    "|",
    "||",
    " &&",
    "> ",
    "# ",
    "; ",
)
FORMS = (
    "://",
    "0x",
    "@",
    "$a",
    "{{",
    "{%",
    "git ",
    "$ a\n",
    "[turn 1",
    "[from turn 1",
    "turn 1",
    "never ",
    "don't, ",
    "exit code ",
    "id:",
)
CONTROLS = ("\x1b[", "\x1b]", "\x90", "\u200b", "c\u200b", "\ud800", "e\u0301", "=== end ", "=== begin a ", "error ")
UNITS = (*WORDS, *SIGNS, *FORMS, *CONTROLS)


def quote(text: str) -> object:
    messages: list[ModelMessage] = [user(text), assistant("Thanks."), user("And now?")]
    history = Reader(COUNTER).read(messages)
    turns = outline(history, pair(history))
    return Candidates(passages(history, turns, range(2), COUNTER)).choose(1_000)


READERS: Mapping[str, Callable[[str], object]] = {
    "terms": lambda text: sum(1 for _ in terms(text)),
    "specifics": specifics,
    "standing instructions": instruction_sentences,
    "fences": neutralize,
    "a line for an outcome": lambda text: outcome_line(text, failed=True),
    "a line for a call": lambda text: call_line("write", text),
    "a line for a call with arguments": lambda text: call_line("write", json.dumps({"content": text})),
    "a terminal": safe,
}


@pytest.mark.parametrize("name", READERS)
def test_the_work_is_linear_in_the_length_of_the_text(name: str) -> None:
    for unit in UNITS:
        assert_bounded(READERS[name], unit)


@pytest.mark.parametrize("unit", ["a", "漢", "a. ", "\n[from turn 1", "e\u0301"])
def test_quoting_a_huge_message_is_linear_in_its_length(unit: str) -> None:
    assert_bounded(quote, unit)


BOUNDED = {
    "compiler.references._KEY": "looks at 60 characters",
    "messages.prompts._OPENING": "looks at the beginnings of sentences, each of which is short",
}
"""Patterns that are given a few characters only, and how few."""

MATCHED = ("template.UNFIT_NAMES",)
"""Patterns that are only ever matched at the start, which their uses do not show."""

MATCHES = ("match", "fullmatch")
SCANS = ("search", "finditer", "findall", "sub", "subn", "split")
LONG = 3_000
"""Characters that linear work is done with in a tenth of `SOON`, and quadratic work is not."""

SOON = 0.01
"""Seconds of CPU."""


def compiled(value: Any, depth: int = 0) -> Iterator[re.Pattern[Any]]:
    """Every pattern that a value holds."""
    if isinstance(value, re.Pattern):
        yield value
    elif depth > 3 or isinstance(value, type):
        return
    elif isinstance(value, list | tuple | set | frozenset):
        for element in value:
            yield from compiled(element, depth + 1)
    elif isinstance(value, dict):
        yield from compiled([*value, *value.values()], depth + 1)
    elif is_dataclass(value):
        yield from compiled([getattr(value, field.name, None) for field in fields(value)], depth + 1)


def patterns() -> dict[str, tuple[re.Pattern[Any], bool]]:
    """Every pattern of the package by where it is, and whether it is looked for anywhere or at the start only."""
    collected: dict[str, tuple[re.Pattern[Any], bool]] = {}
    for name in MODULES:
        if name == "__main__" or f"context_compiler.{name}" in without_extras():
            continue
        module = importlib.import_module(f"context_compiler.{name}".rstrip("."))
        for variable, value in vars(module).items():
            held = list(compiled(value))
            uses = set(re.findall(rf"\b{variable}(?:\[\w+\])?\.(\w+)\(", text(name))) if held else set[str]()
            anywhere = f"{name}.{variable}" not in MATCHED and (not uses or bool(uses & set(SCANS)))
            for index, pattern in enumerate(held):
                collected[f"{name}.{variable}" + (f"[{index}]" if index else "")] = pattern, anywhere
        for node in nodes(name, ast.Call):
            method = ast.unparse(node.func)
            source = written(node.args[0]) if node.args and method.removeprefix("re.") in (*SCANS, *MATCHES) else None
            if source is not None and (method.startswith("re.") or method in SCANS):
                collected[f"{name}:{node.lineno}"] = re.compile(source), method.removeprefix("re.") in SCANS
    return collected


WRONG = re.compile(r"(?<!\\)\)(?:[*+?]|\{[\d,]+\})\+|\(\?>")
"""Possessive repeats of a group, and atomic groups: Python before 3.11.5 matches some of them wrongly."""


def test_every_pattern_works_in_the_first_releases_of_python_3_11() -> None:
    written_out = {place: str(pattern.pattern) for place, (pattern, _) in patterns().items()}
    written_out["dot.lark"] = Path(dot.__file__).with_name("dot.lark").read_text(encoding="utf-8")
    assert not {place: one for place, one in written_out.items() if WRONG.search(one)}


def written(node: ast.expr) -> str | bytes | None:
    """A pattern as it is written, with a letter for each value that is put into it; None for any other expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "a" for part in node.values)
    return None


def repeated(pattern: re.Pattern[Any], unit: str, length: int) -> Any:
    """A text of a length for a pattern of text or of bytes."""
    long = unit * (length // len(unit))
    return long.encode("utf-8", "surrogatepass") if isinstance(pattern.pattern, bytes) else long


def scanned(pattern: re.Pattern[Any], text: Any, anywhere: bool) -> float:
    """Seconds of CPU to look for a pattern in a text."""
    if anywhere:
        return cpu(lambda: sum(1 for _ in pattern.finditer(text)))
    return cpu(lambda: (pattern.match(text), pattern.fullmatch(text)))


def test_no_pattern_takes_more_than_linear_time() -> None:
    slow: list[str] = []
    for location, (pattern, anywhere) in patterns().items():
        for unit in UNITS if location not in BOUNDED else ():
            some, many = (repeated(pattern, unit, count) for count in (LONG // 4, LONG))
            first = scanned(pattern, some, anywhere)
            if first * 16 < SOON:
                continue
            first, second = min(first, scanned(pattern, some, anywhere)), scanned(pattern, many, anywhere)
            for _ in range(3):  # a neighbour that fills the caches of the processor costs CPU time too
                if second > max(SOON, 10 * first):
                    second = min(second, scanned(pattern, many, anywhere))
            slow += [f"{location}: {unit!r} {first:.3f} s, {second:.3f} s"] if second > max(SOON, 10 * first) else []
    assert not slow, "\n".join(slow)
