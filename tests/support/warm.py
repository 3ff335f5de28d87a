"""The command line in children of a process that has everything imported: a second of CPU time less for each command.

`python -m tests.support.warm SOCKET` waits for requests of programs that `command` wrote. Each request is a child with
the arguments, environment, folder and standard files of the program that asked, so that pipes and redirections of a
shell are what they would be. That commands also begin cold is for other tests to show.
"""

from __future__ import annotations

import gc
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

ASK = """#!{python} -IS
import json, os, socket, sys
there = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
there.connect({address!r})
socket.send_fds(there, [json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()], [0, 1, 2])
sys.exit(int(there.recv(16) or 70))
"""
"""A program that asks for a child and ends as that child does; 70 where it was killed."""

LONGEST = 100_000
"""Bytes of a request."""


@contextmanager
def warm(folder: Path) -> Iterator[str]:
    """A waiting process; the address of its socket."""
    address = str(folder / "warm")
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.warm", address]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"ready\n"
            yield address
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def command(path: Path, address: str) -> None:
    """Write a program that is the command line."""
    path.write_text(ASK.format(python=sys.executable, address=address))
    path.chmod(0o755)


def serve(address: str) -> None:
    """Start a child for each request."""
    import_everything()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a child: it reports its end itself
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as here:
        here.bind(address)
        here.listen(16)
        gc.freeze()
        print("ready", flush=True)
        while True:
            there, _ = here.accept()
            with there:
                request, files, *_ = socket.recv_fds(there, LONGEST, 3)
                if os.fork() == 0:
                    run(there, files, *json.loads(request))
            for file in files:
                os.close(file)


def import_everything() -> None:
    """Import the package and what its commands load when they run."""
    import context_compiler
    from context_compiler.tokens import TokenCounter

    for module in pkgutil.walk_packages(context_compiler.__path__, "context_compiler."):
        if "__main__" not in module.name:
            import_module(module.name)
    TokenCounter().text("the encoding")


def run(there: socket.socket, files: list[int], args: list[str], folder: str, env: dict[str, str]) -> Any:
    """Be the command line, and report the exit code."""
    from context_compiler.cli import main

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["context-compiler", *args]
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    sys.stdout = open(1, "w", 1 if os.isatty(1) else -1, encoding="utf-8", closefd=False)
    sys.stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)
    code = 1
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        there.send(b"%d" % code)
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])
