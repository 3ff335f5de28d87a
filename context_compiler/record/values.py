"""Value types of the record: requests, compiles, cycles, actions, and chains of messages.

All are immutable and independent of the store that saves them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from importlib import import_module
from math import isfinite
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from context_compiler.errors import SettingsError
from context_compiler.messages.display import bars


class Chain(Protocol):
    """A message history as ids and bodies; `ids[i]` identifies message `i` together with every message before it."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageChain:
    """A chain that contains its messages."""

    ids: tuple[str, ...] = ()
    bodies: tuple[bytes, ...] = ()
    texts: tuple[str, ...] = ()

    def body(self, index: int) -> bytes:
        """The canonical JSON of message `index`."""
        return self.bodies[index]

    def text(self, index: int) -> str:
        """The searchable text of message `index`."""
        return self.texts[index]


def now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """An item that was left out of a view or a prompt, with the reason."""

    what: str
    reason: str
    tokens: int = 0


_RANGE = re.compile(r"messages? (\d+)(?:-(\d+))?\Z")


def positions_of(what: str) -> range:
    """Positions in the raw history from the text of a drop; empty if the text contains none."""
    match = _RANGE.match(what)
    return range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)


def replay_session(number: object, session: str) -> str:
    """Name of the session that contains the recorded replay of a request of a session."""
    return f"replay of {number} · {session}"


REPLAYS = replay_session("%", "%")
"""Pattern of the names of those sessions, for SQL's LIKE."""


def is_replay(session: str) -> bool:
    """True for the name of a session that contains a recorded replay."""
    return re.match(r"replay of \d+ · ", session) is not None


COMPILE, UNDO, PIN, UNPIN, DISMISS = "compile", "undo", "pin", "unpin", "dismiss"
"""Kinds of actions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A manual action of a user on a conversation: compile, undo, pin, unpin or dismiss. A row of `actions`."""

    kind: str
    """`COMPILE`, `UNDO`, `PIN`, `UNPIN` or `DISMISS`."""
    tip: str
    """Chain id: the last message that a compile decides on, the newest one at an undo, or the pinned one."""
    state: str
    """JSON text, opaque to the store."""
    created_at: datetime
    summary_id: int | None = None
    """Row number of the compile that this action made or undid."""
    number: int = 0
    """Ordinal within the conversation, starting at 1; 0 until the action is stored."""


def standing_pins(actions: Iterable[Action]) -> dict[str, str]:
    """States of the messages that are pinned after some actions, by chain id, in the order of their pins."""
    pins: dict[str, str] = {}
    for action in actions:
        if action.kind in (PIN, UNPIN):
            pins.pop(action.tip, None)
        if action.kind == PIN:
            pins[action.tip] = action.state
    return pins


def parse_json(text: object) -> Any:
    """Parse JSON text from a row; None if it is damaged."""
    try:
        return json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None


def mapping_of(text: object) -> dict[str, Any]:
    """Parse a JSON object from a row; empty if it is damaged."""
    value = parse_json(text)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def list_of(text: object) -> list[Any]:
    """Parse a JSON list from a row; empty if it is damaged."""
    value = parse_json(text)
    return cast("list[Any]", value) if isinstance(value, list) else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Compile:
    """A compile with its input, output and cost. A row of `context_summaries`."""

    session_id: str
    vault_name: str
    turn_index: int
    run_id: str | None
    covered_tip: str
    """Chain id of the last raw message that the summary covers."""
    cache_key: str | None
    """Hash of the span, template, fidelity, model and token cap; None if the compile may not be reused."""
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
    """Tokens that the summary and its quotes take in the view."""
    survival: float | None
    """Fraction of the identifiers in the compiled span that the summary keeps; None if no model answer was used."""
    latency_ms: float
    usage: Mapping[str, int]
    status: str
    """Starts with ok, deterministic, refused, failed or skipped; after `;` come the reasons for NULL columns."""
    error: str | None
    created_at: datetime
    owner: str = ""
    """Owner of the session in the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """Decisions that stay fixed between two compiles, keyed by the chain id of the last message that they cover."""

    tip: str
    config: str
    """Hash of the settings that shape a view; different settings have separate cycles."""
    state: str
    """JSON text, opaque to the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A request: its raw history, the view sent instead, and the tokens of both. A row of `views`."""

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
    """Starts with raw, compiled, cycle, fallback, floor_over_budget or dry_run; after `;` come reasons and notes."""
    error: str | None
    budget: int | None
    tokens_raw: int
    """Calibrated tokens of the raw request: messages, instructions and tool schemas."""
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
    """Row number; None until stored."""
    summary_id: int | None = None
    """Row number of the compile whose summary this view contains."""
    compile: Compile | None = field(default=None, repr=False)
    """The compile of `summary_id`, if it was loaded or just made."""
    owner: str = ""
    """Owner of the session in the store."""

    def __repr__(self) -> str:
        status, sent = self.status.partition(";")[0], f"{self.tokens_raw:,} → {self.tokens_sent:,} tokens"
        return f"Record(id={self.id}, session_id={self.session_id!r}, turn={self.turn_index + 1}, {status}, {sent})"

    def _repr_html_(self) -> str:
        """Render the request for a notebook: key figures and a budget bar."""
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
        fragment: Callable[..., str] = import_module("context_compiler.messages.html").fragment
        return fragment(title, [fact for fact in facts if fact[1]], (), bars(sections, self.budget or 0))


NATIVE = "native output"
"""`Tool.kind` of an output schema that the provider enforces itself, without a tool."""


PRICE = "price"
"""Key in a record's ledger; its value contains the model, the provider and the cached tokens."""


SETTINGS = "settings"
"""Key in a record's ledger; its value contains `recall` and `trigger`, as they were given."""


class InputPrice(NamedTuple):
    """Values in the ledger of a request that decide the price of its input."""

    model: str
    """Empty if it is unknown."""
    provider: str | None
    cached: int
    """Tokens of the sent request that the prompt cache contains."""
    cached_raw: int
    """Such tokens of the raw history."""


def input_price(record: Record) -> InputPrice:
    """Read what decides the price of the input of a request."""
    price = record.ledger.get(PRICE)
    facts = cast("dict[str, object]", price) if isinstance(price, dict) else dict[str, object]()
    provider = facts.get("provider")
    cached, raw = (count if isinstance(count, int) else 0 for count in (facts.get("cached"), facts.get("cached_raw")))
    return InputPrice(
        model=str(facts.get("model") or ""),
        provider=provider if isinstance(provider, str) else None,
        cached=max(0, min(cached, record.tokens_sent)),
        cached_raw=max(0, min(raw, record.tokens_raw)),
    )


FIXED = "instructions and schemas"
"""Section of a ledger for what is in every request of an agent, whatever its view."""


def template_name(record: Record) -> str:
    """Name of the template of a request; the default one if nothing was compiled for it."""
    if record.compile is not None:
        return record.compile.template_name
    return "extractive" if record.run_id is None else "chat_compiler"


def fixed_tokens(record: Record) -> int:
    """Tokens of the instructions and tools of a recorded request, which a view does not change."""
    return _section_tokens(record, FIXED)


def recalled_tokens(record: Record) -> int:
    """Tokens of the recall blocks of a recorded request, as its model counts them."""
    tokens = _section_tokens(record, "recall") * record.ratio
    return round(tokens) if isfinite(tokens) else 0


def _section_tokens(record: Record, section: str) -> int:
    sections = record.ledger.get("tokens")
    tokens = cast("Mapping[str, object]", sections).get(section) if isinstance(sections, Mapping) else None
    return tokens if isinstance(tokens, int) else 0


def message_tokens(record: Record, *, raw: bool) -> int:
    """Tokens of the messages of a request, by this package's counter: as sent, or before (`raw`)."""
    total = record.tokens_raw if raw else record.tokens_sent
    return max(0, round(total / (record.ratio or 1)) - fixed_tokens(record))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool or output schema, as sent to the model provider."""

    kind: str
    """The host's kind (function, external, unapproved or output), or `NATIVE`."""
    name: str
    description: str | None
    parameters: Mapping[str, Any]
    """JSON schema of its arguments."""
    strict: bool | None = None


def parse_tools(text: str) -> tuple[Tool, ...]:
    """Parse tools from JSON text."""
    tools = (cast("Mapping[str, Any]", tool) for tool in list_of(text) if isinstance(tool, dict))
    return tuple(
        Tool(
            kind=str(tool.get("kind")),
            name=str(tool.get("name")),
            description=tool.get("description"),
            parameters=tool.get("parameters") or {},
            strict=tool.get("strict"),
        )
        for tool in tools
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Everything that one request adds to the record, saved in one transaction."""

    record: Record
    raw: Chain | None
    view: Chain | None
    compile: Compile | None = None
    """Compile made for this request; None if the request used a stored compile (`record.summary_id`) or none."""
    cycle: Cycle | None = None
    blocks: Cycle | None = None
    """Recall blocks of this request's prompt, keyed by the prompt's chain id."""
    tools: str | None = None
    """JSON of the tools sent with the request; None if they are unknown or may not be recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """A conversation on the record, with its totals."""

    session_id: str
    vault_name: str
    created_at: datetime
    last_at: datetime | None
    requests: int
    compiles: int
    tokens_raw: int
    """Total tokens of its raw requests."""
    tokens_sent: int
    raw_tip: str | None
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerInfo:
    """An owner on the record, with its totals."""

    owner: str
    sessions: int
    requests: int
    last_at: datetime | None


NULL_REASONS = {
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
"""Default reason why a column is NULL, by column."""

Row = TypeVar("Row", Compile, Record)


def with_null_reasons(row: Row, why: Mapping[str, str] | None = None) -> Row:
    """Return the row with a reason for every NULL column added to its status.

    `summary_id` gets no reason if the row has a compile, because saving the row fills in that column.
    """
    why = why or {}
    reasons: dict[str, list[str]] = {}
    filled_on_save = getattr(row, "compile", None) is not None and "summary_id" not in why
    exempt = ("id", "compile", "summary_id") if filled_on_save else ("id", "compile")
    for name in (column.name for column in fields(row)):
        if getattr(row, name) is None and name not in exempt and not re.search(rf"\b{name}\b", row.status):
            reasons.setdefault(why.get(name) or NULL_REASONS.get(name, "unknown"), []).append(name)
    notes = [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]
    return replace(row, status="; ".join([row.status, *notes]))


MAX_OWNER_LENGTH = 400
"""Maximum characters of an owner's name."""


def check_owner(owner: object) -> str | None:
    """Return an owner's name unchanged if a store can keep it; None, for every owner, is allowed.

    Raises:
        SettingsError: The name is not a string, is too long, or contains NUL or lone surrogates.
    """
    if owner is None:
        return None
    if not isinstance(owner, str):
        raise SettingsError(f"owner={owner!r:.80}: give a name, or None for every owner")
    if len(owner) > MAX_OWNER_LENGTH or "\x00" in owner or any("\ud800" <= char <= "\udfff" for char in owner):
        raise SettingsError(f"owner={owner!r:.80}: give at most {MAX_OWNER_LENGTH} characters of valid Unicode")
    return owner


LISTED = 200
"""Maximum number of message ranges that the ledger lists for one reason."""


def by_reason(drops: Sequence[Drop]) -> list[dict[str, object]]:
    """Group drops by reason for the ledger, with their number, tokens and messages."""
    lines: dict[str, dict[str, Any]] = {}
    for drop in drops:
        line = lines.setdefault(drop.reason, {"reason": drop.reason, "count": 0, "tokens": 0, "what": []})
        line["count"] += 1
        line["tokens"] += drop.tokens
        named: list[str] = line["what"]
        positions = positions_of(drop.what)
        before = positions_of(named[-1]) if named and positions else range(0)
        if before and before.stop == positions.start:
            named[-1] = f"messages {before.start}-{positions[-1]}"
        elif len(named) < LISTED:
            named.append(drop.what)
    return list(lines.values())
