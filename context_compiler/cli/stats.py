"""`stats`: what was saved, how often we fell back, and how long it took, for each conversation and together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from context_compiler.cli.options import DB, Db, Json, example, group, known_session, opened
from context_compiler.cli.screen import Column, Screen
from context_compiler.cli.text import first_word, json_text, number, plural, share
from context_compiler.record import sessions as shelf
from context_compiler.record.rows import Row
from context_compiler.record.values import Record, SessionInfo

app = group("What the record says about all requests.")

IMPORTED = "imported: nothing was sent"
"""What the status of a conversation says that was put on the record as it was."""

COLUMNS = (
    Column("session", style="bold", names=True),
    Column("requests", right=True),
    Column("compiled", right=True, spare=1),
    Column("raw tokens", right=True, spare=1),
    Column("sent", right=True),
    Column("saved", right=True, style="green", spare=1),
    Column("", right=True),
    Column("fallbacks", right=True, style="red"),
    Column("quality", right=True, spare=2),
    Column("health", right=True, spare=2),
    Column("p50 ms", right=True, spare=3),
    Column("p95 ms", right=True, spare=3),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """Some requests together; tokens are calibrated ones, times are milliseconds of a request."""

    session: str | None
    """None: all of them."""
    requests: int
    imported: int
    """Conversations among them that were put on the record as they were; they count as nothing else."""
    compiled: int
    """Requests whose status is `compiled`: their view was written anew."""
    compiles: int
    """Compiles on the record: some are used by several requests, some failed or were refused."""
    by_model: int
    """Of those that requests carry or fell back from, the ones for which a model was asked."""
    tokens_raw: int
    tokens_sent: int
    tokens_saved: int
    fallbacks: int
    over_budget: int
    scored: int
    """Turns that a manager scored; the scores are those of the last one, and the lowest of all."""
    quality: float | None
    quality_least: float | None
    health: float | None
    health_least: float | None
    latency_p50_ms: float | None
    latency_p95_ms: float | None
    compile_p50_ms: float | None
    compile_p95_ms: float | None


def percentile(values: Sequence[float], part: float) -> float | None:
    """The smallest of the values that at least `part` of them do not exceed; None of none."""
    ranked = sorted(values)
    return ranked[max(0, -int(-part * len(ranked) // 1) - 1)] if ranked else None


def summed(session: str | None, records: Sequence[Record], compiles: int, scores: Sequence[Row] = ()) -> Sum:
    """Add up requests."""
    sent = [record for record in records if IMPORTED not in record.status]
    words = [first_word(record.status) for record in sent]
    asked = {record.summary_id: record.compile.latency_ms for record in sent if record.compile and record.compile.usage}
    times, waits = [record.latency_ms for record in sent], list(asked.values())
    raw, cost = sum(record.tokens_raw for record in sent), sum(record.tokens_sent for record in sent)
    return Sum(
        session=session,
        requests=len(sent),
        imported=len(records) - len(sent),
        compiled=words.count("compiled"),
        compiles=compiles,
        by_model=len(asked),
        tokens_raw=raw,
        tokens_sent=cost,
        tokens_saved=raw - cost,
        fallbacks=words.count("fallback"),
        over_budget=words.count("floor_over_budget"),
        scored=len(scores),
        quality=scores[-1]["quality"] if scores else None,
        quality_least=min((score["quality"] for score in scores), default=None),
        health=scores[-1]["health"] if scores else None,
        health_least=min((score["health"] for score in scores), default=None),
        latency_p50_ms=percentile(times, 0.5),
        latency_p95_ms=percentile(times, 0.95),
        compile_p50_ms=percentile(waits, 0.5),
        compile_p95_ms=percentile(waits, 0.95),
    )


@app.command("stats", epilog=example("stats --db system/context.db"))
def stats(
    db: Db = DB,
    session: Annotated[str | None, typer.Option("--session", help="Only this conversation.")] = None,
    json: Json = False,
) -> None:
    """What was saved, how often we fell back, and how long it took."""
    sums, total = asyncio.run(_sums(db, session))
    screen = Screen()
    if json:
        screen.raw(json_text({"db": str(db), "sessions": sums, "total": total}))
        return
    screen.table(COLUMNS, [*map(_row, sums), _row(total)])
    made = f"{plural(total.compiles, 'compile')} on the record, {number(total.by_model)} by a model"
    screen.line((f"compiled: as in `views list`; {made}", "dim"))
    if total.imported:
        counted = "is" if total.imported == 1 else "are"
        what = plural(total.imported, "imported conversation")
        screen.line((f"{what} {counted} not counted: nothing was sent", "dim"))


async def _sums(db: Path, session: str | None) -> tuple[list[Sum], Sum]:
    async with opened(db) as store:
        infos: list[SessionInfo] = await (known_session(store, session) if session else store.sessions())
        name = infos[0].session_id if session else None
        records = await store.views(name)
        found = await store.perform(partial(shelf.scores, name=name))
    scores: dict[str, list[Row]] = {}
    for row in found:
        scores.setdefault(row["session_id"], []).append(row)
    by_session: dict[str, list[Record]] = {info.session_id: [] for info in infos}
    for record in records:
        by_session.setdefault(record.session_id, []).append(record)
    compiles = {name: sum(info.compiles for info in infos if info.session_id == name) for name in by_session}
    sums = [summed(name, some, compiles[name], scores.get(name, ())) for name, some in by_session.items()]
    return sums, summed(None, records, sum(compiles.values()))


def _row(one: Sum) -> Sequence[object]:
    times = ("" if time is None else number(time) for time in (one.latency_p50_ms, one.latency_p95_ms))
    return (
        "all" if one.session is None else one.session,
        number(one.requests),
        number(one.compiled),
        number(one.tokens_raw),
        number(one.tokens_sent),
        number(one.tokens_saved),
        share(one.tokens_saved, one.tokens_raw),
        number(one.fallbacks),
        *("" if score is None else f"{score:.2f}" for score in (one.quality, one.health)),
        *times,
    )
