"""Task, template, the turns, the latest input: the prompt of one compile, fenced, in document order.

A long span becomes several prompts, each of which brings the summary of the one before it up to date.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from context_compiler.messages.fences import fence, neutral
from context_compiler.record.values import Drop
from context_compiler.template import Template
from context_compiler.template.prompts import prose

SLOT = "\x00previous summary\x00"
"""Where the answer to the prompt before goes. No conversation holds it: fences remove control characters."""

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
}
"""Placeholder names and how their fences are titled, in the order in which a prompt has them."""

ALWAYS = ("previous_summary", "recent_turns", "latest_input")
"""What a prompt carries even when the template does not mention it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a compiler is asked: prompts to answer one after the other, the last answer being the summary."""

    key: str
    prompts: tuple[str, ...]
    cap: int
    included: tuple[str, ...]
    missing: tuple[str, ...]
    """Names the template mentions that had nothing to say."""
    dropped: tuple[Drop, ...]


def written(
    template: Template, values: Mapping[str, str], turns: Sequence[str], *, previous: str, cap: int
) -> tuple[str, ...]:
    """One prompt a chunk of `turns`; from the second on, `SLOT` stands for the summary before."""
    prompts: list[str] = []
    for number, chunk in enumerate(turns or [""]):
        said = {**values, "recent_turns": chunk, "previous_summary": previous if number == 0 else SLOT}
        prompts.append(_one(template, said, cap))
    return tuple(prompts)


def _one(template: Template, values: Mapping[str, str], cap: int) -> str:
    fenced = {name: _fenced(name, values.get(name, "")) for name in TITLES}
    wanted = template.wants()
    body = template.render({**fenced, "template": about(template), "cap": cap, "turns_left_out": ""})
    blocks = [
        _block("COMPILER TASK", prose("task").replace("{{ cap }}", str(cap))),
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
    """Our own text between the same lines; only data is made unable to close them."""
    return f"=== BEGIN {title} ===\n{text.strip()}\n=== END {title} ===" if text.strip() else ""


def filled(prompt: str, previous: str) -> str:
    """A prompt whose slot holds the summary before."""
    return prompt.replace(SLOT, neutral(previous))


def about(template: Template) -> dict[str, str]:
    """What a template may say of itself."""
    return {
        "name": template.name,
        "source": template.source,
        "path": template.path or "",
        "hash": template.sha256,
        "description": template.description,
    }
