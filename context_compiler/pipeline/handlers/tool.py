"""A stage that a shell runs. What agents wrote never becomes part of a command: only names on a list are filled in."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from context_compiler.pipeline.outcome import Outcome, StageStatus, failed
from context_compiler.pipeline.shell import last_line, run_shell
from context_compiler.pipeline.stage import Stage

ALLOWED = ("outcome", "preferred_label", "run_id")
"""Keys that a command may hold as `${key}`, beside those of the graph and of parameters."""
ALLOWED_PREFIXES = ("graph.", "params.", "human.gate.")
EXCERPT = 8 * 1024
"""Characters of an output in the context; all of it is an artifact."""

_NAME = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_.-]*)\}")


class ToolHandler:
    """Runs `tool_command`; succeeds when it exits with 0."""

    reads_past = False
    keeps_time = True

    async def execute(self, stage: Stage) -> Outcome:
        """Run the command in the working folder, for at most the stage's `timeout`."""
        command = stage.node.text("tool_command")
        if not command:
            return failed("no tool_command")
        try:
            command = filled(command, stage)
        except KeyError as error:
            return failed(f"tool_command: ${{{error.args[0]}}} is not allowed in a command, or not set")
        where = stage.node.text("workdir") or stage.config.workdir
        ran = await run_shell(command, where=Path(where) if where else None, limit=stage.node.timeout)
        code, out, err = ran.code, ran.out, ran.err
        shown = {"output": out, "stderr": err}
        kept = {f"tool.{name}_ref": stage.keep(name, text) for name, text in shown.items() if text}
        stage.write("output.txt", out)
        updates: dict[str, Any] = {"tool.output": out[:EXCERPT], "tool.stderr": err[:EXCERPT], "tool.exit_code": code}
        updates |= {"tool.last_line": last_line(out), **kept}
        if code == 0:
            return Outcome(context_updates=updates, notes=last_line(out))
        if code is None:
            return failed(f"timed out after {stage.node.timeout:g} s", updates=updates)
        return Outcome(
            status=StageStatus.FAIL,
            failure_reason=f"exit code {code}: {ran.last}".rstrip(": "),
            context_updates=updates,
        )


def filled(command: str, stage: Stage) -> str:
    """A command with `$goal` and allowed `${key}`s filled in, each quoted for the shell.

    Raises:
        KeyError: a key is not allowed, or not set.
    """

    def value(found: re.Match[str]) -> str:
        key = found[1]
        if key not in ALLOWED and not key.startswith(ALLOWED_PREFIXES):
            raise KeyError(key)
        there = stage.run_id if key == "run_id" else stage.context.get_string(key)
        if not there and key not in stage.context.keys():
            raise KeyError(key)
        return shlex.quote(there)

    return _NAME.sub(value, re.sub(r"\$goal\b", lambda _: shlex.quote(stage.graph.goal), command))
