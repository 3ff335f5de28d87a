"""Stages that join branches and pick the best one, by rank or with an agent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from context_compiler.pipeline.handlers.agent import AgentHandler
from context_compiler.pipeline.handlers.parallel import succeeded
from context_compiler.pipeline.stage import Stage
from context_compiler.pipeline.state import Outcome, failure
from context_compiler.resilience import try_await

_RANKS = {"success": 0, "partial_success": 1, "retry": 2, "fail": 3}

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FanInHandler:
    """Ranks the branches of the previous parallel stage by status, then score, then name.

    If the stage has a prompt, an agent picks the branch instead.
    """

    _agent: AgentHandler

    async def execute(self, stage: Stage) -> Outcome:
        """Put the best branch into the context; fail if branches failed and none succeeded."""
        rows = _rows(stage.context.get("parallel.results"))
        if not rows:
            return failure("No parallel results to evaluate")
        ranked = sorted(rows, key=_rank)
        best, method = ranked[0], "rank"
        if stage.node.prompt and not stage.config.simulated:
            chosen = await self._ask_agent(stage, ranked)
            best, method = (best, "rank") if chosen is None else (chosen, "agent")
        facts = {
            "best_id": best["branch_id"],
            "best_outcome": best.get("status", ""),
            "best_score": best.get("score", 0),
            "best_response": best.get("last_response", ""),
            "candidate_count": len(rows),
            "method": method,
        }
        updates = {f"parallel.fan_in.{key}": value for key, value in facts.items()}
        if not any(map(succeeded, rows)) and any(row.get("status") == "fail" for row in rows):
            every = all(row.get("status") == "fail" for row in rows)
            return failure("every branch failed" if every else "no branch succeeded", updates=updates)
        return Outcome(context_updates=updates, notes=f"best: {best['branch_id']} ({best.get('status', '')})")

    async def _ask_agent(self, stage: Stage, rows: Sequence[Row]) -> Row | None:
        """Ask the agent to pick a branch; None if it names no single branch or could not be asked."""
        parts = (stage.preamble.rstrip(), stage.prompt, json.dumps(list(rows), indent=1))
        prompt = "\n\n".join(filter(None, parts))
        stage.write("prompt.md", prompt)
        asked = await try_await(self._agent.ask(stage, prompt))
        if asked.value is None:
            return None
        output, messages = asked.value
        if stage.session is not None:
            stage.session.add(stage.node.name, messages)
        answer = _answer_text(output)
        stage.write("response.md", answer)
        exact = [row for row in rows if str(row["branch_id"]) == answer.strip().strip("`\"'.")]
        named = exact or [row for row in rows if str(row["branch_id"]) in answer]
        return named[0] if len(named) == 1 else None


def _answer_text(output: object) -> str:
    """The text in which an agent names a branch."""
    if isinstance(output, str):
        return output
    label = getattr(output, "preferred_label", "")
    ids = getattr(output, "suggested_next_ids", ())
    return str(label or (ids[0] if ids else "") or getattr(output, "notes", "") or output)


def _rows(value: object) -> list[Row]:
    """Results of branches in a context value; anything malformed is left out."""
    rows: list[object] = cast("list[object]", value) if isinstance(value, list) else []
    kept = [cast("Row", row) for row in rows if isinstance(row, Mapping)]
    return [row for row in kept if row.get("branch_id") is not None]


def _rank(row: Row) -> tuple[int, float, str]:
    """Sort key of a branch; the best branch has the lowest."""
    score = row.get("score", 0)
    return (
        _RANKS.get(str(row.get("status")), 4),
        -float(score if isinstance(score, int | float) else 0),
        str(row["branch_id"]),
    )
