"""Outcome of a stage: its status, the next stage it asks for, and its context updates.

External text becomes an `Outcome` here; a word that is not a status means success and asks for that label.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, cast

from context_compiler.pipeline.conditions import STATUSES

STATUS_KEYS = ("outcome", "status")
LABEL_KEYS = ("preferred_label", "preferred_next_label")


class StageStatus(StrEnum):
    """Status of a stage."""

    SUCCESS = "success"
    PARTIAL_SUCCESS = "partial_success"
    RETRY = "retry"
    FAIL = "fail"
    SKIPPED = "skipped"

    @property
    def good(self) -> bool:
        """True if it satisfies a goal gate."""
        return self in (StageStatus.SUCCESS, StageStatus.PARTIAL_SUCCESS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of a stage. A status may be given as text, and None means empty.

    Raises:
        ValueError: the status is unknown, the updates are not a mapping, or a list of names is not one.
    """

    status: StageStatus = StageStatus.SUCCESS
    preferred_label: str = ""
    """Label of the edge it asks for."""
    suggested_next_ids: tuple[str, ...] = ()
    """Stages it asks for; the first one that an edge leads to counts."""
    context_updates: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Values for the context."""
    notes: str = ""
    failure_reason: str = ""
    raw: str = ""
    """The stage's own word, where it is not a status."""
    tools: tuple[str, ...] = ()
    """Names of the tools used, in order."""
    error: str = ""
    """Type of the exception that ended the stage, such as `ModelHTTPError`."""

    def __post_init__(self) -> None:
        given: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        updates = given["context_updates"]
        if not isinstance(updates, Mapping | None):
            raise ValueError("context_updates is not a mapping")
        fit: dict[str, Any] = {name: "" if given[name] is None else str(given[name]) for name in _TEXTS}
        fit |= {"status": StageStatus(given["status"]), "context_updates": updates or {}}
        fit |= {name: _ids(given[name]) for name in ("suggested_next_ids", "tools")}
        for name, value in fit.items():
            object.__setattr__(self, name, value)

    def document(self) -> dict[str, Any]:
        """The outcome as plain data, with the keys of a status file, without empty values."""
        facts: dict[str, Any] = {
            "outcome": self.status.value,
            "status": self.status.value,
            "preferred_label": self.preferred_label,
            "suggested_next_ids": list(self.suggested_next_ids),
            "context_updates": dict(self.context_updates),
            "notes": self.notes,
            "failure_reason": self.failure_reason,
            "raw": self.raw,
            "tools": list(self.tools),
            "error": self.error,
        }
        return {key: value for key, value in facts.items() if value not in ("", [], {})}


_TEXTS = ("preferred_label", "notes", "failure_reason", "raw", "error")


def failure(reason: str, *, updates: Mapping[str, Any] | None = None) -> Outcome:
    """A failure with a reason."""
    return Outcome(status=StageStatus.FAIL, failure_reason=reason, context_updates=updates or {})


def parse_outcome(document: Mapping[str, Any]) -> Outcome:
    """Parse an outcome from plain data: a status file, an agent's answer, or a `document`.

    Raises:
        ValueError: the status is missing, or a field has the wrong type.
    """
    word = next((document[key] for key in STATUS_KEYS if document.get(key) not in (None, "")), None)
    if not isinstance(word, str):
        raise ValueError("it has no outcome; give one of " + ", ".join(StageStatus))
    status, raw = parse_status(word)
    label = next((_text(document, key) for key in LABEL_KEYS if document.get(key)), "")
    updates: object = document.get("context_updates") or {}
    if not isinstance(updates, Mapping):
        raise ValueError("context_updates is not an object")
    return Outcome(
        status=status,
        preferred_label=label or raw,
        suggested_next_ids=_ids(document.get("suggested_next_ids")),
        context_updates=dict(cast("Mapping[str, Any]", updates)),
        notes=_text(document, "notes"),
        failure_reason=_text(document, "failure_reason"),
        raw=_text(document, "raw") or raw,
        tools=_ids(document.get("tools")),
        error=_text(document, "error"),
    )


def parse_status(word: str) -> tuple[StageStatus, str]:
    """The status meant by a word, and the word itself if it is a label instead."""
    status = word.strip().lower()
    status = STATUSES.get(status, status)
    return (StageStatus(status), "") if status in tuple(StageStatus) else (StageStatus.SUCCESS, word.strip())


def find_outcome(text: str) -> Outcome | None:
    """The outcome in a text that is, or ends in, a JSON object with a status; None if there is none.

    Only an `outcome` or `status` of type text counts. The object may be in a fenced block.
    """
    body = text.strip()
    if body.endswith("```"):
        start = body.rfind("\n```", 0, len(body) - 3)
        fence = body[start + 1 :] if start >= 0 else body
        body = fence.partition("\n")[2].removesuffix("```").strip() if fence.startswith("```") else body
    if not body.startswith("{"):
        at = body.rfind("\n{")
        body = body[at + 1 :] if at >= 0 else ""
    try:
        found: Any = json.loads(body) if body.endswith("}") else None
        return parse_outcome(cast("Mapping[str, Any]", found)) if isinstance(found, Mapping) else None
    except (ValueError, RecursionError):
        return None


def _ids(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, Iterable):
        raise ValueError("a list of names is expected")
    names = list(cast("Iterable[object]", value))
    if any(isinstance(one, bool) or not isinstance(one, str | int) for one in names):
        raise ValueError("a list of names holds something else")
    return tuple(map(str, names))


def _text(document: Mapping[str, Any], key: str) -> str:
    value = document.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{key} is not text")
    return value
