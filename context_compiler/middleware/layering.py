"""What a run is told of the layers is settled at its first request, and stays as it is until the run ends.

It takes its share of the room before anything else is cut, and goes where the least that can be sent needs its place.
"""

from __future__ import annotations

from dataclasses import replace

from context_compiler.compiler.limits import whole_budget
from context_compiler.compiler.view import View
from context_compiler.layers.context import NO_LAYERS, LayerBlock, drop_block, layer_block, layers_room, node_template
from context_compiler.layers.session import LayerSource, load_state
from context_compiler.middleware.arguments import Wanted
from context_compiler.middleware.request import Request
from context_compiler.middleware.state import Live, Run
from context_compiler.resilience import Report, attempted


async def layered(live: Live, run: Run, request: Request, wanted: Wanted, report: Report) -> Request:
    """The request with what its run is told; with nothing, and the reason on the record, where that fails."""
    if wanted.layers is None or wanted.role is None:
        return request
    if run.told is None:
        outcome = await attempted(_told(live, run, request, wanted.layers, wanted.role))
        if outcome.error is not None:
            await report(outcome.error)
            run.told = drop_block(NO_LAYERS, f"could not be told: {type(outcome.error).__name__}")
        else:
            run.told = outcome.value or NO_LAYERS
    return replace(request, told=run.told)


async def _told(live: Live, run: Run, request: Request, layers: LayerSource, role: str) -> LayerBlock:
    state = await load_state(layers, request.session_id)
    budget, _ = whole_budget(live.asked, window=request.window, max_tokens=request.max_tokens)
    room = int(budget / run.ratios.of(request.family)) - request.overhead
    return layer_block(
        role,
        state,
        node_template(role, live.templates),
        room=layers_room(room, live.reader.one(request.messages[-1]).tokens),
        counter=live.counter,
    )


def crowded(run: Run, request: Request, view: View) -> Request | None:
    """The request without layers, where even the least is over the budget with them; None where they do not matter."""
    if view.status != "floor_over_budget" or not request.told.text:
        return None
    run.told = drop_block(request.told, "even the least that can be sent needs their room")
    return replace(request, told=run.told)
