"""Pipeline runs: the graph as a drawing, the path that a run took, and fidelity and thread of each hop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from context_compiler.compiler.trace import NotFound
from context_compiler.paths import place_name
from context_compiler.pipeline import RunConfig, RunStore, open_runs, parse_dot
from context_compiler.pipeline.draw import Mark, to_svg
from context_compiler.pipeline.stores import Event, RunInfo, has_runs
from context_compiler.resilience import attempt
from context_compiler.web.data import PAGE, Pages


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsPage:
    """A page of runs, newest first."""

    runs: tuple[RunInfo, ...]
    pages: Pages
    place: str
    """Name of the store of runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One visit of a stage."""

    index: int
    """From 1."""
    node: str
    handler: str
    visit: int
    fidelity: str
    thread: str
    branch: str
    status: str = ""
    """Empty while it runs; `interrupted` if its process stopped before it had ended."""
    seconds: float | None = None
    notes: str = ""
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """One run with the path that it took."""

    run: RunInfo
    hops: tuple[Hop, ...]
    drawing: str
    """The graph as SVG for a page, each stage with its newest outcome; empty if it cannot be drawn."""


@asynccontextmanager
async def open_store(location: str) -> AsyncGenerator[RunStore]:
    """Open the store of runs; it is not created if it does not exist.

    Raises:
        NotFound: There is no store.
    """
    if not has_runs(location):
        raise NotFound(
            f"{place_name(location)}: no pipeline has been run yet; `context-compiler pipeline run FILE` runs one"
        )
    store = open_runs(RunConfig(runs=location))
    try:
        yield store
    finally:
        await store.close()


async def load_runs(location: str, page: int, *, owner: str | None) -> RunsPage:
    """Load one page of the runs of an owner, or of all for None; empty if none was ever started."""
    runs: Sequence[RunInfo] = ()
    if has_runs(location):
        async with open_store(location) as store:
            runs = [run for run in await store.runs() if owner in (None, run.owner)]
    pages = Pages(page=page, size=PAGE, total=len(runs))
    return RunsPage(runs=tuple(runs[pages.offset : pages.offset + PAGE]), pages=pages, place=place_name(location))


async def load_run(location: str, name: str, *, owner: str | None) -> RunPage:
    """Load a run by its id."""
    async with open_store(location) as store:
        runs = [run for run in await store.runs() if owner in (None, run.owner)]
        info = next((run for run in runs if run.run_id == name), None)
        if info is None:
            raise NotFound(f"{place_name(location)}: no run {name[:80]!r}")
        hops = hops_of(await store.events(name), ended=info.status not in ("running", "waiting"))
        drawing = await asyncio.to_thread(_draw, await store.content(info.snapshot), hops)
        return RunPage(run=info, hops=tuple(hops), drawing=drawing)


def _draw(text: str | None, hops: Sequence[Hop]) -> str:
    """Draw the graph of a run with the newest outcome of each stage; empty if it is not stored or too large."""
    marks = {hop.node: Mark(outcome=f"ran-{hop.status or 'running'}", link=f"#hop{hop.index}") for hop in hops}
    return attempt(lambda: to_svg(parse_dot(text or ""), graphviz=None, marks=marks)).value or "" if text else ""


def hops_of(events: Sequence[Event], *, ended: bool = False) -> list[Hop]:
    """List the visits of stages in the order in which they began; with `ended`, none of them still runs."""
    hops: list[Hop] = []
    running: dict[tuple[str, str, str | None, object], int] = {}
    for event in events:
        visit = (event.run_id, event.branch, event.node, event.data.get("visit"))
        if event.kind in ("run_resumed", "stage_started"):  # a visit that begins again was interrupted
            _interrupt(hops, [running.pop(key) for key in [*running] if key == visit or event.kind == "run_resumed"])
        if event.kind == "stage_started":
            running[visit] = len(hops)
            hops.append(_hop(len(hops) + 1, event))
        elif event.kind in ("stage_completed", "stage_failed") and visit in running:
            index, end = running.pop(visit), event.data
            hops[index] = replace(
                hops[index],
                status=str(end.get("status", "")),
                seconds=end.get("duration"),
                notes=str(end.get("notes") or ""),
                failure=str(end.get("reason") or ""),
            )
    _interrupt(hops, running.values() if ended else ())
    return hops


def _interrupt(hops: list[Hop], positions: Iterable[int]) -> None:
    for position in positions:
        hops[position] = replace(hops[position], status="interrupted")


def _hop(index: int, start: Event) -> Hop:
    data = start.data
    return Hop(
        index=index,
        node=start.node or "",
        handler=str(data.get("handler", "")),
        visit=int(data.get("visit", 1)),
        fidelity=str(data.get("fidelity", "")),
        thread=str(data.get("thread") or ""),
        branch=start.branch,
    )
