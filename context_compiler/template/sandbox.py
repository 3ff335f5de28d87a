"""Templates run in a box they cannot leave, fill or stay in: data in, bounded text out.

A template reaches only what is listed in `grammar` and here; what it makes of that, it pays for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from types import BuiltinMethodType, MethodType
from typing import Literal, cast

from jinja2 import ChainableUndefined, Undefined, filters, pass_context
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import SandboxedEnvironment

from context_compiler.template.grammar import FILTERS, JOINED, LINE, PART, TICK, WEIGH
from context_compiler.template.limits import STEP, Purse

DEEPEST = 30
"""Calls within calls."""
LONGEST_RANGE = 100_000
FINEST = 20
"""Digits to round to."""


class Missing(ChainableUndefined):
    """A name without a value: empty, smaller and larger than nothing, whatever is asked of it."""

    __slots__ = ()

    def _no(self, other: object) -> bool:
        return False

    __lt__ = __le__ = __gt__ = __ge__ = _no  # pyright: ignore[reportAssignmentType] # upstream's always raise


METHODS: Mapping[type, frozenset[str]] = {
    str: frozenset("lower upper title capitalize strip lstrip rstrip startswith endswith split splitlines".split()),
    dict: frozenset(("items", "keys", "values", "get")),
}
"""Every method of data that a template may call."""


def _methods(value: object) -> frozenset[str]:
    found: frozenset[str] = frozenset()
    return next((names for kind, names in METHODS.items() if isinstance(value, kind)), found)


def _range(*edges: int) -> range:
    numbers = range(*edges)
    if len(numbers) > LONGEST_RANGE:
        raise SecurityError(f"a range has at most {LONGEST_RANGE:,} numbers")
    return numbers


@pass_context
def _shown(context: Context, value: object) -> object:
    """A value on its way out; asking for the context keeps it from being computed when a template is read."""
    if value is None or isinstance(value, Undefined):
        return ""
    return cast(Sandbox, context.environment).purse.weigh(value)


class Sandbox(SandboxedEnvironment):
    """The box of one rendering."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%"))

    def __init__(self, purse: Purse) -> None:
        super().__init__(
            undefined=Missing, autoescape=False, trim_blocks=True, lstrip_blocks=True, optimized=False, finalize=_shown
        )
        self.purse = purse
        self.depth = 0
        self.globals = {"range": _range}
        own = {name[1:]: getattr(self, name) for name in ("_indent", "_join", "_replace")}
        hooks = {TICK: self._tick, WEIGH: purse.weigh, JOINED: self._joined, PART: self._part, LINE: self._line}
        self.filters = {name: filters.FILTERS[name] for name in FILTERS} | SAFER | own | hooks

    def getattr(self, obj: object, attribute: str) -> object:
        """An entry of a mapping, a method that is allowed, or nothing."""
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
        """An entry or element, else what `getattr` has for a name."""
        try:
            return cast(Mapping[object, object], obj)[argument]
        except (TypeError, LookupError):
            if isinstance(argument, str):
                return self.getattr(obj, argument)
        return self.undefined(obj=obj, name=str(argument))

    def is_safe_callable(self, obj: object) -> bool:
        """Whether a template may call this: a range, its own macros and loops, allowed methods of data."""
        if isinstance(obj, BuiltinMethodType):
            return obj.__name__ in _methods(obj.__self__)
        if isinstance(obj, MethodType):
            return isinstance(obj.__self__, LoopContext)
        return obj is _range or isinstance(obj, Macro | LoopContext)

    def call(self, context: Context, obj: object, /, *args: object, **kwargs: object) -> object:
        """Call what may be called, a bounded number of levels deep."""
        if isinstance(obj, Undefined):
            return obj()
        self.depth += 1
        try:
            self.purse.spend(4 * STEP)
            if self.depth > DEEPEST:
                raise SecurityError(f"calls are more than {DEEPEST} deep")
            return self.purse.weigh(super().call(context, obj, *args, **kwargs))
        finally:
            self.depth -= 1

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        """Reckon with numbers, add and repeat texts; what is missing adds nothing."""
        self.purse.spend(STEP)
        if isinstance(left, Undefined) or isinstance(right, Undefined):
            present = right if isinstance(left, Undefined) else left
            return present if operator == "+" else self.undefined(name="number")
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        if operator == "*" and isinstance(left, str) and isinstance(right, int):
            self.purse.spend(len(left) * right)
        elif not numbers and operator != "+":
            raise SecurityError(f"{operator!r} is for numbers; join texts with ~")
        return self.purse.weigh(super().call_binop(context, operator, left, right))

    def _tick(self, size: int) -> bool:
        self.purse.spend(STEP + size)
        return True

    def _joined(self, *parts: object) -> str:
        texts: list[str] = []
        for part in parts:
            texts.append("" if part is None else str(part))
            self.purse.spend(STEP + len(texts[-1]))
        return "".join(texts)

    def _line(self, value: object, end: str) -> str:
        text = "" if value is None else str(self.purse.weigh(value))
        return text and text + end

    def _part(self, value: object, *edges: int | None) -> object:
        return value if isinstance(value, Undefined) else self.purse.weigh(cast(str, value)[slice(*edges)])

    def _indent(self, text: object, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        text = str(text)
        self.purse.spend((len(width) if isinstance(width, str) else width) * (len(text.splitlines()) + 1))
        return filters.do_indent(text, width, first, blank)

    def _join(self, values: Iterable[object], between: object = "", attribute: str | None = None) -> str:
        items = list(values)
        found = (self.getitem(item, attribute) for item in items) if attribute else items
        texts: list[str] = []
        for one in found:
            texts.append(str(one))
            self.purse.spend(len(texts[-1]) + len(str(between)))
        return str(between).join(texts)

    def _replace(self, text: object, old: object, new: object, count: int = -1) -> str:
        self.purse.spend(str(text).count(str(old)) * len(str(new)))
        return str(text).replace(str(old), str(new), count)


def _round(value: float, precision: int = 0, method: Literal["common", "ceil", "floor"] = "common") -> float:
    if abs(precision) > FINEST:
        raise SecurityError(f"round to at most {FINEST} digits")
    return filters.do_round(value, precision, method)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _unless_missing(applied: Callable[..., object]) -> Callable[..., object]:
    def lenient(value: object, *args: object, **kwargs: object) -> object:
        return value if isinstance(value, Undefined) else applied(value, *args, **kwargs)

    return lenient


SAFER = {
    "abs": _unless_missing(abs),
    "dictsort": _unless_missing(filters.do_dictsort),
    "round": _unless_missing(_round),
    "tojson": _unless_missing(_json),
}
