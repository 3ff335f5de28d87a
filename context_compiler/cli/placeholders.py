"""Placeholders and sections that each kind of template has, and warnings of others."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches
from functools import cache

from context_compiler.cli.text import number
from context_compiler.compiler.summary import LIMITED, MAX_TEXT, TITLES
from context_compiler.layers.context import NEEDS, layer_texts
from context_compiler.template import Template, shipped_template, shipped_templates
from context_compiler.template.front_matter import SectionRule


def rule_text(section: str, rule: SectionRule) -> str:
    """Format the rule of a section: its priority, and its budget or the default one."""
    budget, note = (rule.budget, "") if rule.budget else (MAX_TEXT if section in LIMITED else None, ", the default")
    limit = f"at most {number(budget)} tokens{note}" if budget else "no budget"
    return f"{section}: priority {rule.priority}, {limit}"


@cache
def _kinds() -> tuple[frozenset[str], ...]:
    """Names that each kind of template is rendered with: summaries, layers, the history of layers, preambles."""
    fidelities = sorted((shipped_templates() / "fidelity").glob("*.md"))
    return (
        frozenset((*TITLES, "cap", "turns_left_out", "template")),
        frozenset(("task", "prompt", *(name for node in NEEDS for name in layer_texts(node, {})))),
        shipped_template("layers/history").wants(),
        frozenset(name for file in fidelities for name in shipped_template(f"fidelity/{file.stem}").wants()),
    )


def unknown_names(template: Template) -> tuple[str, ...]:
    """Warnings of names that no template of this kind is rendered with; they are always empty.

    The kind is the one that has most of the template's names.
    """
    lines, wants = template.lines(), template.wants()
    allowed = max(_kinds(), key=lambda names: len(wants & names))
    missing = sorted(wants - allowed, key=lambda name: lines[name])
    unknown = [(f"line {lines[name]}: unknown placeholder {name}", name) for name in missing]
    unknown += [(f"sections: unknown section {name}", name) for name in template.sections if name not in allowed]
    return tuple(f"{warning}; {_meant(name, allowed)}" for warning, name in unknown)


def _meant(wrong: str, words: Collection[str]) -> str:
    near = get_close_matches(wrong.lower(), words, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(words))}"
