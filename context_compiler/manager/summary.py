"""Summaries of older turns, with a verbatim list of the specifics they lost; without a model, only quotes.

The prompt, the model call and the check for lost specifics are those of the compiler.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from pydantic_ai.agent import AbstractAgent
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model

from context_compiler.compiler.specifics import Specific, TextSet, lost_specifics, survival
from context_compiler.compiler.summary import (
    SummaryResponse,
    chunks,
    compose_prompts,
    fill_slot,
    model_alias,
    turn_lines,
)
from context_compiler.errors import CompileError, SettingsError
from context_compiler.fidelity import CAPS, Fidelity
from context_compiler.messages.history import Reader
from context_compiler.messages.turns import outline, pair
from context_compiler.middleware.arguments import check_model_name, room_of, window_of
from context_compiler.middleware.summary_calls import ask
from context_compiler.recall.passages import passages, write_quotation
from context_compiler.recall.selection import Candidates
from context_compiler.record.values import Compile, now, with_null_reasons
from context_compiler.resilience import call, try_await
from context_compiler.template import Template

TEMPLATE = "manager_summary"
INDEX_SHARE = 4
"""Divisor of the summary's limit: the list of lost specifics gets at most a quarter of it."""

MAX_QUOTED = 1_000
"""Maximum messages that are searched for quotes; the newest are used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Replacement for older turns."""

    text: str
    """Text by the model; empty if there is no model."""
    index: str
    """Verbatim list of the specifics that the text lost; without a model, the most informative quotes."""
    survival: float
    """Fraction of the specifics that the text contains."""
    prompts: tuple[str, ...] = ()
    answer: SummaryResponse | None = None
    """Answer of the model, if there was one."""
    failure: CompileError | None = None
    """Reason why there is no summary."""


def summary_row(
    session: str, summary: Summary, covered: int, *, template: Template, model: str, reader: Reader
) -> Compile:
    """Build the record of a summary of the first `covered` turns; its `covered_tip` is filled in when it is saved."""
    answer = summary.answer
    asked = "ok" if summary.prompts else "deterministic"
    status = asked if summary.failure is None else "refused" if answer else "failed"
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
        compiled_prompt="\n\n".join(summary.prompts).replace("\x00", "") or None,
        raw_output=answer.text if answer else None,
        summary=summary.text or summary.index or None,
        summary_json=None,
        input_payload={"manager": True, "index": summary.index},
        sections_included=("recent_turns", "previous_summary") if summary.prompts else ("quotes",),
        sections_dropped=(),
        budget_used=reader.counter.text(summary.text) + reader.counter.text(summary.index),
        survival=summary.survival if status == "ok" else None,
        latency_ms=answer.latency_ms if answer else 0.0,
        usage=answer.usage if answer else {},
        status=status,
        error=str(summary.failure or "the settings ask for no model") if status != "ok" else None,
        created_at=now(),
    )
    unanswered = "no answer came" if summary.prompts else "no model was asked"
    unused = "the answer is not used" if answer else unanswered
    why = {"compiled_prompt": unanswered, "raw_output": unanswered, "survival": unused, "summary": unused}
    return with_null_reasons(row, {**why, "summary_json": "sentences", "cache_key": "of a session"})


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
    """Summarize turns, updating a previous summary.

    Args:
        messages: All messages that the summary will replace; quotes are taken from the newest.
        fresh: Messages that the previous summary does not cover.
        previous: The previous summary.
        llm: The model; None means quotes instead of a summary.
        template: Template of the prompt.
        most: Maximum tokens of the summary.
        reader: Parses messages and counts tokens.

    Returns:
        The summary. If there is no answer, or it saves no tokens, the summary is empty and has a `failure`.
    """
    cap = min(CAPS[template.fidelity or Fidelity.SUMMARY_LOW], most)
    if llm is None:
        newest = reader.read(messages[-MAX_QUOTED:])
        candidates = passages(newest, outline(newest, pair(newest)), range(len(newest)), reader.counter)
        return Summary(text="", index=write_quotation(Candidates(candidates).choose(cap)), survival=1.0)
    history = reader.read(fresh)
    turns = chunks(turn_lines(history, range(len(history)), None), llm.prompt_room // 2, reader.counter)
    prompts = compose_prompts(template, {}, turns, previous=previous.text, cap=cap)
    try:
        answer = await llm(prompts, cap=cap, counter=reader.counter)
    except CompileError as error:
        return _failed_summary(prompts, None, error)
    if answer.fault is not None:
        return _failed_summary(prompts, answer, CompileError(answer.fault, model=llm.name, phase="answer"))
    text = reader.counter.head(answer.text, cap)
    spent = history.tokens + reader.counter.text(previous.text)
    if not text.strip():
        return _failed_summary(prompts, answer, CompileError("the answer is empty", model=llm.name, phase="answer"))
    if reader.counter.text(text) >= spent:
        longer = f"the answer is not shorter than the {spent} tokens it replaces"
        return _failed_summary(prompts, answer, CompileError(longer, model=llm.name, phase="answer"))
    specifics = lost_specifics(history, outline(history, pair(history)), range(len(history)))
    index = _missing_specifics(specifics, text, previous.index, cap // INDEX_SHARE, reader)
    share = survival(specifics, text).share
    return Summary(text=text, index=index, survival=share, prompts=prompts, answer=answer)


def _failed_summary(prompts: tuple[str, ...], answer: SummaryResponse | None, failure: CompileError) -> Summary:
    return Summary(text="", index="", survival=0.0, prompts=prompts, answer=answer, failure=failure)


def _missing_specifics(specifics: Sequence[Specific], text: str, before: str, room: int, reader: Reader) -> str:
    """List specifics that are missing from a text, after those of the list `before`; the newest that fit are kept."""
    summary = TextSet(text)
    lost = [f"- {' '.join(specific.verbatim.split())}" for specific in specifics if not summary.holds(specific)]
    kept: list[str] = []
    for line in reversed(list(dict.fromkeys([*before.splitlines(), *lost]))):
        room -= reader.counter.text(line) + 1
        if room < 0:
            break
        kept.append(line)
    return "\n".join(reversed(kept))


Charge = Callable[[SummaryResponse], object]
"""Callback that gets every answer, for accounting."""


class LLM:
    """Uniform, stateless interface to the caller's LLM: prompts in, an answer out."""

    def __init__(self, llm: object, timeout: float) -> None:
        """Accept a model, its name, an agent, a function, or `"none"`.

        Raises:
            SettingsError: `llm` is none of these.
        """
        self.name = llm_name(llm)
        self.prompt_room = room_of(_window(llm))
        """Maximum tokens of a prompt."""
        self.charge: Charge | None = None
        self._ask = ask_function(llm, timeout)

    @property
    def silent(self) -> bool:
        """True if the caller chose to use no model."""
        return self._ask is None

    async def __call__(self, prompts: Sequence[str], **given: Any) -> SummaryResponse:
        """Send the prompts one after another; return the last answer. `given` are arguments of `writer.ask`.

        Raises:
            CompileError: There is no model, or the call failed.
        """
        if self._ask is None:
            raise CompileError("there is no model by choice", model=self.name, phase="call")
        answer = await self._ask(prompts, **given)
        if self.charge is not None:
            self.charge(answer)
        return answer


def _window(llm: object) -> int | None:
    """Context window of the model of an LLM; None if it is unknown."""
    model = cast(Any, llm).model if isinstance(llm, AbstractAgent) else llm
    return window_of(cast("Model | str", model)) if isinstance(model, str | Model) else None


def ask_function(llm: object, timeout: float) -> Callable[..., Awaitable[SummaryResponse]] | None:
    """Return a function that calls the caller's LLM; None for `"none"`, which means no model.

    Raises:
        SettingsError: `llm` is of no supported kind.
    """
    if llm == "none":
        return None
    if isinstance(llm, AbstractAgent):
        model = cast(Any, llm).model
        if model is None:
            raise SettingsError(f"the agent {cast(Any, llm).name!r} has no model: give it one, or name a model as llm")
        return partial(ask, model=model, timeout=timeout)
    if isinstance(llm, str | Model) and llm:
        if isinstance(llm, str):
            check_model_name(llm, "llm")
        return partial(ask, model=cast("Model | str", llm), timeout=timeout)
    if callable(llm):
        return partial(_call_function, llm, timeout)
    raise SettingsError(
        f'llm={llm!r}: give a model, its name, an agent, or a function from a prompt to a text; "none" means no model'
    )


async def _call_function(
    function: Callable[[str], Any], timeout: float, prompts: Sequence[str], **_: object
) -> SummaryResponse:
    name = getattr(function, "__name__", type(function).__name__)
    text = ""
    for number, prompt in enumerate(prompts):
        work = call(function, fill_slot(prompt, text) if number else prompt)
        outcome = await try_await(asyncio.wait_for(work, timeout))
        if outcome.error is not None or not isinstance(outcome.value, str):
            reason = outcome.error or f"it answered {outcome.value!r:.80}, which is not a text"
            raise CompileError(str(reason), model=name, phase="call") from outcome.error
        text = outcome.value.strip()
    return SummaryResponse(text=text)


def llm_name(llm: object) -> str:
    """Return the name of an LLM for error messages."""
    if isinstance(llm, str | Model):
        return model_alias(cast("Model | str", llm))
    return str(getattr(llm, "name", None) or getattr(llm, "__name__", None) or type(llm).__name__)
