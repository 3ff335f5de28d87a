"""The JSON API: one table of resources, served both as JSON and as pages, and its OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from context_compiler import __version__
from context_compiler.compiler.echoes import LISTED
from context_compiler.compiler.facts import FactPage, FactSearch
from context_compiler.fidelity import Fidelity
from context_compiler.record.browse import SORTS, SessionFilter
from context_compiler.resilience import attempt
from context_compiler.web.compare import Comparisons, DiffPage, ReplayPage, Wanted
from context_compiler.web.compiles import CompilePage, load_compile
from context_compiler.web.data import VERDICTS, BadRequest, Inspector, MessagePage, RequestPage, SessionPage, WhyPage
from context_compiler.web.export import ExportPage, load_export
from context_compiler.web.home import KINDS, Home, Overview, SessionsPage
from context_compiler.web.pipelines import RunPage, RunsPage, load_run, load_runs
from context_compiler.web.sessions import LayersPage, ManagerPage, load_layers, load_manager
from context_compiler.web.settings import SessionSettings, SettingsPage
from context_compiler.web.steering import SteeringPage, load_steering
from context_compiler.web.templates import (
    TemplatePage,
    TemplateRow,
    TemplatesPage,
    load_template,
    load_templates,
    template_rows,
)
from context_compiler.web.timeline import Timeline, Timelines

LARGEST = 2**53 - 1
"""Largest integer that JavaScript represents exactly."""

MAX_PARAMETER = 2_000
"""Maximum characters of a string parameter."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """Parameter of a resource, in its path or its query."""

    name: str
    about: str
    _: KW_ONLY
    default: int | str | None = None
    """None for a path parameter. The parameter is a number unless this is a string."""
    choices: tuple[str, ...] = ()
    most: int = LARGEST
    least: int = 1
    pattern: str = r"^[^\x00]*$"
    """Regular expression that a string matches; for the OpenAPI document."""

    @property
    def place(self) -> Literal["path", "query"]:
        """Location of the parameter in an address."""
        return "path" if self.default is None else "query"

    @property
    def is_number(self) -> bool:
        """True unless the default is a string."""
        return not isinstance(self.default, str)

    def parse(self, text: str | None) -> int | str:
        """Parse the value of the parameter; a missing one becomes the default.

        Raises:
            BadRequest: The value is invalid; the message gives the allowed values.
        """
        if text is None or (text == "" and self.default is not None):
            return self.default if self.default is not None else ""
        if self.is_number:
            if not (text.isascii() and text.isdigit() and len(text) <= 16 and self.least <= int(text) <= self.most):
                allowed = f"{self.least} to {self.most}"
                raise BadRequest(f"{self.name}={text[:40]!r}: give a whole number from {allowed}")
            return int(text)
        if self.choices and text not in self.choices:
            raise BadRequest(f"{self.name}={text[:40]!r}: give one of {', '.join(filter(None, self.choices))}")
        if len(text) > MAX_PARAMETER or "\x00" in text:
            raise BadRequest(f"{self.name}: give at most {MAX_PARAMETER} characters, and no NUL")
        return text

    def document(self) -> dict[str, Any]:
        """Return the OpenAPI description of the parameter."""
        kind: dict[str, Any] = {"type": "string", "maxLength": MAX_PARAMETER, "pattern": self.pattern}
        if self.is_number:
            kind = {"type": "integer", "minimum": self.least, "maximum": self.most}
        elif self.choices:
            kind = {"type": "string", "enum": list(self.choices)}
        if self.default is not None:
            kind["default"] = self.default
        required = self.place == "path"
        return {"name": self.name, "in": self.place, "required": required, "description": self.about, "schema": kind}


Values = Mapping[str, Any]


class Sources:
    """Readers of one record, each with its own cache.

    Args:
        inspector: Reader of the record.
        runs: Store of pipeline runs.
        owner: Owner whose runs are shown; None shows those of all owners.
        vault: Folder of the vault.
        system: Folder of the chats' transcripts.
    """

    def __init__(
        self, inspector: Inspector, runs: str, owner: str | None, *, vault: Path | None, system: Path | None
    ) -> None:
        self.inspector, self.runs, self.owner = inspector, runs, owner
        self.facts = FactSearch(inspector)
        self.timelines = Timelines(inspector)
        self.comparisons = Comparisons(inspector)
        self.settings = SessionSettings(inspector)
        self.home = Home(inspector, runs, vault=vault, system=system)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """Something that can be viewed: as a page at one address, and as JSON at the same address below `/api`."""

    path: str
    name: str
    about: str
    result: Any
    load: Callable[[Sources, Values], Awaitable[Any]]
    has_page: bool = True
    """True if the template `NAME.html` shows it as a page."""
    parameters: tuple[Parameter, ...] = ()
    beside: tuple[str, ...] = ()
    """Names of other resources that the page shows too; its template has each under its name."""

    def parse(self, path: Mapping[str, str], query: Mapping[str, str]) -> dict[str, Any]:
        """Parse the values of all parameters.

        Raises:
            BadRequest: A parameter is invalid or unknown.
        """
        names = {parameter.name for parameter in self.parameters}
        if unknown := sorted(set(query) - names - {"token"}):
            raise BadRequest(
                f"unknown parameter {unknown[0][:40]!r}; known parameters: {', '.join(sorted(names)) or 'none'}"
            )
        return {
            parameter.name: parameter.parse((path if parameter.place == "path" else query).get(parameter.name))
            for parameter in self.parameters
        }


SESSION = Parameter("number", "Number of the session.")
REQUEST = Parameter("number", "Number of the request.")
PAGE = Parameter("page", "Page of the list, from 1.", default=1, most=10_000_000)
STRETCH = Parameter("stretch", "Page of the timeline, from 1, the newest.", default=1)
RECALL = Parameter(
    "recall",
    "Size of recall blocks: a share from 0 to 1, or tokens; empty as it was.",
    default="",
    pattern=r"^(|[01](\.0)?|0?\.[0-9]{1,9}|[0-9]{1,9})$",
)
STATUSES = ("", "raw", "mended", "compiled", "cycle", "fallback", "floor_over_budget", "dry_run", "imported")
STATUS = Parameter("status", "First word of the status of requests.", default="", choices=STATUSES)


async def _sessions(sources: Sources, values: Values) -> SessionsPage:
    names = ("name", "text", "status", "template", "model", "sort")
    matches = await sources.facts.sessions(values["text"]) if values["text"].strip() else None
    wanted = SessionFilter(**{name: values[name] for name in names}, among=matches.numbers if matches else None)
    listed = await sources.home.sessions(wanted, kind=values["kind"], page=values["page"])
    return listed if matches is None else await _with_words(sources, listed, values["text"], near=matches.near)


async def _with_words(sources: Sources, listed: SessionsPage, text: str, *, near: bool) -> SessionsPage:
    """Add to the first sessions of a page a message with the searched words, and if the newest request has them."""
    sessions = list(listed.sessions)
    for index, session in enumerate(sessions[:LISTED]):
        page = await sources.facts.session(session.id, text)
        said = next(iter((*page.mentions, *page.near)), None)
        now = page.stretches[-1].forms if page.had or page.mentioned else None
        sessions[index] = replace(session, said=said, now=now)
    return replace(listed, near=near, sessions=tuple(sessions))


async def _diff(sources: Sources, values: Values) -> DiffPage:
    choice = values["with"]
    number = choice.isascii() and choice.isdigit() and len(choice) < 16 and int(choice) > 0
    if choice not in ("previous", "raw") and not number:
        raise BadRequest(f"with={choice[:40]!r}: give previous, raw, or the number of a request")
    return await sources.comparisons.diff(values["number"], choice, page=values["page"])


async def _replay(sources: Sources, values: Values) -> ReplayPage:
    wanted = Wanted(
        template=values["template"],
        budget=values["budget"] or None,
        fidelity=values["fidelity"],
        recall=_recall_size(values["recall"]),
        trigger=values["trigger"] or None,
    )
    return await sources.comparisons.replay(values["number"], wanted, words=values["q"], page=values["page"])


def _recall_size(text: str) -> float | None:
    """Parse a share from 0 to 1, or whole tokens; None if the text is empty."""
    if not text:
        return None
    size = attempt(lambda: float(text)).value
    if size is None or not 0 <= size <= LARGEST or (size > 1 and size != int(size)):
        raise BadRequest(f"recall={text[:40]!r}: give a share from 0 (nothing) to 1, or whole tokens")
    return size if size <= 1 else int(size)


async def _template_rows(sources: Sources, values: Values) -> tuple[TemplateRow, ...]:
    return template_rows(sources.inspector)


RESOURCES: tuple[Resource, ...] = (
    Resource(
        path="/sessions",
        name="sessions",
        about="Conversations with kind, model and cost.",
        result=SessionsPage,
        load=_sessions,
        parameters=(
            Parameter("name", "Part of the session's name.", default=""),
            Parameter("text", "Words of a message in the session.", default=""),
            STATUS,
            Parameter("template", "Template of at least one of its compiles.", default=""),
            Parameter("model", "Model of at least one of its compiles.", default=""),
            Parameter("kind", "Kind of the session.", default="", choices=("", *KINDS)),
            Parameter("sort", "Order; `used` is most recently used first.", default="used", choices=tuple(SORTS)),
            PAGE,
        ),
        beside=("overview",),
    ),
    Resource(
        path="/overview",
        name="overview",
        about="Requests, tokens and money saved, compiles and fallbacks of all sessions, in total and over time.",
        result=Overview,
        load=lambda sources, values: sources.home.overview(),
        has_page=False,
    ),
    Resource(
        path="/sessions/{number}",
        name="session",
        about="One conversation with its requests, newest first.",
        result=SessionPage,
        load=lambda sources, values: sources.inspector.session(
            values["number"], page=values["page"], status=values["status"]
        ),
        parameters=(SESSION, STATUS, PAGE, STRETCH),
        beside=("timeline",),
    ),
    Resource(
        path="/sessions/{number}/timeline",
        name="timeline",
        about="Raw, sent and shared tokens of a session's requests, oldest first, and their cost.",
        result=Timeline,
        load=lambda sources, values: sources.timelines.timeline(values["number"], page=values["stretch"]),
        has_page=False,
        parameters=(SESSION, STRETCH),
    ),
    Resource(
        path="/sessions/{number}/fact",
        name="fact",
        about="History of a fact: which requests contained it, in which form, and when it was dropped.",
        result=FactPage,
        load=lambda sources, values: sources.facts.session(values["number"], values["q"]),
        parameters=(SESSION, Parameter("q", "The fact.", default="")),
    ),
    Resource(
        path="/sessions/{number}/settings",
        name="settings",
        about="A session replayed with another budget and recall: tokens, cost and lost ids; no model is called.",
        result=SettingsPage,
        load=lambda sources, values: sources.settings.load(
            values["number"],
            budget=values["budget"],
            recall=_recall_size(values["recall"]),
            cheapest=values["cheapest"] == "yes",
        ),
        parameters=(
            SESSION,
            Parameter("budget", "Tokens; empty replays nothing.", default=0, most=10_000_000),
            RECALL,
            Parameter("cheapest", "yes to try several settings.", default="", choices=("", "yes")),
        ),
    ),
    Resource(
        path="/sessions/{number}/layers",
        name="layers",
        about="The layers of a session, as each kind of node sees them.",
        result=LayersPage,
        load=lambda sources, values: load_layers(sources.inspector, values["number"]),
        parameters=(SESSION,),
    ),
    Resource(
        path="/sessions/{number}/steering",
        name="steering",
        about="Pinned messages of a session, manual compiles and undos, and a preview of a compile without a model.",
        result=SteeringPage,
        load=lambda sources, values: load_steering(
            sources.inspector, **{**values, "preview": values["preview"] == "yes"}
        ),
        parameters=(
            SESSION,
            Parameter("preview", "yes for a preview.", default="", choices=("", "yes")),
            Parameter("focus", "Subject that the summary of the preview keeps.", default=""),
            Parameter("start", "Turn from which on the preview summarizes.", default=""),
            PAGE,
        ),
    ),
    Resource(
        path="/sessions/{number}/manager",
        name="manager",
        about="Quality of a managed session over its turns, and its checkpoints.",
        result=ManagerPage,
        load=lambda sources, values: load_manager(sources.inspector, values["number"]),
        parameters=(SESSION,),
    ),
    Resource(
        path="/requests/{number}",
        name="request",
        about="One request: its figures and its messages in order, each with the reason why it is there.",
        result=RequestPage,
        load=lambda sources, values: sources.inspector.request(
            values["number"], page=values["page"], words=values["q"].strip()
        ),
        parameters=(REQUEST, Parameter("q", "Words that are searched for in all messages.", default=""), PAGE),
    ),
    Resource(
        path="/requests/{number}/messages/{index}",
        name="message",
        about="One message of a request, formatted and as stored on the record.",
        result=MessagePage,
        load=lambda sources, values: sources.inspector.message(**values),
        parameters=(REQUEST, Parameter("index", "Position of the message, from 0.", least=0)),
    ),
    Resource(
        path="/requests/{number}/why",
        name="why",
        about="Raw history of a request: whether each message is in the request, and the step that decided it.",
        result=WhyPage,
        load=lambda sources, values: sources.inspector.why(**values),
        parameters=(
            REQUEST,
            Parameter("message", "Show only this message, such as m12, and what would have kept it.", default=""),
            Parameter("only", "Show only messages with this verdict.", default="", choices=("", *VERDICTS)),
            PAGE,
        ),
    ),
    Resource(
        path="/requests/{number}/diff",
        name="diff",
        about="Difference between a request and the previous one, another one, or its raw history.",
        result=DiffPage,
        load=_diff,
        parameters=(
            REQUEST,
            Parameter(
                "with",
                "previous, raw, or the number of another request.",
                default="previous",
                pattern="^(previous|raw|[1-9][0-9]{0,14})$",
            ),
            PAGE,
        ),
    ),
    Resource(
        path="/requests/{number}/replay",
        name="replay",
        about="A request compiled with other settings, compared with what was sent; no model is called.",
        result=ReplayPage,
        load=_replay,
        parameters=(
            REQUEST,
            Parameter("template", "Template; empty as it was.", default=""),
            Parameter("budget", "Tokens; empty as it was.", default=0, most=10**9),
            Parameter("fidelity", "Fidelity; empty as it was.", default="", choices=("", *map(str, Fidelity))),
            RECALL,
            Parameter("trigger", "Tokens up to which the raw history is sent; empty as it was.", default=0, most=10**9),
            Parameter("q", "Words that are looked for in the request and its replay.", default=""),
            PAGE,
        ),
    ),
    Resource(
        path="/requests/{number}/export",
        name="export",
        about="A request as JSON, as Python code to paste, and as a pydantic_evals case.",
        result=ExportPage,
        load=lambda sources, values: load_export(sources.inspector, values["number"]),
        parameters=(REQUEST,),
    ),
    Resource(
        path="/context/templates",
        name="context_templates",
        about="Templates, with those of the vault first.",
        result=tuple[TemplateRow, ...],
        load=_template_rows,
        has_page=False,
    ),
    Resource(
        path="/templates",
        name="templates",
        about="Templates, their lookup order, and files that are not valid templates.",
        result=TemplatesPage,
        load=lambda sources, values: load_templates(sources.inspector),
    ),
    Resource(
        path="/template",
        name="template",
        about="One template, and its prompt for a recorded request.",
        result=TemplatePage,
        load=lambda sources, values: load_template(
            sources.inspector, values["name"], values["source"], values["request"] or None
        ),
        parameters=(
            Parameter("name", "Name of the template.", default=""),
            Parameter(
                "source",
                "Source of the template; empty for the first one.",
                default="",
                choices=("", "vault", "system", "builtin"),
            ),
            Parameter("request", "Request whose history the prompt is built from; 0 for none.", default=0, least=0),
        ),
    ),
    Resource(
        path="/pipelines",
        name="pipelines",
        about="Runs of pipelines, newest first.",
        result=RunsPage,
        load=lambda sources, values: load_runs(sources.runs, values["page"], owner=sources.owner),
        parameters=(PAGE,),
    ),
    Resource(
        path="/pipeline",
        name="pipeline",
        about="One run and its path through the graph, with fidelity and thread of each hop.",
        result=RunPage,
        load=lambda sources, values: load_run(sources.runs, values["run"], owner=sources.owner),
        parameters=(Parameter("run", "Id of the run.", default=""),),
    ),
    Resource(
        path="/compiles/{number}",
        name="compile",
        about="One compile: its prompt, its answer, its summary, and the identifiers that the summary lost.",
        result=CompilePage,
        load=lambda sources, values: load_compile(sources.inspector, values["number"]),
        parameters=(Parameter("number", "Number of the compile."),),
    ),
)
"""All resources of the API and the pages."""


@cache
def adapter(result: Any) -> TypeAdapter[Any]:
    """Return the serializer of a result type."""
    return TypeAdapter(result)


def to_json(resource: Resource, value: object) -> bytes:
    """Serialize a value of a resource to JSON; damaged bytes of the record are escaped."""
    types = adapter(resource.result)
    try:
        return types.dump_json(value)
    except ValueError:  # lone surrogates
        return json.dumps(types.dump_python(value, mode="json")).encode()


ERROR = {
    "type": "object",
    "properties": {"error": {"type": "string"}},
    "required": ["error"],
    "additionalProperties": False,
}


def openapi() -> dict[str, Any]:
    """Build the OpenAPI document of the API."""
    schemas: dict[str, Any] = {"Error": ERROR}
    paths: dict[str, Any] = {}
    for resource in RESOURCES:
        schema = adapter(resource.result).json_schema(mode="serialization", ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {})
        answers: dict[str, Any] = {"200": _answer(resource.about, schema)}
        answers |= {code: _answer(why, {"$ref": "#/components/schemas/Error"}) for code, why in FAILURES.items()}
        paths[f"/api{resource.path}"] = {
            "get": {
                "operationId": resource.name,
                "summary": resource.about,
                "parameters": [parameter.document() for parameter in resource.parameters],
                "responses": answers,
            }
        }
    info = {"title": "context_compiler", "version": __version__, "description": "The record, read-only."}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": schemas}}


FAILURES = {"400": "A parameter is invalid.", "404": "Not found.", "503": "The record cannot be read."}


def _answer(about: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": about, "content": {"application/json": {"schema": schema}}}
