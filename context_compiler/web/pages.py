"""Rendering of pages: the Jinja2 environment of the templates in `pages/`, and the files in `static/`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, reduce
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, FunctionLoader, StrictUndefined, select_autoescape

from context_compiler.messages.display import FORMS
from context_compiler.messages.html import asset
from context_compiler.messages.printable import number, safe, safe_line, share, timestamp
from context_compiler.middleware.verdict import PRICE_ONLY
from context_compiler.pipeline.draw import STYLE
from context_compiler.web.api import STATUSES
from context_compiler.web.conversation import calls_of, gist, is_folded, painted
from context_compiler.web.data import pretty
from context_compiler.web.home import KINDS

HERE = Path(__file__).parent

MENU = (
    (
        "/sessions",
        "Sessions",
        (
            *("sessions", "session", "fact", "request", "message", "why", "diff", "replay", "export"),
            *("compile", "layers", "manager", "settings", "steering"),
        ),
    ),
    ("/templates", "Templates", ("templates", "template")),
    ("/pipelines", "Pipelines", ("pipelines", "pipeline")),
    ("/chat", "Chat", ("chat",)),
)
"""Main menu: address and name of each entry, and the resources that belong to it."""


def menu(*, chats: bool, runs: str) -> Sequence[tuple[str, str, Sequence[str]]]:
    """Entries of the main menu that lead to something: chats only if there are any, pipelines only with their store."""
    gone = {"/chat": not chats, "/pipelines": "://" not in runs and not Path(runs).exists()}
    return [entry for entry in MENU if not gone.get(entry[0])]


REQUEST_TABS = (
    ("", "Messages"),
    ("why", "Why not?"),
    ("diff", "Difference"),
    ("replay", "What if?"),
    ("export", "Export"),
)
"""Views of one request: suffix of the address, and name."""

SESSION_TABS = (
    ("", "Requests"),
    ("fact", "Find a fact"),
    ("settings", "Settings"),
    ("steering", "Steer"),
    ("layers", "Layers"),
    ("manager", "Quality"),
)
"""Views of one session: suffix of the address, and name."""

COLORS = {"#212121": "ink", "#616161": "soft", "#757575": "faint", "#1565c0": "accent", "#ffffff": "surface"}
"""Colors of a drawing, and those of the pages that replace them."""

TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
"""Media types of the files in `static/`; files with another suffix are not served."""


@cache
def environment() -> Environment:
    """Create the environment of the page templates; every value is escaped."""
    made = Environment(
        loader=ChoiceLoader([FileSystemLoader(HERE / "pages"), FunctionLoader(asset)]),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Any] = {"number": number, "percent": share, "when": timestamp, "line": safe_line, "plain": safe}
    filters |= {"pretty": pretty, "folded": is_folded, "gist": gist, "painted": painted}
    made.filters.update(filters)
    named: dict[str, Any] = {
        "forms": FORMS,
        "link": link,
        "static": static_path,
        "statuses": STATUSES,
        "kinds": KINDS,
        "price_only": PRICE_ONLY,
        "calls_of": calls_of,
        "request_tabs": REQUEST_TABS,
        "session_tabs": SESSION_TABS,
    }
    made.globals.update(named)
    return made


def load_pages() -> None:
    """Compile all page templates in advance, because that takes noticeable time at the first request."""
    for name in ("messages.html", *(file.name for file in (HERE / "pages").iterdir())):
        environment().get_template(name)


def link(path: str, /, **query: object) -> str:
    """Build an address with those parameters that are not empty."""
    values = {name: value for name, value in query.items() if value not in ("", None)}
    return f"{path}?{urlencode(values)}" if values else path


def render(name: str, **values: Any) -> str:
    """Render a page, with a question mark for each damaged byte of the record."""
    return environment().get_template(name).render(**values).encode("utf-8", "replace").decode()


@cache
def static_files() -> Mapping[str, tuple[bytes, str]]:
    """Read all served files: content and media type by name."""
    files = {
        file.name: (file.read_bytes(), TYPES[file.suffix])
        for file in sorted((HERE / "static").iterdir())
        if file.suffix in TYPES
    }
    drawing = reduce(lambda style, color: style.replace(color[0], f"var(--{color[1]})"), COLORS.items(), STYLE)
    made = {"messages.css": asset("messages.css"), "drawing.css": f".drawing svg {{{drawing}}}"}
    return {**files, **{name: (text.encode(), TYPES[".css"]) for name, text in made.items()}}


@cache
def static_path(name: str) -> str:
    """Return the address of a served file; it contains a hash of the content, so that browsers can cache it."""
    return f"/static/{name}?{sha256(static_files()[name][0]).hexdigest()[:12]}"
