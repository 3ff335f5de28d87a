"""The application: routes of pages, API and files, and the middleware that guards them."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from context_compiler.compiler.specifics import specifics
from context_compiler.compiler.trace import NotFound
from context_compiler.errors import ContextCompilerError, StoreError, TemplateError
from context_compiler.paths import vault_of
from context_compiler.record.store import open_place
from context_compiler.resilience import attempt
from context_compiler.web.api import RESOURCES, Resource, Sources, openapi, to_json
from context_compiler.web.chat import CHAT_PATHS, Busy, ChatPages, Chats
from context_compiler.web.data import BadRequest, Inspector
from context_compiler.web.export import FORMS
from context_compiler.web.live import live_events
from context_compiler.web.pages import load_pages, render, static_files
from context_compiler.web.pipelines import DRAWING_POLICY, load_drawing
from context_compiler.web.steering import STEERING_PATHS, SteeringPages

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
COOKIE = "context_compiler_token"

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
"""Headers of every answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Conditions of every request: the names under which the server is reached, and its token."""

    hosts: frozenset[str] = LOOPBACK
    token: str | None = None
    """None asks for none."""


class Guard:
    """Middleware that refuses foreign names, cross-site writes and missing tokens, and sets the security headers.

    A page of another site that is made to resolve to this address (DNS rebinding) carries its own name in `Host`.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refused = self._refusal(scope, headers)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                found = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    found.setdefault(name, value)
                found.setdefault("cache-control", "no-store")
            await send(message)

        if refused is None and (cookie := self._new_cookie(scope)):
            refused = RedirectResponse(_without_token(scope), status_code=303)
            refused.set_cookie(COOKIE, cookie, httponly=True, samesite="strict")
        await (refused or self.app)(scope, receive, guarded)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        host = headers.get("host", "")
        if _hostname(host) not in self.access.hosts:
            return _refuse(403, f"this server is not called {host[:80]!r}")
        if not _same_site(headers, host):
            if scope["method"] not in SAFE:
                return _refuse(403, "a page of another site may not write here")
            if not _is_opened(headers):
                return _refuse(403, "a page of another site may link to this one, and not load it")
        if not self._allowed(scope, headers):
            return _refuse(401, "give the token that the server printed, as ?token=… or as a bearer token")
        return None

    def _allowed(self, scope: Scope, headers: Headers) -> bool:
        if self.access.token is None:
            return True
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        given = (bearer, Request(scope).cookies.get(COOKIE, ""), _query_token(scope))
        return any(secrets.compare_digest(one.encode(), self.access.token.encode()) for one in given if one)

    def _new_cookie(self, scope: Scope) -> str:
        """Token of an address that a browser opens, which goes into a cookie and out of the address."""
        asked = scope["method"] == "GET" and not scope["path"].startswith("/api")
        return _query_token(scope) if asked and self.access.token else ""


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _same_site(headers: Headers, host: str) -> bool:
    """True for a request of our own pages, or of a program that is not a browser."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is not None and attempt(lambda: urlsplit(origin).netloc).value != host:
        return False
    return site in (None, "same-origin", "none")


def _is_opened(headers: Headers) -> bool:
    """True for a page that somebody opens by a link: a look at a chat that is new makes its transcript."""
    asked = headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")
    return asked == ("navigate", "document")


def _query_token(scope: Scope) -> str:
    return parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]


def _without_token(scope: Scope) -> str:
    pairs = [pair for pair in scope["query_string"].decode("latin-1").split("&") if not pair.startswith("token=")]
    path = "/" + scope["path"].lstrip("/")
    return f"{path}?{'&'.join(pairs)}" if pairs and pairs != [""] else path


def _refuse(status: int, why: str) -> Response:
    return JSONResponse({"error": why}, status)


def create_app(
    db: str | Path,
    *,
    system: str | Path | None = "system",
    vault: str | Path | None = None,
    hosts: Iterable[str] = (),
    token: str | None = None,
    runs: str | Path = "system/runs.db",
    chats: Chats | None = None,
    owner: str | None = None,
) -> Starlette:
    """The application for one record.

    Args:
        db: The record, a file or an address; opened read-only, and not before the first request.
        system: Folder whose `ContextTemplates/` comes second.
        vault: Folder whose `AssistantMD/ContextTemplates/` comes first; `{owner}` in its path stands for the folder of
            the owner.
        hosts: Names under which the server is reached, beside those of loopback.
        token: Token that every request must bring; None asks for none.
        runs: Store of the runs of pipelines: a file, a folder or an address; never made here.
        chats: Chats of the chat page; None leaves it out.
        owner: Owner whose sessions are shown; None shows those of all. Runs of pipelines, which no owner has, are shown
            to nobody else.
    """
    store = open_place(db, read_only=True).scoped(owner)
    inspector = Inspector(store, vault=vault_of(vault, owner), system=None if system is None else Path(system))
    sources = Sources.of(inspector, str(runs) if owner is None else None)
    pages = [Route(one.route, _page(one, sources), name=one.name) for one in RESOURCES if one.page]
    answers = [Route(f"/api{one.route}", _answer(one, sources)) for one in RESOURCES]
    app = Starlette(
        routes=[
            *SteeringPages(inspector, chats.model if chats is not None else None).routes(),
            *(ChatPages(chats, inspector).routes() if chats is not None else [Route("/chat", _no_chat)]),
            Route("/", _home),
            *pages,
            *answers,
            Route("/requests/{number}/export/{form}", _download(sources)),
            Route("/live", _live(inspector)),
            Route("/pipeline.svg", _drawing(sources)),
            Route("/api/openapi.json", _openapi),
            Route("/static/{name}", _static),
        ],
        middleware=[Middleware(Guard, access=Access(hosts=LOOPBACK | frozenset(hosts), token=token))],
        exception_handlers={
            ContextCompilerError: _explain,
            HTTPException: _explain,
        },
        lifespan=lambda app: _running(chats),
    )
    app.state.inspector = inspector
    app.state.is_ending = lambda: False  # the server says when open streams have to end
    return app


Endpoint = Callable[[Request], Awaitable[Response]]


def _page(resource: Resource, sources: Sources) -> Endpoint:
    others = {name: _resource(other) for name, other in resource.beside.items()}

    async def answer(request: Request) -> Response:
        given = resource.parse(request.path_params, request.query_params)
        sources.inspector.warm()
        value = await resource.load(sources, given)
        more = {name: await other.load(sources, given) for name, other in others.items()}
        db = str(sources.inspector.store.place)
        return HTMLResponse(render(resource.page, it=value, here=resource.name, db=db, **more))

    return answer


def _resource(name: str) -> Resource:
    return next(one for one in RESOURCES if one.name == name)


def _answer(resource: Resource, sources: Sources) -> Endpoint:
    async def answer(request: Request) -> Response:
        value = await resource.load(sources, resource.parse(request.path_params, request.query_params))
        return Response(to_json(resource, value), media_type="application/json")

    return answer


def _download(sources: Sources) -> Endpoint:
    resource = _resource("export")

    async def answer(request: Request) -> Response:
        form = request.path_params["form"]
        if form not in FORMS:
            raise NotFound(f"no such export {form[:40]!r}; there are {', '.join(FORMS)}")
        value = await resource.load(sources, resource.parse(request.path_params, {}))
        ending, kind = FORMS[form]
        name = f"request-{value.request.id}{ending}"
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(getattr(value, form), media_type=kind, headers=headers)

    return answer


def _live(inspector: Inspector) -> Endpoint:
    async def answer(request: Request) -> Response:
        asked = request.query_params.get("session", "")
        session = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 16 else None
        events = live_events(
            inspector,
            session,
            lambda rows, writing: render("live.html", requests=rows, under_way=writing),
            since=request.headers.get("last-event-id") or request.query_params.get("since", ""),
            is_ending=request.app.state.is_ending,
        )
        return StreamingResponse(events, media_type="text/event-stream")

    return answer


def _drawing(sources: Sources) -> Endpoint:
    async def answer(request: Request) -> Response:
        drawn = await load_drawing(sources.runs, request.query_params.get("run", ""))
        return Response(drawn, media_type="image/svg+xml", headers={"content-security-policy": DRAWING_POLICY})

    return answer


async def _home(request: Request) -> Response:
    return RedirectResponse("/sessions")


async def _openapi(request: Request) -> Response:
    document = openapi()
    return JSONResponse({**document, "paths": {**document["paths"], **CHAT_PATHS, **STEERING_PATHS}})


async def _no_chat(request: Request) -> Response:
    raise HTTPException(404, "this server has no chat: `context-compiler serve` starts one that has")


@asynccontextmanager
async def _running(chats: Chats | None) -> AsyncGenerator[None]:
    """Prepare the first answers beside the server, and close the chats when it ends, so that what was shown is kept."""
    Thread(target=_prepare, daemon=True, name="prepare").start()
    try:
        yield
    finally:
        if chats is not None:
            await chats.close()


def _prepare() -> None:
    """Compile what would else be compiled while somebody waits for a page."""
    load_pages()
    specifics("Ünïcode too")


async def _static(request: Request) -> Response:
    found = static_files().get(request.path_params["name"])
    if found is None:
        raise HTTPException(404, "no such file")
    kept = "public, max-age=31536000, immutable" if request.url.query else "no-cache"
    return Response(found[0], media_type=found[1], headers={"cache-control": kept})


async def _explain(request: Request, error: Exception) -> Response:
    """An error as a page, or as JSON below `/api`."""
    status = error.status_code if isinstance(error, HTTPException) else _status(error)
    why = error.detail if isinstance(error, HTTPException) else str(error)
    if request.url.path.startswith("/api"):
        return _refuse(status, why)
    return HTMLResponse(render("error.html", status=status, why=why, here="error", db=""), status)


def _status(error: Exception) -> int:
    known = ((NotFound, 404), (Busy, 409), (TemplateError, 404), (BadRequest, 400), (StoreError, 503))
    return next((status for kind, status in known if isinstance(error, kind)), 422)
