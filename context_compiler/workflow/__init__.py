"""A workflow is a markdown file whose steps run one after another as a pipeline; directives stand at their tops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from context_compiler.lazy import public

if TYPE_CHECKING:
    from context_compiler.workflow.directives import Directive, Directives, Finding, read_directives
    from context_compiler.workflow.lowering import apply_directives
    from context_compiler.workflow.reading import load_workflow, parse_workflow

__all__ = [
    "Directive",
    "Directives",
    "Finding",
    "apply_directives",
    "load_workflow",
    "parse_workflow",
    "read_directives",
]

_HOMES = {
    "Directive": "workflow.directives",
    "Directives": "workflow.directives",
    "Finding": "workflow.directives",
    "apply_directives": "workflow.lowering",
    "load_workflow": "workflow.reading",
    "parse_workflow": "workflow.reading",
    "read_directives": "workflow.directives",
}

__getattr__, __dir__ = public(__name__, _HOMES)
