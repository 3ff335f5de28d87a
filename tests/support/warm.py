"""The command line in children of a process that has everything imported: a second of CPU time less for each.

`python -m tests.support.warm SOCKET` waits for requests: of `Child`, and of the program that `write_command` writes for
a shell. Each child gets the arguments, folder, environment and standard files of its request, so that pipes and
terminals are what they would be. The program ends as its child does, and its child with it. That commands also begin
cold, and what Python does at its exit, is for other tests to show.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import termios
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout, suppress
from fcntl import ioctl
from functools import cache
from importlib import import_module
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[2]

ASK = """#!{python} -IS
import json, os, signal, socket, sys
passed = signal.SIGINT, signal.SIGTERM
caught = *passed, signal.SIGQUIT
signal.pthread_sigmask(signal.SIG_BLOCK, caught)  # until there is a child that they are for
there = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
there.connect({address!r})
request = [{before!r} + sys.argv[1:], os.getcwd(), dict(os.environ), False]
socket.send_fds(there, [json.dumps(request).encode()], [0, 1, 2])
child = int(there.recv(16))
for number in passed:
    signal.signal(number, lambda number, _: os.kill(child, number))
signal.signal(signal.SIGQUIT, lambda *_: os.kill(child, signal.SIGKILL))
signal.pthread_sigmask(signal.SIG_UNBLOCK, caught)
code = int(there.recv(16))
for number in passed:
    signal.signal(number, signal.SIG_DFL)
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""
"""A program that passes signals on to its child, SIGQUIT as SIGKILL, and ends as that does."""

SCRIPT = "--script"
"""First argument of a request that runs the script, or after `-c` or `-m` the code or module, in the next ones.

Before these, `-W` and an action for warnings may stand.
"""

ANEW = (
    "import sys; [sys.modules.pop(name) for name in [*sys.modules] if name.partition('.')[0] == 'context_compiler']; "
)
"""Beginning of code that imports this package anew, and nothing else."""

LONGEST = 100_000
"""Bytes of a request."""


@cache
def address() -> str:
    """Socket of the waiting process, which ends with this one."""
    folder = TemporaryDirectory(prefix="warm")
    there = f"{folder.name}/socket"
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.warm", there]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def end() -> None:
        process.communicate(timeout=300)
        folder.cleanup()

    atexit.register(end)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    return there


def write_command(path: Path, *before: str) -> None:
    """Write a program that is the command line, with arguments before its own."""
    path.write_text(ASK.format(python=sys.executable, address=address(), before=list(before)))
    path.chmod(0o755)


def write_python(path: Path) -> None:
    """Write a program that runs a script, a module or code as Python does."""
    write_command(path, SCRIPT)


@cache
def python() -> str:
    """A program that runs what `sys.executable` would, to its end, without time for imports."""
    path = Path(address()).with_name("python")
    write_python(path)
    return str(path)


def kill(program: subprocess.Popen[Any]) -> None:
    """Kill the child of a program, and wait for the end of both."""
    program.send_signal(signal.SIGQUIT)
    program.wait()


class Child:
    """The command line, as `subprocess.Popen` would run it on a terminal of its own."""

    def __init__(self, args: Sequence[str], *, cwd: Path, env: Mapping[str, str], terminal: int) -> None:
        self._there = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._there.connect(address())
        request = json.dumps([args, str(cwd), dict(env), True]).encode()
        socket.send_fds(self._there, [request], [terminal] * 3)
        self.pid = int(self._there.recv(16))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Exit code; None before the end."""
        try:
            return self.wait(0)
        except TimeoutError:
            return None

    def wait(self, timeout: float) -> int:
        """Wait for the end; the exit code."""
        if self.returncode is None:
            self._there.settimeout(timeout)
            try:
                self.returncode = int(self._there.recv(16))
            except BlockingIOError:
                raise TimeoutError from None
            self._there.close()
        return self.returncode

    def kill(self) -> None:
        """End it at once."""
        os.kill(self.pid, signal.SIGKILL)


def serve(path: str) -> None:
    """Start a child for each request."""
    import_everything()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as here:
        here.bind(path)
        here.listen(16)
        gc.freeze()
        print("ready", flush=True)
        while 0 not in select.select([here, 0], [], [])[0]:  # standard input ends with the process that began this one
            there, _ = here.accept()
            with there:
                request, files, *_ = socket.recv_fds(there, LONGEST, 3)
                if os.fork() == 0:
                    here.close()
                    attend(there, files, json.loads(request))
            for file in files:
                os.close(file)
            reap(os.WNOHANG)
        reap(0)


def reap(options: int) -> None:
    """Wait for children, so that their CPU time is counted."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, options)[0]:
            pass


def import_everything() -> None:
    """Import the package, and run a command for what is made on first use."""
    import context_compiler
    from context_compiler.tokens import TokenCounter
    from tests.support.sources import without_extras

    for module in pkgutil.walk_packages(context_compiler.__path__, "context_compiler."):
        if "__main__" not in module.name and module.name not in without_extras():
            import_module(module.name)
    TokenCounter().text("the encoding")
    with TemporaryDirectory() as folder, redirect_stdout(StringIO()), suppress(SystemExit):
        demo = str(Path(context_compiler.__file__).parent / "data" / "demo.json")
        import_module("context_compiler.cli.root").app(["compile", demo, "--db", f"{folder}/context.db"])  # schemas


def attend(there: socket.socket, files: list[int], request: list[Any]) -> None:
    """Start the command line, report its number and how it ended, and end it if nobody listens any more."""
    child = os.fork()
    if child == 0:
        there.close()
        run(files, *request)
    for file in files:
        os.close(file)
    there.send(b"%d" % child)
    ended = os.pidfd_open(child)
    if ended not in select.select([there, ended], [], [])[0]:
        os.kill(child, signal.SIGKILL)
    with suppress(BrokenPipeError):
        there.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    os._exit(0)


def run(files: list[int], args: list[str], folder: str, env: dict[str, str], terminal: bool) -> None:
    """Be the command line."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell in the background would ignore
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    if terminal:
        os.setsid()
        ioctl(0, termios.TIOCSCTTY, 0)
        for name in [name for name in sys.modules if name.startswith("context_compiler.cli")]:
            del sys.modules[name]  # it looks at its terminal when it is imported
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["context-compiler", *args]
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    sys.stdout = open(1, "w", 1 if os.isatty(1) else -1, encoding="utf-8", closefd=False)
    sys.stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)
    code: Any = 1
    try:
        if args[:1] == [SCRIPT]:
            run_python(args[1:])
        else:
            import_module("context_compiler.cli").main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def run_python(args: list[str]) -> None:
    """Run a script, or after `-c` or `-m` code or a module."""
    if args[0] == "-W":
        warnings.simplefilter(args[1])  # pyright: ignore[reportArgumentType]
        args = args[2:]
    sys.argv = args
    if args[0] == "-c":
        sys.argv = ["-c", *args[2:]]
        exec(compile(args[1], "<string>", "exec"), {"__name__": "__main__"})
    elif args[0] == "-m":
        sys.argv = args[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(args[1], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(args[0]).parent))
        runpy.run_path(args[0], run_name="__main__")


if __name__ == "__main__":
    serve(sys.argv[1])
