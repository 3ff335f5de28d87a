"""A pipeline is a DOT graph whose stages are agents: read, checked, drawn, and written back.

Names load when they are first used, so that nothing is paid for what is not needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from context_compiler.pipeline.check import validate, validate_or_raise
    from context_compiler.pipeline.conditions import Condition, ConditionError, parse_condition
    from context_compiler.pipeline.diagnostics import Diagnostic, Severity
    from context_compiler.pipeline.dot import parse_dot
    from context_compiler.pipeline.draw import to_svg
    from context_compiler.pipeline.graph import Edge, Graph, Node, Pipeline
    from context_compiler.pipeline.stylesheet import StylesheetError, apply_stylesheet, parse_stylesheet
    from context_compiler.pipeline.writing import to_dot

__all__ = [
    "Condition",
    "ConditionError",
    "Diagnostic",
    "Edge",
    "Graph",
    "Node",
    "Pipeline",
    "Severity",
    "StylesheetError",
    "apply_stylesheet",
    "parse_condition",
    "parse_dot",
    "parse_stylesheet",
    "to_dot",
    "to_svg",
    "validate",
    "validate_or_raise",
]

_HOMES = {
    "Condition": "pipeline.conditions",
    "ConditionError": "pipeline.conditions",
    "Diagnostic": "pipeline.diagnostics",
    "Edge": "pipeline.graph",
    "Graph": "pipeline.graph",
    "Node": "pipeline.graph",
    "Pipeline": "pipeline.graph",
    "Severity": "pipeline.diagnostics",
    "StylesheetError": "pipeline.stylesheet",
    "apply_stylesheet": "pipeline.stylesheet",
    "parse_condition": "pipeline.conditions",
    "parse_dot": "pipeline.dot",
    "parse_stylesheet": "pipeline.stylesheet",
    "to_dot": "pipeline.writing",
    "to_svg": "pipeline.draw",
    "validate": "pipeline.check",
    "validate_or_raise": "pipeline.check",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"context_compiler.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted(__all__)
