"""Pages of the site that are no file in `docs/`: the README, the gallery, the API from its docstrings, and `llms.txt`.

mkdocs calls these functions; `python -m mkdocs build --strict` makes the site, without any access to a network.
"""

from __future__ import annotations

import posixpath
import re
from importlib import import_module
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]

COPIES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
}
"""Files of the checkout that are pages of the site."""

PACKAGES = {
    "package": ("context_compiler", "The package"),
    "chat": ("context_compiler.chat", "Chat"),
    "layers": ("context_compiler.layers", "Layers"),
    "manager": ("context_compiler.manager", "Manager"),
    "pipeline": ("context_compiler.pipeline", "Pipelines"),
    "testing": ("context_compiler.testing", "Testing"),
}
"""Public packages: each name in `__all__` is documented where it is defined."""

LINK = re.compile(r'(\]\(|src=")([^)"\s#]+)')


def on_files(files: Any, *, config: Any) -> Any:
    """Add the pages that are made here."""
    made = {target: (ROOT / source).read_text(encoding="utf-8") for source, target in COPIES.items()}
    made["gallery.md"] = gallery()
    made |= {f"reference/{name}.md": reference(*of) for name, of in PACKAGES.items()}
    for target, text in made.items():
        files.append(File.generated(config, target, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Lead links into the checkout to the pages of the site."""
    return LINK.sub(lambda found: found[1] + target(found[2], page.file.src_uri), markdown)


def target(link: str, page: str) -> str:
    """A link as it is on the site; `page` has it."""
    source = next((source for source, copy in COPIES.items() if copy == page), f"docs/{page}")
    if ":" in link or page.startswith("reference/"):
        return link
    path = (ROOT / source).parent / link
    if not path.resolve().is_relative_to(ROOT):
        return link
    name = path.resolve().relative_to(ROOT).as_posix()
    uri = "gallery.md" if name.startswith("examples/") else COPIES.get(name, name.removeprefix("docs/"))
    return posixpath.relpath(uri, posixpath.dirname(page) or ".")


def gallery() -> str:
    """The recipes in `examples/`, each with its description and its text."""
    lines = ["# Gallery", "", "Recipes that run without a key: `python examples/NAME.py` in a checkout.", ""]
    for file in sorted((ROOT / "examples").glob("*.py")):
        text = file.read_text(encoding="utf-8")
        about = re.match(r'"""(.*?)"""', text, re.S)
        title = file.stem.replace("_", " ").capitalize()
        lines += [
            f"## {title}",
            "",
            about[1].strip() if about else "",
            "",
            "```python",
            text[about.end() :].strip() if about else text,
            "```",
            "",
        ]
    for file in sorted((ROOT / "examples").glob("*.md")):
        lines += [
            f"## {file.stem.replace('_', ' ').capitalize()}: a workflow",
            "",
            "````markdown",
            file.read_text(encoding="utf-8").strip(),
            "````",
            "",
        ]
    return "\n".join(lines)


def reference(package: str, title: str) -> str:
    """A page with every public name of a package."""
    module: Any = import_module(package)
    lines = [f"# {title}", "", f"Everything here is imported from `{package}`.", ""]
    for name in module.__all__:
        home = getattr(getattr(module, name), "__module__", package)
        home = home if home.startswith("context_compiler") else package
        lines += [f"::: {home}.{name}", ""]
    return "\n".join(lines)


def on_post_build(*, config: Any) -> None:
    """Write `llms.txt`, the pages with a sentence each, and `llms-full.txt`, their texts without tables of figures."""
    Path(config["site_dir"], "llms.txt").write_text(llms(config["nav"]), encoding="utf-8")
    texts = [(ROOT / "README.md"), *sorted((ROOT / "docs").rglob("*.md"))]
    whole = "\n\n".join(path.read_text(encoding="utf-8") for path in texts if path.parent.name != "benchmarks")
    Path(config["site_dir"], "llms-full.txt").write_text(whole, encoding="utf-8")


def llms(nav: list[Any]) -> str:
    """The site as an agent reads it: https://llmstxt.org."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    sources = {copy: ROOT / source for source, copy in COPIES.items()}
    lines = ["# context_compiler", "", f"> {first_paragraph(readme)}", ""]
    for section in nav:
        for title, pages in section.items():
            if isinstance(pages, str):
                continue
            lines += [f"## {title}", ""]
            for page in pages:
                for name, uri in page.items():
                    file = sources.get(uri, ROOT / "docs" / uri)
                    about = first_paragraph(file.read_text(encoding="utf-8")) if file.is_file() else ""
                    lines.append(f"- [{name}]({uri.removesuffix('.md')}.html)" + (f": {about}" if about else ""))
            lines.append("")
    return "\n".join(lines)


def first_paragraph(text: str) -> str:
    """The first sentence below the title, without markup."""
    blocks = [block.strip() for block in text.split("\n\n")[1:]]
    plain = next((one for one in blocks if re.match(r"[`*A-Z]", one) and not one.startswith("```")), "")
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(plain.split())).replace("**", "")
    return re.split(r"(?<=[.:])\s", plain)[0].rstrip(":")
