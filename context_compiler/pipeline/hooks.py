"""Commands of the shell around every tool that an agent of a stage calls: one before, which may forbid it, one after.

`tool_hooks.pre` and `tool_hooks.post` of the stage, else of the graph. A command is told of the call as JSON on its
standard input and in variables; what it prints goes nowhere but into an event when it fails.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import ToolDefinition
from pydantic_core import to_jsonable_python

from context_compiler.pipeline.shell import Ran, run_shell
from context_compiler.pipeline.stage import Stage

log = logging.getLogger("context_compiler.pipeline")

SECONDS = 60.0
"""How long a hook may take; one that takes longer has failed."""
NAMES = ("pre", "post")


@dataclass
class ToolHooks(AbstractCapability[Any]):
    """Runs the hooks of one stage."""

    stage: Stage
    pre: str
    post: str

    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: Any, handler: Any
    ) -> Any:
        """Call a tool between the hooks; where the first one fails, it is not called, and the model is told so."""
        facts = {"tool": call.tool_name, "call_id": call.tool_call_id, "arguments": args}
        if self.pre:
            before = await self._hook("pre", self.pre, facts)
            if before.code != 0:
                await self._failed("pre", before, call)
                return f"{call.tool_name} was not called, because a hook forbade it: {_why(before)}"
        result = await handler(args)
        if self.post:
            after = await self._hook("post", self.post, {**facts, "result": result})
            if after.code != 0:
                await self._failed("post", after, call)
        return result

    async def _hook(self, name: str, command: str, facts: dict[str, Any]) -> Ran:
        stage = self.stage
        facts = {"hook": name, "run_id": stage.run_id, "node": stage.node.name, "visit": stage.visit, **facts}
        said = ("hook", "run_id", "node", "tool", "call_id")
        where = stage.node.text("workdir") or stage.config.workdir
        try:
            return await run_shell(
                command,
                where=Path(where) if where else None,
                limit=SECONDS,
                given=json.dumps(to_jsonable_python(facts, bytes_mode="base64", fallback=str)),
                env={f"HOOK_{key.upper()}": str(facts[key]).replace("\0", "") for key in said},
            )
        except OSError as error:
            return Ran(code=127, out="", err=str(error))

    async def _failed(self, name: str, ran: Ran, call: ToolCallPart) -> None:
        log.warning("%s: tool_hooks.%s of %s failed: %s", self.stage.node.name, name, call.tool_name, _how(ran))
        await self.stage.emit(
            "tool_hook_failed", hook=name, tool=call.tool_name, reason=_why(ran), skipped=name == "pre"
        )


def hooks_of(stage: Stage) -> ToolHooks | None:
    """The hooks of a stage; None: it has none."""
    pre, post = (stage.node.text(f"tool_hooks.{name}") or stage.graph.text(f"tool_hooks.{name}") for name in NAMES)
    return ToolHooks(stage=stage, pre=pre, post=post) if pre or post else None


def _why(ran: Ran) -> str:
    return f"{_how(ran)}: {ran.last}".rstrip(": ")


def _how(ran: Ran) -> str:
    """The same without a word of the command's, which may repeat what it was told."""
    return f"it took longer than {SECONDS:g} s" if ran.code is None else f"exit code {ran.code}"
