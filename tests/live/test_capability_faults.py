"""Whatever fails, the conversation goes on; what was sent instead is on the record, in the log, told to `on_error`."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError, UnexpectedModelBehavior, UsageLimitExceeded
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.usage import UsageLimits

from context_compiler import MemoryStore, SQLiteStore, View
from context_compiler.errors import CompileError, StoreError, TemplateError
from tests.support.agents import NOTES, WAYS, Notes, Talker, compiler, run
from tests.support.histories import answer, assert_pairs_whole, call, exchange, long_history, prose, user
from tests.support.parts import FuturePart

BUDGET = 3_000
ROOT = Path(__file__).parents[2]


def look(path: str) -> str:
    return prose(len(path), 30)


class Faulty:
    """One agent, a long history, and everything that was heard of failures."""

    def __init__(self, notes: Notes | None = None, script: Any = "done", **wanted: Any) -> None:
        self.errors: list[Exception] = []
        self.views: list[View] = []
        self.talker = Talker(script)
        given = {"budget": BUDGET, "on_error": self.errors.append, "on_view": self.views.append}
        self.ours = compiler(notes, **{**given, **wanted})
        self.agent = Agent(self.talker.model, tools=[look], capabilities=[self.ours])
        self.history = long_history(40)

    async def ask(self, prompt: str = "and now?", **given: Any) -> Any:
        given = {"message_history": self.history, **given}
        self.done = await run(self.agent, prompt, **given)
        return self.done

    @property
    def kinds(self) -> list[str]:
        return [type(error).__name__ for error in self.errors]

    @property
    def statuses(self) -> list[str]:
        return [view.status for view in self.views]


async def leftovers() -> set[asyncio.Task[Any]]:
    """Tasks that are still there once everything had a chance to end."""
    await asyncio.sleep(0.01)
    return asyncio.all_tasks() - {asyncio.current_task()}  # pyright: ignore


FAILURES: dict[str, Callable[[], Notes]] = {
    "an error of the model": lambda: Notes(UnexpectedModelBehavior("no")),
    "an error of the provider": lambda: Notes(ModelHTTPError(500, "notes", body="down")),
    "any other error": lambda: Notes(ValueError("bug")),
    "a timeout": lambda: Notes(seconds=30),
    "a cancellation of its own": lambda: Notes(asyncio.CancelledError()),  # pyright: ignore
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", FAILURES)
async def test_a_compiler_that_fails_costs_no_run(case: str, way: str) -> None:
    faulty = Faulty(FAILURES[case](), timeout=0.05)
    done = await WAYS[way](faulty.agent, "and now?", message_history=faulty.history)
    assert done.output == "done"
    assert faulty.kinds == ["CompileError"] and faulty.statuses == ["fallback"]
    assert faulty.talker.last.tokens <= BUDGET
    assert_pairs_whole(faulty.talker.last.messages)
    record = (await faulty.ours.views())[0]
    assert record.error is not None and "sent: a view without a model" in record.error
    assert record.compile is not None and record.compile.status.startswith("failed") and record.compile.compiled_prompt
    assert not await leftovers()


async def test_without_a_budget_raw_history_is_better_than_a_view_without_notes() -> None:
    faulty = Faulty(Notes(ValueError("bug")), budget=None)
    faulty.history = long_history(90)
    await faulty.ask()
    assert faulty.statuses == ["fallback"] and len(faulty.talker.last.messages) >= len(faulty.history)
    record = (await faulty.ours.views())[0]
    assert record.error is not None and record.error.endswith("sent: raw history")


async def test_a_known_window_limits_what_goes_out_when_we_fail() -> None:
    faulty = Faulty(Notes(ValueError("bug")), budget=None, window=6_000)
    await faulty.ask()
    assert faulty.talker.last.tokens <= 4_500
    record = (await faulty.ours.views())[0]
    assert record.error is not None and record.error.endswith("sent: a view without a model")


async def test_with_a_cycle_the_last_good_view_goes_out_when_the_next_fails() -> None:
    said = iter([NOTES])
    notes = Notes(lambda number: next(said))
    faulty = Faulty(notes, lambda messages, info: prose(len(messages), 60), trigger=1_500)
    await faulty.ask()
    assert faulty.statuses == ["compiled"]
    number = 0
    while "fallback" not in faulty.statuses:
        number += 1
        await faulty.ask(f"Question {number}: {prose(number, 60)}", message_history=faulty.done.messages)
        assert number < 40
    assert faulty.kinds == ["CompileError"]
    record = (await faulty.ours.views())[0]
    assert record.error is not None and record.error.endswith("sent: the last good view")
    assert "find out why the build fails" in faulty.talker.last.text
    assert faulty.talker.last.tokens <= BUDGET


async def test_after_a_failure_the_turn_goes_on_without_a_model_and_with_stable_bytes() -> None:
    notes = Notes(ValueError("bug"))
    steps = iter([[("look", {"path": "a"})]] * 3)
    faulty = Faulty(notes, lambda messages, info: next(steps, "done"))
    await faulty.ask()
    assert notes.asked == 1 and faulty.statuses == ["fallback", "cycle", "cycle", "cycle"]
    sent = [sent.messages for sent in faulty.talker.sent]
    assert all(later[: len(earlier)] == earlier for earlier, later in zip(sent, sent[1:], strict=False))


@pytest.mark.parametrize("said", ["", "  \n\t ", "quite a lot " * 20_000])
async def test_an_answer_that_says_nothing_or_saves_nothing_is_refused(said: str) -> None:
    notes = Notes(said)
    steps = iter([[("look", {"path": "a"})]] * 2)
    faulty = Faulty(notes, lambda messages, info: next(steps, "done"))
    await faulty.ask()
    assert not faulty.errors and faulty.statuses == ["compiled", "cycle", "cycle"]
    assert notes.asked == 1, "remembered for the turn"
    compile = (await faulty.ours.views())[-1].compile
    assert compile is not None and compile.status.startswith("refused") and compile.error
    assert compile.raw_output == said.strip() and compile.compiled_prompt
    assert faulty.talker.sent[0].tokens <= BUDGET and "quite a lot" not in faulty.talker.last.text


async def test_a_compiler_that_keeps_failing_is_left_alone() -> None:
    notes = Notes(ValueError("bug"))
    faulty = Faulty(notes)
    for number in range(6):
        await faulty.ask(
            message_history=[user(f"beginning {number}"), ModelResponse(parts=[TextPart("yes")]), *faulty.history]
        )
    assert notes.asked == 3
    assert faulty.kinds == ["CompileError"] * 6
    assert "left alone" in str(faulty.errors[-1])


@pytest.mark.parametrize("when", [0.02, 0.1])
async def test_a_run_that_is_cancelled_is_cancelled_and_leaves_nothing_behind(when: float, tmp_path: Path) -> None:
    notes = Notes(seconds=30)
    faulty = Faulty(notes, store=tmp_path / "record.db")
    task = asyncio.create_task(faulty.ask())
    while not notes.prompts:
        await asyncio.sleep(0.01)
    await asyncio.sleep(when)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert notes.cancelled == 1 and not faulty.errors
    assert not await leftovers()


async def test_a_run_that_is_cancelled_leaves_another_that_waits_for_the_same() -> None:
    notes = Notes(seconds=0.2)
    faulty = Faulty(notes)
    first, second = (asyncio.create_task(run(faulty.agent, f"{n}", message_history=faulty.history)) for n in range(2))
    while not notes.prompts:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.02)
    first.cancel()
    assert (await second).output == "done"
    with pytest.raises(asyncio.CancelledError):
        await first
    assert (notes.asked, notes.cancelled) == (1, 0) and faulty.statuses == ["compiled"]
    assert not await leftovers()


async def test_a_timeout_of_the_caller_passes_through() -> None:
    faulty = Faulty(Notes(seconds=30))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await faulty.ask()
    assert not await leftovers()


@pytest.mark.parametrize("text", ["{{ 1 // 0 }}", "{% for i in range(10**9) %}x{% endfor %}"])
async def test_a_template_that_trips_costs_no_run(tmp_path: Path, text: str) -> None:
    file = tmp_path / "ContextTemplates" / "mine.md"
    file.parent.mkdir()
    file.write_text(text)
    faulty = Faulty(Notes(), template="mine", system=tmp_path)
    await faulty.ask()
    assert faulty.statuses == ["fallback"] and isinstance(faulty.errors[0], TemplateError)
    assert faulty.talker.last.tokens <= BUDGET


@pytest.mark.parametrize("name", ["nowhere", "../secret", "/etc/passwd"])
async def test_a_template_that_is_not_there_costs_no_run(name: str) -> None:
    faulty = Faulty(Notes(), template=name)
    await faulty.ask()
    assert faulty.kinds == ["TemplateError"] and faulty.statuses == ["fallback"]
    assert faulty.talker.last.tokens <= BUDGET


class Broken:
    """A store whose every method raises."""

    def __getattr__(self, name: str) -> Any:
        def fail(*args: Any, **given: Any) -> Any:
            raise ZeroDivisionError(name)

        return fail


for (
    method
) in "save archive find_compile find_cycle close chain view views summaries sessions transcript delete".split():
    setattr(Broken, method, lambda self, *args, **given: self.__getattr__("work")())
for method in ("prune", "verify", "export"):
    setattr(Broken, method, lambda self, *args, **given: self.__getattr__("work")())


def locked(folder: Path) -> tuple[Any, Callable[[], None]]:
    """A file that another connection is writing to for good."""
    file = folder / "record.db"
    asyncio.run(SQLiteStore(file).verify())
    other = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    return file, other.close


async def test_a_store_whose_every_method_raises_costs_no_run() -> None:
    faulty = Faulty(Notes(), store=Broken())
    for _ in range(4):
        await faulty.ask()
    assert faulty.done.output == "done" and faulty.talker.last.tokens <= BUDGET
    assert set(faulty.kinds) == {"ZeroDivisionError"} and len(faulty.errors) == 3, "then it is left alone"
    assert faulty.statuses == ["compiled"] + ["cycle"] * 3, "what is in memory goes on"
    with pytest.raises(ZeroDivisionError):
        await faulty.ours.views()


async def test_a_store_that_is_locked_costs_no_run(tmp_path: Path) -> None:
    file, release = await asyncio.to_thread(locked, tmp_path)
    faulty = Faulty(Notes(), store=file)
    try:
        await asyncio.wait_for(faulty.ask(), 10)
    finally:
        release()
    assert faulty.done.output == "done" and set(faulty.kinds) == {"StoreError"}
    await faulty.ask()
    assert len(await faulty.ours.views()) == 1


def corrupt(folder: Path) -> Path:
    file = folder / "record.db"
    file.write_bytes(b"this is no database " * 500)
    return file


def a_folder(folder: Path) -> Path:
    (folder / "record.db").mkdir()
    return folder / "record.db"


def below_a_file(folder: Path) -> Path:
    (folder / "file").write_text("")
    return folder / "file" / "record.db"


@pytest.mark.parametrize("make", [corrupt, a_folder, below_a_file])
async def test_a_store_that_cannot_be_opened_costs_no_run(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    faulty = Faulty(Notes(), store=make(tmp_path))
    await faulty.ask()
    assert faulty.done.output == "done" and set(faulty.kinds) == {"StoreError"}
    assert faulty.statuses == ["compiled"]
    with pytest.raises(StoreError):
        await faulty.ours.views()


async def test_a_file_that_may_only_be_read_costs_no_run(tmp_path: Path) -> None:
    file = tmp_path / "record.db"
    await Faulty(Notes(), store=file).ask()
    faulty = Faulty(Notes(), store=SQLiteStore(file, read_only=True))
    await faulty.ask("another question")
    assert faulty.done.output == "done" and set(faulty.kinds) == {"StoreError"}
    assert faulty.statuses == ["cycle"], "what is there can be read"


async def test_a_file_that_is_deleted_while_it_is_open_costs_no_run(tmp_path: Path) -> None:
    file = tmp_path / "record.db"

    def gone(messages: Any, info: Any) -> Any:
        for path in tmp_path.iterdir():
            path.unlink()
        return [("look", {"path": "a"})] if len(faulty.talker.sent) < 3 else "done"

    faulty = Faulty(Notes(), gone, store=file)
    await faulty.ask()
    assert faulty.done.output == "done" and not faulty.errors
    record = faulty.views[0].record
    assert record is not None and len(await faulty.ours.transcript(record.session_id)) == len(faulty.done.messages)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
async def test_a_full_disk_costs_no_run(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "record.db")
    await store.verify()

    class Full(SQLiteStore):
        async def save(self, entry: Any) -> Any:
            raise StoreError(f"{self.path}: the disk is full")

    faulty = Faulty(Notes(), store=Full(tmp_path / "record.db"))
    await faulty.ask()
    assert faulty.done.output == "done" and set(faulty.kinds) == {"StoreError"}


async def test_a_counter_that_raises_is_replaced() -> None:
    def count(text: str) -> int:
        raise ValueError("no")

    faulty = Faulty(Notes(), counter=count)
    await faulty.ask()
    assert faulty.statuses == ["compiled"] and faulty.talker.last.tokens <= BUDGET


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_callbacks_that_raise_cost_no_run(asynchronous: bool) -> None:
    def fail(what: Any) -> Any:
        raise ValueError("in a callback")

    async def later(what: Any) -> Any:
        raise ValueError("in a callback")

    callback = later if asynchronous else fail
    faulty = Faulty(Notes(ValueError("bug")), on_view=callback, on_error=callback)
    await faulty.ask()
    assert faulty.done.output == "done" and faulty.talker.last.tokens <= BUDGET


async def test_an_error_can_be_told_to_a_coroutine() -> None:
    heard: list[Exception] = []

    async def later(error: Exception) -> None:
        await asyncio.sleep(0)
        heard.append(error)

    faulty = Faulty(Notes(ValueError("bug")), on_error=later)
    await faulty.ask()
    assert [type(error) for error in heard] == [CompileError]


WEIRD: dict[str, list[ModelMessage]] = {
    "an empty request": [user("hello"), ModelResponse(parts=[TextPart("hi")]), ModelRequest(parts=[])],
    "an empty response": [user("hello"), ModelResponse(parts=[])],
    "a response first": [ModelResponse(parts=[TextPart("hi")]), user("hello"), ModelResponse(parts=[TextPart("ho")])],
    "an empty prompt": [user("hello"), ModelResponse(parts=[TextPart("hi")]), ModelRequest(parts=[UserPromptPart("")])],
    "a surrogate": [user("half of a pair: \ud83d"), ModelResponse(parts=[TextPart("hi")])],
    "large parts": [user("x" * 200_000), ModelResponse(parts=[TextPart("y" * 200_000)])],
    "nothing": [],
}


@pytest.mark.parametrize("case", WEIRD)
async def test_odd_histories_cost_no_run(case: str) -> None:
    history = WEIRD[case]
    faulty = Faulty(Notes())
    await faulty.ask(message_history=history)
    assert faulty.done.output == "done" and faulty.talker.last.tokens <= BUDGET
    assert not faulty.errors
    await faulty.ask(message_history=[*history, *long_history(40)])
    assert faulty.talker.last.tokens <= BUDGET


def endless() -> list[ModelMessage]:
    """A history that cannot be read: what a tool returned holds itself."""
    loop: dict[str, Any] = {}
    loop["again"] = loop
    asked = ModelResponse(parts=[call("look", "endless", path="a")])
    return [user("begin"), asked, user(answer("endless", loop)), *long_history(40)[1:]]


async def test_a_history_that_cannot_be_read_is_cut_to_the_last_exchange() -> None:
    faulty = Faulty(Notes(), [[("look", {"path": "a"}), ("look", {"path": "b"})], "done"])
    await faulty.ask("what now? " * 2_000, message_history=endless())
    assert faulty.done.output == "done" and faulty.statuses == ["fallback", "fallback"]
    assert max(sent.tokens for sent in faulty.talker.sent) <= BUDGET
    for sent in faulty.talker.sent:
        assert_pairs_whole(sent.messages)
        assert "what now?" in sent.text
    record = (await faulty.ours.views())[0]
    assert record.raw_tip is None and "raw_tip" in record.status
    assert record.error is not None and record.error.endswith("sent: the last exchange")


async def test_a_wrong_setting_in_the_environment_is_told_and_left_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTEXT_COMPILER_RECENT_TURNS", "several")
    faulty = Faulty(Notes())
    await faulty.ask()
    await faulty.ask()
    assert faulty.kinds == ["SettingsError"] and faulty.statuses == ["compiled", "cycle"]


async def test_a_system_folder_that_cannot_be_made_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    faulty = Faulty(Notes(), system=tmp_path / "file")
    await faulty.ask()
    await faulty.ask()
    assert faulty.kinds == ["TemplateError"] and faulty.statuses == ["compiled", "cycle"]


async def test_what_stops_a_durable_run_passes_through() -> None:
    stop = type("Stopped", (Exception,), {"__module__": "dbos._error"})
    faulty = Faulty(Notes(stop("until later")))
    with pytest.raises(stop):
        await faulty.ask()


async def test_parts_that_nobody_knows_fail_as_without_us() -> None:
    odd = ModelRequest(parts=[UserPromptPart("hello"), FuturePart("what is this?")])  # pyright: ignore
    history: list[ModelMessage] = [odd, ModelResponse(parts=[TextPart("hi")])]

    async def outcome(*capabilities: Any) -> str:
        talker = Talker("done")
        agent = Agent(talker.model, capabilities=list(capabilities))
        try:
            return (await run(agent, "go", message_history=history)).output
        except Exception as error:
            return type(error).__name__

    assert await outcome(compiler(Notes(), budget=BUDGET)) == await outcome()


@pytest.mark.parametrize(
    "limits",
    [
        UsageLimits(request_limit=1),
        UsageLimits(total_tokens_limit=6_000),
        UsageLimits(input_tokens_limit=6_000),
        UsageLimits(output_tokens_limit=30),
    ],
    ids=["requests", "tokens", "input", "output"],
)
async def test_a_run_that_passes_its_limits_without_us_passes_with_us(limits: UsageLimits) -> None:
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


async def test_a_limit_that_a_run_passes_without_us_stops_it_with_us_too() -> None:
    faulty = Faulty(Notes(), [[("look", {"path": "a"})], "done"])
    with pytest.raises(UsageLimitExceeded):
        await faulty.ask(usage_limits=UsageLimits(request_limit=1))


async def test_the_log_names_what_failed_and_repeats_nothing_of_what_was_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    def repeats(number: int) -> str:
        raise ValueError(f"could not digest {notes.prompts[-1]}")

    notes = Notes(repeats)
    faulty = Faulty(notes)
    await faulty.ask("my password is hunter2")
    logged = "\n".join(record.getMessage() for record in caplog.records if "context_compiler" in record.name)
    assert "CompileError" in logged and "hunter2" not in logged and "Question 1" not in logged


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


@pytest.mark.parametrize("case", [pytest.param(case, marks=pytest.mark.slow) for case in SCRIPTS])
def test_a_script_that_is_done_ends_and_says_nothing(case: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPTS[case]],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
    assert not done.stderr, done.stderr
    assert (tmp_path / "system" / "context.db").is_file()


async def test_memory_holds_no_run_that_is_over() -> None:
    store = MemoryStore()
    faulty = Faulty(Notes(), store=store)
    await faulty.ask(message_history=[*exchange(1), user("x")])
    assert faulty.ours._run.raw is None  # pyright: ignore
