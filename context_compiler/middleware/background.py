"""Background compiles: started below the high threshold, and used by the first request above it.

Each conversation has at most one. A compile is used only if the messages it covers are still the beginning of the
history; otherwise it is discarded.
"""

from __future__ import annotations

from dataclasses import replace

from context_compiler.compiler.advance import Advance, advance, brought_up_to_date, decided_by, select
from context_compiler.compiler.block_sizes import TURNS, BlockSizes
from context_compiler.compiler.compile_row import failed_row
from context_compiler.compiler.cycle import Cycle, valid_cycle
from context_compiler.compiler.policy import Limits
from context_compiler.compiler.summary import SummaryRequest, SummaryResponse, reason_for_no_model, summary_request
from context_compiler.errors import CompileError
from context_compiler.middleware.request import Host, response_of
from context_compiler.middleware.state import PendingCompile, RequestContext
from context_compiler.recall import question_text
from context_compiler.record.values import Compile

BACKGROUND = "made in the background"
"""Part of a compile's status if it started before a request needed it."""

CHANGED = "the history has changed since"
"""Error of a compile that no request can use because its messages are gone."""


def pending(context: RequestContext) -> PendingCompile | None:
    """The background compile of this conversation, running or finished but unused; None if there is none."""
    return context.compiler.pending.find(context.request.conversation, context.history, context.policy.config)


def limits_for_questions(context: RequestContext, limits: Limits, cycle: Cycle | None) -> Limits:
    """Lower the high threshold if a recent prompt asked for earlier text: the next such prompt is cut sooner."""
    if cycle is None:  # nothing has been left out yet, so no prompt can ask for it
        return limits
    sizes, history = BlockSizes(context, limits, cycle), context.history
    recent = (history.readings[turn.start] for turn in context.outline.turns[-TURNS:])
    wanted = max(sizes.most(question_text(prompt)) for prompt in recent) if context.recalls else 0
    return replace(limits, high=max(limits.low, min(limits.high, limits.budget - sizes.reserve - wanted)))


async def start(context: RequestContext, previous: Cycle | None, host: Host) -> bool:
    """Start a background compile; False if no model may or can be asked now."""
    run = context.run
    if context.policy.model == "none" or context.is_paused or run.refused or run.asked_turn == context.turn:
        return False
    limits = limits_for_questions(context, context.limits(), previous).for_background
    chosen = select(context, limits, previous=previous)
    decided = decided_by(chosen)
    if not decided or reason_for_no_model(chosen, context.turn) is not None:
        return False
    wanted, all_pending = summary_request(chosen), context.compiler.pending
    if not context.affords(wanted, host):
        return False
    if not all_pending.reserve(context.request.conversation):
        return True  # another run of this conversation is starting one
    try:
        task = await host.launch(wanted)
        if task is None:
            return False
        run.asked_turn = context.turn
        all_pending.add(
            PendingCompile(
                context=context,
                where=context.where,
                limits=limits,
                previous=previous,
                request=wanted,
                decided=decided,
                tip=context.history.ids[decided - 1],
                task=task,
            )
        )
    finally:
        all_pending.release(context.request.conversation)
    return True


async def finish(
    context: RequestContext, job: PendingCompile, host: Host
) -> tuple[Advance | None, Compile | None, CompileError | None]:
    """Wait for a background compile and turn it into an advance.

    Returns:
        The advance; or None with the row of a compile that failed or cannot be used, and the error of a failed one.
    """
    try:
        response = _charge_once(context, job, await host.land(job.task), host)
    except CompileError as error:
        context.run.asked_turn = context.turn
        return None, _row(job, error), error

    async def answer(_: SummaryRequest) -> SummaryResponse:
        return response

    done = await advance(job.context, job.limits, where=job.where, ask=answer, previous=job.previous)
    cycle = valid_cycle(done.cycle, context.history, context.policy.config)
    if cycle is None:  # a message that revises what it quotes has been taken away
        context.run.asked_turn = context.turn
        error = CompileError(CHANGED, model=context.policy.model, phase="background", usage=response.usage)
        return None, _row(job, error, "skipped"), None
    # since it began, late answers may have come, a user may have pinned a message, a provider refused a request
    cycle = brought_up_to_date(cycle, context, context.limits(cycle).room)
    cycle = replace(cycle, tight=context.run.tight if context.run.refused else 1.0)
    return replace(done, cycle=cycle, row=done.row and _with_note(job, done.row)), None, None


async def discard(context: RequestContext, host: Host) -> tuple[Compile | None, CompileError | None]:
    """Discard a background compile that failed or does not fit this request.

    Its cost is charged to this run. After a failure no other compile is tried in this turn.

    Returns:
        The row of the discarded compile, and the error if it failed; None for both if nothing was discarded.
    """
    job = pending(context)
    if job is None:
        return None, None
    reason, made = _reason_unusable(context, job, host), response_of(job.task) if job.task.done() else None
    failed = made is not None and made.error is not None and made.fault is None
    if reason is None:
        return (await finish(context, job, host))[1:] if failed else (None, None)
    spent: dict[str, int] = {}
    if made is not None:
        spent = _charge_once(context, job, replace(made, failure=None), host).usage
    context.compiler.pending.take(job)
    job.cancel()
    return _row(job, CompileError(reason, model=context.policy.model, phase="background", usage=spent), "skipped"), None


def unused_row(job: PendingCompile) -> Compile | None:
    """Row of a finished compile that no request has used; None if it cost nothing."""
    made = response_of(job.task)
    if not made.usage:
        return None
    model = job.context.policy.model
    return _row(job, CompileError("no request used it", model=model, phase="background", usage=made.usage), "skipped")


def _charge_once(
    context: RequestContext, job: PendingCompile, response: SummaryResponse, host: Host
) -> SummaryResponse:
    """Charge the run for a response, and return it, without its usage and cost if another run has paid for it.

    Exactly one run pays, or none if this one's usage limits leave too little: it did not ask for the compile.

    Raises:
        CompileError: No summary was written.
    """
    if not context.compiler.pending.take(job):
        response = replace(response, usage={}, cost=None)
    sent, answered = (response.usage.get(f"{kind}_tokens", 0) for kind in ("input", "output"))
    if host.affords(sent, answered, context.policy.model):
        return host.charge(response)
    if response.error is not None and response.fault is None:
        raise response.error
    return response


def _reason_unusable(context: RequestContext, job: PendingCompile, host: Host) -> str | None:
    """Reason why this request cannot use a compile; None if it can."""
    if job.task.get_loop() is not host.loop:
        return "it was made in another event loop"
    if job.task.cancelled():
        return "it was cancelled"
    return None if job.fits(context.history, context.policy.config) else CHANGED


def _row(job: PendingCompile, error: CompileError, status: str = "failed") -> Compile:
    begun = job.context
    return _with_note(job, failed_row(job.where, begun.history, begun.policy, job.request, error), status)


def _with_note(job: PendingCompile, row: Compile, status: str = "") -> Compile:
    """The row with a note in its status that the compile was made in the background."""
    word, _, reasons = row.status.partition("; ")
    notes = [status or word, f"{BACKGROUND} since turn {job.where.turn_index + 1}", reasons]
    return replace(row, status="; ".join(filter(None, notes)))
