"""HTML display of messages, for the web pages, for notebooks and for standalone files.

The markup is in `data/html/messages.html`, which escapes every text; pages of the inspector have their own. All colors
are in `data/html/messages.css`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined, select_autoescape

from context_compiler.messages.display import FORMS, Bar, ShownMessage


def asset(name: str) -> str:
    """Text of a template or style sheet in `data/html`."""
    return files("context_compiler").joinpath(f"data/html/{name}").read_text(encoding="utf-8")


@cache
def environment() -> Environment:
    """Jinja environment for the display templates; it escapes every value."""
    jinja = Environment(
        loader=FunctionLoader(asset),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters["number"] = lambda value: f"{value:,.0f}"
    return jinja


def fragment(title: str, facts: Sequence[tuple[str, str]], messages: Sequence[ShownMessage], bar: Sequence[Bar]) -> str:
    """Render messages and their budget bar as an HTML fragment that includes its style sheet."""
    return _render("fragment.html", title=title, facts=facts, messages=messages, bar=bar)


def document(title: str, facts: Sequence[tuple[str, str]], messages: Sequence[ShownMessage], bar: Sequence[Bar]) -> str:
    """Render messages and their budget bar as a self-contained HTML document."""
    return _render("document.html", title=title, facts=facts, messages=messages, bar=bar)


def _render(name: str, **values: Any) -> str:
    return environment().get_template(name).render(style=asset("messages.css"), forms=FORMS, **values)
