"""`stats`: tokens saved, tokens of recall blocks, fallbacks and latencies, per session and in total."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, cast

import typer

from context_compiler.cli.options import DB, Db, Json, Owner, Place, example, find_session, group, open_record
from context_compiler.cli.screen import Column, Screen
from context_compiler.cli.text import first_word, json_text, number, plural, share
from context_compiler.record import queries, rows, sessions
from context_compiler.record.costs import Costs, add_costs
from context_compiler.record.rows import Row
from context_compiler.record.values import Compile, Record, SessionInfo
from context_compiler.tokens.prices import dollars

app = group("Statistics of all recorded requests.")

IMPORTED = "nothing was sent"
"""Note in the status of an imported conversation."""

COLUMNS = (
    Column("session", style="bold", names=True),
    Column("requests", right=True),
    Column("compiled", right=True, spare=1),
    Column("raw tokens", right=True, spare=1),
    Column("sent", right=True),
    Column("saved", right=True, style="green", spare=1),
    Column("", right=True),
    Column("sent $", right=True, spare=1),
    Column("all $", right=True, spare=1),
    Column("compiles $", right=True, spare=1),
    Column("fallbacks", right=True, style="red"),
    Column("quality", right=True, spare=2),
    Column("health", right=True, spare=2),
    Column("p50 ms", right=True, spare=3),
    Column("p95 ms", right=True, spare=3),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Totals of some requests, in calibrated tokens and in milliseconds per request."""

    session: str | None
    """None for the total."""
    requests: int
    imported: int
    """Imported conversations, which no other figure includes."""
    compiled: int
    """Requests with the status `compiled`, which began a new cycle."""
    compiles: int
    """Recorded compiles, including failed and refused ones; one compile may serve several requests."""
    by_model: int
    """Compiles by a model, including those that no request used."""
    tokens_raw: int
    tokens_sent: int
    tokens_saved: int
    with_recall: int
    """Requests with recall blocks."""
    tokens_recall: int
    """Tokens of those blocks; part of `tokens_sent`."""
    fallbacks: int
    over_budget: int
    scored: int
    """Turns scored by a manager. For each score, the last value and the lowest (`_least`) follow."""
    quality: float | None
    quality_least: float | None
    health: float | None
    health_least: float | None
    latency_p50_ms: float | None
    latency_p95_ms: float | None
    compile_p50_ms: float | None
    compile_p95_ms: float | None
    costs: Costs
    """Costs of the requests' input, and of all compiles."""


def percentile(values: Sequence[float], fraction: float) -> float | None:
    """Nearest-rank percentile, such as 0.95; None without values."""
    ranked = sorted(values)
    return ranked[max(0, -int(-fraction * len(ranked) // 1) - 1)] if ranked else None


def recall_tokens(record: Record) -> int:
    """Calibrated tokens of the recall blocks in a request."""
    sections = cast("Mapping[str, int]", record.ledger.get("tokens", {}))
    return round(sections.get("recall", 0) * record.ratio)


def add_up(
    session: str | None,
    records: Sequence[Record],
    compiles: int,
    scores: Sequence[Row] = (),
    unsent: Sequence[Compile] = (),
) -> Totals:
    """Add up requests, and `unsent` compiles by a model that no request used."""
    sent = [record for record in records if IMPORTED not in record.status]
    statuses = [first_word(record.status) for record in sent]
    latencies = {
        record.summary_id: record.compile.latency_ms for record in sent if record.compile and record.compile.usage
    }
    blocks = [recall_tokens(record) for record in sent]
    times, waits = [record.latency_ms for record in sent], [*latencies.values(), *(one.latency_ms for one in unsent)]
    raw, out = sum(record.tokens_raw for record in sent), sum(record.tokens_sent for record in sent)
    return Totals(
        session=session,
        requests=len(sent),
        imported=len(records) - len(sent),
        compiled=statuses.count("compiled"),
        compiles=compiles,
        by_model=len(latencies) + len(unsent),
        tokens_raw=raw,
        tokens_sent=out,
        tokens_saved=raw - out,
        with_recall=sum(tokens > 0 for tokens in blocks),
        tokens_recall=sum(blocks),
        fallbacks=statuses.count("fallback"),
        over_budget=statuses.count("floor_over_budget"),
        scored=len(scores),
        quality=scores[-1]["quality"] if scores else None,
        quality_least=min((score["quality"] for score in scores), default=None),
        health=scores[-1]["health"] if scores else None,
        health_least=min((score["health"] for score in scores), default=None),
        latency_p50_ms=percentile(times, 0.5),
        latency_p95_ms=percentile(times, 0.95),
        compile_p50_ms=percentile(waits, 0.5),
        compile_p95_ms=percentile(waits, 0.95),
        costs=add_costs(sent, unsent),
    )


@app.command("stats", epilog=example("stats --db system/context.db"))
def stats(
    db: Db = DB,
    owner: Owner = None,
    session: Annotated[str | None, typer.Option("--session", help="Only this session.")] = None,
    json: Json = False,
) -> None:
    """Show tokens saved, the tokens of recall blocks, fallbacks and latencies."""
    totals, total, lost = asyncio.run(_load_totals(db, owner, session))
    screen = Screen()
    if json:
        screen.raw(json_text({"db": str(db), "sessions": totals, "total": total, "lost": lost}))
        return
    table = [*map(_row, totals), _row(total)]
    filled = [at for at in range(len(COLUMNS)) if any(row[at] != "" for row in table)]
    screen.table([COLUMNS[at] for at in filled], [[row[at] for at in filled] for row in table])
    compiles = f"{plural(total.compiles, 'compile')} on the record, {number(total.by_model)} by a model"
    screen.line((f"compiled: as in `views list`; {compiles}", "dim"))
    screen.line((f"cost of input: {total.costs.text}", "dim"))
    if total.tokens_recall:
        blocks = f"{number(total.tokens_recall)} tokens in {plural(total.with_recall, 'request')}"
        screen.line(
            (f"recall blocks: {blocks}, {share(total.tokens_recall, total.tokens_sent)} of what was sent", "dim")
        )
    if lost:
        screen.line((f"{plural(lost, 'write')} lost, because the record could not be written in time", "yellow"))
    if total.imported:
        counted = "is" if total.imported == 1 else "are"
        what = plural(total.imported, "imported conversation")
        screen.line((f"{what} {counted} not counted: nothing was sent", "dim"))


async def _load_totals(db: Place, owner: str | None, session: str | None) -> tuple[list[Totals], Totals, int]:
    async with open_record(db, owner) as store:
        infos: list[SessionInfo] = await (find_session(store, session) if session else store.sessions())
        name = infos[0].session_id if session else None
        records = await store.views(name)
        found = await store.perform(partial(sessions.scores, name=name))
        unsent = await store.perform(partial(queries.unsent_summaries, session_id=name))
        lost = await store.perform(rows.lost)
    scores: dict[str, list[Row]] = {}
    for row in found:
        scores.setdefault(row["session_id"], []).append(row)
    by_session: dict[str, list[Record]] = {info.session_id: [] for info in infos}
    for record in records:
        by_session.setdefault(record.session_id, []).append(record)
    compiles = {name: sum(info.compiles for info in infos if info.session_id == name) for name in by_session}
    spent: dict[str, list[Compile]] = {}
    for one in unsent:
        spent.setdefault(one.session_id, []).append(one)
    totals = [
        add_up(name, some, compiles[name], scores.get(name, ()), spent.get(name, ()))
        for name, some in by_session.items()
    ]
    return totals, add_up(None, records, sum(compiles.values()), unsent=unsent), lost


def _row(one: Totals) -> Sequence[object]:
    times = ("" if time is None else number(time) for time in (one.latency_p50_ms, one.latency_p95_ms))
    return (
        "all" if one.session is None else one.session,
        number(one.requests),
        number(one.compiled),
        number(one.tokens_raw),
        number(one.tokens_sent),
        number(one.tokens_saved),
        "–" if one.tokens_saved < 0 else share(one.tokens_saved, one.tokens_raw),
        *(dollars(cost) for cost in (one.costs.sent, one.costs.everything, one.costs.compiles)),
        number(one.fallbacks),
        *("" if score is None else f"{score:.2f}" for score in (one.quality, one.health)),
        *times,
    )
