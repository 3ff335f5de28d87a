"""Fidelity: six modes of how much of the past is carried, each with a cap for the summary.

A fidelity says how much, a template says how it is written, a budget says what everything may cost.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from enum import StrEnum
from typing import Self, cast

from context_compiler.errors import FidelityError
from context_compiler.lazy import public

_logger = logging.getLogger(__name__)


class Fidelity(StrEnum):
    """Amount of the conversation beyond the recent turns that a view carries."""

    FULL = "full"
    """Everything, while it fits; past the budget as `summary:high`."""
    TRUNCATE = "truncate"
    """No summary at all: recent turns only."""
    COMPACT = "compact"
    SUMMARY_LOW = "summary:low"
    SUMMARY_MEDIUM = "summary:medium"
    SUMMARY_HIGH = "summary:high"

    @classmethod
    def parse(cls, value: object, *, where: str) -> Self:
        """Turn outside text into a mode, or say exactly what is wrong with it.

        Raises:
            FidelityError: `value` is not one of the six modes; the message names `where` it came from.
        """
        try:
            return cls(value if isinstance(value, cls) else str(value).strip())
        except ValueError:
            known = ", ".join(cls)
            raise FidelityError(f"unknown fidelity {value!r}; use one of {known}", where=where, value=value) from None

    @property
    def cap(self) -> int:
        """The most tokens a summary may have in this mode, before the budget has its say."""
        return CAPS[self]


CAPS: dict[Fidelity, int] = {
    Fidelity.FULL: 3_000,
    Fidelity.TRUNCATE: 0,
    Fidelity.COMPACT: 500,
    Fidelity.SUMMARY_LOW: 600,
    Fidelity.SUMMARY_MEDIUM: 1_500,
    Fidelity.SUMMARY_HIGH: 3_000,
}


def resolve_fidelity(edge: object, node: object, pipeline: object) -> Fidelity:
    """Fidelity of a stage: the edge's, else the stage's, else the pipeline's, else `compact`.

    Anything with the attributes `fidelity` and, for a pipeline, `default_fidelity` will do; None and blank are
    nothing said. What is not a mode is passed over, with a warning in the log.
    """
    for thing, name in ((edge, "fidelity"), (node, "fidelity"), (pipeline, "default_fidelity")):
        value = _attribute_text(thing, name)
        if value:
            try:
                return Fidelity.parse(value, where=name)
            except FidelityError as error:
                _logger.warning("%s; the next level decides", error)
    return Fidelity.COMPACT


def resolve_thread_id(edge: object, node: object, pipeline: object, prev_node_name: str | None) -> str:
    """Thread that a stage continues at `full`.

    The first that says something: the stage, the edge, the pipeline (`default_thread_id`, `thread_id`), the
    first class of the stage, the stage before it. The very first stage has a thread of its own.
    """
    classes = getattr(node, "classes", None)
    several = isinstance(classes, Sequence) and not isinstance(classes, str | bytes)
    first = next(iter(cast("Sequence[object]", classes)), "") if several else ""
    names = (
        *(_attribute_text(node, "thread_id"), _attribute_text(edge, "thread_id")),
        *(_attribute_text(pipeline, name) for name in ("default_thread_id", "thread_id", "default_thread")),
        *(first.strip() if isinstance(first, str) else "", prev_node_name, _attribute_text(node, "name")),
    )
    return next((one for one in names if one), "")


def fidelity_on_resume(resolved: str, is_first: bool) -> Fidelity:
    """The mode of a stage after a resume: the first one gets `summary:high` where `full` has nothing to continue.

    Raises:
        FidelityError: `resolved` is none of the modes.
    """
    mode = Fidelity.parse(resolved, where="resolved")
    return Fidelity.SUMMARY_HIGH if is_first and mode is Fidelity.FULL else mode


def _attribute_text(thing: object, name: str) -> str:
    """Text of an attribute, trimmed; empty if there is none."""
    value = getattr(thing, name, None)
    return str(value).strip() if isinstance(value, str | int) and not isinstance(value, bool) else ""


# They belong here by name, but need templates and rooms, which a mode does not.
__getattr__, _ = public(__name__, {"build_fidelity_preamble": "pipeline.preamble", "summary_cap": "compiler.policy"})
