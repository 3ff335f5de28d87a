"""Pages: the Jinja2 environment of all templates in `pages/`, and the style sheets and scripts beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, FunctionLoader, StrictUndefined, select_autoescape

from context_compiler.messages.display import FORMS, asset, reason_text
from context_compiler.messages.printable import number, safe, safe_line, share, timestamp
from context_compiler.web.api import STATUSES

HERE = Path(__file__).parent

MENU = (
    (
        "/sessions",
        "Sessions",
        (
            *("sessions", "session", "fact", "request", "message", "why", "diff", "replay", "export"),
            *("compile", "layers", "manager"),
        ),
    ),
    ("/templates", "Templates", ("templates", "template")),
    ("/pipelines", "Pipelines", ("pipelines", "pipeline")),
    ("/chat", "Chat", ("chat",)),
)
"""Main menu: address, name, and the resources below it."""

REQUEST_TABS = (
    ("", "Messages"),
    ("why", "Why not?"),
    ("diff", "Difference"),
    ("replay", "What if?"),
    ("export", "Export"),
)
"""Views of one request: the end of the address, and the name."""

SESSION_TABS = (
    ("", "Requests"),
    ("fact", "Find a fact"),
    ("steering", "Steer"),
    ("layers", "Layers"),
    ("manager", "Quality"),
)
"""Views of one session: the end of the address, and the name."""

TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
"""Types of the files in `static/` that are served."""


@cache
def environment() -> Environment:
    """Templates of the pages; every value is escaped."""
    made = Environment(
        loader=ChoiceLoader([FileSystemLoader(HERE / "pages"), FunctionLoader(asset)]),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Any] = {"number": number, "percent": share, "when": timestamp, "line": safe_line, "plain": safe}
    filters |= {"reason": reason_text, "pretty": pretty}
    made.filters.update(filters)
    named: dict[str, Any] = {
        "forms": FORMS,
        "link": link,
        "static": static_path,
        "statuses": STATUSES,
        "menu": MENU,
        "request_tabs": REQUEST_TABS,
        "session_tabs": SESSION_TABS,
    }
    made.globals.update(named)
    return made


def load_pages() -> None:
    """Compile every template of a page, which takes as long as an answer otherwise does."""
    for name in ("messages.html", *(file.name for file in (HERE / "pages").iterdir())):
        environment().get_template(name)


def pretty(value: object) -> str:
    """A value as JSON to read."""
    return safe(json.dumps(value, indent=2, ensure_ascii=False).encode("utf-8", "backslashreplace").decode())


def link(path: str, /, **query: object) -> str:
    """An address with the parameters that are not empty."""
    given = {name: value for name, value in query.items() if value not in ("", None)}
    return f"{path}?{urlencode(given)}" if given else path


def render(name: str, **values: Any) -> str:
    """A page as text."""
    return environment().get_template(name).render(**values)


@cache
def static_files() -> Mapping[str, tuple[bytes, str]]:
    """Content and type of every served file, by name."""
    found = {
        file.name: (file.read_bytes(), TYPES[file.suffix])
        for file in sorted((HERE / "static").iterdir())
        if file.suffix in TYPES
    }
    return {**found, "messages.css": (asset("messages.css").encode(), TYPES[".css"])}


@cache
def static_path(name: str) -> str:
    """Address of a served file, which changes with its content."""
    return f"/static/{name}?{sha256(static_files()[name][0]).hexdigest()[:12]}"
