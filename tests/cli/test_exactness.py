"""`views diff` knows what was sent."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from context_compiler import ContextCompiler
from tests.cli.conftest import Command


def test_a_diff_shows_other_instructions(cc: Command, tmp_path: Path) -> None:
    db = tmp_path / "context.db"
    for said in ("Be a pirate.", "Be a lawyer."):
        compiler = ContextCompiler(store=db, system=None, model="none")
        asyncio.run(Agent(TestModel(), instructions=said, capabilities=[compiler]).run("Hello", conversation_id=said))
    shown = cc("views", "diff", 1, 2, "--db", db).out
    assert "no difference" not in shown and "-    Be a pirate." in shown and "+    Be a lawyer." in shown
