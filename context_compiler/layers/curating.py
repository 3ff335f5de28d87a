"""What Understand keeps and lets go of takes effect at once, and what it got wrong is reported and changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

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
    """
    why, ignored = dict(reasons or {}), dict[str, str]()
    gone = dict.fromkeys(demoted)
    kept = [ref for ref in dict.fromkeys(retained) if ref not in gone]
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
