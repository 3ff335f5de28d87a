"""A stage that a shell runs. What agents wrote never becomes part of a command: only names on a list are filled in."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from context_compiler.pipeline.outcome import Outcome, StageStatus, failed
from context_compiler.pipeline.stage import Stage

ALLOWED = ("outcome", "preferred_label", "run_id")
"""Keys that a command may hold as `${key}`, beside those of the graph and of parameters."""
ALLOWED_PREFIXES = ("graph.", "params.", "human.gate.")
EXCERPT = 8 * 1024
"""Characters of an output in the context; all of it is an artifact."""
MOST = 10_000_000
"""Bytes of an output that are kept."""

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
        code, out, err = await _run(command, Path(where) if where else None, stage.node.timeout)
        shown = {"output": out, "stderr": err}
        kept = {f"tool.{name}_ref": stage.keep(name, text) for name, text in shown.items() if text}
        stage.write("output.txt", out)
        updates: dict[str, Any] = {"tool.output": out[:EXCERPT], "tool.stderr": err[:EXCERPT], "tool.exit_code": code}
        updates |= {"tool.last_line": _last(out), **kept}
        if code == 0:
            return Outcome(context_updates=updates, notes=_last(out))
        if code is None:
            return failed(f"timed out after {stage.node.timeout:g} s", updates=updates)
        return Outcome(
            status=StageStatus.FAIL,
            failure_reason=f"exit code {code}: {_last(err) or _last(out)}".rstrip(": "),
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


async def _run(command: str, where: Path | None, limit: float | None) -> tuple[int | None, str, str]:
    """Exit code, output and errors of a command; no code when it took too long. Its children end with it."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_shell(
        command, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe, cwd=where, start_new_session=True
    )
    assert process.stdout is not None and process.stderr is not None
    out, err = bytearray(), bytearray()
    reading = asyncio.gather(_read(process.stdout, out), _read(process.stderr, err))
    code: int | None = None
    try:
        async with asyncio.timeout(limit):
            await reading
            code = await process.wait()
    except TimeoutError:
        pass
    finally:
        _end(process)
        with suppress(asyncio.CancelledError):
            await reading
        await process.wait()
    return code, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")


async def _read(stream: asyncio.StreamReader, into: bytearray) -> None:
    while chunk := await stream.read(65_536):
        into += chunk[: max(0, MOST - len(into))]


def _end(process: asyncio.subprocess.Process) -> None:
    """End a process with everything it started."""
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        elif process.returncode is None:
            process.kill()


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:500] if lines else ""
