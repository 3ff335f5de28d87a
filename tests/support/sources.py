"""The source of every module of the package, read and parsed once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar, cast

from context_compiler.lazy import EXTRAS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "context_compiler"


def sources() -> dict[str, Path]:
    """Every module of the package by its name inside it; the package itself is the empty name."""
    modules: dict[str, Path] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


MODULES = sources()
Node = TypeVar("Node", bound=ast.AST)


@cache
def text(module: str) -> str:
    return MODULES[module].read_text(encoding="utf-8")


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(text(module))


@cache
def _by_kind(module: str) -> dict[type[ast.AST], list[ast.AST]]:
    found: dict[type[ast.AST], list[ast.AST]] = {}
    for node in ast.walk(tree(module)):
        found.setdefault(type(node), []).append(node)
    return found


def nodes(module: str, *kinds: type[Node]) -> Iterator[Node]:
    """Every node of these very types, type by type."""
    for kind in kinds:
        yield from cast("list[Node]", _by_kind(module).get(kind, []))


@cache
def without_extras() -> frozenset[str]:
    """Names of the modules that need packages of extras that are not installed."""
    return frozenset(
        f"context_compiler.{module}"
        for extra in EXTRAS.values()
        if not all(map(find_spec, extra.packages))
        for module in extra.needed_by
    )
