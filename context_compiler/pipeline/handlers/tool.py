"""Stages that run a shell command.

Text written by agents never becomes part of a command, because only listed context keys are substituted.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from context_compiler.pipeline.commands import fill_in
from context_compiler.pipeline.routing import accelerator
from context_compiler.pipeline.shell import last_line, run_shell
from context_compiler.pipeline.stage import Stage, read_status
from context_compiler.pipeline.state import Outcome, failure

ALLOWED = ("outcome", "preferred_label", "run_id")
"""Context keys allowed as `${key}` in a command, in addition to the prefixes below."""
ALLOWED_PREFIXES = ("graph.", "params.", "human.gate.")
WRITTEN_BY_MODELS = ("outcome", "preferred_label")
"""Keys whose values an agent may have written; a label of the graph's edges counts as the author's."""
RESERVED = (*ALLOWED_PREFIXES, "internal.")
"""Prefixes of context keys that neither agents nor tools may set, because people and the graph decide them."""
EXCERPT = 8 * 1024
"""Maximum length in characters of an output in the context; the complete output is an artifact."""


class ToolHandler:
    """Runs the `tool_command` of a stage, which succeeds if the command exits with 0."""

    reads_past = False
    retries_failures = True
    keeps_time = True

    async def execute(self, stage: Stage) -> Outcome:
        """Run the command in the working folder, within the stage's `timeout`.

        A command that exits with 0 can leave its outcome as `status.json` in the folder `$STAGE_FOLDER`.
        """
        command = stage.node.text("tool_command")
        if not command:
            return failure("no tool_command")
        try:
            command, values = fill_in(command, partial(find_value, stage))
        except KeyError as error:
            return failure(f"tool_command: ${{{error.args[0]}}} is not allowed in a command, or not set")
        except ValueError as error:
            return failure(f"tool_command: {error}")
        where = stage.node.text("workdir") or stage.config.workdir
        env = {**values, **stage.environment()}
        ran = await run_shell(command, where=Path(where) if where else None, limit=stage.node.timeout, env=env)
        code, out, err = ran.code, ran.out, ran.err
        shown = {"output": out, "stderr": err}
        kept = {f"tool.{name}_ref": stage.keep(name, text) for name, text in shown.items() if text}
        stage.write("output.txt", out)
        updates: dict[str, Any] = {"tool.output": out[:EXCERPT], "tool.stderr": err[:EXCERPT], "tool.exit_code": code}
        updates |= {"tool.last_line": last_line(out), **kept}
        if code == 0:
            written = read_status(stage)
            if written is None:
                return Outcome(context_updates=updates, notes=last_line(out))
            own = {key: value for key, value in written.context_updates.items() if not key.startswith(RESERVED)}
            return replace(written, context_updates={**updates, **own}, notes=written.notes or last_line(out))
        if code is None:
            return failure(f"timed out after {stage.node.timeout:g} s", updates=updates)
        return failure(f"exit code {code}: {ran.last}".rstrip(": "), updates=updates)


def find_value(stage: Stage, key: str) -> tuple[str, str]:
    """Value that a command may use, and who wrote it, if that is not the author of the graph.

    Raises:
        KeyError: the key is not allowed, or is not set.
    """
    if key == "goal":
        return stage.graph.goal, ""
    if key not in ALLOWED and not key.startswith(ALLOWED_PREFIXES):
        raise KeyError(key)
    value = stage.run_id if key == "run_id" else stage.context.get_string(key)
    if not value and key not in stage.context.keys():
        raise KeyError(key)
    labels = {label for edge in stage.graph.edges for label in (edge.label, accelerator(edge.label)[1])}
    return value, "a model" if key in WRITTEN_BY_MODELS and value not in labels else ""
