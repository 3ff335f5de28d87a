"""The mechanical half of plain English: how texts begin, and turns of phrase that say nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.sources import MODULES, ROOT, nodes, text

pytestmark = pytest.mark.slow  # whichever is first reads all modules for all; `make lint` runs them

BEGINNINGS = re.compile(r"(?:What|Whatever|Who|Whoever|Whom|Whose|Whether|Where|Wherever|How|Why)\b")
"""First words that announce a riddle: name the thing by the field's noun, or say what is done."""

PHRASES = re.compile(
    r"(?i)\b(?:so many|one part in|of all that|is told|are told|whoever|whomever|stands? (?:for|in)\b)"
)
"""Turns of phrase with a plainer word."""

RIDDLES = re.compile(
    r"\b(?:told|stands|gives? way|(?:come|comes|came) of|(?:is|are) said|says? so|as good as|passed over"
    r"|done without|spoken of|of ones own|is no(?! longer))\b"
)
"""Turns of phrase that names of tests do without."""

COMMENT = re.compile(r"(?:^ *|  )# (.*)")
"""A comment as ruff formats it."""

Line = tuple[int, str]


def docstrings(module: str) -> Iterator[Line]:
    """The first line of every docstring, those below fields and constants included."""
    for node in nodes(module, ast.Expr):
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value.strip().partition("\n")[0]


def helps(module: str) -> Iterator[Line]:
    """What `--help` says of arguments and options; of a command it shows the docstring."""
    for call in nodes(module, ast.Call):
        for keyword in call.keywords:
            if (
                keyword.arg == "help"
                and isinstance(keyword.value, ast.Constant)
                and isinstance(keyword.value.value, str)
            ):
                yield keyword.value.lineno, keyword.value.value


def comments(module: str) -> Iterator[Line]:
    for number, line in enumerate(text(module).splitlines(), 1):
        if comment := COMMENT.search(line):
            yield number, comment[1]


def named() -> Iterator[tuple[Path, str]]:
    """Every test function as a sentence, and its file."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name in re.findall(r"(?m)^ *(?:async )?def test_(\w+)", path.read_text(encoding="utf-8")):
            yield path, name.replace("_", " ").capitalize()


def found(texts: Callable[[str], Iterator[Line]], pattern: re.Pattern[str], *, first: bool) -> str:
    look = pattern.match if first else pattern.search
    return "\n".join(
        f"{module or '__init__'}:{line}: {one}" for module in MODULES for line, one in texts(module) if look(one)
    )


@pytest.mark.parametrize("texts", [docstrings, helps])
def test_a_docstring_or_help_begins_with_the_thing_or_the_action(texts: Callable[[str], Iterator[Line]]) -> None:
    wrong = found(texts, BEGINNINGS, first=True)
    assert not wrong, wrong


@pytest.mark.parametrize("texts", [docstrings, helps, comments])
def test_a_text_uses_plain_words(texts: Callable[[str], Iterator[Line]]) -> None:
    wrong = found(texts, PHRASES, first=False)
    assert not wrong, wrong


def test_a_text_on_help_ends_with_a_full_stop() -> None:
    wrong = found(helps, re.compile(r".*[^.)]\s*$", re.S), first=True)
    assert not wrong, wrong


def test_a_test_name_uses_plain_words() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path, name in named()
        if BEGINNINGS.match(name) or PHRASES.search(name) or RIDDLES.search(name)
    ]
    assert not wrong, "\n".join(wrong)
