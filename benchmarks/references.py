"""Reference recall: what a later tool call needs is still in the view, with the line that it came from.

    python -m benchmarks.references --set swe --budget 4000 [--fast] [--way one-shot]

For every real tool call of a session: the share of the ids and paths in its arguments that occurred earlier and
that a view of the history before the call still holds together with the words around them. A bare list of
identifiers does not count. `long` are those whose last mention is further back than the budget, in tokens. The
sets are swe (text actions and function calls of SWE-agent), tau (airline agents) and pi (one long coding session);
the views are one-shot views without a model, a live agent's, or a window of the newest groups that fit.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from pydantic_ai.messages import ModelMessage, ModelRequest

from context_compiler import TokenCounter, compile_view
from context_compiler.history import History, Reader
from context_compiler.importers import read_transcripts
from context_compiler.measures.references import calls, held, texts
from context_compiler.turns import outline, pair

Viewing = Callable[[Sequence[ModelMessage], int], Awaitable[Sequence[ModelMessage]]]
"""A way of viewing: a history and a budget in tokens give the messages of a view."""

FILES = {
    "swe": ("swe_agent/*.traj", "swe-agent", 4_000),
    "tau": ("tau_bench/airline.json", None, 1_000),
    "pi": ("pi_sessions/large-session.jsonl", None, 32_000),
}
"""Where a set lies, its format, and its budget."""

GOALS = {"swe": (0.97, 0.85), "tau": (0.98, 0.85), "pi": (0.98, 0.75)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Reference recall over calls: each call weighs the same."""

    all: float
    long: float
    calls: int
    long_calls: int
    over: int
    """Views above their budget."""


def data_folder() -> Path | None:
    """Where the data lie: in CONTEXT_COMPILER_DATA, else beside the checkout; None where there are none."""
    named = os.environ.get("CONTEXT_COMPILER_DATA")
    folder = Path(named) if named else Path(__file__).parents[2] / "shared" / "data"
    return folder if folder.is_dir() else None


def load(name: str, folder: Path) -> list[list[ModelMessage]]:
    """Every session of a set, without system prompts: a budget here is what messages may cost."""
    pattern, form, _ = FILES[name]
    read = [one for path in sorted(folder.glob(pattern)) for one in read_transcripts(path, format=form)]
    return [_spoken(one.messages) for one in read]


def _spoken(messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    kept = [
        replace(message, parts=[part for part in message.parts if part.part_kind != "system-prompt"])
        if isinstance(message, ModelRequest)
        else message
        for message in messages
    ]
    return [message for message in kept if message.parts]


async def window(messages: Sequence[ModelMessage], budget: int) -> Sequence[ModelMessage]:
    """The newest whole groups that fit, at least the last."""
    history = _READER.read(messages)
    starts = [group.start for turn in outline(history, pair(history)).turns for group in turn.groups]
    fits = [start for start in starts if history.tokens - history.sums[start] <= budget]
    return messages[min(fits, default=starts[-1]) :]


async def one_shot(messages: Sequence[ModelMessage], budget: int) -> Sequence[ModelMessage]:
    """A view by `compile_view`, without a model."""
    return (await compile_view(messages, "extractive", budget, system=None, counter=_READER.counter)).messages


_READER = Reader(TokenCounter())
WAYS: dict[str, Viewing] = {"window": window, "one-shot": one_shot}


async def measured(
    sessions: Sequence[Sequence[ModelMessage]], budget: int, viewing: Viewing, *, every: int = 1
) -> Score:
    """Reference recall of one way of viewing, over every `every`th call."""
    histories = [_READER.read(session) for session in sessions]
    said = [texts(history) for history in histories]
    whole: list[float] = []
    long: list[float] = []
    over = 0
    for call in list(calls(histories, said))[::every]:
        history = histories[call.session]
        sent = _READER.read(list(await viewing(history.messages[: _asked(history, call.position)], budget)))
        over += sent.tokens > budget
        view = "\n".join(texts(sent))
        hits = [(held(one.text, said[call.session][: call.position], view), one.distance) for one in call.references]
        whole.append(fmean(hit for hit, _ in hits))
        if far := [hit for hit, distance in hits if distance > budget]:
            long.append(fmean(far))
    return Score(all=fmean(whole), long=fmean(long) if long else 0.0, calls=len(whole), long_calls=len(long), over=over)


def _asked(history: History, position: int) -> int:
    """Where the history before a call ends: behind the last request."""
    while position and not isinstance(history.messages[position - 1], ModelRequest):
        position -= 1
    return position


def main() -> None:
    """Measure a set and print one row a way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=list(FILES), default="swe")
    parser.add_argument("--budget", type=int)
    parser.add_argument("--way", choices=list(WAYS), action="append")
    parser.add_argument("--fast", action="store_true", help="every eighth call")
    given = parser.parse_args()
    folder = data_folder()
    if folder is None:
        raise SystemExit("no data: set CONTEXT_COMPILER_DATA to the folder that holds them")
    budget = given.budget or FILES[given.set][2]
    sessions = load(given.set, folder)
    print("| set | budget | way | all | long-range | calls | with long-range | over budget |")
    print("|---|---|---|---|---|---|---|---|")
    for way in given.way or WAYS:
        score = asyncio.run(measured(sessions, budget, WAYS[way], every=8 if given.fast else 1))
        figures = f"{score.all:.1%} | {score.long:.1%} | {score.calls} | {score.long_calls} | {score.over}"
        print(f"| {given.set} | {budget:,} | {way} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
