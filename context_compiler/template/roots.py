"""A folder of templates: what lies in it can be listed and read, and nothing else can.

Links are followed as long as they stay inside. Whatever a name is made of, it leads to a plain file in the
folder or to an error; no pipe is waited for and no device is opened.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from context_compiler.errors import TemplateError
from context_compiler.template import LARGEST, Origin

MOST_FILES = 1_000
"""Templates of one folder that are listed."""

UNFIT_NAMES = (
    (re.compile(r"\Z"), "it is empty"),
    (re.compile(r"(?s:.*)[\x00-\x1f\x7f]"), "it holds control characters"),
    (re.compile(r".*\\"), "it holds a backslash"),
    (re.compile(r"~"), "it begins with ~"),
    (re.compile(r"[A-Za-z]:"), "it begins with a drive"),
    (re.compile(r"(.*/)?\.\.?(/|\Z)"), "it holds . or .. as a folder"),
    (re.compile(r".*(.//|/\Z)"), "a folder or file in it has no name"),
)
"""Names that no template has, and why."""


class Unfit(Exception):
    """A name or a file that no template can have."""


def fit_name(name: str) -> str:
    """The name without blanks around it, if a template can have it; Unfit, with the reason, otherwise."""
    name = name.strip(" ")
    for pattern, reason in UNFIT_NAMES:
        if pattern.match(name):
            raise Unfit(f"this cannot be the name of a template: {reason}")
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """One folder of templates, which need not exist."""

    source: Origin
    folder: Path

    def files(self) -> Iterator[Path]:
        """Its templates, sorted; hidden ones are left out, and the folders of the package that hold other prose."""
        found: list[Path] = []
        for folder, inner, files in os.walk(self.folder):
            inner[:] = [] if self.source == "builtin" else [one for one in inner if not one.startswith(".")]
            found += [Path(folder, file) for file in files if file.endswith(".md") and not file.startswith(".")]
            if len(found) >= MOST_FILES:
                break
        yield from sorted(found, key=self.name)[:MOST_FILES]

    def name(self, file: Path) -> str:
        """What a file in this folder is called: its path from here, with `/`, without `.md`."""
        return Path(os.path.relpath(file, self.folder)).with_suffix("").as_posix()

    def where(self, name: str) -> Iterator[Path]:
        """Where a template of that name would be; a path counts if it lies in this folder."""
        file = name if name.endswith(".md") else f"{name}.md"
        if not os.path.isabs(file):
            yield self.folder / file
        if "/" in file:
            path = Path(os.path.abspath(file))
            if path.is_relative_to(os.path.abspath(self.folder)):
                yield path

    def read(self, file: Path) -> bytes:
        """What is in a file of this folder.

        Raises:
            Unfit: it lies elsewhere, is no plain file, or is far too large.
            OSError: it cannot be read.
        """
        real = os.path.realpath(file, strict=True)
        if not Path(real).is_relative_to(os.path.realpath(self.folder)):
            raise Unfit(f"it leads out of {self.folder}")
        _plain(os.stat(real))
        with open(os.open(real, _CAREFULLY), "rb") as opened:
            _plain(os.fstat(opened.fileno()))
            return opened.read(LARGEST + 1)


_CAREFULLY = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""Not through a link that was put there a moment ago, and without waiting for the other end of a pipe."""


def _plain(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise Unfit("it is not a file")
    if found.st_size > LARGEST:
        raise Unfit(f"it is larger than {LARGEST // 1024} kB")


def is_there(file: Path) -> bool:
    """Whether there is anything of that name, even a link that leads nowhere.

    Raises:
        TemplateError: nobody can tell, because a folder may not be looked into.
    """
    try:
        file.lstat()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            return False
        raise TemplateError(f"cannot be read: {error.strerror}", name=file.stem, path=str(file)) from error
    except ValueError:  # half a surrogate pair, which no file system has
        return False
    return True


def written(file: Path, data: bytes) -> bool:
    """Write a file unless something of that name is there; a file that could not be finished is taken away."""
    try:
        opened = file.open("xb")
    except FileExistsError:
        return False
    try:
        with opened:
            opened.write(data)
    except OSError:
        file.unlink(missing_ok=True)
        raise
    return True
