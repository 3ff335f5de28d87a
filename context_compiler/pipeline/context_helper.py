"""Summaries of earlier outputs for stages that name a template in `context_helper`.

Such a compile is capped, recorded and cached like any other. If it fails, the stage runs without a summary.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextContent, TextPart, UserPromptPart
from pydantic_ai.models import Model, infer_model

from context_compiler.compiler.summary import SummaryRequest, SummaryResponse
from context_compiler.compiler.view import View
from context_compiler.errors import CompileError
from context_compiler.fidelity import Fidelity
from context_compiler.messages.items import mark_of, user_content
from context_compiler.middleware.arguments import Arguments
from context_compiler.middleware.middleware import Middleware
from context_compiler.middleware.reports import log_text
from context_compiler.middleware.request import Host, Request
from context_compiler.middleware.spending import SummaryCall
from context_compiler.middleware.state import Run
from context_compiler.pipeline.config import RequestMeter, RunConfig
from context_compiler.pipeline.stage import Stage
from context_compiler.resilience import attempt, try_await
from context_compiler.tokens import model_family

log = logging.getLogger("context_compiler.pipeline")

CONVERSATION = "context-helper"
"""Suffix of the conversation under which these compiles are recorded, after the stage's name."""
INSTEAD = "the step ran as written"
"""Text recorded after the error of a failed compile."""
USED = ("compiled", "cycle")
"""Statuses of views whose text is passed on to the stage."""


class _StageHost(Host):
    """Host that asks the model of a stage, if it has one."""

    def __init__(self, middleware: Middleware, session: str, model: Model | None) -> None:
        self._middleware, self._session, self._model = middleware, session, model

    async def begin(self, ids: list[str], config: str) -> dict[str, Any]:
        return await self._middleware.begin(_owner(self._middleware), self._session, ids, config)

    async def ask(self, request: SummaryRequest) -> SummaryResponse:
        if self._model is None:
            raise CompileError("there is no model", model="none", phase="call")
        call = SummaryCall(
            key=request.key,
            prompts=request.prompts,
            cap=request.cap,
            writer=self._model,
            archive=self._middleware.archive.scoped(_owner(self._middleware)),
            session=self._session,
        )
        answer = await self._middleware.compile(call)
        if answer.failure is not None:
            raise CompileError(**answer.failure, usage=answer.usage, cost=answer.cost)
        return answer


def _owner(middleware: Middleware) -> str | None:
    """Owner of the compiles; None, so that nothing is stored, if a function determines the owner of each run."""
    return None if callable(middleware.arguments.owner) else middleware.archive.owner


@dataclass(frozen=True, slots=True)
class OutputCompiler:
    """Compiler of earlier outputs in one run, with one middleware per template."""

    _config: RunConfig
    _middlewares: dict[str, Middleware] = field(default_factory=dict[str, Middleware])

    async def compile_outputs(self, stage: Stage, model: Model | str | None) -> str:
        """Compile the outputs of earlier stages into a text for a stage.

        The text is empty if the stage names no template, there are no outputs yet, or the compile failed.

        Args:
            stage: The stage, which names the template in `context_helper`.
            model: The model of the stage. It writes the summary unless the run's compiler has a model of its own.
        """
        template = stage.node.context_helper
        messages = list(exchanges(stage)) if template else []
        if not messages or stage.requests.reached:
            return ""
        done = await try_await(self._view(template, stage, messages, model))
        view = done.value
        if view is None:
            why = log_text(done.error) if done.error else "no view"
            log.warning("%s: @context-helper %s failed, the stage runs as written: %s", stage.node.name, template, why)
        text = view_text(view) if view is not None and view.status in USED else ""
        spent = _spent(view)
        stage.requests.add(spent)
        await stage.emit("context_compiled", template=template, **_event_data(view, done.error), **spent)
        return text

    async def _view(
        self, template: str, stage: Stage, messages: Sequence[ModelMessage], model: Model | str | None
    ) -> View:
        """Compile a recorded view of the earlier outputs and the stage's prompt."""
        middleware = self._middlewares.get(template) or Middleware(self._arguments(template))
        self._middlewares[template] = middleware
        stage_model = infer_model(model) if model is not None and not self._config.simulated else None
        session = f"{stage.run_id}/{stage.node.name}/{CONVERSATION}"

        request = Request(
            messages=[*messages, _request(stage.prompt)],
            session_id=session,
            scope=session,
            run_id=stage.run_id,
            instead=INSTEAD,
            owner=_owner(middleware),
        )
        if stage_model is not None:
            family = model_family(stage_model.system, stage_model.model_name)
            request = replace(request, model=stage_model.model_name, family=family)
        limit = stage.node.timeout
        async with asyncio.timeout(limit / 2 if limit else None):  # the other half is for the stage itself
            return await middleware.view(Run(), request, _StageHost(middleware, session, stage_model))

    def _arguments(self, template: str) -> Arguments:
        """Arguments of the run's compiler, changed to compile all earlier outputs with a template.

        The template's fidelity caps summary and quotes together. Otherwise quotes of all outputs would be added to
        their summary, because the budget has room for both.
        """
        options: dict[str, Any] = {"store": self._config.store, **(self._config.compiler or {})}
        options |= {"every_turn": True, "recent_turns": 0, "inject": "user", "dry_run": False}
        options |= {"model": "none"} if self._config.simulated else {}
        options["template"] = template
        arguments = Arguments(**options)
        if arguments.fidelity is None:  # a fidelity that is named caps the quotes, too
            own = attempt(lambda: arguments.templates(None).find(template).fidelity).value or Fidelity.SUMMARY_MEDIUM
            arguments = replace(arguments, fidelity=own)
        return arguments


def _spent(view: View | None) -> dict[str, Any]:
    """Cost of the compile of a view, as an event reports it."""
    meter = RequestMeter()
    compile = view.record.compile if view is not None and view.record is not None else None
    if compile is not None and compile.usage:
        meter.charge(compile.model_alias, compile.usage)
    return meter.report()


def _event_data(view: View | None, error: Exception | None) -> dict[str, Any]:
    """Return the data of a compile for its event: status, tokens, and id of the view in the record."""
    if view is None:
        return {"status": "failed", "error": f"{type(error).__name__}: {error}"}
    facts: dict[str, Any] = {"status": view.status, "error": (view.error or "").removesuffix(f"; {INSTEAD}")}
    record = view.record
    if record is not None:
        facts |= {"view": record.id, "tokens_raw": record.tokens_raw, "tokens_sent": record.tokens_sent}
        used: Mapping[str, int] = record.compile.usage if record.compile is not None else {}
        facts |= {name: used[name] for name in ("input_tokens", "output_tokens") if name in used}
    return facts


def exchanges(stage: Stage) -> Iterator[ModelMessage]:
    """Yield the prompts and outputs of the stages before a stage, in order; stages without output are skipped."""
    for entry in stage.context.logs():
        fields: Mapping[str, Any] = cast("Mapping[str, Any]", entry) if isinstance(entry, Mapping) else {}
        name, ref = str(fields.get("node", "")), str(fields.get("ref", ""))
        output: object = stage.artifacts.retrieve(ref) if ref and stage.artifacts.has(ref) else fields.get("notes", "")
        node = stage.graph.nodes.get(name)
        if node is None or not isinstance(output, str) or not output.strip():
            continue
        yield _request(stage.graph.with_goal(f"{node.label}: {node.prompt}" if node.prompt else node.label))
        yield ModelResponse(parts=[TextPart(output)])


def view_text(view: View) -> str:
    """Return the compiled text of a view, without the raw messages in it."""
    parts = [part for message in view.messages for part in message.parts]
    contents = [content for part in parts for content in user_content(getattr(part, "content", None))]
    return "\n\n".join(text.content for text in contents if isinstance(text, TextContent) and mark_of(text)).strip()


def _request(text: str) -> ModelRequest:
    return ModelRequest(parts=[UserPromptPart(text)])
