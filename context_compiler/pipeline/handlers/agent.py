"""Run stages with agents, with their shell hooks and the limits of the run.

The fidelity of the stage decides what the agent sees of the run. An agent may answer with an `Outcome`, a `Verdict`, or
text, which may end with a JSON object that contains an `outcome`. Each request is compiled to its budget and recorded
under the name `run/stage`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel
from pydantic_ai import Agent, RunContext, ToolOutput
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models import Model, ModelRequestContext
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RunUsage
from pydantic_core import to_jsonable_python

from context_compiler.compiler.view import View
from context_compiler.messages.printable import safe_line
from context_compiler.middleware.capability import ContextCompiler
from context_compiler.pipeline.config import RequestMeter, RunConfig
from context_compiler.pipeline.context_helper import OutputCompiler
from context_compiler.pipeline.graph import Graph, Node
from context_compiler.pipeline.handlers.tool import RESERVED
from context_compiler.pipeline.shell import CommandResult, run_shell
from context_compiler.pipeline.stage import EXCERPT, STEER, Emit, Stage, read_status
from context_compiler.pipeline.state import Outcome, find_outcome
from context_compiler.pipeline.stylesheet import EFFORTS
from context_compiler.resilience import try_await
from context_compiler.tokens.prices import cost_of

MAX_RESPONSE_EXCERPT = 200
"""Maximum length in characters of `last_response` in the context."""
SUPERVISED = "Whoever supervises this run says:"
"""Line that introduces a supervisor's message in the prompt of a stage."""


class Verdict(BaseModel):
    """Outcome of the stage, and where the run should go next."""

    outcome: str
    preferred_label: str = ""
    suggested_next_ids: list[str] = []
    context_updates: dict[str, Any] = {}
    notes: str = ""
    failure_reason: str = ""


class AgentHandler:
    """Runs a stage with an agent."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        options: dict[str, Any] = {"store": config.store, **(config.compiler or {})}
        options["on_view"] = _charge_and_pass_on(options.get("on_view"))
        self._compiler = None if config.compiler is None else ContextCompiler(**options)
        self._outputs = OutputCompiler(config)

    async def execute(self, stage: Stage) -> Outcome:
        """Ask the agent, and convert its answer to an outcome."""
        outputs = await self._outputs.compile_outputs(stage, self._model_of(stage)) if stage.node.context_helper else ""
        prompt = "\n\n".join(filter(None, (stage.preamble.rstrip(), outputs, _steer_text(stage), stage.prompt)))
        stage.write("prompt.md", prompt)
        if self._config.simulated:
            return self._finish(stage, f"[Simulated] Response for stage: {stage.node.name}", ())
        output, messages = await self.ask(stage, prompt)
        if stage.session is not None:
            stage.session.add(stage.node.name, messages)
        return self._finish(stage, output, tool_names(messages))

    async def ask(self, stage: Stage, prompt: str) -> tuple[Any, list[ModelMessage]]:
        """Ask the agent of a stage, and return its output and the new messages."""
        agent = self.agent(stage)
        meter = CostMeter(run=stage.requests, emit=stage.emit)
        capabilities = [capability for capability in (meter, hooks_of(stage), self._compiler) if capability is not None]
        usage = RunUsage()
        charged = _METER.set(meter)
        try:
            result = await agent.run(
                prompt,
                message_history=list(stage.session.messages) if stage.session is not None else None,
                model=stage_model(stage.node),
                deps=self._config.deps,
                model_settings=self._settings(stage.node),
                capabilities=capabilities or None,
                conversation_id=f"{stage.run_id}/{stage.node.name}",
                usage=usage,
            )
        finally:
            _METER.reset(charged)
            meter.catch_up(usage)
            await try_await(meter.record())  # so that its error does not hide an error of the agent
        used, messages = result.usage, result.new_messages()
        facts = {"input_tokens": used.input_tokens, "output_tokens": used.output_tokens, "requests": used.requests}
        await stage.emit("agent_answered", **facts, **meter.stage.report(), tools=list(tool_names(messages)))
        return result.output, messages

    def agent(self, stage: Stage) -> Agent[Any, Any]:
        """Return the agent of a stage: a configured one, or one built for its model."""
        agents = self._config.agents
        if isinstance(agents, Agent):
            return cast("Agent[Any, Any]", agents)
        agent: Agent[Any, Any] | None = None
        if isinstance(agents, Mapping):
            names = (stage.node.name, *stage.node.classes, "*")
            by_name = cast("Mapping[str, Agent[Any, Any]]", agents)
            agent = next((by_name[name] for name in names if name in by_name), None)
        elif agents is not None:
            agent = agents(stage.node)
        return agent or _build_agent(self._config.model, stage.node, stage.graph)

    def _model_of(self, stage: Stage) -> Model | str | None:
        """Return the model that runs a stage; None if simulated."""
        return None if self._config.simulated else stage_model(stage.node) or self.agent(stage).model

    def _settings(self, node: Node) -> ModelSettings | None:
        """Return the model settings of a stage: the configured ones, with its reasoning effort if it names one."""
        effort = node.reasoning_effort
        if effort not in EFFORTS or "thinking" not in ModelSettings.__annotations__:
            return self._config.model_settings
        return cast("ModelSettings", {**(self._config.model_settings or {}), "thinking": effort})

    def _finish(self, stage: Stage, output: object, tools: Sequence[str]) -> Outcome:
        """Store an answer as a file and an artifact, and convert it to an outcome."""
        text = output if isinstance(output, str) else _to_text(output)
        stage.write("response.md", text)
        reference = stage.keep("response", text)
        outcome = read_status(stage) or _to_outcome(output)
        kept = {
            "last_stage": stage.node.name,
            "last_response": text[:MAX_RESPONSE_EXCERPT],
            "last_response_ref": reference,
        }
        updates = {key: value for key, value in outcome.context_updates.items() if not key.startswith(RESERVED)}
        refused = ", ".join(sorted(outcome.context_updates.keys() - updates.keys()))[:MAX_RESPONSE_EXCERPT]
        notes = (outcome.notes or text[:EXCERPT]) + (f"\n(not an agent's to set: {refused})" if refused else "")
        return replace(outcome, notes=notes, tools=outcome.tools or tuple(tools), context_updates={**kept, **updates})


def _steer_text(stage: Stage) -> str:
    """A supervisor's message for a stage, the same at any fidelity; empty if there is none."""
    message = stage.context.get_string(STEER)
    return f"{SUPERVISED}\n{message}" if message else ""


def _to_outcome(output: object) -> Outcome:
    """Convert the output of an agent to an outcome; output that contains no outcome is a success."""
    if isinstance(output, Outcome):
        return output
    if isinstance(output, BaseModel):
        output = output.model_dump(mode="json")
    if isinstance(output, str):
        return find_outcome(output) or Outcome()
    document: Mapping[str, Any] = cast("Mapping[str, Any]", output) if isinstance(output, Mapping) else {}
    return Outcome.parse(document) if isinstance(document.get("outcome", document.get("status")), str) else Outcome()


def _to_text(output: object) -> str:
    """Convert any output to JSON text, with bytes in base64; values unknown to JSON are converted with `str`."""
    plain = output.document() if isinstance(output, Outcome) else output
    return json.dumps(to_jsonable_python(plain, bytes_mode="base64", fallback=str), indent=1)


def _build_agent(model: Model | str | None, node: Node, graph: Graph) -> Agent[Any, Any]:
    """Build the agent of a stage, with a tool to report its outcome if an edge or a goal gate depends on that."""
    output: Any = str
    edges = graph.outgoing(node.name)
    if node.goal_gate or any(edge.condition for edge in edges) or len(edges) > 1:
        output = [str, ToolOutput(Verdict, name="report_outcome")]
    return Agent(model, output_type=output, name=node.name)


def stage_model(node: Node) -> str | None:
    """Name of the stage's own model; None if the stage names none."""
    if not node.llm_model or ":" in node.llm_model or not node.llm_provider:
        return node.llm_model or None
    return f"{node.llm_provider}:{node.llm_model}"


def tool_names(messages: Sequence[ModelMessage]) -> tuple[str, ...]:
    """Names of the tools called in messages, in order of their first calls."""
    calls = (call for message in messages if isinstance(message, ModelResponse) for call in message.tool_calls)
    return tuple(dict.fromkeys(call.tool_name for call in calls))


log = logging.getLogger("context_compiler.pipeline")

SECONDS = 60.0
"""Time limit of a hook in seconds. A hook that takes longer fails."""


@dataclass
class CostMeter(AbstractCapability[Any]):
    """Counts the requests of a stage as they are made, adds up their costs, and enforces the limits of the run."""

    run: RequestMeter
    emit: Emit
    stage: RequestMeter = field(default_factory=RequestMeter)
    _new: RequestMeter = field(default_factory=RequestMeter)
    """Requests that no event of the run contains yet."""

    async def record(self) -> None:
        """Emit an event about the latest requests, so that a process that continues the run counts them too."""
        new, self._new = self._new, RequestMeter()
        if new.used or new.cost or new.unpriced:
            await self.emit("model_requested", requests=new.used, **new.report())

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Count a request before it is made, because branches make requests concurrently.

        Raises:
            UsageLimitExceeded: a limit of the run is reached.
        """
        self.catch_up(ctx.usage)
        if limit := self.run.refuse():
            raise UsageLimitExceeded(limit)
        self._count(1)
        return request_context

    def catch_up(self, usage: RunUsage) -> None:
        """Count requests of other agents that share the usage of the stage, such as agents called by its tools."""
        self._count(max(0, usage.requests - self.stage.used))

    def _count(self, number: int) -> None:
        for meter in (self._new, self.stage, self.run):
            meter.used += number

    async def after_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, response: ModelResponse
    ) -> ModelResponse:
        """Add the cost of a request. Under a cost limit, warn once about each model without a known price."""
        names = ("input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens")
        usage = {name: getattr(response.usage, name) for name in names}
        self.charge(response.model_name or "", usage, response.provider_name)
        await self.record()
        return response

    def charge(self, model: str, usage: Mapping[str, int], provider: str | None = None) -> None:
        """Add the cost of a request or of a compile."""
        if self.run.max_cost is not None and model not in self.run.unpriced:
            if cost_of(model, usage, provider) is None:
                name = safe_line(model)
                log.warning("max_cost=%s: no price is known for %s, so it is not counted", self.run.max_cost, name)
        for meter in (self._new, self.stage, self.run):
            meter.charge(model, usage, provider)


_METER: ContextVar[CostMeter | None] = ContextVar("meter of the stage", default=None)


def _charge_and_pass_on(on_view: Callable[[View], Any] | None) -> Callable[[View], Any]:
    """Callback that adds the cost of a view's compile to the stage that sends the view; `on_view` is called next."""

    def charge(view: View) -> Any:
        meter, compile = _METER.get(), view.record.compile if view.record is not None else None
        if meter is not None and compile is not None and compile.usage:
            meter.charge(compile.model_alias, compile.usage)
        return on_view(view) if on_view is not None else None

    return charge


@dataclass
class ToolHooks(AbstractCapability[Any]):
    """Runs the shell hooks of one stage before and after its tools."""

    stage: Stage
    pre: str
    post: str

    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: Any, handler: Any
    ) -> Any:
        """Run a tool between its hooks. If the first hook fails, the model gets the reason instead of a result."""
        facts = {"tool": call.tool_name, "call_id": call.tool_call_id, "arguments": args}
        if self.pre:
            before = await self._run_hook("pre", self.pre, facts)
            if before.code != 0:
                await self._report_failure("pre", before, call)
                return f"{call.tool_name} was not called, because a hook forbade it: {_reason(before)}"
        result = await handler(args)
        if self.post:
            after = await self._run_hook("post", self.post, {**facts, "result": result})
            if after.code != 0:
                await self._report_failure("post", after, call)
        return result

    async def _run_hook(self, name: str, command: str, facts: dict[str, Any]) -> CommandResult:
        stage = self.stage
        facts = {"hook": name, "run_id": stage.run_id, "node": stage.node.name, "visit": stage.visit, **facts}
        keys = ("hook", "run_id", "node", "tool", "call_id")
        where = stage.node.text("workdir") or stage.config.workdir
        try:
            return await run_shell(
                command,
                where=Path(where) if where else None,
                limit=SECONDS,
                stdin=json.dumps(to_jsonable_python(facts, bytes_mode="base64", fallback=str)),
                env=stage.environment() | {f"HOOK_{key.upper()}": str(facts[key]).replace("\0", "") for key in keys},
            )
        except OSError as error:
            return CommandResult(code=127, out="", err=str(error))

    async def _report_failure(self, name: str, ran: CommandResult, call: ToolCallPart) -> None:
        log.warning("%s: tool_hooks.%s of %s failed: %s", self.stage.node.name, name, call.tool_name, _exit(ran))
        await self.stage.emit(
            "tool_hook_failed", hook=name, tool=call.tool_name, reason=_reason(ran), skipped=name == "pre"
        )


def hooks_of(stage: Stage) -> ToolHooks | None:
    """Return the hooks of a stage; None if it has none."""
    names = ("tool_hooks.pre", "tool_hooks.post")
    pre, post = (stage.node.text(name) or stage.graph.text(name) for name in names)
    return ToolHooks(stage=stage, pre=pre, post=post) if pre or post else None


def _reason(ran: CommandResult) -> str:
    """Reason why a hook failed, with the last line of its output."""
    return f"{_exit(ran)}: {ran.last}".rstrip(": ")


def _exit(ran: CommandResult) -> str:
    """Reason why a hook failed, for the log: without its output, which may repeat its input."""
    return f"it took longer than {SECONDS:g} s" if ran.code is None else f"exit code {ran.code}"
