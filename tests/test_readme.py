"""The README and the pages of docs are run: every block of code, every command; and what they list is complete."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import importlib
import inspect
import io
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import context_compiler
from context_compiler.cli.root import COMMANDS
from context_compiler.fidelity import CAPS
from context_compiler.live.wanted import Wanted
from context_compiler.settings import Settings
from context_compiler.store.sqlite import SQLiteStore
from context_compiler.template import Template
from tests.support.anthropic_server import AnthropicServer

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))
ELSEWHERE = {"docs/benchmarks.md": "its commands take hours and are run by hand"}
"""Pages whose code is not run here, and why."""

BLOCK = re.compile(r"^(?:<!-- (?P<note>[^>\n]+) -->\n)?```(?P<language>\w*)\n(?P<body>.*?)^```$", re.M | re.S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block of a page."""

    language: str
    body: str
    note: str
    line: int
    shown: str | None
    """What the page shows as its output: the `text` block that follows it directly."""


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(text: str) -> Iterator[Block]:
    found = list(BLOCK.finditer(text))
    for at, one in enumerate(found):
        after = found[at + 1] if at + 1 < len(found) else None
        output = after is not None and after["language"] == "text" and not text[one.end() : after.start()].strip()
        yield Block(
            language=one["language"],
            body=one["body"],
            note=one["note"] or "",
            line=text.count("\n", 0, one.start("body")) + 1,
            shown=after["body"] if after is not None and output else None,
        )


def command(name: str) -> str:
    """The command of the README that is marked with that name."""
    return next(block.body for block in blocks(page("README.md")) if block.note == f"command: {name}")


def same(shown: str, real: str) -> bool:
    """Whether an output is as shown; a line `…` stands for any lines."""
    pattern = "".join(r"(?:.*\n)*" if line == "…" else re.escape(line) + "\n" for line in shown.splitlines())
    return re.fullmatch(pattern, real) is not None


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[AnthropicServer]:
    """A provider on loopback that every agent of a page talks to, by the environment variables of its SDK."""
    with AnthropicServer("Check the queue, then the logs.") as server:
        monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.base_url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield server


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, with the conversation of the package where a checkout has it."""
    data = tmp_path / "work" / "context_compiler" / "data"
    data.mkdir(parents=True)
    shutil.copy(ROOT / "context_compiler" / "data" / "demo.json", data)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, what in (("context-compiler", " -m context_compiler"), ("python3", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{what} "$@"\n')
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for variable in [name for name in os.environ if name.startswith("CONTEXT_COMPILER_")]:
        monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def run_python(block: Block, name: str, namespace: dict[str, Any], loop: asyncio.AbstractEventLoop) -> str:
    """What a block prints; `await` stands at its top level as in a notebook."""
    padded = "\n" * (block.line - 1) + block.body
    code = compile(padded, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        done = eval(code, namespace)
        if inspect.iscoroutine(done):
            loop.run_until_complete(done)
    return printed.getvalue()


def run_shell(text: str, folder: Path, **more: str) -> str:
    """What a command prints; it must end well."""
    done = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", text],
        cwd=folder,
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_page(name: str, desk: Path, loop: asyncio.AbstractEventLoop, *, commands: bool) -> None:
    """Run a page from top to bottom, with or without its commands."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page(name)):
        place = f"{name}:{block.line}"
        printed: str | None = None
        if block.note.startswith("file: "):
            path = desk / block.note.removeprefix("file: ")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.body)
        elif block.language == "python":
            printed = run_python(block, place, namespace, loop)
        elif block.language == "sh":
            if commands and not block.note.startswith("command: "):  # installations have tests of their own
                printed = run_shell(block.body, desk)
        else:
            assert block.language == "text", f"{place}: nobody runs {block.language!r}"
        if printed is not None and block.shown is not None:
            assert same(block.shown, printed), f"{place} prints\n{printed}"


@pytest.mark.parametrize("name", [name for name in PAGES if name not in ELSEWHERE])
def test_the_code_of_a_page_does_what_the_page_shows(
    name: str, desk: Path, provider: AnthropicServer, sync_loop: asyncio.AbstractEventLoop
) -> None:
    run_page(name, desk, sync_loop, commands=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PAGES if name not in ELSEWHERE and "```sh" in page(name)])
def test_the_commands_of_a_page_do_what_the_page_shows(
    name: str, desk: Path, provider: AnthropicServer, sync_loop: asyncio.AbstractEventLoop
) -> None:
    run_page(name, desk, sync_loop, commands=True)


@pytest.mark.slow
def test_what_the_first_page_shows_is_so_also_after_the_demo(
    desk: Path, provider: AnthropicServer, sync_loop: asyncio.AbstractEventLoop
) -> None:
    run_shell("context-compiler demo", desk)
    run_page("README.md", desk, sync_loop, commands=False)


@pytest.mark.slow
@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_an_example_runs_without_a_key(script: Path, desk: Path) -> None:
    printed = run_shell(f"python3 {script}", desk)
    assert "compiled" in printed


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """This checkout as somebody would have just cloned it."""
    left_out = shutil.ignore_patterns(
        ".git", ".venv*", "__pycache__", ".*_cache", ".hypothesis", "system", "dist", "build"
    )
    shutil.copytree(ROOT, tmp_path / "checkout", ignore=left_out)
    return tmp_path / "checkout"


@pytest.mark.slow
def test_the_first_command_installs_and_shows_the_main_job(checkout: Path) -> None:
    printed = run_shell(command("try"), checkout, PYTHONPATH="")
    figures = re.search(r"and ([\d,]+) tokens", printed)
    assert figures and f"about {round(int(figures[1].replace(',', '')), -3):,} tokens" in page("README.md")
    assert "NOT" not in printed and "within its budget" in printed


@pytest.mark.slow
def test_the_second_command_installs_and_finds_the_tests(checkout: Path) -> None:
    printed = run_shell(command("tests"), checkout, PYTHONPATH="", PYTEST_ADDOPTS="--collect-only -p no:cacheprovider")
    assert re.search(r"^\d+ tests collected", printed, re.M)
    look_up = "from context_compiler import TemplateLibrary as T; print(T(system=None).find('chat_compiler').path)"
    found = run_shell(f'{checkout}/.venv/bin/python -c "{look_up}"', checkout.parent, PYTHONPATH="")
    assert Path(found.strip()) == checkout / "templates" / "chat_compiler.md"


def anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    text = re.sub(r"```.*?```", "", page(name), flags=re.S)
    targets = re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", text)
    for target in (one or other for one, other in targets):
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / name).parent / path if path else ROOT / name
        assert file.exists(), f"{name} leads to {target}"
        assert not anchor or anchor in anchors(file.read_text(encoding="utf-8")), f"{name} leads to {target}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    assert not [name for name in PAGES if name.startswith("docs/") and f"({name})" not in page("README.md")]


def table_rows(text: str) -> list[list[str]]:
    """The cells of every table row."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def names_in(cells: list[str]) -> set[str]:
    return {name for cell in cells for name in re.findall(r"`([^`\s]+)`", cell)}


def test_every_argument_is_explained() -> None:
    host, budget = page("docs/host.md"), page("docs/budget.md")
    assert {field.name for field in fields(Wanted)} <= names_in([row[0] for row in table_rows(host)])
    one_shot = set(inspect.signature(context_compiler.compile_view).parameters)
    assert one_shot <= names_in([row[0] for row in table_rows(budget)])


def test_the_defaults_are_those_of_the_table() -> None:
    rows = {row[0]: row[1] for row in table_rows(page("docs/host.md")) if len(row) == 3}
    for first, second in rows.items():
        names = [name for name in re.findall(r"`(\w+)`", first) if name in {field.name for field in fields(Wanted)}]
        given = re.findall(r"`([^`]+)`", second)
        for at, name in enumerate(names):
            default = next(field.default for field in fields(Wanted) if field.name == name)
            assert ast.literal_eval(given[min(at, len(given) - 1)]) == default, name


def test_every_environment_variable_is_explained() -> None:
    rows = {row[0].strip("`"): row[1].strip("`") for row in table_rows(page("docs/host.md")) if len(row) == 3}
    for field in fields(Settings):
        default = rows[field.name.upper()]
        assert default == (
            "none"
            if field.default is None
            else f"{field.default:g}"
            if isinstance(field.default, float)
            else str(field.default)
        )


def test_the_fidelities_are_those_of_the_table() -> None:
    rows = {row[0].strip("`"): row[1] for row in table_rows(page("docs/budget.md"))}
    assert {mode.value: f"{cap:,} tokens" for mode, cap in CAPS.items()}.items() <= rows.items()


async def test_every_column_of_the_record_is_explained(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "context.db")
    await store.sessions()
    await store.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "context.db")) as db:
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE '%!_fts!_%' ESCAPE '!'"
        tables = {name: {row[1] for row in db.execute(f"PRAGMA table_info({name})")} for (name,) in db.execute(query)}
        nullable = {
            name: {row[1] for row in db.execute(f"PRAGMA table_info({name})") if not row[3] and not row[5]}
            for name in ("views", "context_summaries")
        }
    text = page("docs/record.md")
    for name, columns in tables.items():
        part = re.search(rf"### `{name}`.*?\n(.*?)(?=\n### |\nThe first word)", text, re.S)
        if part is None:
            row = next(row for row in table_rows(text) if row[0] == f"`{name}`")
            assert names_in([row[1]]) == columns, name
            continue
        rows = [row for row in table_rows(part[1]) if re.fullmatch(r"`\w+`", row[0])]
        assert [row[0].strip("`") for row in rows] == list(dict.fromkeys(row[0].strip("`") for row in rows))
        assert {row[0].strip("`") for row in rows} == columns, name
        assert {row[0].strip("`") for row in rows if row[2]} == nullable[name], name


def test_what_is_said_of_the_shipped_templates_is_so() -> None:
    text = page("docs/templates.md")
    for file in sorted((ROOT / "templates").glob("*.md")):
        template = Template.parse(file.read_text(encoding="utf-8"), name=file.stem)
        assert f"| `{file.stem}` |" in text
        assert template.token_threshold == 0.5, (
            f"README.md and docs say that {file.stem} compiles at half of the budget"
        )


def test_every_command_and_option_is_explained() -> None:
    text = page("docs/cli.md")
    known: set[str] = set()
    for name, (module, _) in COMMANDS.items():
        app: Any = get_command(importlib.import_module(f"context_compiler.cli.{module}").app)
        commands: dict[str, Any] = getattr(app, "commands", {name: app})
        grouped = name not in commands and len(commands) > 1
        for inner, one in commands.items():
            if not grouped and inner != name and len(commands) > 1:
                continue
            said = f"context-compiler {name} {inner}" if grouped else f"context-compiler {name}"
            assert said in text, said
            known |= {flag for parameter in one.params for flag in parameter.opts if flag.startswith("-")}
    missing = {flag for flag in known if not re.search(rf"(?<![\w-]){flag}(?![\w-])", text)}
    assert not missing
    said = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))
    assert said <= known | {"--help", "--version", "--install-completion", "--show-completion"}
