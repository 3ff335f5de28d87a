"""`pydantic_evals`: datasets from recorded conversations and from failures, and evaluators of contexts."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic_ai.messages import ModelMessage
from pydantic_evals import Case, Dataset
from pydantic_evals.evaluators import EvaluationReason, Evaluator, EvaluatorContext

from context_compiler.errors import SettingsError
from context_compiler.messages.bodies import load_messages, message_body
from context_compiler.resilience import attempt
from context_compiler.testing.conversation import ContextFailure, Conversation
from context_compiler.testing.recording import Recording
from context_compiler.testing.replayer import replay_async
from context_compiler.testing.written import Claim, find_claims

Inputs = list[dict[str, Any]]
"""Messages as plain data, so that a dataset can be saved."""


@dataclass
class _ContextEvaluator(Evaluator[Any, Conversation, Any]):
    last: bool = field(default=False, kw_only=True)
    """Check only the last request."""

    def evaluate(self, ctx: EvaluatorContext[Any, Conversation, Any]) -> EvaluationReason:
        """Check the conversation that the task returned."""
        try:
            self._check(ctx.output.last if self.last else ctx.output)
        except AssertionError as error:
            return EvaluationReason(value=False, reason=str(error))
        return EvaluationReason(value=True)

    @abstractmethod
    def _check(self, conversation: Conversation) -> None: ...


@dataclass
class InContext(_ContextEvaluator):
    """Every request contains a text, from the request on in which it is first said."""

    text: str

    def _check(self, conversation: Conversation) -> None:
        conversation.assert_in_context(self.text)


@dataclass
class NewestInContext(_ContextEvaluator):
    """No request contains a replaced value alone."""

    subject: str
    value: str

    def _check(self, conversation: Conversation) -> None:
        conversation.assert_newest(self.subject, self.value)


@dataclass
class WithinBudget(_ContextEvaluator):
    """Every request is within a budget, and its tool calls have their results."""

    budget: int
    pairs: bool = True

    def _check(self, conversation: Conversation) -> None:
        conversation.assert_within(budget=self.budget, pairs=self.pairs)


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
        Case[Inputs, Any, Any](
            name=f"{name} {number}", inputs=_plain(conversation.raw), evaluators=tuple(_claims(conversation))
        )
        for number, conversation in enumerate(conversations, 1)
    ]
    return Dataset[Inputs, Any, Any](name=name, cases=cases)


def case_of(failure: ContextFailure) -> Case[Inputs, Any, Any]:
    """A case with the conversation up to a failure, and an evaluator that fails in the same way.

    Raises:
        ValueError: There is no evaluator of that check.
    """
    check, arguments = failure.check, failure.arguments
    if check == "in_context":
        evaluator = InContext(*arguments, last=True)
    elif check == "newest":
        evaluator = NewestInContext(value=arguments[0], subject=arguments[1], last=True)
    elif check == "budget":
        evaluator = WithinBudget(*arguments, pairs=False, last=True)
    else:
        raise ValueError(f"there is no evaluator for {check}: only for in_context, newest and budget")
    said = failure.conversation.raw[: failure.request.said]
    return Case(name=str(failure.request), inputs=_plain(said), evaluators=(evaluator,))


def save_case(path: Path, name: str, recording: Recording, claims: Iterable[Claim], budget: int) -> None:
    """Add a case with some claims about its last request to a dataset in a YAML file, which may exist.

    Raises:
        SettingsError: The file is no dataset, or has a case of that name.
    """
    dataset = Dataset[Inputs, Any, Any](name=path.stem, cases=[])
    if path.exists():
        loaded = attempt(lambda: type(dataset).from_file(path, custom_evaluator_types=EVALUATORS))
        if loaded.value is None:
            raise SettingsError(f"--out {path}: this is no dataset of contexts: {loaded.error}")
        dataset = loaded.value
    if name in [case.name for case in dataset.cases]:
        raise SettingsError(f"--out {path}: the dataset has a case {name!r} already")
    evaluators = (*(_evaluator(claim, last=True) for claim in claims), WithinBudget(budget, last=True))
    dataset.cases.append(Case(name=name, inputs=_plain(recording.messages), evaluators=evaluators))
    path.parent.mkdir(parents=True, exist_ok=True)
    dataset.to_file(path, custom_evaluator_types=EVALUATORS)


def _evaluator(claim: Claim, *, last: bool = False) -> InContext | NewestInContext:
    return (InContext if claim.check == "in_context" else NewestInContext)(*claim.arguments, last=last)


def _claims(conversation: Conversation) -> Iterator[InContext | NewestInContext | WithinBudget]:
    yield from (_evaluator(claim) for claim in find_claims(conversation) if claim.holds)
    yield WithinBudget(max(request.tokens for request in conversation.every))


def _plain(messages: Sequence[ModelMessage]) -> Inputs:
    return [json.loads(message_body(message)) for message in messages]
