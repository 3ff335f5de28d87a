"""A model by its name, or one line that says what is missing: a key, a package, or the name itself."""

from __future__ import annotations

import re

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model, infer_model

from context_compiler.chat.demo_model import NAME, ScriptedModel
from context_compiler.cli.text import one_line
from context_compiler.errors import SettingsError
from context_compiler.resilience import attempt

EXTRAS = ("anthropic", "google", "openai")
"""Providers that this package names an extra for; the host knows the others."""


def askable(model: str) -> str:
    """A model's name, once it is sure that it can be asked; `none` asks nobody.

    Raises:
        SettingsError: its provider's package or its key is missing, or nobody knows it.
    """
    if model != "none":
        _provided(model)
    return model


def chat_model(name: str) -> Model:
    """The model of that name; `scripted` is the bundled one, `scripted:0.1` the same with 0.1 seconds a word.

    Raises:
        SettingsError: it cannot be used, and why.
    """
    if name == NAME or name.startswith(f"{NAME}:"):
        return _scripted(name)
    return _provided(name, f"; --model {NAME} needs no key and no network")


def _provided(name: str, instead: str = "") -> Model:
    """What the host makes of a name."""
    found = attempt(lambda: infer_model(name))
    if found.value is None:
        raise SettingsError(f"--model {one_line(name, 80)!r}: {_remedy(found.error)}{instead}")
    return found.value


def _remedy(error: Exception | None) -> str:
    """What is missing, from what the host says of it."""
    said = one_line(str(error))
    if isinstance(error, ImportError):
        extra = next(iter(re.findall(r"pydantic-ai-slim\[([\w-]+)\]", said)), "")
        missing = "its provider's package is not installed"
        if extra in EXTRAS:
            return f'{missing}: pip install "pydantic-ai-context-compiler[{extra}]"'
        return f'{missing}: pip install "pydantic-ai-slim[{extra}]"' if extra else f"{missing}: {said}"
    missing = next(iter(re.findall(r"`([A-Z][A-Z0-9_]+)`", said)), "")
    if isinstance(error, UserError) and missing:
        return f"set the environment variable {missing}"
    return said if said.startswith("Unknown model") and len(said) < 200 else said.split(". ")[0]


def _scripted(name: str) -> ScriptedModel:
    pause = name.partition(":")[2]
    delay = attempt(lambda: float(pause)).value if pause else ScriptedModel().delay
    if delay is None or not 0 <= delay <= 60:
        raise SettingsError(f"--model {name!r}: give seconds a word from 0 to 60, such as {NAME}:0.1")
    return ScriptedModel(delay)
