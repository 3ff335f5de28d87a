"""One conversation out of a file."""

from __future__ import annotations

import sys

from context_compiler.cli.screen import warn
from context_compiler.cli.text import near, one_line
from context_compiler.errors import TranscriptError
from context_compiler.messages.importers import Transcript, parse_transcripts, read_transcripts

SHOWN_NOTES = 5


def conversations(path: str, format: str | None) -> list[Transcript]:
    """Every conversation in a file, or in what is piped in for `-`; what was read leniently is told.

    Raises:
        TranscriptError: it is no transcript.
    """
    found = parse_transcripts(sys.stdin.buffer.read(), file="stdin", format=format) if path == "-" else []
    return found or read_transcripts(path, format=format)


def tell_notes(transcript: Transcript) -> None:
    """Say on standard error what was read leniently."""
    for note in transcript.notes[:SHOWN_NOTES]:
        warn(f"{transcript.name}: {note}")
    if len(transcript.notes) > SHOWN_NOTES:
        warn(f"{transcript.name}: {len(transcript.notes) - SHOWN_NOTES:,} more such notes")


def selected(found: list[Transcript], wanted: str | None, *, file: str) -> Transcript:
    """The conversation that somebody means by a position or a name; the only one when nothing is said.

    Raises:
        TranscriptError: there are several and none is named, or there is none of that name.
    """
    names = [one.name for one in found]
    if wanted is None:
        if len(found) == 1:
            return found[0]
        last = len(found) - 1
        raise TranscriptError(
            f"holds {len(found)} conversations; choose one with --select, by position (0 to {last}) or by name"
            f" (such as {one_line(names[0], 60)!r})",
            file=file,
        )
    short = [name.rpartition("#")[2] for name in names]
    for known in (names, short):
        if known.count(wanted) == 1:
            return found[known.index(wanted)]
    if wanted.isascii() and wanted.isdigit() and int(wanted) < len(found):
        return found[int(wanted)]
    raise TranscriptError(
        f"--select {one_line(wanted, 60)!r}: no such conversation among its {len(found)}{near(wanted, names)}",
        file=file,
    )
