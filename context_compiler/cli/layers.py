"""`layers`: show the layers of a session as a node would get them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, cast

import typer

from context_compiler.cli.options import DB, SYSTEM, Db, Group, Json, Owner, System, Vault, example, group
from context_compiler.cli.records import find_session, with_record
from context_compiler.cli.screen import Column, Screen
from context_compiler.cli.text import json_text, number
from context_compiler.errors import SettingsError
from context_compiler.layers.context import NEEDS, build_context, layer_prompt, layer_texts, node_template
from context_compiler.layers.session import Layers
from context_compiler.layers.turn import TurnState, turn_number
from context_compiler.record.store import SQLStore
from context_compiler.template import Template, TemplateLibrary
from context_compiler.tokens import TokenCounter

app = group(
    "Show the layers of a session as a node would get them.", shown="layers show SESSION --role think", cls=Group
)

PARTS = (
    Column("section", style="bold"),
    Column("tokens", right=True),
    Column("budget", right=True),
    Column("priority", right=True),
)


@app.command("show", epilog=example("layers show chat-1 --role think"))
def show_(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="Name of a session, from `sessions list`.")],
    role: Annotated[str, typer.Option("--role", help=f"Kind of node: {', '.join(NEEDS)}.")] = "think",
    vault_name: Annotated[str, typer.Option("--vault-name", help="Vault, if several have this session.")] = "",
    db: Db = DB,
    owner: Owner = None,
    vault: Vault = None,
    system: System = SYSTEM,
    json: Json = False,
) -> None:
    """Show the prompt block that a node would get now, with the tokens of each section."""
    role = parse_role(role)
    layers, owner = with_record(lambda store: _state(store, session, vault_name), db, owner)
    template = node_template(role, TemplateLibrary(vault=vault, system=system, owner=owner))
    state = cast("Mapping[str, Any]", layers)
    texts = {name: text for name, text in layer_texts(role, state).items() if text}
    screen, turn = Screen(), turn_number(state)
    if json:
        facts = {"db": str(db), "session": session, "vault": vault_name, "role": role, "turn": turn}
        values = {name: _plain(value) for name, value in build_context(role, state).items()}
        screen.raw(json_text({**facts, "sections": texts, "context": values}))
        return
    reached = f"after turn {turn - 1}" if turn > 1 else "before its first turn"
    screen.line((f"session {session}", "bold"), f", {reached}, for {role}")
    if turn == 1:
        screen.line(("no layers are stored for this session yet: this is how its first turn begins", "dim"))
    screen.heading("Sections")
    screen.table(PARTS, _section_rows(texts, template))
    screen.heading("Prompt")
    screen.indented(layer_prompt(role, state, "…", template=template))


def parse_role(text: str) -> str:
    """Check the name of a node.

    Raises:
        SettingsError: there is no such node.
    """
    if text not in NEEDS:
        raise SettingsError(f"--role {text!r}: there is no such node; use one of {', '.join(NEEDS)}")
    return text


async def _state(store: SQLStore, session: str, vault_name: str) -> tuple[TurnState, str]:
    info = (await find_session(store, session))[0]
    layers = Layers(store.scoped(info.owner), vault_name=vault_name)
    return await layers.state(info.session_id), info.owner


def _section_rows(texts: Mapping[str, str], template: Template) -> list[tuple[object, ...]]:
    counter = TokenCounter()
    rows: list[tuple[object, ...]] = []
    for name, text in texts.items():
        rule = template.sections.get(name)
        budget = number(rule.budget) if rule and rule.budget else ""
        rows.append((name, number(counter.text(text)), budget, rule.priority if rule else 0))
    return rows


def _plain(value: object) -> object:
    """Convert a value of the layers for JSON."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("list[object]", value)]
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if callable(dump) else value
