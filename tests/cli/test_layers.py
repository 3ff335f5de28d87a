"""`layers show`, and `compile --layers`: what a node is told, from the command line."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from context_compiler import ContextCompiler
from context_compiler.layers import Layers
from tests.cli.conftest import DEMO, Command


@pytest.fixture
def kept(cc: Command, tmp_path: Path) -> Command:
    """A command line in a folder whose record has a session with layers."""

    async def fill() -> None:
        layers = Layers(tmp_path / "system" / "context.db")
        async with layers.turn("dinner", "Something quick?") as turn:
            turn.registry.register_read("recipes", "0f8fad5b-d9cb-469f-a165-70867728950e", "Lemon Herb Chicken")
            turn.decided("propose", "Find dinner", proposal_message="Shall I cook it?")
            turn.answered("I propose the chicken.")
        await layers.close()

    asyncio.run(fill())
    return cc


@pytest.mark.parametrize(
    ("role", "seen", "unseen"),
    [
        ("understand", "created turn 1", "DO NOT"),
        ("think", "DO NOT re-read: recipe_1", "created turn 1"),
        ("act", "[read] turn 1", "Shall I cook it?"),
        ("reply", "- Lemon Herb Chicken (saved)", "recipe_1"),
    ],
)
def test_show_prints_the_layers_that_a_node_receives(kept: Command, role: str, seen: str, unseen: str) -> None:
    said = kept("layers", "show", "dinner", "--role", role)
    assert said.code == 0 and seen in said.out and unseen not in said.out
    assert "## Entity Context" in said.out and "0f8fad5b" not in said.out


def test_show_prints_the_think_node_by_default(kept: Command) -> None:
    assert kept("layers", "show", "dinner").out == kept("layers", "show", "dinner", "--role", "think").out


def test_the_turns_so_far_are_counted(kept: Command) -> None:
    assert kept("layers", "show", "dinner").out.startswith("session dinner, after turn 1, for think\n")


def test_requests_of_nodes_are_listed_with_their_vault(kept: Command, tmp_path: Path) -> None:
    async def ask() -> None:
        db = tmp_path / "system" / "context.db"
        layers = Layers(db)
        async with layers.turn("dinner", "Something else?"):
            for role in ("think", "reply"):
                compiler = ContextCompiler(store=db, layers=layers, role=role, model="none")
                await Agent(TestModel(), capabilities=[compiler]).run("Something else?", conversation_id="dinner")
        await layers.close()

    asyncio.run(ask())
    head, *rows = kept("views", "list").out.splitlines()
    assert head.split()[:4] == ["view", "session", "vault", "turn"]
    assert [row.split()[1:4] for row in rows] == [["dinner", "reply", "1"], ["dinner", "think", "1"]]
    assert all("%" not in row and "–" in row for row in rows)  # the layers are more than the history
    shown = kept("sessions", "show", "dinner").out
    assert "vault  turn" in shown and "sent (–)" in shown
    assert "–" in kept("stats").out and "%" not in kept("stats").out


def test_a_record_without_vaults_has_no_column_of_them(recorded: Command) -> None:
    assert recorded("views", "list").out.split()[:3] == ["view", "session", "turn"]


def test_a_session_without_layers_is_shown_as_one_that_begins(cc: Command) -> None:
    cc("compile", DEMO, "--db", "system/context.db")
    assert "no layers are stored for this session yet" in cc("layers", "show", "demo").out


def test_json_holds_sections_and_values(kept: Command) -> None:
    found = kept("layers", "show", "dinner", "--json").json
    assert (found["role"], found["turn"]) == ("think", 2)
    assert found["sections"]["do_not_read"] == "DO NOT re-read: recipe_1"
    assert found["context"]["conversation"]["pending"]["context"] == "Shall I cook it?"


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        (("dinner", "--role", "cook"), "understand, think, act, reply"),
        (("diner",), "dinner"),
        (("dinner", "--db", "none.db"), "none.db"),
    ],
)
def test_a_wrong_argument_is_reported_in_one_line(kept: Command, asked: tuple[str, ...], what: str) -> None:
    said = kept("layers", "show", *asked)
    assert said.code == 2 and what in said.err and said.err.count("\n") == 1
    assert "Need" not in said.err


def test_a_view_for_a_node_that_does_not_exist_is_one_line(kept: Command) -> None:
    said = kept("compile", DEMO, "--layers", "dinner", "--db", "system/context.db", "--role", "cook")
    assert said.code == 2 and "one of understand, think, act, reply\n" in said.err and said.err.count("\n") == 1


def test_a_deleted_session_has_no_layers(kept: Command) -> None:
    assert kept("sessions", "delete", "dinner", "--yes").code == 0
    assert kept("layers", "show", "dinner").code == 2


def test_explain_counts_the_layers_and_gives_the_reasons_for_them(kept: Command) -> None:
    said = kept("compile", DEMO, "--db", "system/context.db", "--layers", "dinner", "--budget", "2000", "--explain")
    assert said.code == 0
    assert "layer conversation" in said.out and "for think, priority 3" in said.out
    assert "layers before the prompt" in said.out


def test_layers_count_against_the_budget(kept: Command) -> None:
    view = kept("compile", DEMO, "--db", "system/context.db", "--layers", "dinner", "--budget", "900", "--json").json
    assert view["tokens"] <= 900 and view["ledger"]["tokens"]["layers"] > 0


def test_layers_need_the_record_that_holds_them(kept: Command) -> None:
    said = kept("compile", DEMO, "--layers", "dinner")
    assert said.code == 2 and "--db" in said.err


def test_a_node_is_shown_with_the_template_of_the_sessions_owner(cc: Command, tmp_path: Path) -> None:
    async def fill() -> None:
        layers = Layers(tmp_path / "system" / "context.db")
        async with layers.scoped("ann").turn("dinner", "Something quick?") as turn:
            turn.answered("I propose the chicken.")
        await layers.close()

    asyncio.run(fill())
    folder = tmp_path / "prompts" / "ann" / "AssistantMD" / "ContextTemplates" / "layers"
    folder.mkdir(parents=True)
    (folder / "reply.md").write_text("As ann wants it. {{ task }}")
    said = cc("layers", "show", "dinner", "--role", "reply", "--vault", "prompts/{owner}")
    assert said.code == 0 and "As ann wants it." in said.out
