"""One conversation out of a file, and a model that can really be asked."""

from __future__ import annotations

import re
import sys

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import infer_model

from context_compiler.cli.screen import warn
from context_compiler.cli.text import near, one_line
from context_compiler.errors import SettingsError, TranscriptError
from context_compiler.importers import Transcript, parse_transcripts, read_transcripts

EXTRAS = ("anthropic", "google", "openai")
"""Providers that this package names an extra for; the host knows the others."""

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


def askable(model: str) -> str:
    """A model's name, once it is sure that it can be asked; `none` asks nobody.

    Raises:
        SettingsError: its provider's package or its key is missing, or nobody knows it.
    """
    if model == "none":
        return model
    place = f"--model {one_line(model, 80)!r}"
    try:
        infer_model(model)
    except ImportError as error:
        extra = next(iter(re.findall(r"pydantic-ai-slim\[([\w-]+)\]", str(error))), "")
        package = "context-compiler" if extra in EXTRAS else "pydantic-ai-slim"
        remedy = f'pip install "{package}[{extra}]"' if extra else one_line(str(error))
        raise SettingsError(f"{place}: its provider's package is not installed: {remedy}") from None
    except (UserError, ValueError) as error:
        missing = next(iter(re.findall(r"`([A-Z][A-Z0-9_]+)`", str(error))), "")
        remedy = f"set the environment variable {missing}" if missing else _first_sentence(str(error))
        raise SettingsError(f"{place}: {remedy}") from None
    return model


def _first_sentence(text: str) -> str:
    said = one_line(text)
    return said if said.startswith("Unknown model") and len(said) < 200 else said.split(". ")[0]
