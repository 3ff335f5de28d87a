"""Public names are few and documented; importing touches nothing and can begin anywhere."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import context_compiler
from tests.support.sources import MODULES, ROOT, without_extras
from tests.support.warm import ANEW, python

MOST_NAMES = 30

HOMES = {name: module for module, names in context_compiler._HOMES.items() for name in names}


def test_the_public_names_are_few_and_sorted() -> None:
    names = context_compiler.__all__
    assert names == sorted(names) and len(set(names)) == len(names) <= MOST_NAMES
    assert set(HOMES) == set(names)


@pytest.mark.parametrize("name", context_compiler.__all__)
def test_a_public_name_can_be_imported_and_is_documented(name: str) -> None:
    value = getattr(context_compiler, name)
    home = importlib.import_module(f"context_compiler.{HOMES[name]}")
    assert getattr(home, name) is value
    assert inspect.getdoc(value)
    for member, thing in vars(value).items() if inspect.isclass(value) else ():
        if not member.startswith("_") and (inspect.isfunction(thing) or isinstance(thing, property | classmethod)):
            assert inspect.getdoc(thing), f"{name}.{member} has no docstring"
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    assert any(re.search(rf"\b{name}\b", page.read_text(encoding="utf-8")) for page in pages), "on no page of the docs"


def test_the_help_of_the_capability_begins_with_an_example() -> None:
    lines = (inspect.getdoc(context_compiler.ContextCompiler) or "").splitlines()
    ast.parse(lines[2].strip())
    assert "capabilities=[ContextCompiler(" in lines[2] and lines.index("Args:") > 2


def test_the_help_of_the_capability_groups_its_arguments_in_their_order() -> None:
    text = inspect.getdoc(context_compiler.ContextCompiler) or ""
    groups = [names.split(", ") for names in re.findall(r"^\* [a-z ]+: (.*)$", text, re.M)]
    described = re.findall(r"^    (\w+): ", text.partition("Args:")[2], re.M)
    assert len(groups) == 7 and [name for group in groups for name in group] == described
    fields = inspect.signature(context_compiler.ContextCompiler).parameters
    assert set(described) == fields.keys() - {"defer_loading", "description"}


def test_a_missing_name_raises_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="NoSuchThing"):
        _ = context_compiler.NoSuchThing


@pytest.mark.parametrize(
    ("package", "name", "needs", "extra"),
    [
        ("context_compiler", "PostgresStore", "asyncpg", "postgres"),
        ("context_compiler.pipeline", "PostgresRuns", "asyncpg", "postgres"),
        ("context_compiler.pipeline", "DBOSRuns", "dbos", "dbos"),
    ],
)
def test_a_name_of_an_extra_that_is_not_installed_says_how_to_install_it(
    package: str, name: str, needs: str, extra: str
) -> None:
    code = f"{ANEW}sys.modules[{needs!r}] = None; from {package} import {name}"
    done = subprocess.run([python(), "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert re.search(rf"^ImportError: {name} needs {needs}: pip install \".+\[{extra}\]\"$", done.stderr, re.M), (
        done.stderr
    )


STAR = """
import inspect

sys.modules.update(dict.fromkeys(sys.argv[1:]))
from context_compiler import *
from context_compiler.chat import *
from context_compiler.pipeline import *
import context_compiler, context_compiler.pipeline

ContextCompiler, ChatSession, Pipeline, SQLiteStore("record.db")
inspect.getmembers(context_compiler), inspect.getmembers(context_compiler.pipeline)
print(*sorted({"PostgresStore", "PostgresRuns", "DBOSRuns"} & {*globals()}))
"""

COMMANDS = "typer rich prompt_toolkit markdown_it"
"""Packages of the extra `cli`, apart from those of `pipeline`."""

EXTRAS = f"asyncpg greenlet dbos starlette uvicorn matplotlib openai anthropic pydantic_ai_harness lark {COMMANDS}"


@pytest.mark.parametrize(
    ("missing", "names"),
    [
        (EXTRAS, ""),
        ("asyncpg", "DBOSRuns"),
        ("dbos", "PostgresRuns PostgresStore"),
        ("", "DBOSRuns PostgresRuns PostgresStore"),
    ],
)
def test_a_star_import_needs_no_extra(missing: str, names: str) -> None:
    program = sys.executable if missing == EXTRAS else python()  # the host has loaded some of the extras there
    command = [program, "-c", ANEW + STAR, *missing.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{names}\n", "")


WITHOUT_COMMANDS = """
import asyncio, sys

sys.modules.update(dict.fromkeys(sys.argv[1:]))
from pydantic_ai import Agent
from context_compiler import ContextCompiler, SQLiteStore, compile_view
from context_compiler.chat import ScriptedModel
from context_compiler.pipeline import RunConfig, parse_dot, run_pipeline
from context_compiler.workflow import parse_workflow

agent = Agent(ScriptedModel(), capabilities=[ContextCompiler(budget=2_000, store=SQLiteStore("record.db"))])
result = agent.run_sync("Never deploy on Fridays.", conversation_id="release")
print(asyncio.run(compile_view(result.all_messages(), budget=2_000)).status)
try:
    parse_dot("digraph g { a -> b }")
except Exception as error:
    print(error)
"""


def test_an_agent_needs_neither_the_command_line_nor_the_parser_of_pipelines(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_COMMANDS, "lark", *COMMANDS.split()]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    status, refusal = done.stdout.splitlines()
    assert status == "raw" and done.stderr == ""
    assert re.fullmatch(r'lark not installed: pip install ".+\[pipeline\]"', refusal)


@pytest.mark.parametrize("missing", COMMANDS.split())
def test_a_command_without_its_extra_is_one_line_that_says_what_to_install(missing: str, tmp_path: Path) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from context_compiler.cli import main; main()"
    args = ["chat", "--model", "scripted"] if missing in ("prompt_toolkit", "markdown_it") else ["--version"]
    done = subprocess.run(
        [sys.executable, "-c", code, *args],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and done.stdout == ""
    assert re.fullmatch(rf'error: the command line needs {missing}[\w.]*: pip install ".+\[cli\]"\n', done.stderr)


def test_a_stub_of_an_extra_does_not_break_the_import() -> None:
    code = "import sys, types; sys.modules['asyncpg'] = types.ModuleType('asyncpg'); import context_compiler"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


SILENT = f"""
import sys, threading

ours = sys.argv[1].split(",")
for name in ours:  # what loading the modules of others does is theirs to answer for
    __import__(name)
{ANEW}
seen = []
threading.Thread.start = lambda thread: seen.append(f"starts {{thread}}")

def watch(event, args):
    if event == "open" and not str(args[0]).endswith((".py", ".pyc")):
        seen.append(f"opens {{args[0]}}")
    elif event.startswith(("socket.", "subprocess.", "sqlite3.", "os.mkdir", "os.remove")):
        seen.append(event)

sys.addaudithook(watch)
for name in ours:
    __import__(name)
print(seen)
"""


def test_importing_touches_neither_disk_nor_network_and_starts_no_thread() -> None:
    ours = [f"context_compiler.{name}".rstrip(".") for name in MODULES]
    ours = [name for name in ours if name not in without_extras()]
    run = subprocess.run(
        [python(), "-c", SILENT, ",".join(ours)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        timeout=120,
    )
    assert (run.stdout.strip(), run.returncode) == ("[]", 0), run.stdout + run.stderr


def test_importing_the_package_loads_no_host() -> None:
    code = "import sys, context_compiler; print([name for name in sys.modules if name.startswith('pydantic')])"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True, timeout=300
    )
    assert run.stdout.strip() == "[]"


FIRST = """
import importlib, sys

for first in sys.argv[1].split(","):
    for name in [name for name in sys.modules if name.split(".")[0] == "context_compiler"]:
        del sys.modules[name]
    importlib.import_module(f"context_compiler.{first}")
"""


def test_any_import_order_works_without_deadlock() -> None:
    rooms = sorted(name for name in MODULES if name and "." not in name and not name.startswith("_"))
    run = subprocess.run(
        [sys.executable, "-c", FIRST, ",".join(rooms)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
