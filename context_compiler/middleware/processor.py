"""The compiler as a history processor for `ProcessHistory`, whose host replaces the stored history by its output.

Raw messages are archived first, and a mark in our part of the output names the archived chain. The next call therefore
continues from the raw history rather than from our own output.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from inspect import signature
from typing import Any, ParamSpec, cast

from pydantic_ai import RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.settings import ModelSettings

from context_compiler.cache import Memo
from context_compiler.compiler.summary import SummaryRequest, SummaryResponse
from context_compiler.compiler.view import LEFT_OUT, View, find_mark, with_opening_text
from context_compiler.messages.bodies import load_messages
from context_compiler.messages.items import MARK, mark_of, user_content
from context_compiler.middleware.arguments import Arguments
from context_compiler.middleware.middleware import Middleware
from context_compiler.middleware.request import RunHost, known_tools, processor_request, render_messages, session_of
from context_compiler.middleware.state import Run
from context_compiler.record.values import Record
from context_compiler.resilience import try_await

Given = ParamSpec("Given")

MAX_RUNS = 64
"""Maximum number of runs and of conversations kept in memory."""


class _ProcessorHost(RunHost):
    def __init__(self, ware: Middleware, ctx: RunContext[Any]) -> None:
        super().__init__(ctx)
        self._middleware = ware

    async def begin(self, ids: list[str], config: str) -> dict[str, Any]:
        owner = await self._middleware.owner_of(self._ctx)
        return await self._middleware.begin(owner, session_of(self._ctx), ids, config)

    async def ask(self, request: SummaryRequest) -> SummaryResponse:
        call = await self._middleware.summary_call(self._ctx, request.key, request.prompts, request.cap)
        return self.charge(await self._middleware.compile(call))

    async def launch(self, request: SummaryRequest) -> asyncio.Task[SummaryResponse] | None:
        return await self._middleware.launch(self._ctx, request)

    def framing(self, messages: list[ModelMessage]) -> list[ModelMessage]:
        ctx, parameters = self._ctx, ModelRequestParameters(function_tools=known_tools(self._ctx))
        return render_messages(ctx.model, cast("ModelSettings | None", ctx.model_settings), parameters, messages)


class CompilingHistoryProcessor:
    """Async history processor, `(ctx, messages) -> messages`, that keeps the raw history on the record."""

    def __init__(self, arguments: Arguments) -> None:
        """Open nothing before the first call."""
        self._middleware = Middleware(arguments)
        self._runs: Memo[str, Run] = Memo(MAX_RUNS)
        self._raw: Memo[tuple[str | None, str], list[ModelMessage]] = Memo(MAX_RUNS)
        self._stored: Memo[tuple[str | None, str], list[ModelMessage]] = Memo(MAX_RUNS)

    def __repr__(self) -> str:
        """The arguments that differ from their defaults."""
        return repr(self._middleware.arguments).replace("Arguments", type(self).__name__, 1)

    def __deepcopy__(self, memo: dict[int, Any]) -> CompilingHistoryProcessor:
        """A new processor with the same arguments, which are shared."""
        return type(self)(self._middleware.arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments without any state; PicklingError if one cannot be pickled."""
        return type(self), (self._middleware.arguments,)

    async def __call__(self, ctx: RunContext[Any], messages: list[ModelMessage]) -> list[ModelMessage]:
        """Return a view of the raw history, with a mark that names its archived chain. Never raises."""
        outcome = await try_await(self._view(ctx, messages))
        if outcome.value is None:
            await self._middleware.report(outcome.error or RuntimeError("no view"))
        return outcome.value or messages

    async def _view(self, ctx: RunContext[Any], messages: list[ModelMessage]) -> list[ModelMessage]:
        await self._middleware.load_counter()
        owner = await self._middleware.owner_of(ctx)
        self._stored.keep((owner, session_of(ctx)), ctx.messages)
        raw = await self._restore_raw(messages, owner)
        run_id = ctx.run_id or ""
        run = self._runs.get(run_id) or Run()
        self._runs.keep(run_id, run)
        rules = await self._middleware.declared_rules(run, ctx)
        request = replace(processor_request(ctx, raw, self._middleware.state.counter), owner=owner, rules=rules)
        made = await self._middleware.view(run, request, _ProcessorHost(self._middleware, ctx))
        view = raw if self._middleware.arguments.dry_run else made.messages
        tip = None if run.raw is None else run.raw.chain.tip
        if view == raw or tip is None:
            return view
        self._raw.keep((owner, tip), raw)
        return tag_view(view, tip)

    @property
    def last_view(self) -> View | None:
        """The last view that was returned."""
        return self._middleware.recording.last_view

    async def views(self, session: str | None = None, *, owner: str | None = None) -> list[Record]:
        """Recorded views, newest first, of one conversation or of all conversations of an owner."""
        return await (await self._middleware.archive_of(owner)).store.views(session)

    async def transcript(self, session: str, *, owner: str | None = None) -> list[ModelMessage]:
        """The complete raw history of a conversation, even if the host has stored a view of it.

        A processor does not see the last answer of a run. The transcript contains it while this process lives, and
        again after the next request.

        Raises:
            StoreError: The record cannot be read.
        """
        outcome = await try_await(self._middleware.transcript(session, owner))
        archived = outcome.value or []
        owner = self._middleware.archive.owner if owner is None else owner
        stored = await self._restore_raw(list(self._stored.get((owner, session)) or ()), owner)
        if outcome.error is not None and (not stored or any(map(find_mark, stored))):
            raise outcome.error
        read = self._middleware.state.reader.read
        longer = len(stored) > len(archived) and read(stored).ids[: len(archived)] == read(archived).ids
        return [*archived, *stored[len(archived) :]] if longer else archived

    async def _restore_raw(self, messages: list[ModelMessage], owner: str | None) -> list[ModelMessage]:
        """Replace our own output by the raw history behind it, and keep the messages after it."""
        mark = next((own_mark for message in messages if (own_mark := find_mark(message)) is not None), None)
        if mark is None or not isinstance(mark.get("responses"), int) or not isinstance(mark.get("tail"), int):
            return messages
        tip, archive = str(mark.get("tip")), self._middleware.archive.scoped(owner)
        raw = self._raw.get((owner, tip))
        if raw is None and archive.keeps_content:
            bodies = (await try_await(archive.store.chain(tip))).value
            raw = load_messages(bodies) if bodies else None
        if raw is None:
            return messages
        return [*raw, *messages_after(messages, mark["responses"], mark["tail"])]


def _with_arguments_of(
    arguments: Callable[Given, Arguments],
) -> Callable[[Callable[..., CompilingHistoryProcessor]], Callable[Given, CompilingHistoryProcessor]]:
    """Decorator that sets the signature of `arguments`, so that editors and `help` list it in full."""

    def decorate(build: Callable[..., CompilingHistoryProcessor]) -> Callable[Given, CompilingHistoryProcessor]:
        whole = signature(arguments).replace(return_annotation=CompilingHistoryProcessor)
        build.__signature__ = whole  # pyright: ignore[reportFunctionMemberAccess] # read by inspect
        return build

    return decorate


@_with_arguments_of(Arguments)
def build_compiling_history_processor(*args: Any, **arguments: Any) -> CompilingHistoryProcessor:
    """Build a history processor for `ProcessHistory`, with the arguments of `ContextCompiler`.

    Prefer `ContextCompiler`, which leaves the stored history alone. Use this function only if your host accepts nothing
    but a processor; it then stores views, and `transcript(session)` returns the raw history behind them.

    Raises:
        SettingsError: A value is wrong.
        TemplateError: There is no template of that name.
    """
    settings = Arguments(*args, **arguments)
    settings.check()
    settings.check_names()
    return CompilingHistoryProcessor(settings)


def tag_view(view: Sequence[ModelMessage], tip: str) -> list[ModelMessage]:
    """Mark our part of a view with the chain id of its raw history and the position at which the view ends."""
    own = next((index for index, message in enumerate(view) if find_mark(message) is not None), None)
    if own is None:
        view, own = with_opening_text(view, LEFT_OUT, {"v": 1}), 0
    answers = [index for index, message in enumerate(view) if isinstance(message, ModelResponse)]
    tail = sum(len(message.parts) for message in view[answers[-1] + 1 if answers else 0 :])
    mark = {"v": 1, "tip": tip, "responses": len(answers), "tail": tail}
    return [*view[:own], _replace_mark(view[own], mark), *view[own + 1 :]]


def _replace_mark(message: ModelMessage, mark: dict[str, Any]) -> ModelMessage:
    """The message with a new mark on its parts that are ours."""
    parts: list[Any] = []
    for part in message.parts:
        pieces: Any = getattr(part, "content", None)
        if mark_of(part) is not None:
            part = replace(part, metadata={MARK: mark})  # pyright: ignore[reportCallIssue]
        elif any(mark_of(piece) is not None for piece in user_content(pieces)):
            part = replace(part, content=[_with_mark(piece, mark) for piece in pieces])  # pyright: ignore[reportCallIssue]
        parts.append(part)
    return replace(message, parts=parts)


def _with_mark(piece: Any, mark: dict[str, Any]) -> Any:
    return piece if mark_of(piece) is None else replace(piece, metadata={MARK: mark})


def messages_after(messages: Sequence[ModelMessage], responses: int, tail: int) -> list[ModelMessage]:
    """The messages after a view that has `responses` responses, and `tail` parts after the last of them."""
    answers = [index for index, message in enumerate(messages) if isinstance(message, ModelResponse)]
    start = answers[responses - 1] + 1 if 0 < responses <= len(answers) else 0
    left = tail
    for index in range(start, len(messages)):
        message = messages[index]
        if isinstance(message, ModelResponse):
            return list(messages[index:])
        if len(message.parts) > left:
            return [replace(message, parts=message.parts[left:]), *messages[index + 1 :]]
        left -= len(message.parts)
    return []
