"""`layers`: what the nodes of a session are told of what exists, was said and was decided."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from context_compiler.cli.options import DB, SYSTEM, Db, Json, System, Vault, example, group, known_session, opened
from context_compiler.cli.screen import Column, Screen
from context_compiler.cli.text import json_text, number
from context_compiler.layers.context import NEEDS, build_context, layer_prompt, layer_texts, node_need, node_template
from context_compiler.layers.session import Layers
from context_compiler.layers.turn import TurnState, turn_number
from context_compiler.template import Template
from context_compiler.template.library import TemplateLibrary
from context_compiler.tokens import TokenCounter

app = group("Show what each kind of node is told of a session.", shown="layers show SESSION --role think")

PARTS = (
    Column("section", style="bold"),
    Column("tokens", right=True),
    Column("budget", right=True),
    Column("priority", right=True),
)


@app.callback()
def layers() -> None:
    """Show what each kind of node is told of a session."""


@app.command("show", epilog=example("layers show chat-1 --role think"))
def show_(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="A session, as `sessions list` shows it.")],
    role: Annotated[str, typer.Option("--role", help=f"For which node: {', '.join(NEEDS)}.")] = "think",
    vault_name: Annotated[str, typer.Option("--vault-name", help="Of several vaults with such a session, which.")] = "",
    db: Db = DB,
    vault: Vault = None,
    system: System = SYSTEM,
    json: Json = False,
) -> None:
    """Show what a node would be told of a session now, with what each section costs."""
    node_need(role)
    template = node_template(role, TemplateLibrary(vault=vault, system=system))
    found = asyncio.run(_state(db, session, vault_name))
    state = cast("Mapping[str, Any]", found)
    texts = {name: text for name, text in layer_texts(role, state).items() if text}
    screen, turn = Screen(), turn_number(state)
    if json:
        facts = {"db": str(db), "session": session, "vault": vault_name, "role": role, "turn": turn}
        values = {name: _plain(value) for name, value in build_context(role, state).items()}
        screen.raw(json_text({**facts, "sections": texts, "context": values}))
        return
    screen.line((f"session {session}", "bold"), f", turn {turn}, as {role} is told")
    if turn == 1:
        screen.line(("nothing was told to layers in this session yet: this is what its first turn begins with", "dim"))
    screen.heading("Sections")
    screen.table(PARTS, _priced(texts, template))
    screen.heading("Prompt")
    screen.indented(layer_prompt(role, state, "…", template=template))


async def _state(db: Path, session: str, vault_name: str) -> TurnState:
    async with opened(db) as store:
        (known, *_) = await known_session(store, session)
        return await Layers(store, vault_name=vault_name).state(known.session_id)


def _priced(texts: Mapping[str, str], template: Template) -> list[tuple[object, ...]]:
    counter = TokenCounter()
    found: list[tuple[object, ...]] = []
    for name, text in texts.items():
        rule = template.sections.get(name)
        budget = number(rule.budget) if rule and rule.budget else ""
        found.append((name, number(counter.text(text)), budget, rule.priority if rule else 0))
    return found


def _plain(value: object) -> object:
    """A value of the layers for JSON."""
    if isinstance(value, list | tuple):
        return [_plain(one) for one in cast("list[object]", value)]
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if callable(dump) else value
