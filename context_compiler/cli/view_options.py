"""Options that say what is compiled and how, and the parsers of their values."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from context_compiler.errors import SettingsError
from context_compiler.fidelity import Fidelity
from context_compiler.settings import MAX_TOKENS, Amount, Config, Count, check_amount, parse_count, variable
from context_compiler.tokens.prices import Budget, Money


class Given(str):
    """The value of an option, together with its origin."""

    origin: str
    """An option, an environment variable, or a file and its key."""


def with_origin(context: typer.Context, option: typer.CallbackParam, text: str | None) -> str | None:
    """Callback of options whose value may come from the configuration file: remember the origin."""
    if text is None:
        return text
    value, key = Given(text), option.name
    source: Any = context.get_parameter_source(key)
    value.origin = max(option.opts, key=len)
    if getattr(source, "name", "") == "ENVIRONMENT":
        from_file = key in (context.find_root().obj or ())
        value.origin = f"{Config.load().path}: {key} =" if from_file else f"{variable(key)} ="
    return value


def origin(text: str, option: str) -> str:
    """Origin of a value; the option itself if nothing else is known."""
    return text.origin if isinstance(text, Given) else option


def parse_amount(text: str, *, option: str = "--budget") -> Amount:
    """Parse a number of tokens: a whole number such as 4000, or a share such as 0.5."""
    number = text.strip().lower()
    try:
        value: Amount = float(number) if "." in number or "e" in number else int(number)
    except ValueError:
        value = 0
    try:
        return check_amount(value, name=option) or 1
    except SettingsError:
        setting = f"{origin(text, option)} {str(text)!r}"
        raise SettingsError(f"{setting}: give whole tokens such as 4000, or a share such as 0.5") from None


def parse_recall(text: str) -> Amount:
    """Parse the size of recall blocks: a share of the room from 0 to 1, or tokens."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if 0 <= value <= 1:
        return value
    if value != int(value) or not 1 < value <= MAX_TOKENS:
        raise SettingsError(
            f"{origin(text, '--recall')} {str(text)!r}: give a share from 0 (nothing) to 1, or whole tokens"
        )
    return int(value)


def agent_arguments(recall: str | None, trigger: str | None) -> dict[str, Any]:
    """Arguments of `ContextCompiler` for the options that were given."""
    arguments: dict[str, Any] = {} if recall is None else {"recall": parse_recall(recall)}
    return arguments if trigger is None else {**arguments, "trigger": parse_amount(trigger, option="--trigger")}


def parse_budget(text: str) -> Budget:
    """Parse a budget: tokens, a share, or money such as $0.02."""
    if not text.strip().startswith("$"):
        return parse_amount(text)
    try:
        return Money.parse(text, name="--budget")
    except SettingsError:
        raise SettingsError(f"{origin(text, '--budget')} {str(text)!r}: give money such as $0.02") from None


def parse_turns(text: str | None) -> Count | None:
    """Parse a number of turns: a whole number, or `all`."""
    try:
        return None if text is None else parse_count(text)
    except ValueError as allowed:
        raise SettingsError(f"--recent-turns {text!r}: give {allowed}") from None


class Format(StrEnum):
    """Output format of a view."""

    RICH = "rich"
    MARKDOWN = "markdown"
    JSON = "json"


TranscriptPath = Annotated[
    str,
    typer.Argument(metavar="TRANSCRIPT", help="File in a known format (JSON, JSONL or text), or - for standard input."),
]
FidelityName = Annotated[
    str | None,
    typer.Option(
        "--fidelity",
        "-f",
        envvar="CONTEXT_COMPILER_FIDELITY",
        help=f"How much of the past to keep: {', '.join(Fidelity)}.",
    ),
]
BUDGET: Any = {"envvar": "CONTEXT_COMPILER_BUDGET", "callback": with_origin}
RECALL, TRIGGER = (
    "Share of the room that recalled text may fill if the prompt asks for it, from 0 to 1, or tokens",
    "Size above which a view is cut back: tokens, or a share of the budget",
)
"""Help of options that agents have, and that can be tried out on a transcript or a recorded history."""
ModelName = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        envvar="CONTEXT_COMPILER_MODEL",
        help="Model that writes the summary, such as openai:gpt-5, or none.",
    ),
]
SessionName = Annotated[str | None, typer.Option("--session", help="Name of the conversation in the record.")]
Select = Annotated[
    str | None, typer.Option("--select", help="Which of several conversations to use: a name, or a position from 0.")
]
FormatName = Annotated[str | None, typer.Option("--from", help="Format of the transcript, if it cannot be detected.")]
