"""Summaries by a model: the prompts of one compile, and the stateless calls that answer them.

A prompt contains the task, the template, the turns and the latest input, all fenced. A long span is split into several
prompts, each of which updates the summary of the one before. The model gets no tools, history or capabilities. The
caller adds the tokens of its agent to the run's usage, but not its requests, because those would count against the
run's request limit.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TypeVar

from pydantic_ai.models import Model

from context_compiler.compiler.cut_order import Selection
from context_compiler.compiler.policy import LARGE
from context_compiler.errors import CompileError
from context_compiler.messages.failures import reflection_section
from context_compiler.messages.fences import fence, neutralize
from context_compiler.messages.history import History
from context_compiler.messages.items import Item, Kind
from context_compiler.messages.shapes import truncate
from context_compiler.messages.spans import spans
from context_compiler.messages.tool_lines import call_line, outcome_line
from context_compiler.recall import changes_of
from context_compiler.recall.changes import corrections, with_changes
from context_compiler.record.values import Drop
from context_compiler.template import SectionRule, Template, prompt_text
from context_compiler.tokens import TokenCounter

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
    covers: tuple[int, ...]
    """Number of messages of the span that the first prompts cover, for each prompt."""
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

LIMITED = ("constraints", "topic", "plan", "tool_results", "latest_input", "focus")
"""Sections of at most `MAX_TEXT` tokens if the template has no budget for them."""

LASTING = ("constraints", "latest_input")
"""Sections that are shortened but never dropped."""

LATER = "beyond one compile: left to the next one, and quoted until then"
"""Reason why messages are not in the prompts of a compile."""

OVER, NO_ROOM = "over its section budget", "the prompt was over its room"
"""Reasons why a section was shortened or left out."""

GIANT = 16
"""Characters for each token of room from which a line is cut before it is counted, because counting takes long."""

MAX_TEXT = 4_000
"""Maximum tokens of one text in a prompt; head and tail of a longer one are shown, and the rest may be quoted."""

MAX_PROMPTS = 4
"""Maximum prompts of a compile, and maximum tokens of turns in them as a multiple of the budget. What is beyond that is
left to the next compile, and quoted until then."""

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
    items = history.items()
    prompts = ((index, item.text) for index, item in items if item.kind is Kind.USER and item.mark is None)
    return next((with_changes(changes_of(history), index, text) for index, text in prompts), "")


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

    Thinking and system text are left out, notes of an earlier view are labelled as such, and media and encoded data
    become placeholders. Only the last `results` tool results are shown (None for all); older ones are reduced to their
    outcome.
    """
    return (line for _, line in _placed_lines(history, positions, results))


def _placed_lines(history: History, positions: Sequence[int], results: int | None) -> Iterator[tuple[int, str]]:
    """The same lines, each with the position of its message."""
    parts = [(index, part, item) for index in positions for part, item in enumerate(history.readings[index].items)]
    answers = [(index, part) for index, part, item in parts if item.kind is Kind.RETURN]
    whole, changes = set(_last(answers, results)), changes_of(history)
    for index, part, item in parts:
        line = _line(item, (index, part) in whole)
        if line:
            yield index, with_changes(changes, index, line)


_ENCODED = re.compile(r"(?:data:[\w/+.;=-]{1,80},)?[A-Za-z0-9+/_-]{400,}={0,2}")
"""Base64 and the like, which says nothing to a model."""


def _line(item: Item, whole: bool) -> str:
    text = _ENCODED.sub(lambda run: f"[{max(1, len(run[0]) // 1024)} kB of encoded data]", item.text)
    text = _SPEAKING.sub(r"\1> ", text)
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


def shorten(line: str, limit: int, counter: TokenCounter) -> str:
    """Head and tail of a line of more than `limit` tokens, however long it is."""
    if len(line) <= limit * GIANT:
        return truncate(line, limit, counter)
    gap = f"\n[… {len(line):,} characters in full, the middle is left out here …]\n"
    room, half = max(8, limit - counter.text(gap)), limit * GIANT // 2
    return counter.head(line[:half], room * 2 // 3) + gap + counter.tail(line[-half:], room - room * 2 // 3)


def chunks(lines: Iterable[str], room: int, counter: TokenCounter) -> list[str]:
    """Join lines to texts of at most `room` tokens each; of a longer line, head and tail are kept."""
    return [text for text, _ in _placed_chunks(((0, line) for line in lines), room, counter)]


def _placed_chunks(lines: Iterable[tuple[int, str]], room: int, counter: TokenCounter) -> list[tuple[str, int]]:
    """The same texts, each with the position of the first message that it does not contain whole."""
    done: list[tuple[str, int]] = []
    current: list[str] = []
    used, last = 0, -1
    for position, line in lines:
        piece = shorten(line, min(room, MAX_TEXT), counter)
        cost = counter.text(piece) + 1
        if current and used + cost > room:
            done.append(("\n".join(current), position))
            current, used = [], 0
        current.append(piece)
        used, last = used + cost, position
    return [*done, ("\n".join(current), last + 1)] if current else done


def tool_results(history: History, positions: Sequence[int], results: int | None) -> str:
    """Last `results` tool results of these messages; None for all."""
    returned = [item for index in positions for item in history.readings[index].items if item.kind is Kind.RETURN]
    return "\n".join(_line(item, True) for item in _last(returned, results))


def _last(items: Sequence[T], count: int | None) -> Sequence[T]:
    """Last `count` items; None for all."""
    return items if count is None else items[max(0, len(items) - count) :]


def gather_sections(selection: Selection, span: Sequence[int], wanted: Collection[str]) -> dict[str, str]:
    """Texts of the wanted sections by name, except the turns themselves and the previous summary."""
    history, policy = selection.history, selection.policy
    failed = any(item.failed for index in span for item in history.readings[index].items)
    reflects = failed or policy.reflections.every_n_turns > 0
    sections = {
        "constraints": "\n".join(_rule_lines(selection)),
        "topic": topic(history),
        "plan": plan(history, span),
        "tool_results": tool_results(history, span, policy.recent_tool_results),
        "reflections": reflection_section(history, span, policy.reflections) if reflects else "",
        "latest_input": latest_input(history),
        "focus": selection.focus,
    }
    return {name: text for name, text in sections.items() if name in wanted}


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
    given_lines = list(lines)
    limit = _limit("recent_turns", rules)
    if limit is None:
        return given_lines, ()
    kept = newest(given_lines, limit, counter)
    gone = sum(map(counter.text, given_lines)) - sum(map(counter.text, kept))
    return kept, (Drop(what="recent_turns", reason=OVER, tokens=gone),) if gone else ()


def fit_sections(
    sections: Mapping[str, str], *, rules: Mapping[str, SectionRule], room: int | None, counter: TokenCounter
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

    for name, text in sections.items():
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
    return (rules[name].budget if name in rules else None) or (MAX_TEXT if name in LIMITED else None)


def _cut(name: str, text: str, limit: int, counter: TokenCounter) -> str:
    if name == "constraints":
        return "\n".join(newest(text.split("\n"), limit, counter))
    return truncate(text, limit, counter)


TOO_SMALL = 200
"""Minimum cap in tokens for which a model is asked; a smaller summary says nothing. Minimum characters of turns
in a prompt that is halved."""


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
        return few if selection.reserve < TOO_SMALL // LARGE else None
    cost = sum(selection.history.readings[index].tokens for index in selection.span)
    if cost < max(selection.limits.room // 10, cap):
        return f"only {cost} tokens are new"
    asked = cost + sum(
        map(selection.counter.text, (prompt_text("instructions"), prompt_text("task"), policy.template.body))
    )
    if GAIN * (cost - cap) < asked:
        return f"a model would read {asked} tokens to save {cost - cap}"
    return None


GAIN = 3
"""A compile reads at most this many tokens for each one that it saves from every later request."""


def summary_request(selection: Selection) -> SummaryRequest:
    """Write the prompts for a summary of everything left out since the last one."""
    policy, wanted = selection.policy, selection.policy.template.wants()
    cap = min(selection.limits.cap(policy.fidelity), selection.reserve)
    sections = gather_sections(selection, selection.span, wanted | set(ALWAYS))
    counter = selection.counter
    room, rules = policy.prompt_room, policy.template.sections
    turns, covers, older = _turns(selection, rules, room // 2)
    previous = counter.head(selection.previous.summary, cap) if selection.previous else ""
    previous = "\n\n".join(filter(None, (previous, corrections(changes_of(selection.history), previous))))
    earlier = {"previous_summary": previous}
    notes, shorter = fit_sections(earlier, rules=rules, room=None, counter=counter)
    values, dropped = fit_sections(sections, rules=rules, room=room // 4, counter=counter)
    prompts = compose_prompts(policy.template, values, turns, previous=notes["previous_summary"], cap=cap)
    filled = {**values, **notes, "recent_turns": "".join(turns)}
    had = {**filled, **sections}
    return SummaryRequest(
        key=_key(selection, cap),
        prompts=prompts,
        covers=covers,
        cap=cap,
        included=tuple(name for name in TITLES if filled.get(name, "").strip()),
        missing=tuple(sorted(name for name in wanted if name in TITLES and not had.get(name, "").strip())),
        dropped=(*older, *shorter, *dropped),
    )


def _turns(
    selection: Selection, rules: Mapping[str, SectionRule], room: int
) -> tuple[list[str], tuple[int, ...], tuple[Drop, ...]]:
    """Texts of the turns, one for each prompt, the number of messages covered after each, and the drops."""
    counter, span, policy = selection.counter, selection.span, selection.policy
    placed = [
        (position, shorten(line, _line_limit(line, rules, policy.recent_tool_results), counter))
        for position, line in _placed_lines(selection.history, span, policy.recent_tool_results)
    ]
    newer, older = fit_turns([line for _, line in placed], rules=rules, counter=counter)
    positions = [position for position, _ in placed[len(placed) - len(newer) :]]
    most, read = MAX_PROMPTS * selection.limits.budget, 0
    chunks = _placed_chunks(zip(positions, newer, strict=True), min(room, most), counter)
    kept = 0
    for text, _ in chunks[:MAX_PROMPTS]:
        read += counter.text(text)
        kept += read <= most or not kept
    covers = [bisect_left(span, stop) for _, stop in chunks[:kept]]
    if kept == len(chunks):
        return [text for text, _ in chunks], (*covers[:-1], len(span)), older
    gone = sum(selection.history.readings[index].tokens for index in span[covers[-1] :])
    later = Drop(what=f"messages {span[covers[-1]]}-{span[-1]}", reason=LATER, tokens=gone)
    return [text for text, _ in chunks[:kept]], tuple(covers), (*older, later)


def _line_limit(line: str, rules: Mapping[str, SectionRule], results: int | None) -> int:
    """Maximum tokens of a line: for a tool result its share of what the section for results may have."""
    section = _limit("tool_results", rules) or MAX_TEXT
    return section // max(1, results or 1) if line.startswith("[tool] ") else MAX_TEXT


_TURNS = re.compile(r"(=== BEGIN RECENT CONVERSATION ===\n)(.*)(\n=== END RECENT CONVERSATION ===)", re.DOTALL)
_PREVIOUS = re.compile(r"(=== BEGIN PREVIOUS SUMMARY ===\n)(.*)(\n=== END PREVIOUS SUMMARY ===)", re.DOTALL)
_GIVEN = re.compile(rf"=== BEGIN ({'|'.join(TITLES.values())}) ===\n(.*?)\n=== END \1 ===", re.DOTALL)


def halves(prompt: str) -> tuple[str, str] | None:
    """Two prompts with half of the turns each; the second has a slot for the answer to the first. None if too short."""
    match = _TURNS.search(prompt)
    if match is None or len(match[2]) < TOO_SMALL:
        return None
    middle = match[2].rfind("\n", 0, len(match[2]) // 2 + 1)
    middle = middle if middle > 0 else len(match[2]) // 2

    def with_turns(text: str) -> str:
        return f"{prompt[: match.end(1)]}{text.strip()}{prompt[match.start(3) :]}"

    first, second = with_turns(match[2][:middle]), with_turns(match[2][middle:])
    slot = _block(TITLES["previous_summary"], SLOT)
    if _PREVIOUS.search(second):
        return first, _PREVIOUS.sub(lambda _: slot, second, count=1)
    return first, f"{second[: match.start()]}{slot}\n\n{second[match.start() :]}"


def material_of(prompt: str) -> tuple[str, str]:
    """The material of a prompt, and the rest of it, which is ours."""
    return "\n".join(match[2] for match in _GIVEN.finditer(prompt)), _GIVEN.sub("", prompt)


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
    done: int | None = None
    """Number of prompts that the text answers; None for all."""
    fault: str | None = None
    """Reason why the answer to the next prompt, or to the first, is not used; None if there is no such answer."""
    failure: dict[str, str] | None = None
    """Fields of a `CompileError` if no prompt was answered, so that it can be journalled and replayed; None otherwise.
    If there is a `fault` too, quotes take the place of the summary, and no error is raised."""

    @property
    def error(self) -> CompileError | None:
        """Error that the fields of `failure` describe."""
        return None if self.failure is None else CompileError(**self.failure, usage=self.usage, cost=self.cost)


def model_alias(model: Model | str) -> str:
    """Name of a model as the record stores it."""
    return model if isinstance(model, str) else model.model_name
