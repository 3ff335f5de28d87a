"""Public names that load on first use, so that importing a package costs next to nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

EXTRAS = {"asyncpg": "postgres", "greenlet": "postgres", "dbos": "dbos"}
"""The extra of this package that installs a module."""


def public(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package from the homes of its public names.

    Args:
        package: Its `__name__`.
        homes: The module of each name, within `context_compiler`; `module:name` where it is another name there.
    """

    def load(name: str) -> Any:
        """A public name, loaded now and found directly from then on.

        Raises:
            ImportError: It needs an extra that is not installed; the message has the command that installs it.
        """
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, there = homes[name].partition(":")
        try:
            value = getattr(import_module(f"context_compiler.{module}"), there or name)
        except ModuleNotFoundError as error:
            if error.name not in EXTRAS:
                raise
            remedy = import_module("context_compiler.paths").install_command(EXTRAS[error.name])
            raise ImportError(f"{name} needs {error.name}: {remedy}", name=error.name) from error
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        """The public names, loaded or not."""
        return sorted(homes)

    return load, names
