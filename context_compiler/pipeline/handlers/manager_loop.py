"""Stages that supervise a child pipeline: they start, observe, steer, await and stop it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from context_compiler.errors import GraphError
from context_compiler.pipeline.conditions import Condition, ConditionError, parse_condition
from context_compiler.pipeline.dot import load_dot
from context_compiler.pipeline.graph import Graph
from context_compiler.pipeline.handlers.agent import AgentHandler
from context_compiler.pipeline.stage import Child, Stage
from context_compiler.pipeline.state import Outcome, failure
from context_compiler.pipeline.workflow import SUFFIXES, load_workflow
from context_compiler.resilience import cancel_and_wait, try_await

CYCLES, INTERVAL_S = 1_000, 45.0
"""Defaults of `manager.max_cycles` and of `manager.poll_interval`, in seconds."""
ACTIONS = ("observe", "steer", "wait")
DEFAULT_ACTIONS = ("observe", "wait")
DECISION = "stack.manager.steer_decision"
"""Context key at which other handlers leave a message for the child."""


@dataclass(frozen=True, slots=True)
class ManagerLoopHandler:
    """Supervises a run of the graph in `stack.child_dotfile`, an attribute of the stage or of its graph."""

    _agent: AgentHandler

    async def execute(self, stage: Stage) -> Outcome:
        """Supervise until the child ends, the stop condition holds, or the cycles are used up.

        Raises:
            Unanswered: the child has stopped because nobody can be asked.
        """
        try:
            condition = parse_condition(stage.node.text("manager.stop_condition"))
        except ConditionError as error:
            return failure(f"manager.stop_condition, character {error.at + 1}: {error.message}")
        child: Child | None = None
        if stage.node.flag("stack.child_autostart", default=True):
            graph = _load_child(stage)
            if isinstance(graph, Outcome):
                return graph
            names = (stage.run_id, stage.branch_key, stage.node.name, str(stage.visit))
            child = await stage.start(graph, ".".join(filter(None, names)))
        try:
            return await self._supervise(stage, child, condition)
        finally:
            if child is not None and child.running:
                await child.stop()
                await stage.emit("child_stopped", child=child.state.run_id)

    async def _supervise(self, stage: Stage, child: Child | None, condition: Condition) -> Outcome:
        most = stage.node.whole("manager.max_cycles")
        listed = (action.strip() for action in stage.node.text("manager.actions").replace(" ", ",").split(","))
        actions = tuple(action for action in listed if action in ACTIONS) or DEFAULT_ACTIONS
        interval = stage.node.seconds("manager.poll_interval")
        for cycle in range(1, (CYCLES if most is None else most) + 1):
            stage.context.set("stack.manager.cycles", cycle)
            if "observe" in actions:
                await _observe(stage, child)
            if "steer" in actions:
                await self._steer(stage, child)
            if child is not None:
                child.raise_if_unanswered()
            final = _final_outcome(stage, child)
            if final is not None:
                return final
            values = stage.context.values()
            outcome = str(values.get("stack.child.outcome", ""))
            if condition.clauses and condition.holds(values, outcome=outcome):
                return Outcome(notes="Stop condition satisfied")
            if "wait" in actions:
                await _pause(stage, child, INTERVAL_S if interval is None else interval)
            else:
                await asyncio.sleep(0)
        if child is not None:
            child.raise_if_unanswered()
        return failure("Max cycles exceeded")

    async def _steer(self, stage: Stage, child: Child | None) -> None:
        """Send the child a message: from the context, the configured function, or the stage's agent."""
        message = stage.context.get_string(DECISION)
        stage.context.remove(DECISION)
        if not message and child is not None and stage.config.steer is not None:
            message = stage.config.steer(child.state) or ""
        if not message and child is not None and stage.node.prompt and not stage.config.simulated:
            asked = await try_await(self._agent.ask(replace(stage, session=None), _prompt(stage)))
            message = str(asked.value[0]).strip() if asked.value is not None else ""
        if message:
            stage.context.set("stack.manager.last_steer", message)
            if child is not None:
                child.steer(message)
            await stage.emit("child_steered", message=message[:500])


def _prompt(stage: Stage) -> str:
    """Prompt for the agent that steers the child: preamble, instruction, and state of the child."""
    values = sorted((key, value) for key, value in stage.context.values().items() if key.startswith("stack."))
    return "\n\n".join((stage.preamble.rstrip(), stage.prompt, "\n".join(f"{key}: {value}" for key, value in values)))


def _load_child(stage: Stage) -> Graph | Outcome:
    name = stage.node.text("stack.child_dotfile") or stage.graph.text("stack.child_dotfile")
    if not name:
        return failure("no stack.child_dotfile")
    where = stage.node.text("stack.child_workdir") or stage.graph.text("stack.child_workdir")
    folder = Path(stage.graph.path).parent if stage.graph.path else Path()
    path = (Path(where) if where else folder) / name
    if path.exists() and not path.is_file():
        return failure(f"stack.child_dotfile: {path} is not a file")
    try:
        if path.suffix.lower() in SUFFIXES:
            return load_workflow(path)
        return load_dot(path)
    except (OSError, UnicodeDecodeError, GraphError) as error:
        return failure(f"stack.child_dotfile: {error}")


async def _observe(stage: Stage, child: Child | None) -> None:
    """Copy the observable state of the child into the context."""
    if child is None:
        return
    state, status = child.state, _status(child)
    facts: dict[str, Any] = {
        "status": status,
        "outcome": state.status or (str(state.last.status) if state.last else ""),
        "current_node": state.current_node or "",
        "next_node": state.next_node or "",
        "completed": state.sequence,
        "last_response": state.context.get("last_response", ""),
        "failure_reason": state.failure_reason,
    }
    stage.context.apply_updates({f"stack.child.{key}": value for key, value in facts.items()})
    await stage.emit("child_observed", status=status, current_node=state.current_node)


def _status(child: Child) -> str:
    """Status of a child as its parent sees it: completed, failed, running, or stopped."""
    if child.state.ended:
        return "completed" if child.state.ok else "failed"
    return "running" if child.running else "stopped"


def _final_outcome(stage: Stage, child: Child | None) -> Outcome | None:
    """Outcome of the stage once the child has ended; None while the child runs."""
    status = stage.context.get_string("stack.child.status")
    outcome = stage.context.get_string("stack.child.outcome")
    if child is not None:  # the context is outdated if `observe` is not among the actions
        status = _status(child)
        outcome = child.state.status or outcome
    if status == "completed":
        good = outcome in ("", "success", "partial_success")
        return Outcome(notes="Child completed") if good else failure(f"Child completed with outcome {outcome}")
    if status in ("failed", "stopped"):
        why = f": {child.state.failure_reason}" if child is not None and child.state.failure_reason else ""
        return failure(f"Child failed{why}")
    return None


async def _pause(stage: Stage, child: Child | None, seconds: float) -> None:
    """Wait some seconds, or until the child ends."""
    sleeping = asyncio.ensure_future(stage.config.sleep(seconds))
    try:
        if child is None:
            await sleeping
        else:
            await child.wait(sleeping)
    finally:
        await cancel_and_wait(sleeping)
