"""A pytest plugin that hides from this package what only POSIX systems have, the nearest thing to Windows here.

    python -m pytest -p tests.support.no_posix tests/record tests/middleware tests/pipeline tests/chat tests/cli

Modules such as `fcntl` cannot be imported, functions such as `os.fork` are missing, `os.name` is "nt", and an
event loop takes no signal handlers. Tests that are about POSIX itself (modes of files, forks, process groups,
pseudo-terminals) are skipped; other modules see everything.
"""

from __future__ import annotations

import asyncio
import builtins
import importlib
import importlib.util
import os
import signal
import sys
from types import ModuleType
from typing import Any

import pytest

PACKAGE = "context_compiler"
MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
"""Modules that Windows has not."""

FUNCTIONS = """
    chown chroot fchmod fchown fork forkpty getegid geteuid getgid getgroups getloadavg getpgid getpgrp
    getpriority getsid getuid initgroups killpg lchown major makedev minor mkfifo mknod nice openpty pathconf
    pipe2 posix_fadvise posix_fallocate posix_spawn pread pwrite register_at_fork sched_getaffinity sched_yield
    sendfile setegid seteuid setgid setgroups setpgid setpriority setsid setuid statvfs sync sysconf tcgetpgrp
    tcsetpgrp ttyname uname wait wait3 wait4 O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_CLOEXEC O_SYNC WNOHANG
""".split()
SIGNALS = ["SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGTSTP", "SIGUSR1", "SIGUSR2", "SIGWINCH"]

ABOUT_POSIX = {
    "test_folders": "modes of files",
    "test_chat_terminal": "pseudo-terminals",
    "fork": "forks",
    "killed": "SIGKILL of a group",
    "with_its_children": "process groups",
    "private": "modes of files",
    "readable_by": "modes of files",
}
"""Parts of the ids of tests that are about POSIX, and the subject of each."""


class Partial(ModuleType):
    """A module that lacks some names; all others are looked up when they are used, as tests may replace them."""

    def __init__(self, module: ModuleType, names: list[str], **instead: Any) -> None:
        super().__init__(module.__name__)
        self.__dict__.update(instead, _whole=module, _hidden=frozenset(names))

    def __getattr__(self, name: str) -> Any:
        if name in self._hidden:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name)
        return getattr(self._whole, name)


def refuse(name: str) -> None:
    """Fail as an import does on a system without the module."""
    if name.partition(".")[0] in MODULES:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def import_module(name: str, package: str | None = None) -> ModuleType:
    """As `importlib.import_module` on such a system."""
    refuse(name)
    return importlib.import_module(name, package)


def find_spec(name: str, package: str | None = None) -> Any:
    """As `importlib.util.find_spec` on such a system."""
    return None if name in MODULES else importlib.util.find_spec(name, package)


INSTEAD = {
    "os": Partial(os, FUNCTIONS, name="nt"),
    "signal": Partial(signal, SIGNALS),
    "importlib": Partial(importlib, [], import_module=import_module),
    "importlib.util": Partial(importlib.util, [], find_spec=find_spec),
}
INSTEAD["importlib"].util = INSTEAD["importlib.util"]  # type: ignore[attr-defined]

plain_import = builtins.__import__


def hiding_import(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
    """Import for everybody; for this package without what is hidden."""
    importer = (globals or {}).get("__name__", "")
    if level == 0 and importer.partition(".")[0] == PACKAGE:
        refuse(name)
        if name in INSTEAD:
            return INSTEAD[name if fromlist else name.partition(".")[0]]
    return plain_import(name, globals, locals, fromlist, level)


def no_signal_handler(loop: Any, *given: Any) -> None:
    """As an event loop on Windows."""
    raise NotImplementedError


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that are about POSIX itself."""
    for item in items:
        for words, subject in ABOUT_POSIX.items():
            if words in item.nodeid:
                item.add_marker(pytest.mark.skip(reason=f"about POSIX: {subject}"))


early = [name for name in sys.modules if name.partition(".")[0] == PACKAGE]
assert not early, f"{early[0]} was imported before anything could be hidden from it"
builtins.__import__ = hiding_import
asyncio.SelectorEventLoop.add_signal_handler = no_signal_handler  # type: ignore[method-assign]
