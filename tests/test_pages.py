"""What the pages list is complete, and what they lead to is there."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import re
import sqlite3
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import context_compiler
from context_compiler.cli.root import COMMANDS
from context_compiler.fidelity import CAPS
from context_compiler.middleware.arguments import Arguments
from context_compiler.record.store import SQLiteStore
from context_compiler.settings import Settings
from context_compiler.template import Template
from tests.support.pages import PAGES, ROOT, page


def anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", PAGES)
def test_links_resolve(name: str) -> None:
    text = re.sub(r"```.*?```", "", page(name), flags=re.S)
    targets = re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", text)
    for target in (link or other for link, other in targets):
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / name).parent / path if path else ROOT / name
        assert file.exists(), f"{name} leads to {target}"
        assert not anchor or anchor in anchors(file.read_text(encoding="utf-8")), f"{name} leads to {target}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    for path in map(Path, PAGES[1:]):
        folder = path.parent
        index, link = ("README.md", path) if folder.name == "docs" else (f"{folder}.md", path.relative_to("docs"))
        assert f"({link})" in page(index), path


def table_rows(text: str) -> list[list[str]]:
    """The cells of every table row."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def names_in(cells: list[str]) -> set[str]:
    return {name for cell in cells for name in re.findall(r"`([^`\s]+)`", cell)}


def test_every_argument_is_explained() -> None:
    host, one_view = page("docs/host.md"), page("docs/budget/one-view.md")
    assert {field.name for field in fields(Arguments)} <= names_in([row[0] for row in table_rows(host)])
    one_shot = set(inspect.signature(context_compiler.compile_view).parameters)
    assert one_shot <= names_in([row[0] for row in table_rows(one_view)])


def test_the_defaults_are_those_of_the_table() -> None:
    rows = {row[0]: row[1] for row in table_rows(page("docs/host.md")) if len(row) == 3}
    for first, second in rows.items():
        names = [name for name in re.findall(r"`(\w+)`", first) if name in {field.name for field in fields(Arguments)}]
        values = re.findall(r"`([^`]+)`", second)
        for index, name in enumerate(names):
            default = next(field.default for field in fields(Arguments) if field.name == name)
            assert ast.literal_eval(values[min(index, len(values) - 1)]) == default, name


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
    rows = {row[0].strip("`"): row[1] for row in table_rows(page("docs/budget/details.md"))}
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
    text = page("docs/record/tables.md")
    for name, columns in tables.items():
        part = re.search(rf"## `{name}`.*?\n(.*?)(?=\n## |\nThe first word)", text, re.S)
        if part is None:
            row = next(row for row in table_rows(text) if row[0] == f"`{name}`")
            assert names_in([row[1]]) == columns, name
            continue
        rows = [row for row in table_rows(part[1]) if re.fullmatch(r"`\w+`", row[0])]
        assert [row[0].strip("`") for row in rows] == list(dict.fromkeys(row[0].strip("`") for row in rows))
        assert {row[0].strip("`") for row in rows} == columns, name
        assert {row[0].strip("`") for row in rows if row[2]} == nullable[name], name


def test_the_shipped_templates_match_their_page() -> None:
    text = page("docs/templates.md")
    for file in sorted((ROOT / "templates").glob("*.md")):
        template = Template.parse(file.read_text(encoding="utf-8"), name=file.stem)
        assert f"| `{file.stem}` |" in text
        assert template.token_threshold is None, f"{file.stem} leaves the threshold to the session"


def test_every_command_and_option_is_explained() -> None:
    text = page("docs/cli.md")
    options: set[str] = set()
    for name, (module, *_) in COMMANDS.items():
        app: Any = get_command(importlib.import_module(f"context_compiler.cli.{module}").app)
        listed: list[str] = app.list_commands(None) if hasattr(app, "commands") else []
        commands: dict[str, Any] = {inner: app.get_command(None, inner) for inner in listed} or {name: app}
        grouped = name not in commands and len(commands) > 1
        for inner, command in commands.items():
            if not grouped and inner != name and len(commands) > 1:
                continue
            said = f"context-compiler {name} {inner}" if grouped else f"context-compiler {name}"
            assert said in text, said
            options |= {flag for parameter in command.params for flag in parameter.opts if flag.startswith("-")}
    missing = {flag for flag in options if not re.search(rf"(?<![\w-]){flag}(?![\w-])", text)}
    assert not missing
    said = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))
    assert said <= options | {"--help", "--version", "--install-completion", "--show-completion"}


def test_code_locations_named_in_pages_exist() -> None:
    contributing = page("CONTRIBUTING.md")
    architecture = {
        f"context_compiler/{path}"
        for path in re.findall(r"`((?!tests/)[a-z_]+/[a-z_/]*\.py)`", page("docs/architecture.md"))
    }
    paths = {path for path in re.findall(r"`((?:context_compiler|templates|tests|docs)/[^`\s]*)`", contributing)}
    assert len(architecture) > 8 and len(paths) > 20
    assert not [path for path in architecture | paths if not (ROOT / path).exists()]
    for name, path in re.findall(r"`(\w+)` in `([^`]+\.py)`", contributing):
        assert re.search(rf"^(?:def |class )?{name}\b", (ROOT / path).read_text(encoding="utf-8"), re.M), (
            f"{name} in {path}"
        )


def test_every_package_is_in_the_architecture_diagram() -> None:
    picture = (ROOT / "docs" / "architecture.svg").read_text(encoding="utf-8")
    folders = {file.parent.name for file in (ROOT / "context_compiler").glob("*/__init__.py")}
    assert not {name for name in folders if f">{name}</text>" not in picture}


def test_the_glossary_has_at_most_25_entries_in_order_and_each_once() -> None:
    tables = re.split(r"^\|---", page("docs/glossary.md"), flags=re.M)[1:]
    words = [re.findall(r"^\| \*\*(.+?)\*\* \|", table, re.M) for table in tables]
    assert all(table == sorted(set(table), key=str.lower) for table in words)
    assert 20 <= len(entries := sum(words, [])) <= 25 and len(set(entries)) == len(entries)
