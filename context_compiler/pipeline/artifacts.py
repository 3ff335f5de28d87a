"""Store for data that is too large for a run's context: small artifacts in memory, large ones in files.

The context refers to an artifact as `artifact://id`, wherever its data is stored.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from threading import RLock
from typing import Any, cast

from context_compiler.errors import PipelineError
from context_compiler.pipeline.state import to_json

THRESHOLD = 100 * 1024
"""Maximum size in bytes of an artifact in memory, as JSON; a larger one is written to a file."""
MAX_SHOWN_BYTES = 8 * 1024
"""Maximum size in bytes of a context value that a preamble shows in full; a larger one is stored as an artifact."""
REFERENCES_KEY = "internal.kept"
"""Context key of a mapping from keys to the references of values that are not stored under their usual reference."""
PREFIX = "artifact://"

_ID = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_INVALID = re.compile(r"[^A-Za-z0-9_.-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactInfo:
    """Metadata of an artifact."""

    id: str
    name: str
    size_bytes: int
    """Size of the data as JSON."""
    stored_at: str
    """Time of the last `store`, in ISO 8601 and UTC."""
    is_file_backed: bool

    @property
    def reference(self) -> str:
        """Context value that refers to this artifact: `artifact://id`."""
        return f"{PREFIX}{self.id}"


def artifact_id(*parts: object) -> str:
    """Join parts with dots into an artifact id.

    If the result is invalid or ambiguous, append a hash, because ids of different parts must differ.
    """
    texts = [str(part) for part in parts]
    plain_id = ".".join(texts)
    if _ID.fullmatch(plain_id) and not any("." in text for text in texts[:-1]):
        return plain_id
    digest = blake2b("\0".join(texts).encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"{_INVALID.sub('_', plain_id)[:150]}-{digest}"


def artifact_reference(key: str) -> str:
    """Return the usual reference of a context value that is too large to show."""
    return f"{PREFIX}context.{_INVALID.sub('_', key[:100])}"


def write_atomically(path: Path, body: bytes, *, durable: bool = False) -> None:
    """Write a file completely or not at all.

    Args:
        path: The file; missing folders above it are created.
        body: Its new content.
        durable: Wait until the content is on disk.

    Raises:
        OSError: the file could not be written; its previous content is intact.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(body)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(name, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)


@contextmanager
def os_errors(path: Path, remedy: str) -> Generator[None]:
    """Raise a `PipelineError` with a path and a remedy instead of an `OSError`."""
    try:
        yield
    except OSError as error:
        raise PipelineError(f"{path}: {error.strerror or error}; {remedy}") from error


class ArtifactStore:
    """Artifacts of one run. Thread-safe.

    Every method that takes an id raises `PipelineError` if it is invalid; `retrieve`, `info` and `remove` also raise
    it if there is no such artifact.

    Args:
        base_dir: Folder for artifacts above the threshold, in its subfolder `artifacts`; None keeps all in memory.
        threshold: Maximum size in bytes of an artifact in memory, as JSON; 0 means 100 KiB.
    """

    def __init__(self, base_dir: str | Path | None = None, threshold: int = THRESHOLD) -> None:
        self._folder = None if base_dir is None else Path(base_dir) / "artifacts"
        self._threshold = threshold or THRESHOLD
        self._lock = RLock()
        self._infos: dict[str, ArtifactInfo] = {}
        self._memory: dict[str, Mapping[str, Any]] = {}
        self._scan()

    def store(self, id: str, name: str, data: Any) -> ArtifactInfo:
        """Store data under an id, replacing any earlier data.

        Raises:
            PipelineError: the name is blank, the data is not JSON, or the file cannot be written.
        """
        _check_id(id)
        if not name.strip():
            raise PipelineError(f"artifact {id!r}: the name is blank")
        try:
            plain = to_json(data)
        except ValueError as error:
            raise PipelineError(f"artifact {id!r}: {error}") from None
        body = json.dumps(plain, ensure_ascii=False).encode("utf-8", "surrogatepass")
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        in_file = self._folder is not None and len(body) > self._threshold
        info = ArtifactInfo(id=id, name=name, size_bytes=len(body), stored_at=now, is_file_backed=in_file)
        with self._lock:
            if in_file:
                self._write(info, plain)
                self._memory.pop(id, None)
            else:
                self._memory[id] = _entry(info, plain)
                self._unlink(id)
            self._infos[id] = info
        return info

    def retrieve(self, reference: str) -> Any:
        """Return the data of an artifact, by id or reference. The caller must not modify it."""
        id = _parse_reference(reference)
        with self._lock:
            info = self._require(id)
            return (self._read(id) if info.is_file_backed else self._memory[id])["data"]

    def info(self, reference: str) -> ArtifactInfo:
        """Return the metadata of an artifact, by id or reference."""
        with self._lock:
            return self._require(_parse_reference(reference))

    def has(self, reference: str) -> bool:
        """True if the artifact exists."""
        with self._lock:
            return _parse_reference(reference) in self._infos

    def list(self) -> list[ArtifactInfo]:
        """Return the metadata of all artifacts, sorted by id."""
        with self._lock:
            return [self._infos[id] for id in sorted(self._infos)]

    def remove(self, reference: str) -> None:
        """Delete an artifact and its file."""
        id = _parse_reference(reference)
        with self._lock:
            self._require(id)
            self._unlink(id)
            self._memory.pop(id, None)
            del self._infos[id]

    def clear(self) -> None:
        """Delete all artifacts."""
        for info in self.list():
            self.remove(info.id)

    def in_memory(self) -> dict[str, Any]:
        """Return the artifacts in memory as plain data by id, for a checkpoint. The caller must not modify them."""
        with self._lock:
            return dict(self._memory)

    def restore(self, held: Mapping[str, Any]) -> None:
        """Load artifacts that `in_memory` returned.

        Raises:
            PipelineError: an id is invalid, or an entry has no data.
        """
        with self._lock:
            for id, entry in held.items():
                if "data" not in entry:
                    raise PipelineError(f"artifact {id!r}: its saved data is damaged")
                self._memory[_check_id(id)] = entry
                self._infos[id] = _info(id, entry, in_file=False)

    def _require(self, id: str) -> ArtifactInfo:
        if id not in self._infos:
            raise PipelineError(f"artifact {id!r} not found")
        return self._infos[id]

    def _path(self, id: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{id}.json"

    def _write(self, info: ArtifactInfo, data: Any) -> None:
        body = json.dumps(_entry(info, data), ensure_ascii=False).encode("utf-8", "surrogatepass")
        with os_errors(self._path(info.id), "check free space and permissions"):
            write_atomically(self._path(info.id), body)

    def _read(self, id: str) -> dict[str, Any]:
        try:
            document: Any = json.loads(self._path(id).read_bytes().decode("utf-8", "surrogatepass"))
        except (OSError, ValueError, RecursionError) as error:
            raise PipelineError(f"{self._path(id)}: the artifact cannot be read: {error}") from error
        if not isinstance(document, dict) or "data" not in document:
            raise PipelineError(f"{self._path(id)}: the file does not contain an artifact")
        return cast("dict[str, Any]", document)

    def _unlink(self, id: str) -> None:
        if self._folder is not None and id in self._infos and self._infos[id].is_file_backed:
            self._path(id).unlink(missing_ok=True)

    def _scan(self) -> None:
        """Register the artifact files that earlier processes wrote."""
        for path in sorted(self._folder.glob("*.json")) if self._folder and self._folder.is_dir() else ():
            if _ID.fullmatch(path.stem):
                self._infos[path.stem] = _info(path.stem, self._read(path.stem), in_file=True)


def _entry(info: ArtifactInfo, data: Any) -> dict[str, Any]:
    return {"name": info.name, "size_bytes": info.size_bytes, "stored_at": info.stored_at, "data": data}


def _info(id: str, entry: Mapping[str, Any], *, in_file: bool) -> ArtifactInfo:
    facts = {"name": str(entry.get("name", id)), "stored_at": str(entry.get("stored_at", ""))}
    size: object = entry.get("size_bytes")
    return ArtifactInfo(id=id, size_bytes=size if type(size) is int else 0, is_file_backed=in_file, **facts)


def _check_id(id: str) -> str:
    if not _ID.fullmatch(id) or not id.strip("."):
        raise PipelineError(f"{id!r} is not an artifact id: use letters, digits, dots, hyphens and underscores")
    return id


def _parse_reference(reference: str) -> str:
    if "://" in reference and not reference.startswith(PREFIX):
        raise PipelineError(f"{reference!r} is not a reference to an artifact, which would begin with {PREFIX}")
    return _check_id(reference.removeprefix(PREFIX))
