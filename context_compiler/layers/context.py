"""Visibility of the layers: the needs of each node, its context as values and strings, and its block in a view.

A view contains one fenced block directly before its prompt. The node's template gives each section a budget and a
priority. If room is short, the section with the lowest priority shrinks first, and every cut is reported.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from pydantic_ai.messages import ModelMessage, ModelRequest

from context_compiler.compiler.view import Quote, with_texts
from context_compiler.errors import LayersError
from context_compiler.layers.conversation import (
    Depth,
    format_conversation_for_prompt,
    get_conversation_history,
    get_conversation_with_engagement,
    get_recent_conversation,
)
from context_compiler.layers.entities import MAX_ENTITIES, Mode, format_entity_context, get_entity_context
from context_compiler.layers.models import ConversationHistory, as_mapping, text_field
from context_compiler.layers.reasoning import (
    format_curation,
    format_decision_history,
    format_reasoning_for_prompt,
    get_outcomes,
    get_own_decision_history,
    get_reasoning_trace,
)
from context_compiler.layers.refs import ELLIPSIS, label, mask_data, mask_ids, single_line
from context_compiler.layers.registry import registry_of
from context_compiler.layers.turn import (
    get_current_curation,
    get_current_turn_steps,
    get_execution_outcomes,
    pending_question,
    step_results,
    turn_number,
)
from context_compiler.messages.fences import LAYERS_TITLE, fence
from context_compiler.messages.items import MESSAGE_OVERHEAD
from context_compiler.messages.shapes import truncate
from context_compiler.record.values import Drop
from context_compiler.template import Template, TemplateLibrary
from context_compiler.template.front_matter import SectionRule
from context_compiler.tokens import TokenCounter

Node = Literal["understand", "think", "act", "reply"]
Reasoning = Literal["own decisions", "last turn", "current steps", "outcomes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Part of the layers that one kind of node sees: one of the four in `NEEDS`, or a custom one."""

    name: str = "node"
    """Name of the node, for reports."""
    template: str | Template = "layers/node"
    """Template of its prompts and blocks."""
    entity: Mode
    """Format of the entities.

    curation: all tiers with all facts · refs_and_labels: refs and labels, but only refs of retained entities · full:
    active and generated entities with content · reply: labels of active and generated entities.
    """
    depth: Depth
    """Number of turns; 5 and "full" include the summary of older turns."""
    reasoning: Reasoning
    engagement: bool = False
    """Include the theme of the session."""
    pending: bool = False
    """Include the question or proposal that the user has not answered yet."""
    do_not_read: bool = False
    """Include a line with refs that need not be read again."""
    curation: bool = False
    """Include Understand's curation in this turn."""
    results: bool = False
    """Include the step results of this turn, the last note and the archive."""


_UNDERSTAND = Need(entity="curation", depth="full", reasoning="own decisions", engagement=True, pending=True)
_THINK = replace(_UNDERSTAND, entity="refs_and_labels", depth=5, reasoning="last turn", do_not_read=True, curation=True)
_ACT = Need(entity="full", depth=2, reasoning="current steps", results=True)
_REPLY = Need(entity="reply", depth=2, reasoning="outcomes", engagement=True, pending=True)
_FOUR: dict[Node, Need] = {"understand": _UNDERSTAND, "think": _THINK, "act": _ACT, "reply": _REPLY}

NEEDS = MappingProxyType[Node, Need](
    {name: replace(need, name=name, template=f"layers/{name}") for name, need in _FOUR.items()}
)
"""Needs of the four built-in nodes."""
FORMATS: Mapping[Reasoning, str] = MappingProxyType({"last turn": "think", "current steps": "act", "outcomes": "reply"})
"""Format of each kind of reasoning."""


def node_need(node: str | Need) -> Need:
    """Return the need of a node given by name; a `Need` is returned unchanged.

    Raises:
        LayersError: The node is unknown; the message lists the valid names.
    """
    if isinstance(node, Need):
        return node
    need = next((need for name, need in NEEDS.items() if name == node), None)
    if need is None:
        raise LayersError(f"role {node!r} is unknown; use one of {', '.join(NEEDS)}, or a custom Need")
    return need


Context = dict[str, Any]


def build_understand_context(state: Mapping[str, Any]) -> Context:
    """Build the context of Understand: all entities, the whole conversation, and its own decisions so far."""
    return build_context("understand", state)


def build_think_context(state: Mapping[str, Any]) -> Context:
    """Build the context of Think: refs and labels, the conversation, the last turn, and the curation of this turn."""
    return build_context("think", state)


def build_act_context(state: Mapping[str, Any]) -> Context:
    """Build the context of Act: entities with content, the last two turns, and the steps and results of this turn."""
    return build_context("act", state)


build_act_entity_context = build_act_context


def build_reply_context(state: Mapping[str, Any]) -> Context:
    """Build the context of Reply: labels, two turns, the theme, the pending state, and the outcomes of the turn."""
    return build_context("reply", state)


def build_context(node: str | Need, state: Mapping[str, Any]) -> Context:
    """Build the context of one node as values, without modifying the state.

    Args:
        node: understand, think, act, reply, or a custom `Need`.
        state: The state of the turn; every key of `TurnState` is optional.

    Returns:
        `entity`, `conversation` and `reasoning`; for Think also `curation`, for Act `step_results`,
        `prev_step_note` and `content_archive`, for Reply `outcomes`.

    Raises:
        LayersError: The node is unknown, or a value in the state is wrong; the message names it.
    """
    return _context(node_need(node), _with_registry(state), content=True)


def _with_registry(state: Mapping[str, Any]) -> dict[str, Any]:
    fields = as_mapping(state, "state")
    return {**fields, "id_registry": registry_of(fields.get("id_registry"))}


def _context(need: Need, state: Mapping[str, Any], *, content: bool) -> Context:
    registry, turn = registry_of(state["id_registry"]), turn_number(state)
    context: Context = {
        "entity": get_entity_context(registry, turn, mode=need.entity, most=MAX_ENTITIES, content=content),
        "conversation": _conversation(need, state),
        "reasoning": _REASONING[need.reasoning](state),
    }
    if need.curation:
        context["curation"] = get_current_curation(state)
    if need.results:
        context |= _act_extras(state)
    if need.reasoning == "outcomes":
        context["outcomes"] = get_execution_outcomes(state)
    return context


def _conversation(need: Need, state: Mapping[str, Any]) -> ConversationHistory:
    """Return the conversation at the node's depth; a question of this turn replaces an earlier pending one."""
    stored = state.get("conversation")
    if need.depth == 2:
        history = get_conversation_with_engagement(stored) if need.engagement else get_recent_conversation(stored)
    else:
        history = get_conversation_history(stored)
    asked = pending_question(state) if need.pending else None
    return history if asked is None else history.model_copy(update={"pending": asked})


def _is_answered(state: Mapping[str, Any]) -> bool:
    """True if the pending question counts as answered, because a decision was made that asks nothing."""
    decision = text_field(as_mapping(state.get("think_output"), "think_output"), "decision").strip()
    return decision not in ("", "propose", "clarify")


_REASONING: Mapping[str, Callable[[Mapping[str, Any]], Any]] = MappingProxyType(
    {
        "own decisions": lambda state: get_own_decision_history(state.get("conversation")),
        "last turn": lambda state: get_reasoning_trace(state.get("conversation"), state),
        "current steps": lambda state: get_current_turn_steps(state),
        "outcomes": lambda state: get_outcomes(state.get("conversation"), state),
    }
)


def _act_extras(state: Mapping[str, Any]) -> Context:
    refs = registry_of(state.get("id_registry")).refs
    steps = get_current_turn_steps(state)
    note = state.get("prev_step_note") or next((step.note for step in reversed(steps) if step.note), None)
    stored = as_mapping(state.get("conversation"), "conversation")
    archive = {
        **as_mapping(stored.get("content_archive"), "content_archive"),
        **as_mapping(state.get("content_archive"), "content_archive"),
    }
    return {
        "step_results": step_results(state),
        "prev_step_note": None if note is None else str(note),
        "content_archive": {name: mask_data(content, refs) for name, content in archive.items()},
    }


def layer_texts(node: str | Need, state: Mapping[str, Any]) -> dict[str, str]:
    """Build the context of one node as strings, by the variable names of its template.

    Raises:
        LayersError: The node is unknown, or a value in the state is wrong.
    """
    need, state = node_need(node), _with_registry(state)
    context = _context(need, state, content=False)
    texts = {
        "entity": format_entity_context(context["entity"], need.entity, data=registry_of(state["id_registry"])),
        "conversation": format_conversation_for_prompt(
            context["conversation"],
            need.depth,
            include_pending=need.pending,
            include_engagement=need.engagement,
            answered=_is_answered(state),
        ),
        "reasoning": format_decision_history(context["reasoning"])
        if need.reasoning == "own decisions"
        else format_reasoning_for_prompt(context["reasoning"], FORMATS[need.reasoning]),
    }
    if need.do_not_read:
        registry = registry_of(state["id_registry"])
        texts["do_not_read"] = format_entity_context(context["entity"], "do_not_read", data=registry)
    if need.curation:
        texts["curation"] = format_curation(context["curation"])
    if need.results:
        texts["results"] = format_results(context["step_results"], context["prev_step_note"])
        texts["archive"] = format_archive(context["content_archive"])
    return texts


MAX_RESULT = 8_000
"""Maximum characters shown of one step's result."""
MAX_ARCHIVED = 160
"""Maximum characters shown of each archived content: enough to recognize it."""


def format_results(results: Mapping[str, Any], note: str | None) -> str:
    """Format the results of this turn's steps and the last note; empty if there are none."""
    lines = [f"Result of step {number}: {_bounded_text(result, MAX_RESULT)}" for number, result in results.items()]
    if note:
        lines.append(f"Note from the previous step: {mask_ids(single_line(note))}")
    return "\n".join(lines)


def format_archive(archive: Mapping[str, Any]) -> str:
    """Format archived content, one line per key; empty if there is none."""
    lines = [f"- {label(key)}: {_bounded_text(content, MAX_ARCHIVED)}" for key, content in archive.items()]
    return "\n".join(["Archived content:", *lines]) if lines else ""


def _bounded_text(content: object, most: int) -> str:
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, default=str)
    line = mask_ids(single_line(text))
    return line if len(line) <= most else f"{line[:most]}{ELLIPSIS} ({len(line):,} characters)"


REMOVED = "(left out: no room)"
"""Placeholder for a removed section."""
LAYER_SECTIONS = ("entity", "conversation", "reasoning")
"""Sections of the three layers; only these leave a placeholder when they are removed."""
MIN_SECTION = 24
"""Minimum tokens of a truncated section; a smaller one is useless and is removed instead."""
SHARE = 4
"""Divisor of the room for messages: the layers get at most a quarter of it."""
SLACK = 4
"""Tokens by which a section is cut more than needed, because the text at the cut may count for more in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBlock:
    """Block with the layers, as added to the requests of one run."""

    text: str = ""
    """Fenced text as sent; empty if there is nothing to show."""
    tokens: int = 0
    """Tokens that the block adds to a request."""
    sections: tuple[Quote, ...] = ()
    drops: tuple[Drop, ...] = ()
    others: int = 0
    """Number of `tokens` that quote other conversations."""


NO_LAYERS = LayerBlock()


def node_template(role: str | Need, library: TemplateLibrary) -> Template:
    """Find the template of a node: the vault's, else the system's, else the packaged one.

    Raises:
        TemplateError: The template is invalid.
    """
    return library.find(node_need(role).template)


def layer_prompt(role: str | Need, state: Mapping[str, Any], task: str, *, template: Template | None = None) -> str:
    """Build the prompt of a node: the three layers, then its task.

    Raises:
        LayersError: The role is unknown, or a value in the state is wrong.
        TemplateError: The template is invalid.
    """
    texts = layer_texts(role, state)
    chosen = template or node_template(role, TemplateLibrary(system=None))
    return chosen.render({**texts, "task": task, "prompt": True})


def layer_block(
    role: str | Need, state: Mapping[str, Any], template: Template, *, room: int, counter: TokenCounter
) -> LayerBlock:
    """Build the block of a node within `room` tokens, fence included; empty if nothing useful fits.

    Raises:
        LayersError: The role is unknown, or a value in the state is wrong.
        TemplateError: The template cannot be rendered.
    """
    texts = {name: text for name, text in layer_texts(role, state).items() if text}
    rules = {name: template.sections.get(name, SectionRule()) for name in texts}
    kept: dict[str, str] = {}
    drops: list[Drop] = []
    for name, text in texts.items():
        budget = rules[name].budget
        kept[name] = truncate(text, budget, counter) if budget else text
        drops += _section_drop(name, text, kept[name], "over its section budget", counter)
    for name in sorted(texts, key=lambda name: rules[name].priority):
        over = _block_tokens(_render_block(template, kept), counter) - room
        if over <= 0:
            break
        left = counter.text(kept[name]) - over - SLACK
        gone = REMOVED if name in LAYER_SECTIONS else ""
        before, kept[name] = kept[name], truncate(kept[name], left, counter) if left >= MIN_SECTION else gone
        drops += _section_drop(name, before, kept[name], f"no room: priority {rules[name].priority}", counter)
    text = _render_block(template, kept)
    if _block_tokens(text, counter) > room or all(text in (REMOVED, "") for text in kept.values()):
        whole = Drop(what="layers", reason="no room", tokens=_block_tokens(_render_block(template, texts), counter))
        return LayerBlock(drops=(whole,))
    sections = tuple(
        Quote(what=f"layer {name}", why=f"for {node_need(role).name}, priority {rules[name].priority}", text=shown)
        for name, shown in kept.items()
        if shown not in (REMOVED, "")
    )
    return LayerBlock(text=text, tokens=_block_tokens(text, counter), sections=sections, drops=tuple(drops))


def _render_block(template: Template, texts: Mapping[str, str]) -> str:
    return fence(LAYERS_TITLE, template.render({**texts, "task": "", "prompt": False}))


def _block_tokens(text: str, counter: TokenCounter) -> int:
    return counter.text(text) + MESSAGE_OVERHEAD


def _section_drop(name: str, before: str, after: str, why: str, counter: TokenCounter) -> list[Drop]:
    tokens = counter.text(before) - counter.text(after)
    return [Drop(what=f"layer {name}", reason=why, tokens=max(0, tokens))] if before != after else []


def layers_room(room: int, last: int) -> int:
    """Return the tokens available to the layers: a fraction of the room, and at most the room after the last message.

    Args:
        room: Tokens left for messages.
        last: Tokens of the last message.
    """
    return max(0, min(room // SHARE, room - last))


def with_layer_tokens(sections: dict[str, int], block: LayerBlock) -> dict[str, int]:
    """Return the tokens of a view by section, with the layers counted apart from the other messages."""
    if not block.text:
        return sections
    own = {"layers": block.tokens - block.others, "other conversations": block.others}
    named = {name: tokens for name, tokens in own.items() if tokens}
    return {**sections, **named, "messages": sections["messages"] - block.tokens}


def insert_block(messages: Sequence[ModelMessage], block: LayerBlock) -> list[ModelMessage]:
    """Return the messages with the block inserted directly before the last prompt; the changed message is a copy."""
    if not block.text:
        return list(messages)
    requests = [index for index, message in enumerate(messages) if isinstance(message, ModelRequest)]
    asking = [index for index in requests if any(part.part_kind == "user-prompt" for part in messages[index].parts)]
    changed = list(messages)
    for index in (asking or requests)[-1:]:
        message = messages[index]
        if isinstance(message, ModelRequest):
            changed[index] = with_texts(message, block.text)
    return changed


def drop_block(block: LayerBlock, reason: str) -> LayerBlock:
    """Return an empty block that reports this one as dropped for a reason."""
    what = "passages of other conversations" if block.others and block.others == block.tokens else "layers"
    return replace(NO_LAYERS, drops=(*block.drops, Drop(what=what, reason=reason, tokens=block.tokens)))


def with_others(block: LayerBlock, text: str, quotes: Sequence[Quote], counter: TokenCounter) -> LayerBlock:
    """Return the block with passages of other conversations before it."""
    both = f"{text}\n\n{block.text}" if block.text else text
    tokens = counter.text(both) + MESSAGE_OVERHEAD
    return replace(block, text=both, tokens=tokens, sections=(*block.sections, *quotes), others=tokens - block.tokens)
