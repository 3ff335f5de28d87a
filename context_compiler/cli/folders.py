"""`import` of a folder: the conversations found below it, and what views would have saved in their newest requests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from shlex import quote
from time import monotonic

from context_compiler.cli.inputs import answering_model, read_conversations
from context_compiler.cli.options import Place
from context_compiler.cli.records import list_command
from context_compiler.cli.screen import Column, Screen, print_note, progress_bar, step
from context_compiler.cli.text import number, one_line, plural
from context_compiler.compiler.policy import DEFAULT_BUDGET
from context_compiler.errors import TranscriptError
from context_compiler.messages.display import moment_of
from context_compiler.messages.history import Reader
from context_compiler.messages.importers import Transcript
from context_compiler.messages.items import Kind
from context_compiler.middleware.replay import LiveSession, PlainSession, replay, request_points
from context_compiler.middleware.verdict import Everything, charge_of, plain_compiler
from context_compiler.tokens import TokenCounter
from context_compiler.tokens.prices import dollars, price_of

FILES, LARGEST = 200, 64_000_000
"""Maximum files of a folder that are read, the newest, and maximum bytes of one."""

REPLAYED = 30
"""Newest requests of a conversation that are replayed."""

SECONDS, COUNTING = 10, 5.0
"""Seconds that reading and measuring take, unless told otherwise; and seconds after which no tokens are counted."""

NAMED = 3
"""Skipped files that are named."""

COLUMNS = (
    Column("file", style="bold", names=True),
    Column("last message", spare=1),
    Column("first prompt", elastic=True, spare=2),
    Column("messages", right=True),
    Column("tokens", right=True),
    Column("newest requests", right=True, spare=3),
    Column("everything", right=True),
    Column("views", right=True, style="green"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A conversation of a folder, and the cost of its newest requests."""

    session: str
    file: str
    last_at: datetime | None
    """Time of the last message; None if the transcript has no times."""
    prompt: str
    """First words of the first prompt."""
    messages: int
    tokens: int
    """0 if they were not counted, for want of time."""
    in_time: bool
    """False if the time was up before it was measured."""
    requests: int
    """Requests that were replayed; 0 if none was."""
    everything: float
    """Cost of the input if everything is sent: in US dollars, or in plain input tokens if no price is known."""
    views: float
    """Cost of the input of views, in the same unit."""
    priced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """The conversations below a folder, those of the newest files first."""

    conversations: Sequence[tuple[Path, Transcript]]
    skipped: Mapping[str, str]
    """Reason for each file that was not read, by its path below the folder."""
    older: int
    """Files beyond the newest `FILES`, which were not read."""

    def print_skipped(self) -> None:
        """Print a note on the files that were not read, if any."""
        if self.skipped:
            print_note(f"{plural(len(self.skipped), 'file')} skipped: {_reasons(self.skipped)}")
        if self.older:
            print_note(f"{plural(self.older, 'older file')} skipped: only the newest {FILES} are read")


def find_conversations(folder: Path, format: str | None) -> Folder:
    """Read the conversations below a folder.

    Raises:
        TranscriptError: There is none.
    """
    files = [file for suffix in ("*.jsonl", "*.json") for file in folder.rglob(suffix) if file.is_file()]
    newest = sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)[:FILES]
    conversations: list[tuple[Path, Transcript]] = []
    skipped: dict[str, str] = {}
    for file in newest:
        try:
            if file.stat().st_size > LARGEST:
                raise TranscriptError(f"is larger than {LARGEST // 1_000_000} MB", file=str(file))
            transcripts = read_conversations(str(file), format)
            conversations += ((file, transcript) for transcript in transcripts if transcript.messages)
        except TranscriptError as error:
            reason = str(error).removeprefix(str(file)).partition(": ")[2]
            skipped[str(file.relative_to(folder))] = one_line(reason.partition(";")[0], 100)
    if not conversations:
        among = f"{plural(len(files), 'JSON file')} in it, but no conversation in a known format: {_reasons(skipped)}"
        raise TranscriptError(among if files else "contains no JSON or JSONL files", file=str(folder))
    return Folder(conversations=conversations, skipped=skipped, older=len(files) - len(newest))


def _reasons(skipped: Mapping[str, str]) -> str:
    named = ", ".join(f"{file} ({reason})" for file, reason in list(skipped.items())[:NAMED])
    return f"{named} and {len(skipped) - NAMED:,} more" if len(skipped) > NAMED else named


def measure(
    conversations: Sequence[tuple[Path, Transcript]], folder: Path, seconds: int, *, started: float
) -> list[Found]:
    """Count tokens and replay the newest requests of conversations; no model is asked.

    Args:
        conversations: The conversations, with their files.
        folder: The folder that they are in.
        seconds: No conversation is replayed that would probably take longer than these, as the slowest one took so far.
        started: Time from which the seconds count, of the monotonic clock.
    """
    reader, slowest, measured = Reader(TokenCounter()), 0.0, list[Found]()
    tokens = [
        reader.read(transcript.messages).tokens if monotonic() - started < COUNTING else 0
        for _, transcript in conversations
    ]
    with progress_bar("measuring", len(conversations)) as progress:
        for (file, transcript), size in zip(conversations, tokens, strict=True):
            began = monotonic()
            in_time = began - started + slowest < seconds
            measured.append(asyncio.run(_measure(transcript, str(file.relative_to(folder)), reader, size, in_time)))
            slowest = max(slowest, monotonic() - began)
            step(progress)
    return measured


async def _measure(transcript: Transcript, file: str, reader: Reader, tokens: int, in_time: bool) -> Found:
    messages = transcript.messages
    requests = min(len(request_points(messages)), REPLAYED) if in_time else 0
    model = answering_model(messages)
    everything = views = 0.0
    if requests:
        charge, host = charge_of(model), Everything(reader)
        session = LiveSession([host, plain_compiler(budget=DEFAULT_BUDGET)])
        sent = await replay(messages, session, reader, last=REPLAYED)
        whole = await replay(messages, PlainSession(host.next_request, 0), reader, last=REPLAYED)
        everything, views = (sum(charge(each.tokens, each.cached) for each in some) for some in (whole, sent))
    items = (item for message in messages for item in reader.one(message).items)
    return Found(
        session=transcript.name,
        file=file,
        last_at=last_moment(transcript),
        prompt=one_line(next((item.text for item in items if item.kind is Kind.USER), ""), 60),
        messages=len(messages),
        tokens=tokens,
        in_time=in_time,
        requests=requests,
        everything=everything,
        views=views,
        priced=price_of(model) is not None,
    )


def last_moment(transcript: Transcript) -> datetime | None:
    """Time of the last message that has one; None if none has."""
    when = next(filter(None, map(moment_of, reversed(transcript.messages))), None)
    return when if when is None or when.tzinfo else when.replace(tzinfo=UTC)


def print_found(screen: Screen, conversations: Sequence[Found], folder: Path, db: Place, seconds: int) -> None:
    """Print what was found and saved, and the commands that import it."""
    screen.table(COLUMNS, map(_row, conversations))
    for priced in (True, False):
        measured = [each for each in conversations if each.requests and each.priced is priced]
        if measured:
            whole, views = (_amount(sum(costs), priced) for costs in zip(*map(_costs, measured), strict=True))
            together = plural(len(measured), "measured conversation")
            screen.line((f"{together} together: {whole} with everything, {views} with views", "bold"))
    unit = "" if all(each.priced for each in conversations) else "; tokens: it costs like so many uncached input tokens"
    screen.line(
        (
            f"cost of the input of the newest {REPLAYED} requests of each, with a prompt cache, if everything or views"
            f" of {number(DEFAULT_BUDGET)} tokens are sent{unit}",
            "dim",
        )
    )
    if late := sum(not each.in_time for each in conversations):
        were = f"{plural(late, 'conversation')} {'was' if late == 1 else 'were'} not measured"
        screen.line(f"{were} within {plural(seconds, 'second')}; for more time, add --seconds {6 * seconds or SECONDS}")
    newest = quote(os.path.join(folder, conversations[0].file))  # keeps the "./" before "-home-me"
    screen.line(("import one: ", "dim"), (list_command(f"import {newest}", db), "bold cyan"))
    screen.line(("import them: ", "dim"), (list_command(f"import {quote(str(folder))} --all", db), "bold cyan"))


def _costs(conversation: Found) -> tuple[float, float]:
    return conversation.everything, conversation.views


def _amount(cost: float, priced: bool) -> str:
    return dollars(Decimal(cost)) if priced else f"{number(round(cost))} tokens"


def _row(conversation: Found) -> tuple[object, ...]:
    name = conversation.file + conversation.session.removeprefix(Path(conversation.file).stem)
    costs = (_amount(cost, conversation.priced) if conversation.requests else "–" for cost in _costs(conversation))
    return (
        name,
        "" if conversation.last_at is None else f"{conversation.last_at:%Y-%m-%d}",
        conversation.prompt,
        conversation.messages,
        number(conversation.tokens) if conversation.tokens else "–",
        conversation.requests or "–",
        *costs,
    )
