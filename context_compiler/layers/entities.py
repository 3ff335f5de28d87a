"""Layer 1: entities by tier, and the text that each kind of node sees of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from heapq import nlargest
from typing import Any, Literal, cast, get_args

from context_compiler.errors import LayersError
from context_compiler.layers.models import EntityContext, EntitySnapshot, Row, as_mapping, parse_layer
from context_compiler.layers.refs import (
    ELLIPSIS,
    MAX_CACHED_LABEL,
    RefsByForm,
    label,
    mask_data,
    mask_ids,
    ref_sort_key,
    single_line,
)
from context_compiler.layers.registry import SessionIdRegistry, registry_of

Mode = Literal["full", "refs_and_labels", "reply", "do_not_read", "curation"]
MODES: tuple[str, ...] = get_args(Mode)
ALIASES = {"full_data": "full", "labels_only": "reply"}

WINDOW = 2
"""Number of turns for which an entity stays active after its last mention."""
EMPTY = "No entities in context."
MAX_CONTENT = 4_000
"""Maximum characters shown of one entity's content."""
MAX_CONTENTS = 100_000
"""Maximum characters shown of the content of all entities; the most recently mentioned are shown first."""
MAX_ENTITIES = 1_000
"""Maximum entities that a node sees of each tier: the most recently mentioned."""


def get_entity_context(
    registry: SessionIdRegistry | Mapping[str, Any] | None,
    current_turn: int | None = None,
    mode: str | None = None,
    *,
    window: int = WINDOW,
    most: int | None = None,
    content: bool = True,
) -> EntityContext:
    """Select the entities of a session by tier.

    Args:
        registry: A registry, its `to_dict` form, or None for a session without entities.
        current_turn: Number of the turn, counted from 1, or 0 before the first; None uses the registry's.
        mode: Format to select for: tiers that it never shows stay empty, and `full` adds content.
        window: Number of turns for which an entity stays active after its last mention.
        most: Maximum entities per tier; the most recently mentioned are kept. None means no limit.
        content: Add the content that the mode shows.

    Raises:
        LayersError: The mode is unknown, a turn is not a number, or the registry cannot be read.
    """
    wanted = None if mode is None else check_mode(mode)
    entities = registry_of(registry)
    turn = entities.current_turn if current_turn is None else _check_turn("current_turn", current_turn)
    (active, generated, retained), omitted = _tiers(entities, turn, _check_turn("window", window), most)
    if wanted in ("refs_and_labels", "reply", "do_not_read"):
        active = _not_deleted(active)
    if wanted in ("full", "reply", "do_not_read"):
        retained = []
    data = _content_by_ref(entities, [*active, *generated]) if wanted == "full" and content else {}
    return EntityContext.model_construct(
        active=active, generated=generated, retained=retained, data=data, omitted=omitted
    )


def _check_turn(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise LayersError(f"{name} is {value!r}; give a number of turns from 0")
    return value


def _tiers(
    registry: SessionIdRegistry, turn: int, window: int, most: int | None
) -> tuple[tuple[list[EntitySnapshot], ...], int]:
    """Return the active, generated and retained entities, and the number left out because of `most`."""
    tiers = _tier_rows(registry, turn, window)
    shown = tuple([EntitySnapshot.model_validate(row) for row in _most_recent(tier, most)] for tier in tiers)
    return shown, sum(map(len, tiers)) - sum(map(len, shown))


def _tier_rows(registry: SessionIdRegistry, turn: int, window: int) -> tuple[list[Row], list[Row], list[Row]]:
    """Return the rows of the active, generated and retained entities; each is in at most one tier."""
    active: list[Row] = []
    generated: list[Row] = []
    retained: list[Row] = []
    for row in registry.rows_near(turn - window):
        if row["status"] == "generated":
            generated.append(row)
        elif registry.is_demoted(row["ref"]):
            continue
        elif turn - row["turn_last_ref"] <= window:
            active.append(row)
        elif row["retention_reason"] and row["status"] != "deleted":
            retained.append(row)
    return active, generated, retained


def refs_with_content(registry: SessionIdRegistry, turn: int) -> set[str]:
    """Return the refs of the active and generated entities, whose content is kept."""
    active, generated, _ = _tier_rows(registry, turn, WINDOW)
    return {row["ref"] for row in (*active, *generated)}


def _most_recent(tier: list[Row], most: int | None) -> list[Row]:
    """Return the `most` most recently mentioned entities in their original order; of ties the later ones."""
    if most is None or len(tier) <= most:
        return tier
    newest = nlargest(most, range(len(tier)), key=lambda index: (tier[index]["turn_last_ref"], index))
    return [tier[index] for index in sorted(newest)]


def _content_by_ref(registry: SessionIdRegistry, shown: Iterable[EntitySnapshot]) -> dict[str, Any]:
    contents = {entity.ref: registry.data_of(entity.ref) for entity in shown}
    return {ref: data for ref, data in contents.items() if data is not None}


def check_mode(mode: str) -> Mode:
    """Return the name of a mode, with aliases resolved.

    Raises:
        LayersError: The mode is unknown; the message lists the valid ones.
    """
    name = ALIASES.get(mode, mode) if isinstance(mode, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
    if name not in MODES:
        raise LayersError(f"mode {mode!r} is unknown; use one of {', '.join(MODES)}")
    return cast(Mode, name)


def format_entity_context(
    ctx: EntityContext, mode: str, *, data: Mapping[str, Any] | SessionIdRegistry | None = None
) -> str:
    """Format the entities for one kind of node, without database ids.

    Args:
        ctx: The entities by tier.
        mode: full (Act), refs_and_labels and do_not_read (Think), reply (Reply), or curation (Understand).
        data: Content by ref that replaces `ctx.data`, or the registry that contains it. `full` shows it, and
            `do_not_read` leaves out updated entities without it.

    Raises:
        LayersError: The mode is unknown, or `ctx` is not an `EntityContext`.
    """
    wanted, ctx = check_mode(mode), parse_layer(EntityContext, ctx, "entities")
    if wanted == "do_not_read":
        return _do_not_read(ctx, None if data is None else _content_texts(data))
    if wanted == "full":
        blocks = _full_sections(ctx, _content_texts(ctx.data if data is None else data))
    elif wanted == "refs_and_labels":
        blocks = _ref_and_label_sections(ctx)
    elif wanted == "reply":
        blocks = _reply_sections(ctx)
    else:
        blocks = _curation_sections(ctx)
    if ctx.omitted:
        blocks.append(f"{ctx.omitted:,} more entities are not shown.")
    return "\n\n".join(blocks) or EMPTY


def _section(title: str, lines: list[str]) -> list[str]:
    return ["\n".join([f"{title}:", *lines])] if lines else []


def _not_deleted(entities: list[EntitySnapshot]) -> list[EntitySnapshot]:
    return [entity for entity in entities if entity.status != "deleted"]


def _do_not_read(ctx: EntityContext, content: Callable[[str], object] | None) -> str:
    refs = sorted(
        {
            entity.ref
            for entity in _not_deleted([*ctx.active, *ctx.generated])
            if content is None or entity.status != "updated" or content(entity.ref) is not None
        },
        key=ref_sort_key,
    )
    return f"DO NOT re-read: {', '.join(map(label, refs))}" if refs else ""


def _content_texts(data: Mapping[str, Any] | SessionIdRegistry) -> Callable[[str], Callable[[], str] | None]:
    """Return a function from a ref to a function that renders its content; None for a ref without content.

    Rendering is deferred, because content beyond `MAX_CONTENTS` is never rendered.
    """
    if isinstance(data, SessionIdRegistry):
        return lambda ref: partial(data.content_text, ref, _content_text) if data.has_content(ref) else None
    contents = as_mapping(data, "data")
    return lambda ref: partial(_masked_text, contents[ref]) if ref in contents else None


def _full_sections(ctx: EntityContext, content: Callable[[str], Callable[[], str] | None]) -> list[str]:
    room, hidden, texts = MAX_CONTENTS, 0, dict[str, str]()
    for entity in sorted((*ctx.active, *ctx.generated), key=lambda entity: entity.turn_last_ref, reverse=True):
        text = content(entity.ref)
        if text is not None and room > 0:
            texts[entity.ref] = text()
            room -= len(texts[entity.ref])
        elif text is not None:
            hidden += 1
    generated = [line for entity in ctx.generated for line in _detail_lines(entity, texts)]
    return [
        *_section("Active entities", [line for entity in ctx.active for line in _detail_lines(entity, texts)]),
        *_section("Generated, not saved yet", generated),
        *([f"The content of {hidden:,} entities is not shown."] if hidden else []),
    ]


def _detail_lines(entity: EntitySnapshot, texts: Mapping[str, str]) -> list[str]:
    name = _name_line(entity.ref, entity.label)
    line = f"{name} ({label(entity.type)}) [{entity.status}] turn {entity.turn_last_ref}"
    return [line, f"  {texts[entity.ref]}"] if entity.ref in texts else [line]


def _masked_text(data: object) -> str:
    return _content_text(mask_data(data, RefsByForm()))


def _content_text(data: object) -> str:
    """Format content as JSON on one line, without ids and cut to `MAX_CONTENT` characters."""
    text = mask_ids(single_line(json.dumps(data, ensure_ascii=False)))
    return text if len(text) <= MAX_CONTENT else f"{text[:MAX_CONTENT]}{ELLIPSIS} ({len(text):,} characters)"


def _name_line(ref: str, name: str) -> str:
    is_short = len(ref) + len(name) <= MAX_CACHED_LABEL
    return _short_name_line(ref, name) if is_short else f"- `{label(ref)}`: {label(name)}"


@lru_cache(maxsize=8192)
def _short_name_line(ref: str, name: str) -> str:
    return f"- `{label(ref)}`: {label(name)}"


def _ref_and_label_sections(ctx: EntityContext) -> list[str]:
    return [
        *_section("Active entities", [_name_line(entity.ref, entity.label) for entity in _not_deleted(ctx.active)]),
        *_section("Generated, not saved yet", [_name_line(entity.ref, entity.label) for entity in ctx.generated]),
        *_section("Retained from earlier turns", [f"- `{label(entity.ref)}`" for entity in _not_deleted(ctx.retained)]),
    ]


def _reply_sections(ctx: EntityContext) -> list[str]:
    return [
        *_section("Entities", [f"- {_spoken_name(entity)} (saved)" for entity in _not_deleted(ctx.active)]),
        *_section("Generated", [f"- {_spoken_name(entity)} (not saved yet)" for entity in ctx.generated]),
    ]


def _spoken_name(entity: EntitySnapshot) -> str:
    """Return the name to use toward a user: the label, else the type, because users do not see refs."""
    if entity.label in ("", entity.ref):
        return f"unnamed, of {label(entity.type) or 'no type'}"
    return label(entity.label)


def _curation_sections(ctx: EntityContext) -> list[str]:
    tiers = (
        ("Active", ctx.active),
        ("Generated, not saved yet", ctx.generated),
        ("Retained from earlier turns", ctx.retained),
    )
    return [line for title, entities in tiers for line in _section(title, list(map(_curation_line, entities)))]


def _curation_line(entity: EntitySnapshot) -> str:
    turns = f"created turn {entity.turn_created}, last referenced turn {entity.turn_last_ref}"
    facts = f"{label(entity.type)}, {entity.status}, {turns}"
    why = f", kept because: {label(entity.retention_reason)}" if entity.retention_reason else ""
    return f"{_name_line(entity.ref, entity.label)} ({facts}{why})"
