"""The command line as a function, in a folder of its own, away from whatever the environment says."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from context_compiler.cli.root import app
from context_compiler.record.values import Record

DEMO = Path(__file__).parents[2] / "context_compiler" / "data" / "demo.json"
"""A real-looking transcript with 25 turns and 13,000 tokens."""

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Said:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def plain(self) -> str:
        """What a terminal shows, without its colours."""
        return ANSI.sub("", self.out)


Command = Callable[..., Said]


@pytest.fixture
def cc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run a command in an empty folder; `terminal=100` prints as on a terminal of that width."""
    for name in ("DB", "SYSTEM", "VAULT", "TEMPLATE", "RECENT_TURNS", "RECENT_TOOL_RESULTS", "TIMEOUT"):
        monkeypatch.delenv(f"CONTEXT_COMPILER_{name}", raising=False)
    for name in ("OPENAI_API_KEY", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)

    def run(*args: object, input: str | bytes | None = None, terminal: int = 0, **env: str) -> Said:
        shown = {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": str(terminal)} if terminal else {}
        result = CliRunner().invoke(app, [str(arg) for arg in args], input=input, env={**shown, **env})
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return Said(code=result.exit_code, out=result.stdout, err=result.stderr)

    return run


@pytest.fixture(scope="session")
def demo_record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record that holds views 1 to 3 of the bundled conversation."""
    return record_views(tmp_path_factory.mktemp("demo") / "context.db")


def record_views(db: Path) -> Path:
    """Record views of the bundled conversation within budgets of 1,000, 2,000 and 4,000 tokens."""
    for budget, turns in ((1_000, ()), (2_000, ("--recent-turns", "1")), (4_000, ("--recent-turns", "2"))):
        options = ("--budget", str(budget), *turns, "--session", "demo", "--db", str(db))
        result = CliRunner().invoke(app, ["compile", str(DEMO), *options])
        assert result.exit_code == 0, result.output
    return db


@pytest.fixture
def recorded(cc: Command, demo_record: Path, tmp_path: Path) -> Command:
    """A command line in a folder with a copy of that record."""
    return beside_copy(cc, demo_record, tmp_path)


def beside_copy(cc: Command, db: Path, folder: Path) -> Command:
    """The command line, after a copy of a record is placed where it looks for one."""
    (folder / "system").mkdir()
    shutil.copy(db, folder / "system" / "context.db")
    return cc


def one_line(said: Said) -> str:
    """The error of a command that failed as it should: a single line, and nothing printed."""
    assert said.out == ""
    assert said.err.startswith("error: ") and said.err.count("\n") == 1, said.err
    return said.err.strip()


def request(status: str, latency_ms: float) -> Record:
    """One request of session `s`, as it might be on the record."""
    return Record(
        session_id="s",
        vault_name="",
        turn_index=0,
        run_id=None,
        request_index=0,
        raw_tip=None,
        view_tip=None,
        status=status,
        error=None,
        budget=100,
        tokens_raw=200,
        tokens_sent=50,
        tokens_exact=50,
        ratio=1.0,
        ledger={},
        request_hash=None,
        latency_ms=latency_ms,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


def message(role: str, text: str) -> dict[str, Any]:
    """A message as chat formats have it."""
    return {"role": role, "content": text}


def chat(turns: int, words: int = 40) -> list[dict[str, Any]]:
    """A conversation of so many turns and a last question."""
    said = [
        message(role, f"{role} {turn}: " + " ".join(f"word{turn}_{index}" for index in range(words)))
        for turn in range(turns)
        for role in ("user", "assistant")
    ]
    return [*said, message("user", "And what about the first thing?")]


def written(path: Path, value: object) -> Path:
    """A JSON file."""
    path.write_text(json.dumps(value), encoding="utf-8")
    return path
