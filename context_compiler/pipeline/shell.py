"""Run shell commands with a time limit; when a command ends, everything that it started is killed too.

Processes that left its process group continue, and nothing waits for them.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_OUTPUT = 10_000_000
"""Maximum size of a captured output, in bytes."""

GRACE_S = 0.5
"""Seconds after the end of a command in which processes that it started can still write output."""
LONGEST_PAUSE_S = 0.1
"""Maximum seconds between two looks at whether a command has ended."""

GUARD = '(read -r _ </dev/fd/{0}; kill -KILL -$$) >/dev/null 2>&1 & exec /bin/sh -c "$1"'
"""Runs a command, and kills its process group once the pipe at that descriptor has no writer left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """Result of a command."""

    code: int | None
    """Exit code; None after a time-out."""
    out: str
    err: str

    @property
    def last(self) -> str:
        """The last line of the error output, or of the output if the error output is empty."""
        return last_line(self.err) or last_line(self.out)


async def run_shell(
    command: str,
    *,
    where: Path | None = None,
    limit: float | None = None,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
) -> CommandResult:
    """Run a shell command.

    Args:
        command: Text for the shell.
        where: Working folder.
        limit: Time limit in seconds.
        stdin: Text for standard input; None leaves it empty.
        env: Additional environment variables.

    Raises:
        OSError: the command could not be started.
    """
    starting = asyncio.ensure_future(_start(command, where=where, env=env, reads=stdin is not None))
    try:
        process, alive = await asyncio.shield(starting)
    except asyncio.CancelledError:  # asyncio would wait for the command, because its pipes are not connected yet
        with suppress(OSError):
            process, alive = await starting
            _kill(process)
            await _end(process, alive)
        raise
    assert process.stdout is not None and process.stderr is not None
    out, err = bytearray(), bytearray()
    reading = asyncio.gather(_read(process.stdout, out), _read(process.stderr, err), _write(process.stdin, stdin))
    code: int | None = None
    try:
        async with asyncio.timeout(limit):
            code = await _exit_code(process, reading)
    except TimeoutError:
        pass
    finally:
        _kill(process)
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading
        await _end(process, alive)
    return CommandResult(code=code, out=out.decode("utf-8", "replace"), err=err.decode("utf-8", "replace"))


async def _start(
    command: str, *, where: Path | None, env: Mapping[str, str] | None, reads: bool
) -> tuple[asyncio.subprocess.Process, int | None]:
    """Start a command in its own process group, which is killed when the returned descriptor is closed.

    The descriptor is the only write end of a pipe. The system closes it when this process dies, even by
    SIGKILL. There is none on systems that are not POSIX.
    """
    pipe = asyncio.subprocess.PIPE
    options: dict[str, Any] = {
        "stdin": pipe if reads else asyncio.subprocess.DEVNULL,
        "stdout": pipe,
        "stderr": pipe,
        "cwd": where,
        "env": None if env is None else {**os.environ, **env},
        "start_new_session": True,
    }
    if os.name != "posix":
        return await asyncio.create_subprocess_shell(command, **options), None
    watched, alive = os.pipe()
    words = ("/bin/sh", "-c", GUARD.format(watched), "sh", command)
    with ExitStack() as undo:
        undo.callback(os.close, alive)
        try:
            process = await asyncio.create_subprocess_exec(*words, pass_fds=(watched,), **options)
        finally:
            os.close(watched)
        undo.pop_all()
    return process, alive


async def _exit_code(process: asyncio.subprocess.Process, reading: asyncio.Future[Any]) -> int:
    """Wait until a command has ended and its output is read, and return its exit code.

    Other processes can hold its pipes open, so after its end, its output is read for only `GRACE_S` longer. `wait` is
    not used before that, because it waits for the pipes too.
    """
    pause = 0.001
    while process.returncode is None and not reading.done():
        await asyncio.wait({reading}, timeout=pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)
    await asyncio.wait({reading}, timeout=GRACE_S)
    return await process.wait() if process.returncode is None else process.returncode


async def _end(process: asyncio.subprocess.Process, alive: int | None) -> None:
    """Wait for the end of a killed process, but not for processes that have left its group."""
    transport: asyncio.SubprocessTransport | None = getattr(process, "_transport", None)  # no public access
    pipes = [] if transport is None else [transport.get_pipe_transport(number) for number in range(3)]
    for pipe in pipes:
        if pipe is not None:
            pipe.close()  # otherwise `wait` would wait for a process that has left the group and keeps the other end
    await process.wait()
    if alive is not None:
        os.close(alive)


async def _read(stream: asyncio.StreamReader, into: bytearray) -> None:
    while chunk := await stream.read(65_536):
        into += chunk[: max(0, MAX_OUTPUT - len(into))]


async def _write(stream: asyncio.StreamWriter | None, text: str | None) -> None:
    """Write to standard input; a command that does not read all of it is not an error."""
    if stream is None or text is None:
        return
    with suppress(BrokenPipeError, ConnectionResetError):
        stream.write(text.encode("utf-8", "surrogatepass"))
        await stream.drain()
    with suppress(BrokenPipeError, ConnectionResetError):
        stream.close()
        await stream.wait_closed()


def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill a process and everything it started."""
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        elif process.returncode is None:
            process.kill()


def last_line(text: str) -> str:
    """The last non-empty line of a string, cut to 500 characters."""
    lines = text.strip().splitlines()
    return lines[-1][:500] if lines else ""
