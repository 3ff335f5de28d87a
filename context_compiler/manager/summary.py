"""Summaries of older turns, with the specifics they lost listed verbatim; without a model, quotes alone.

The prompt, the call and the check for lost specifics are the compiler's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from typing import Any, cast

from pydantic_ai.agent import AbstractAgent
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model

from context_compiler.compiler.agent import SummaryResponse, ask, named
from context_compiler.compiler.prompt import chunks, filled, lines, written
from context_compiler.compiler.rows import now
from context_compiler.compiler.specifics import Specific, Told, evicted, survival
from context_compiler.errors import CompileError, SettingsError
from context_compiler.fidelity import CAPS, Fidelity
from context_compiler.messages.history import History, Reader
from context_compiler.messages.turns import outline, pair
from context_compiler.recall.selection import choose, passages, quoted
from context_compiler.record.values import Compile, with_null_reasons
from context_compiler.resilience import try_await
from context_compiler.template import Template

TEMPLATE = "manager_summary"
PROMPT_ROOM = 32_000
"""Tokens of turns that one prompt carries; a longer span takes several."""
INDEX_SHARE = 4
"""What a summary lost may be listed in one part in so many of the summary's room."""

MAX_QUOTED = 1_000
"""Messages that are looked through for quotes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What stands for turns."""

    text: str
    """By a model; empty without one."""
    index: str
    """Word for word: what the text lost, or without a model what tells most."""
    survival: float
    """The share of the specifics that the text holds."""
    prompts: tuple[str, ...] = ()
    answer: SummaryResponse | None = None
    """What the model was asked, and what came back, where it was."""
    failure: CompileError | None = None
    """Why there is no summary after all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRow:
    """How a summary was made, for the record, but for the name of the last message that it covers."""

    compile: Compile
    covered: int
    """Turns that it stands for."""


def summary_row(
    session: str, made: Summary, covered: int, *, template: Template, model: str, reader: Reader
) -> SummaryRow:
    """How a summary was made."""
    answer = made.answer
    asked = "ok" if made.prompts else "deterministic"
    status = asked if made.failure is None else "refused" if answer else "failed"
    row = Compile(
        session_id=session,
        vault_name="",
        turn_index=covered,
        run_id=None,
        covered_tip="",
        cache_key=None,
        template_name=template.name,
        template_source=template.source,
        template_path=template.path,
        template_hash=template.sha256,
        fidelity=template.fidelity or Fidelity.SUMMARY_LOW,
        model_alias=model,
        compiled_prompt="\n\n".join(made.prompts).replace("\x00", "") or None,
        raw_output=answer.text if answer else None,
        summary=made.text or made.index or None,
        summary_json=None,
        input_payload={"manager": True, "index": made.index},
        sections_included=("recent_turns", "previous_summary") if made.prompts else ("quotes",),
        sections_dropped=(),
        budget_used=reader.counter.text(made.text) + reader.counter.text(made.index),
        survival=made.survival if status == "ok" else None,
        latency_ms=answer.latency_ms if answer else 0.0,
        usage=answer.usage if answer else {},
        status=status,
        error=str(made.failure or "no model by choice") if status != "ok" else None,
        created_at=now(),
    )
    silent = "no answer came" if made.prompts else "no model was asked"
    unused = "the answer is not used" if answer else silent
    why = {"compiled_prompt": silent, "raw_output": silent, "survival": unused, "summary": unused}
    return SummaryRow(
        compile=with_null_reasons(row, {**why, "summary_json": "sentences", "cache_key": "of a session"}),
        covered=covered,
    )


async def summarize_turns(
    messages: Sequence[ModelMessage],
    fresh: Sequence[ModelMessage],
    *,
    previous: Summary,
    llm: LLM | None,
    template: Template,
    most: int,
    reader: Reader,
) -> Summary:
    """Sum up turns, bringing a previous summary up to date.

    Args:
        messages: Everything that the summary is to stand for; of very much, the newest is quoted from.
        fresh: What of it the previous summary does not cover.
        previous: What stood for the rest.
        llm: The model; None quotes instead.
        template: What is asked.
        most: Tokens that the summary may have.
        reader: Reads and counts.

    Returns:
        The summary; where there is no answer, or one that saves nothing, none, with the `failure`.
    """
    cap = min(CAPS[template.fidelity or Fidelity.SUMMARY_LOW], most)
    if llm is None:
        return Summary(text="", index=_quotes(reader.read(messages[-MAX_QUOTED:]), cap, reader), survival=1.0)
    told = reader.read(fresh)
    turns = chunks(lines(told, range(len(told)), None), PROMPT_ROOM, reader.counter)
    prompts = written(template, {}, turns, previous=previous.text, cap=cap)
    try:
        answer = await llm(prompts)
    except CompileError as error:
        return _failed_summary(prompts, None, error)
    text = reader.counter.head(answer.text, cap)
    spent = told.tokens + reader.counter.text(previous.text)
    if not text.strip():
        return _failed_summary(prompts, answer, CompileError("the answer is empty", model=llm.name, phase="answer"))
    if reader.counter.text(text) >= spent:
        longer = f"the answer is not shorter than the {spent} tokens it stands for"
        return _failed_summary(prompts, answer, CompileError(longer, model=llm.name, phase="answer"))
    gone = evicted(told, outline(told, pair(told)), range(len(told)))
    index = _lost_specifics(gone, text, previous.index, cap // INDEX_SHARE, reader)
    held = survival(gone, text).share
    return Summary(text=text, index=index, survival=held, prompts=prompts, answer=answer)


def _failed_summary(prompts: tuple[str, ...], answer: SummaryResponse | None, failure: CompileError) -> Summary:
    return Summary(text="", index="", survival=0.0, prompts=prompts, answer=answer, failure=failure)


def _quotes(history: History, room: int, reader: Reader) -> str:
    candidates = passages(history, outline(history, pair(history)), range(len(history)), reader.counter)
    return quoted(choose(candidates, room))


def _lost_specifics(gone: Sequence[Specific], text: str, before: str, room: int, reader: Reader) -> str:
    """The specifics that a text does not hold, the newest that fit, and of those listed before what still fits."""
    told = Told(text)
    lost = [f"- {' '.join(one.verbatim.split())}" for one in gone if not told.holds(one)]
    kept: list[str] = []
    for line in reversed(list(dict.fromkeys([*before.splitlines(), *lost]))):
        room -= reader.counter.text(line) + 1
        if room < 0:
            break
        kept.append(line)
    return "\n".join(reversed(kept))


AskFunction = Callable[..., Awaitable[SummaryResponse]]
"""Prompts in, an answer out; `instructions` names the prose that the model is told first."""
Charge = Callable[[SummaryResponse], object]
"""Told of every answer, by whoever pays for it."""


class LLM:
    """Asks one LLM, and tells whoever pays."""

    def __init__(self, llm: object, timeout: float) -> None:
        """Take what can be asked.

        Raises:
            SettingsError: it is none of that.
        """
        self.name = llm_name(llm)
        self.charge: Charge | None = None
        self._ask = ask_function(llm, timeout)

    @property
    def silent(self) -> bool:
        """There is no model, by choice."""
        return self._ask is None

    async def __call__(self, prompts: Sequence[str], *, instructions: str = "instructions") -> SummaryResponse:
        """Ask prompt after prompt; the last answer counts.

        Raises:
            CompileError: there is no model, or it could not be reached.
        """
        if self._ask is None:
            raise CompileError("there is no model by choice", model=self.name, phase="call")
        answer = await self._ask(prompts, instructions=instructions)
        if self.charge is not None:
            self.charge(answer)
        return answer


def ask_function(llm: object, timeout: float) -> AskFunction | None:
    """How to ask whatever a caller gave as their LLM; None for `"none"`, which is no model by choice.

    Raises:
        SettingsError: it is none of what can be asked.
    """
    if llm == "none":
        return None
    if isinstance(llm, AbstractAgent):
        model = cast(Any, llm).model
        if model is None:
            raise SettingsError(f"the agent {cast(Any, llm).name!r} has no model: give it one, or name a model as llm")
        return partial(ask, model=model, timeout=timeout)
    if isinstance(llm, str | Model) and llm:
        return partial(ask, model=cast("Model | str", llm), timeout=timeout)
    if callable(llm):
        return partial(_call_function, llm, timeout)
    raise SettingsError(
        f'llm={llm!r}: give a model, its name, an agent, or a function from a prompt to a text; "none" is no model'
    )


async def _call_function(
    function: Callable[[str], Any], timeout: float, prompts: Sequence[str], **_: str
) -> SummaryResponse:
    """Ask a function of the caller's, prompt after prompt."""
    name = getattr(function, "__name__", type(function).__name__)
    text = ""
    for number, prompt in enumerate(prompts):
        work = _call(function, filled(prompt, text) if number else prompt)
        outcome = await try_await(asyncio.wait_for(work, timeout))
        if outcome.error is not None or not isinstance(outcome.value, str):
            reason = outcome.error or f"it answered {outcome.value!r:.80}, which is no text"
            raise CompileError(str(reason), model=name, phase="call") from outcome.error
        text = outcome.value.strip()
    return SummaryResponse(text=text)


async def _call(function: Callable[[str], Any], prompt: str) -> object:
    said = function(prompt)
    return await said if isawaitable(said) else said


def llm_name(llm: object) -> str:
    """What an LLM is called in errors."""
    if isinstance(llm, str | Model):
        return named(cast("Model | str", llm))
    return str(getattr(llm, "name", None) or getattr(llm, "__name__", None) or type(llm).__name__)
