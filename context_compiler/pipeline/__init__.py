"""A pipeline is a DOT graph whose stages are agents: read, checked, drawn, and written back.

Names load when they are first used, so that nothing is paid for what is not needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from context_compiler.pipeline.diagnostics import Diagnostic, Severity
    from context_compiler.pipeline.graph import Edge, Graph, Node, Pipeline

__all__ = [
    "Diagnostic",
    "Edge",
    "Graph",
    "Node",
    "Pipeline",
    "Severity",
]

_HOMES = {
    "Diagnostic": "pipeline.diagnostics",
    "Edge": "pipeline.graph",
    "Graph": "pipeline.graph",
    "Node": "pipeline.graph",
    "Pipeline": "pipeline.graph",
    "Severity": "pipeline.diagnostics",
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
