"""`ContextCompiler`, the capability: once attached to an agent, every request contains a view instead of the history.

The raw history is never changed, and every view is recorded, usually before it is sent. If anything fails here, the run
continues with a fallback: the last good view, raw history, or the smallest possible request.
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
from pydantic_ai import FunctionToolset, RunContext, capabilities
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering, durable_operation
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse
from pydantic_ai.models import Model, ModelRequestContext

from context_compiler.compiler.steering import Pin
from context_compiler.compiler.summary import SummaryRequest, SummaryResponse
from context_compiler.compiler.view import View
from context_compiler.errors import SettingsError
from context_compiler.messages.rules import Rule
from context_compiler.middleware.arguments import Arguments
from context_compiler.middleware.compile_tool import GO_ON, compile_context
from context_compiler.middleware.manual import CompileResult
from context_compiler.middleware.middleware import Middleware
from context_compiler.middleware.off_loop import run_blocking
from context_compiler.middleware.overflow import RetryModelRequest, TightModel, tighten, with_window
from context_compiler.middleware.refusals import refusal_of
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
from context_compiler.record.background import can_be_woken_by_threads, keep_awake
from context_compiler.record.values import Record
from context_compiler.resilience import attempt

try:
    from pydantic_ai._enqueue import deliver_asap_messages
except ImportError:  # private; what hooks enqueue is then sent with the view, uncounted
    deliver_asap_messages = None

T = TypeVar("T")

_COMPILING: dict[str, ContextCompiler] = {}
"""The first compiler of each run in progress, by run id."""
TWO_COMPILERS = "this agent has two ContextCompilers: {}; give it only one; a run may be given another"
"""Message about a misconfigured agent; the placeholder takes the consequence."""

COMPACTED = "gen_ai.conversation.compacted"
"""OpenTelemetry attribute of a request whose conversation was compacted."""


@dataclass(repr=False)
class ContextCompiler(Arguments, AbstractCapability[Any]):
    """Compiles every model request of an agent into a view within a token budget.

        agent = Agent("openai:gpt-5", capabilities=[ContextCompiler(budget=16_000, store="context.db")])
        result = await agent.run("Never deploy on Fridays.", conversation_id="release")

    With `model=None` the run's own model writes the summaries, at its usual price; `model="none"` uses no model. All
    arguments have defaults; they are, in the order below:

    * size: budget, trigger, reserve, window, probe, counter
    * summary: model, template, fidelity, inject, compile_spend_limit, reflections, vault, system, vault_name
    * kept whole: recent_turns, recent_tool_results, tool_history, rules, detect_rules
    * recall: recall, recall_across, say_absent
    * when it compiles: every_turn, background, compile_tool, timeout
    * record: store, record, redact, owner, record_timeout, dry_run
    * your program: on_view, on_error, layers, role, id

    Args:
        budget: Input tokens per request, a fraction of the window, or `Money`; None is 0.8 of a known window, else
            32,000.
        trigger: Threshold of a compile, in tokens or as a fraction of the budget; None is the template's, else one that
            suits the room and the kind of session.
        reserve: Tokens of a known window that stay free for the answer.
        window: The model's context window in tokens, if the host does not know it.
        probe: Ask a model server on this machine once for its context window, if it is unknown.
        counter: Token counter; None counts exactly with o200k, "provider" also asks the model's provider.
        model: Model that writes summaries; None is the run's own, "none" uses no model.
        template: A template name, a path inside the template folders, or a `Template`.
        fidelity: Fidelity of the summary; None takes the template's.
        inject: Channel of the summary: user, system or compaction.
        compile_spend_limit: Maximum cost of the compiles of a session; once it is reached, no model is called. Requests
            do not count.
        reflections: Policy that fills `reflections` in a template that uses them; None takes the last three failed
            calls.
        vault: Folder whose `AssistantMD/ContextTemplates/` is searched first; `{owner}` in its path gives each owner a
            folder.
        system: Folder whose `ContextTemplates/` is searched second.
        vault_name: Name of the vault on the record; empty means none, or the role of a node with layers.
        recent_turns: Turns to keep before the current one if they fit; None is the template's, "all" is all.
        recent_tool_results: Tool results that a compile includes in full; None is the template's, "all" is all.
        tool_history: Tool exchanges of kept turns: paired (verbatim), drop, or render (as text).
        rules: Rules that every request contains word for word: texts, or functions from a run to a text or None.
        detect_rules: Find further rules in the user's own prompts, such as "Never push to main".
        recall: Maximum size of a prompt's recall block: a fraction of the room (1.0: all that is free), or tokens; 0
            recalls nothing.
        recall_across: Maximum size of the passages from the owner's other conversations before a prompt that asks for
            something: a fraction of the room, or tokens; 0 quotes none.
        say_absent: Let a recall block name the ids, paths, long numbers, names and dates of its prompt that nobody has
            said before; `View.absent` lists them in any case.
        every_turn: Compile at the first request of every user turn; this invalidates the prompt cache once a turn.
        background: Compile in the background before the threshold is reached, so that requests rarely wait for a
            compile.
        compile_tool: Give the agent the tool `compile_context`, which compiles its own conversation.
        timeout: Time limit in seconds of a compile, of reading and searching a history, and of any other code of yours
            that a request waits for.
        store: Store of the record: a path, the address of a PostgreSQL database, or a `Store`; None keeps it in memory.
        record: Content of the record: full, metadata, or off.
        redact: Function that returns the part of a text that may be recorded.
        owner: Owner of the conversations, or a function from a run to its owner; an owner never finds anything of
            another owner. None is the owner of the store.
        record_timeout: Seconds that a request waits for the record, in all; what takes longer is written behind the
            answer. None waits as long as the store does.
        dry_run: Record and log the view that would be sent, but send raw history.
        on_view: Called with every view before it is sent; may be async, then within `timeout`.
        on_error: Called with every error that did not stop the run; may be async, then within `timeout`.
        layers: Source of the layers: `Layers`, or a function from a session to its state. The layers that `role` needs
            are put before each run's prompt.
        role: Node of the agent: understand, think, act, reply, or a `Need` of your own.
        id: Constant, because durable engines name their steps by it.
    """

    _: KW_ONLY
    id: str | None = "context_compiler"
    _middleware: Middleware = field(init=False, repr=False, compare=False)
    _run: Run = field(init=False, repr=False, compare=False, default_factory=Run)
    _running: WeakValueDictionary[str, ContextCompiler] = field(
        init=False, repr=False, compare=False, default_factory=lambda: WeakValueDictionary[str, "ContextCompiler"]()
    )
    """Copies of this compiler for runs that have the tool, by run id."""
    _request: Request | None = field(init=False, repr=False, compare=False, default=None)
    _session: str | None = field(init=False, repr=False, compare=False, default=None)
    _host: Host | None = field(init=False, repr=False, compare=False, default=None)
    _only_records: bool = field(init=False, repr=False, compare=False, default=False)
    _recording: asyncio.Task[None] | None = field(init=False, repr=False, compare=False, default=None)
    """Task that records the newest request of this run, if requests are only recorded."""

    def __post_init__(self) -> None:
        """Check all values, because a YAML spec passes them unchecked.

        Raises:
            SettingsError: A value is wrong; the message says what is allowed.
            TemplateError: There is no template of that name.
        """
        if self.defer_loading:
            raise SettingsError("defer_loading would keep the compiler silent until the model loads it: leave it out")
        warn_of_namesake()
        self._middleware = Middleware(self)
        self.check_names()

    @property
    def last_view(self) -> View | None:
        """The last view that any run has sent."""
        return self._middleware.recording.last_view

    def recorder(self) -> ContextCompiler:
        """A copy of this compiler that only records requests: they are sent unchanged, however long they are.

        It makes no views or summaries, and requests do not wait for the record: each is recorded during the model call,
        with the status `raw` and no budget.
        """
        other = copy(self)
        other._only_records = True
        return other

    async def views(self, session: str | None = None, *, owner: str | None = None) -> list[Record]:
        """Recorded views, newest first, of one conversation or of all conversations of an owner.

        Raises:
            SettingsError: `owner` is missing, although the compiler's own is a function.
            StoreError: The record cannot be read.
        """
        return await (await self._middleware.archive_of(owner)).store.views(session)

    async def transcript(self, session: str, *, owner: str | None = None) -> list[ModelMessage]:
        """The complete raw history of a conversation, as last seen.

        Raises:
            SettingsError: `owner` is missing, although the compiler's own is a function.
            StoreError: The record cannot be read.
        """
        return await self._middleware.transcript(session, owner)

    def compaction_transcript_handle(self) -> str | None:
        """Name of this run's conversation in `RecordHistory`; None if the record cannot be read by another process.

        A compaction of the Pydantic AI harness puts this name into its receipts.
        """
        if self._session is None or self.store is None or self.record != "full":
            return None
        return f"{self.place}/{self._session}" if self.place else self._session

    async def aclose(self) -> None:
        """Cancel every background compile and close the store. The compiler can be used again."""
        await self._middleware.close()

    async def __aenter__(self) -> Self:
        """Return the compiler itself."""
        return self

    async def __aexit__(self, *raised: object) -> None:
        """Close the compiler."""
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
        """Compile a conversation now, even below the threshold; its next run starts with the result.

        At least half of its turns are left out, unless `recent_turns=` sets how many are kept. Without a `focus`, the
        last summary is updated; with one, everything that is left out is summarized again from the raw history. The
        result shows what was saved, or why nothing was done. If the model, the template or the record fails, nothing is
        raised: the conversation stays as it was, and `on_error` is called.

        Args:
            session: Label of the conversation, as on the record.
            focus: Subject that the summary and the quotes should keep.
            start: Summarize from this turn on, and keep everything before it: `"turn 12"`, or a message as for `pin`.
            model: Model that writes the summary; None is the compiler's, else the model of the conversation's last
                request in this process. Without any model, passages are quoted.
            owner: Owner of the conversation, if the compiler's `owner=` is a function.

        Raises:
            SettingsError: The focus is too long, or there is no such turn.
            StoreError: The record has no such conversation, or cannot be read.
        """
        return await self._middleware.steer(
            lambda manual: manual.compile(session, focus, start=start, model=model), owner
        )

    async def preview(
        self,
        session: str,
        focus: str = "",
        *,
        start: int | str | None = None,
        model: Model | str | None = None,
        owner: str | None = None,
    ) -> CompileResult:
        """Preview `compile_now`: what it would keep, leave out and cost. No model is called, nothing is recorded.

        If a model would write the summary, `after`, `usage` and `cost` are maximums. If something fails that would also
        make the compile fail, such as rendering the template, `why` contains the error.

        Raises:
            SettingsError: The focus is too long, or there is no such turn.
            StoreError: The record has no such conversation, or cannot be read.
        """
        return await self._middleware.steer(
            lambda manual: manual.preview(session, focus, start=start, model=model), owner
        )

    async def undo_compile(self, session: str, *, owner: str | None = None) -> CompileResult:
        """Restore the view before the last compile, automatic or not; a further call undoes one more compile.

        The undone summary is not used again. Until the conversation has grown by as much as between two compiles, only
        the budget causes a cut, and no model is called unless you call `compile_now`.

        Raises:
            StoreError: The record has no such conversation, or cannot be read.
        """
        return await self._middleware.steer(lambda manual: manual.undo(session), owner)

    async def pin(self, session: str, message: int | str, *, owner: str | None = None) -> Pin:
        """Keep a message verbatim in every view of a conversation, from its next run on.

        Args:
            session: Label of the conversation.
            message: Position in the raw history from 0, `"m12"` for the same, `"turn 3"` for the prompt of a turn, or
                words of the message. If several messages contain the words, the newest user message is taken. A tool
                call is kept together with its results.
            owner: Owner of the conversation, if the compiler's `owner=` is a function.

        Raises:
            SettingsError: There is no such message, or it does not fit: pinned messages may take a quarter of the room.
            StoreError: The record cannot be read or written.
        """
        return await self._middleware.steer(lambda manual: manual.pin(session, message), owner)

    async def unpin(self, session: str, message: int | str, *, owner: str | None = None) -> Pin:
        """Unpin a message; the next compile may leave it out.

        Raises:
            SettingsError: The message is not pinned.
            StoreError: The record cannot be read or written.
        """
        return await self._middleware.steer(lambda manual: manual.unpin(session, message), owner)

    async def pins(self, session: str, *, owner: str | None = None) -> tuple[Pin, ...]:
        """The pinned messages of a conversation, the oldest pin first."""
        return await self._middleware.steer(lambda manual: manual.pins(session), owner)

    async def standing_rules(self, session: str, *, owner: str | None = None) -> tuple[Rule, ...]:
        """The rules of a conversation: those of `rules=` that are texts, then those of the user, oldest first."""
        return await self._middleware.steer(lambda manual: manual.rules(session), owner)

    async def dismiss_rule(self, session: str, rule: str, *, owner: str | None = None) -> Rule:
        """Dismiss a rule of the user, from the next run on; if the user gives it again, it stands again.

        Args:
            session: Label of the conversation.
            rule: The rule, or words of it. If no rule equals the words, the newest that contains them is dismissed.
            owner: Owner of the conversation, if the compiler's `owner=` is a function.

        Raises:
            SettingsError: No rule of the user contains the words.
            StoreError: The record cannot be read or written.
        """
        return await self._middleware.steer(lambda manual: manual.dismiss(session, rule), owner)

    def get_toolset(self) -> FunctionToolset[Any] | None:
        """The toolset with `compile_context` if `compile_tool=True`, else None."""
        return FunctionToolset[Any]([self.compile_context], id=self.id) if self.compile_tool else None

    async def compile_context(self, ctx: RunContext[Any], focus: str = "") -> str:
        """Replace the older part of this conversation by notes, so that there is room for what comes.

        Use it before long work that needs little of what was done until now. It answers once a turn.

        Args:
            ctx: The run.
            focus: Subject that the notes have to keep above all.
        """
        mine = self._running.get(ctx.run_id or "")
        if mine is None or mine._run.request is None or mine._host is None or self.dry_run or is_durable(ctx):
            return f"Nothing was compiled: it cannot be done in this run. {GO_ON}"
        state, run, request, report = self._middleware.state, mine._run, mine._run.request, self._middleware.report
        return await _run_work(lambda there: compile_context(state, run, request, there, focus, report), mine._host)

    @classmethod
    def combine(cls, capabilities: Sequence[AbstractCapability[Any]]) -> AbstractCapability[Any]:
        """Keep the last of several compilers of an agent, and warn about the others."""
        warnings.warn(TWO_COMPILERS.format("the last one is used, and the others do nothing"), stacklevel=2)
        return capabilities[-1]

    def get_ordering(self) -> CapabilityOrdering | None:
        """Run innermost, so that no other capability edits a view after it was counted and recorded.

        The host's `ModelFallback`, where there is one, is outside: a request that is too long is first sent shorter.
        """
        fallback: Any = getattr(capabilities, "ModelFallback", None)
        return CapabilityOrdering(position="innermost", wrapped_by=(fallback,) if fallback else ())

    async def for_run(self, ctx: RunContext[Any]) -> ContextCompiler:
        """Return a copy with its own run state; everything else is shared."""
        mine = copy(self)
        mine._run, mine._request, mine._host, mine._recording = Run(), None, None, None
        mine._session = session_of(ctx)
        if self.compile_tool and ctx.run_id:
            self._running[ctx.run_id] = mine
        return mine

    async def wrap_run(self, ctx: RunContext[Any], *, handler: Callable[[], Awaitable[Any]]) -> Any:
        """Record the last answer too."""
        compiles = bool(ctx.run_id) and not self._only_records
        if compiles and _COMPILING.setdefault(str(ctx.run_id), self) is not self:
            both = SettingsError(TWO_COMPILERS.format("the second compiles what the first sends"))
            await _run_work(lambda _: self._middleware.report_once(str(both), both))
        try:
            try:
                result = await handler()
            finally:
                if self._recording is not None:
                    await asyncio.wait({self._recording})
                if self._run.prepared is not None:
                    await _run_work(lambda _: self._middleware.hand_on(self._run, ctx))
            await _run_work(lambda _: self._middleware.finish_run(self._run, ctx, result.all_messages()))
            return result
        finally:
            if compiles and _COMPILING.get(str(ctx.run_id)) is self:
                del _COMPILING[str(ctx.run_id)]

    async def _view(self, ctx: RunContext[Any], outgoing: ModelRequestContext) -> ModelRequestContext:
        self._request = None
        if not _awaits_answer(outgoing):
            return outgoing  # the provider already has its context
        host = _RunHost(self, ctx, outgoing)
        await _run_work(lambda _: self._middleware.load_counter())
        seen = attempt(lambda: host_request(ctx, outgoing, self._middleware.state.counter))
        if seen.value is None:
            await self._middleware.report(seen.error or RuntimeError("the request could not be read"))
            return outgoing
        rules = await self._middleware.declared_rules(self._run, ctx)
        request = replace(seen.value, owner=await self._middleware.owner_of(ctx), rules=rules)
        if not self._only_records:
            request = await with_window(self, self._run, request, ask=not is_durable(ctx))
        self._middleware.remember(request, outgoing.model)
        if self._only_records:
            request = replace(request, messages=list(outgoing.messages))  # the host appends the answer to its own list
            before = self._recording
            keep = _run_work(lambda _: self._middleware.record_unchanged(self._run, request, after=before), host)
            self._recording = asyncio.create_task(keep)
            return outgoing
        self._request, self._host = request, host
        with ctx.tracer.start_as_current_span("context_compiler.view") as span:
            view = await _run_work(lambda there: self._middleware.view(self._run, request, there), host)
            span.set_attributes(_span_attributes(view))
        if self.dry_run:
            return outgoing
        if not view.status.startswith(("raw", "mended")):
            _mark_span_compacted()
        return replace(outgoing, messages=self._middleware.recording.last_requests.mark_move(request, view))

    if RetryModelRequest is not None:

        async def prepare_model_request(
            self, ctx: RunContext[Any], request_context: ModelRequestContext
        ) -> ModelRequestContext:
            """Send a view instead of the whole history."""
            return await self._view(ctx, request_context)

        async def on_model_request_error(
            self, ctx: RunContext[Any], *, request_context: ModelRequestContext, error: Exception
        ) -> ModelResponse:
            """Retry once with a smaller view if the provider refused the request as too long."""
            if RetryModelRequest is None or not self._tighten_after(error):
                raise error
            raise RetryModelRequest from error

    else:

        async def before_model_request(
            self, ctx: RunContext[Any], request_context: ModelRequestContext
        ) -> ModelRequestContext:
            """Send a view instead of the whole history, and of what other hooks have enqueued for this request."""
            if deliver_asap_messages is not None and _awaits_answer(request_context):
                request_context = deliver_asap_messages(ctx, request_context)  # as the host does after the hooks
            return await self._view(ctx, request_context)

        def get_wrapper_model(self, model: Model) -> Model | None:
            """Return a model that retries once with a smaller view if the provider refuses the request as too long."""
            return None if self._only_records else TightModel(model, self._tighter_messages)

    def _tighten_after(self, error: BaseException) -> bool:
        """Tighten the run after a refusal as too long; True if the request should be retried, which it is once."""
        if self._request is None or self._run.retried or self.dry_run or (refusal := refusal_of(error)) is None:
            return False
        self._request = tighten(self, self._middleware.ratios, self._run, self._request, refusal)
        return True

    async def _tighter_messages(self, error: BaseException) -> list[ModelMessage] | None:
        if self._request is None or self._host is None or not self._tighten_after(error):
            return None
        view = await self._middleware.view(self._run, self._request, self._host)
        rendered = self._host.framing(_merge_requests(view.messages))  # as the host does at the first attempt
        return _merge_requests(rendered)

    async def after_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, response: ModelResponse
    ) -> ModelResponse:
        """Learn the model's token ratio from the usage that it reports."""
        self._middleware.learn(self._run, self._request, response)
        return response

    @durable_operation(name="compile")
    async def compile(self, ctx: RunContext[Any], order: dict[str, Any]) -> dict[str, Any]:
        """Compile once, as the host's durable operation: a resumed workflow replays the result."""
        call = await self._middleware.summary_call(ctx, order["key"], order["prompts"], order.get("cap", 0))
        return asdict(await self._middleware.compile(call))

    @durable_operation(name="begin")
    async def begin(self, ctx: RunContext[Any], ids: list[str], config: str) -> dict[str, Any]:
        """Starting state of a run, recorded in the journal, because a resumed run must start from the same state."""
        return await self._middleware.begin(await self._middleware.owner_of(ctx), session_of(ctx), ids, config)


class _RunHost(RunHost):
    def __init__(self, compiler: ContextCompiler, ctx: RunContext[Any], outgoing: ModelRequestContext) -> None:
        if outgoing.model is not ctx.model and not is_durable(ctx):  # the host falls back to it for this request
            ctx = replace(ctx, model=outgoing.model)
        super().__init__(ctx)
        self._compiler, self._outgoing = compiler, outgoing

    async def begin(self, ids: list[str], config: str) -> dict[str, Any]:
        return await self._compiler.begin(self._ctx, ids, config)

    async def ask(self, request: SummaryRequest) -> SummaryResponse:
        order = {"key": request.key, "prompts": list(request.prompts), "cap": request.cap}
        return self.charge(SummaryResponse(**await self._compiler.compile(self._ctx, order)))

    async def launch(self, request: SummaryRequest) -> asyncio.Task[SummaryResponse] | None:
        return await self._compiler._middleware.launch(self._ctx, request)  # pyright: ignore[reportPrivateUsage]

    def framing(self, messages: list[ModelMessage]) -> list[ModelMessage]:
        outgoing = self._outgoing
        return render_messages(outgoing.model, outgoing.model_settings, outgoing.model_request_parameters, messages)

    async def count(self, messages: list[ModelMessage]) -> int:
        outgoing = self._outgoing
        model, parameters = outgoing.model, outgoing.model_request_parameters
        merged = _merge_requests(countable(model, self.framing(messages), parameters))
        return (await model.count_tokens(merged, outgoing.model_settings, parameters)).input_tokens


def _awaits_answer(outgoing: ModelRequestContext) -> bool:
    """True if a request is the newest message; otherwise a suspended response is resumed."""
    return bool(outgoing.messages) and isinstance(outgoing.messages[-1], ModelRequest)


async def _run_work(work: Callable[[Any], Coroutine[Any, Any, T]], host: Host | None = None) -> T:
    """Run a coroutine that may wait for threads and files; in another thread if this is the loop of a workflow."""
    loop = asyncio.get_running_loop()
    if can_be_woken_by_threads(loop):
        with keep_awake(loop):
            return await work(host)
    return await run_blocking(work, host)


def _mark_span_compacted() -> None:
    """Set the standard attribute for compaction on the host's span of a model request, if that is the current span."""
    span = get_current_span()
    attributes = cast("Mapping[str, object]", getattr(span, "attributes", None) or {})
    if attributes.get("gen_ai.operation.name") == "chat":
        span.set_attribute(COMPACTED, True)


def _merge_requests(messages: list[ModelMessage]) -> list[ModelMessage]:
    """Merge consecutive requests into one, as the host sends them."""
    merged: list[ModelMessage] = []
    for message in messages:
        last = merged[-1] if merged else None
        if isinstance(message, ModelRequest) and isinstance(last, ModelRequest):
            merged[-1] = replace(message, parts=[*last.parts, *message.parts])
        else:
            merged.append(message)
    return merged


def _span_attributes(view: View) -> dict[str, str | int]:
    """Span attributes of a view: numbers and its status, no content."""
    facts: dict[str, str | int] = {"status": view.status, "budget": view.budget}
    facts |= {name: getattr(view.record, name) for name in ("tokens_raw", "tokens_sent") if view.record}
    return {f"context_compiler.{name}": value for name, value in facts.items()}
