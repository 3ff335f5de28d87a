"""Whatever a session holds: what is told fits, no id shows, a registry comes back whole, and tiers never overlap."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from context_compiler.layers import NEEDS, SessionIdRegistry, get_entity_context, layer_texts
from context_compiler.layers.context import layer_block, node_template
from context_compiler.template import TemplateLibrary
from context_compiler.tokens import TokenCounter

COUNTER, LIBRARY = TokenCounter(), TemplateLibrary(system=None)
texts = st.text(max_size=200)
ids = st.uuids().map(str)
refs = st.sampled_from([f"{kind}_{number}" for kind in ("recipe", "gen_recipe") for number in range(1, 5)])
acts = st.one_of(
    st.tuples(st.just("register_read"), st.just("recipes"), ids, texts),
    st.tuples(st.just("register_created"), st.just("recipes"), ids, texts),
    st.tuples(st.just("register_deleted"), st.just("recipes"), ids, texts),
    st.tuples(st.just("register_generated"), st.just("recipes"), texts, texts),
    st.tuples(st.sampled_from(["touch", "demote", "drop"]), refs),
    st.tuples(st.just("retain"), refs, st.just("a reason")),
    st.tuples(st.just("next turn")),
)


def played(moves: list[tuple[Any, ...]]) -> SessionIdRegistry:
    registry = SessionIdRegistry()
    for name, *args in moves:
        if name == "next turn":
            registry.set_turn(registry.current_turn + 1)
        else:
            getattr(registry, name)(*args)
    return registry


@given(st.lists(acts, max_size=30))
def test_an_entity_is_in_one_tier_at_most_and_survives_json(moves: list[tuple[Any, ...]]) -> None:
    registry = played(moves)
    context = get_entity_context(registry)
    tiers = [entity.ref for tier in (context.active, context.generated, context.retained) for entity in tier]
    assert len(tiers) == len(set(tiers)) and all(ref in registry for ref in tiers)
    assert not any(registry.is_demoted(entity.ref) for entity in (*context.active, *context.retained))
    again = SessionIdRegistry.from_dict(json.loads(json.dumps(registry.to_dict())))
    assert again.to_dict() == registry.to_dict() and get_entity_context(again) == context


@given(st.lists(acts, max_size=12), texts, texts, st.sampled_from(sorted(NEEDS)), st.integers(0, 600))
def test_the_layers_fit_their_room_and_show_no_id(
    moves: list[tuple[Any, ...]], said: str, noted: str, role: str, room: int
) -> None:
    registry = played(moves)
    state = {
        "id_registry": registry,
        "user_message": said,
        "steps": [{"description": noted, "result": [{"id": move[2]} for move in moves if len(move) == 4]}],
        "conversation": {"recent_turns": [{"user": said, "assistant_summary": noted}], "history_summary": noted},
    }
    told = layer_block(role, state, node_template(role, LIBRARY), room=room, counter=COUNTER)
    assert told.tokens <= room and bool(told.text) == bool(told.tokens)
    shown = "\n".join(layer_texts(role, state).values())
    assert not [uuid for uuid in _ids(moves) if uuid in shown]


def _ids(moves: list[tuple[Any, ...]]) -> list[str]:
    uuids: list[str] = []
    for move in moves:
        for argument in move[1:]:
            try:
                uuids.append(str(UUID(argument)))
            except ValueError:
                continue
    return uuids
