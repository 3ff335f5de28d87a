"""What is said lands in folders that are private and ignored, whoever makes them first."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from context_compiler import ContextCompiler
from context_compiler.paths import make_private
from tests.cli.conftest import Command, one_line

GRAPH = "digraph g { start [shape=Mdiamond]; a [prompt=Go]; done [shape=Msquare]; start -> a -> done }"


def mode(folder: Path) -> int:
    return stat.S_IMODE(folder.stat().st_mode)


def ignored(folder: Path) -> bool:
    """Whether a folder is its owner's alone and ignores itself."""
    return mode(folder) == 0o700 and (folder / ".gitignore").read_text() == "*\n"


def test_the_outermost_folder_that_is_created_is_private_and_ignores_itself(tmp_path: Path) -> None:
    make_private(tmp_path / "a" / "b" / "c")
    assert ignored(tmp_path / "a") and (tmp_path / "a" / "b" / "c").is_dir()
    make_private(tmp_path / "a" / "d")
    assert [path.parent.name for path in tmp_path.rglob(".gitignore")] == ["a"]


def test_a_folder_that_was_there_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o755)
    before = mode(tmp_path / "mine")
    make_private(tmp_path / "mine")
    assert mode(tmp_path / "mine") == before and list((tmp_path / "mine").iterdir()) == []
    make_private(tmp_path / "mine" / "run")
    assert mode(tmp_path / "mine") == before and ignored(tmp_path / "mine" / "run")


def test_an_ignore_file_above_a_repository_does_not_count_inside_it(tmp_path: Path) -> None:
    """A home that ignores everything says nothing of the repositories in it."""
    (tmp_path / ".gitignore").write_text("*\n")
    (tmp_path / "project" / ".git").mkdir(parents=True)
    make_private(tmp_path / "project" / "run")
    assert ignored(tmp_path / "project" / "run")


def test_a_file_in_place_of_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        make_private(tmp_path / "file" / "below")


def _attached(cc: Command) -> None:
    asyncio.run(Agent(TestModel(), capabilities=[ContextCompiler(budget=4_000)]).run("Hello."))


def _talked(cc: Command) -> None:
    assert cc("chat", "--model", "scripted:0", input="Hello.\n").code == 0


def _ran(cc: Command) -> None:
    Path("g.dot").write_text(GRAPH)
    assert cc("pipeline", "run", "g.dot", "--simulate").code == 0


@pytest.mark.parametrize("first", [_attached, _talked, _ran])
def test_the_folder_of_the_record_is_private_whichever_file_is_written_there_first(
    cc: Command, tmp_path: Path, first: Callable[[Command], None]
) -> None:
    first(cc)
    assert ignored(tmp_path / "system")


@pytest.mark.parametrize("args", [("--logs", "runs/one"), ("--runs", "runs")], ids=" ".join)
def test_the_folder_of_a_run_is_private_and_ignored(cc: Command, tmp_path: Path, args: tuple[str, ...]) -> None:
    (tmp_path / "g.dot").write_text(GRAPH)
    assert cc("pipeline", "run", "g.dot", "--simulate", *args).code == 0
    assert ignored(tmp_path / "runs") and len(list((tmp_path / "runs").rglob(".gitignore"))) == 1


def test_a_run_adds_nothing_else_to_an_existing_folder(cc: Command, tmp_path: Path) -> None:
    (tmp_path / "g.dot").write_text(GRAPH)
    (tmp_path / "mine").mkdir()
    assert cc("pipeline", "run", "g.dot", "--simulate", "--logs", "mine").code == 0
    assert (tmp_path / "mine" / "a" / "prompt.md").exists() and not list((tmp_path / "mine").rglob(".gitignore"))


def test_a_vault_is_not_hidden_from_its_owner(cc: Command, tmp_path: Path) -> None:
    (tmp_path / "vault").mkdir()
    assert cc("chat", "--model", "scripted:0", "--vault", "vault", input="Hello.\n").code == 0
    assert (tmp_path / "vault" / "AssistantMD" / "Chat_Sessions" / "main.md").exists()
    assert not list((tmp_path / "vault").rglob(".gitignore"))


@pytest.mark.parametrize("place", ["file/context.db", "file/deeper/context.db"])
def test_a_record_below_a_file_is_refused_with_the_reason(cc: Command, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    said = cc("demo", "--db", place)
    assert said.code == 2 and "a folder of this path is a file; give another path" in one_line(said)
