"""The values of the record: requests, their compiles, and the chains of messages they refer to.

All are frozen and independent of the store.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar, cast

from context_compiler import ids
from context_compiler.errors import SettingsError
from context_compiler.messages.display import bars, fragment


class Chain(Protocol):
    """A history as ids and bodies; `ids[i]` names message `i` together with all before it."""

    @property
    def ids(self) -> Sequence[str]:
        """The chain id of each message, oldest first."""
        ...

    def body(self, index: int) -> bytes:
        """The canonical JSON of message `index`."""
        ...

    def text(self, index: int) -> str:
        """The searchable text of message `index`; empty if it has none."""
        ...


def now() -> datetime:
    """The time, in UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Something left out of a view or a prompt, with the reason."""

    what: str
    reason: str
    tokens: int = 0


_RANGE = re.compile(r"messages? (\d+)(?:-(\d+))?\Z")


def positions_of(what: str) -> range:
    """Raw positions that a drop names; empty if it names none."""
    found = _RANGE.match(what)
    return range(int(found[1]), int(found[2] or found[1]) + 1) if found else range(0)


COMPILE, UNDO, PIN, UNPIN = "compile", "undo", "pin", "unpin"
"""Kinds of actions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One action of a user on a conversation; a row of `actions`."""

    kind: str
    """compile, undo, pin or unpin."""
    tip: str
    """Chain id: the newest message that a compile decides on, that there was at an undo, or the pinned message."""
    state: str
    """JSON text, opaque to the store."""
    created_at: datetime
    summary_id: int | None = None
    """Row number of the compile that was made or undone."""
    number: int = 0
    """Ordinal in its conversation, from 1, once stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPages:
    """The newest layers of a session, in parts; rows of `layers` and `layer_pages`."""

    state: str
    """JSON text; with pages, `id_registry.pages` of it lists their names."""
    version: int
    pages: Mapping[str, str]
    """JSON texts of entities, by `page_name`; empty where the state has everything."""

    def joined(self) -> str:
        """The state with the entities of its pages, as JSON text; as it is if it lists none."""
        if not page_names(self.state):
            return self.state
        state: dict[str, Any] = json.loads(self.state)
        names: dict[str, str] = state["id_registry"].pop("pages")
        found = [json.loads(self.pages[names[number]]) for number in sorted(names, key=int)]
        state["id_registry"] |= {
            "entities": [row for page in found for row in page["entities"]],
            "ids": {ref: id for page in found for ref, id in page["ids"].items()},
            "demoted": sorted(ref for page in found for ref in page["demoted"]),
        }
        return json.dumps(state)


def parse_json(text: object) -> Any:
    """The JSON text of a row; None where it is damaged."""
    try:
        return json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None


def mapping_of(text: object) -> dict[str, Any]:
    """The JSON object of a row; empty where it is damaged."""
    value = parse_json(text)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def list_of(text: object) -> list[Any]:
    """The JSON list of a row; empty where it is damaged."""
    value = parse_json(text)
    return cast("list[Any]", value) if isinstance(value, list) else []


def page_names(state: str) -> Sequence[str]:
    """Names of the pages that layers list; none for those that have their entities in themselves."""
    if '"pages"' not in state:
        return ()
    try:
        return tuple(json.loads(state)["id_registry"]["pages"].values())
    except (ValueError, LookupError, TypeError, AttributeError):  # an application's own text
        return ()


def page_name(text: str) -> str:
    """Name of a page of entities by its text."""
    return ids.blob_id(text.encode("utf-8", "surrogatepass"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Compile:
    """A compile with its input, output and cost; a row of `context_summaries`."""

    session_id: str
    vault_name: str
    turn_index: int
    run_id: str | None
    covered_tip: str
    """Chain id of the last raw message that the summary covers."""
    cache_key: str | None
    """Hash of span, template, fidelity, model and cap; None if the compile may not be reused."""
    template_name: str
    template_source: str
    template_path: str | None
    template_hash: str
    fidelity: str
    model_alias: str
    compiled_prompt: str | None
    raw_output: str | None
    summary: str | None
    summary_json: Mapping[str, object] | None
    input_payload: Mapping[str, object] | None
    sections_included: tuple[str, ...]
    sections_dropped: tuple[Drop, ...]
    budget_used: int
    """Tokens of the summary and its quotes in the view."""
    survival: float | None
    """Share of the identifiers in the compiled span that the summary keeps, 0 to 1; None if no answer was used."""
    latency_ms: float
    usage: Mapping[str, int]
    status: str
    """First word ok, deterministic, refused, failed or skipped; after `;`, reasons for NULL columns."""
    error: str | None
    created_at: datetime
    owner: str = ""
    """Owner of the session, as the store knows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """Decisions that hold between two compiles, found by the chain id of the last message they cover."""

    tip: str
    config: str
    """Hash of the settings that shape a view; other settings have cycles of their own."""
    state: str
    """JSON text, opaque to the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A request: its raw history, the view sent instead, and the tokens of both; a row of `views`."""

    session_id: str
    vault_name: str
    turn_index: int
    """0-based ordinal of the user turn."""
    run_id: str | None
    request_index: int
    """0-based ordinal of the model request within its run."""
    raw_tip: str | None
    view_tip: str | None
    status: str
    """First word raw, compiled, cycle, fallback, floor_over_budget or dry_run; after `;`, reasons for NULL columns."""
    error: str | None
    budget: int | None
    tokens_raw: int
    """Calibrated tokens of the raw request: messages, instructions and schemas."""
    tokens_sent: int
    """Calibrated tokens of the view."""
    tokens_exact: int
    """`tokens_sent` before calibration."""
    ratio: float
    ledger: Mapping[str, object]
    request_hash: str | None
    """SHA-256 of instructions, tools and settings."""
    latency_ms: float
    created_at: datetime
    id: int | None = None
    """Row number, once stored."""
    summary_id: int | None = None
    """Row number of the compile whose summary this view carries."""
    compile: Compile | None = field(default=None, repr=False)
    """That compile, if loaded or just made."""
    owner: str = ""
    """Owner of the session, as the store knows it."""

    def __repr__(self) -> str:
        status, sent = self.status.partition(";")[0], f"{self.tokens_raw:,} → {self.tokens_sent:,} tokens"
        return f"Record(id={self.id}, session_id={self.session_id!r}, turn={self.turn_index + 1}, {status}, {sent})"

    def _repr_html_(self) -> str:
        """The request in a notebook: its figures and its budget bar."""
        made = self.compile
        facts = [
            ("turn", str(self.turn_index + 1)),
            ("status", self.status.partition(";")[0]),
            ("budget", "" if self.budget is None else f"{self.budget:,}"),
            ("template", made.template_name if made else ""),
            ("fidelity", made.fidelity if made else ""),
            ("error", self.error or ""),
        ]
        title = f"{self.session_id}: {self.tokens_raw:,} → {self.tokens_sent:,} tokens"
        sections = cast("Mapping[str, int]", self.ledger.get("tokens", {}))
        return fragment(title, [fact for fact in facts if fact[1]], (), bars(sections, self.budget or 0))


NATIVE = "native output"
"""Kind of an output schema that a provider enforces, which is not a tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool, or an output schema, as the provider of a model was sent it."""

    kind: str
    """function, external, unapproved or output, as the host calls it, or `NATIVE`."""
    name: str
    description: str | None
    parameters: Mapping[str, Any]
    """JSON schema of its arguments."""
    strict: bool | None = None


def parse_tools(text: str) -> tuple[Tool, ...]:
    """Tools of their JSON text."""
    found = (cast("Mapping[str, Any]", one) for one in list_of(text) if isinstance(one, dict))
    return tuple(
        Tool(
            kind=str(one.get("kind")),
            name=str(one.get("name")),
            description=one.get("description"),
            parameters=one.get("parameters") or {},
            strict=one.get("strict"),
        )
        for one in found
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Everything that one request adds to the record; saved in one transaction."""

    record: Record
    raw: Chain | None
    view: Chain | None
    compile: Compile | None = None
    """A compile made for this request; None if a stored one (`record.summary_id`) or none was used."""
    cycle: Cycle | None = None
    blocks: Cycle | None = None
    """Recall blocks of this request's prompt, under the prompt's chain id."""
    tools: str | None = None
    """JSON of the tools that the request is sent with; None if they are not known, or may not be kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """One conversation on the record."""

    session_id: str
    vault_name: str
    created_at: datetime
    last_at: datetime | None
    requests: int
    compiles: int
    tokens_raw: int
    """Tokens of all its raw requests."""
    tokens_sent: int
    raw_tip: str | None
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerInfo:
    """One owner on the record."""

    owner: str
    sessions: int
    requests: int
    last_at: datetime | None


WHY_EMPTY = {
    "error": "none",
    "run_id": "no run",
    "request_hash": "no run",
    "raw_tip": "the history is empty",
    "view_tip": "the view is empty",
    "template_path": "the template is no file",
    "summary": "nothing was written",
    "summary_id": "nothing was compiled",
    "survival": "not measured",
}
"""Default reasons for NULL columns."""

Row = TypeVar("Row", Compile, Record)


def with_null_reasons(row: Row, why: Mapping[str, str] | None = None) -> Row:
    """The row with the reason for every NULL column added to its status.

    The number of a compile that is kept with its request is not known before, and its column is not empty after.
    """
    why = why or {}
    reasons: dict[str, list[str]] = {}
    known_later = getattr(row, "compile", None) is not None and "summary_id" not in why
    given = ("id", "compile", "summary_id") if known_later else ("id", "compile")
    for name in (column.name for column in fields(row)):
        if getattr(row, name) is None and name not in given and not re.search(rf"\b{name}\b", row.status):
            reasons.setdefault(why.get(name) or WHY_EMPTY.get(name, "unknown"), []).append(name)
    notes = [f"{', '.join(names)}: {said}" for said, names in reasons.items()]
    return replace(row, status="; ".join([row.status, *notes]))


LONGEST = 400
"""Characters of the name of an owner."""


def check_owner(owner: object) -> str | None:
    """Return an owner that a store can keep.

    Raises:
        SettingsError: It is not such a text.
    """
    if owner is None:
        return None
    if not isinstance(owner, str):
        raise SettingsError(f"owner={owner!r:.80}: give a name, or None for every owner")
    if len(owner) > LONGEST or "\x00" in owner or any("\ud800" <= char <= "\udfff" for char in owner):
        raise SettingsError(f"owner={owner!r:.80}: give at most {LONGEST} characters of valid Unicode")
    return owner
