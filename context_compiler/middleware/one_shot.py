"""`compile_view`: a single view of a history outside any run, made like that of a live request but without a host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import cast

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse
from pydantic_ai.models import Model

from context_compiler.compiler.advance import Advance, advance
from context_compiler.compiler.reasons import AFTER_LAST_REQUEST
from context_compiler.compiler.summary import SummaryRequest, SummaryResponse, model_alias
from context_compiler.compiler.view import View
from context_compiler.errors import BudgetError, SettingsError
from context_compiler.fidelity import Fidelity
from context_compiler.layers.context import (
    NO_LAYERS,
    LayerBlock,
    Need,
    layer_block,
    layers_room,
    node_need,
    node_template,
)
from context_compiler.layers.session import LayerSource, load_state
from context_compiler.messages.shapes import shortens_prompt
from context_compiler.middleware.arguments import Arguments
from context_compiler.middleware.recording import record_of
from context_compiler.middleware.request import Request
from context_compiler.middleware.respond import assemble_view
from context_compiler.middleware.state import CompilerState, RequestContext, Result, Run, read_request
from context_compiler.middleware.summary_calls import ask
from context_compiler.record.store import Store, open_store
from context_compiler.record.values import Drop, Entry, Record
from context_compiler.settings import Count, Settings
from context_compiler.template import Template
from context_compiler.tokens import PROVIDER, TokenCounter
from context_compiler.tokens import Count as CountText
from context_compiler.tokens.prices import Budget


async def compile_view(
    messages: Sequence[ModelMessage],
    template: str | Template = "extractive",
    budget: Budget = 2_000,
    *,
    fidelity: Fidelity | str | None = None,
    model: Model | str | None = "none",
    store: str | Path | Store | None = None,
    vault: str | Path | None = None,
    system: str | Path | None = "system",
    session: str | None = None,
    recent_turns: Count | None = None,
    rules: Sequence[str] = (),
    recall: float = 0.3,
    counter: TokenCounter | CountText | None = None,
    strict: bool = False,
    timeout: float = 60.0,
    layers: LayerSource | None = None,
    role: str | Need | None = None,
) -> View:
    """Compile a history into one view within a budget, outside any run.

    Args:
        messages: The raw history; never changed. The view ends with its last request.
        template: A template name, a path inside the template folders, or a `Template`.
        budget: Maximum tokens of the view's messages; a float is a fraction of 32,000, `Money` uses the price of
            `model`.
        fidelity: Limits the summary and the quotes; None is the template's, which limits only the summary.
        model: Model that writes the summary, or its name; None and `"none"` use no model.
        store: Store that records the view: a path, the address of a PostgreSQL database, or a `Store`; None records
            nothing.
        vault: Folder whose `AssistantMD/ContextTemplates/` is searched first; `{owner}` in its path is replaced by the
            folder of the store's owner.
        system: Folder whose `ContextTemplates/` is searched second.
        session: Label of the conversation on the record.
        recent_turns: Turns to keep before the last one if they fit; None is the template's.
        rules: Rules that the view contains word for word, as are those found in the user's own prompts.
        recall: 0 quotes earlier turns without regard to the last request; any other value prefers passages that answer
            it.
        counter: Token counter; None counts exactly with o200k.
        strict: Raise an error if the view is over the budget, or fits only because the prompt was cut.
        timeout: Time limit of the model call in seconds.
        layers: Source of the layers of `session`: `Layers`, or a function from a session to its state. The layers are
            put before the last request's prompt.
        role: Node of the view: understand, think, act, reply, or a `Need` of your own.

    Raises:
        SettingsError: `messages` is not a list of the host's messages; `layers`, `role` and `session` are not given
            together; or the budget is money and no price of `model` is known.
        LayersError: The role is unknown, or the layers are invalid.
        TemplateError: The template is missing or wrong.
        FidelityError: The fidelity is unknown.
        CompileError: The model failed.
        BudgetError: With `strict`, even the smallest view does not fit, or only with the prompt cut.
        StoreError: The view could not be recorded.
    """
    started = perf_counter()
    arguments = Arguments(
        template,
        budget=budget,
        fidelity=None if fidelity is None else Fidelity.parse(fidelity, where="compile_view"),
        model="none" if model is None else model,
        store=store,
        vault=vault,
        system=system,
        recent_turns=recent_turns,
        rules=rules,
        recall=recall,
        counter=counter,
        timeout=timeout,
    )
    _check(arguments, model_alias(model or "none"))
    context = _read(arguments, messages, session)
    limits = context.limits()
    block = await _layer_block(layers, role, session, context, limits.room)
    if block is not NO_LAYERS:
        context = replace(context, request=replace(context.request, layers=block))

    async def answer(request: SummaryRequest) -> SummaryResponse:
        return await ask(request.prompts, model or "none", timeout=timeout, cap=request.cap, counter=context.counter)

    done: Advance | None = None
    result = assemble_view(context, None, "raw")
    if result.view.tokens > limits.budget:
        room = replace(limits, budget=limits.budget - block.tokens)
        done = await advance(context, room, where=context.where, ask=answer)
        result = assemble_view(context, done.cycle, "compiled", done, earlier=result)
        if result.view.tokens > limits.budget:
            result = replace(result, view=replace(result.view, status="floor_over_budget"))
    if strict and (lost := _refusal(result.view, done, limits.fixed)):
        raise BudgetError(f"{lost}: give a larger budget")
    record = record_of(arguments, context.request, result, (perf_counter() - started) * 1000)
    return replace(result.view, record=await _save(record, result, store))


def _check(arguments: Arguments, alias: str) -> None:
    """Check the arguments; SettingsError if one is wrong or needs a run."""
    arguments.check()
    if any(map(callable, arguments.rules)):
        raise SettingsError("rules contains a function, which only an agent's run calls: give texts")
    if arguments.counter == PROVIDER:
        raise SettingsError("counter='provider': a provider counts whole requests, which only an agent's run has")
    if alias and arguments.budget_unpriced(alias, None):
        unpriced = f"budget={str(arguments.budget)!r}: no price is known for model={alias!r}"
        raise SettingsError(f"{unpriced}; give a budget in tokens, or another model")


def _check_messages(messages: object) -> None:
    """Check a history; SettingsError if it is not a list, contains anything but messages, or has no request."""
    remedy = "give a list of the host's messages, such as result.all_messages()"
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise SettingsError(f"messages is of type {type(messages).__name__}: {remedy}")
    for index, message in enumerate(cast("Sequence[object]", messages)):
        if not isinstance(message, ModelRequest | ModelResponse):
            kind = type(message).__name__
            other = "; context_compiler.messages.importers reads those of other tools" if kind == "dict" else ""
            raise SettingsError(f"messages[{index}] is of type {kind}: {remedy}{other}")
    if not any(isinstance(message, ModelRequest) for message in cast("Sequence[object]", messages)):
        raise SettingsError(f"messages contains no request: {remedy}")


def _read(arguments: Arguments, messages: Sequence[ModelMessage], session: str | None) -> RequestContext:
    """Read the history up to its last request; later messages are dropped."""
    _check_messages(messages)
    compiler = CompilerState.of(arguments)
    compiler.settings = Settings.from_environment()
    last = max(index for index, message in enumerate(messages) if isinstance(message, ModelRequest))
    history = compiler.reader.read(messages[: last + 1])
    dropped: tuple[Drop, ...] = ()
    if after := len(messages) - len(history):
        later = "1 message" if after == 1 else f"{after} messages"
        dropped = (Drop(what=later, reason=AFTER_LAST_REQUEST.text),)
    request = Request(
        messages=list(history.messages),
        session_id=session or f"conversation-{history.ids[0][-12:]}",
        model=model_alias(arguments.model or "none"),
        hash=None,
        dropped=dropped,
        rules=tuple(map(str, arguments.rules)),
        owner=arguments.static_owner,
    )
    return read_request(compiler, Run(raw=history), request, None)


async def _layer_block(
    layers: LayerSource | None, role: str | Need | None, session: str | None, context: RequestContext, room: int
) -> LayerBlock:
    if layers is None and role is None:
        return NO_LAYERS
    if layers is None or role is None or session is None:
        raise SettingsError(f"layers={layers!r}, role={role!r}, session={session!r}: give all three, or no layers")
    node_need(role)
    room = layers_room(room, context.history.readings[-1].tokens)
    state = await load_state(layers, session, timeout=context.compiler.arguments.timeout)
    templates = context.compiler.arguments.templates(context.request.owner)
    return layer_block(role, state, node_template(role, templates), room=room, counter=context.counter)


def _refusal(view: View, done: Advance | None, fixed: int) -> str:
    """Reason why a strict caller does not get this view; empty if there is none. No view is below `fixed` tokens."""
    if view.tokens > view.budget:
        return f"even the smallest view takes {view.tokens} of {view.budget} tokens"
    if done is None:
        return ""
    draft = done.selection.draft
    for index in range(draft.outline.active.start, draft.outline.active.stop):
        reading, shape = draft.history.readings[index], draft.here(index)
        if reading.has_prompt and (shape is None or shortens_prompt(reading, shape)):
            sizes = f"it takes {reading.tokens}, and what no view can leave out takes {fixed}"
            return f"{view.budget} tokens are enough only if the prompt is cut: {sizes}"
    return ""


async def _save(record: Record, result: Result, store: str | Path | Store | None) -> Record:
    """Record the view, and return the stored record; a store that is opened here is closed again."""
    if store is None:
        return record
    opened = open_store(store)
    try:
        entry = Entry(record=record, raw=result.raw.chain, view=result.sent.view_chain, compile=result.row)
        return await opened.save(entry)
    finally:
        if opened is not store:
            await opened.close()
