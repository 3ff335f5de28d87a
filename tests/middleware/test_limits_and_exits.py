"""What a compile costs counts in the run's limits, and nothing of ours keeps a script from ending."""

from __future__ import annotations

import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError, UsageLimitExceeded
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.usage import RequestUsage, UsageLimits

from context_compiler import MemoryStore
from tests.middleware.faulty import Faulty
from tests.support.agents import Notes, Talker
from tests.support.histories import exchange, long_history, user

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "limits",
    [
        UsageLimits(request_limit=1),
        UsageLimits(total_tokens_limit=6_000),
        UsageLimits(input_tokens_limit=6_000),
        UsageLimits(output_tokens_limit=100),
    ],
    ids=["requests", "tokens", "input", "output"],
)
async def test_a_run_that_keeps_its_limits_without_the_compiler_also_keeps_them_with_it(limits: UsageLimits) -> None:
    notes = Notes()
    faulty = Faulty(notes)
    await faulty.ask(usage_limits=limits)
    assert faulty.done.output == "done" and faulty.done.requests == 1 and not faulty.errors
    assert notes.asked == (1 if limits.request_limit == 1 else 0)
    if not notes.asked:
        compile = (await faulty.ours.views())[0].compile
        assert compile is not None and "usage limits" in (compile.error or "")


async def test_the_tokens_of_a_compile_count_and_its_requests_do_not() -> None:
    faulty = Faulty(Notes())
    faulty.talker = Talker("done", usage=50)
    agent = Agent(faulty.talker.model, capabilities=[faulty.ours])
    result = await agent.run("and now?", message_history=faulty.history)
    assert result.usage.requests == 1
    assert (result.usage.input_tokens, result.usage.output_tokens) == (50 + 100, 1 + 20)
    again = await agent.run("and again?", message_history=result.all_messages())
    assert (again.usage.input_tokens, again.usage.output_tokens) == (50, 1)


async def test_a_prompt_that_was_paid_is_charged_even_if_the_next_one_of_its_compile_fails() -> None:
    def said(number: int) -> str:
        if number > 1:
            raise ModelHTTPError(529, "notes")
        return "- **Goal**: so far, so good."

    faulty = Faulty(notes := Notes(said), budget=30_000)
    agent = Agent(Talker("done", usage=50).model, capabilities=[faulty.ours])
    result = await agent.run("and now?", message_history=long_history(200))
    assert notes.asked == 2 and result.usage.requests == 1
    assert (result.usage.input_tokens, result.usage.output_tokens) == (50 + 100, 1 + 20)
    compile = (await faulty.ours.views())[0].compile
    assert compile is not None and compile.status.startswith("ok")
    assert compile.usage == {"input_tokens": 100, "output_tokens": 20, "requests": 1}


async def test_a_prompt_that_was_paid_is_charged_and_on_the_record_even_if_its_compile_fails() -> None:
    def said(number: int) -> str:
        if number != 2:
            raise ModelHTTPError(400 if number == 1 else 529, "notes", body={"code": "context_length_exceeded"})
        return "- **Goal**: so far, so good."

    faulty = Faulty(notes := Notes(said))
    faulty.talker = Talker("done", usage=50)
    agent = Agent(faulty.talker.model, capabilities=[faulty.ours])
    result = await agent.run("and now?", message_history=faulty.history)
    assert notes.asked == 3 and result.output == "done"
    assert (result.usage.input_tokens, result.usage.output_tokens) == (50 + 100, 1 + 20)
    compile = (await faulty.ours.views())[0].compile
    assert compile is not None and compile.status.startswith("failed")
    assert compile.usage == {"input_tokens": 100, "output_tokens": 20, "requests": 1}


@pytest.mark.parametrize(("limit", "asked"), [("0.02", 0), ("2", 1)])
async def test_a_compile_that_could_pass_the_cost_limit_of_a_run_is_not_made(limit: str, asked: int) -> None:
    notes = Notes()
    notes.model = FunctionModel(notes.answer, model_name="gpt-4o")
    paid = ModelResponse(parts=[TextPart("done")], usage=RequestUsage(input_tokens=50, cost=Decimal("0.001")))
    faulty = Faulty(notes, paid)
    result = await faulty.agent.run(
        "and now?", message_history=faulty.history, usage_limits=UsageLimits(cost_limit=Decimal(limit))
    )
    assert result.output == "done" and notes.asked == asked and not faulty.errors
    compile = (await faulty.ours.views())[0].compile
    assert compile is not None and (
        compile.status.startswith("ok") if asked else "usage limits" in (compile.error or "")
    )


async def test_a_limit_that_stops_a_run_without_the_compiler_also_stops_it_with_it() -> None:
    faulty = Faulty(Notes(), [[("look", {"path": "a"})], "done"])
    with pytest.raises(UsageLimitExceeded):
        await faulty.ask(usage_limits=UsageLimits(request_limit=1))


SCRIPTS = {
    "run_sync": """
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel
from context_compiler import ContextCompiler
agent = Agent(TestModel(), capabilities=[ContextCompiler()])
print(agent.run_sync("hello").output)
print(agent.run_sync("hello again").output)
""",
    "asyncio.run": """
import asyncio
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel
from context_compiler import ContextCompiler
compiler = ContextCompiler()
agent = Agent(TestModel(), capabilities=[compiler])
async def main():
    print((await agent.run("hello")).output)
    async with agent.run_stream("hello again") as stream:
        print(await stream.get_output())
    assert len(await compiler.views()) == 2
asyncio.run(main())
""",
    "a loop that goes on": """
import asyncio
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel
from context_compiler import ContextCompiler
loop = asyncio.new_event_loop()
agent = Agent(TestModel(), capabilities=[ContextCompiler()])
print(loop.run_until_complete(agent.run("hello")).output)
print(loop.run_until_complete(agent.run("hello again")).output)
loop.run_until_complete(loop.shutdown_asyncgens())
loop.close()
""",
    "an error": """
import asyncio
from pydantic_ai import Agent
from pydantic_ai.models.function import FunctionModel
from context_compiler import ContextCompiler
def fail(messages, info): raise ValueError("no")
agent = Agent(FunctionModel(fail), capabilities=[ContextCompiler()])
for _ in range(2):
    try:
        asyncio.run(agent.run("hello"))
    except ValueError:
        print("failed")
""",
}


STARTER = """
import os, sys
from pathlib import Path
from pydantic_ai import Agent
from pydantic_ai.models import function, test
from context_compiler import ContextCompiler, TokenCounter
Agent(test.TestModel(), capabilities=[ContextCompiler(store=None)])
TokenCounter().text("the encoding")
for folder in map(Path, sys.argv[1:]):
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        for number, name in ((1, "output"), (2, "errors")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), number)
        exec(Path("script.py").read_text(), {"__name__": "__main__"})
        break
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    (folder / "code").write_text(str(code))
"""
"""Runs the script of each folder in a child of its own, which ends as Python does. Imports take it once."""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes do not fork")
def test_finished_scripts_exit_without_output(tmp_path: Path) -> None:
    folders = {case: tmp_path / case for case in SCRIPTS}
    for case, folder in folders.items():
        folder.mkdir()
        (folder / "script.py").write_text(SCRIPTS[case])
    subprocess.run(
        [sys.executable, "-W", "error", "-c", STARTER, *folders.values()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=300,
        check=True,
    )
    for case, folder in folders.items():
        errors = (folder / "errors").read_text()
        assert (folder / "code").read_text() == "0", (case, errors)
        assert len((folder / "output").read_text().splitlines()) == 2, case
        assert not errors, (case, errors)
        assert (folder / "system" / "context.db").is_file(), case


async def test_memory_keeps_no_finished_run() -> None:
    store = MemoryStore()
    faulty = Faulty(Notes(), store=store)
    await faulty.ask(message_history=[*exchange(1), user("x")])
    assert faulty.ours._run.raw is None  # pyright: ignore
