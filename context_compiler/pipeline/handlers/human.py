"""Human gates: stages at which a person chooses one of the outgoing edges."""

from __future__ import annotations

from itertools import count

from context_compiler.pipeline.graph import Edge
from context_compiler.pipeline.interviewers import AnswerValue, Option, Question, Reply, ask_in_time, inform
from context_compiler.pipeline.routing import accelerator
from context_compiler.pipeline.stage import Stage, Unanswered
from context_compiler.pipeline.state import Outcome, StageStatus, failure
from context_compiler.resilience import try_await


class HumanHandler:
    """Asks the run's interviewer to choose an edge."""

    reads_past = False
    keeps_time = True
    may_be_partial = False

    async def execute(self, stage: Stage) -> Outcome:
        """Return an outcome that asks for the chosen edge, by its label and target.

        Raises:
            Unanswered: nobody can be asked.
        """
        edges = stage.graph.outgoing(stage.node.name)
        if not edges:
            return failure("a human gate without edges: there is nothing to choose")
        limit = stage.node.seconds("human.timeout") or stage.node.timeout
        default = stage.node.text("human.default_choice")
        question = Question(
            text=stage.prompt if stage.node.raw("label") or stage.node.prompt else "Select an option:",
            options=options_of(edges),
            default=default or None,
            timeout_seconds=limit,
            stage=stage.node.name,
            metadata={"run_id": stage.run_id, "visit": stage.visit, "branch": stage.branch_id, "key": stage.key},
        )
        await stage.emit("interview_started", question=question.text)
        reply = await ask_in_time(stage.config.interviewer, question)
        if _is(reply, AnswerValue.TIMEOUT):
            await stage.emit("interview_timeout", question=question.text, seconds=limit)
            chosen = question.default_option
            if chosen is None:
                return Outcome(status=StageStatus.RETRY, failure_reason="human gate timeout, no default")
            within = (
                "in time" if limit is None else f"within {limit:g} s"
            )  # some interviewers have a limit of their own
            await _inform(stage, f"nobody answered {within}, so {chosen.label!r} was chosen")
            return _choose(chosen)
        await stage.emit("interview_completed", question=question.text, answer=reply.value)
        if _is(reply, AnswerValue.UNAVAILABLE):
            raise Unanswered(f"{stage.node.name}: nobody is there to answer")
        if _is(reply, AnswerValue.SKIPPED):
            return failure("nobody answered")
        chosen = question.chosen_option(reply)
        if chosen is not None:
            return _choose(chosen, "" if reply.option is not None else reply.text)
        reason = question.unclear(reply)
        await _inform(stage, reason)
        return failure(reason, updates={"human_response": reply.text} if reply.text else None)


def _is(reply: Reply, value: AnswerValue) -> bool:
    """True if a reply is this special value, and not a text or a key of the same letters."""
    return reply.value == value and reply.option is None and (isinstance(reply.value, AnswerValue) or not reply.text)


async def _inform(stage: Stage, message: str) -> None:
    """Inform the person about a choice that they did not make; a failure to do so is ignored."""
    await try_await(inform(stage.config.interviewer, message, stage.node.name))


def options_of(edges: tuple[Edge, ...]) -> tuple[Option, ...]:
    """Return the choices that edges offer, in order, with distinct keys."""
    options: list[Option] = []
    taken: set[str] = set()
    for edge in edges:
        key, label = accelerator(edge.label or edge.target)
        key = key or label[:1].upper()
        if key.lower() in taken:
            key = next(name for name in map(str, count(len(options) + 1)) if name not in taken)
        taken.add(key.lower())
        options.append(Option(key=key, label=label, target=edge.target))
    return tuple(options)


def _choose(option: Option, said: str = "") -> Outcome:
    """Build the outcome for a chosen option; `said` is what the person said instead of naming it."""
    updates = {"human.gate.selected": option.key, "human.gate.label": option.label}
    if said:
        updates["human_response"] = said
    return Outcome(
        preferred_label=option.label,
        suggested_next_ids=(option.target,),
        context_updates=updates,
        notes=f"chosen: {option.label}",
    )
