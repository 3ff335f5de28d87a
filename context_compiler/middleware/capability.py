"""`ContextCompiler`: attach it to an agent, and every request carries a view instead of its whole history.

The raw history is never touched, every view goes on the record before it is sent, and whatever fails here,
the run goes on: with the last good view, with raw history, or with the least that is possible.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from copy import copy
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from typing import Any, Self, TypeVar, cast
from weakref import WeakValueDictionary

from opentelemetry.trace import get_current_span
from pydantic_ai import FunctionToolset, RunContext
from pydantic_ai.capabilities import (
    AbstractCapability,
    CapabilityOrdering,
    durable_operation,
)
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse
from pydantic_ai.models import Model, ModelRequestContext

from context_compiler.compiler.steering import Pin
from context_compiler.compiler.summary import SummaryRequest, SummaryResponse
from context_compiler.compiler.view import View
from context_compiler.errors import SettingsError
from context_compiler.middleware.arguments import Arguments
from context_compiler.middleware.compile_tool import GO_ON, compile_context
from context_compiler.middleware.manual import CompileResult
from context_compiler.middleware.middleware import Middleware
from context_compiler.middleware.off_loop import beside
from context_compiler.middleware.overflow import RetryModelRequest, TightModel, is_overflow
from context_compiler.middleware.request import (
    Host,
    Request,
    RunHost,
    countable,
    host_request,
    is_durable,
    render_messages,
    session_of,
)
from context_compiler.middleware.state import Run
from context_compiler.paths import warn_of_namesake
from context_compiler.record.background import hears_threads, kept_awake
from context_compiler.record.values import Record
from context_compiler.resilience import attempt

T = TypeVar("T")

_COMPILING: dict[str, ContextCompiler] = {}
"""The first compiler of each run in progress, by the id of the run."""
TWO_COMPILERS = "this agent has two ContextCompilers: {}; give it one, and a run that needs another one its own"
"""Message about an agent; the end says what happens."""

COMPACTED = "gen_ai.conversation.compacted"
"""Attribute of the semantic conventions for a request whose conversation was compacted."""


@dataclass(repr=False)
class ContextCompiler(Arguments, AbstractCapability[Any]):
    """Compiles what each model request carries, within a token budget.

    With `model=None` the run's own model writes the summaries, at its usual price; `model="none"` asks none.

    Args:
        template: A name, a path inside the template folders, or a `Template`.
        budget: Input tokens of one request, a share of the window, or `Money`; None is 0.8 of a known window,
            else 32,000.
        trigger: When to cut back, in tokens or as a share of the budget; None is the template's, else one that suits
            the room and the kind of session.
        reserve: Tokens of a known window that stay free for the answer.
        window: The model's context window in tokens, where the host does not know it.
        counter: Token counter; None counts o200k exactly, "provider" asks the model's provider, too.
        fidelity: Fidelity of the summary; None takes the template's.
        every_turn: Compile at the first request of every user turn, which moves the prompt-cache prefix once a
            turn.
        compile_tool: Give the agent the tool `compile_context`, with which it has its own conversation
            compiled.
        background: Compile while the conversation goes on, before the threshold is reached, so that requests
            rarely wait for it.
        model: The compiler's model; None is the run's own, "none" means no model.
        compile_spend_limit: The most that the compiles of a session may cost; then no model is asked. Requests
            do not count.
        store: Store of the record: a path, the address of a PostgreSQL database, or a `Store`; None keeps it in
            memory.
        vault: A folder whose `AssistantMD/ContextTemplates/` comes first; with `{owner}` in its path, one for each
            owner.
        system: A folder whose `ContextTemplates/` comes second.
        vault_name: Name of the vault on the record; empty is none, or the role of a node with layers.
        recent_turns: Turns before the current one to keep if they fit; None is the template's, "all" is all.
        recent_tool_results: Tool results that a compile sees whole; None is the template's, "all" is all.
        tool_history: Tool exchanges of kept turns: paired (verbatim), drop, or render (as text).
        recall: The most that the recall block of a prompt may take: a share of the room for messages (1.0: all
            that is free), or tokens; 0 recalls nothing.
        recall_across: The most that passages of the owner's other conversations may take before a prompt that asks:
            a share of the same room, or tokens; 0 looks into none.
        reflections: Policy that fills `reflections` for a template that asks for them; None takes the last
            three failed calls.
        inject: The channel of the summary: user, system or compaction.
        record: Content of the record: full, metadata, or off.
        owner: Owner of the conversations, or a function from a run to it: nothing of one owner is found by
            another. None is the owner of the store.
        redact: Given a text, what of it may be kept on the record.
        dry_run: Record and log what would be sent, and send raw history.
        timeout: Seconds for one compile, and for everything else of yours that a request waits for.
        on_view: Called with every view before it is sent; may be async, and is then under `timeout`.
        on_error: Called with everything that failed here; may be async, in the same way.
        layers: Source of the layers: `Layers`, or a function from a session to its state. What `role` needs of
            them stands before each run's prompt.
        role: Node of the agent: understand, think, act, reply, or a `Need` of your own.
        id: Stable, because durable engines name their steps by it.
    """

    _: KW_ONLY
    id: str | None = "context_compiler"
    """Stable, because durable engines name their steps by it."""
    _ware: Middleware = field(init=False, repr=False, compare=False)
    _run: Run = field(init=False, repr=False, compare=False, default_factory=Run)
    _running: WeakValueDictionary[str, ContextCompiler] = field(
        init=False, repr=False, compare=False, default_factory=lambda: WeakValueDictionary[str, "ContextCompiler"]()
    )
    """Copies for the runs that have the tool."""
    _request: Request | None = field(init=False, repr=False, compare=False, default=None)
    _session: str | None = field(init=False, repr=False, compare=False, default=None)
    _host: Host | None = field(init=False, repr=False, compare=False, default=None)
    _only_records: bool = field(init=False, repr=False, compare=False, default=False)
    _recording: asyncio.Task[None] | None = field(init=False, repr=False, compare=False, default=None)
    """The newest request of this run on its way to the record, where nothing else is done with it."""

    def __post_init__(self) -> None:
        """Check every value: a YAML spec hands them over unchecked.

        Raises:
            SettingsError: A value is wrong; the message says what is allowed.
            TemplateError: There is no template of that name.
        """
        if self.defer_loading:
            raise SettingsError("defer_loading would keep the compiler silent until the model loads it: leave it out")
        warn_of_namesake()
        self._ware = Middleware(self)
        self.check_names()

    @property
    def last_view(self) -> View | None:
        """The view that was sent last, by whichever run."""
        return self._ware.last_view

    def recorder(self) -> ContextCompiler:
        """The same compiler for a run whose requests go out as they are, however long, and are only recorded.

        No view and no summary is made, and nothing waits for the record: a request is kept while it is answered, with
        the status `raw` and without a budget.
        """
        other = copy(self)
        other._only_records = True
        return other

    async def views(self, session: str | None = None, *, owner: str | None = None) -> list[Record]:
        """Recorded views, newest first, of one conversation or of all of an owner.

        Raises:
            SettingsError: `owner` is not given, and the compiler's own is a function.
            StoreError: the record cannot be read.
        """
        return await self._ware.views(session, owner)

    async def transcript(self, session: str, *, owner: str | None = None) -> list[ModelMessage]:
        """The raw history of a conversation as last seen, without loss.

        Raises:
            SettingsError: `owner` is not given, and the compiler's own is a function.
            StoreError: the record cannot be read.
        """
        return await self._ware.transcript(session, owner)

    def compaction_transcript_handle(self) -> str | None:
        """Name of this run's conversation in `RecordHistory`, where the record keeps it for another process.

        A compaction of the Pydantic AI harness puts it into its receipts.
        """
        if self._session is None or self.store is None or self.record != "full":
            return None
        return f"{self.place}/{self._session}" if self.place else self._session

    async def aclose(self) -> None:
        """End every compile in the background, and let go of the store. The compiler can be used again."""
        await self._ware.close()

    async def __aenter__(self) -> Self:
        """The compiler itself."""
        return self

    async def __aexit__(self, *raised: object) -> None:
        """Close it."""
        await self.aclose()

    async def compile_now(
        self,
        session: str,
        focus: str = "",
        *,
        start: int | str | None = None,
        model: Model | str | None = None,
        owner: str | None = None,
    ) -> CompileResult:
        """Compile a conversation now, below the threshold too; its next run begins with the result.

        At least half of its turns are left out, unless `recent_turns=` says how many stay. Without a `focus` the last
        summary is brought up to date; with one, everything that is left out is summarised anew from the raw history.
        The result tells what it saved, or why nothing was done: a failure, of the model, the template or the record,
        raises nothing. It leaves the conversation as it was, and `on_error` hears of it.

        Args:
            session: Label of the conversation, as on the record.
            focus: Subject that the summary and the quotes are to keep.
            start: Summarise from this turn on, and keep what is before it: `"turn 12"`, or a message as for `pin`.
            model: Model that writes the summary; None is the compiler's, else that of the conversation's last request
                in this process. Without any, passages are quoted.
            owner: Owner of the conversation, where `owner=` of the compiler is a function.

        Raises:
            SettingsError: The focus is too long, or there is no such turn.
            StoreError: Nothing of the conversation is on the record, or the record cannot be read.
        """
        return await self._ware.steer(lambda manual: manual.compile(session, focus, start=start, model=model), owner)

    async def preview(
        self,
        session: str,
        focus: str = "",
        *,
        start: int | str | None = None,
        model: Model | str | None = None,
        owner: str | None = None,
    ) -> CompileResult:
        """Preview of `compile_now`: what it would keep, leave out and cost. No model is asked, nothing is recorded.

        Where a model would write the summary, `after`, `usage` and `cost` are the most that it can come to. Where a
        compile would fail as the preview does, as with a template that cannot be rendered, `why` says what failed.

        Raises:
            SettingsError: The focus is too long, or there is no such turn.
            StoreError: Nothing of the conversation is on the record, or the record cannot be read.
        """
        return await self._ware.steer(lambda manual: manual.preview(session, focus, start=start, model=model), owner)

    async def undo_compile(self, session: str, *, owner: str | None = None) -> CompileResult:
        """Go back to the view before the last compile, automatic or not; another call goes back one compile more.

        Its summary is not used again. Until the conversation has grown by as much as between two compiles, only the
        budget itself cuts it, and no model is asked, unless `compile_now` is called.

        Raises:
            StoreError: Nothing of the conversation is on the record, or the record cannot be read.
        """
        return await self._ware.steer(lambda manual: manual.undo(session), owner)

    async def pin(self, session: str, message: int | str, *, owner: str | None = None) -> Pin:
        """Keep a message in every view of a conversation, word for word, from its next run on.

        Args:
            session: Label of the conversation.
            message: Position in the raw history from 0, `"m12"` for the same, `"turn 3"` for the prompt of a turn, or
                words that it holds; of several messages with them, the newest of a user. A tool call is kept with its
                results.
            owner: Owner of the conversation, where `owner=` of the compiler is a function.

        Raises:
            SettingsError: There is no such message, or it does not fit: pinned messages have a quarter of the room.
            StoreError: The record cannot be read or written.
        """
        return await self._ware.steer(lambda manual: manual.pin(session, message), owner)

    async def unpin(self, session: str, message: int | str, *, owner: str | None = None) -> Pin:
        """Treat a pinned message like any other again; it leaves the view with the next compile.

        Raises:
            SettingsError: It is not pinned.
            StoreError: The record cannot be read or written.
        """
        return await self._ware.steer(lambda manual: manual.unpin(session, message), owner)

    async def pins(self, session: str, *, owner: str | None = None) -> tuple[Pin, ...]:
        """The pinned messages of a conversation, the oldest pin first."""
        return await self._ware.steer(lambda manual: manual.pins(session), owner)

    def get_toolset(self) -> FunctionToolset[Any] | None:
        """The tool `compile_context`, with `compile_tool=True`."""
        return FunctionToolset[Any]([self.compile_context], id=self.id) if self.compile_tool else None

    async def compile_context(self, ctx: RunContext[Any], focus: str = "") -> str:
        """Replace the older part of this conversation by notes, so that there is room for what comes.

        Use it before long work that needs little of what was done until now. It answers once a turn.

        Args:
            ctx: The run.
            focus: Subject that the notes have to keep above all.
        """
        mine = self._running.get(ctx.run_id or "")
        if mine is None or mine._request is None or mine._host is None or self.dry_run or is_durable(ctx):
            return f"Nothing was compiled: it cannot be done in this run. {GO_ON}"
        return await compile_context(self._ware.state, mine._run, mine._request, mine._host, focus, self._ware.report)

    @classmethod
    def combine(cls, capabilities: Sequence[AbstractCapability[Any]]) -> AbstractCapability[Any]:
        """Keep the last of several compilers that an agent was given, and warn of it."""
        warnings.warn(TWO_COMPILERS.format("the last one is used, and the others do nothing"), stacklevel=2)
        return capabilities[-1]

    def get_ordering(self) -> CapabilityOrdering | None:
        """Innermost: nobody edits a view after it was counted and recorded."""
        return CapabilityOrdering(position="innermost")

    async def for_run(self, ctx: RunContext[Any]) -> ContextCompiler:
        """A copy with its own run state; everything else is shared."""
        mine = copy(self)
        mine._run, mine._request, mine._host, mine._recording = Run(), None, None, None
        mine._session = session_of(ctx)
        if self.compile_tool and ctx.run_id:
            self._running[ctx.run_id] = mine
        return mine

    async def wrap_run(self, ctx: RunContext[Any], *, handler: Callable[[], Awaitable[Any]]) -> Any:
        """Record the last answer too, and close the store when no run is left, however the run ends."""
        self._ware.runs += 1
        compiles = bool(ctx.run_id) and not self._only_records
        if compiles and _COMPILING.setdefault(str(ctx.run_id), self) is not self:
            both = SettingsError(TWO_COMPILERS.format("the second compiles what the first sends"))
            await _run_work(lambda _: self._ware.report_once(both))
        try:
            try:
                result = await handler()
            finally:
                if self._recording is not None:
                    await asyncio.wait({self._recording})
            await _run_work(lambda _: self._ware.finished(self._run, ctx, result.all_messages()))
            return result
        finally:
            self._ware.runs -= 1
            if compiles and _COMPILING.get(str(ctx.run_id)) is self:
                del _COMPILING[str(ctx.run_id)]
            await _run_work(lambda _: self._ware.rest())

    async def _view(self, ctx: RunContext[Any], given: ModelRequestContext) -> ModelRequestContext:
        self._request = None
        if not given.messages or not isinstance(given.messages[-1], ModelRequest):
            return given  # a suspended response goes on: the provider has its context already
        host = _RunHost(self, ctx, given)
        await _run_work(lambda _: self._ware.load_counter())
        seen = attempt(lambda: host_request(ctx, given, self._ware.state.counter))
        if seen.value is None:
            await self._ware.report(seen.error or RuntimeError("the request could not be read"))
            return given
        request = replace(seen.value, owner=await self._ware.owner_of(ctx))
        self._ware.remember(request, given.model)
        if self._only_records:
            request = replace(request, messages=list(given.messages))  # the host adds the answer to its own list
            before = self._recording
            keep = _run_work(lambda _: self._ware.keep_raw(self._run, request, after=before), host)
            self._recording = asyncio.create_task(keep)
            return given
        self._request, self._host = request, host
        with ctx.tracer.start_as_current_span("context_compiler.view") as span:
            view = await _run_work(lambda there: self._ware.view(self._run, request, there), host)
            span.set_attributes(_figures(view))
        if self.dry_run:
            return given
        if not view.status.startswith("raw"):
            _note_compacted()
        return replace(given, messages=self._ware.mark_move(request, view))

    if RetryModelRequest is not None:

        async def prepare_model_request(
            self, ctx: RunContext[Any], request_context: ModelRequestContext
        ) -> ModelRequestContext:
            """Send a view instead of the whole history."""
            return await self._view(ctx, request_context)

        async def on_model_request_error(
            self, ctx: RunContext[Any], *, request_context: ModelRequestContext, error: Exception
        ) -> ModelResponse:
            """Try once more with less when the provider says that the context is too long."""
            if RetryModelRequest is None or not self._refused(error):
                raise error
            raise RetryModelRequest from error

    else:

        async def before_model_request(
            self, ctx: RunContext[Any], request_context: ModelRequestContext
        ) -> ModelRequestContext:
            """Send a view instead of the whole history."""
            return await self._view(ctx, request_context)

        def get_wrapper_model(self, model: Model) -> Model | None:
            """Try once more with less when the provider says that the context is too long."""
            return None if self._only_records else TightModel(model, self._tighter)

    def _refused(self, error: BaseException) -> bool:
        """True if the request should be retried with less: once a run, and only if our view was too long."""
        if self._request is None or self._run.refused or self.dry_run or not is_overflow(error):
            return False
        self._run.tighten()
        return True

    async def _tighter(self, error: BaseException) -> list[ModelMessage] | None:
        if self._request is None or self._host is None or not self._refused(error):
            return None
        view = await self._ware.view(self._run, self._request, self._host)
        return _merged(self._host.framing(_merged(view.messages)))  # as the host renders those of a first attempt

    async def after_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, response: ModelResponse
    ) -> ModelResponse:
        """Learn how the model counts from what it reports."""
        self._ware.learn(self._run, self._request, response)
        return response

    @durable_operation(name="compile")
    async def compile(self, ctx: RunContext[Any], order: dict[str, Any]) -> dict[str, Any]:
        """One compile as the host's durable operation: a resumed workflow replays its result."""
        owner = await self._ware.owner_of(ctx)
        given = order["key"], order["prompts"], order.get("cap", 0)
        return asdict(await self._ware.compile(owner, session_of(ctx), ctx.model, *given))

    @durable_operation(name="begin")
    async def begin(self, ctx: RunContext[Any], ids: list[str], config: str) -> dict[str, Any]:
        """Starting state of a run, journalled: a resumed run must find what it found before."""
        return await self._ware.begin(await self._ware.owner_of(ctx), session_of(ctx), ids, config)


class _RunHost(RunHost):
    """A run of the host, as one of its requests sees it."""

    def __init__(self, compiler: ContextCompiler, ctx: RunContext[Any], given: ModelRequestContext) -> None:
        super().__init__(ctx)
        self._compiler, self._given = compiler, given

    async def begin(self, ids: list[str], config: str) -> dict[str, Any]:
        return await self._compiler.begin(self._ctx, ids, config)

    async def ask(self, request: SummaryRequest) -> SummaryResponse:
        order = {"key": request.key, "prompts": list(request.prompts), "cap": request.cap}
        return self.charge(SummaryResponse(**await self._compiler.compile(self._ctx, order)))

    async def launch(self, request: SummaryRequest) -> asyncio.Task[SummaryResponse] | None:
        return await self._compiler._ware.launch(self._ctx, request)  # pyright: ignore[reportPrivateUsage]

    def framing(self, messages: list[ModelMessage]) -> list[ModelMessage]:
        given = self._given
        return render_messages(given.model, given.model_settings, given.model_request_parameters, messages)

    @property
    def counts(self) -> bool:
        return not is_durable(self._ctx)

    async def count(self, messages: list[ModelMessage]) -> int:
        given = self._given
        model, parameters = given.model, given.model_request_parameters
        merged = _merged(countable(model, self.framing(messages), parameters))
        usage = await model.count_tokens(merged, given.model_settings, parameters)
        return usage.input_tokens


async def _run_work(work: Callable[[Any], Coroutine[Any, Any, T]], host: Host | None = None) -> T:
    """Run a coroutine where it may wait for threads and files: here, unless this is the loop of a workflow."""
    loop = asyncio.get_running_loop()
    if hears_threads(loop):
        with kept_awake(loop):
            return await work(host)
    return await beside(work, host)


def _note_compacted() -> None:
    """Set the standard's attribute on the host's span of a model request, where that is the current one."""
    span = get_current_span()
    attributes = cast("Mapping[str, object]", getattr(span, "attributes", None) or {})
    if attributes.get("gen_ai.operation.name") == "chat":
        span.set_attribute(COMPACTED, True)


def _merged(messages: list[ModelMessage]) -> list[ModelMessage]:
    """Messages with consecutive requests as one, as the host sends them."""
    merged: list[ModelMessage] = []
    for message in messages:
        last = merged[-1] if merged else None
        if isinstance(message, ModelRequest) and isinstance(last, ModelRequest):
            merged[-1] = replace(message, parts=[*last.parts, *message.parts])
        else:
            merged.append(message)
    return merged


def _figures(view: View) -> dict[str, str | int]:
    """Span attributes of a view: figures, no content."""
    facts: dict[str, str | int] = {"status": view.status, "budget": view.budget}
    facts |= {name: getattr(view.record, name) for name in ("tokens_raw", "tokens_sent") if view.record}
    return {f"context_compiler.{name}": value for name, value in facts.items()}
