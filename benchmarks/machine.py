"""Description of the environment of a run: versions of packages and size of the machine."""

from __future__ import annotations

import os
import platform
import time

from benchmarks.approaches import NOT_INSTALLED, PACKAGES, installed

HOST = "pydantic-ai-slim"


def machine() -> str:
    """Return the date, the machine and the versions, in one line."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    size = f"{os.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}"
    return f"{time.strftime('%Y-%m-%d')}, {size}, {versions()}"


def versions() -> str:
    """Return the versions of the host and of every installed peer."""
    found = {name: installed(name) for name in (HOST, *PACKAGES.values())}
    return ", ".join(f"{name} {version}" for name, version in found.items() if version != NOT_INSTALLED)
