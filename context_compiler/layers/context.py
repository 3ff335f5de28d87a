"""What a node is told of the layers stands in one fenced block directly before its prompt, within a share of the room.

Each section has a budget and a priority in the node's template. Where room is short the least important one
shrinks first, and everything that is cut is said so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequest

from context_compiler.compiler.view import Quote, with_recalled
from context_compiler.layers.builders import layer_texts
from context_compiler.messages.fences import fence
from context_compiler.messages.items import MESSAGE_OVERHEAD
from context_compiler.messages.truncate import clamp
from context_compiler.record.values import Drop
from context_compiler.template import Template
from context_compiler.template.choices import SectionRule
from context_compiler.template.library import TemplateLibrary
from context_compiler.tokens import TokenCounter

TITLE = "CONTEXT LAYERS"
GONE = "(left out: no room)"
"""Stands where a section was."""
WHOLE = ("entity", "conversation", "reasoning")
"""The layers themselves; what stands beside one of them goes without a trace."""
SMALLEST = 24
"""Tokens below which what is left of a section says nothing."""
SHARE = 4
"""The layers have at most one part in so many of the room for messages."""
WRAPPING = 4
"""Tokens that a part of its own costs beside its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What one run is told of the layers."""

    text: str = ""
    """As sent, fenced; empty where there is nothing."""
    tokens: int = 0
    """What it takes in a request, in exact tokens."""
    sections: tuple[Quote, ...] = ()
    drops: tuple[Drop, ...] = ()


NOTHING = Told()


def template_of(role: str, library: TemplateLibrary) -> Template:
    """The template of a node: the vault's, the system's, or the one that comes with the package.

    Raises:
        TemplateError: it is wrong.
    """
    return library.find(f"layers/{role}")


def layer_prompt(role: str, state: Mapping[str, Any], task: str, *, template: Template | None = None) -> str:
    """The prompt of a node: the three layers, then its task.

    Raises:
        LayersError: the role is unknown, or something in the state is wrong.
        TemplateError: the template is wrong.
    """
    texts = layer_texts(role, state)
    found = template or template_of(role, TemplateLibrary(system=None))
    return found.render({**texts, "task": task, "prompt": True})


def told_of(role: str, state: Mapping[str, Any], template: Template, *, room: int, counter: TokenCounter) -> Told:
    """What a node is told within `room` tokens, fence included; nothing where not even its frame fits.

    Raises:
        LayersError: the role is unknown, or something in the state is wrong.
        TemplateError: the template trips over a text.
    """
    given = {name: text for name, text in layer_texts(role, state).items() if text}
    rules = {name: template.sections.get(name, SectionRule()) for name in given}
    kept: dict[str, str] = {}
    drops: list[Drop] = []
    for name, text in given.items():
        budget = rules[name].budget
        kept[name] = clamp(text, budget, counter) if budget else text
        drops += _dropped(name, text, kept[name], "over its section budget", counter)
    for name in sorted(given, key=lambda name: rules[name].priority):
        over = _cost(_framed(template, kept), counter) - room
        if over <= 0:
            break
        left = counter.text(kept[name]) - over - WRAPPING
        gone = GONE if name in WHOLE else ""
        before, kept[name] = kept[name], clamp(kept[name], left, counter) if left >= SMALLEST else gone
        drops += _dropped(name, before, kept[name], f"no room: priority {rules[name].priority}", counter)
    text = _framed(template, kept)
    if _cost(text, counter) > room or all(text in (GONE, "") for text in kept.values()):
        whole = Drop(what="layers", reason="no room", tokens=_cost(_framed(template, given), counter))
        return Told(drops=(whole,))
    sections = tuple(
        Quote(what=f"layer {name}", why=f"for {role}, priority {rules[name].priority}", text=shown)
        for name, shown in kept.items()
        if shown not in (GONE, "")
    )
    return Told(text=text, tokens=_cost(text, counter), sections=sections, drops=tuple(drops))


def _framed(template: Template, texts: Mapping[str, str]) -> str:
    return fence(TITLE, template.render({**texts, "task": "", "prompt": False}))


def _cost(text: str, counter: TokenCounter) -> int:
    return counter.text(text) + MESSAGE_OVERHEAD + WRAPPING


def _dropped(name: str, before: str, after: str, why: str, counter: TokenCounter) -> list[Drop]:
    tokens = counter.text(before) - counter.text(after)
    return [Drop(what=f"layer {name}", reason=why, tokens=max(0, tokens))] if before != after else []


def room_of(room: int, last: int) -> int:
    """What the layers may have: a share of the room for messages, and no more than the last of these leaves."""
    return max(0, min(room // SHARE, room - last))


def with_layers(sections: dict[str, int], told: Told) -> dict[str, int]:
    """The tokens of a view by section, the layers apart from its other messages."""
    if not told.text:
        return sections
    return {**sections, "layers": told.tokens, "messages": sections["messages"] - told.tokens}


def with_told(messages: Sequence[ModelMessage], told: Told) -> list[ModelMessage]:
    """The messages with what is told directly before the last prompt, in copies of our own."""
    if not told.text:
        return list(messages)
    requests = [index for index, message in enumerate(messages) if isinstance(message, ModelRequest)]
    asking = [index for index in requests if any(part.part_kind == "user-prompt" for part in messages[index].parts)]
    found = list(messages)
    for index in (asking or requests)[-1:]:
        message = messages[index]
        if isinstance(message, ModelRequest):
            found[index] = with_recalled(message, told.text)
    return found


def untold(told: Told, reason: str) -> Told:
    """Nothing, and why."""
    return replace(NOTHING, drops=(*told.drops, Drop(what="layers", reason=reason, tokens=told.tokens)))
