"""Steering of conversations from the browser: compiles, undo, pins and rules. All other pages are read-only.

A write needs the token and the same site like any request, and a JSON body, which an HTML form cannot send.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from typing import Any, cast

from pydantic_ai.models import Model
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from context_compiler.chat.session import ChatSession
from context_compiler.compiler.steering import Pin, position_of
from context_compiler.compiler.trace import session_of
from context_compiler.errors import SettingsError
from context_compiler.messages.bodies import load_messages
from context_compiler.messages.fences import one_line
from context_compiler.messages.history import reader_of
from context_compiler.messages.items import Kind
from context_compiler.messages.printable import safe
from context_compiler.messages.rules import Rule
from context_compiler.middleware.capability import ContextCompiler
from context_compiler.middleware.manual import CompileResult
from context_compiler.record.browse import SessionRow
from context_compiler.record.store import SQLStore
from context_compiler.record.values import Drop
from context_compiler.resilience import attempt
from context_compiler.tokens import as_counter
from context_compiler.tokens.prices import dollars
from context_compiler.web.data import PAGE, BadRequest, Inspector, Pages

MAX_BODY_BYTES = 2_000_000
"""Maximum bytes of a request's JSON body."""

EXCERPT = 160
"""Maximum characters shown of a prompt in the list."""

STEPS = 50
"""Maximum actions listed; the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinRow:
    """A pinned message, which stays in every view."""

    tip: str
    """Chain id of the message, by which it can be unpinned."""
    turn: int
    """From 1."""
    role: str
    text: str
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleRow:
    """A rule of the user, which every request contains."""

    message: int
    """Position of its message in the raw history, from 0."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRow:
    """An action of a user on the views of the session."""

    number: int
    kind: str
    """compile, undo, pin, unpin or dismiss."""
    text: str
    """Focus of a compile, or the beginning of a pinned message."""
    before: int | None
    after: int | None
    compile: int | None
    """Number of the compile that was created or undone."""
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRow:
    """The prompt of one turn."""

    turn: int
    """From 1."""
    message: int
    """Position of the prompt in the raw history, from 0."""
    text: str
    tokens: int
    pinned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of a compile, a preview or an undo."""

    kind: str
    done: bool
    why: str
    focus: str
    before: int
    after: int
    kept: int
    turns: int
    left_out: tuple[Drop, ...]
    summary: str
    model: str
    usage: dict[str, int]
    cost: str
    """US dollars as text, or "unknown"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SteeringPage:
    """Actions on the views of a session, its pins, and its prompts."""

    session: SessionRow
    pins: tuple[PinRow, ...]
    rules: tuple[RuleRow, ...]
    actions: tuple[ActionRow, ...]
    """Newest first."""
    prompts: tuple[PromptRow, ...]
    pages: Pages
    preview: Outcome | None
    """Preview of a compile without a model; None if it was not requested."""


def outcome_of(result: CompileResult) -> Outcome:
    """Convert a result to the form that the page and the API show."""
    same = ("kind", "done", "before", "after", "kept", "turns", "left_out", "model")
    fields: dict[str, Any] = {name: getattr(result, name) for name in same}
    texts: dict[str, Any] = {name: safe(getattr(result, name)) for name in ("why", "focus", "summary")}
    cost = dollars(result.cost) if result.usage else "$0"
    return Outcome(**fields, **texts, usage=dict(result.usage), cost=cost)


def pin_row(pin: Pin) -> PinRow:
    """Convert a pin to the form that the page and the API show."""
    return PinRow(tip=pin.tip, turn=pin.turn, role=pin.role, text=safe(pin.text), tokens=pin.tokens)


def rule_row(rule: Rule) -> RuleRow:
    """Convert a rule to the form that the page and the API show."""
    return RuleRow(message=rule.position, text=safe(rule.text))


def answer_json(result: CompileResult | Pin | Rule) -> Response:
    """Build the JSON response for a result, a pin or a rule."""
    if isinstance(result, Rule):
        return JSONResponse(asdict(rule_row(result)))
    if isinstance(result, Pin):
        return JSONResponse(asdict(pin_row(result)))
    shown = asdict(outcome_of(result))
    drops = shown.pop("left_out")
    return JSONResponse({**shown, "left_out": drops})


async def load_steering(
    inspector: Inspector, number: int, *, preview: bool, focus: str, start: str, page: int
) -> SteeringPage:
    """Load pins, actions and prompts of a session; with `preview`, also the result that a compile would have.

    Raises:
        BadRequest: There is no such turn, or the focus is too long.
    """
    info = await inspector.read(partial(session_of, number=number))
    store = inspector.store.scoped(info.owner)
    compiler = _compiler(store, info)
    actions = await store.actions(info.session_id, info.vault_name)
    pins = await compiler.pins(info.session_id)
    rows = _prompts(load_messages(await store.transcript(info.session_id, info.vault_name)), pins)
    rules = await compiler.standing_rules(info.session_id) if rows else ()
    pages = Pages(page=page, size=PAGE, total=len(rows))
    result = None
    if rows and preview:
        result = await or_bad_request(compiler.preview(info.session_id, focus, start=start or None))
    return SteeringPage(
        session=info,
        pins=tuple(map(pin_row, pins)),
        rules=tuple(map(rule_row, rules)),
        actions=tuple(_action_row(action) for action in reversed(actions[-STEPS:])),
        prompts=tuple(rows[pages.offset : pages.offset + PAGE]),
        pages=pages,
        preview=None if result is None else outcome_of(result),
    )


def _prompts(messages: list[Any], pins: tuple[Pin, ...]) -> list[PromptRow]:
    history = reader_of(as_counter(None)).read(messages)
    pinned = {position_of(pin, history) for pin in pins}
    rows: list[PromptRow] = []
    for position, reading in enumerate(history.readings):
        if reading.has_prompt:
            text = " ".join(item.text for item in reading.items if item.mark is None and item.kind is not Kind.SYSTEM)
            rows.append(
                PromptRow(
                    turn=len(rows) + 1,
                    message=position,
                    text=one_line(safe(text), EXCERPT),
                    tokens=reading.tokens,
                    pinned=position in pinned,
                )
            )
    return rows


def _action_row(action: Any) -> ActionRow:
    state: dict[str, Any] = json.loads(action.state)
    return ActionRow(
        number=action.number,
        kind=action.kind,
        text=safe(str(state.get("focus") or state.get("text") or "")),
        before=state.get("before"),
        after=state.get("after"),
        compile=action.summary_id,
        created_at=action.created_at,
    )


def _compiler(store: SQLStore, info: SessionRow, model: Model | str = "none") -> ContextCompiler:
    return ContextCompiler(store=store, owner=info.owner, vault_name=info.vault_name, model=model, system=None)


async def or_bad_request(work: Awaitable[Any]) -> Any:
    """Await some work; a SettingsError becomes a BadRequest."""
    try:
        return await work
    except SettingsError as error:
        raise BadRequest(str(error)) from None


async def json_body(request: Request) -> dict[str, Any]:
    """Read the JSON object in the body of a request.

    Raises:
        BadRequest: The body is not a JSON object, or too long.
    """
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise BadRequest("send JSON, with content-type: application/json")
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > MAX_BODY_BYTES:
            raise BadRequest(f"the body: give at most {MAX_BODY_BYTES:,} bytes")
    body: object = attempt(lambda: json.loads(data)).value
    if not isinstance(body, dict):
        raise BadRequest("the body is not a JSON object")
    return cast("dict[str, Any]", body)


def body_field(body: Mapping[str, Any], name: str, default: Any) -> Any:
    """Return a field of a body, which must have the type of its default.

    Raises:
        BadRequest: The field has another type.
    """
    value = body.get(name, default)
    if type(value) is not type(default):
        raise BadRequest(f"{name}: give a {'boolean' if isinstance(default, bool) else 'string'}")
    return value


class _Recorded:
    """Adapter that steers a recorded session as `ChatSession` steers a chat."""

    def __init__(self, compiler: ContextCompiler, session: str) -> None:
        self.compiler, self.session = compiler, session
        self.undo = partial(compiler.undo_compile, session)
        self.pin = partial(compiler.pin, session)
        self.unpin = partial(compiler.unpin, session)
        self.dismiss = partial(compiler.dismiss_rule, session)

    async def compact(self, focus: str = "", *, start: int | str | None = None, preview: bool = False) -> CompileResult:
        work = self.compiler.preview if preview else self.compiler.compile_now
        return await work(self.session, focus, start=start)


Steered = ChatSession | _Recorded
"""A conversation that can be steered."""

Steer = Callable[[Steered, Mapping[str, Any]], Awaitable["CompileResult | Pin | Rule"]]


async def _compact(steered: Steered, body: Mapping[str, Any]) -> CompileResult:
    focus, start = body_field(body, "focus", ""), body_field(body, "start", "")
    return await steered.compact(focus, start=start or None, preview=body_field(body, "preview", False))


STEERS: dict[str, Steer] = {
    "compact": _compact,
    "undo": lambda steered, body: steered.undo(),
    "pin": lambda steered, body: steered.pin(body_field(body, "message", "")),
    "unpin": lambda steered, body: steered.unpin(body_field(body, "message", "")),
    "dismiss": lambda steered, body: steered.dismiss(body_field(body, "rule", "")),
}
"""Steering operations by the last part of their address."""


def steering_routes(inspector: Inspector, model: Callable[[str], Model] | None) -> list[Route]:
    """Return the routes of the endpoints that steer the sessions of a record.

    Args:
        inspector: Reader of the record, limited to the owner that the server shows.
        model: Function from a name to the model that writes a summary; raises `SettingsError` if the model cannot be
            used. None offers no models.
    """
    steer = partial(_steer, inspector=inspector, model_of=model)
    return [
        Route(f"/api/sessions/{{number}}/{name}", partial(steer, work=work), methods=["POST"])
        for name, work in STEERS.items()
    ]


async def _steer(
    request: Request, work: Steer, inspector: Inspector, model_of: Callable[[str], Model] | None
) -> Response:
    number = request.path_params["number"]
    if not (number.isascii() and number.isdigit() and len(number) < 16):
        raise BadRequest("number: give a whole number")
    body = await json_body(request)
    info = await inspector.read(partial(session_of, number=int(number)))
    name = body_field(body, "model", "none")
    if name != "none" and model_of is None:
        raise BadRequest("model: this server has no models; leave it out to quote passages instead")
    model = name if name == "none" or model_of is None else model_of(name)
    store = inspector.store.writer()
    try:
        compiler = _compiler(store.scoped(info.owner), info, model)
        result = await or_bad_request(work(_Recorded(compiler, info.session_id), body))
    finally:
        await store.close()
    return answer_json(result)


_FOCUS = {"type": "string", "maxLength": 2_000, "description": "Subject that the summary and quotes focus on."}
_START = {"type": "string", "description": "Summarize from this turn on, such as `turn 4`; earlier turns stay."}
_MODEL = {"type": "string", "description": "Model that writes the summary, or none.", "default": "none"}
_MESSAGE = {"type": "string", "description": "`turn 3`, `m12`, or words of the message; also the tip of a pin."}
_RULE = {"type": "string", "description": "The rule, or words of it."}
_PREVIEW = {"type": "boolean", "description": "Change nothing, and call no model."}

BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "compact": ("Compile now, or preview the compile.", {"focus": _FOCUS, "start": _START, "preview": _PREVIEW}),
    "undo": ("Return to the view before the last compile.", {}),
    "pin": ("Keep a message in every view, word for word.", {"message": _MESSAGE}),
    "unpin": ("Unpin a message.", {"message": _MESSAGE}),
    "dismiss": ("Dismiss a rule of the user.", {"rule": _RULE}),
}
"""Summary of each steering operation, and the fields of its body."""

ANSWERS = {"200": "The result.", "400": "A field is invalid.", "404": "There is no such session."}


def operations(path: str, parameter: Mapping[str, Any], *, busy: bool = False) -> dict[str, Any]:
    """Build the OpenAPI paths of the steering endpoints below a path.

    Args:
        path: Common beginning of the endpoints' addresses.
        parameter: Parameter that selects the conversation.
        busy: True for a chat, which can be busy with an answer and has its own model.
    """
    paths: dict[str, Any] = {}
    answers = {**ANSWERS, "409": "An answer is still being written."} if busy else ANSWERS
    for name, (about, fields) in BODIES.items():
        properties = fields if busy or name != "compact" else {**fields, "model": _MODEL}
        paths[f"{path}/{name}"] = {
            "post": {
                "operationId": f"{name}_{path.split('/')[2]}",
                "summary": about,
                "parameters": [parameter],
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": {"type": "object", "properties": properties}}},
                },
                "responses": {
                    code: {"description": why, "content": {"application/json": {}}} for code, why in answers.items()
                },
            }
        }
    return paths


_NUMBER = {"name": "number", "in": "path", "required": True, "schema": {"type": "integer", "minimum": 1}}

STEERING_PATHS = operations("/api/sessions/{number}", _NUMBER)
"""OpenAPI paths of the endpoints that steer sessions."""
