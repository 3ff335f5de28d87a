"""Stages run by a shell. Text written by agents never becomes part of a command: only listed keys are substituted."""

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
"""Keys allowed as `${key}` in a command, beside those of the graph and of parameters."""
ALLOWED_PREFIXES = ("graph.", "params.", "human.gate.")
RESERVED = (*ALLOWED_PREFIXES, "internal.")
"""Prefixes of keys that neither agents nor tools may set: people and the graph decide them."""
EXCERPT = 8 * 1024
"""Maximum length of an output in the context, in characters; the complete output is an artifact."""

_SIGN = re.compile(r"\$goal\b|\$\{(?P<key>[A-Za-z_][A-Za-z0-9_.-]*)\}|\\[\s\S]|\$\(|[()'\"]|(?<!\S)#[^\n]*")
"""Placeholders, and everything that changes how a shell reads the text after it."""
_FILLED = {"'": "'\"${%s}\"'", '"': "${%s}"}
"""Form of a variable inside quotes."""
_AGAIN = re.compile(r"\b(?:eval|ssh)\s[^;|&\n]*\Z|\b(?:(?:ba|da|z|k|a)?sh|su)\s(?:[^;|&\n]*\s)?-\w*c\s+\Z")
"""Commands that make a second shell parse the words after the first one has expanded them."""


class ToolHandler:
    """Runs `tool_command`; succeeds if it exits with 0."""

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
    """Replace `$goal` and each allowed `${key}` by a shell variable; the command, and the values of the variables.

    The shell expands the variables, so their values are never parsed as part of the command, whatever the quotes
    around them.

    Raises:
        KeyError: a key is not allowed, or not set.
        ValueError: a second shell would parse a value.
    """
    written, values = "", dict[str, str]()
    around, begun, at = [""], list[int](), 0
    while found := _SIGN.search(command, at):
        sign, inside = found[0], around[-1]
        if (inside == "'" and sign[0] == "\\") or (inside in _FILLED and sign[0] == "#"):
            sign = sign[0]  # a plain character here, and the next one may close the quotes
        written += command[at : found.start()]
        at = found.start() + len(sign)
        if sign == "$goal" or found["key"]:
            name = f"FILLED_{len(values) + 1}"
            values[name] = _value(found["key"], stage).replace("\0", "")
            places = [*begun, *([] if inside in _FILLED else [found.start()])]
            sums = _in_arithmetic(sign, values[name], command, places)
            sign = ("${%s}" if sums else _FILLED.get(inside, '"${%s}"')) % name
        elif sign == (")" if inside == "(" else inside):
            around.pop()
            begun.pop()
        elif _opens(sign, inside):
            around.append(sign[-1])
            begun.append(found.start())
        written += sign
    return written + command[at:], values


def _in_arithmetic(sign: str, value: str, command: str, places: Sequence[int]) -> bool:
    """True if the shell evaluates a value as arithmetic; its word and enclosing ones begin at `places`.

    Raises:
        ValueError: the value is not a number there, or a second shell would parse it.
    """
    if any(_AGAIN.search(command, 0, place) for place in places):
        raise ValueError(f"{sign} would be read by a second shell; hand it over: sh -c 'echo \"$1\"' name {sign}")
    sums = any(command[place - 1 : place + 1] == "((" for place in places)  # some shells run what is in those
    if sums and not re.fullmatch(r"-?\d{1,18}", value, re.ASCII):
        raise ValueError(f"{sign} is not a whole number, and a shell evaluates it")
    return sums


def _opens(sign: str, inside: str) -> bool:
    """True if a token opens quotes or a nested command."""
    return sign == "$(" and inside != "'" or inside in ("", "(") and sign in ("'", '"', "(")


def _value(key: str | None, stage: Stage) -> str:
    """The value of a key; that of the goal for None."""
    if key is None:
        return stage.graph.goal
    if key not in ALLOWED and not key.startswith(ALLOWED_PREFIXES):
        raise KeyError(key)
    there = stage.run_id if key == "run_id" else stage.context.get_string(key)
    if not there and key not in stage.context.keys():
        raise KeyError(key)
    return there
