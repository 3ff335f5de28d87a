"""A template's text becomes a program once, and the program runs in a fresh box every time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, TracebackType

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.meta import find_undeclared_variables

from context_compiler.template.grammar import checked, metered
from context_compiler.template.limits import EFFORT, ROOM, Purse
from context_compiler.template.sandbox import Sandbox

MOST_SYMBOLS = 20_000
"""Words, signs and blanks inside the tags of one template."""

TRIPS = (
    *(jinja2.TemplateError, ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, NameError),
    *(RuntimeError, SyntaxError, TypeError, ValueError),
)
"""What a template can trip over."""


class Refused(Exception):
    """A template that is wrong, or that asks for too much; `line` is 1-based, in the text of the template."""

    def __init__(self, message: str, line: int | None) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A template that is ready to run, and the names it asks for."""

    code: CodeType
    names: frozenset[str]


@lru_cache(maxsize=64)
def compiled(body: str) -> Program:
    """Read a template's text and make it ready to run.

    Raises:
        Refused: it is not a template, says what no template may say, or is far too long.
    """
    box = Sandbox(Purse())
    try:
        if sum(kind != "data" for _, kind, _ in box.lex(body)) > MOST_SYMBOLS:
            raise SecurityError(f"there are more than {MOST_SYMBOLS:,} words and signs inside tags")
        tree = metered(checked(box.parse(body)))
        return Program(code=box.compile(tree), names=frozenset(find_undeclared_variables(tree)))
    except TRIPS as error:
        line = error.lineno if isinstance(error, jinja2.TemplateSyntaxError) else None
        raise Refused(_reason(error), line) from error


def run(program: Program, values: Mapping[str, object]) -> str:
    """Render; a value that is None counts as missing.

    Raises:
        Refused: it tripped over something, or was about to take too long or grow too large.
    """
    most = ROOM + sum(len(value) for value in values.values() if isinstance(value, str))
    box = Sandbox(Purse(EFFORT * most))
    template = jinja2.Template.from_code(box, program.code, box.globals)
    context = template.new_context({name: value for name, value in values.items() if value is not None})
    chunks: list[str] = []
    try:
        for chunk in template.root_render_func(context):
            chunks.append(chunk)
            most -= len(chunk)
            if most < 0:
                raise SecurityError("the rendering is too long")
    except TRIPS as error:
        raise Refused(_reason(error), _line(template, error.__traceback__)) from error
    return "".join(chunks)


def _reason(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return getattr(error, "msg", None) or getattr(error, "message", None) or str(error) or type(error).__name__


def _line(template: jinja2.Template, trace: TracebackType | None) -> int | None:
    """The line of the template that a traceback came through last."""
    line = None
    while trace is not None:
        if trace.tb_frame.f_globals.get("__jinja_template__") is template:
            line = template.get_corresponding_lineno(trace.tb_lineno)
        trace = trace.tb_next
    return line
