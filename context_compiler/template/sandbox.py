"""Sandboxed rendering of templates: data in, bounded text out.

A template is compiled once and rendered in a fresh sandbox each time. It may use only the node types, filters and
methods listed here. Its checked syntax tree is rewritten so that every loop iteration, every piece of text and every
intermediate value is charged to the budget of the rendering. So an exhausted budget or a passed deadline can end a
rendering without threads or signals.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from time import thread_time
from types import BuiltinMethodType, CodeType, MethodType, TracebackType
from typing import Literal, cast

import jinja2
from jinja2 import ChainableUndefined, TemplateSyntaxError, Undefined, filters, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.meta import find_undeclared_variables
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import SandboxedEnvironment
from jinja2.visitor import NodeTransformer

DEEPEST_CALL = 30
"""Maximum depth of nested calls."""
MAX_RANGE = 100_000
"""Maximum numbers of a range."""
FINEST = 20
"""Maximum digits to round to."""
MAX_STRIPPED = 100
"""Maximum characters that are stripped from a text, because each of its characters is compared with all of them."""


class Missing(ChainableUndefined):
    """Value of an undefined name: empty, and false in every comparison."""

    __slots__ = ()

    def _compare(self, other: object) -> bool:
        return False

    __lt__ = __le__ = __gt__ = __ge__ = _compare  # pyright: ignore[reportAssignmentType] # upstream's always raise


METHODS: Mapping[type, frozenset[str]] = {
    str: frozenset("lower upper title capitalize strip lstrip rstrip startswith endswith split splitlines".split()),
    dict: frozenset(("items", "keys", "values", "get")),
}
"""Methods that a template may call, by type of the value."""


def _methods(value: object) -> frozenset[str]:
    return next((names for kind, names in METHODS.items() if isinstance(value, kind)), frozenset[str]())


def _range(*edges: int) -> range:
    numbers = range(*edges)
    if len(numbers) > MAX_RANGE:
        raise SecurityError(f"a range has at most {MAX_RANGE:,} numbers")
    return numbers


@pass_context
def _finalize(context: Context, value: object) -> object:
    """Charge an output value to the budget; `pass_context` keeps Jinja from evaluating it at compile time."""
    if value is None or isinstance(value, Undefined):
        return ""
    return cast(Sandbox, context.environment).budget.charge(value)


class Sandbox(SandboxedEnvironment):
    """Environment of one rendering."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%"))

    def __init__(self, budget: RenderBudget) -> None:
        super().__init__(
            undefined=Missing,
            autoescape=False,
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=_finalize,
        )
        self.budget = budget
        self.depth = 0
        self.globals = {"range": _range}
        own = {name[1:]: getattr(self, name) for name in ("_indent", "_join", "_replace", "_trim")}
        hooks = {TICK: self._tick, WEIGH: budget.charge, JOINED: self._concat, PART: self._part, LINE: self._line}
        self.filters = {name: filters.FILTERS[name] for name in FILTERS} | SAFER | own | hooks

    def getattr(self, obj: object, attribute: str) -> object:
        """Return an entry of a mapping or an allowed method; else an undefined value."""
        if isinstance(obj, Undefined):
            return obj
        if isinstance(obj, Mapping):
            entries = cast(Mapping[str, object], obj)
            return entries[attribute] if attribute in entries else self._method(entries, attribute)
        return self._method(obj, attribute)

    def _method(self, obj: object, attribute: str) -> object:
        if attribute in _methods(obj) or (isinstance(obj, LoopContext) and not attribute.startswith("_")):
            return getattr(obj, attribute)
        return self.undefined(obj=obj, name=attribute)

    def getitem(self, obj: object, argument: object) -> object:
        """Return an entry or element; else, if `argument` is a name, the result of `getattr`."""
        try:
            return cast(Mapping[object, object], obj)[argument]
        except (TypeError, LookupError):
            if isinstance(argument, str):
                return self.getattr(obj, argument)
        return self.undefined(obj=obj, name=str(argument))

    def is_safe_callable(self, obj: object) -> bool:
        """True if a template may call `obj`: `range`, its own macros and loops, and allowed methods of data."""
        if isinstance(obj, BuiltinMethodType):
            return obj.__name__ in _methods(obj.__self__)
        if isinstance(obj, MethodType):
            return isinstance(obj.__self__, LoopContext)
        return obj is _range or isinstance(obj, Macro | LoopContext)

    def call(self, context: Context, obj: object, /, *args: object, **kwargs: object) -> object:
        """Call a callable, up to the maximum depth; an undefined one returns an undefined value."""
        if isinstance(obj, Undefined):
            return obj()
        self.depth += 1
        try:
            self.budget.spend(4 * STEP)
            if self.depth > DEEPEST_CALL:
                raise SecurityError(f"calls are more than {DEEPEST_CALL} deep")
            if isinstance(obj, BuiltinMethodType) and obj.__name__.endswith("strip"):
                _check_stripped(*args)
            return self.budget.charge(super().call(context, obj, *args, **kwargs))
        finally:
            self.depth -= 1

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        """Apply an operator to numbers, or add and repeat strings; an undefined operand of `+` is ignored."""
        self.budget.spend(STEP)
        if isinstance(left, Undefined) or isinstance(right, Undefined):
            present = right if isinstance(left, Undefined) else left
            return present if operator == "+" else self.undefined(name="number")
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        if operator == "*" and isinstance(left, str) and isinstance(right, int):
            self.budget.spend(len(left) * right)
        elif not numbers and operator != "+":
            raise SecurityError(f"{operator!r} is for numbers; join texts with ~")
        return self.budget.charge(super().call_binop(context, operator, left, right))

    def _tick(self, size: int) -> bool:
        self.budget.spend(STEP + size)
        return True

    def _concat(self, *parts: object) -> str:
        texts: list[str] = []
        for part in parts:
            texts.append("" if part is None else str(part))
            self.budget.spend(STEP + len(texts[-1]))
        return "".join(texts)

    def _line(self, value: object, end: str) -> str:
        text = "" if value is None else str(self.budget.charge(value))
        return text and text + end

    def _part(self, value: object, *edges: int | None) -> object:
        return value if isinstance(value, Undefined) else self.budget.charge(cast(str, value)[slice(*edges)])

    def _indent(self, text: object, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        text = str(text)
        self.budget.spend((len(width) if isinstance(width, str) else width) * (len(text.splitlines()) + 1))
        return filters.do_indent(text, width, first, blank)

    def _join(self, values: Iterable[object], between: object = "", attribute: str | None = None) -> str:
        items = list(values)
        parts = (self.getitem(item, attribute) for item in items) if attribute else items
        texts: list[str] = []
        for part in parts:
            texts.append(str(part))
            self.budget.spend(len(texts[-1]) + len(str(between)))
        return str(between).join(texts)

    def _replace(self, text: object, old: object, new: object, count: int = -1) -> str:
        self.budget.spend(str(text).count(str(old)) * len(str(new)))
        return str(text).replace(str(old), str(new), count)

    def _trim(self, text: object, characters: str | None = None) -> str:
        _check_stripped(characters)
        return str(text).strip(characters)


def _check_stripped(characters: object = None) -> None:
    if isinstance(characters, str) and len(characters) > MAX_STRIPPED:
        raise SecurityError(f"at most {MAX_STRIPPED} characters can be stripped from a text")


def _round(value: float, precision: int = 0, method: Literal["common", "ceil", "floor"] = "common") -> float:
    if abs(precision) > FINEST:
        raise SecurityError(f"round to at most {FINEST} digits")
    return filters.do_round(value, precision, method)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _pass_missing(applied: Callable[..., object]) -> Callable[..., object]:
    def lenient(value: object, *args: object, **kwargs: object) -> object:
        return value if isinstance(value, Undefined) else applied(value, *args, **kwargs)

    return lenient


SAFER = {
    "abs": _pass_missing(abs),
    "dictsort": _pass_missing(filters.do_dictsort),
    "round": _pass_missing(_round),
    "tojson": _pass_missing(_json),
}


FILTERS = tuple(
    "abs capitalize count d default dictsort first float groupby indent int items join last length list lower map"
    " max min reject rejectattr replace reverse round select selectattr sort string title tojson trim truncate"
    " unique upper wordcount".split()
)

TICK, WEIGH, JOINED, PART, LINE = " tick", " weigh", " joined", " part", " line"
"""Names of the sandbox's hooks, which are called as filters. A template cannot name them because of the space."""

STATEMENTS = (nodes.Output, nodes.For, nodes.If, nodes.Assign, nodes.AssignBlock, nodes.With, nodes.Scope, nodes.Macro)

EXPRESSIONS = (
    *(nodes.TemplateData, nodes.Const, nodes.Name, nodes.Tuple, nodes.List, nodes.Dict, nodes.Pair, nodes.Keyword),
    *(nodes.CondExpr, nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not, nodes.Neg, nodes.Pos),
    *(nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Concat),
    *(nodes.Filter, nodes.Test, nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.Call),
)

ALLOWED = frozenset((nodes.Template, *STATEMENTS, *EXPRESSIONS))

CALLED: dict[type[nodes.Node], str] = {
    nodes.Pow: "the power operator",
    nodes.NSRef: "a namespace",
    nodes.CallBlock: "a call block",
    nodes.FilterBlock: "a filter block",
    nodes.FromImport: "import",
    nodes.ScopedEvalContextModifier: "autoescape",
}
"""Readable names of forbidden node types, for error messages."""


def forbidden(tree: nodes.Template) -> Iterator[TemplateSyntaxError]:
    """Yield an error for each node and filter in a tree that is not allowed."""
    for node in tree.find_all(nodes.Node):
        kind = type(node)
        if kind not in ALLOWED:
            yield TemplateSyntaxError(f"{CALLED.get(kind, kind.__name__.lower())} cannot be used here", node.lineno)
        if isinstance(node, nodes.AssignBlock) and node.filter is not None:
            yield TemplateSyntaxError("a set block cannot have a filter; apply it where the name is used", node.lineno)
        if isinstance(node, nodes.Filter) and node.name not in FILTERS:
            yield TemplateSyntaxError(f"there is no filter {node.name!r}; there are {', '.join(FILTERS)}", node.lineno)


def _hook(name: str, node: nodes.Expr, *others: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(others), [], None, None, lineno=node.lineno)


def _tick(size: int, lineno: int) -> nodes.ExprStmt:
    return nodes.ExprStmt(_hook(TICK, nodes.Const(size, lineno=lineno)), lineno=lineno)


def _absorb_line_break(output: nodes.Output, index: int, static: list[str]) -> None:
    """Make a placeholder on a line of its own include the line break, so that an empty value leaves no gap."""
    apart = static[index - 1].endswith("\n\n") or (index == 1 and static[0] == "\n")
    end = "\n\n" if apart and static[index + 1].startswith("\n\n") else "\n"
    lineno = output.nodes[index].lineno
    output.nodes[index] = _hook(LINE, output.nodes[index], nodes.Const(end, lineno=lineno))
    output.nodes[index + 1] = nodes.TemplateData(static[index + 1][len(end) :], lineno=lineno)


class _MeterInserter(NodeTransformer):
    def visit_Output(self, node: nodes.Output) -> list[nodes.Node]:
        self.generic_visit(node)
        static = [child.data if isinstance(child, nodes.TemplateData) else "" for child in node.nodes]
        for index in range(1, len(static) - 1):
            if not static[index] and static[index - 1].endswith("\n") and static[index + 1].startswith("\n"):
                _absorb_line_break(node, index, static)
        return [_tick(sum(map(len, static)), node.lineno), node]

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _tick(0, node.lineno))
        if node.test is not None:
            each = _hook(TICK, nodes.Const(0, lineno=node.lineno))
            node.test = nodes.And(each, node.test, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _hook(JOINED, *node.nodes)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        edges = (node.arg.start, node.arg.stop, node.arg.step)
        return _hook(PART, node.node, *(edge or nodes.Const(None, lineno=node.lineno) for edge in edges))

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:
        self.generic_visit(node)
        return _hook(WEIGH, node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _hook(WEIGH, node) if node.ctx == "load" else node

    visit_List = visit_Dict = visit_Filter


ROOM = 1_000_000
"""Maximum characters of a rendering beyond those of the given values."""
EFFORT = 8
"""Units of a rendering's budget for each character that its output may have; a character costs one unit."""
STEP = 64
"""Units for a loop iteration, and for a piece of text or an operation in addition to its size; a call costs four times
that."""
ELEMENT = 32
"""Units for a number, and for a container in addition to its contents."""
SECONDS = 2.0
"""Maximum CPU time of a rendering, not counting its longest step: that may be a garbage collection of a large process.

Not wall-clock time, because a busy machine would then stop harmless templates."""
MAX_BITS = 256
"""Maximum bits of an integer."""


class RenderBudget:
    """Units that one rendering may still spend, and its deadline."""

    def __init__(self, units: int = 0) -> None:
        self.units = units
        self._start = self._latest = thread_time()
        self._longest = 0.0

    def spend(self, units: int) -> None:
        """Spend units.

        Raises:
            SecurityError: The budget is exhausted, or the deadline has passed.
        """
        self.units -= max(0, units)
        if self.units < 0:
            raise SecurityError("it makes far more text, or takes far more steps, than a template should")
        before, self._latest = self._latest, thread_time()
        self._longest = max(self._longest, self._latest - before)
        if self._latest - self._start - self._longest > SECONDS:
            raise SecurityError(f"it takes more than {SECONDS:g} s of CPU time")

    def charge(self, value: object) -> object:
        """Charge everything in `value`, at any depth, and return the value; an iterator becomes a list."""
        if isinstance(value, Iterator):
            value = list(self._charge_each(cast(Iterator[object], value)))
        waiting = [value]
        while waiting:
            element = waiting.pop()
            self.spend(len(element) if isinstance(element, str) else ELEMENT)
            if isinstance(element, int):
                if element.bit_length() > MAX_BITS:
                    raise SecurityError("a number is too large")
            elif isinstance(element, dict):
                waiting += cast(dict[object, object], element)
                waiting += cast(dict[object, object], element).values()
            elif not isinstance(element, str | bytes | range) and isinstance(element, Collection):
                waiting += cast(Collection[object], element)
                waiting += cast(Mapping[object, object], element).values() if isinstance(element, Mapping) else ()
        return value

    def _charge_each(self, values: Iterator[object]) -> Iterator[object]:
        for value in values:
            self.spend(ELEMENT)
            yield value


MAX_SYMBOLS = 20_000
"""Maximum tokens (words, signs and spaces) inside the tags of one template."""

TEMPLATE_ERRORS = (
    *(jinja2.TemplateError, ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, NameError),
    *(RuntimeError, SyntaxError, TypeError, ValueError),
)
"""Errors that a template can cause."""


class RenderError(Exception):
    """A template is invalid or exceeds its budget; `line` is the 1-based line in the body, if known."""

    def __init__(self, message: str, line: int | None) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A compiled template with the names that it uses."""

    code: CodeType
    names: frozenset[str]
    lines: Mapping[str, int]
    """First line of each name in the body."""


@lru_cache(maxsize=64)
def compile_body(body: str) -> Program:
    """Compile the body of a template.

    Raises:
        RenderError: The body is not valid Jinja, uses something that is not allowed, or is too long.
    """
    box = Sandbox(RenderBudget())
    try:
        if sum(kind != "data" for _, kind, _ in box.lex(body)) > MAX_SYMBOLS:
            raise SecurityError(f"there are more than {MAX_SYMBOLS:,} words and signs inside tags")
        tree = box.parse(body)
        for error in forbidden(tree):
            raise error
        lines = {name.name: name.lineno for name in reversed([*tree.find_all(nodes.Name)])}
        tree = _MeterInserter().visit(tree)
        return Program(code=box.compile(tree), names=frozenset(find_undeclared_variables(tree)), lines=lines)
    except TEMPLATE_ERRORS as error:
        line = error.lineno if isinstance(error, jinja2.TemplateSyntaxError) else None
        raise RenderError(_reason(error), line) from error


_PLACEHOLDERS = re.compile(r"{{[^{}\n]*}}")

MAX_ERRORS = 20
"""Maximum number of errors of a body that are found; the body is compiled again for each."""


def body_errors(body: str) -> list[RenderError]:
    """Find all errors of a body. After an error of syntax, the search goes on without the placeholders of its line."""
    errors: list[RenderError] = []
    while len(errors) < MAX_ERRORS:
        try:
            compile_body(body)
            return errors
        except RenderError as error:
            wrong = error
        try:
            others = [*forbidden(Sandbox(RenderBudget()).parse(body))]
            return [*errors, *([RenderError(_reason(node), node.lineno) for node in others] or [wrong])]
        except TEMPLATE_ERRORS:
            errors.append(wrong)
        lines, index = body.split("\n"), (wrong.line or 0) - 1
        rest = _PLACEHOLDERS.sub("", lines[index]) if 0 <= index < len(lines) else body
        if rest in (body, lines[index]):
            return errors
        body = "\n".join([*lines[:index], rest, *lines[index + 1 :]])
    return errors


def run_program(program: Program, values: Mapping[str, object]) -> str:
    """Render a program with values; a value that is None counts as missing.

    Raises:
        RenderError: The template caused an error, took too long, or grew too large.
    """
    most = ROOM + sum(len(value) for value in values.values() if isinstance(value, str))
    box = Sandbox(RenderBudget(EFFORT * most))
    template = jinja2.Template.from_code(box, program.code, box.globals)
    context = template.new_context({name: value for name, value in values.items() if value is not None})
    chunks: list[str] = []
    try:
        for chunk in template.root_render_func(context):
            chunks.append(chunk)
            most -= len(chunk)
            if most < 0:
                raise SecurityError("the rendering is too long")
    except TEMPLATE_ERRORS as error:
        raise RenderError(_reason(error), _line(template, error.__traceback__)) from error
    return "".join(chunks)


def _reason(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return getattr(error, "msg", None) or getattr(error, "message", None) or str(error) or type(error).__name__


def _line(template: jinja2.Template, trace: TracebackType | None) -> int | None:
    """Line of the template in the innermost frame of a traceback; None if there is no such frame."""
    line = None
    while trace is not None:
        if trace.tb_frame.f_globals.get("__jinja_template__") is template:
            line = template.get_corresponding_lineno(trace.tb_lineno)
        trace = trace.tb_next
    return line
