"""The README and the pages of docs are run: every block of code, every command."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from context_compiler.chat import local_model
from tests.support.anthropic_server import AnthropicServer
from tests.support.pages import PAGES, ROOT, page
from tests.support.warm import write_command, write_python

ELSEWHERE = "docs/benchmarks"
"""Beginning of the names of pages whose code is not run here: their commands take hours and are run by hand."""

BLOCK = re.compile(r"^(?:<!-- (?P<note>[^>\n]+) -->\n)?```(?P<language>\w*)\n(?P<body>.*?)^```$", re.M | re.S)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


HOST = _numbers(metadata.version("pydantic-ai-slim"))
"""Version of the host; a block after `<!-- host: 2.68 -->` needs that one or a newer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block of a page."""

    language: str
    body: str
    note: str
    line: int
    shown: str | None
    """What the page shows as its output: the `text` block that follows it directly."""


def blocks(text: str) -> Iterator[Block]:
    matches = list(BLOCK.finditer(text))
    for index, match in enumerate(matches):
        after = matches[index + 1] if index + 1 < len(matches) else None
        output = after is not None and after["language"] == "text" and not text[match.end() : after.start()].strip()
        yield Block(
            language=match["language"],
            body=match["body"],
            note=match["note"] or "",
            line=text.count("\n", 0, match.start("body")) + 1,
            shown=after["body"] if after is not None and output else None,
        )


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
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_page(name: str, desk: Path, loop: asyncio.AbstractEventLoop, *, commands: bool) -> None:
    """Run a page from top to bottom, with or without its commands."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page(name)):
        location = f"{name}:{block.line}"
        printed: str | None = None
        if block.note.startswith("file: "):
            path = desk / block.note.removeprefix("file: ")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.body)
        elif block.note.startswith("host: ") and HOST < _numbers(block.note):
            continue
        elif block.language == "python":
            printed = run_python(block, location, namespace, loop)
        elif block.language == "sh":
            if commands and not block.note.startswith("command: "):  # installations have tests of their own
                printed = run_shell(block.body, desk)
        else:
            assert block.language == "text", f"{location}: nobody runs {block.language!r}"
        if printed is not None and block.shown is not None:
            assert same(block.shown, printed), f"{location} prints\n{printed}"


RUN = [name for name in PAGES if not name.startswith(ELSEWHERE)]


@pytest.mark.parametrize("name", [name for name in RUN if "```sh" not in page(name)])
def test_the_code_of_a_page_produces_the_shown_output(
    name: str, desk: Path, provider: AnthropicServer, sync_loop: asyncio.AbstractEventLoop
) -> None:
    run_page(name, desk, sync_loop, commands=False)


@pytest.mark.parametrize("name", [name for name in RUN if "```sh" in page(name)])
def test_the_commands_and_code_of_a_page_produce_the_shown_output(
    name: str, desk: Path, provider: AnthropicServer, sync_loop: asyncio.AbstractEventLoop
) -> None:
    write_command(desk.parent / "bin" / "context-compiler")
    run_page(name, desk, sync_loop, commands=True)


def test_the_first_page_also_holds_after_the_demo(
    desk: Path, provider: AnthropicServer, sync_loop: asyncio.AbstractEventLoop
) -> None:
    """The demo begins cold, as everybody's does."""
    figures = re.search(r"and ([\d,]+) tokens", run_shell("context-compiler demo", desk))
    assert figures and f"about {round(int(figures[1].replace(',', '')), -3):,} tokens" in page("README.md")
    run_page("README.md", desk, sync_loop, commands=False)


INSTALLS = r"(?:pip install [^&]+&& )+"


def test_the_first_page_shows_the_output_of_the_demo(desk: Path) -> None:
    shown = next(block.shown for block in blocks(page("README.md")) if block.note == "command: try")
    write_command(desk.parent / "bin" / "context-compiler")
    assert shown is not None and re.findall(INSTALLS, shown) == [
        f"{local_model.INSTALL} && ",
        'pip install ".[web]" && ',
    ]
    said = run_shell("context-compiler demo", desk)
    assert re.sub(INSTALLS, "", shown) == re.sub(INSTALLS, "", said), "the page shows it without these extras"
    table = page("README.md").partition("|---|---|---|\n")[2].partition("\n\n")[0]
    for figure in re.findall(r"\| ([\d,]+) ", table):
        assert f" {figure} " in shown.replace(" of ", " ") or f"{figure} tokens" in shown, figure
    assert re.findall(r"turns (\d+) to 25", table) == re.findall(r"begin in turn (\d+)", shown)


@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_an_example_runs_without_a_key(script: Path, desk: Path) -> None:
    write_python(desk.parent / "bin" / "python3")
    printed = run_shell(f"python3 {script}", desk)
    assert "compiled" in printed and "False" not in printed
    if script.stem == "recipe_assistant":
        assert printed.count("━━ turn") == 10 and "think is told" in printed
