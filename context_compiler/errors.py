"""Hierarchy of the errors that this package raises deliberately.

ContextCompilerError
├── TemplateError      a template is missing, unreadable or wrong (name, path, line)
├── CompileError       a summary could not be made (model, phase)
├── TranscriptError    a transcript could not be read (file, index)
├── StoreError         the record could not be opened, read or written
├── ContextMemoryError a memory could not be read, written or rolled back
├── BudgetError        a strict call could not be fitted into its budget
├── FidelityError      a fidelity is not one of the known modes (where, value)
├── LayersError        the state of entities, conversation or reasoning is invalid, or was requested wrongly
├── PipelineError      a pipeline cannot be run, or failed in a way that it does not handle itself
│   ├── CheckpointError  a saved state of a run cannot be read (newer)
│   ├── GraphError     its graph cannot be read, or has errors (path, line, column, snippet, diagnostics)
│   └── RunOwnedError  another process owns the run, or has taken it over
└── SettingsError      an argument or environment variable has a wrong value

Each message says what is wrong, where, and what to do about it. The capability raises none of these: it falls back and
reports them through `on_error`.
"""

from __future__ import annotations

from collections.abc import Sequence


class ContextCompilerError(Exception):
    """Base class of all errors that this package raises deliberately."""


def text_of(error: Exception) -> str:
    """Text of an error of this package; of any other its type alone, because its text may quote messages."""
    return str(error) if isinstance(error, ContextCompilerError) else type(error).__name__


class TemplateError(ContextCompilerError):
    """A template is missing, unreadable, outside its roots, or wrong."""

    def __init__(self, message: str, *, name: str, path: str | None = None, line: int | None = None) -> None:
        """Store the place with the message: `name`, the file's `path` and the 1-based `line`, if known."""
        location = f"{path or name}:{line}" if line else (path or name)
        super().__init__(f"{location}: {message}")
        self.name, self.path, self.line = name, path, line


class CompileError(ContextCompilerError):
    """A summary could not be made."""

    def __init__(
        self, message: str, *, model: str, phase: str, usage: dict[str, int] | None = None, cost: str | None = None
    ) -> None:
        """Name the `model` that failed and the `phase`: prompt, setup, call, timeout, usage, or answer.

        In the phase "setup" the model could not be made, for example because its package is missing.

        `usage` (tokens and requests) and `cost` (US dollars) are the amounts spent before the failure.
        """
        super().__init__(f"{phase} ({model}): {message}")
        self.model, self.phase, self.usage, self.cost = model, phase, usage or {}, cost


class TranscriptError(ContextCompilerError):
    """A transcript could not be read."""

    def __init__(self, message: str, *, file: str, index: int | None = None) -> None:
        """Name the `file` and, if a single message is at fault, its 0-based `index`."""
        location = file if index is None else f"{file}[{index}]"
        super().__init__(f"{location}: {message}")
        self.file, self.index = file, index


class StoreError(ContextCompilerError):
    """The record could not be opened, read or written."""


class ContextMemoryError(ContextCompilerError):
    """A memory could not be read or written, or there is no earlier state to roll it back to."""


class BudgetError(ContextCompilerError):
    """A strict call could not be fitted into its budget."""


class FidelityError(ContextCompilerError, ValueError):
    """A fidelity is not one of the known modes."""

    def __init__(self, message: str, *, where: str, value: object) -> None:
        """Name the place (`where`) that the unknown `value` came from."""
        super().__init__(f"{where}: {message}")
        self.where, self.value = where, value


class LayersError(ContextCompilerError, ValueError):
    """State of entities, conversation or reasoning that is invalid, or was requested wrongly."""


class SettingsError(ContextCompilerError, ValueError):
    """An argument or an environment variable has a wrong value."""


class PipelineError(ContextCompilerError):
    """A pipeline cannot be run, or failed in a way that it does not handle itself."""


class RunOwnedError(PipelineError):
    """Another process owns a run, or has taken it over."""

    def __init__(self, message: str, *, patience: float = 0.0) -> None:
        super().__init__(message)
        self.patience = patience
        """Seconds until the run becomes free if its owner is dead; 0 if a dead owner is detected at once."""


class CheckpointError(PipelineError):
    """A saved state of a run cannot be read."""

    def __init__(self, message: str, *, newer: bool = False) -> None:
        super().__init__(message)
        self.newer = newer
        """True if a newer version of this package wrote the state; that version can read it."""


class GraphError(PipelineError):
    """A graph cannot be read, or has errors that prevent it from running."""

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        line: int | None = None,
        column: int | None = None,
        snippet: str = "",
        diagnostics: Sequence[object] = (),
    ) -> None:
        """Store the place with the one-line message; `line` and `column` are 1-based.

        `snippet` is the source line with a caret under the column; a traceback shows it too. `diagnostics` are the
        findings of the linter, if it raised the error.
        """
        location = ":".join(str(part) for part in (path or "graph", line, column) if part)
        super().__init__(f"{location}: {message}")
        if snippet:
            self.add_note(snippet)
        self.message, self.path, self.line, self.column = message, path, line, column
        self.snippet, self.diagnostics = snippet, tuple(diagnostics)
