"""Load public names on first use, so that importing a package takes almost no time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

EXTRAS = {"asyncpg": "postgres", "greenlet": "postgres", "dbos": "dbos"}
"""Extra of this package that installs each of these modules."""


def lazy_exports(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Build `__getattr__` and `__dir__` of a package that exports names defined elsewhere.

    Args:
        package: The `__name__` of the package.
        homes: Public names by module, relative to `context_compiler`; `name:there` if a name differs in the module.
    """
    given = [(module, *one.partition(":")) for module, names in homes.items() for one in names]
    places = {name: (module, there or name) for module, name, _, there in given}

    def load(name: str) -> Any:
        """Load a public name and set it on the package, so that it is found directly from then on.

        Raises:
            ImportError: The name needs an extra that is not installed; the message contains the command to install it.
        """
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, there = places[name]
        try:
            value = getattr(import_module(f"context_compiler.{module}"), there)
        except ModuleNotFoundError as error:
            if error.name not in EXTRAS:
                raise
            remedy = import_module("context_compiler.paths").install_command(EXTRAS[error.name])
            raise ImportError(f"{name} needs {error.name}: {remedy}", name=error.name) from error
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        """List the public names, loaded or not."""
        return sorted(places)

    return load, names
