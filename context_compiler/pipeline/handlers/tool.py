"""Stages that run a shell command.

Text written by agents never becomes part of a command, because only listed context keys are substituted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from context_compiler.pipeline.shell import last_line, run_shell
from context_compiler.pipeline.stage import Stage, read_status
from context_compiler.pipeline.state import Outcome, StageStatus, failure

ALLOWED = ("outcome", "preferred_label", "run_id")
"""Context keys allowed as `${key}` in a command, in addition to the prefixes below."""
ALLOWED_PREFIXES = ("graph.", "params.", "human.gate.")
RESERVED = (*ALLOWED_PREFIXES, "internal.")
"""Prefixes of context keys that neither agents nor tools may set, because people and the graph decide them."""
EXCERPT = 8 * 1024
"""Maximum length in characters of an output in the context; the complete output is an artifact."""

_TOKEN = re.compile(r"\$goal\b|\$\{(?P<key>[A-Za-z_][A-Za-z0-9_.-]*)\}|\\[\s\S]|\$\(|[()'\"]|(?<!\S)#[^\n]*")
"""Placeholders, and all characters that change how a shell reads the text after them."""
_QUOTED = {"'": "'\"${%s}\"'", '"': "${%s}"}
"""Reference to a shell variable inside quotes, by the kind of quote."""
_SECOND_SHELL = re.compile(r"\b(?:eval|ssh)\s[^;|&\n]*\Z|\b(?:(?:ba|da|z|k|a)?sh|su)\s(?:[^;|&\n]*\s)?-\w*c\s+\Z")
"""Beginnings of commands that make a second shell parse words that the first shell has expanded."""


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
            command, values = substitute(command, stage)
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
        return Outcome(
            status=StageStatus.FAIL,
            failure_reason=f"exit code {code}: {ran.last}".rstrip(": "),
            context_updates=updates,
        )


def substitute(command: str, stage: Stage) -> tuple[str, dict[str, str]]:
    """Replace `$goal` and each allowed `${key}` by shell variables; return the command and the variables' values.

    The shell expands the variables, so their values are never parsed as part of the command, regardless of the quotes
    around them.

    Raises:
        KeyError: a key is not allowed, or is not set.
        ValueError: a second shell would parse a value, or the shell would evaluate a value that is not a number.
    """
    result, values = "", dict[str, str]()
    contexts, starts, at = [""], list[int](), 0  # the open quotes and parentheses, and their positions
    while found := _TOKEN.search(command, at):
        token, context = found[0], contexts[-1]
        if (context == "'" and token[0] == "\\") or (context in _QUOTED and token[0] == "#"):
            token = token[0]  # a plain character here, and the next one may close the quotes
        result += command[at : found.start()]
        at = found.start() + len(token)
        if token == "$goal" or found["key"]:
            name = f"FILLED_{len(values) + 1}"
            values[name] = _value(found["key"], stage).replace("\0", "")
            word_starts = [*starts, *([] if context in _QUOTED else [found.start()])]
            arithmetic = _in_arithmetic(token, values[name], command, word_starts)
            token = ("${%s}" if arithmetic else _QUOTED.get(context, '"${%s}"')) % name
        elif token == (")" if context == "(" else context):
            contexts.pop()
            starts.pop()
        elif _opens(token, context):
            contexts.append(token[-1])
            starts.append(found.start())
        result += token
    return result + command[at:], values


def _in_arithmetic(token: str, value: str, command: str, starts: Sequence[int]) -> bool:
    """True if the shell evaluates a value as arithmetic; `starts` are the positions of the words around it.

    Raises:
        ValueError: the shell evaluates the value, which is not a number, or a second shell would parse it.
    """
    if any(_SECOND_SHELL.search(command, 0, start) for start in starts):
        advice = f"pass it as an argument: sh -c 'echo \"$1\"' name {token}"
        raise ValueError(f"{token} would be parsed by a second shell; {advice}")
    arithmetic = any(command[start - 1 : start + 1] == "((" for start in starts)
    if arithmetic and not re.fullmatch(r"-?\d{1,18}", value, re.ASCII):  # some shells execute commands in arithmetic
        raise ValueError(f"{token} is not a whole number, and a shell evaluates it")
    return arithmetic


def _opens(token: str, context: str) -> bool:
    """True if a token opens quotes or a nested command."""
    return token == "$(" and context != "'" or context in ("", "(") and token in ("'", '"', "(")


def _value(key: str | None, stage: Stage) -> str:
    """Value of a context key, or the goal of the graph if the key is None.

    Raises:
        KeyError: the key is not allowed, or is not set.
    """
    if key is None:
        return stage.graph.goal
    if key not in ALLOWED and not key.startswith(ALLOWED_PREFIXES):
        raise KeyError(key)
    value = stage.run_id if key == "run_id" else stage.context.get_string(key)
    if not value and key not in stage.context.keys():
        raise KeyError(key)
    return value
