"""What is to be said about a graph: which rule, how bad, where, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How bad it is: a graph with an error is not run."""

    ERROR = "ERROR"
    WARNING = "WARNING"
    INFO = "INFO"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One finding."""

    rule: str
    """The name of the rule, such as `reachability`."""
    severity: Severity
    message: str
    node_id: str | None = None
    edge: tuple[str, str] | None = None
    """From where to where."""
    fix: str | None = None
    """What to do about it."""
    line: int | None = None
    """In the source, from 1."""
    column: int | None = None

    @property
    def place(self) -> str:
        """The node, edge or line that it is about; empty: the whole graph."""
        if self.node_id is not None:
            return self.node_id
        if self.edge is not None:
            return " -> ".join(self.edge)
        return f"line {self.line}" if self.line else ""

    def __str__(self) -> str:
        where = f"{self.line}:{self.column or 1}: " if self.line else ""
        about = f"{self.place}: " if self.node_id is not None or self.edge is not None else ""
        remedy = f"; {self.fix}" if self.fix else ""
        return f"{where}{self.severity.lower()} {self.rule}: {about}{self.message}{remedy}"
