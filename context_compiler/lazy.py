"""Load public names on first use, so that importing a package takes almost no time; the extras that they need."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

from context_compiler.errors import SettingsError


class Extra(NamedTuple):
    """An extra of this package."""

    packages: Sequence[str]
    """Packages that it installs, by their import names."""
    needed_by: Sequence[str]
    """Modules of this package that need them."""


EXTRAS = {
    "cli": Extra(("typer", "rich", "prompt_toolkit", "markdown_it"), ()),
    "pipeline": Extra(("lark",), ("pipeline.dot_graph",)),
    "postgres": Extra(("asyncpg", "greenlet"), ("record.postgres", "pipeline.stores.postgres")),
    "dbos": Extra(("dbos",), ("pipeline.dbos_runs",)),
    "evals": Extra(("pydantic_evals",), ("testing.evals",)),
}
"""Extras that public names or the command line need."""

PROVIDERS = {"anthropic": "anthropic", "google": "google.genai", "openai": "openai"}
"""Extras that bring the package of a provider, with the module by which it is known to be installed."""


def lazy_exports(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Build `__getattr__` and `__dir__` of a package that exports names defined elsewhere.

    Names that need an extra which is not installed are removed from `__all__`, so that `import *` works without it.
    They can still be asked for by name.

    Args:
        package: The `__name__` of the package.
        homes: Public names by module, relative to `context_compiler`.
    """
    places = {name: module for module, names in homes.items() for name in names}

    def load(name: str) -> Any:
        """Load a public name and set it on the package, so that it is found directly from then on.

        Raises:
            ImportError: The name needs an extra that is not installed; the message contains the command to install it.
        """
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(f"context_compiler.{places[name]}"), name)
        except ModuleNotFoundError as error:
            extra = next((extra for extra, needs in EXTRAS.items() if error.name in needs.packages), None)
            if extra is None:
                raise
            raise ImportError(f"{name} needs {error.name}: {_install_command(extra)}", name=error.name) from error
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        """List the public names, loaded or not; without those of extras that are not installed."""
        return sorted(name for name, module in places.items() if module not in missing)

    mine = [extra for extra in EXTRAS.values() if not homes.keys().isdisjoint(extra.needed_by)]
    missing = {module for extra in mine if not all(map(_is_installed, extra.packages)) for module in extra.needed_by}
    contents = vars(sys.modules[package])
    if missing and "__all__" in contents:
        contents["__all__"] = [name for name in contents["__all__"] if places[name] not in missing]
    return load, names


def require_extra(extra: str) -> None:
    """Check that the packages of an extra are installed.

    Raises:
        SettingsError: They are not; the message contains the command to install them.
    """
    if missing := [name for name in EXTRAS[extra].packages if not _is_installed(name)]:
        raise SettingsError(f"{' and '.join(missing)} not installed: {_install_command(extra)}")


def missing_provider(error: ImportError) -> str:
    """Return what to install for a provider of the host, from the host's error."""
    extra = next(iter(re.findall(r"pydantic-ai-slim\[([\w-]+)\]", str(error))), "")
    missing = "its provider's package is not installed"
    if extra in PROVIDERS:
        return f"{missing}: {_install_command(extra)}"
    return f'{missing}: pip install "pydantic-ai-slim[{extra}]"' if extra else f"{missing}: {error}"


def _install_command(extra: str) -> str:
    return import_module("context_compiler.paths").install_command(extra)


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ValueError:  # a stand-in that a test has put in its place
        return True
