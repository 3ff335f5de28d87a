"""Parts of megabytes: read, counted and ranked off the event loop, for a bounded price, and cut as any other."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart

from context_compiler import Recall, build_compiling_history_processor
from context_compiler.tokens import TokenCounter, pieces
from tests.middleware.faulty import BUDGET, Faulty
from tests.support.agents import Notes, Talker, compiler
from tests.support.growth import cpu
from tests.support.histories import assert_pairs_whole, long_history, user

LONG = 250_000
FACT = "The pass word of the vault is Rhododendron."


def distinct(size: int) -> str:
    """Words of which no two are the same."""
    return " ".join(f"w{number:x}" for number in range(size // 7))


async def lived(where: str, text: str, **wanted: Any) -> Talker:
    """One run that is given a text as its prompt, as the result of a tool, or as an earlier answer."""

    def look() -> str:
        return text

    talker = Talker([[("look", {})], "done"] if where == "result" else "done")
    agent = Agent(talker.model, tools=[look], capabilities=[compiler(budget=BUDGET, **wanted)])
    history: list[ModelMessage] = [user("hello"), ModelResponse(parts=[TextPart(text)])] if where == "history" else []
    await agent.run(text if where == "prompt" else "what is the pass word of the vault?", message_history=history)
    return talker


@pytest.mark.parametrize("where", ["prompt", "result", "history"])
async def test_a_long_text_is_read_off_the_event_loop(where: str) -> None:
    threads: dict[int, int] = {}

    def count(text: str) -> int:
        here = threading.get_ident()
        threads[here] = max(threads.get(here, 0), len(text))
        return len(text) // 4

    talker = await lived(where, f"{FACT} {distinct(LONG)}", counter=count)
    assert_pairs_whole(talker.last.messages)
    assert threads.pop(threading.get_ident(), 0) < LONG // 4
    assert max(threads.values()) > LONG // 2


class Unloaded(TokenCounter):
    """A counter with nothing loaded yet, which notes the threads that load it."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[int] = []

    @property
    def is_ready(self) -> bool:
        return bool(self.threads)

    def load(self) -> None:
        self.threads.append(threading.get_ident())

    def text(self, text: str) -> int:
        assert self.threads, "counted before it was loaded"
        return super().text(text)


@pytest.mark.parametrize("way", ["capability", "processor"])
async def test_the_encoding_is_loaded_once_and_off_the_event_loop(way: str) -> None:
    counter, talker = Unloaded(), Talker("done")
    if way == "processor":
        compile_history = build_compiling_history_processor(budget=BUDGET, counter=counter, store=None, model="none")
        agent = Agent(talker.model, instructions="Be brief.", capabilities=[ProcessHistory(compile_history)])
    else:
        agent = Agent(talker.model, instructions="Be brief.", capabilities=[compiler(budget=BUDGET, counter=counter)])
    for _ in range(2):
        await agent.run("hello")
    assert len(counter.threads) == 1 and counter.threads[0] != threading.get_ident()


async def test_beyond_a_size_a_part_costs_hardly_more() -> None:
    def work(size: int) -> float:
        text = f"{FACT} {distinct(size)} {FACT}"
        return cpu(lambda: threading_run(lived("result", text)))

    work(1_000)
    few, many = work(LONG), work(5 * LONG)
    assert many < max(1.0, 3 * few), (few, many)


def threading_run(work: Any) -> None:
    """Run a coroutine to its end beside the loop of the test."""
    thread = threading.Thread(target=asyncio.run, args=(work,))
    thread.start()
    thread.join()


async def test_the_beginning_of_a_long_part_is_found_by_recall() -> None:
    text = f"{FACT}\n" + "what nobody asks for is said here again and again.\n" * 40_000
    talker = Talker("done")
    agent = Agent(talker.model, capabilities=[compiler(budget=BUDGET), Recall()])
    history = [user("hello"), ModelResponse(parts=[TextPart(text)]), *long_history(12)[:-1]]
    await agent.run("What is the pass word of the vault?", message_history=history)
    assert "Rhododendron" in talker.last.text and talker.last.tokens <= BUDGET


async def test_off_the_loop_a_model_writes_the_summary_in_the_loop_of_the_run() -> None:
    loops: list[Any] = []

    def answer(number: int) -> str:
        loops.append(asyncio.get_running_loop())
        return "- what was found"

    faulty = Faulty(Notes(answer))
    await faulty.ask(message_history=long_history(140, tools_per_turn=0, words=150))
    assert faulty.statuses == ["compiled"] and not faulty.errors
    assert loops and set(loops) == {asyncio.get_running_loop()}


async def test_off_the_loop_a_compile_leaves_the_threads_of_the_loop_free() -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    notes = Notes()
    notes.hold()
    faulty = Faulty(notes)
    task = asyncio.create_task(faulty.ask(message_history=long_history(140, tools_per_turn=0, words=150)))
    while not notes.prompts:
        await asyncio.sleep(0.01)
    async with asyncio.timeout(10):
        assert await asyncio.to_thread(threading.get_ident) != threading.get_ident()
    notes.release()
    await task
    assert faulty.statuses == ["compiled"] and not faulty.errors


async def test_a_long_history_that_is_only_recorded_is_read_beside_the_threads_of_the_loop() -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1, thread_name_prefix="loop"))
    threads = set[str]()

    def count(text: str) -> int:
        threads.add(threading.current_thread().name)
        return len(text) // 4

    ours = compiler(counter=count).recorder()
    history = long_history(140, tools_per_turn=0, words=150)
    await Agent(Talker("done").model, capabilities=[ours]).run("and now?", message_history=history)
    assert len(await ours.views()) == 1 and threads
    assert not [name for name in threads if name.startswith("loop")]


def test_a_loop_ends_before_the_thread_of_a_cancelled_run_that_still_counts() -> None:
    began, ends = threading.Event(), threading.Event()

    def count(text: str) -> int:
        if threading.current_thread() is not threading.main_thread():
            began.set()
            ends.wait(60)
        return len(text) // 4

    async def cancelled() -> None:
        faulty = Faulty(Notes(), counter=count)
        task = asyncio.create_task(faulty.ask(message_history=long_history(140, tools_per_turn=0, words=150)))
        while not began.is_set():
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait({task})

    latest = threading.Timer(5, ends.set)
    latest.start()
    asyncio.run(cancelled())
    latest.cancel()
    assert not ends.is_set()
    ends.set()
    for thread in threading.enumerate():
        if thread.name.startswith("context-compiler-long"):
            thread.join(60)
            assert not thread.is_alive()


@pytest.mark.parametrize("error", [NotImplementedError, RuntimeError])
async def test_a_long_history_is_compiled_on_the_loop_if_no_thread_can_be_started(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*work: Any) -> Any:
        raise error("no threads")

    faulty = Faulty(Notes())
    await faulty.ask("hello", message_history=[])
    monkeypatch.setattr(asyncio.get_running_loop(), "run_in_executor", fail)
    await faulty.ask(message_history=long_history(140, tools_per_turn=0, words=150))
    assert faulty.statuses[-1] == "compiled" and not faulty.errors


async def test_off_the_loop_a_failure_fails_no_run() -> None:
    faulty = Faulty(Notes(ModelHTTPError(500, "notes")))
    await faulty.ask(message_history=long_history(140, tools_per_turn=0, words=150))
    assert faulty.statuses == ["fallback"] and faulty.kinds == ["CompileError"]
    assert faulty.talker.last.tokens <= BUDGET


async def test_off_the_loop_control_flow_exceptions_of_an_engine_are_raised() -> None:
    stop = type("Stopped", (Exception,), {"__module__": "dbos._error"})
    faulty = Faulty(Notes(stop("until later")))
    with pytest.raises(stop):
        await faulty.ask(message_history=long_history(140, tools_per_turn=0, words=150))


async def test_off_the_loop_a_run_can_be_cancelled() -> None:
    notes = Notes(seconds=30)
    faulty = Faulty(notes)
    task = asyncio.create_task(faulty.ask(message_history=long_history(140, tools_per_turn=0, words=150)))
    while not notes.prompts:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    while not notes.cancelled:
        await asyncio.sleep(0.01)
    assert not faulty.errors


@pytest.mark.parametrize("unit", ["word ", "x", "one line\n", "漢字、"])
def test_a_text_above_any_window_is_estimated_from_pieces_of_it(unit: str) -> None:
    text = unit * (2_500_000 // len(unit))
    counter = TokenCounter()
    exact = sum(map(counter.text, pieces(text)))
    assert abs(counter.text(text) - exact) <= exact // 100
