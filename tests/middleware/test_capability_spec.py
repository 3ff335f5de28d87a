"""A compiler can be named in an agent's YAML file, whose values nobody has checked before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from context_compiler import ContextCompiler
from context_compiler.errors import FidelityError, SettingsError


def agent_from(tmp_path: Path, capability: str) -> Agent[Any, Any]:
    file = tmp_path / "agent.yaml"
    file.write_text(f"model: test\ncapabilities:\n{capability}")
    return Agent.from_file(file, custom_capability_types=[ContextCompiler])


@pytest.mark.parametrize(
    "capability",
    [
        "  - ContextCompiler\n",
        "  - ContextCompiler: chat_compiler\n",
        "  - ContextCompiler: {template: goal_oriented, budget: 4000, model: none, store: null, system: null}\n",
    ],
    ids=["bare", "one argument", "all by name"],
)
async def test_an_agent_file_may_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capability: str) -> None:
    monkeypatch.chdir(tmp_path)
    agent = agent_from(tmp_path, capability)
    result = await agent.run("hello", model=TestModel())
    assert result.output


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"budget": "many"}, SettingsError),
        ({"budget": True}, SettingsError),
        ({"budget": 0}, SettingsError),
        ({"budget": 10**20}, SettingsError),
        ({"trigger": 1.5}, SettingsError),
        ({"recent_turns": -1}, SettingsError),
        ({"tool_history": "some"}, SettingsError),
        ({"inject": "assistant"}, SettingsError),
        ({"record": "partly"}, SettingsError),
        ({"timeout": 0}, SettingsError),
        ({"on_error": "print"}, SettingsError),
        ({"fidelity": "summary:huge"}, FidelityError),
        ({"defer_loading": True}, SettingsError),
    ],
)
def test_a_wrong_value_is_refused_at_once(given: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error) as raised:
        ContextCompiler(**given)
    assert next(iter(given)) in str(raised.value) or "fidelity" in str(raised.value)
