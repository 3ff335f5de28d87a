"""Fidelity modes: the amount of the past that a view contains, each with a token cap for the summary.

The fidelity decides how much of the past is summarized, the template how the summary is written, and the budget how
many tokens the whole view may have.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from enum import StrEnum
from typing import Self, cast

from context_compiler.errors import FidelityError
from context_compiler.lazy import lazy_exports

_logger = logging.getLogger(__name__)


class Fidelity(StrEnum):
    """Amount of the conversation before the recent turns that a view contains."""

    FULL = "full"
    """Everything, as long as it fits the budget; beyond that, like `summary:high`."""
    TRUNCATE = "truncate"
    """No summary, only recent turns."""
    COMPACT = "compact"
    SUMMARY_LOW = "summary:low"
    SUMMARY_MEDIUM = "summary:medium"
    SUMMARY_HIGH = "summary:high"

    @classmethod
    def parse(cls, value: object, *, where: str) -> Self:
        """Parse a mode.

        Args:
            value: Name of the mode; spaces around it are ignored.
            where: Name of the place that the value comes from, for the error message.

        Raises:
            FidelityError: The value is not one of the modes.
        """
        try:
            return cls(value if isinstance(value, cls) else str(value).strip())
        except ValueError:
            modes = ", ".join(cls)
            raise FidelityError(f"unknown fidelity {value!r}; use one of {modes}", where=where, value=value) from None

    @property
    def cap(self) -> int:
        """Maximum tokens of a summary in this mode; the budget may reduce it further."""
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

    The arguments may be any objects with the attribute `fidelity` or, for a pipeline, `default_fidelity`. None and
    blank values count as unset. An unknown mode is skipped, with a warning in the log.
    """
    for level, name in ((edge, "fidelity"), (node, "fidelity"), (pipeline, "default_fidelity")):
        value = _attribute_text(level, name)
        if value:
            try:
                return Fidelity.parse(value, where=name)
            except FidelityError as error:
                _logger.warning("%s; the next level is used instead", error)
    return Fidelity.COMPACT


def resolve_thread_id(edge: object, node: object, pipeline: object, prev_node_name: str | None) -> str:
    """Id of the thread that a stage continues at `full`.

    It is the first of these that is set: the stage's, the edge's, the pipeline's (`default_thread_id`, `thread_id`),
    the first class of the stage, the name of the previous stage, and the stage's own name.
    """
    classes = getattr(node, "classes", None)
    several = isinstance(classes, Sequence) and not isinstance(classes, str | bytes)
    first = next(iter(cast("Sequence[object]", classes)), "") if several else ""
    ids = (
        *(_attribute_text(node, "thread_id"), _attribute_text(edge, "thread_id")),
        *(_attribute_text(pipeline, name) for name in ("default_thread_id", "thread_id", "default_thread")),
        *(first.strip() if isinstance(first, str) else "", prev_node_name, _attribute_text(node, "name")),
    )
    return next((thread_id for thread_id in ids if thread_id), "")


def fidelity_on_resume(resolved: str, is_first: bool) -> Fidelity:
    """Mode of a stage after a resume: the first stage gets `summary:high` instead of `full`.

    After a resume, the first stage has no thread that `full` could continue.

    Raises:
        FidelityError: `resolved` is not one of the modes.
    """
    mode = Fidelity.parse(resolved, where="resolved")
    return Fidelity.SUMMARY_HIGH if is_first and mode is Fidelity.FULL else mode


def _attribute_text(thing: object, name: str) -> str:
    """Text of an attribute without surrounding spaces; empty if it is missing or neither a string nor an integer."""
    value = getattr(thing, name, None)
    return str(value).strip() if isinstance(value, str | int) and not isinstance(value, bool) else ""


# Public here too, but defined elsewhere and loaded on use, because it imports much more than a mode.
__getattr__, _ = lazy_exports(__name__, {"pipeline.preamble": ("build_fidelity_preamble",)})
