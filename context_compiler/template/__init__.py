"""Templates: markdown files that define what a view tells of the past, how much, and its cut order.

Plain markdown is a template. Front matter may say more. The body is rendered with Jinja, in a sandbox, from
values that are data and are never rendered again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal, Self

from context_compiler.errors import TemplateError
from context_compiler.fidelity import Fidelity
from context_compiler.ids import text_hash
from context_compiler.settings import Amount, Count
from context_compiler.template.front_matter import (
    Compiler,
    FrontMatterError,
    SectionRule,
    contract,
    read_choices,
    split_front_matter,
)
from context_compiler.template.sandbox import RenderError, compile_body, run_program

log = logging.getLogger(__name__)

Origin = Literal["vault", "system", "builtin", "inline"]

LARGEST = 256 * 1024
"""Bytes of a template file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """One parsed and fully checked template."""

    name: str
    source: Origin
    path: str | None
    sha256: str
    """Of the file's bytes, in hex."""
    body: str
    description: str = ""
    compiler: Compiler = "agent"
    """`agent`: the body asks a model for the summary; `none`: it is the summary; `extractive`: it heads quotes."""
    fidelity: Fidelity | None = None
    recent_turns: Count | None = None
    recent_tool_results: Count | None = None
    token_threshold: Amount | None = None
    """Threshold, as `trigger`: tokens, or a share of the budget; 0: the budget; None: by kind of session."""
    sections: Mapping[str, SectionRule] = field(default_factory=dict[str, SectionRule], hash=False)
    contract: str | None = None
    """The fenced yaml and json blocks of the body, as text. Nothing enforces them."""
    warnings: tuple[str, ...] = ()
    offset: int = field(default=0, repr=False)
    """Lines of the file above the body."""

    @classmethod
    def parse(cls, text: str, *, name: str, source: Origin = "inline", path: str | None = None) -> Self:
        """Read a template from the text of its file.

        Raises:
            TemplateError: it is not one; the message says where and why.
        """
        try:
            parts = split_front_matter(_normalize(text))
            choices, warnings = read_choices(parts.entries)
        except FrontMatterError as error:
            raise TemplateError(str(error), name=name, path=path, line=error.line) from None
        for warning in warnings:
            _warn_once(f"{path or name}: {warning}")
        template = cls(
            name=name,
            source=source,
            path=path,
            sha256=text_hash(text),
            body=parts.body,
            contract=contract(parts.body),
            warnings=warnings,
            offset=parts.offset,
            **choices,
        )
        template.wants()
        return template

    def wants(self) -> frozenset[str]:
        """The names that the body asks for.

        Raises:
            TemplateError: the body is not one that can be rendered.
        """
        try:
            return compile_body(self.body).names
        except RenderError as error:
            raise self._wrong(error) from None

    def render(self, values: Mapping[str, object]) -> str:
        """Fill in the body. Values are texts, numbers, lists and mappings; one that is missing or None is empty.

        A rendering takes 2 s at most, and has at most 1,000,000 characters more than the texts it is given.

        Raises:
            TemplateError: the body trips over a value, or asks for more than that.
        """
        try:
            return run_program(compile_body(self.body), values).strip("\n")
        except RenderError as error:
            raise self._wrong(error) from None

    def _wrong(self, error: RenderError) -> TemplateError:
        line = error.line + self.offset if error.line else None
        return TemplateError(str(error), name=self.name, path=self.path, line=line)


def _normalize(text: str) -> str:
    """Normalize line ends and strip the byte order mark; refuse text that is empty, binary or too large."""
    if len(text) > LARGEST:
        raise FrontMatterError(f"the template is larger than {LARGEST // 1024} kB", 1)
    if "\0" in text:
        raise FrontMatterError(
            "the template holds a NUL character; is it a text file?", text.count("\n", 0, text.index("\0")) + 1
        )
    if not text.strip("\ufeff \t\r\n"):
        raise FrontMatterError("the template is empty", 1)
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


@lru_cache(maxsize=1024)
def _warn_once(warning: str) -> None:
    log.warning(warning)


@cache
def shipped_templates() -> Path:
    """The folder of the shipped templates: inside the package when installed, beside it in a checkout."""
    package = Path(__file__).parent.parent
    inside = package / "_templates"
    return inside if inside.is_dir() else package.parent / "templates"


@cache
def prompt_text(name: str) -> str:
    """A shipped prompt of `templates/parts/` by name, without surrounding blank lines."""
    return (shipped_templates() / "parts" / f"{name}.md").read_text(encoding="utf-8").strip()
