"""Summaries by a model: the prompts of one compile, and the stateless calls that answer them.

A prompt contains the task, the template, the turns and the latest input, all fenced. A long span is split into several
prompts, each of which updates the summary of the one before. The model gets no tools, history or capabilities. The
caller adds the tokens of its agent to the run's usage, but not its requests, because those would count against the
run's request limit.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, TypeVar

from pydantic_ai import Agent
from pydantic_ai.exceptions import AgentRunError, UserError
from pydantic_ai.models import KnownModelName, Model
from pydantic_ai.usage import RunUsage

from context_compiler.compiler.cut_order import Selection
from context_compiler.compiler.cycle import spans
from context_compiler.errors import CompileError
from context_compiler.messages.failures import reflection_section
from context_compiler.messages.fences import fence, neutralize
from context_compiler.messages.history import History
from context_compiler.messages.items import Item, Kind
from context_compiler.messages.shapes import truncate
from context_compiler.messages.tool_lines import call_line, outcome_line
from context_compiler.recall import changes_of
from context_compiler.recall.changes import corrections, with_changes
from context_compiler.record.values import Drop
from context_compiler.resilience import attempt, await_within, try_await
from context_compiler.template import SectionRule, Template, prompt_text
from context_compiler.tokens import TokenCounter
from context_compiler.tokens.prices import NANO, NANO_USD

SLOT = "\x00previous summary\x00"
"""Placeholder for the answer to the previous prompt. No conversation contains it, because fences remove control
characters."""

NOTHING = "No content provided."

TITLES = {
    "previous_summary": "PREVIOUS SUMMARY",
    "constraints": "CONSTRAINTS",
    "topic": "TOPIC",
    "plan": "PLAN",
    "recent_turns": "RECENT CONVERSATION",
    "tool_results": "TOOL RESULTS",
    "reflections": "REFLECTIONS",
    "latest_input": "LATEST USER INPUT",
    "focus": "WHAT TO KEEP",
}
"""Titles of the fenced sections of a prompt by placeholder name, in order."""

ALWAYS = ("previous_summary", "recent_turns", "latest_input", "focus")
"""Sections that a prompt contains even if the template does not mention them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRequest:
    """Prompts of one compile, answered one after another; the last answer is the summary."""

    key: str
    """Cache key of the compile."""
    prompts: tuple[str, ...]
    cap: int
    """Maximum size of the summary in tokens."""
    included: tuple[str, ...]
    """Names of the sections in the prompts."""
    missing: tuple[str, ...]
    """Names of sections that the template mentions but that are empty."""
    dropped: tuple[Drop, ...]


def compose_prompts(
    template: Template, values: Mapping[str, str], turns: Sequence[str], *, previous: str, cap: int
) -> tuple[str, ...]:
    """Write one prompt for each chunk of `turns`; all but the first have `SLOT` in place of the previous summary."""
    prompts: list[str] = []
    for number, chunk in enumerate(turns or [""]):
        filled = {**values, "recent_turns": chunk, "previous_summary": previous if number == 0 else SLOT}
        prompts.append(_compose_prompt(template, filled, cap))
    return tuple(prompts)


def _compose_prompt(template: Template, values: Mapping[str, str], cap: int) -> str:
    fenced = {name: _fenced(name, values.get(name, "")) for name in TITLES}
    wanted = template.wants()
    body = template.render({**fenced, "template": template_facts(template), "cap": cap, "turns_left_out": ""})
    task = prompt_text("task").replace("{{ cap }}", str(cap))
    task = f"{task} {prompt_text('focus')}" if fenced["focus"] else task
    blocks = [
        _block("COMPILER TASK", task),
        _block("EXTRACTION TEMPLATE", body),
        *(fenced[name] for name in ALWAYS if name not in wanted),
    ]
    text = "\n\n".join(block for block in blocks if block)
    return text if any(fenced[name] for name in TITLES) else f"{text}\n\n{NOTHING}"


def _fenced(name: str, text: str) -> str:
    if name == "previous_summary" and text == SLOT:
        return _block(TITLES[name], SLOT)
    return fence(TITLES[name], text) if text.strip() else ""


def _block(title: str, text: str) -> str:
    """Fence our own text, which unlike data need not be neutralized."""
    return f"=== BEGIN {title} ===\n{text.strip()}\n=== END {title} ===" if text.strip() else ""


def fill_slot(prompt: str, previous: str) -> str:
    """Insert the previous summary into the slot of a prompt."""
    return prompt.replace(SLOT, neutralize(previous))


def template_facts(template: Template) -> dict[str, str]:
    """Facts about a template that it may refer to."""
    return {
        "name": template.name,
        "source": template.source,
        "path": template.path or "",
        "hash": template.sha256,
        "description": template.description,
    }


EXPENDABLE = ("reflections", "tool_results", "plan", "topic")
"""Sections dropped from a prompt that is too long, in this order unless the template gives priorities. Latest input,
constraints and turns are never dropped."""

BUDGETS: Mapping[str, int] = {
    "constraints": 2_000,
    "topic": 200,
    "plan": 400,
    "tool_results": 4_000,
    "latest_input": 2_000,
    "focus": 500,
}
"""Maximum tokens for a section if the template has no budget for it."""

LASTING = ("constraints", "latest_input")
"""Sections that are shortened but never dropped."""

OVER, NO_ROOM = "over its section budget", "the prompt was over its room"
"""Reasons why a section was shortened or left out."""

GIANT = 16
"""Characters for each token of room from which a line is cut before it is counted. Counting the whole rest of a huge
tool result after every cut would take minutes."""

T = TypeVar("T")

_SPEAKING = re.compile(
    r"([\n\r\v\f\x1c-\x1e\x85\u2028\u2029])"
    r"(?=[^\S\n]{0,40}(?:(?:user|assistant|earlier notes):|assistant called |\[(?:tool|retry)\]))",
    re.IGNORECASE,
)
"""A line that looks like the beginning of another speaker's text. It is prefixed with `> `, so that a text cannot forge
one."""


def latest_input(history: History) -> str:
    """Text of the newest user prompt; empty if there is none."""
    for reading in reversed(history.readings):
        if reading.has_prompt:
            return "\n".join(item.text for item in reading.items if item.kind is Kind.USER and item.mark is None)
    return ""


def topic(history: History) -> str:
    """Text of the first user prompt of the conversation, with what was changed since; empty if there is none."""
    found = ((at, item.text) for at, item in history.items() if item.kind is Kind.USER and item.mark is None)
    return next((with_changes(changes_of(history), at, text) for at, text in found), "")


def plan(history: History, positions: Iterable[int]) -> str:
    """Text of the last answer that looks like a plan, with at least three list lines; empty if there is none."""
    for index in sorted(positions, reverse=True):
        for item in history.readings[index].items:
            if item.kind is Kind.TEXT and sum(map(_is_list_line, item.text.splitlines())) >= 3:
                return item.text
    return ""


def _is_list_line(line: str) -> bool:
    line = line.lstrip()
    return line[:2] in ("- ", "* ") or (line[:1].isdigit() and line[1:3].startswith((". ", ") ")))


def turn_lines(history: History, positions: Sequence[int], results: int | None) -> Iterator[str]:
    """Write messages as `User: …`, `Assistant: …` and `[tool] …` lines; replaced sentences with what replaces them.

    Thinking and system text are left out, notes of an earlier view are labelled as such, and media become placeholders.
    Only the last `results` tool results are whole (None for all); older ones are reduced to their outcome.
    """
    answers = [
        (index, at)
        for index in positions
        for at, item in enumerate(history.readings[index].items)
        if item.kind is Kind.RETURN
    ]
    whole, changes = set(_last(answers, results)), changes_of(history)
    for index in positions:
        for at, item in enumerate(history.readings[index].items):
            line = _line(item, (index, at) in whole)
            if line:
                yield with_changes(changes, index, line)


def _line(item: Item, whole: bool) -> str:
    text = _SPEAKING.sub(r"\1> ", item.text)
    if item.mark is not None:
        return f"Earlier notes: {text}"
    if item.kind in (Kind.USER, Kind.FEEDBACK):
        return f"User: {text}" if item.kind is Kind.USER else f"[retry] {text}"
    if item.kind in (Kind.TEXT, Kind.MEDIA, Kind.COMPACTION, Kind.OTHER):
        return f"Assistant: {text}" if text.strip() else ""
    if item.kind is Kind.CALL:
        return f"Assistant called {call_line(item.tool or 'tool', item.text)}"
    if item.kind is Kind.RETURN:
        return f"[tool] {item.tool}: {text if whole else outcome_line(item.text, failed=item.failed)}"
    return ""


def chunks(text_lines: Iterable[str], room: int, counter: TokenCounter) -> list[str]:
    """Join lines to texts of at most `room` tokens each; a longer line is split, and nothing is lost."""
    done: list[str] = []
    current: list[str] = []
    used = 0
    for line in text_lines:
        for piece in _pieces(line, room, counter):
            cost = counter.text(piece) + 1
            if current and used + cost > room:
                done.append("\n".join(current))
                current, used = [], 0
            current.append(piece)
            used += cost
    return [*done, "\n".join(current)] if current else done


def _pieces(line: str, room: int, counter: TokenCounter) -> Iterator[str]:
    while len(line) > room * GIANT or counter.text(line) >= room:
        piece = counter.head(line, room - 1) or line[:1]
        yield piece
        line = line[len(piece) :]
    if line:
        yield line


def tool_results(history: History, positions: Sequence[int], results: int | None) -> str:
    """Last `results` tool results of these messages, whole; None for all."""
    found = [item for index in positions for item in history.readings[index].items if item.kind is Kind.RETURN]
    return "\n".join(_line(item, True) for item in _last(found, results))


def _last(found: Sequence[T], count: int | None) -> Sequence[T]:
    """Last `count` items; None for all."""
    return found if count is None else found[max(0, len(found) - count) :]


def gather_sections(selection: Selection, span: Sequence[int], wanted: Collection[str]) -> dict[str, str]:
    """Texts of the wanted sections by name, except the turns themselves and the previous summary."""
    history, policy = selection.history, selection.policy
    failed = any(item.failed for index in span for item in history.readings[index].items)
    reflects = failed or policy.reflections.every_n_turns > 0
    found = {
        "constraints": "\n".join(_rule_lines(selection)),
        "topic": topic(history),
        "plan": plan(history, span),
        "tool_results": tool_results(history, span, policy.recent_tool_results),
        "reflections": reflection_section(history, span, policy.reflections) if reflects else "",
        "latest_input": latest_input(history),
        "focus": selection.focus,
    }
    return {name: text for name, text in found.items() if name in wanted}


def _rule_lines(selection: Selection) -> Iterator[str]:
    """Rules of the user in messages that are left out, with their turns."""
    outline = selection.draft.outline
    for rule in selection.rules:
        if rule.position >= 0 and selection.draft.here(rule.position) is None:
            turn = outline.turns[bisect_right(outline.starts, rule.position) - 1]
            yield f"turn {turn.index + 1}: {rule.text}"


def newest(lines: Sequence[str], limit: int, counter: TokenCounter) -> list[str]:
    """Last lines of at most `limit` tokens together; if the last one alone is longer, its head and tail."""
    kept: list[str] = []
    left = limit
    for line in reversed(lines):
        left -= counter.text(line) + 1
        if left < 0:
            break
        kept.append(line)
    return kept[::-1] or [truncate(line, limit, counter) for line in lines[-1:]]


def fit_turns(
    lines: Iterable[str], *, rules: Mapping[str, SectionRule], counter: TokenCounter
) -> tuple[list[str], tuple[Drop, ...]]:
    """Drop older lines of the turns if the template has a budget for them; returns the lines and the drops."""
    given = list(lines)
    limit = _limit("recent_turns", rules)
    if limit is None:
        return given, ()
    kept = newest(given, limit, counter)
    gone = sum(map(counter.text, given)) - sum(map(counter.text, kept))
    return kept, (Drop(what="recent_turns", reason=OVER, tokens=gone),) if gone else ()


def fit_sections(
    given: Mapping[str, str], *, rules: Mapping[str, SectionRule], room: int | None, counter: TokenCounter
) -> tuple[dict[str, str], tuple[Drop, ...]]:
    """Cut sections to their own budgets and, together, to `room` tokens; None for no common limit.

    To meet the common limit, expendable sections are dropped, the lowest priority first. If that is not enough, the
    others are shortened.
    """
    kept: dict[str, str] = {}
    dropped: list[Drop] = []

    def smaller(name: str, text: str, reason: str) -> None:
        gone = counter.text(kept[name]) - counter.text(text)
        if gone > 0:
            dropped.append(Drop(what=name, reason=reason, tokens=gone))
            kept[name] = text

    for name, text in given.items():
        kept[name] = text
        if (limit := _limit(name, rules)) is not None:
            smaller(name, _cut(name, text, limit, counter), OVER)
    expendable = sorted(EXPENDABLE, key=lambda name: rules[name].priority if name in rules else 0)
    for name in (*expendable, *LASTING):
        if room is None or sum(map(counter.text, kept.values())) <= room:
            break
        if kept.get(name):
            smaller(name, _cut(name, kept[name], room // 2, counter) if name in LASTING else "", NO_ROOM)
    return kept, tuple(dropped)


def _limit(name: str, rules: Mapping[str, SectionRule]) -> int | None:
    """Maximum tokens for a section: the template's budget, else ours; None for no limit."""
    return (rules[name].budget if name in rules else None) or BUDGETS.get(name)


def _cut(name: str, text: str, limit: int, counter: TokenCounter) -> str:
    if name == "constraints":
        return "\n".join(newest(text.split("\n"), limit, counter))
    return truncate(text, limit, counter)


TOO_SMALL = 200
"""Minimum cap in tokens for which a model is asked; a smaller summary could not say anything."""

MIN_ORDERED = 64
"""Minimum reserve in tokens for a compile that a user asks for."""


def reason_for_no_model(selection: Selection, turn: int) -> str | None:
    """Reason why no model is asked for this compile; None if one is."""
    policy, cap = selection.policy, selection.limits.cap(selection.policy.fidelity)
    if policy.model == "none" or policy.template.compiler != "agent":
        return "the settings or the template ask for no model"
    if not selection.span or not selection.reserve:
        return "nothing to compile"
    asked = selection.order is not None
    if selection.previous is not None and selection.previous.compiled_turn == turn and not asked:
        return "a model was asked already in this turn"
    if policy.every_turn:
        return None
    if cap < TOO_SMALL:
        return f"the summary may have only {cap} tokens; below {TOO_SMALL}, no model is asked"
    if asked:
        few = f"there is room for a summary of only {selection.reserve} tokens"
        return few if selection.reserve < MIN_ORDERED else None
    cost = sum(selection.history.readings[index].tokens for index in selection.span)
    if cost < max(selection.limits.room // 10, cap):
        return f"only {cost} tokens are new"
    return None


def summary_request(selection: Selection) -> SummaryRequest:
    """Write the prompts for a summary of everything left out since the last one."""
    policy = selection.policy
    cap = min(selection.limits.cap(policy.fidelity), selection.reserve)
    given = gather_sections(selection, selection.span, policy.template.wants() | set(ALWAYS))
    room, rules = max(policy.prompt_room, selection.limits.budget), policy.template.sections
    spoken = turn_lines(selection.history, selection.span, policy.recent_tool_results)
    newer, older = fit_turns(spoken, rules=rules, counter=selection.counter)
    previous = selection.previous.summary if selection.previous else ""
    previous = "\n\n".join(filter(None, (previous, corrections(changes_of(selection.history), previous))))
    earlier = {"previous_summary": previous}
    notes, shorter = fit_sections(earlier, rules=rules, room=None, counter=selection.counter)
    values, dropped = fit_sections(given, rules=rules, room=room // 4, counter=selection.counter)
    turns = chunks(newer, room // 2, selection.counter)
    prompts = compose_prompts(policy.template, values, turns, previous=notes["previous_summary"], cap=cap)
    filled = {**values, **notes, "recent_turns": "".join(turns)}
    had = {**filled, **given}
    return SummaryRequest(
        key=_key(selection, cap),
        prompts=prompts,
        cap=cap,
        included=tuple(name for name in TITLES if filled.get(name, "").strip()),
        missing=tuple(
            sorted(name for name in policy.template.wants() if name in TITLES and not had.get(name, "").strip())
        ),
        dropped=(*older, *shorter, *dropped),
    )


def _key(selection: Selection, cap: int) -> str:
    """Cache key of a compile, so that a span is compiled only once with the same template, fidelity and model."""
    policy = selection.policy
    facts = (
        selection.history.ids[selection.out[-1]],
        spans(selection.out),
        policy.template.sha256,
        str(policy.fidelity),
        policy.model,
        cap,
        policy.recent_tool_results,
        policy.scope,
        *((selection.steering.generation,) if selection.steering.generation else ()),
        *((selection.focus,) if selection.focus else ()),
    )
    return blake2b(repr(facts).encode(), digest_size=16).hexdigest()


def refusal(selection: Selection, text: str) -> str | None:
    """Reason why an answer is not used (it is empty, or it saves nothing); None if it is used."""
    if not text.strip():
        return "the answer is empty"
    size = selection.counter.text(text)
    cost = sum(selection.history.readings[index].tokens for index in selection.span)
    cost += selection.counter.text(selection.previous.summary) if selection.previous else 0
    return f"its {size} tokens are not fewer than the {cost} that it would replace" if size >= cost else None


OUTPUT: Any = [str, type(None)]
"""Output types of the agent: text or nothing. The caller refuses an empty answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryResponse:
    """Text of a summary with its usage, as plain data that can be journalled and replayed."""

    text: str
    usage: dict[str, int] = field(default_factory=dict[str, int])
    cost: str | None = None
    """In US dollars; None if the host does not know the model's prices."""
    latency_ms: float = 0.0
    refused: str | None = None
    """Reason why no model was asked after all; None if one was."""
    row: int | None = None
    """Row of a stored compile whose answer this is; None if a model was asked."""
    failure: dict[str, str] | None = None
    """Fields of a `CompileError`, so that a failure can be journalled and replayed too; None for none."""


def model_alias(model: Model | str) -> str:
    """Name of a model as the record stores it."""
    return model if isinstance(model, str) else model.model_name


async def ask(
    prompts: Sequence[str], model: Model | KnownModelName | str, *, timeout: float, instructions: str = "instructions"
) -> SummaryResponse:
    """Ask a model for a summary, prompt after prompt, each with the answer to the one before.

    Args:
        prompts: Prompts in order; each but the first has a slot for the previous answer.
        model: A model or its name.
        timeout: Seconds for all prompts together.
        instructions: Name of the shipped text that is used as the agent's instructions.

    Raises:
        CompileError: The model failed, its provider's package is not installed, or it took too long. An empty answer is
            not an error here.
    """
    started = time.perf_counter()
    spent = RunUsage()
    name, late = model_alias(model), TimeoutError(f"no answer within {timeout:g} s")
    made = attempt(lambda: _agent(model, prompt_text(instructions)))
    if made.value is None:
        raise CompileError(str(made.error), model=name, phase="setup") from made.error
    outcome = await try_await(await_within(timeout, _answer(prompts, made.value, spent), late))
    error = outcome.error
    if error is late:
        raise CompileError(str(late), model=name, phase="timeout", **_bill(spent))
    if error is not None:
        readable = isinstance(error, (AgentRunError, UserError, ImportError))
        reason = str(error) if readable else f"{type(error).__name__}: {error}"
        raise CompileError(reason, model=name, phase="call", **_bill(spent)) from error
    return SummaryResponse(text=outcome.value or "", latency_ms=(time.perf_counter() - started) * 1000, **_bill(spent))


def _agent(model: Model | str, instructions: str) -> Agent[None, str]:
    return Agent(model, instructions=instructions, name="context_compiler", output_type=OUTPUT, retries=0)


async def _answer(prompts: Sequence[str], agent: Agent[None, str], spent: RunUsage) -> str:
    text = ""
    for number, prompt in enumerate(prompts):
        result = await agent.run(fill_slot(prompt, text) if number else prompt)
        text = (result.output or "").strip()
        spent.incr(result.usage)
    return text


def _bill(spent: RunUsage) -> dict[str, Any]:
    """Usage and cost of the answers so far, as plain data."""
    usage = {name: getattr(spent, name) for name in ("input_tokens", "output_tokens", "requests")}
    cached = {name: getattr(spent, name) for name in ("cache_read_tokens", "cache_write_tokens")}
    usage |= {name: tokens for name, tokens in cached.items() if tokens}
    if spent.cost is not None:
        usage[NANO_USD] = round(spent.cost * NANO)
    return {"usage": usage, "cost": None if spent.cost is None else str(spent.cost)}
