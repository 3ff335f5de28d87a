"""Transcripts and models that users name on the command line."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from typing import get_args

from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import KnownModelName, Model, infer_model

from context_compiler.chat import local_model
from context_compiler.chat.demo_model import NAME, ScriptedModel
from context_compiler.cli.screen import print_note
from context_compiler.cli.text import one_line, suggestions
from context_compiler.errors import SettingsError, TranscriptError
from context_compiler.lazy import PROVIDERS, missing_provider
from context_compiler.messages.importers import Transcript, parse_transcripts, read_transcripts
from context_compiler.resilience import attempt

SHOWN_NOTES = 5
"""Maximum notes of the importer that are printed."""


def read_conversations(path: str, format: str | None) -> list[Transcript]:
    """Read every conversation in a file, or on standard input for `-`.

    Raises:
        TranscriptError: it is not a transcript.
    """
    transcripts = parse_transcripts(sys.stdin.buffer.read(), file="stdin", format=format) if path == "-" else []
    return transcripts or read_transcripts(path, format=format)


def print_notes(transcript: Transcript) -> None:
    """Print notes on what the importer had to guess or leave out."""
    for note in transcript.notes[:SHOWN_NOTES]:
        print_note(f"{transcript.name}: {note}")
    if len(transcript.notes) > SHOWN_NOTES:
        print_note(f"{transcript.name}: {len(transcript.notes) - SHOWN_NOTES:,} more such notes")


def select_conversation(conversations: list[Transcript], wanted: str | None, *, file: str) -> Transcript:
    """Select a conversation by position or name; None selects the only one.

    Raises:
        TranscriptError: there are several and none is named, or there is no such conversation.
    """
    names = [conversation.name for conversation in conversations]
    if wanted is None:
        if len(conversations) == 1:
            return conversations[0]
        last = len(conversations) - 1
        raise TranscriptError(
            f"contains {len(conversations)} conversations; select one with --select, by position (0 to {last})"
            f" or by name (such as {one_line(names[0], 60)!r})",
            file=file,
        )
    short = [name.rpartition("#")[2] for name in names]
    for spellings in (names, short):
        if spellings.count(wanted) == 1:
            return conversations[spellings.index(wanted)]
    if wanted.isascii() and wanted.isdigit() and int(wanted) < len(conversations):
        return conversations[int(wanted)]
    raise TranscriptError(
        f"--select {one_line(wanted, 60)!r}: no such conversation among its {len(conversations)}"
        f"{suggestions(wanted, names)}",
        file=file,
    )


def answering_model(messages: Sequence[ModelMessage]) -> str:
    """Model named by the newest answer that names one; empty if none does."""
    answers = (message for message in reversed(messages) if isinstance(message, ModelResponse))
    return next((answer.model_name for answer in answers if answer.model_name), "")


def installed_models() -> list[str]:
    """Names of the models that can be used here once their key is set: those without a key, then by provider."""
    there = {
        provider for provider, module in PROVIDERS.items() if attempt(partial(find_spec, module)).value is not None
    }
    every: tuple[str, ...] = get_args(getattr(KnownModelName, "__value__", KnownModelName))
    local = [local_model.NAME] if attempt(local_model.default_weights).error is None else []
    return [NAME, *local, *(name for name in every if name.partition(":")[0] in there)]


def check_model(model: str) -> str:
    """Check that a model can be used, and return its name; `none` means no model.

    Raises:
        SettingsError: its provider's package or key is missing, or the model is unknown.
    """
    if model != "none":
        _infer(model)
    return model


def chat_model(name: str, *, instead: str = f"; --model {NAME} needs no key and no network") -> Model:
    """Create a model by name.

    `scripted` answers from a script, and `scripted:0.1` takes 0.1 seconds per word. `local` is a small real model on
    this machine; its server ends with the process.

    Raises:
        SettingsError: it cannot be used; the message ends with `instead`.
    """
    if name == NAME or name.startswith(f"{NAME}:"):
        return _scripted_model(name)
    if name == local_model.NAME:
        return local_model.local_model()
    return _infer(name, instead)


def check_stage_model(stage: str, model: str | None) -> None:
    """Check that the model named by a stage can be used.

    Raises:
        SettingsError: it cannot.
    """
    if model is not None:
        _infer(model, "; --simulate asks no model", source=f"stage {stage!r}: model")


def _infer(name: str, instead: str = "", *, source: str = "--model") -> Model:
    """Create the host's model of that name; an error message begins with `source` and ends with `instead`."""
    outcome = attempt(lambda: infer_model(name))
    if outcome.value is None:
        raise SettingsError(f"{source} {one_line(name, 80)!r}: {_remedy(outcome.error)}{instead}")
    return outcome.value


def _remedy(error: Exception | None) -> str:
    """Remedy for an error of the host, such as a key to set or a package to install."""
    message = one_line(str(error))
    if isinstance(error, ImportError):
        return one_line(missing_provider(error))
    missing = next(iter(re.findall(r"`([A-Z][A-Z0-9_]+)`", message)), "")
    if isinstance(error, UserError) and missing:
        return f"set the environment variable {missing}"
    if message.startswith("Unknown model") and len(message) < 200:
        return f"{message.split('. ')[0].removesuffix('.')}; give provider:name, such as openai:gpt-5"
    return message.split(". ")[0]


def _scripted_model(name: str) -> ScriptedModel:
    pause = name.partition(":")[2]
    delay = attempt(lambda: float(pause)).value if pause else ScriptedModel().delay
    if delay is None or not 0 <= delay <= 60:
        raise SettingsError(f"--model {name!r}: give seconds per word from 0 to 60, such as {NAME}:0.1")
    return ScriptedModel(delay)
