"""Reference recall: the share of identifiers needed by a tool call that are still in the view, in their context.

For every real tool call of a session, this is the share of the ids and paths in its arguments that occurred earlier and
that a view of the history before the call still holds with the words around them. A bare list of identifiers does not
count. `long` are references last mentioned further back than the budget, in tokens. The sets are swe (text actions and
function calls of SWE-agent), tau (airline agents) and pi (one long coding session).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from pydantic_ai.messages import ModelMessage, ModelRequest

from context_compiler import TokenCounter
from context_compiler.compiler.references import calls, held, texts
from context_compiler.messages.history import History, Reader
from context_compiler.messages.importers import read_transcripts
from context_compiler.middleware.replay import View

FILES = {
    "swe": ("swe_agent/*.traj", "swe-agent"),
    "tau": ("tau_bench/airline.json", None),
    "pi": ("pi_sessions/large-session.jsonl", None),
}
"""Glob pattern and transcript format of each set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Reference recall over calls, each with the same weight."""

    all: list[list[float]]
    """Recall of every call with references, by session."""
    long: list[list[float]]
    over: int
    """Number of views above their budget."""


def load(name: str, folder: Path) -> list[list[ModelMessage]]:
    """Load every session of a set, without system prompts because budgets here cover messages only."""
    pattern, form = FILES[name]
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


_READER = Reader(TokenCounter())


async def measured(sessions: Sequence[Sequence[ModelMessage]], budget: int, viewing: View, every: int = 1) -> Score:
    """Measure the reference recall of one kind of view, at every `every`th call of all sessions."""
    histories = [_READER.read(session) for session in sessions]
    said = [texts(history) for history in histories]
    score = Score(all=[[] for _ in sessions], long=[[] for _ in sessions], over=0)
    for call in list(calls(histories, said))[::every]:
        history = histories[call.session]
        sent = _READER.read(list(await viewing(list(history.messages[: _asked(history, call.position)]), budget)))
        score = replace(score, over=score.over + (sent.tokens > budget))
        view = "\n".join(texts(sent))
        hits = [(held(one.text, said[call.session][: call.position], view), one.distance) for one in call.references]
        score.all[call.session].append(fmean(hit for hit, _ in hits))
        if far := [hit for hit, distance in hits if distance > budget]:
            score.long[call.session].append(fmean(far))
    return score


def _asked(history: History, position: int) -> int:
    """Return the end of the history before a call: the position after the last request."""
    while position and not isinstance(history.messages[position - 1], ModelRequest):
        position -= 1
    return position
