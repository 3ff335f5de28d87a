"""What `compile` can be told, as the types of its parameters."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from context_compiler.fidelity import Fidelity


class Format(StrEnum):
    """How a view is printed."""

    RICH = "rich"
    MARKDOWN = "markdown"
    JSON = "json"


TranscriptPath = Annotated[
    str, typer.Argument(metavar="TRANSCRIPT", help="A JSON or JSONL file of any known format, or - for standard input.")
]
TemplateName = Annotated[
    str | None,
    typer.Option(
        "--template",
        "-t",
        envvar="CONTEXT_COMPILER_TEMPLATE",
        help="A template's name or path; without it extractive, or chat_compiler where a model is given.",
    ),
]
FidelityName = Annotated[
    str | None, typer.Option("--fidelity", "-f", help=f"How much of the past: {', '.join(Fidelity)}.")
]
BudgetText = Annotated[
    str, typer.Option("--budget", "-b", help="Tokens such as 4000, or a share of 32,000 such as 0.5.")
]
ModelName = Annotated[
    str, typer.Option("--model", "-m", help="Who writes the summary, such as openai:gpt-5; none asks nobody.")
]
RecordIn = Annotated[
    Path | None,
    typer.Option("--db", envvar="CONTEXT_COMPILER_DB", help="Record the view in this file; without, nothing is kept."),
]
SessionName = Annotated[str | None, typer.Option("--session", help="What the conversation is called on the record.")]
RecentTurns = Annotated[str | None, typer.Option("--recent-turns", help="Turns kept if they fit: a number, or all.")]
Select = Annotated[
    str | None, typer.Option("--select", help="Which of several conversations: its position from 0, or its name.")
]
FormatName = Annotated[
    str | None, typer.Option("--from", help="The transcript's format, where it cannot be told from the content.")
]
PrintAs = Annotated[Format, typer.Option("--format", help="How the view is printed.")]
Explain = Annotated[
    bool, typer.Option("--explain", help="Print why each message is kept or left out, instead of the messages.")
]
LayersOf = Annotated[
    str | None, typer.Option("--layers", help="Put the layers of this session, from --db, before the last prompt.")
]
Role = Annotated[str, typer.Option("--role", help="Which node is told of the layers: understand, think, act or reply.")]
Strict = Annotated[
    bool, typer.Option("--strict", help="Fail where the budget is not kept, or only by cutting the prompt.")
]
