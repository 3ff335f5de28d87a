"""`pydantic_evals`: datasets from recorded conversations and from failures, and evaluators of contexts."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_ai.messages import ModelMessage
from pydantic_evals import Case, Dataset
from pydantic_evals.evaluators import EvaluationReason, Evaluator, EvaluatorContext

from context_compiler.messages.history import load_messages, message_body
from context_compiler.testing.conversation import ContextFailure, Conversation
from context_compiler.testing.replayer import replay_async
from context_compiler.testing.written import find_claims

Inputs = list[dict[str, Any]]
"""Messages as plain data, so that a dataset can be saved."""


def _reason(check: Callable[[], None]) -> EvaluationReason:
    """Result of an assertion, with its explanation if it fails."""
    try:
        check()
    except AssertionError as error:
        return EvaluationReason(value=False, reason=str(error))
    return EvaluationReason(value=True)


@dataclass
class InContext(Evaluator[Any, Conversation, Any]):
    """Every request contains a text, from the request on in which it is first said."""

    text: str

    def evaluate(self, ctx: EvaluatorContext[Any, Conversation, Any]) -> EvaluationReason:
        """Check the conversation that the task returned."""
        return _reason(lambda: ctx.output.assert_in_context(self.text))


@dataclass
class NewestInContext(Evaluator[Any, Conversation, Any]):
    """No request contains a replaced value alone."""

    subject: str
    value: str

    def evaluate(self, ctx: EvaluatorContext[Any, Conversation, Any]) -> EvaluationReason:
        """Check the conversation that the task returned."""
        return _reason(lambda: ctx.output.assert_newest(self.subject, self.value))


@dataclass
class WithinBudget(Evaluator[Any, Conversation, Any]):
    """Every request is within a budget, and its tool calls have their results."""

    budget: int
    pairs: bool = True

    def evaluate(self, ctx: EvaluatorContext[Any, Conversation, Any]) -> EvaluationReason:
        """Check the conversation that the task returned."""
        return _reason(lambda: ctx.output.assert_within(budget=self.budget, pairs=self.pairs))


EVALUATORS = (InContext, NewestInContext, WithinBudget)
"""For `custom_evaluator_types` when a dataset is loaded."""


def replaying(agent: Any = None, **arguments: Any) -> Callable[[Inputs], Awaitable[Conversation]]:
    """A task that replays each case with an agent; the arguments are those of `replay`."""

    async def replayed(inputs: Inputs) -> Conversation:
        messages = load_messages([json.dumps(body).encode() for body in inputs])
        return await replay_async(messages, agent, **arguments)

    return replayed


def dataset_of(name: str, *conversations: Conversation) -> Dataset[Inputs, Any, Any]:
    """A dataset with a case for each conversation, and evaluators for what holds in it."""
    cases = [
        Case[Inputs, Any, Any](name=f"{name} {number}", inputs=_plain(one.raw), evaluators=tuple(_claims(one)))
        for number, one in enumerate(conversations, 1)
    ]
    return Dataset[Inputs, Any, Any](name=name, cases=cases)


def case_of(failure: ContextFailure) -> Case[Inputs, Any, Any]:
    """A case with the conversation up to a failure, and an evaluator that fails in the same way.

    Raises:
        ValueError: There is no evaluator of that check.
    """
    check, given = failure.check, failure.given
    if check == "in_context":
        evaluator = InContext(*given)
    elif check == "newest":
        evaluator = NewestInContext(value=given[0], subject=given[1])
    elif check == "budget":
        evaluator = WithinBudget(*given, pairs=False)
    else:
        raise ValueError(f"there is no evaluator for {check}: only for in_context, newest and budget")
    # the answer to the request is needed: a replay sends the requests that were answered
    said = failure.conversation.raw[: failure.request.said + 1]
    return Case(name=str(failure.request), inputs=_plain(said), evaluators=(evaluator,))


def _claims(conversation: Conversation) -> Iterator[InContext | NewestInContext | WithinBudget]:
    for claim in find_claims(conversation):
        if claim.holds:
            yield (InContext if claim.check == "in_context" else NewestInContext)(*claim.arguments)
    yield WithinBudget(max(request.tokens for request in conversation.every))


def _plain(messages: Sequence[ModelMessage]) -> Inputs:
    return [json.loads(message_body(message)) for message in messages]
