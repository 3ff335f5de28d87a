"""A stage that a shell runs. What agents wrote never becomes part of a command: only names on a list are filled in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from context_compiler.pipeline.outcome import Outcome, StageStatus, failure
from context_compiler.pipeline.shell import last_line, run_shell
from context_compiler.pipeline.stage import Stage

ALLOWED = ("outcome", "preferred_label", "run_id")
"""Keys that a command may hold as `${key}`, beside those of the graph and of parameters."""
ALLOWED_PREFIXES = ("graph.", "params.", "human.gate.")
EXCERPT = 8 * 1024
"""Characters of an output in the context; all of it is an artifact."""

_SIGN = re.compile(r"\$goal\b|\$\{(?P<key>[A-Za-z_][A-Za-z0-9_.-]*)\}|\\[\s\S]|\$\(|[()'\"]|(?<!\S)#[^\n]*")
"""What is filled in, and what says how a shell reads what comes after it."""
_FILLED = {"'": "'\"${%s}\"'", '"': "${%s}"}
"""A variable as it is written inside quotes."""
_AGAIN = re.compile(r"\b(?:eval|ssh)\s[^;|&\n]*\Z|\b(?:(?:ba|da|z|k|a)?sh|su)\s(?:[^;|&\n]*\s)?-\w*c\s+\Z")
"""What stands before words that a second shell reads anew, after the first one has put the values in."""


class ToolHandler:
    """Runs `tool_command`; succeeds when it exits with 0."""

    reads_past = False
    keeps_time = True

    async def execute(self, stage: Stage) -> Outcome:
        """Run the command in the working folder, for at most the stage's `timeout`."""
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
        ran = await run_shell(command, where=Path(where) if where else None, limit=stage.node.timeout, env=values)
        code, out, err = ran.code, ran.out, ran.err
        shown = {"output": out, "stderr": err}
        kept = {f"tool.{name}_ref": stage.keep(name, text) for name, text in shown.items() if text}
        stage.write("output.txt", out)
        updates: dict[str, Any] = {"tool.output": out[:EXCERPT], "tool.stderr": err[:EXCERPT], "tool.exit_code": code}
        updates |= {"tool.last_line": last_line(out), **kept}
        if code == 0:
            return Outcome(context_updates=updates, notes=last_line(out))
        if code is None:
            return failure(f"timed out after {stage.node.timeout:g} s", updates=updates)
        return Outcome(
            status=StageStatus.FAIL,
            failure_reason=f"exit code {code}: {ran.last}".rstrip(": "),
            context_updates=updates,
        )


def substitute(command: str, stage: Stage) -> tuple[str, dict[str, str]]:
    """A command in which a variable stands for `$goal` and each allowed `${key}`, and the values of the variables.

    The shell puts the values in, so it never reads them as part of the command, whatever is in them and whatever
    quotes stand around them.

    Raises:
        KeyError: a key is not allowed, or not set.
        ValueError: a second shell would read a value.
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
    """Whether a shell reckons with a value; its word, and all that is around it, begins at `places`.

    Raises:
        ValueError: that is no number, or a second shell would read it.
    """
    if any(_AGAIN.search(command, 0, place) for place in places):
        raise ValueError(f"{sign} would be read by a second shell; hand it over: sh -c 'echo \"$1\"' name {sign}")
    sums = any(command[place - 1 : place + 1] == "((" for place in places)  # some shells run what is in those
    if sums and not re.fullmatch(r"-?\d{1,18}", value, re.ASCII):
        raise ValueError(f"{sign} is no whole number, and a shell reckons with it")
    return sums


def _opens(sign: str, inside: str) -> bool:
    """Whether a sign begins something that another one ends: quotes, or a command of its own."""
    return sign == "$(" and inside != "'" or inside in ("", "(") and sign in ("'", '"', "(")


def _value(key: str | None, stage: Stage) -> str:
    """What stands for a key, and for the goal where there is none."""
    if key is None:
        return stage.graph.goal
    if key not in ALLOWED and not key.startswith(ALLOWED_PREFIXES):
        raise KeyError(key)
    there = stage.run_id if key == "run_id" else stage.context.get_string(key)
    if not there and key not in stage.context.keys():
        raise KeyError(key)
    return there
