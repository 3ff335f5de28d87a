"""Command line of a benchmark, and description of its environment: versions of packages and size of the machine."""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.approaches import NOT_INSTALLED, PACKAGES, installed

HOST = "pydantic-ai-slim"


def arguments(
    description: str | None, *positional: str, argv: Sequence[str] | None = None, **options: Any
) -> argparse.Namespace:
    """Parse the command line of a benchmark.

    An option has its default as value, or its type if it has no default. A tuple lists the choices, the first one being
    the default. An option with a list may be repeated; the list has its type, or its choices.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in positional:
        parser.add_argument(name)
    for name, default in options.items():
        more: dict[str, Any] = {"default": default, "type": type(default)}
        if default is False:
            more = {"action": "store_true"}
        elif isinstance(default, type):
            more = {"type": default}
        elif isinstance(default, tuple):
            more = {"choices": default, "default": default[0]}
        elif isinstance(default, list):
            kind = {"type": default[0]} if isinstance(default[0], type) else {"choices": default}
            more = {"action": "append", "default": [], **kind}
        parser.add_argument(f"--{name.replace('_', '-')}", **more)
    return parser.parse_args(argv)


def machine() -> str:
    """Return the date, the machine and the versions, in one line."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    size = f"{os.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}"
    packages = {name: installed(name) for name in (HOST, *PACKAGES.values())}
    versions = ", ".join(f"{name} {version}" for name, version in packages.items() if version != NOT_INSTALLED)
    return f"{time.strftime('%Y-%m-%d')}, {size}, {versions}"
