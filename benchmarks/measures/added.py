"""Overhead of the package: time added to a request, time of a recall block, and cost of recording a request.

See `benchmarks.overhead`, `benchmarks.blocks` and `benchmarks.store`.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import blocks, overhead, store
from benchmarks.approaches import Approach
from benchmarks.data import GENERATED, Data
from benchmarks.measures import Measure
from benchmarks.results import Cell, Result
from benchmarks.tables import markdown
from context_compiler.cli.drawing import Line, Panel

ADDED, BLOCKS, STORE = "added", "blocks", "store"
SIZES, FAST_SIZES = (100, 1_000, 10_000), (100,)
REPEAT, FAST_REPEAT = 9, 2
MESSAGES, REQUESTS, FAST_REQUESTS = 2_000, 500, 20
FAST_BLOCKS = (200, 5)
"""Number of messages and of questions."""


def run_added(cell: Cell, approach: Approach, data: Data) -> Mapping[str, Any]:
    """Measure all ways to send one history, interleaved."""
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(overhead.measured(cell.budget, Path(folder), FAST_REPEAT if data.fast else REPEAT))
    return {"rows": [asdict(row) for row in rows]}


def run_blocks(cell: Cell, approach: Approach, data: Data) -> Mapping[str, Any]:
    """Measure recall blocks of a long conversation, one per question."""
    return asyncio.run(blocks.measured(data, cell.budget, *(FAST_BLOCKS if data.fast else ())))


def run_store(cell: Cell, approach: Approach, data: Data) -> Mapping[str, Any]:
    """Measure the saves of a growing history."""
    return {"rows": asyncio.run(store.rows(MESSAGES if cell.budget > 100 else 100, cell.budget))}


def added_tables(results: Sequence[Result]) -> dict[str, str]:
    ordered = sorted(results, key=lambda one: one.cell.budget)
    rows = [overhead.Row(**row) for one in ordered if one.value is not None for row in one.value["rows"]]
    return {ADDED: overhead.table(rows)}


def blocks_tables(results: Sequence[Result]) -> dict[str, str]:
    ordered = sorted(results, key=lambda one: one.cell.budget)
    rows = [blocks.cells(dict(one.value)) for one in ordered if one.value is not None]
    return {BLOCKS: markdown(blocks.HEAD, rows)}


def added_panels(results: Sequence[Result]) -> list[Panel]:
    """Build a panel of a request's CPU time against the length of its history."""
    found: dict[str, dict[int, float]] = {}
    for one in sorted(results, key=lambda one: one.cell.budget):
        for row in one.value["rows"] if one.value is not None else ():
            found.setdefault(row["way"], {})[row["messages"]] = row["cpu_ms"]
    lines = [
        Line(
            name=way,
            x=list(points),
            y=list(points.values()),
            strong=way.startswith("ours"),
            dashed=way == "the host alone",
        )
        for way, points in found.items()
    ]
    sizes = sorted({size for points in found.values() for size in points})
    return [Panel(title="a request", x="messages", y="CPU ms", lines=lines, log_x=True, log_y=True, ticks=sizes)]


def store_tables(results: Sequence[Result]) -> dict[str, str]:
    rows = [row for one in results if one.value is not None for row in one.value["rows"]]
    return {STORE: markdown(["", *store.HEAD], rows)}


MEASURES = (
    Measure(
        name=ADDED,
        title="What is added to a request",
        about=(
            "One `Agent.run` with a model that answers at once, on the same history: the median of nine, all rows "
            "interleaved. `cold`: the first request with messages that were just deserialised. Less is better."
        ),
        cells=lambda data, approaches: [
            Cell(ADDED, "ours", "made up", size) for size in (FAST_SIZES if data.fast else SIZES)
        ],
        run=run_added,
        tables=added_tables,
        panels=added_panels,
        alone=True,
    ),
    Measure(
        name=BLOCKS,
        title="What a recall block takes",
        about=(
            "CPU time of finding the recall block of a question in a conversation of 2,000 messages, all of which are "
            "searched, compared with the host's whole run with the same history. Less is better."
        ),
        cells=lambda data, approaches: [
            Cell(BLOCKS, "ours", "locomo" if "locomo" in data.asked else GENERATED, budget)
            for budget in (blocks.BUDGETS[:1] if data.fast else blocks.BUDGETS)
        ],
        run=run_blocks,
        tables=blocks_tables,
        alone=True,
    ),
    Measure(
        name=STORE,
        title="The record",
        about="A history of 2,000 messages that grows by two messages per request. Less is better.",
        cells=lambda data, approaches: [Cell(STORE, "ours", "made up", FAST_REQUESTS if data.fast else REQUESTS)],
        run=run_store,
        tables=store_tables,
        alone=True,
    ),
)
