"""Help that teaches, exit codes that can be relied on, errors of one line: by the real command where it matters."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from context_compiler import __version__
from context_compiler.cli.root import COMMANDS
from tests.cli.conftest import DEMO, Command, one_line
from tests.cli.terminal import terminal

ROOT = Path(__file__).parents[2]
GROUPS = {
    "templates": ("list", "show", "check"),
    "views": ("list", "show", "diff", "replay"),
    "sessions": ("list", "show", "compact", "undo", "pin", "unpin", "pins", "delete"),
    "pipeline": ("check", "parse", "handlers", "run", "resume", "runs", "show"),
    "workflow": ("check", "run", "resume", "show"),
    "manager": ("log", "checkpoint", "rollback"),
    "layers": ("show",),
}
EVERY = [(name, inner) for name in COMMANDS for inner in GROUPS.get(name, ("",))]


def started(*args: str, cwd: Path, **more: object) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), **{name: str(value) for name, value in more.items()}}
    command = [sys.executable, "-m", "context_compiler", *args]
    return subprocess.Popen(command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_cannot_be_written_is_one_line(tmp_path: Path, unbuffered: str) -> None:
    command = [sys.executable, "-m", "context_compiler", "templates", "list"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=tmp_path, env=env, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "error: standard output: No space left on device\n")
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
    done = subprocess.run(closed, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and done.stderr.startswith("error: standard output is closed")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("name", "inner"), EVERY)
def test_help_shows_an_example_of_every_command(cc: Command, name: str, inner: str) -> None:
    path = f"{name} {inner}".strip()
    said = cc(*path.split(), "--help")
    assert said.code == 0
    assert f"Example: context-compiler {path}" in " ".join(said.out.split())
    assert "--json" in said.out or "COMMAND [ARGS]" in said.out


def test_help_names_the_budgets_that_a_command_takes(cc: Command) -> None:
    assert "'$0.02'" in cc("compile", "--help").out and "'$0.02'" not in cc("bench", "--help").out
    assert "Any" not in cc("copy", "--help").out


def test_help_lists_every_command_with_what_it_does(cc: Command) -> None:
    said = cc("--help")
    for name, (_, heading, does) in COMMANDS.items():
        line = next(line for line in said.out.partition(f"\n{heading}:\n")[2].splitlines() if f"  {name} " in line)
        assert line.endswith(f"  {does}") and len(line) <= 80


def test_a_terminal_shows_the_same_headings(tmp_path: Path) -> None:
    with terminal(tmp_path, "--help", lines=60, columns=80) as screen:
        assert screen.ended() == 0
    assert [screen.text.count(f"─ {heading} ─") for heading in ("Look", "Make", "Run", "Keep")] == [1] * 4
    assert all(does in screen.text for _, _, does in COMMANDS.values())


@pytest.mark.parametrize("name", [name for name, (_, _, does) in COMMANDS.items() if re.search(", | and ", does)])
def test_a_summary_names_only_commands_that_exist(cc: Command, name: str) -> None:
    inner = re.findall(r"^  (\w+) ", cc(name, "--help").out.partition("\nCommands:\n")[2], re.M)
    named = re.split(r", | and ", COMMANDS[name][2].partition(" of ")[0].lower())
    assert not inner or [word.split()[0] for word in named if word.split()[0] not in inner] == []


@pytest.mark.parametrize("name", sorted(GROUPS))
def test_no_command_summary_is_truncated(cc: Command, name: str) -> None:
    assert "..." not in cc(name, "--help").out.partition("\nCommands:\n")[2]


@pytest.mark.parametrize("args", [(), ("views",), ("templates",)])
def test_without_a_command_help_is_shown_and_the_exit_code_is_2(cc: Command, args: tuple[str, ...]) -> None:
    said = cc(*args)
    assert said.code == 2 and said.out.startswith("Usage: ") and said.err == ""


def test_the_version_is_that_of_the_package(cc: Command) -> None:
    assert cc("--version").out == f"context-compiler {__version__}\n"


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("dem",), "no such command 'dem'"),
        (("compile",), "missing argument"),
        (("view", "list"), "no such command 'view'. Did you mean 'views'? See `"),
        (("compile", "a.json", "--nope"), "no such option"),
        (("views", "list", "--sesion", "a"), "no such option: --sesion. Did you mean '--session'? See `"),
        (("serve", "--port", "99999"), "'--port': give "),
        (("compile", "a.json", "--format", "html"), "'html'"),
        (("views", "show", "three"), "ID"),
        (("views", "list", "--limit", "0"), "--limit"),
        (("prune", "--keep-last", "-1"), "--keep-last"),
    ],
)
def test_wrong_usage_is_reported_in_one_line_that_names_the_help(cc: Command, args: tuple[str, ...], why: str) -> None:
    said = cc(*args)
    assert said.code == 2
    assert why in one_line(said) and "--help`" in said.err and "Value error" not in said.err


def test_help_does_not_wait_for_the_host_to_be_imported() -> None:
    code = (
        "import sys; from context_compiler.cli import main; sys.argv[1:] = ['--help']\n"
        "try: main()\n"
        "except SystemExit: print('pydantic_ai' in sys.modules, file=sys.stderr)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    )
    assert run.stderr == "False\n"


UNCOUNTED = ("sessions find demo deploy", "sessions list", "stats")
"""Commands that count nothing, so that they need no tokenizer."""

READING = (
    *UNCOUNTED,
    "verify",
    "views list",
    "views show 1",
    "views show 1 --raw",
    "views show 1 --json",
    "views why 1",
    "views diff 1 2",
    "sessions show demo",
    "sessions show demo --json",
    "sessions find demo deploxing",
    "sessions find deploying",
    "sessions test --help",
)

NOTHING = {"sessions find demo deploxing", "sessions find deploying"}
"""Searches for words that no message contains as they stand, which fail."""

EACH = """
import sys
from context_compiler.cli import main

slow, *commands = sys.argv[1:]
for command in commands:
    sys.argv[1:] = command.split()
    try:
        main()
    except SystemExit as end:
        print(end.code, *(name for name in slow.split() if name in sys.modules), file=sys.stderr)
    print(chr(0), end="")
"""


def test_commands_that_read_the_record_import_no_host_and_those_that_count_nothing_no_tokenizer(
    demo_record: Path,
) -> None:
    """One after the other in one process: what the first loads that should not, all later ones have."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "CONTEXT_COMPILER_DB": str(demo_record)}
    slow = "pydantic_ai jinja2 yaml lark markdown_it prompt_toolkit numpy tiktoken snowballstemmer"
    run = subprocess.run(
        [sys.executable, "-c", EACH, slow, *READING], cwd=demo_record.parent, env=env, capture_output=True, text=True
    )
    loaded = dict(zip(READING, run.stderr.splitlines(), strict=True))
    assert all(run.stdout.split(chr(0))[: len(READING)]), "each command prints something"
    assert {command: loaded[command] for command in UNCOUNTED} == dict.fromkeys(UNCOUNTED, "0")
    assert {command for command, line in loaded.items() if line[0] != "0"} == NOTHING, loaded
    assert all(set(line[1:].split()) <= {"tiktoken", "snowballstemmer"} for line in loaded.values()), loaded


def test_templates_are_listed_without_the_host(demo_record: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", EACH, "pydantic_ai", "templates list"],
        cwd=demo_record.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert run.stdout and run.stderr == "0\n"


def test_the_module_is_the_command_line(tmp_path: Path) -> None:
    with started("compile", str(DEMO), "--budget", "900", "--json", cwd=tmp_path) as process:
        out, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, b"")
    assert b'"status": "compiled"' in out


def test_an_error_of_the_real_command_is_reported_in_one_line_without_a_traceback(tmp_path: Path) -> None:
    with started("stats", "--db", "missing.db", cwd=tmp_path) as process:
        out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (2, b"")
    assert err.startswith(b"error: ") and b"missing.db: there is no record here" in err and err.count(b"\n") == 1


def test_a_closed_pipe_ends_the_command_quietly(demo_record: Path, tmp_path: Path) -> None:
    with started("export", "--db", str(demo_record), cwd=tmp_path) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=300) == 141


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT for one process there")
def test_an_interrupt_ends_the_command_with_one_line(demo_record: Path, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "context_compiler", "sessions", "delete", "demo", "--db", str(demo_record)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
    ) as process:
        assert process.stderr is not None
        process.stderr.read(6)  # the question is asked
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=300) == 130
        assert process.stderr.read().endswith(b"\ninterrupted\n")


EARLY = """
import signal, sys

class Press:
    def find_spec(name, *args):
        if name == "context_compiler.cli.root":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Press)
signal.signal(signal.SIGINT, signal.default_int_handler)
from context_compiler.cli import main
main()
"""


def test_an_interrupt_while_the_command_loads_ends_it_with_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EARLY],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (130, "\ninterrupted\n")


def test_characters_that_an_encoding_lacks_do_not_stop_the_command(tmp_path: Path) -> None:
    with started("compile", str(DEMO), cwd=tmp_path, PYTHONIOENCODING="ascii", PYTHONUTF8="0") as process:
        out, err = process.communicate(timeout=300)
    assert process.returncode == 0 and err == b""
    assert out.decode("ascii")
