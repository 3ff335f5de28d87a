"""A model by its name, or one line that says what is missing: a key, a package, or the name itself."""

from __future__ import annotations

import re

from pydantic_ai.models import Model, infer_model

from context_compiler.chat.scripted import NAME, ScriptedModel
from context_compiler.errors import SettingsError
from context_compiler.live.failing import attempt

_KEY = re.compile(r"\b[A-Z][A-Z0-9_]*(?:_API_KEY|_TOKEN|_KEY)\b")


def model_named(name: str) -> Model:
    """The model of that name; `scripted` is the bundled one, `scripted:0.1` the same with 0.1 seconds a word.

    Raises:
        SettingsError: it cannot be used, and why.
    """
    if name == NAME or name.startswith(f"{NAME}:"):
        return _scripted(name)
    found = attempt(lambda: infer_model(name))
    if found.value is not None:
        return found.value
    said = " ".join(str(found.error).split())
    key = _KEY.search(said)
    if key is not None:
        said = f"the environment variable {key[0]} is missing"
    raise SettingsError(f"--model {name!r}: {said or 'unknown'}; --model {NAME} needs no key and no network")


def _scripted(name: str) -> ScriptedModel:
    pause = name.partition(":")[2]
    delay = attempt(lambda: float(pause)).value if pause else ScriptedModel().delay
    if delay is None or not 0 <= delay <= 60:
        raise SettingsError(f"--model {name!r}: give seconds a word from 0 to 60, such as {NAME}:0.1")
    return ScriptedModel(delay)
