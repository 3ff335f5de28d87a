"""What Understand keeps and lets go of takes effect at once, and what it got wrong is reported and changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from context_compiler.errors import LayersError
from context_compiler.layers.conversation import record_of
from context_compiler.layers.formatting import text_in
from context_compiler.layers.models import CurationSummary
from context_compiler.layers.registry import SessionIdRegistry

UNKNOWN = "no such entity"
NO_REASON = "no reason was given"


@dataclass(frozen=True, slots=True, kw_only=True)
class Curated:
    """What was done, and what was not."""

    summary: CurationSummary
    ignored: Mapping[str, str]
    """Refs that nothing was done about, and why."""


def curate(
    registry: SessionIdRegistry,
    *,
    retained: Iterable[str] = (),
    demoted: Iterable[str] = (),
    reasons: Mapping[str, str] | None = None,
) -> Curated:
    """Retain and demote entities in a registry; a ref that is in both is demoted.

    Args:
        registry: Changed in place.
        retained: Refs to keep although nobody spoke of them lately; each needs a reason.
        demoted: Refs to let go of.
        reasons: Why, by ref.

    Raises:
        LayersError: these are no refs, or no reasons by ref.
    """
    why = {str(ref): text_in(reason) for ref, reason in record_of(reasons, "reasons").items()}
    ignored: dict[str, str] = {}
    gone = dict.fromkeys(_refs("demoted", demoted))
    kept = [ref for ref in dict.fromkeys(_refs("retained", retained)) if ref not in gone]
    for ref in (*kept, *gone):
        if ref not in registry:
            ignored[ref] = UNKNOWN
        elif ref not in gone and not why.get(ref, "").strip():
            ignored[ref] = NO_REASON
        elif ref in gone:
            registry.demote(ref)
        else:
            registry.retain(ref, why[ref])
    done = [ref for ref in (*kept, *gone) if ref not in ignored]
    summary = CurationSummary(
        retained=[ref for ref in done if ref not in gone],
        demoted=[ref for ref in done if ref in gone],
        reasons={ref: why[ref] for ref in done if why.get(ref, "").strip()},
    )
    return Curated(summary=summary, ignored=ignored)


def joined(before: CurationSummary, after: CurationSummary) -> CurationSummary:
    """Two decisions of one turn as one; of a ref that is in both, the later one."""
    again = {*after.retained, *after.demoted}
    return CurationSummary(
        retained=[*(ref for ref in before.retained if ref not in again), *after.retained],
        demoted=[*(ref for ref in before.demoted if ref not in again), *after.demoted],
        reasons={ref: why for ref, why in before.reasons.items() if ref not in again} | after.reasons,
    )


def _refs(name: str, given: object) -> list[str]:
    if given is None or isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise LayersError(f"{name} is a {type(given).__name__}; give a list of refs")
    return [str(ref) for ref in cast("Iterable[object]", given)]
