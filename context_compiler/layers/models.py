"""Values of the three layers: entities, conversation and reasoning.

They are parsed from data of the application: missing fields get defaults, unknown keys are ignored, and wrong values
raise an error. Every value survives a JSON round trip unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from context_compiler.errors import LayersError

Row = Mapping[str, Any]
"""Fields of one entity. A row is replaced, never modified."""
Status = Literal["read", "created", "updated", "deleted", "generated", "linked"]
PendingType = Literal["propose", "clarify", "ask_user"]


class Layer(BaseModel):
    """Frozen value of a layer; unknown keys are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


L = TypeVar("L", bound=Layer)


def parse_layer(kind: type[L], value: object, where: str) -> L:
    """Return an instance of `kind` unchanged, or validate its dumped form.

    Raises:
        LayersError: The value is neither; the message names the place.
    """
    if isinstance(value, kind):
        return value
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = "".join(f".{step}" for step in first["loc"])
        raise LayersError(f"{where}{path}: {first['msg']}") from None


def as_mapping(value: object, where: str) -> Mapping[str, Any]:
    """Return stored data as a mapping; None becomes an empty one.

    Raises:
        LayersError: The data is not a mapping.
    """
    if value is None:
        return {}
    dump = getattr(value, "model_dump", None)
    dumped: object = dump() if callable(dump) else value
    if not isinstance(dumped, Mapping):
        raise LayersError(f"{where} is a {type(value).__name__}; give a mapping")
    return cast("Mapping[str, Any]", dumped)


def list_field(fields: Mapping[str, Any], key: str) -> list[Any]:
    """Return the list stored under a key; empty if the key is missing.

    Raises:
        LayersError: The value is not a list.
    """
    value: Any = fields.get(key) or []
    if not isinstance(value, list | tuple):
        raise LayersError(f"{key} is a {type(value).__name__}; give a list")
    return list(cast("Sequence[Any]", value))


def text_field(fields: Mapping[str, Any], key: str) -> str:
    """Return the string stored under a key; empty if it is missing. Other values are converted with `str`."""
    value = fields.get(key)
    return "" if value is None else str(value)


class EntitySnapshot(Layer):
    """State of one entity."""

    ref: str = Field(min_length=1)
    """Name shown to models, such as `recipe_1`."""
    type: str = ""
    label: str = ""
    status: Status = "read"
    turn_created: int = 0
    turn_last_ref: int = 0
    retention_reason: str | None = None
    """Reason to keep the entity although it was not mentioned recently."""


class EntityContext(Layer):
    """Layer 1: entities by tier. A ref is in at most one tier."""

    active: list[EntitySnapshot] = []
    """Mentioned in the last few turns."""
    generated: list[EntitySnapshot] = []
    """Generated in the conversation and not saved yet."""
    retained: list[EntitySnapshot] = []
    """Older, but kept for a stated reason."""
    data: dict[str, Any] = {}
    """Content of entities by ref, for nodes that work with it."""
    omitted: int = 0
    """Number of entities left out because a tier was full; the least recently mentioned are left out first."""


class ConversationTurn(Layer):
    """User message and a condensed form of the answer."""

    user: str = ""
    assistant_summary: str = ""
    routing: dict[str, Any] | None = None
    """Decision about the turn, such as `{"decision": "propose"}`."""
    timestamp: str = ""
    """ISO 8601."""


class PendingState(Layer):
    """Question or proposal that the user has not answered yet."""

    type: PendingType
    context: str = ""
    """The proposal or question itself."""
    questions: list[str] = []


class ConversationHistory(Layer):
    """Layer 2: the conversation."""

    recent_turns: list[ConversationTurn] = []
    history_summary: str = ""
    """Condensed older turns."""
    engagement_summary: str = ""
    """Overall theme of the session."""
    pending: PendingState | None = None


class StepSummary(Layer):
    """One step of a turn and its outcome."""

    step_num: int = 0
    type: str = "read"
    """read, analyze, generate, write, or a custom type of the application."""
    subdomain: str = ""
    description: str = ""
    outcome: str = ""
    entities_involved: list[str] = []
    note: str | None = None
    """Note from this step to the next one."""


class CurationSummary(Layer):
    """Entities retained and demoted in one turn."""

    retained: list[str] = []
    demoted: list[str] = []
    reasons: dict[str, str] = {}


class TurnExecutionSummary(Layer):
    """Decision and steps of one turn."""

    turn_num: int = 0
    think_decision: str | None = None
    """plan_direct, propose, clarify, or a custom decision of the application; None until one is made."""
    think_goal: str = ""
    steps: list[StepSummary] = []
    entity_curation: CurationSummary = CurationSummary()
    conversation_phase: str = "exploring"
    """exploring, narrowing, confirming, executing, or a custom phase of the application."""
    user_expressed: str = ""
    blocked_reason: str | None = None


class ReasoningTrace(Layer):
    """Layer 3: decisions and findings."""

    recent_summaries: list[TurnExecutionSummary] = []
    """Last two turns, oldest first, then the turn in progress."""
    reasoning_summary: str = ""
    """Condensed older turns."""
    in_progress: bool | None = None
    """True if the last summary describes the turn in progress; None if unknown.

    If it is None, the last summary is treated as both the last and the current turn.
    """
