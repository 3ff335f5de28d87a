"""Layers of a session as each kind of node sees them, and quality and checkpoints of a managed session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from context_compiler.compiler.trace import session_of
from context_compiler.layers.context import NEEDS, layer_prompt, layer_texts, node_template
from context_compiler.layers.session import Layers
from context_compiler.record import sessions as stored
from context_compiler.record.browse import SessionRow
from context_compiler.tokens import as_counter
from context_compiler.web.data import Inspector

COMMITS = 100
"""Maximum commits shown; the newest."""

SCORES = 400
"""Maximum turns whose scores are drawn; the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSection:
    """One section of a node's context."""

    name: str
    tokens: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """One kind of node and its current context."""

    role: str
    tokens: int
    sections: tuple[LayerSection, ...]
    prompt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LayersPage:
    """The layers of a session."""

    session: SessionRow
    stored: bool
    """False if no layers were ever stored; then this is the state at the beginning of the first turn."""
    nodes: tuple[NodeRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Scores of one turn of a managed session."""

    turn: int
    """From 1."""
    quality: float
    health: float
    tokens: int
    summarized: bool
    checkpoint: str | None
    rolled_back: bool
    trouble: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRow:
    """One commit of a managed session."""

    id: str
    turns: int
    memories: int
    author: str
    message: str
    created_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerPage:
    """Scores of a managed session by turn, oldest first, and its commits, newest first."""

    session: SessionRow
    scores: tuple[Score, ...]
    commits: tuple[CommitRow, ...]


async def load_layers(inspector: Inspector, number: int) -> LayersPage:
    """Load the layers of a session as all four kinds of node see them.

    If there are none under the session's vault, those without a vault are used, because the conversation of a node is
    recorded under its own vault.
    """
    info = await inspector.read(partial(session_of, number=number))
    store = inspector.store.scoped(info.owner)
    vaults = dict.fromkeys((info.vault_name, ""))
    stored_in = [name for name in vaults if await store.layers(info.session_id, name) is not None]
    vault_name = stored_in[0] if stored_in else info.vault_name
    state = cast("Mapping[str, Any]", await Layers(store, vault_name=vault_name).state(info.session_id))
    counter = as_counter(None)
    nodes: list[NodeRow] = []
    for role in NEEDS:
        texts = {name: text for name, text in layer_texts(role, state).items() if text}
        prompt = layer_prompt(role, state, "…", template=node_template(role, inspector.template_library))
        sections = [LayerSection(name=name, tokens=counter.text(text), text=text) for name, text in texts.items()]
        nodes.append(NodeRow(role=role, tokens=counter.text(prompt), sections=tuple(sections), prompt=prompt))
    return LayersPage(session=info, stored=bool(stored_in), nodes=tuple(nodes))


async def load_manager(inspector: Inspector, number: int) -> ManagerPage:
    """Load the scores and commits of a managed session; both are empty for any other session."""
    info = await inspector.read(partial(session_of, number=number))
    store = inspector.store.scoped(info.owner)
    scores = await store.perform(partial(stored.scores, name=info.session_id))
    commits = await store.perform(partial(stored.commit_log, name=info.session_id, limit=COMMITS))
    return ManagerPage(
        session=info,
        scores=tuple(
            Score(
                turn=row["turn_index"] + 1,
                summarized=bool(row["summarized"]),
                rolled_back=bool(row["rolled_back"]),
                **{name: row[name] for name in ("quality", "health", "tokens", "checkpoint", "trouble")},
            )
            for row in scores[-SCORES:]
        ),
        commits=tuple(CommitRow(**{name: row[name] for name in CommitRow.__dataclass_fields__}) for row in commits),
    )
