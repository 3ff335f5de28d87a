"""`bench`: replay a transcript with views, with a window of newest messages, and in full, and compare the costs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import accumulate
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated, Any

import typer
from pydantic_ai.messages import ModelMessage
from rich.progress import Progress

from context_compiler.cli.drawing import Line, Panel, draw, libraries
from context_compiler.cli.inputs import answering_model, print_notes, read_conversations, select_conversation
from context_compiler.cli.options import SYSTEM, Json, System, Vault, example, group
from context_compiler.cli.screen import Column, Screen, print_progress, progress_bar, step
from context_compiler.cli.templates import choose_template
from context_compiler.cli.text import json_text, number, plural
from context_compiler.cli.view_options import (
    BUDGET,
    RECALL,
    TRIGGER,
    FormatName,
    Select,
    TranscriptPath,
    agent_arguments,
    parse_amount,
    with_origin,
)
from context_compiler.compiler.metrics import Sent, figures
from context_compiler.compiler.policy import DEFAULT_BUDGET
from context_compiler.compiler.references import ReferenceRecall
from context_compiler.compiler.view import View
from context_compiler.errors import SettingsError, TranscriptError
from context_compiler.messages.history import History, Reader
from context_compiler.messages.importers import Transcript
from context_compiler.middleware.capability import ContextCompiler
from context_compiler.middleware.replay import (
    LiveSession,
    PlainSession,
    Session,
    newest,
    replay,
    request_points,
    with_answer,
)
from context_compiler.middleware.verdict import (
    RECALLS,
    Everything,
    Setting,
    Tried,
    Verdict,
    charge_of,
    grid_of,
    replay_grid,
    verdict_of,
)
from context_compiler.tokens import TokenCounter
from context_compiler.tokens.prices import dollars, price_of

app = group("Measure a transcript.")

Plot = Annotated[Path | None, typer.Option("--plot", help="Also draw charts to this SVG; needs the extra `bench`.")]

APPROACHES = 3
"""Number of replays of a transcript: one per approach."""

TIMED = 20
"""Requests that are timed through the host alone, for comparison."""

COLUMNS = (
    Column("what is sent", style="bold"),
    Column("requests", right=True, spare=1),
    Column("over budget", right=True),
    Column("largest", right=True),
    Column("broken pairs", right=True),
    Column("cost", right=True, style="green"),
    Column("money", right=True, style="green"),
    Column("references", right=True, style="green"),
    Column("compiles", right=True),
    Column("ms", right=True, spare=1),
)

LEGEND = (
    ("largest", "tokens of the largest request"),
    ("broken pairs", "requests with a result without its call, or a call without its result"),
    ("cost", "share of the cost of everything: of the money, or unpriced of 0.1 per cached and 1.25 per other token"),
    ("money", "cost of the input in US dollars, with the price of cached tokens; no model compiles here"),
    ("references", "share of ids and paths needed by calls that are in the view with their line, all / long-range"),
    ("compiles", "cycles begun; with a model, each is one call"),
    ("ms", "median time of a request through the host"),
)
"""Meaning of the columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Approach:
    """Measures of one approach."""

    way: str
    sent: Sequence[Sent]
    compiles: int | None
    """Cycles begun; with a model, each is one call. None if the approach makes no views."""
    median_ms: float | None
    """Median time of a request through the host; None if this approach bypasses the host."""
    references: ReferenceRecall


@app.command("bench", epilog=example("bench session.jsonl --budget 16000"))
def bench(
    transcript: TranscriptPath,
    budget: Annotated[
        str,
        typer.Option("--budget", "-b", help="Tokens such as 4000, or a share of 32,000 tokens such as 0.5.", **BUDGET),
    ] = "16000",
    template: Annotated[
        str | None,
        typer.Option(
            "--template",
            "-t",
            envvar="CONTEXT_COMPILER_TEMPLATE",
            help="Name or path of a template; default: extractive.",
        ),
    ] = None,
    recall: Annotated[
        str | None,
        typer.Option(
            "--recall", envvar="CONTEXT_COMPILER_RECALL", callback=with_origin, help=f"{RECALL}; default: 1.0."
        ),
    ] = None,
    trigger: Annotated[
        str | None,
        typer.Option(
            "--trigger",
            envvar="CONTEXT_COMPILER_TRIGGER",
            callback=with_origin,
            help=f"{TRIGGER}; default: by the room and the kind of session.",
        ),
    ] = None,
    vault: Vault = None,
    system: System = SYSTEM,
    select: Select = None,
    format_: FormatName = None,
    price: Annotated[
        str | None,
        typer.Option(
            "--price",
            metavar="MODEL",
            help="Model whose prices apply, such as openai:gpt-5; default: the transcript's.",
        ),
    ] = None,
    plot: Plot = None,
    json: Json = False,
) -> None:
    """Measure what views would save on a transcript.

    The transcript is replayed with views, with the newest messages that fit, and in full. No model is asked.
    """
    if plot is not None:
        libraries()
    if price is not None and price_of(price) is None:
        raise SettingsError(f"--price {price!r}: no price is known for this model; give one such as openai:gpt-5")
    conversation = select_conversation(read_conversations(transcript, format_), select, file=transcript)
    print_notes(conversation)
    if not request_points(conversation.messages):
        raise TranscriptError("contains no answer, so no request can be replayed", file=transcript)
    messages = with_answer(conversation.messages)
    points = request_points(messages)
    amount = parse_amount(budget)
    tokens = amount if isinstance(amount, int) else int(amount * DEFAULT_BUDGET)
    reader = Reader(TokenCounter())
    arguments = agent_arguments(recall, trigger)

    def compiler(on_view: Callable[[View], None] | None = None, **settings: Any) -> ContextCompiler:
        chosen = choose_template(template, model="none", vault=vault, system=system)
        every: dict[str, Any] = {"budget": tokens, "model": "none", "store": None, "system": None}
        return ContextCompiler(chosen, on_view=on_view, **(every | arguments | settings))

    grid = grid_of(tokens, [arguments["recall"]] if "recall" in arguments else RECALLS)

    with progress_bar("replaying", APPROACHES * len(points)) as progress:
        plan = f"{plural(len(points), 'request')} in {APPROACHES} ways, then with {plural(len(grid), 'setting')}"
        print_progress(f"{conversation.name}: replaying {plan}", progress)
        ways = asyncio.run(_replay_all(messages, tokens, reader, compiler, progress))
    if plot is not None:
        draw(panels(ways, tokens), plot)
    model = price or answering_model(conversation.messages)
    if not json:
        _print(conversation, reader.read(conversation.messages), ways, tokens, plot, model)
    seconds = sum(request.seconds for request in ways[-1].sent)
    verdict = verdict_of(ways[0].sent, _try_all(messages, grid, compiler, reader, seconds), model)
    if json:
        document = figures_document(conversation, reader.read(conversation.messages), ways, tokens, model)
        Screen().raw(json_text(document | {"verdict": verdict, "said": str(verdict)}))
    else:
        _print_verdict(verdict, grid)


def _try_all(
    messages: Sequence[ModelMessage],
    grid: Sequence[Setting],
    compiler: Callable[..., ContextCompiler],
    reader: Reader,
    seconds: float,
) -> list[Tried]:
    """Replay a session with each setting, which takes about `seconds`."""
    tried: list[Tried] = []
    with progress_bar("trying settings", len(grid) * len(request_points(messages))) as progress:
        print_progress(f"trying {plural(len(grid), 'setting')}, about {_duration(len(grid) * seconds)}", progress)
        for setting in grid:
            started = perf_counter()
            replayed = replay_grid(messages, [setting], compiler, reader, seen=lambda position, view: step(progress))
            tried += asyncio.run(replayed)
            (budget, recall), requests = setting, plural(len(tried[-1][2]), "request")
            took = _duration(perf_counter() - started)
            print_progress(f"budget {number(budget)}, recall {recall}: {requests} in {took}", progress)
    return tried


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def _print_verdict(verdict: Verdict, grid: Sequence[Setting]) -> None:
    budgets, recalls = (dict.fromkeys(column) for column in zip(*grid, strict=True))
    screen = Screen()
    screen.line()
    screen.line((str(verdict), "bold"))
    screen.line(f"tried: budgets of {'; '.join(map(number, budgets))}, each with recall {', '.join(map(str, recalls))}")


async def _replay_all(
    messages: Sequence[ModelMessage],
    budget: int,
    reader: Reader,
    compiler: Callable[[Callable[[View], None]], ContextCompiler],
    progress: Progress | None,
) -> list[Approach]:
    compiled: list[View] = []

    def count(view: View) -> None:
        if view.status == "compiled":
            compiled.append(view)

    history = reader.read(messages)

    async def run_approach(name: str, session: Session) -> Approach:
        recall, started = ReferenceRecall(history, budget, reader), perf_counter()

        def look(position: int, view: Sequence[ModelMessage]) -> None:
            recall.see(position, view)
            step(progress)

        sent = await replay(messages, session, reader, seen=look)
        print_progress(f"{name}: {plural(len(sent), 'request')} in {_duration(perf_counter() - started)}", progress)
        return Approach(way=name, sent=sent, compiles=None, median_ms=None, references=recall)

    host = Everything(reader)
    ours = await run_approach("context-compiler", LiveSession([host, compiler(count)]))
    whole = await run_approach("everything", PlainSession(host.next_request, budget))
    window = await run_approach("the newest that fit", PlainSession(newest(reader), budget))
    through = figures(ours.sent, budget).median_ms
    return [
        replace(whole, median_ms=await _host_ms(messages)),
        window,
        replace(ours, compiles=len(compiled), median_ms=through),
    ]


async def _host_ms(messages: Sequence[ModelMessage]) -> float:
    """Median time of a request with the whole history, over an even sample, because all would take minutes."""
    points = request_points(messages)
    timed: list[float] = []
    for point in points[:: max(1, len(points) // TIMED)]:
        session, started = LiveSession([]), perf_counter()
        await session.request(messages[:point])
        timed.append(perf_counter() - started)
    return median(timed) * 1000


def relative(way: Approach, ways: Sequence[Approach], model: str) -> float:
    """Cost of a session relative to sending everything, by the prices of a model, or by `CACHED` and `FRESH`."""
    charge = charge_of(model)
    whole, mine = (sum(charge(request.tokens, request.cached) for request in each.sent) for each in (ways[0], way))
    return mine / whole if whole else 0.0


def money(way: Approach, model: str) -> Decimal | None:
    """Cost of the input of a session in US dollars; None for a model without a known price."""
    price = price_of(model)
    if price is None:
        return None
    return sum((price.cost(request.tokens, cached=request.cached) for request in way.sent), Decimal(0))


def figures_document(
    conversation: Transcript, raw: History, ways: Sequence[Approach], budget: int, model: str
) -> dict[str, object]:
    """Convert the figures for JSON."""
    rows: list[dict[str, object]] = []
    for way in ways:
        sums = figures(way.sent, budget)
        rows.append(
            {
                "way": way.way,
                "requests": sums.requests,
                "over_budget": sums.over,
                "largest": max(request.tokens for request in way.sent),
                "broken": sums.broken,
                "tokens": sums.tokens,
                "cost": relative(way, ways, model),
                "money": money(way, model),
                "references": way.references.all,
                "long_references": way.references.long,
                "compiles": way.compiles,
                "median_ms": way.median_ms,
            }
        )
    size = {"messages": len(raw), "tokens": raw.tokens}
    return {"name": conversation.name, **size, "budget": budget, "priced_as": model, "ways": rows}


def panels(ways: Sequence[Approach], budget: int) -> list[Panel]:
    """Charts of the tokens of every request, and of the cumulative cost of the session."""
    count = range(1, len(ways[0].sent) + 1)

    def lines(values: Callable[[Approach], Sequence[float]]) -> list[Line]:
        return [Line(name=way.way, x=count, y=values(way), strong=way is ways[-1]) for way in ways]

    budget_line = Line(name="budget", x=[1, len(count)], y=[budget, budget], dashed=True)
    size = [*lines(lambda way: [request.tokens for request in way.sent]), budget_line]
    cost = lines(lambda way: list(accumulate(request.cost for request in way.sent)))
    return [
        Panel(title="size", x="request", y="tokens sent", lines=size, log_y=True),
        Panel(title="cost with a prompt cache", x="request", y="input tokens paid so far", lines=cost),
    ]


def _print(
    conversation: Transcript, raw: History, ways: Sequence[Approach], budget: int, plot: Path | None, model: str
) -> None:
    screen = Screen()
    size = f"{plural(len(raw), 'message')}, {number(raw.tokens)} tokens"
    screen.line((f"{conversation.name}: {size}, replayed within a budget of {number(budget)}", "bold"))
    screen.line()
    screen.table(COLUMNS, [_row(way, ways, budget, model) for way in ways])
    screen.line()
    screen.facts((*LEGEND, ("prices of", model or "no model that is known: --price names one")))
    if plot is not None:
        screen.line()
        screen.line("drawn in ", str(plot))


def _row(way: Approach, ways: Sequence[Approach], budget: int, model: str) -> list[object]:
    sums = figures(way.sent, budget)
    return [
        way.way,
        number(sums.requests),
        number(sums.over),
        number(max(request.tokens for request in way.sent)),
        number(sums.broken),
        f"{relative(way, ways, model):.2f}",
        dollars(money(way, model)),
        f"{_share(way.references.all)} / {_share(way.references.long)}",
        "–" if way.compiles is None else number(way.compiles),
        "–" if way.median_ms is None else f"{way.median_ms:.1f}",
    ]


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"
