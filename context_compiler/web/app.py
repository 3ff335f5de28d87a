"""The web application: routes of the pages, the API and static files, and the middleware that guards them."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, urlsplit

from pydantic_ai.models import Model
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
from context_compiler.record.files import locate, other_records
from context_compiler.record.store import SQLiteStore, open_place
from context_compiler.resilience import attempt
from context_compiler.web.api import MAX_PARAMETER, RESOURCES, Resource, Sources, openapi, to_json
from context_compiler.web.chat import CHAT_PATHS, ChatPages
from context_compiler.web.chats import Busy, Chats, NotAChat
from context_compiler.web.data import BadRequest, Inspector
from context_compiler.web.export import FORMS
from context_compiler.web.live import live_events
from context_compiler.web.pages import link, load_pages, menu, render, static_files
from context_compiler.web.steering import STEERING_PATHS, steering_routes

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
"""Headers of every response."""


class Guard:
    """Middleware that refuses unknown hosts, cross-site writes and missing tokens, and sets security headers.

    The check of `Host` prevents DNS rebinding: a page of another site whose name resolves to this address sends its
    own name. Without a token, none is required.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str], token: str | None) -> None:
        self.app, self.hosts, self.token = app, frozenset(map(str.lower, hosts)), token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        instead = self._refusal(scope, headers)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                response_headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    response_headers.setdefault(name, value)
                response_headers.setdefault("cache-control", "no-store")
            await send(message)

        if instead is None and (cookie := self._new_cookie(scope)):
            instead = RedirectResponse(_without_token(scope), status_code=303)
            instead.set_cookie(COOKIE, cookie, httponly=True, samesite="strict")
        await (instead or self.app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        host = headers.get("host", "")
        if (attempt(lambda: urlsplit(f"//{host}").hostname).value or "") not in self.hosts:
            return _refuse(403, f"unknown host {host[:80]!r}: this server does not have that name")
        if not _same_site(headers, host):
            if scope["method"] not in SAFE:
                return _refuse(403, "pages of other sites cannot write to this server")
            if not _is_navigation(headers):
                return _refuse(403, "pages of other sites can link to this page, but not load it")
        if not self._has_token(scope, headers):
            return _refuse(401, "give the token that the server printed, as ?token=… or as a bearer token")
        return None

    def _has_token(self, scope: Scope, headers: Headers) -> bool:
        if self.token is None:
            return True
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        tokens = (bearer, Request(scope).cookies.get(COOKIE, ""), _query_token(scope))
        return any(secrets.compare_digest(token.encode(), self.token.encode()) for token in tokens if token)

    def _new_cookie(self, scope: Scope) -> str:
        """Return the token in the address of a page, to move it from the address to a cookie; empty if none."""
        is_page = scope["method"] == "GET" and not scope["path"].startswith("/api")
        return _query_token(scope) if is_page and self.token else ""


def _same_site(headers: Headers, host: str) -> bool:
    """True for a request from a page of this server, or from a program that is not a browser."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is not None and attempt(lambda: urlsplit(origin).netloc).value != host:
        return False
    return site in (None, "same-origin", "none")


def _is_navigation(headers: Headers) -> bool:
    """True if a user opens a page by a link. Other sites must not load pages, because opening a new chat stores it."""
    return (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == ("navigate", "document")


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
    model: Callable[[str], Model] | None = None,
    owner: str | None = None,
) -> Starlette:
    """Create the application for one record.

    Args:
        db: File or address of the record; opened read-only at the first request.
        system: Folder whose `ContextTemplates/` is searched second.
        vault: Folder whose `AssistantMD/ContextTemplates/` is searched first; `{owner}` in its path is replaced by the
            folder of the owner.
        hosts: Host names of the server, in addition to those of loopback.
        token: Token that every request must have; None requires none.
        runs: Store of pipeline runs: a file, a folder or an address; never created here.
        chats: Chats of the chat page; None disables the page.
        model: Function from a name to the model that writes a summary by hand; None uses that of the chats.
        owner: Owner whose sessions and pipeline runs are shown; None shows those of all owners.
    """
    store = open_place(db, read_only=True).scoped(owner)
    places = {"vault": vault_of(vault, owner), "system": None if system is None else Path(system)}
    inspector = Inspector(store, **places)
    sources = Sources(inspector, str(runs), owner, **places)
    app = Starlette(
        routes=_routes(sources, chats, model or (chats.model if chats is not None else None)),
        middleware=[Middleware(Guard, hosts=LOOPBACK | frozenset(hosts), token=token)],
        exception_handlers={ContextCompilerError: _error_response, HTTPException: _error_response},
        lifespan=lambda app: _lifespan(chats),
    )
    app.state.inspector = inspector
    app.state.menu = partial(menu, chats=chats is not None, runs=str(runs))
    app.state.is_ending = lambda: False  # replaced by the server, to end open streams when it shuts down
    return app


def _routes(sources: Sources, chats: Chats | None, model: Callable[[str], Model] | None) -> list[Route]:
    """Return all routes, in the order in which an address is compared with them."""
    return [
        *steering_routes(sources.inspector, model),
        *(ChatPages(chats, sources.home).routes() if chats is not None else [Route("/chat", _no_chat)]),
        Route("/", _home),
        Route("/find", partial(_find, sources=sources)),
        *(
            Route(resource.path, partial(_page, resource=resource, sources=sources), name=resource.name)
            for resource in RESOURCES
            if resource.has_page
        ),
        *(
            Route(f"/api{resource.path}", partial(_answer, resource=resource, sources=sources))
            for resource in RESOURCES
        ),
        Route("/requests/{number}/export/{form}", partial(_download, sources=sources)),
        Route("/live", partial(_live, inspector=sources.inspector)),
        Route("/api/openapi.json", _openapi),
        Route("/static/{name}", _static),
    ]


async def _page(request: Request, resource: Resource, sources: Sources) -> Response:
    parameters = resource.parse(request.path_params, request.query_params)
    sources.inspector.warm()
    store = sources.inspector.store
    if resource.name == "sessions" and isinstance(store, SQLiteStore) and not locate(store.path).exists():
        values = {"here": "sessions", "db": store.place, "others": other_records(store.path)}
        return HTMLResponse(render("nothing.html", menu=request.app.state.menu(), **values))
    value = await resource.load(sources, parameters)
    others = {name: await _resource(name).load(sources, parameters) for name in resource.beside}
    frame = {"here": resource.name, "db": str(store.place), "menu": request.app.state.menu()}
    return HTMLResponse(render(f"{resource.name}.html", it=value, **others, **frame))


def _resource(name: str) -> Resource:
    return next(resource for resource in RESOURCES if resource.name == name)


async def _answer(request: Request, resource: Resource, sources: Sources) -> Response:
    value = await resource.load(sources, resource.parse(request.path_params, request.query_params))
    return Response(to_json(resource, value), media_type="application/json")


async def _download(request: Request, sources: Sources) -> Response:
    resource, form = _resource("export"), request.path_params["form"]
    if form not in FORMS:
        raise NotFound(f"unknown export {form[:40]!r}; use one of {', '.join(FORMS)}")
    value = await resource.load(sources, resource.parse(request.path_params, {}))
    ending, kind = FORMS[form]
    headers = {"content-disposition": f'attachment; filename="request-{value.request.id}{ending}"'}
    return Response(getattr(value, form), media_type=kind, headers=headers)


async def _live(request: Request, inspector: Inspector) -> Response:
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


async def _home(request: Request) -> Response:
    return RedirectResponse("/sessions")


async def _find(request: Request, sources: Sources) -> Response:
    """Lead from words to their history: in their session, or to all sessions with them if there are several."""
    words = request.query_params.get("q", "").strip()[:MAX_PARAMETER].replace("\x00", "")
    sessions = (await sources.facts.sessions(words)).numbers if words else ()
    here = link(f"/sessions/{sessions[0]}/fact", q=words) if len(sessions) == 1 else link("/sessions", text=words)
    return RedirectResponse(here, 303)


async def _openapi(request: Request) -> Response:
    document = openapi()
    return JSONResponse({**document, "paths": {**document["paths"], **CHAT_PATHS, **STEERING_PATHS}})


async def _no_chat(request: Request) -> Response:
    raise HTTPException(404, "this server only shows a record; `context-compiler serve --chat` starts one with a chat")


@asynccontextmanager
async def _lifespan(chats: Chats | None) -> AsyncGenerator[None]:
    """Warm up in a thread, and close the chats when the server ends, so that the shown part of an answer is stored."""
    Thread(target=_warm_up, daemon=True, name="prepare").start()
    try:
        yield
    finally:
        if chats is not None:
            await chats.close()


def _warm_up() -> None:
    """Compile templates and patterns before the first page needs them."""
    load_pages()
    specifics("Ünïcode too")


async def _static(request: Request) -> Response:
    file = static_files().get(request.path_params["name"])
    if file is None:
        raise HTTPException(404, "no such file")
    caching = "public, max-age=31536000, immutable" if request.url.query else "no-cache"
    return Response(file[0], media_type=file[1], headers={"cache-control": caching})


async def _error_response(request: Request, error: Exception) -> Response:
    """Answer with an error as a page, or as JSON below `/api`."""
    status = error.status_code if isinstance(error, HTTPException) else _status(error)
    why = error.detail if isinstance(error, HTTPException) else str(error)
    if request.url.path.startswith("/api"):
        if why == HTTPStatus.NOT_FOUND.phrase:
            why = "there is nothing at this address; /api/openapi.json lists all addresses"
        return _refuse(status, why)
    valid = {name: value for name, value in request.query_params.items() if not why.startswith(f"{name}=")}
    form = link(request.url.path, **valid) if len(valid) < len(request.query_params) else ""
    page = render("error.html", status=status, why=why, form=form, here="error", db="", menu=request.app.state.menu())
    return HTMLResponse(page, status)


def _status(error: Exception) -> int:
    codes = ((NotFound, 404), (Busy, 409), (NotAChat, 409), (TemplateError, 404), (BadRequest, 400), (StoreError, 503))
    return next((code for kind, code in codes if isinstance(error, kind)), 422)
