"""Who answers an order: an earlier compile, one that is under way, or the model; a model that keeps failing rests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pydantic_ai.models import Model

from context_compiler.compiler.agent import Answer, ask, named
from context_compiler.errors import CompileError
from context_compiler.middleware.archive import Archive
from context_compiler.middleware.arguments import Wanted
from context_compiler.middleware.single_flight import UNDER_WAY
from context_compiler.resilience import Breaker, attempted


class Compiling:
    """The compiles of one compiler."""

    def __init__(self, wanted: Wanted, archive: Archive) -> None:
        """Look in `archive` before asking anybody."""
        self._wanted, self._archive = wanted, archive
        self._breaker = Breaker()

    async def answer(self, key: str, prompts: Sequence[str], model: Model) -> Answer:
        """One compile: remembered, shared with whoever wants the same, or made; its failure is an answer too."""
        known = await self._archive.answered(key)
        if known is not None:
            return known
        compiler: Model | str = self._wanted.model if self._wanted.model is not None else model
        place = self._archive.shared(key)
        outcome = await attempted(UNDER_WAY.join(place, lambda: self._made(key, prompts, compiler)))
        if outcome.value is None:
            return _failed(outcome.error, named(compiler))
        answer, pays = outcome.value
        return answer if pays else replace(answer, usage={}, cost=None)

    async def _made(self, key: str, prompts: Sequence[str], compiler: Model | str) -> Answer:
        if self._breaker.open:
            why = "it failed too often and is left alone for a while"
            return _failed(CompileError(why, model=named(compiler), phase="call"), named(compiler))
        outcome = await attempted(ask(prompts, compiler, timeout=self._wanted.timeout))
        if outcome.value is None:
            self._breaker.failed()
            return _failed(outcome.error, named(compiler))
        self._breaker.succeeded()
        if outcome.value.text:
            self._archive.remember(key, outcome.value)
        return outcome.value


def _failed(error: Exception | None, model: str) -> Answer:
    """A failure as an answer: what a `CompileError` for it would say, and what was spent until then."""
    if not isinstance(error, CompileError):
        said = f"{type(error).__name__}: {error}"
        return Answer(text="", failure={"message": said, "model": model, "phase": "call"})
    said = str(error).removeprefix(f"{error.phase} ({error.model}): ")
    failure = {"message": said, "model": error.model, "phase": error.phase}
    return Answer(text="", failure=failure, usage=error.usage, cost=error.cost)
