"""The command line in children of a process that has everything imported: a second of CPU time less for each.

`python -m tests.support.warm SOCKET` waits for requests: of `Child`, and of the program that `write_command` writes for
a shell. Each child gets the arguments, folder, environment and standard files of its request, so that pipes and
terminals are what they would be. That commands also begin cold is for other tests to show.
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
import json, os, socket, sys
there = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
there.connect({address!r})
request = [{before!r} + sys.argv[1:], os.getcwd(), dict(os.environ), False]
socket.send_fds(there, [json.dumps(request).encode()], [0, 1, 2])
there.recv(16)
sys.exit(int(there.recv(16) or 70))
"""
"""A program that ends as its child does; 70 where that was killed."""

SCRIPT = "--script"
"""First argument of a request that runs the script, or after `-c` or `-m` the code or module, in the next ones."""

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
                self.returncode = int(self._there.recv(16) or -signal.SIGKILL)
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
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a child: its connection tells the end
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
                    run(there, files, *json.loads(request))
            for file in files:
                os.close(file)


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


def run(
    there: socket.socket, files: list[int], args: list[str], folder: str, env: dict[str, str], terminal: bool
) -> None:
    """Be the command line, and report its number and its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
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
    there.send(b"%d" % os.getpid())
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
        there.send(b"%d" % code)
        os._exit(code)


def run_python(args: list[str]) -> None:
    """Run a script, or after `-c` or `-m` code or a module."""
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
