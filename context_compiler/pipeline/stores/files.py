"""Run storage in readable folders: a checkpoint, events as JSON lines, the graph, and the files of each stage."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from context_compiler.errors import PipelineError
from context_compiler.ids import text_hash
from context_compiler.pipeline.artifacts import os_errors, write_atomically
from context_compiler.pipeline.checkpoint import FILE, STEPS, CheckpointFolder, open_private, read_checkpoint
from context_compiler.pipeline.stage import folder_name
from context_compiler.pipeline.state import RunState
from context_compiler.pipeline.stores import Event, Lost, RunInfo, family, is_owned, newest_first, own_run
from context_compiler.resilience import attempt

MANIFEST, EVENTS, GRAPH, NORMAL, LOCK = "manifest.json", "events.jsonl", "graph.dot", "graph.normal.dot", ".lock"


class FileRuns:
    """Stores runs in folders.

    Args:
        root: The folder that contains the folders of runs.
        alone: True if `root` is itself the folder of a single run.
    """

    def __init__(self, root: str | Path, *, alone: bool = False) -> None:
        self.root = Path(root)
        self._alone = alone
        self._checkpoints: dict[str, CheckpointFolder] = {}

    def folder(self, run_id: str) -> Path:
        """Return the folder of a run."""
        return self.root if self._alone else self.root / folder_name(run_id)

    def below(self, run_id: str) -> FileRuns:
        """Return the store for a child of a run."""
        return FileRuns(self.root / "children" / folder_name(run_id), alone=True) if self._alone else self

    @asynccontextmanager
    async def own(self, run_id: str) -> AsyncGenerator[Lost]:
        """Own a run until the context exits."""
        with own_run(self.folder(run_id) / LOCK, run_id):
            self._checkpoints.pop(run_id, None)
            yield None

    async def begin(self, info: RunInfo, contents: Mapping[str, str]) -> None:
        """Create a run."""
        folder = self.folder(info.run_id)
        if (folder / MANIFEST).exists():
            raise PipelineError(f"{folder}: the folder already contains a run: resume it, or give another id or folder")
        for hash, text in contents.items():
            self._write(folder / (GRAPH if hash == (info.source or info.snapshot) else NORMAL), text)
        self._write(folder / MANIFEST, json.dumps(info.document(), indent=1))

    async def save(self, state: RunState) -> None:
        """Replace the saved state."""
        run_id = state.lineage.root_run_id
        self._checkpoints.setdefault(run_id, CheckpointFolder(self.folder(run_id))).save(state)

    async def add(self, run_id: str, event: Event) -> None:
        """Append an event, on a line of its own even if a crash or a full disk left the line before incomplete."""
        path = self.folder(run_id) / EVENTS
        try:
            with open(path, "a+b", opener=open_private) as file:
                if file.tell():
                    file.seek(-1, os.SEEK_END)
                partial_line = file.read() not in (b"", b"\n")
                file.write(b"\n" * partial_line + json.dumps(event.document()).encode() + b"\n")
        except OSError as error:
            raise PipelineError(f"{path}: {error.strerror or error}") from error

    async def load(self, run_id: str) -> RunState | None:
        """Load the last saved state."""
        return read_checkpoint(self.folder(run_id))

    async def events(self, run_id: str, after: int = 0) -> list[Event]:
        """Events in order; a line that a crash or a full disk left incomplete is skipped."""
        path = self.folder(run_id) / EVENTS
        try:
            lines = path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise PipelineError(f"{path}: {error.strerror or error}") from error
        return [event for line in lines if (event := _parse_line(line)) is not None and event.sequence > after]

    async def runs(self) -> list[RunInfo]:
        """Metadata of all runs, newest first."""
        with os_errors(self.root, "give a folder that may be read"):
            paths = (self.root / MANIFEST,) if self._alone else self.root.glob(f"*/{MANIFEST}")
            infos = [self._info(path) for path in paths if path.exists()] if self.root.is_dir() else []
            return newest_first([info.stopped_unless(self._is_owned) for info in infos])

    def _is_owned(self, run_id: str) -> bool:
        return is_owned(self.folder(run_id) / LOCK)

    async def content(self, hash: str) -> str | None:
        """Return the text with a hash, from any run."""
        for name in (GRAPH, NORMAL):
            for path in (*self.root.glob(f"*/{name}"), self.root / name):
                text = _read_text(path)
                if text is not None and text_hash(text) == hash:
                    return text
        return None

    async def delete(self, run_id: str) -> bool:
        """Delete the folders of a run and its children."""
        if not (self.folder(run_id) / MANIFEST).exists():
            return False
        if self._alone:
            raise PipelineError(f"{self.root}: remove the folder yourself, because it may contain more than this run")
        others = [attempt(partial(self._read_manifest, path)).value for path in self.root.glob(f"*/{MANIFEST}")]
        names = family(run_id, {info.run_id: info.parent for info in others if info is not None})
        with os_errors(self.folder(run_id), "some of it may be left"):
            async with AsyncExitStack() as owned:
                for name in names:
                    await owned.enter_async_context(self.own(name))
                for path in [path for name in names for path in self.folder(name).iterdir() if path.name != LOCK]:
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            for name in names:
                self.folder(name).rmdir()
        return True

    async def close(self) -> None:
        """Do nothing, because there is nothing to release."""

    def _read_manifest(self, manifest: Path) -> RunInfo:
        """Read the metadata with which a run was created."""
        try:
            data: Any = json.loads(manifest.read_bytes())
            return RunInfo.parse(data)
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise PipelineError(f"{manifest}: it cannot be read: {error}") from error

    def _info(self, manifest: Path) -> RunInfo:
        """Read the metadata of a run, updated from its checkpoint; with the error if one of them cannot be read."""
        try:
            info, state = self._read_manifest(manifest), read_checkpoint(manifest.parent)
        except PipelineError as error:
            return RunInfo.damaged(manifest.parent.name, error)
        if state is None:
            return info
        files = (manifest.parent / FILE, *manifest.parent.glob(f"{STEPS}-*.jsonl"))
        when = max(path.stat().st_mtime for path in files)
        return info.with_state(state, datetime.fromtimestamp(when, UTC).isoformat(timespec="milliseconds"))

    def _write(self, path: Path, text: str) -> None:
        with os_errors(path, "give a folder that can be written to"):
            write_atomically(path, text.encode("utf-8", "surrogatepass"))


def _read_text(path: Path) -> str | None:
    """Read the exact text of a file; None if the file is missing or not text."""
    try:
        return path.read_bytes().decode("utf-8", "surrogatepass")
    except (OSError, UnicodeDecodeError):
        return None


def _parse_line(line: bytes) -> Event | None:
    """Parse the event in a line; None if the line is incomplete."""
    try:
        event = Event.parse(json.loads(line))
    except (ValueError, TypeError, RecursionError):
        return None
    return event if type(event.sequence) is int else None


def in_folder(folder: str | Path) -> FileRuns:
    """Return the store of the single run in a folder."""
    return FileRuns(folder, alone=True)
