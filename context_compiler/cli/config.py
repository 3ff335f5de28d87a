"""`config`: every setting, its value and its origin."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer

from context_compiler.cli.chat import MODEL as CHAT_MODEL
from context_compiler.cli.options import Group, Json, example, group
from context_compiler.cli.root import COMMANDS, load
from context_compiler.cli.run_options import RUNS
from context_compiler.cli.screen import Column, Screen
from context_compiler.cli.text import json_text, suggestions
from context_compiler.errors import SettingsError
from context_compiler.middleware.arguments import Arguments
from context_compiler.paths import is_address, place_name
from context_compiler.settings import KEYS, Config, Settings, variable

app = group("Show every setting with the origin of its value.", shown="config show", cls=Group)

DEFAULTS: dict[str, object] = {
    **{argument.name: argument.default for argument in fields(Arguments) if argument.name in KEYS},
    **{setting.name.removeprefix("context_compiler_"): setting.default for setting in fields(Settings)},
    "runs": RUNS,
    "chat_model": CHAT_MODEL,
}
EFFECTIVE = {
    "budget": "0.8 of the model's window, or 32,000 tokens if that is unknown",
    "trigger": "the template's, else one that suits the room and the kind of session",
    "reserve": "the model's max_tokens, else 4,096; at most a quarter of the window",
    "window": "the model's, if the host knows it",
    "fidelity": "the template's",
    "model": "the one that answers",
    "compile_spend_limit": "no limit",
    "vault": "no vault",
    "vault_name": "no name",
    "owner": "no owner",
}
"""Effective defaults of settings whose default is None, in words."""

COLUMNS = (Column("setting", style="bold"), Column("value", wraps=True), Column("from"))
UNSET = "none"
_DEFAULT = re.compile(r"(?i)\bdefault: ([^;]+?)\.?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A setting with its value and origin."""

    setting: str
    value: object
    meaning: str
    """Effective default in words, if there is no value."""
    source: str
    """`default`, `argument`, the name of a variable, or the path of a file."""


@app.command(
    "show",
    epilog=example("config show compile chat.json --budget 4000"),
    context_settings={"ignore_unknown_options": True},
)
def show(
    context: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="Show the options of this command instead, with their values."),
    ] = None,
    json: Json = False,
) -> None:
    """Show every setting with its value and its origin: default, file, environment or argument."""
    config = Config.load()
    from_file: frozenset[str] = context.find_root().obj
    sources = {variable(key): str(config.path) if key in from_file else variable(key) for key in KEYS}
    origins = _options(command, sources) if command else [_setting(key, sources) for key in KEYS]
    screen = Screen()
    if json:
        screen.raw(json_text({"file": config.path, "settings": origins}))
        return
    screen.line(("file: ", "dim"), str(config.path or "none; context_compiler.toml would be read here"))
    screen.table(COLUMNS, [(origin.setting, origin.meaning or str(origin.value), origin.source) for origin in origins])


def _setting(key: str, sources: Mapping[str, str]) -> Origin:
    text = os.environ.get(variable(key), "").strip()
    if text:
        return Origin(setting=key, value=_shown(text), meaning="", source=sources[variable(key)])
    value = DEFAULTS[key]
    return Origin(setting=key, value=value, meaning=EFFECTIVE[key] if value in (None, "") else "", source="default")


def _options(words: list[str], sources: Mapping[str, str]) -> list[Origin]:
    """Options of a command with the values that it would get when called with these words.

    Raises:
        SettingsError: there is no such command.
    """
    name, *rest = words
    if name not in COMMANDS:
        raise SettingsError(f"{name!r}: no such command{suggestions(name, COMMANDS)}")
    command, path = load(name), name
    while hasattr(command, "commands"):
        names = command.list_commands(None)
        if not rest or rest[0] not in names:
            raise SettingsError(f"{path}: give one of its commands: {', '.join(names)}")
        path, command, rest = f"{path} {rest[0]}", command.get_command(None, rest[0]), rest[1:]
    context: Any = command.make_context(path, list(rest), resilient_parsing=True)
    return [_option(parameter, context, sources) for parameter in command.params if parameter.name in context.params]


def _option(option: Any, context: Any, sources: Mapping[str, str]) -> Origin:
    source = getattr(context.get_parameter_source(option.name), "name", "")
    origin = "argument" if source == "COMMANDLINE" else "default"
    if source == "ENVIRONMENT":
        origin = sources.get(option.envvar, option.envvar)
    value = _shown(context.params[option.name])
    named = _DEFAULT.search(option.help or "")
    meaning = "" if value not in (None, "") else named[1] if named else UNSET
    return Origin(setting=max(option.opts, key=len), value=value, meaning=meaning, source=origin)


def _shown(value: object) -> object:
    """A value without the password that it has if it is the address of a database."""
    return place_name(value) if isinstance(value, str) and is_address(value) else value
