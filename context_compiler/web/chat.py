"""The chat page and its API.

A prompt is refused while an answer is being written, and stays in its field.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from context_compiler.messages.printable import safe
from context_compiler.record.browse import SessionFilter
from context_compiler.resilience import try_await
from context_compiler.web.chats import MAX_NAME, Chats, NotAChat
from context_compiler.web.data import BadRequest
from context_compiler.web.home import CHAT, Home
from context_compiler.web.pages import render
from context_compiler.web.steering import STEERS, answer_json, body_field, json_body, operations

MAX_PROMPT = 400_000
"""Maximum characters of one prompt."""


def _name(request: Request) -> str:
    name = request.query_params.get("session", "main")
    if not 0 < len(name) <= MAX_NAME or not name.strip() or name != safe(name):
        raise BadRequest(f"session: give a name of 1 to {MAX_NAME} printable characters")
    return name


class ChatPages:
    """Endpoints of the chat page and of its API."""

    def __init__(self, chats: Chats, home: Home) -> None:
        self.chats, self.home = chats, home

    def routes(self) -> list[Route]:
        """Return the routes of all endpoints."""
        return [
            Route("/chat", self.page),
            Route("/chat/turns", self.turns),
            *(
                Route(endpoint.path, partial(endpoint.answer, self), methods=[endpoint.method.upper()])
                for endpoint in ENDPOINTS
            ),
            *(Route(f"/api/chat/{way}", partial(self.steer, way=way), methods=["POST"]) for way in STEERS),
        ]

    async def page(self, request: Request) -> Response:
        """Show the page of a chat with its newest turns."""
        name = _name(request)
        frame = {"here": "chat", "db": str(self.chats.defaults.db), "session": name, "menu": request.app.state.menu()}
        sessions = await try_await(self.home.sessions(SessionFilter(), kind=CHAT))
        try:
            chat = await self.chats.get(name)
        except NotAChat as error:
            return HTMLResponse(render("chat_copy.html", why=str(error), **frame), 409)
        await chat.refresh_pins()
        turns, earlier = chat.turns()
        names = dict.fromkeys((chat.model, *self.chats.defaults.models))
        models = [{"name": name, "provider": name.partition(":")[0] if ":" in name else ""} for name in names]
        return HTMLResponse(
            render(
                "chat.html",
                **frame,
                turns=turns,
                earlier=earlier,
                model=chat.model,
                template=chat.session.template,
                endless=chat.session.endless,
                models=models,
                known=sessions.value.sessions if sessions.value else (),
            )
        )

    async def turns(self, request: Request) -> Response:
        """Render some turns as a fragment of the page."""
        chat = await self.chats.get(_name(request))
        before = request.query_params.get("before", "")
        if before and not (before.isascii() and before.isdigit() and len(before) < 10):
            raise BadRequest("before: give a whole number")
        turns, earlier = chat.turns(int(before) if before else None)
        return HTMLResponse(render("chat_turns.html", turns=turns, earlier=earlier))

    async def copy(self, request: Request) -> Response:
        """Begin a new chat with the history of a session of another program."""
        await json_body(request)
        return JSONResponse({"session": await self.chats.copy(_name(request))}, 201)

    async def state(self, request: Request) -> Response:
        """Return the state of a chat."""
        chat = await self.chats.get(_name(request))
        return JSONResponse({"session": chat.name, "model": chat.model, **chat.state()})

    async def events(self, request: Request) -> Response:
        """Stream the events of a chat from now on."""
        chat = await self.chats.get(_name(request))
        return StreamingResponse(chat.events(request.app.state.is_ending), media_type="text/event-stream")

    async def say(self, request: Request) -> Response:
        """Begin to answer the prompt in the request."""
        chat = await self.chats.get(_name(request))
        body = await json_body(request)
        text = body_field(body, "text", "")
        if not text.strip() or len(text) > MAX_PROMPT:
            raise BadRequest(f"text: give a prompt of at most {MAX_PROMPT} characters")
        chat.say(
            text,
            endless=body_field(body, "endless", chat.session.endless),
            template=body_field(body, "template", chat.session.template),
            model=body_field(body, "model", chat.model),
        )
        return JSONResponse({"session": chat.name}, 202)

    async def stop(self, request: Request) -> Response:
        """Stop the answer that is being written."""
        chat = await self.chats.get(_name(request))
        return JSONResponse({"stopped": chat.stop()})

    async def steer(self, request: Request, way: str) -> Response:
        """Compile now, undo a compile, pin, unpin or dismiss a rule."""
        chat = await self.chats.get(_name(request))
        return answer_json(await chat.steer(way, await json_body(request)))


_SESSION: dict[str, Any] = {
    "name": "session",
    "in": "query",
    "description": "Name of the chat.",
    "schema": {"type": "string", "minLength": 1, "maxLength": MAX_NAME, "default": "main"},
}


_PROMPT: dict[str, Any] = {
    "type": "object",
    "required": ["text"],
    "properties": {
        "text": {"type": "string", "minLength": 1, "maxLength": MAX_PROMPT},
        "endless": {"type": "boolean", "description": "Send a view instead of the whole history."},
        "template": {"type": "string", "description": "Template of the views."},
        "model": {"type": "string", "description": "Model that answers."},
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An endpoint of the chat API; its route and its part of the OpenAPI document are built from this."""

    method: str
    path: str
    name: str
    about: str
    answer: Callable[[ChatPages, Request], Awaitable[Response]]
    responses: Mapping[str, str]
    """Descriptions by status code."""
    body: Mapping[str, Any] | None = None
    """Schema of the request's JSON body."""
    media: str = "application/json"

    def operation(self) -> dict[str, Any]:
        """Return its OpenAPI operation."""
        operation: dict[str, Any] = {
            "operationId": self.name,
            "summary": self.about,
            "parameters": [_SESSION],
            "responses": {
                code: {"description": why, "content": {self.media: {}}} for code, why in self.responses.items()
            },
        }
        if self.body is not None:
            operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": self.body}}}
        return operation


ENDPOINTS = (
    Endpoint(
        method="get",
        path="/api/chat",
        name="chat",
        about="State of a chat.",
        answer=ChatPages.state,
        responses={"200": "The state.", "400": "A parameter is invalid."},
    ),
    Endpoint(
        method="post",
        path="/api/chat",
        name="say",
        about="Begin to answer a prompt.",
        answer=ChatPages.say,
        responses={
            "202": "The answer is sent as events.",
            "400": "A field is invalid.",
            "409": "An answer is still being written.",
            "422": "The template or the model cannot be used.",
        },
        body=_PROMPT,
    ),
    Endpoint(
        method="get",
        path="/api/chat/events",
        name="listen",
        about="Events of a chat.",
        answer=ChatPages.events,
        responses={"200": "Events.", "400": "A parameter is invalid."},
        media="text/event-stream",
    ),
    Endpoint(
        method="post",
        path="/api/chat/copy",
        name="copy",
        about="Begin a new chat with the history of a recorded session.",
        answer=ChatPages.copy,
        responses={"201": "The name of the new chat.", "400": "There is no such session."},
        body={"type": "object"},
    ),
    Endpoint(
        method="post",
        path="/api/chat/stop",
        name="stop",
        about="Stop the answer that is being written, and keep it.",
        answer=ChatPages.stop,
        responses={"200": "True if there was one."},
    ),
)
"""Endpoints of the chat API, except those that steer a chat."""


CHAT_PATHS: dict[str, Any] = {
    path: {endpoint.method: endpoint.operation() for endpoint in endpoints}
    for path, endpoints in groupby(ENDPOINTS, lambda endpoint: endpoint.path)
} | operations("/api/chat", _SESSION, busy=True)
"""OpenAPI paths of the chat endpoints."""
