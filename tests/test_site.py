"""The site has every page, the skill for coding agents works, and a wrong link is noticed."""

from __future__ import annotations

import asyncio
import posixpath
import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import yaml

from context_compiler.cli.root import COMMANDS
from tests.support.anthropic_server import AnthropicServer
from tests.support.pages import PAGES, ROOT
from tests.support.warm import write_command
from tests.test_readme import desk as desk
from tests.test_readme import provider as provider
from tests.test_readme import run_page

SKILL = "context_compiler/.agents/skills/context-compiler/SKILL.md"


def nav() -> list[Any]:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    return yaml.safe_load(text[text.index("\nnav:") :])["nav"]


def uris(nav: list[Any]) -> list[str]:
    found = [page for section in nav for page in section.values()]
    return [uri for one in found for uri in ([one] if isinstance(one, str) else uris(one))]


@pytest.fixture
def site() -> Any:
    """The functions that make pages of the site."""
    pytest.importorskip("mkdocs")
    spec = spec_from_file_location("site_pages", ROOT / "docs" / "site.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_on_the_site_once() -> None:
    found = uris(nav())
    assert len(found) == len(set(found))
    assert {name.removeprefix("docs/") for name in PAGES if name.startswith("docs/")} <= set(found)


def test_the_index_for_agents_lists_every_page(site: Any) -> None:
    text = site.llms(nav())
    listed = re.findall(r"^- \[[^\]]+\]\(([^)]+)\.html\)(.*)$", text, re.M)
    assert [f"{uri}.md" for uri, _ in listed] == [uri for uri in uris(nav()) if uri != "index.md"]
    assert all(about.startswith(": ") for uri, about in listed if uri not in ("gallery",) and "/" not in uri)


def test_a_reference_has_every_public_name(site: Any) -> None:
    for package, title in site.PACKAGES.values():
        module = __import__(package, fromlist=["__all__"])
        names = re.findall(r"^::: context_compiler[\w.]*\.(\w+)$", site.reference(package, title), re.M)
        assert names == module.__all__


def test_links_into_the_checkout_lead_to_pages_of_the_site(site: Any) -> None:
    assert site.target("docs/budget.md", "index.md") == "budget.md"
    assert site.target("../README.md", "which-part.md") == "index.md"
    assert site.target("../budget.md", "benchmarks/live.md") == "../budget.md"
    assert site.target("../examples/recipe_assistant.py", "layers.md") == "gallery.md"
    assert site.target("https://ai.pydantic.dev", "index.md") == "https://ai.pydantic.dev"
    assert "## Recipe assistant" in site.gallery()


def test_every_link_on_the_site_leads_to_a_page_or_a_picture_of_it(site: Any) -> None:
    docs = ROOT / "docs"
    there = {*uris(nav()), *(file.relative_to(docs).as_posix() for file in docs.rglob("*") if file.suffix != ".py")}
    sources = {name: name.removeprefix("docs/") for name in PAGES} | site.COPIES
    for name, page in sources.items():
        text = re.sub(r"```.*?```", "", (ROOT / name).read_text(encoding="utf-8"), flags=re.S)
        targets: list[str] = [site.target(link, page) for _, link in site.LINK.findall(text)]
        paths = [
            posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
            for target in targets
            if ":" not in target
        ]
        assert not set(paths) - there, name


def test_the_code_of_the_skill_produces_the_shown_output(
    desk: Path, provider: AnthropicServer, sync_loop: asyncio.AbstractEventLoop
) -> None:
    write_command(desk.parent / "bin" / "context-compiler")
    run_page(SKILL, desk, sync_loop, commands=True)


def test_the_skill_is_found_by_its_name_and_names_commands_that_exist() -> None:
    _, head, body = (ROOT / SKILL).read_text(encoding="utf-8").split("---\n", 2)
    assert yaml.safe_load(head)["name"] == Path(SKILL).parent.name and len(yaml.safe_load(head)["description"]) < 1024
    assert set(re.findall(r"context-compiler (\w+)", body)) - {"is"} <= set(COMMANDS)
