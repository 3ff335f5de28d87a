"""The values of the three layers: what exists, what was said, and what was decided.

They are read from applications' own data, so they forgive what is missing and what is unknown, and refuse what
is wrong. Each survives JSON unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from context_compiler.errors import LayersError

Status = Literal["read", "created", "updated", "deleted", "generated", "linked"]
PendingType = Literal["propose", "clarify", "ask_user"]
StepType = Literal["read", "analyze", "generate", "write"]
Decision = Literal["plan_direct", "propose", "clarify"]
Phase = Literal["exploring", "narrowing", "confirming", "executing"]


class Layer(BaseModel):
    """A frozen value; keys of other versions are left out."""

    model_config = ConfigDict(frozen=True, extra="ignore")


L = TypeVar("L", bound=Layer)


def parse_layer(kind: type[L], given: object, where: str) -> L:
    """A value as it is, or read back from what its `model_dump` gave.

    Raises:
        LayersError: it is neither; the message says where.
    """
    if isinstance(given, kind):
        return given
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = "".join(f".{step}" for step in first["loc"])
        raise LayersError(f"{where}{place}: {first['msg']}") from None


def as_mapping(given: object, where: str) -> Mapping[str, Any]:
    """Stored data as a mapping; None is an empty one.

    Raises:
        LayersError: it is none.
    """
    if given is None:
        return {}
    dump = getattr(given, "model_dump", None)
    found: object = dump() if callable(dump) else given
    if not isinstance(found, Mapping):
        raise LayersError(f"{where} is a {type(given).__name__}; give a mapping")
    return cast("Mapping[str, Any]", found)


def list_field(given: Mapping[str, Any], key: str) -> list[Any]:
    """A list that is stored under a key; missing is empty.

    Raises:
        LayersError: it is no list.
    """
    found: Any = given.get(key) or []
    if not isinstance(found, list | tuple):
        raise LayersError(f"{key} is a {type(found).__name__}; give a list")
    return list(cast("Sequence[Any]", found))


def text_field(given: Mapping[str, Any], key: str) -> str:
    """A text that is stored under a key; missing is empty, and what is no text becomes one."""
    found = given.get(key)
    return "" if found is None else str(found)


class EntitySnapshot(Layer):
    """One entity as it stands."""

    ref: str = Field(min_length=1)
    """The name by which models know it, such as `recipe_1`."""
    type: str = ""
    label: str = ""
    status: Status = "read"
    turn_created: int = 0
    turn_last_ref: int = 0
    retention_reason: str | None = None
    """Why it is kept although nobody spoke of it lately."""


class EntityContext(Layer):
    """Layer 1: what exists, each ref in at most one tier."""

    active: list[EntitySnapshot] = []
    """Spoken of in the last turns."""
    generated: list[EntitySnapshot] = []
    """Made in the conversation and not saved."""
    retained: list[EntitySnapshot] = []
    """Older, and kept on purpose."""
    data: dict[str, Any] = {}
    """The content of entities by ref, where a node works with it."""


class ConversationTurn(Layer):
    """What the user said, and what came back in short."""

    user: str = ""
    assistant_summary: str = ""
    routing: dict[str, Any] | None = None
    """What was decided about the turn, such as `{"decision": "propose"}`."""
    timestamp: str = ""
    """ISO 8601."""


class PendingState(Layer):
    """What the user has yet to answer."""

    type: PendingType
    context: str = ""
    """What was proposed or asked."""
    questions: list[str] = []


class ConversationHistory(Layer):
    """Layer 2: what was said."""

    recent_turns: list[ConversationTurn] = []
    history_summary: str = ""
    """Older turns in short."""
    engagement_summary: str = ""
    """What the whole is about."""
    pending: PendingState | None = None


class StepSummary(Layer):
    """One step of a turn and what came of it."""

    step_num: int = 0
    type: StepType = "read"
    subdomain: str = ""
    description: str = ""
    outcome: str = ""
    entities_involved: list[str] = []
    note: str | None = None
    """What the step said to the next."""


class CurationSummary(Layer):
    """What was kept and let go of in one turn."""

    retained: list[str] = []
    demoted: list[str] = []
    reasons: dict[str, str] = {}


class TurnExecutionSummary(Layer):
    """What one turn decided and did."""

    turn_num: int = 0
    think_decision: Decision | None = None
    """None where the turn was blocked before one was made."""
    think_goal: str = ""
    steps: list[StepSummary] = []
    entity_curation: CurationSummary = CurationSummary()
    conversation_phase: Phase = "exploring"
    user_expressed: str = ""
    blocked_reason: str | None = None


class ReasoningTrace(Layer):
    """Layer 3: what was decided and found out."""

    recent_summaries: list[TurnExecutionSummary] = []
    """The last two turns, oldest first, and after them the one in progress as far as it has come."""
    reasoning_summary: str = ""
    """Older turns in short."""
    in_progress: bool | None = None
    """Whether the last of them is in progress; None where nobody said, and then it counts as both last and current."""
