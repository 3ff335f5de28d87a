"""A folder that is made for what was said is its owner's alone, and stays out of version control."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

NAME, EVERYTHING = ".gitignore", b"*\n"


def made(folder: Path) -> None:
    """Make a folder if it is not there; the outermost one that has to be made is private and ignores itself.

    Raises:
        OSError: it cannot be made.
    """
    if folder.is_dir():
        return
    outermost = folder
    while not outermost.parent.exists():
        outermost = outermost.parent
    outermost.mkdir(mode=0o700, exist_ok=True)
    if not _ignored(outermost):
        with suppress(FileExistsError):
            handle = os.open(outermost / NAME, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(EVERYTHING)
    folder.mkdir(parents=True, exist_ok=True)


def _ignored(folder: Path) -> bool:
    """Whether a folder above says so of everything in it; version control looks no further up than its own root."""
    for above in folder.absolute().parents:
        with suppress(OSError):
            if (above / NAME).read_bytes() == EVERYTHING:
                return True
        if os.path.lexists(above / ".git"):
            return False
    return False
