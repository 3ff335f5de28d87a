"""Streamed answers: growing markdown on a terminal, plain lines everywhere else.

A complete block is printed once, so that it stays in the scrollback; only the growing block is redrawn. Nothing in an
answer can move the cursor, hide the address of a link, or imitate our own markup.
"""

from __future__ import annotations

import re
import sys

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment
from rich.spinner import Spinner
from rich.text import Text

from context_compiler.cli.text import safe

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
FRAMES = 12
"""Redraws of the growing block per second."""

MARGIN = 6
"""Terminal lines that the growing block leaves free."""


def markdown(text: str) -> Markdown:
    """Parse markdown so that it is safe to print: links show their addresses, and HTML is shown as text."""
    page = Markdown("", hyperlinks=False, code_theme="ansi_dark")
    page.parsed = MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table").parse(safe(text))
    for piece in (piece for token in page.parsed for piece in token.children or ()):
        piece.content = safe(piece.content)  # entities such as `&#8238;` are decoded only now
    return page


class Trimmed:
    """A renderable without the empty lines before and after it."""

    def __init__(self, inner: RenderableType) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the lines, from the first to the last that is not empty."""
        lines = console.render_lines(self._inner, options, pad=False)
        full = [index for index, line in enumerate(lines) if any(piece.text.strip() for piece in line)]
        for line in lines[full[0] : full[-1] + 1] if full else []:
            yield from line
            yield Segment.line()


class Blocks:
    """Splits a growing text into complete blocks of markdown."""

    def __init__(self) -> None:
        self.tail = ""
        self._scanned = self._cut = 0
        self._fence = ""

    def add(self, piece: str) -> str:
        """Add a piece, and return the blocks that are now complete."""
        self.tail += piece
        if "\n" not in piece:
            return ""
        stop = self.tail.rfind("\n") + 1
        for line in self.tail[self._scanned : stop].splitlines(keepends=True):
            self._scanned += len(line)
            fence = _FENCE.match(line)
            if fence and not self._fence:
                self._fence = fence[1]
            elif fence and fence[1].startswith(self._fence):
                self._fence = ""
            elif not line.strip() and not self._fence:
                self._cut = self._scanned
        done, self.tail = self.tail[: self._cut], self.tail[self._cut :]
        self._scanned, self._cut = self._scanned - len(done), 0
        return done


class MarkdownStream:
    """Prints one answer on a terminal, as markdown."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._blocks = Blocks()
        self._ended = False
        self._waiting = Spinner("dots", Text("…", "dim"))
        self._live = Live(
            get_renderable=self._growing_block, console=console, refresh_per_second=FRAMES, vertical_overflow="crop"
        )

    def __enter__(self) -> MarkdownStream:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended = True
        self._live.vertical_overflow = "visible"
        self._live.transient = not self._blocks.tail.strip()
        self._live.stop()

    def write(self, piece: str) -> None:
        """Print a piece of the answer."""
        done = self._blocks.add(piece)
        if done.strip():
            self._live.refresh()
            self._console.print(Trimmed(markdown(done)))
            self._console.print()

    def _growing_block(self) -> RenderableType:
        tail = self._blocks.tail
        if not tail.strip():
            return self._waiting
        room = max(self._console.height - MARGIN, 3)
        if self._ended or (tail.count("\n") < room and len(tail) < room * self._console.width):
            return Trimmed(markdown(tail))
        return Text(safe("\n".join(tail[-room * self._console.width :].splitlines()[-room:])))


class PlainStream:
    """Prints one answer as plain lines, each as soon as it is complete."""

    def __init__(self) -> None:
        self._line = ""
        self._wrote = False

    def __enter__(self) -> PlainStream:
        return self

    def __exit__(self, *error: object) -> None:
        if self._line:
            self._write(self._line)
        if self._wrote:
            self._write("")

    def write(self, piece: str) -> None:
        """Print a piece of the answer."""
        *whole, self._line = (self._line + piece).split("\n")
        for line in whole:
            self._write(line)

    def _write(self, line: str) -> None:
        sys.stdout.write(f"{safe(line)}\n")
        sys.stdout.flush()
        self._wrote = True
