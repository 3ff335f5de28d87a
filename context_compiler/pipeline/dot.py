"""Graphs in DOT: read from a text or a file."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from context_compiler.lazy import require_extra
from context_compiler.paths import decode_text
from context_compiler.pipeline.graph import Graph

LARGEST = 16_000_000
"""Maximum length of a source, in characters."""


def parse_dot(text: str, path: str | None = None) -> Graph:
    """Parse a graph from DOT; `path` names the file in errors and in the graph.

    Raises:
        GraphError: the text is not a graph. The message has the place and the reason; `snippet` shows the line.
        SettingsError: the extra `pipeline` is not installed.
    """
    require_extra("pipeline")
    return import_module("context_compiler.pipeline.dot_graph").read_graph(text, path)


def load_dot(path: Path) -> Graph:
    """Parse the graph in a file. A file that is too large is not read completely.

    Raises:
        OSError: the file cannot be read.
        UnicodeDecodeError: the file is not UTF-8.
        GraphError: the text is not a graph.
        SettingsError: the extra `pipeline` is not installed.
    """
    return parse_dot(read_source(path), path=str(path))


def read_source(path: Path, largest: int = LARGEST) -> str:
    """Read the text of a file, but of one with more than `largest` characters only enough to see that.

    Raises:
        OSError: the file cannot be read.
        UnicodeDecodeError: the file is not UTF-8.
    """
    with path.open("rb") as file:
        data = file.read(4 * largest + 1)
    return decode_text(data, "strict" if len(data) <= 4 * largest else "replace")
