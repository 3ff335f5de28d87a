"""Paths, addresses and text files: private and owners' folders, databases, encodings, and this package's origin."""

from __future__ import annotations

import codecs
import json
import logging
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from context_compiler.errors import SettingsError

NAME, EVERYTHING = ".gitignore", b"*\n"
NAMESAKE = "context_compiler-*.dist-info/RECORD"
"""Pattern of the file list of a distribution named `context-compiler`, beside this package."""

URL = re.compile(r"[a-z][a-z\d+.-]*://", re.IGNORECASE)

DISTRIBUTION = "pydantic-ai-context-compiler"

OWNER = "{owner}"
"""Placeholder for an owner's folder in the path of a vault."""

_PLAIN = re.compile(r"(?!(con|prn|aux|nul|com\d|lpt\d)\Z|.*-[0-9a-f]{24}\Z)[a-z0-9_][a-z0-9_-]{0,63}", re.ASCII)
"""Owners whose names can be used as folder names: no Windows device names, and no names that look hashed."""

FileIdentity = tuple[int, int]
"""Device and inode."""

log = logging.getLogger("context_compiler")


def file_identity(path: Path) -> FileIdentity | None:
    """Device and inode of a file; None if it does not exist."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # not a valid file name
        return None
    return status.st_dev, status.st_ino


@dataclass(frozen=True, slots=True)
class OpenDatabase:
    """Identity of a SQLite file and its write-ahead log at the time when it was opened."""

    path: Path
    file: FileIdentity | None
    log: FileIdentity | None

    @classmethod
    def at(cls, path: Path) -> Self:
        """Record the identity of a file that has just been opened."""
        return cls(path, file_identity(path), file_identity(write_ahead_log(path)))

    def gone(self) -> bool:
        """True if the file has been deleted or replaced since it was opened."""
        return self.file != file_identity(self.path)

    def remove_log(self) -> None:
        """Remove the log if it is still the one of the file that is gone, because a new file would adopt it."""
        log_file = write_ahead_log(self.path)
        if self.log is not None and self.log == file_identity(log_file):
            log_file.unlink(missing_ok=True)


def write_ahead_log(path: Path) -> Path:
    """Path of the write-ahead log of a SQLite file, which contains its newest changes."""
    return path.with_name(f"{path.name}-wal")


def owner_folder(owner: str) -> str:
    """Name of an owner's folder, made of `a-z`, digits, `_` and `-`; unique for each owner."""
    if _PLAIN.fullmatch(owner):
        return owner
    plain = re.sub(r"[^a-z0-9_]+", "-", owner.lower())[:32].strip("-") or "owner"
    return f"{plain}-{sha256(owner.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"


def vault_of(vault: str | Path | None, owner: str | None) -> Path | None:
    """Path of an owner's vault, with `{owner}` replaced by the name of the owner's folder; None without a vault.

    Raises:
        SettingsError: The path contains `{owner}`, but no owner is given.
    """
    if vault is None or OWNER not in str(vault):
        return None if vault is None else Path(vault)
    if not owner:
        raise SettingsError(f"vault={str(vault)!r}: each owner has a folder there; name the owner, or one folder")
    return Path(str(vault).replace(OWNER, owner_folder(owner)))


def make_private(folder: Path) -> None:
    """Create a folder if it does not exist; the outermost new folder is private and ignored by git.

    Raises:
        OSError: The folder cannot be created.
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
    """True if a parent folder, up to the root of its git repository, ignores everything in it."""
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

    That distribution is another project with the same import name and command. Old installations of this package have
    that name too, but do not own `context_compiler/__init__.py`.
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
    """Command that installs an extra of this package from the package's own source: a local folder or an index."""
    metadata, url2pathname = import_module("importlib.metadata"), import_module("urllib.request").url2pathname
    direct = None
    with suppress(metadata.PackageNotFoundError):
        direct = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    source: dict[str, Any] = json.loads(direct) if direct is not None else {}
    package = DISTRIBUTION
    if "dir_info" in source:
        folder = Path(url2pathname(urlsplit(str(source["url"])).path))
        package = "." if folder == Path.cwd() else str(folder)
    return "pip install " + json.dumps(f"{package}[{extra}]")


def is_address(location: object) -> bool:
    """True for the URL of a PostgreSQL database."""
    return isinstance(location, str) and location.startswith(("postgresql://", "postgres://"))


def check_place(location: object) -> None:
    """Check that a place is a path or the URL of a PostgreSQL database.

    Raises:
        SettingsError: It is another URL, which would otherwise be taken for a path.
    """
    if isinstance(location, str) and URL.match(location) and not is_address(location):
        raise SettingsError(f"{place_name(location)!r}: give the path of a file, or postgresql://USER@HOST/DB")


def place_name(location: str | Path) -> str:
    """Name of a store for messages: its path, or its URL without password and options."""
    if not isinstance(location, str) or not is_address(location):
        return str(location)
    parts = urlsplit(location)
    user, _, host = parts.netloc.rpartition("@")
    name = user.partition(":")[0]
    return f"postgresql://{name + '@' if name else ''}{host}{parts.path}"


_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (codecs.BOM_UTF8, "utf-8"),
)
"""Byte order marks, with the encodings that they announce."""


def encoding_of(data: bytes) -> str:
    """Encoding that the byte order mark of a file announces; UTF-8 if it has none."""
    return next((encoding for mark, encoding in _MARKS if data.startswith(mark)), "utf-8")


def decode_text(data: bytes, errors: str = "strict") -> str:
    r"""Decode the content of a file, without its byte order mark and with `\n` at the end of each line.

    Raises:
        UnicodeDecodeError: `errors` is strict, and the content is not in the encoding of its mark.
    """
    return unify_lines(data.decode(encoding_of(data), errors).removeprefix("\ufeff"))


def read_text(path: Path) -> str:
    """Read a text file as `decode_text` does.

    Raises:
        OSError: The file cannot be read.
        UnicodeDecodeError: It is not text in the encoding of its mark.
    """
    return decode_text(path.read_bytes())


def unify_lines(text: str) -> str:
    r"""Replace the line ends `\r\n` and `\r` by `\n`."""
    return text.replace("\r\n", "\n").replace("\r", "\n")
