"""A compiler can be named in an agent's YAML file, whose values nobody has checked before."""

from __future__ import annotations

import copy
import pickle
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.test import TestModel

from context_compiler import ContextCompiler, MemoryStore, Recall, build_compiling_history_processor, compile_view
from context_compiler.errors import FidelityError, SettingsError, TemplateError
from context_compiler.tokens import TokenCounter
from tests.support.histories import long_history


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
async def test_an_agent_file_can_name_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capability: str
) -> None:
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


@pytest.mark.parametrize("make", [ContextCompiler, build_compiling_history_processor])
@pytest.mark.parametrize("name", ["nowhere", "../secret", "/etc/passwd"])
def test_an_unknown_template_is_refused_when_given(make: Any, name: str, tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match="there is no template|cannot be the name") as raised:
        make(name, system=tmp_path)
    assert name in str(raised.value) and not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["nobody:some-model", "just-a-name"])
def test_an_unknown_model_is_refused_when_given(name: str) -> None:
    with pytest.raises(SettingsError, match=f"model='{name}': there is no such model"):
        ContextCompiler(model=name)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("antropic:claude", "did you mean anthropic"), ("mistral:small", r'pip install "pydantic-ai-slim\[mistral\]"')],
)
def test_a_model_that_cannot_be_loaded_is_refused_with_what_to_do(name: str, remedy: str) -> None:
    if name.startswith("mistral") and find_spec("mistralai") is not None:
        pytest.skip("the package is installed")
    with pytest.raises(SettingsError, match=remedy):
        ContextCompiler(model=name)


@pytest.mark.parametrize("messages", [[], [ModelResponse(parts=[TextPart("Hello.")])]])
async def test_a_history_without_a_request_is_refused(messages: list[Any]) -> None:
    with pytest.raises(SettingsError, match="messages contains no request: give a list"):
        await compile_view(messages)


async def test_a_model_without_its_key_is_accepted_when_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert ContextCompiler(model="openai:gpt-5").model == "openai:gpt-5"


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda one: pickle.loads(pickle.dumps(one))}


@pytest.mark.parametrize("how", COPIES)
async def test_a_copy_is_a_separate_compiler_with_the_same_arguments(how: str, tmp_path: Path) -> None:
    ours = ContextCompiler(budget=900, model="none", store=tmp_path / "a.db", system=None, counter=TokenCounter(len))
    await Agent(TestModel(), capabilities=[ours]).run("hello")
    other = COPIES[how](ours)
    assert other.last_view is None and (other.budget, other.store) == (900, tmp_path / "a.db")
    await Agent(TestModel(), capabilities=[other]).run("hello again", message_history=long_history(40))
    assert other.last_view is not None and other.last_view.status == "compiled" and other.last_view.tokens <= 900
    assert len(await ours.views()) == 2, "one file"


@pytest.mark.parametrize("how", COPIES)
def test_tools_and_processors_can_be_copied_too(how: str) -> None:
    assert COPIES[how](Recall(tokens=500)).tokens == 500
    assert COPIES[how](build_compiling_history_processor(store=None, system=None)).last_view is None


def test_an_argument_that_cannot_be_pickled_is_named() -> None:
    store = MemoryStore()
    ours = ContextCompiler(store=store, system=None)
    assert copy.deepcopy(ours).store is store
    with pytest.raises(
        pickle.PicklingError, match=r"^store=MemoryStore\(\) cannot be pickled \(.*\): make the compiler"
    ):
        pickle.dumps(ours)
