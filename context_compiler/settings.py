"""Default settings, their environment variables and the configuration file; read on demand, never at import.

| variable | default | allowed |
|---|---|---|
| CONTEXT_COMPILER_RECENT_TURNS | 3 | a whole number from 0, or `all` |
| CONTEXT_COMPILER_RECENT_TOOL_RESULTS | 3 | a whole number from 0, or `all` |
| CONTEXT_COMPILER_TEMPLATE | chat_compiler | a template's name |
| CONTEXT_COMPILER_DB | system/context.db | a file |
| CONTEXT_COMPILER_SYSTEM | system | a folder |
| CONTEXT_COMPILER_VAULT | none | a folder |
| CONTEXT_COMPILER_TIMEOUT | 60 | seconds above 0 |
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

from context_compiler.errors import SettingsError
from context_compiler.paths import read_text

Count: TypeAlias = int | Literal["all"]
"""A whole number from 0, or "all"."""

COUNT_RULE = "a whole number from 0, or all"


def parse_count(value: object) -> Count:
    """Parse a count from a number or a string.

    Raises:
        ValueError: It is not a count; the message is the allowed values.
    """
    text = value.strip() if isinstance(value, str) else value
    if text == "all":
        return "all"
    if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    if isinstance(text, int) and not isinstance(text, bool) and text >= 0:
        return text
    raise ValueError(COUNT_RULE)


Amount: TypeAlias = int | float
"""Tokens as an `int`, or a share of a whole as a `float` in (0, 1]."""


MAX_TOKENS = 10**12
"""Maximum tokens that can be given; more than any window has."""


def check_amount(amount: object, *, name: str) -> Amount | None:
    """Check an amount that a user gave, and return it.

    Raises:
        SettingsError: It is neither an `int` above 0, nor a `float` in (0, 1], nor None; the message names `name`.
    """
    if amount is None:
        return None
    if isinstance(amount, bool) or not isinstance(amount, int | float):
        raise SettingsError(f"{name}={amount!r}: give tokens as an int, or a share as a float in (0, 1]")
    if isinstance(amount, float) and not 0 < amount <= 1:
        raise SettingsError(f"{name}={amount!r}: a float is a share and must be in (0, 1]; give tokens as an int")
    if not 0 < amount <= MAX_TOKENS:
        raise SettingsError(f"{name}={amount!r}: must be above 0 and at most {MAX_TOKENS:,}")
    return amount


def amount_tokens(amount: Amount | None, *, of: int) -> int | None:
    """Convert an amount to tokens; a share is a share `of` these tokens."""
    return int(amount * of) if isinstance(amount, float) else amount


def _nonempty_text(value: object) -> str:
    if isinstance(value, str) and value.strip() and "\0" not in value:
        return value.strip()
    raise ValueError("a text that is not empty")


def _folder(value: object) -> str | None:
    return None if value is None else _nonempty_text(value)


def _seconds(value: object) -> float:
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else 0.0
    except (ValueError, OverflowError):
        number = 0.0
    if number > 0 and isfinite(number):
        return number
    raise ValueError("a number of seconds above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Default settings, used if neither the caller nor the template sets a value.

    Raises:
        SettingsError: A value is not allowed; the message names the variable, the value and the allowed values.
    """

    context_compiler_recent_turns: Count = 3
    """Number of recent turns to keep unchanged."""
    context_compiler_recent_tool_results: Count = 3
    """Number of recent tool results that are shown in full when a summary is written."""
    context_compiler_template: str = "chat_compiler"
    context_compiler_db: str = "system/context.db"
    context_compiler_system: str = "system"
    context_compiler_vault: str | None = None
    context_compiler_timeout: float = 60.0
    """Maximum seconds of all model calls of one compile together; an application passes it on as `timeout=`."""

    def __post_init__(self) -> None:
        for name, read in _RULES.items():
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, read(value))
            except ValueError as allowed:
                raise SettingsError(f"{name.upper()}={value!r}: give {allowed}") from None

    @classmethod
    def from_environment(cls, env: Mapping[str, str] | None = None) -> Self:
        """Read the current environment; a variable that is unset or blank keeps its default.

        Args:
            env: Variables to read instead of `os.environ`.
        """
        variables = os.environ if env is None else env
        names = {field.name: field.name.upper() for field in fields(cls)}
        return cls(**{name: variables[key] for name, key in names.items() if variables.get(key, "").strip()})  # pyright: ignore[reportArgumentType] # text becomes a value in __post_init__


_RULES: dict[str, Callable[[object], object]] = {
    "context_compiler_recent_turns": parse_count,
    "context_compiler_recent_tool_results": parse_count,
    "context_compiler_template": _nonempty_text,
    "context_compiler_db": _nonempty_text,
    "context_compiler_system": _nonempty_text,
    "context_compiler_vault": _folder,
    "context_compiler_timeout": _seconds,
}


KEYS = tuple(
    "template budget trigger reserve window probe fidelity every_turn background model compile_spend_limit vault"
    " system vault_name recent_turns recent_tool_results tool_history recall recall_across say_absent inject record"
    " record_timeout detect_rules owner compile_tool dry_run timeout db runs chat_model".split()
)
"""Keys of a configuration file: arguments of `ContextCompiler`, then those that only the command line uses."""

COMMAND_LINE = ("runs", "chat_model")
"""Keys that are not arguments of `ContextCompiler`. The key `db` is its argument `store`."""

FOLDERS = ("vault", "system", "db", "runs")
"""Keys whose values are paths, relative to the folder of the configuration file."""

FILE, PROJECT, TABLE = "context_compiler.toml", "pyproject.toml", "context_compiler"
Value: TypeAlias = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Values of a configuration file; empty if there is no file.

    Raises:
        SettingsError: A key is unknown, or a value is not a string, number or boolean.
    """

    path: Path | None = None
    values: Mapping[str, Value]

    def __post_init__(self) -> None:
        for key, value in self.values.items():
            if key not in KEYS:
                close = get_close_matches(key, KEYS, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"use {', '.join(KEYS)}"
                raise SettingsError(f"{self.path}: there is no key {key!r}; {hint}")
            if not isinstance(value, str | int | float | bool):  # pyright: ignore[reportUnnecessaryIsInstance] # TOML has more
                raise SettingsError(f"{self.path}: {key} = {value!r}: give a text, a number, true or false")

    @classmethod
    def load(cls, path: str | Path | None = None) -> Self:
        """Read a configuration file.

        Args:
            path: The file; None reads the file that CONTEXT_COMPILER_CONFIG names, else `context_compiler.toml` or
                `[tool.context_compiler]` of `pyproject.toml` in the working directory.

        Raises:
            SettingsError: The file is missing, is not valid TOML, or contains a wrong key or value.
        """
        named = path or os.environ.get(variable("config"), "").strip()
        if named:
            return cls._parse(Path(named))
        default = next((Path(name) for name in (FILE, PROJECT) if Path(name).is_file()), None)
        return cls(values={}) if default is None else cls._parse(default)

    @classmethod
    def _parse(cls, path: Path) -> Self:
        try:
            document: dict[str, Any] = tomllib.loads(read_text(path))
        except OSError as error:
            raise SettingsError(f"{path}: cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise SettingsError(f"{path}: is not valid TOML: {error}") from None
        for name in ("tool", TABLE) if path.name == PROJECT else ():
            document = document.get(name) or {}
            if not isinstance(document, dict):  # pyright: ignore[reportUnnecessaryIsInstance] # whatever the file says
                raise SettingsError(f"{path}: {name} is not a table")
        if path.name == PROJECT and not document:
            return cls(values={})
        return cls(path=path, values={key: _resolve(path, key, value) for key, value in document.items()})

    def arguments(self) -> dict[str, Value]:
        """Values to pass to `ContextCompiler`, by argument name."""
        return {"store" if key == "db" else key: value for key, value in self.values.items() if key not in COMMAND_LINE}

    @contextmanager
    def in_environment(self) -> Generator[frozenset[str]]:
        """Set the environment variable of each key temporarily, unless it is set; yield the keys that were applied."""
        keys = frozenset(key for key in self.values if not os.environ.get(variable(key), "").strip())
        before = {variable(key): os.environ.get(variable(key)) for key in keys}
        for key in keys:
            value = self.values[key]
            os.environ[variable(key)] = str(value).lower() if isinstance(value, bool) else str(value)
        try:
            yield keys
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


def variable(key: str) -> str:
    """Environment variable of a key."""
    return f"CONTEXT_COMPILER_{key.upper()}"


def _resolve(path: Path, key: str, value: Value) -> Value:
    """Resolve a value of a file: a relative path is relative to the folder of that file."""
    if key not in FOLDERS or not isinstance(value, str) or "://" in value:
        return value
    return str(path.parent / value)
