"""`import` of a folder: the conversations found below it, and what views would have saved in their newest requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from time import monotonic

from pydantic_ai.messages import ModelResponse

from context_compiler.cli.inputs import read_conversations
from context_compiler.cli.screen import Column, Screen, progress_bar, step
from context_compiler.cli.text import number, one_line, plural
from context_compiler.compiler.policy import DEFAULT_BUDGET
from context_compiler.errors import TranscriptError
from context_compiler.messages.history import Reader
from context_compiler.messages.importers import Transcript
from context_compiler.middleware.replay import LiveSession, replay, request_points
from context_compiler.middleware.verdict import charge_of, plain_compiler, replay_whole
from context_compiler.tokens import TokenCounter
from context_compiler.tokens.prices import dollars, price_of

FILES, LARGEST = 200, 64_000_000
"""Maximum files of a folder that are read, the newest, and maximum bytes of one."""

REPLAYED = 30
"""Newest requests of a conversation that are replayed."""

SECONDS = 10.0
"""Time after which no further conversation is replayed."""

COLUMNS = (
    Column("session", style="bold", names=True),
    Column("file", elastic=True, spare=2),
    Column("messages", right=True),
    Column("tokens", right=True),
    Column("newest requests", right=True, spare=1),
    Column("everything", right=True),
    Column("views", right=True, style="green"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A conversation of a folder, and the cost of its newest requests."""

    session: str
    file: str
    messages: int
    tokens: int
    requests: int
    """Requests that were replayed; 0 if none was."""
    everything: float
    """Cost of the input if everything is sent: in US dollars, or in plain input tokens if no price is known."""
    views: float
    """Cost of the input of views, in the same unit."""
    priced: bool


def find_conversations(folder: Path, format: str | None) -> list[tuple[Path, Transcript]]:
    """Read the conversations below a folder, those of the newest files first.

    Raises:
        TranscriptError: There is none.
    """
    files = [file for suffix in ("*.jsonl", "*.json") for file in folder.rglob(suffix) if file.is_file()]
    newest = sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)[:FILES]
    conversations = [(file, transcript) for file in newest for transcript in _conversations(file, format)]
    if not conversations:
        among = f"{plural(len(files), 'JSON file')} in it, but no conversation in a known format" if files else ""
        raise TranscriptError(among or "contains no JSON or JSONL files", file=str(folder))
    return conversations


def _conversations(file: Path, format: str | None) -> Iterator[Transcript]:
    if file.stat().st_size > LARGEST:
        return
    try:
        yield from (transcript for transcript in read_conversations(str(file), format) if transcript.messages)
    except TranscriptError:
        return


def measure(conversations: Sequence[tuple[Path, Transcript]], folder: Path) -> list[Found]:
    """Replay the newest requests of conversations until the time is up; no model is asked."""
    reader, started, measured = Reader(TokenCounter()), monotonic(), list[Found]()
    with progress_bar("measuring", len(conversations)) as progress:
        for file, transcript in conversations:
            in_time = monotonic() - started < SECONDS
            measured.append(asyncio.run(_measure(transcript, str(file.relative_to(folder)), reader, in_time)))
            step(progress)
    return measured


async def _measure(transcript: Transcript, file: str, reader: Reader, in_time: bool) -> Found:
    requests = min(len(request_points(transcript.messages)), REPLAYED) if in_time else 0
    answers = (message for message in reversed(transcript.messages) if isinstance(message, ModelResponse))
    model = next((answer.model_name for answer in answers if answer.model_name), "")
    everything = views = 0.0
    if requests:
        charge, session = charge_of(model), LiveSession([plain_compiler(budget=DEFAULT_BUDGET)])
        sent = await replay(transcript.messages, session, reader, last=REPLAYED)
        whole = await replay_whole(transcript.messages, reader, last=REPLAYED)
        everything, views = (sum(charge(each.tokens, each.cached) for each in some) for some in (whole, sent))
    return Found(
        session=transcript.name,
        file=file,
        messages=len(transcript.messages),
        tokens=reader.read(transcript.messages).tokens if in_time else 0,
        requests=requests,
        everything=everything,
        views=views,
        priced=price_of(model) is not None,
    )


def print_found(screen: Screen, conversations: Sequence[Found], command: str) -> None:
    """Print what was found and saved, and the command that imports it."""
    screen.table(COLUMNS, map(_row, conversations))
    unmeasured = sum(not conversation.requests for conversation in conversations)
    rest = f"; {plural(unmeasured, 'conversation')} not measured" if unmeasured else ""
    screen.line(
        (
            f"cost of the input of the newest {REPLAYED} requests of each, with a prompt cache, if everything or views"
            f" of {number(DEFAULT_BUDGET)} tokens are sent{rest}",
            "dim",
        )
    )
    screen.line(("import them: ", "dim"), (command, "bold cyan"))


def _row(conversation: Found) -> tuple[object, ...]:
    def amount(cost: float) -> str:
        if not conversation.requests:
            return "–"
        return dollars(Decimal(cost)) if conversation.priced else f"{number(round(cost))} tokens"

    tokens = number(conversation.tokens) if conversation.tokens else "–"
    session = one_line(conversation.session, 60)
    return (
        session,
        conversation.file,
        conversation.messages,
        tokens,
        conversation.requests or "–",
        amount(conversation.everything),
        amount(conversation.views),
    )
