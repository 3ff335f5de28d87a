"""`views diff` and `verify` know what was sent, and say what an earlier version did not record."""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from context_compiler import ContextCompiler
from tests.cli.conftest import Command
from tests.record.test_earlier_files import OLD


def test_a_diff_shows_other_instructions(cc: Command, tmp_path: Path) -> None:
    db = tmp_path / "context.db"
    for said in ("Be a pirate.", "Be a lawyer."):
        compiler = ContextCompiler(store=db, system=None, model="none")
        asyncio.run(Agent(TestModel(), instructions=said, capabilities=[compiler]).run("Hello", conversation_id=said))
    shown = cc("views", "diff", 1, 2, "--db", db).out
    assert "no difference" not in shown and "-    Be a pirate." in shown and "+    Be a lawyer." in shown


def test_columns_that_an_earlier_version_did_not_record_are_noted(cc: Command, tmp_path: Path) -> None:
    db = tmp_path / "context.db"
    db.write_bytes(gzip.decompress(OLD.read_bytes()))
    note = "instructions and outcomes of tools were not recorded"
    said = cc("verify", "--db", db)
    assert said.code == 0 and "sound" in said.out and f"8 requests of an earlier version: {note}" in said.out
    assert cc("verify", "--db", db, "--json").json["notes"] == [f"8 requests of an earlier version: {note}"]
    assert "not recorded before schema 4" in cc("views", "show", 1, "--db", db).out
