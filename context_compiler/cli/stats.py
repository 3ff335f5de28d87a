"""`stats`: tokens saved, tokens of recall blocks, fallbacks and latencies, per session and in total."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Annotated, TypeVar

import typer

from context_compiler.cli.options import DB, Db, Json, Owner, example, group
from context_compiler.cli.records import find_session, with_record
from context_compiler.cli.screen import Column, Screen
from context_compiler.cli.text import json_text, number, plural, share
from context_compiler.record import rows, sessions
from context_compiler.record.costs import Costs, add_costs, sizes_of
from context_compiler.record.rows import Row
from context_compiler.record.store import SQLStore
from context_compiler.record.totals import Sums, sums_of
from context_compiler.tokens.prices import dollars

T = TypeVar("T")
Key = TypeVar("Key", bound=Hashable)

app = group("Statistics of all recorded requests.")

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


def percentile(ranked: Sequence[float], fraction: float) -> float | None:
    """Nearest-rank percentile of sorted values, such as 0.95; None without values."""
    return ranked[max(0, -int(-fraction * len(ranked) // 1) - 1)] if ranked else None


def group_by(values: Iterable[T], key: Callable[[T], Key]) -> dict[Key, list[T]]:
    """Group values by a key, in order of appearance."""
    groups: dict[Key, list[T]] = {}
    for value in values:
        groups.setdefault(key(value), []).append(value)
    return groups


def add_up(session: str | None, sums: Sums, scores: Sequence[Row] = ()) -> Totals:
    """Add up the requests and compiles of some sessions."""

    def total(column: str) -> int:
        return sum(getattr(request, column) for request in sums.requests)

    made = {compile_.id: compile_ for compile_ in sums.compiles}.values()
    times = sorted(chain.from_iterable(request.latencies_ms for request in sums.requests))
    waits = sorted(compile_.latency_ms for compile_ in made)
    return Totals(
        session=session,
        requests=total("requests"),
        imported=total("imported"),
        compiled=total("compiled"),
        compiles=sum(sums.compile_counts.values()),
        by_model=len(made),
        tokens_raw=total("tokens_raw"),
        tokens_sent=total("tokens_sent"),
        tokens_saved=total("tokens_raw") - total("tokens_sent"),
        with_recall=total("with_recall"),
        tokens_recall=total("tokens_recall"),
        fallbacks=total("fallbacks"),
        over_budget=total("over_budget"),
        scored=len(scores),
        quality=scores[-1]["quality"] if scores else None,
        quality_least=min((score["quality"] for score in scores), default=None),
        health=scores[-1]["health"] if scores else None,
        health_least=min((score["health"] for score in scores), default=None),
        latency_p50_ms=percentile(times, 0.5),
        latency_p95_ms=percentile(times, 0.95),
        compile_p50_ms=percentile(waits, 0.5),
        compile_p95_ms=percentile(waits, 0.95),
        costs=add_costs(sums.requests, made),
    )


def _by_name(sums: Sums) -> dict[str, Sums]:
    """Sums of the sessions of each name, which several vaults and owners may share."""
    numbers = group_by(sums.names.items(), lambda item: item[1])
    requests = group_by(sums.requests, lambda request: request.session)
    compiles = group_by(sums.compiles, lambda compile_: compile_.session)
    return {
        name: Sums(
            names=dict(named),
            compile_counts={number: sums.compile_counts[number] for number, _ in named},
            requests=[request for number, _ in named for request in requests.get(number, ())],
            compiles=[compile_ for number, _ in named for compile_ in compiles.get(number, ())],
        )
        for name, named in numbers.items()
    }


@app.command("stats", epilog=example("stats --db system/context.db"))
def stats(
    db: Db = DB,
    owner: Owner = None,
    session: Annotated[str | None, typer.Option("--session", help="Only this session.")] = None,
    json: Json = False,
) -> None:
    """Show tokens saved, the tokens of recall blocks, fallbacks and latencies."""
    totals, total, lost = with_record(lambda store: _load_totals(store, session), db, owner)
    screen = Screen()
    if json:
        screen.raw(json_text({"db": str(db), "sessions": totals, "total": total, "lost": lost}))
        return
    table = [*map(_row, totals), _row(total)]
    filled = [index for index in range(len(COLUMNS)) if any(row[index] != "" for row in table)]
    screen.table([COLUMNS[index] for index in filled], [[row[index] for index in filled] for row in table])
    compiles = f"{plural(total.compiles, 'compile')} on the record, {number(total.by_model)} by a model"
    screen.line((f"compiled: as in `views list`; {compiles}", "dim"))
    screen.line((f"cost of input: {total.costs.text}", "dim"))
    if total.tokens_recall:
        blocks = f"{number(total.tokens_recall)} tokens in {plural(total.with_recall, 'request')}"
        screen.line(
            (f"recall blocks: {blocks}, {share(total.tokens_recall, total.tokens_sent)} of what was sent", "dim")
        )
    if lost:
        screen.line((f"{plural(lost, 'write')} lost, because the record did not take them", "yellow"))
    if total.imported:
        counted = "is" if total.imported == 1 else "are"
        conversations = plural(total.imported, "imported conversation")
        screen.line((f"{conversations} {counted} not counted: nothing was sent", "dim"))


async def _load_totals(store: SQLStore, session: str | None) -> tuple[list[Totals], Totals, int]:
    name = (await find_session(store, session))[0].session_id if session else None
    sums = await store.perform(partial(sums_of, session_id=name, sizes_of=sizes_of))
    score_rows = await store.perform(partial(sessions.scores, name=name))
    lost = await store.perform(rows.lost)
    scores = group_by(score_rows, itemgetter("session_id"))
    totals = [add_up(name, of_name, scores.get(name, ())) for name, of_name in _by_name(sums).items()]
    return totals, add_up(None, sums), lost


def _row(totals: Totals) -> Sequence[object]:
    times = ("" if time is None else number(time) for time in (totals.latency_p50_ms, totals.latency_p95_ms))
    return (
        "all" if totals.session is None else totals.session,
        number(totals.requests),
        number(totals.compiled),
        number(totals.tokens_raw),
        number(totals.tokens_sent),
        number(totals.tokens_saved),
        "–" if totals.tokens_saved < 0 else share(totals.tokens_saved, totals.tokens_raw),
        *(dollars(cost) for cost in (totals.costs.sent, totals.costs.everything, totals.costs.compiles)),
        number(totals.fallbacks),
        *("" if score is None else f"{score:.2f}" for score in (totals.quality, totals.health)),
        *times,
    )
