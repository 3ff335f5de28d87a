"""The block before the prompt of a request: the layers of its run, and passages of the owner's other conversations."""

from __future__ import annotations

from dataclasses import replace

from context_compiler.compiler.policy import LARGE
from context_compiler.compiler.view import Quote
from context_compiler.layers.context import (
    NO_LAYERS,
    LayerBlock,
    Need,
    drop_block,
    layer_block,
    layers_room,
    node_template,
    with_others,
)
from context_compiler.layers.session import Layers, LayerSource, load_state
from context_compiler.messages.prompts import asking_part, asks
from context_compiler.middleware.archive import Archive
from context_compiler.middleware.others import quoted_mentions
from context_compiler.middleware.request import Request
from context_compiler.middleware.state import CompilerState, Result, Run
from context_compiler.recall.question import pending_question
from context_compiler.record.store import Tenants
from context_compiler.resilience import Report, attempt, try_await


class LayerBlocks:
    """Attaches the block of each run to the requests of one compiler."""

    def __init__(self, state: CompilerState, archive: Archive, report: Report) -> None:
        self._arguments, self._counter, self._reader = state.arguments, state.counter, state.reader
        self._archive, self._report = archive, report

    async def attach(self, run: Run, request: Request) -> Request:
        """Attach the layers of the session to a request; if that fails, attach none and record why.

        The layers are chosen at the first request of a run and stay the same until the run ends; only the passages of
        other conversations change if a question is added to the run. Their share of the room is reserved before
        anything else is cut. If the search of other conversations fails, there are none of theirs.
        """
        layers, role = self._arguments.layers, self._arguments.role
        if run.own_layers is None:
            block = NO_LAYERS
            if layers is not None and role is not None:
                outcome = await try_await(self._own_block(run, request, layers, role))
                block = outcome.value or NO_LAYERS
                if outcome.error is not None:
                    await self._report(outcome.error)
                    block = drop_block(NO_LAYERS, f"failed: {type(outcome.error).__name__}")
            run.own_layers = block
        asked = attempt(lambda: self._question(run, request))
        question = asked.value or ""
        if run.layers is None or question != run.asked_across:
            run.asked_across = question
            added = await try_await(self._add_other_conversations(run, request, run.own_layers, question))
            if (error := asked.error or added.error) is not None:
                await self._report(error)
            run.layers = added.value or run.own_layers
        return request if request.layers is run.layers else replace(request, layers=run.layers)

    def _room(self, run: Run, request: Request) -> int:
        """Tokens of the budget that are left after the fixed part of a request."""
        budget, _ = self._arguments.whole_budget(request)
        return int(budget / run.ratios.of(request.family)) - request.overhead

    async def _own_block(self, run: Run, request: Request, layers: LayerSource, role: str | Need) -> LayerBlock:
        if isinstance(layers, Layers):
            if request.owner is None:
                return drop_block(NO_LAYERS, "the owner of the run is not known")
            if request.owner or (callable(self._arguments.owner) and isinstance(layers.store, Tenants)):
                layers = layers.scoped(request.owner)
        state = await load_state(layers, request.session_id, timeout=self._arguments.timeout)
        room = layers_room(self._room(run, request), self._reader.one(request.messages[-1]).tokens)
        template = node_template(role, self._arguments.templates(request.owner))
        return layer_block(role, state, template, room=room, counter=self._counter)

    def _question(self, run: Run, request: Request) -> str:
        """Question for the owner's other conversations; empty if there is none, or without `recall_across`."""
        if not self._arguments.recall_across or request.owner is None or run.raw is None:
            return ""
        pending = pending_question(run.raw, self._counter)
        asked = asking_part(pending.text, self._counter) if pending is not None else ""
        return asked if asks(asked, self._counter) else ""

    async def _add_other_conversations(
        self, run: Run, request: Request, block: LayerBlock, question: str
    ) -> LayerBlock:
        """Add passages from the owner's other conversations that answer a question."""
        if not question or run.raw is None:
            return block
        share, room = self._arguments.recall_across, self._room(run, request) - block.tokens
        prompt = self._reader.one(request.messages[-1])
        free = room - min(prompt.tokens, room - room // LARGE)
        most = min(int(share * room) if isinstance(share, float) else share, free)
        mentions = await self._archive.scoped(request.owner).others(request.session_id, question)
        text, taken = quoted_mentions(mentions, run.raw, most, self._counter)
        quotes = [
            Quote(what=f"conversation {mention.session}", why=f"recalled with score {score:.2f}", text=mention.text)
            for score, mention in taken
        ]
        return with_others(block, text, quotes, self._counter) if text else block

    @staticmethod
    def drop(run: Run, request: Request, result: Result) -> Request | None:
        """Drop the layers of a run if the prompt or the smallest possible request needs their room; None if they stay.

        Files of the prompt that are larger than the whole room are left out in any case, so they need no room.
        """
        if not request.layers.text:
            return None
        position = result.shortened_prompt
        crowded = result.view.status == "floor_over_budget"
        if position is not None:
            media = sum(item.media for item in result.raw.readings[position].items)
            crowded = media <= result.limit - request.overhead
        if not crowded:
            return None
        run.layers = drop_block(request.layers, "the prompt or the smallest possible request needs their room")
        return replace(request, layers=run.layers)
