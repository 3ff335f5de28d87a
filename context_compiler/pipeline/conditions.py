"""Conditions on edges: comparisons joined by `&&`, such as `outcome=success && context.tests != "red"`.

A condition is parsed once and never executed as code. Values are compared as exact text, and a missing value is the
empty text. A key without an operator holds if its value is neither empty nor `false`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from context_compiler.pipeline.attributes import as_text

MAX_CONDITION = 10_000
"""Maximum length of a condition, in characters."""

STATUSES = {
    **{"ok": "success", "succeeded": "success", "failure": "fail", "failed": "fail", "error": "fail"},
    **{"skip": "skipped", "partialsuccess": "partial_success", "partial-success": "partial_success"},
}
"""Statuses by their synonyms in other engines."""

_KEY = r"[A-Za-z_][A-Za-z0-9_-]*(?:\.[A-Za-z_][A-Za-z0-9_-]*)*"
_CLAUSE = re.compile(
    rf"\s*(?P<key>{_KEY})\s*(?:(?P<operator>!=|==|=)\s*"
    r'(?P<value>"[^"\\]*+(?:\\[\s\S][^"\\]*+)*"|[^"\s&|<>=!()]*+)\s*)?'
)
_UNKNOWN = re.compile(r"\|\||<=|>=|<|>|!(?!=)|&(?!&)|\b(?:contains|matches|not|or|and)\b")
_ESCAPE = re.compile(r"\\([\s\S])")
_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}


class ConditionError(ValueError):
    """Error in a condition; `at` is its offset, from 0."""

    def __init__(self, message: str, at: int) -> None:
        super().__init__(message)
        self.message, self.at = message, at


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """One comparison of a condition."""

    key: str
    operator: str
    """`=` or `!=`; empty if the clause only tests that the value is neither empty nor `false`."""
    value: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A condition: clauses that must all hold. Without clauses it always holds."""

    clauses: tuple[Clause, ...] = ()
    warnings: tuple[str, ...] = ()
    """Messages about tolerated deviations from the syntax."""

    def holds(
        self, values: Mapping[str, object], *, outcome: str = "", preferred_label: str = "", raw: str = ""
    ) -> bool:
        """True if every clause holds.

        Args:
            values: The context of the run.
            outcome: Status of the stage that just ended, such as `success`.
            preferred_label: Label of the edge that this stage asked for.
            raw: The outcome in the words of the stage, if they differ from a status.
        """
        return all(_clause_holds(clause, values, outcome, preferred_label, raw) for clause in self.clauses)


@lru_cache(maxsize=4096)
def parse_condition(text: str) -> Condition:
    """Parse a condition; an empty string becomes a condition that always holds.

    Raises:
        ConditionError: the condition is invalid.
    """
    if len(text) > MAX_CONDITION:
        raise ConditionError(f"a condition has at most {MAX_CONDITION:,} characters", MAX_CONDITION)
    if not text.strip():
        return Condition()
    clauses: list[Clause] = []
    warnings: list[str] = []
    offset = 0
    while True:
        match = _CLAUSE.match(text, offset)
        if match is None:
            raise _syntax_error(text, offset)
        operator = match["operator"] or ""
        if operator == "==":
            operator, warning = "=", "== is read as ="
            warnings += [] if warning in warnings else [warning]
        clauses.append(Clause(key=match["key"], operator=operator, value=_unquote(match["value"] or "")))
        offset = match.end()
        if offset == len(text):
            return Condition(clauses=tuple(clauses), warnings=tuple(warnings))
        if not text.startswith("&&", offset):
            raise _syntax_error(text, offset)
        offset += 2


def context_value(key: str, values: Mapping[str, object]) -> str:
    """Return a context value as text; `context.x` is first looked up as written, then as `x`."""
    value = values.get(key)
    if value is None and key.startswith("context."):
        value = values.get(key.removeprefix("context."))
    return as_text(value)


def _clause_holds(clause: Clause, values: Mapping[str, object], outcome: str, preferred_label: str, raw: str) -> bool:
    if clause.key == "outcome":
        same = status_word(clause.value) == status_word(outcome) or bool(raw and clause.value == raw)
        value = outcome
    else:
        value = preferred_label if clause.key == "preferred_label" else context_value(clause.key, values)
        same = value == clause.value
    if not clause.operator:
        return value.lower() not in ("", "false")
    return same == (clause.operator == "=")


def status_word(word: str) -> str:
    """Replace a synonym of a status by the status; any other word stays unchanged."""
    return STATUSES.get(word.lower(), word)


def _unquote(text: str) -> str:
    if not text.startswith('"'):
        return text
    return _ESCAPE.sub(lambda match: _ESCAPES.get(match[1], match[0]), text[1:-1])


def _syntax_error(text: str, offset: int) -> ConditionError:
    rest = text[offset:].lstrip()
    offset = len(text) - len(rest)
    if not rest:
        return ConditionError("a comparison is missing at the end", offset)
    unknown = _UNKNOWN.match(rest)
    if unknown:
        return ConditionError(f"there is no operator {unknown[0]!r}; use =, != and &&", offset)
    if rest.startswith('"'):
        return ConditionError("a string is not a key, or is not closed", offset)
    return ConditionError(f"{rest[:20]!r} cannot be read; write key=value && key!=value", offset)
