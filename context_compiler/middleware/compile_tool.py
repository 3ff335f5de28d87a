"""The `compile_context` tool, with which an agent compiles its own conversation; guarded against loops.

It compiles at most once a turn, and only if that saves enough. The compile is an ordinary advance: the next request of
the run starts a cycle with it, or else the next run of the conversation, and `undo_compile` reverts it.
"""

from __future__ import annotations

from context_compiler.compiler.advance import Advance, advance, select
from context_compiler.compiler.cycle import valid_cycle
from context_compiler.compiler.steering import Order, compile_action, steering_of
from context_compiler.messages.fences import clip
from context_compiler.middleware.archive import Archive
from context_compiler.middleware.background import pending
from context_compiler.middleware.off_loop import off_loop
from context_compiler.middleware.request import Host, Request, is_long
from context_compiler.middleware.respond import assemble_view, summary_callback
from context_compiler.middleware.state import CompilerState, RequestContext, Run, read_request
from context_compiler.record.database import Moment
from context_compiler.resilience import Report, TimeLimit, attempt, try_await

MIN_GAIN, SHARE = 300, 10
"""Minimum that a compile must save: in tokens, and as a divisor of the request's tokens."""

FOCUS = 500
"""Maximum length of a focus in characters; the rest is cut off."""

GO_ON = "Go on with the task."


async def compile_context(
    compiler: CompilerState, run: Run, request: Request, host: Host, focus: str, report: Report
) -> str:
    """Compile the conversation of a run for its next request, and return the tool's answer.

    Args:
        compiler: State shared by all runs.
        run: The run that calls the tool.
        request: Last request of the run.
        host: Sender of that request.
        focus: Subject that the summary and the quotes should keep.
        report: Called with any error.
    """
    order, limit = Order(focus=clip(focus.strip(), FOCUS), inside=True), TimeLimit(compiler.arguments.timeout)
    long = attempt(lambda: is_long(request.messages, run.raw)).value is not False

    async def work(there: Host) -> str:
        return await _compile(read_request(compiler, run, request, there), there, order)

    outcome = await try_await(off_loop(work, host, limit) if long else work(host))
    error = outcome.error or limit.error
    if error is not None:
        await report(error)
    if outcome.value is None:
        run.ordered_turn = run.turn
        return f"Nothing was compiled: it failed. Nothing has changed. {GO_ON}"
    return outcome.value


async def hand_on(run: Run, made: Advance, archive: Archive, session: str) -> None:
    """Save a compile that no request of its run has used, like one by hand: the next run starts from it.

    If the conversation is another one by now, or a user has compiled or undone meanwhile, only its cost is saved.
    """
    actions = await archive.actions(session)
    steered = steering_of(actions)[0].generation != run.steering.generation
    saved = None
    if not steered and run.raw is not None and valid_cycle(made.cycle, run.raw, run.config) is not None:
        action, after = compile_action(made.cycle), actions[-1].number if actions else 0

        async def save() -> bool:
            await archive.save_action(session, action, run.prepared_at, after=after, row=made.row)
            return True

        saved = await archive.access.attempt(save, writes=True)
    if saved is None:
        await archive.keep_unsent(made.row, run.prepared_at)


def _refusal(context: RequestContext) -> str:
    """Reason not to compile now; empty if a compile is allowed."""
    if context.turn in (context.run.ordered_turn, context.run.asked_turn):
        return "this turn was already compiled, or a compile was already requested"
    if context.is_paused:
        return "the user has undone the last compile"
    return "a compile is under way" if pending(context) is not None else ""


async def _compile(context: RequestContext, host: Host, order: Order) -> str:
    run, reason, began = context.run, _refusal(context), Moment()
    run.ordered_turn = context.turn
    if reason:
        return f"Nothing was compiled: {reason}. {GO_ON}"
    limits = context.limits()
    cycle = valid_cycle(run.cycle, context.history, context.policy.config)
    ratio = limits.ratio
    before = assemble_view(context, cycle, "cycle" if cycle else "raw").cost
    chosen = select(context, limits, previous=cycle, order=order)
    saved = before - context.fixed - chosen.draft.total
    if not chosen.out or saved < max(MIN_GAIN, before // SHARE):
        most = f"{round(max(0, saved) * ratio):,} of {round(before * ratio):,} tokens"
        return f"Nothing was compiled: it would save at most {most}. {GO_ON}"
    ask = summary_callback(context, host)
    done = await advance(context, limits, where=context.where, ask=ask, previous=cycle, order=order)
    after = assemble_view(context, done.cycle, "compiled", done).cost
    run.prepared, run.prepared_at = done, began
    return (
        f"From the next request on, the conversation takes {round(after * ratio):,} tokens instead of"
        f" {round(before * ratio):,}. Notes and quotes replace what was left out. {GO_ON}"
    )
