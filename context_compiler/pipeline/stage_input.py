"""Before a stage: how much of the past it gets, whose conversation it continues, and what it is told.

The edge that counts is the one that was really taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from context_compiler.fidelity import Fidelity, fidelity_on_resume, resolve_fidelity, resolve_thread_id
from context_compiler.pipeline.context import ContextStore
from context_compiler.pipeline.graph import Graph, Node
from context_compiler.pipeline.preamble import build_fidelity_preamble
from context_compiler.pipeline.state import RunState

MODE, THREAD, KEY = "internal.fidelity.mode", "internal.fidelity.thread_key", "thread_key"
OVERRIDE, PREAMBLE, STEER = "internal.resume.fidelity_override_once", "_fidelity_preamble", "steer.message"
PASSING = (PREAMBLE, OVERRIDE, STEER)
"""Keys that are there while a stage runs, and in no checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """What a stage begins with."""

    fidelity: Fidelity
    thread: str | None
    """The key of the conversation it continues; None: it begins a fresh one."""
    context: ContextStore
    preamble: str


def arrive(
    graph: Graph, state: RunState, node: Node, *, wants: bool, degrade: bool, inbox: Sequence[str] = ()
) -> Arrival:
    """What a stage begins with.

    Args:
        graph: The graph.
        state: The run before the stage.
        node: The stage.
        wants: Whether it wants a preamble.
        degrade: Whether a resumed run has lost its conversations, so that `full` is `summary:high` once.
        inbox: What a supervisor says.
    """
    edge = graph.edges[state.edge] if state.edge is not None else None
    asked = resolve_fidelity(edge, node, graph)
    fidelity = fidelity_on_resume(asked, state.resumed and degrade and wants)
    thread = resolve_thread_id(edge, node, graph, state.current_node) if fidelity is Fidelity.FULL else None
    context = ContextStore.sharing(state.context, state.logs)
    context.apply_updates({"current_node": node.name, MODE: str(fidelity)})
    for key in (THREAD, KEY):
        context.set(key, thread) if thread is not None else context.remove(key)
    if fidelity is not asked:
        context.set(OVERRIDE, str(fidelity))
    preamble = ""
    if wants and fidelity is not Fidelity.FULL:
        values = context.values()
        preamble = build_fidelity_preamble(fidelity, graph, values, state.completed, node.name, state.logs)
        context.set(PREAMBLE, preamble)
    if inbox:  # after the preamble, which shows little of a value, or none: whoever asks an agent hands it on whole
        context.set(STEER, "\n".join(inbox))
    return Arrival(fidelity=fidelity, thread=thread, context=context, preamble=preamble)
