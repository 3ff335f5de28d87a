"""What a stage is told of the run so far fits its mode's budget, in true tokens, for any input.

When room is short the oldest stages go first, then values get shorter, then values go. The same input always
gives the same text. Each mode is a template in `templates/fidelity/`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from types import MappingProxyType

from context_compiler.fidelity import Fidelity
from context_compiler.pipeline.excerpts import as_text
from context_compiler.pipeline.pages import Page, Shape
from context_compiler.pipeline.progress import completed, done, mapping, node_name, retries, stage_count
from context_compiler.template import Template
from context_compiler.template.prompts import shipped_templates
from context_compiler.tokens import Count, TokenCounter, as_counter

SHAPES = MappingProxyType(
    {
        Fidelity.TRUNCATE: Shape(budget=100),
        Fidelity.COMPACT: Shape(budget=500, value=160),
        Fidelity.SUMMARY_LOW: Shape(budget=600, outcomes=False),
        Fidelity.SUMMARY_MEDIUM: Shape(budget=1_500, notes=200, value=400),
        Fidelity.SUMMARY_HIGH: Shape(budget=3_000, notes=2_000, details=True, value=2_000),
    }
)


def build_fidelity_preamble(
    mode: str,
    pipeline: object,
    context: object,
    completed_nodes: Sequence[object] | None,
    current_node: object,
    logs: Iterable[object] | None,
    *,
    counter: TokenCounter | Count | None = None,
) -> str:
    """What to put before the prompt of a stage that begins a fresh conversation, as markdown; empty at `full`.

    Within 100, 500, 600, 1,500 or 3,000 tokens for any input, as `counter` counts.

    Args:
        mode: One of the six fidelities.
        pipeline: Something with `name`, `goal` and `nodes`, such as a `Graph`.
        context: A mapping, or something with a `snapshot()`; keys of bookkeeping are not shown, and a value above
            8 kB is a reference and a preview. Its `run_id` is shown by `truncate`.
        completed_nodes: Names of stages, in the order they were completed.
        current_node: The stage that is about to run, or its name.
        logs: Mappings with `node`, `outcome`, `notes`, `tools` and `duration`; the last about a stage counts.
        counter: How tokens are counted; o200k when not given.

    Raises:
        FidelityError: `mode` is none of the six.
    """
    fidelity = Fidelity.parse(mode, where="mode")
    if fidelity is Fidelity.FULL:
        return ""
    values, shape = mapping(context), SHAPES[fidelity]
    stages, count = completed(completed_nodes or (), logs or (), shape.budget // 4 if fidelity.cap else 0)
    total = stage_count(pipeline) or count + 1
    page = Page(shape=shape, template=_template(fidelity), count=as_counter(counter))
    name, current = as_text(getattr(pipeline, "name", "") or ""), node_name(current_node)
    run_id = values.get("run_id") or values.get("internal.run_id") or "unknown"
    last = done(*stages[-1], values).outcome if stages else "none"
    short = shape.budget // 8
    page.head(
        pipeline=page.clipped(name, short),
        run_id=page.clipped(run_id, short),
        current=page.clipped(current, short),
        last_outcome=page.clipped(last, short),
        position=min(count + 1, total),
        total=total,
    )
    page.goal(getattr(pipeline, "goal", "") or "")
    if fidelity is not Fidelity.TRUNCATE:
        page.fill(stages, count, values, list(retries(values, pipeline)) if shape.details else [])
    return page.text()


@cache
def _template(fidelity: Fidelity) -> Template:
    name = f"fidelity/{fidelity.replace(':', '-')}"
    path = shipped_templates() / f"{name}.md"
    return Template.parse(path.read_text(encoding="utf-8"), name=name, source="builtin", path=str(path))
