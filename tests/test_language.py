"""The mechanical half of plain English: how docstrings begin, and turns of phrase that say nothing."""

from __future__ import annotations

import ast
import re

from tests.support.sources import MODULES, tree

BEGINNINGS = re.compile(r"(?:What|Whatever|Who|Whoever|Whom|Whose|Whether|Where|Wherever|How|Why)\b")
"""First words that announce a riddle: name the thing by the field's noun, or say what is done."""

PHRASES = re.compile(r"(?i)\b(?:so many|one part in|of all that|is told|are told|stands? (?:for|in)\b)")
"""Turns of phrase with a plainer word."""

DocNode = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def first_lines(module: str) -> list[tuple[int, str]]:
    """The first line of every docstring of a module, those below fields and constants included."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree(module)):
        for child in getattr(node, "body", ()) if isinstance(getattr(node, "body", None), list) else ():
            if (
                isinstance(child, ast.Expr)
                and isinstance(child.value, ast.Constant)
                and isinstance(child.value.value, str)
            ):
                found.append((child.lineno, child.value.value.strip().partition("\n")[0]))
    return found


def test_a_docstring_begins_with_the_thing_or_with_what_is_done() -> None:
    wrong = [
        f"{module or '__init__'}:{line}: {text}"
        for module in MODULES
        for line, text in first_lines(module)
        if BEGINNINGS.match(text)
    ]
    assert not wrong, "\n".join(wrong)


def test_a_first_line_uses_plain_words() -> None:
    wrong = [
        f"{module or '__init__'}:{line}: {text}"
        for module in MODULES
        for line, text in first_lines(module)
        if PHRASES.search(text)
    ]
    assert not wrong, "\n".join(wrong)
