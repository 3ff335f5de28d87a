"""Places: private folders, folders of owners, files, addresses of databases, and where this package came from."""

from __future__ import annotations

import json
import logging
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit
from urllib.request import url2pathname

from context_compiler.errors import SettingsError

NAME, EVERYTHING = ".gitignore", b"*\n"
NAMESAKE = "context_compiler-*.dist-info/RECORD"
"""The file list of a distribution named `context-compiler`, beside this package."""

DISTRIBUTION = "pydantic-ai-context-compiler"

OWNER = "{owner}"
"""Placeholder in the path of a vault for the folder of an owner."""

_PLAIN = re.compile(r"(?!(con|prn|aux|nul|com\d|lpt\d)\Z|.*-[0-9a-f]{24}\Z)[a-z0-9_][a-z0-9_-]{0,63}", re.ASCII)
"""Owners that can be used as folder names: no device names of Windows, and nothing that looks hashed."""

FileIdentity = tuple[int, int]
"""Device and inode."""

log = logging.getLogger("context_compiler")


def file_identity(path: Path) -> FileIdentity | None:
    """Device and inode of a file; None if there is none."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):  # not a valid file name
        return None
    return found.st_dev, found.st_ino


@dataclass(frozen=True, slots=True)
class OpenDatabase:
    """A SQLite file and its write-ahead log, as they were when it was opened."""

    path: Path
    file: FileIdentity | None
    log: FileIdentity | None

    @classmethod
    def at(cls, path: Path) -> Self:
        """The file at a path, which has just been opened."""
        return cls(path, file_identity(path), file_identity(write_ahead_log(path)))

    def gone(self) -> bool:
        """True if the file has been deleted or replaced since."""
        return self.file != file_identity(self.path)

    def remove_log(self) -> None:
        """Remove the log of a file that is gone, if it is still there: a new file would adopt it."""
        log_file = write_ahead_log(self.path)
        if self.log is not None and self.log == file_identity(log_file):
            log_file.unlink(missing_ok=True)


def write_ahead_log(path: Path) -> Path:
    """The file beside a SQLite file that holds its newest changes."""
    return path.with_name(f"{path.name}-wal")


def owner_folder(owner: str) -> str:
    """A name for the folder of an owner, of `a-z`, digits, `_` and `-`; no two owners have the same one."""
    if _PLAIN.fullmatch(owner):
        return owner
    plain = re.sub(r"[^a-z0-9_]+", "-", owner.lower())[:32].strip("-") or "owner"
    return f"{plain}-{sha256(owner.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"


def vault_of(vault: str | Path | None, owner: str | None) -> Path | None:
    """The vault of an owner: the path with the name of their folder in place of `{owner}`.

    Raises:
        SettingsError: each owner has a folder, and no owner is named.
    """
    if vault is None or OWNER not in str(vault):
        return None if vault is None else Path(vault)
    if not owner:
        raise SettingsError(f"vault={str(vault)!r}: each owner has a folder there; name the owner, or one folder")
    return Path(str(vault).replace(OWNER, owner_folder(owner)))


def make_private(folder: Path) -> None:
    """Make a folder if it does not exist; the outermost new one is private and ignored by git.

    Raises:
        OSError: it cannot be made.
    """
    if folder.is_dir():
        return
    outermost = folder
    while not outermost.parent.exists():
        outermost = outermost.parent
    outermost.mkdir(mode=0o700, exist_ok=True)
    if not _is_ignored(outermost):
        with suppress(FileExistsError):
            handle = os.open(outermost / NAME, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(EVERYTHING)
    folder.mkdir(parents=True, exist_ok=True)


def _is_ignored(folder: Path) -> bool:
    """True if a parent folder ignores everything in it; version control looks no further up than its own root."""
    for above in folder.absolute().parents:
        with suppress(OSError):
            if (above / NAME).read_bytes() == EVERYTHING:
                return True
        if os.path.lexists(above / ".git"):
            return False
    return False


@cache
def warn_of_namesake() -> None:
    """Log a warning, once, if the distribution `context-compiler` has put its own files into this package's folder.

    That distribution is another project with the same import name and command. It is told from an earlier
    installation of this one, which had that name too, by owning `context_compiler/__init__.py`.
    """
    package = Path(__file__).parent
    with suppress(OSError):
        for files in package.parent.glob(NAMESAKE):
            if f"{package.name}/__init__.py," in files.read_text(encoding="utf-8", errors="replace"):
                log.warning(
                    "%s holds files of another project, the distribution context-compiler: pip uninstall"
                    " context-compiler, then pip install --force-reinstall --no-deps pydantic-ai-context-compiler",
                    package,
                )


def install_command(extra: str) -> str:
    """The command that installs an extra of this package from where the package came from: a folder, or an index."""
    direct = None
    with suppress(metadata.PackageNotFoundError):
        direct = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    source: dict[str, Any] = json.loads(direct) if direct is not None else {}
    place = DISTRIBUTION
    if "dir_info" in source:
        folder = Path(url2pathname(urlsplit(str(source["url"])).path))
        place = "." if folder == Path.cwd() else str(folder)
    return "pip install " + json.dumps(f"{place}[{extra}]")


def require_postgres() -> None:
    """Check that the packages for PostgreSQL are installed.

    Raises:
        SettingsError: they are not; the message has the command that installs them.
    """
    if missing := [name for name in ("asyncpg", "greenlet") if find_spec(name) is None]:
        raise SettingsError(f"{' and '.join(missing)} not installed: {install_command('postgres')}")


def is_address(place: object) -> bool:
    """True for the address of a PostgreSQL database."""
    return isinstance(place, str) and place.startswith(("postgresql://", "postgres://"))


def place_name(place: str | Path) -> str:
    """A place for messages: a path, or an address without password and options."""
    if not isinstance(place, str) or not is_address(place):
        return str(place)
    parts = urlsplit(place)
    user, _, host = parts.netloc.rpartition("@")
    name = user.partition(":")[0]
    return f"postgresql://{name + '@' if name else ''}{host}{parts.path}"
