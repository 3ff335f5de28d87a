"""One compiler serves many runs at once, in one loop or several, and one file serves many compilers."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel

from context_compiler import SQLiteStore
from context_compiler.middleware import single_flight
from context_compiler.record import files
from context_compiler.record.store import open_place
from tests.support.agents import Notes, Talker, compiler, run, unstamped
from tests.support.histories import long_history, prose, user
from tests.support.warm import python

BUDGET = 3_000
ROOT = Path(__file__).parents[2]


async def slow(path: str) -> str:
    await asyncio.sleep(0.005)
    return prose(len(path), 30)


def past(number: int) -> list[Any]:
    return [user(f"this is conversation {number}"), *long_history(20)[1:]]


def talking(steps: int) -> Talker:
    left = [steps]

    def answer(messages: Any, info: Any) -> Any:
        left[0] -= 1
        return [("slow", {"path": "a"})] if left[0] >= 0 else "done"

    return Talker(answer)


async def test_concurrent_runs_of_different_conversations_are_separate(tmp_path: Path) -> None:
    def goal(number: int) -> str:
        return f"- **Goal**: {notes.prompts[number - 1].partition('this is conversation ')[2][:1]}"

    notes = Notes(goal, seconds=0.01)
    ours = compiler(notes, budget=BUDGET, store=tmp_path / "record.db")
    talkers = [talking(3) for _ in range(8)]

    async def one(number: int) -> Any:
        agent = Agent(talkers[number].model, tools=[slow], capabilities=[ours])
        return await run(agent, f"question {number}", message_history=past(number), conversation_id=f"c{number}")

    done = await asyncio.gather(*map(one, range(8)))
    assert notes.asked == 8
    for number, talker in enumerate(talkers):
        assert {f"question {number}" in sent.text for sent in talker.sent} == {True}
        assert not any(
            f"question {other}" in sent.text for sent in talker.sent for other in range(8) if other != number
        )
        assert f"**Goal**: {number}" in talker.last.text
        assert await ours.transcript(f"c{number}") == done[number].messages
        assert [view.request_index for view in await ours.views(f"c{number}")] == [3, 2, 1, 0]


async def test_a_run_within_a_run_leaves_the_outer_one_its_store_and_its_state(tmp_path: Path) -> None:
    ours = compiler(Notes(), budget=BUDGET, store=tmp_path / "record.db")
    inner = Agent(Talker("from within").model, capabilities=[ours])

    async def ask(ctx: RunContext[None], path: str) -> str:
        return (await inner.run("inner question", message_history=long_history(25), conversation_id="inner")).output

    talker = Talker([[("ask", {"path": "a"})], [("ask", {"path": "b"})], "done"])
    agent = Agent(talker.model, tools=[ask], capabilities=[ours])
    await run(agent, "outer question", message_history=past(1), conversation_id="outer")
    assert [view.status.partition(";")[0] for view in await ours.views("outer")] == ["cycle", "cycle", "compiled"]
    assert [view.status.partition(";")[0] for view in await ours.views("inner")] == ["cycle", "compiled"]


def test_one_compiler_works_in_several_threads_with_their_own_loops(tmp_path: Path) -> None:
    notes = Notes()
    failures: list[BaseException] = []
    ours = compiler(notes, budget=BUDGET, store=tmp_path / "record.db")
    talkers = [talking(2) for _ in range(4)]

    def work(number: int) -> None:
        try:
            agent = Agent(talkers[number].model, tools=[slow], capabilities=[ours])
            for turn in range(3):
                asyncio.run(run(agent, f"question {turn}", message_history=past(number), conversation_id=f"c{number}"))
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not failures and notes.asked == 4
    assert max(sent.tokens for talker in talkers for sent in talker.sent) <= BUDGET

    async def kept() -> list[int]:
        store = SQLiteStore(tmp_path / "record.db")
        try:
            assert await store.verify() == ()
            return [len(await store.views(f"c{number}")) for number in range(4)]
        finally:
            await store.close()

    assert min(asyncio.run(kept())) > 0


async def test_two_compilers_on_one_file_share_what_was_compiled(tmp_path: Path) -> None:
    file = tmp_path / "record.db"
    notes = Notes()
    firsts, seconds = talking(2), talking(2)
    one, two = compiler(notes, budget=BUDGET, store=file), compiler(notes, budget=BUDGET, store=file)
    await run(Agent(firsts.model, tools=[slow], capabilities=[one]), "question", message_history=past(1))
    await run(Agent(seconds.model, tools=[slow], capabilities=[two]), "question", message_history=past(1))
    assert notes.asked == 1
    assert unstamped(firsts.sent[0].messages) == unstamped(seconds.sent[0].messages)
    assert {view.summary_id for view in await one.views()} == {1}


async def test_concurrent_compilers_on_one_file_call_the_model_once_and_store_one_row(tmp_path: Path) -> None:
    file = tmp_path / "record.db"
    notes = Notes(seconds=0.05)
    ours = [compiler(notes, budget=BUDGET, store=file) for _ in range(3)]
    talkers = [talking(1) for _ in ours]
    agents = [
        Agent(talker.model, tools=[slow], capabilities=[capability])
        for talker, capability in zip(talkers, ours, strict=True)
    ]
    await asyncio.gather(*(run(agent, "question", message_history=past(1)) for agent in agents))
    records = await ours[0].views()
    assert notes.asked == 1
    assert len(records) == 6 and {record.summary_id for record in records} == {1}


@pytest.mark.parametrize("first", [1.0, None])
async def test_a_run_that_is_out_of_time_ends_no_call_that_another_run_waits_for(first: float | None) -> None:
    notes = Notes(seconds=3.0)
    agent = Agent(Talker("done").model, capabilities=[compiler(notes, budget=BUDGET)])
    await run(agent, "Hello.")

    async def one(timeout: float | None) -> Any:
        return await run(agent, "and?", message_history=past(1), conversation_id="c", timeout=timeout)

    starting = asyncio.create_task(one(first))
    while not notes.asked:
        await asyncio.sleep(0.01)
    results = await asyncio.gather(starting, one(None if first else 1.0), return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["Ran", "RunTimedOut"]
    assert notes.asked == 1 and not notes.cancelled


async def test_a_host_whose_runs_hand_on_no_deadline_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_flight, "DEADLINE", "gone")
    notes, errors = Notes(), list[Exception]()
    agent = Agent(Talker("done").model, capabilities=[compiler(notes, budget=BUDGET, on_error=errors.append)])
    await run(agent, "and?", message_history=past(1), timeout=60.0)
    assert notes.asked == 1 and not errors


async def test_concurrent_compilers_without_a_common_record_each_call_the_model() -> None:
    notes = Notes(seconds=0.05)
    ours = [compiler(notes, budget=BUDGET) for _ in range(3)]
    agents = [Agent(Talker("done").model, capabilities=[capability]) for capability in ours]
    await asyncio.gather(*(run(agent, "question", message_history=past(1)) for agent in agents))
    assert notes.asked == 3


def in_threads(work: Callable[[int], Any], count: int) -> list[BaseException]:
    failures: list[BaseException] = []

    def one(number: int) -> None:
        try:
            asyncio.run(work(number))
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    return failures


def test_threads_that_want_the_same_compile_all_get_it(tmp_path: Path) -> None:
    notes = Notes(seconds=0.5)
    ours = [compiler(notes, budget=BUDGET, store=tmp_path / "record.db") for _ in range(3)]
    together = threading.Barrier(3)

    async def work(number: int) -> None:
        agent = Agent(Talker("done").model, capabilities=[ours[number]])
        together.wait(300)
        await run(agent, "question", message_history=past(1))
        view = ours[number].last_view
        assert view is not None and view.status.startswith("compiled") and "Goal" in view.summary

    assert in_threads(work, 3) == []
    assert 1 <= notes.asked <= 3


def test_a_thread_that_gives_up_cancels_no_call_of_the_others(tmp_path: Path) -> None:
    notes = Notes(seconds=0.5)
    ours = [compiler(notes, budget=BUDGET, store=tmp_path / "record.db") for _ in range(2)]
    begun = threading.Event()

    async def work(number: int) -> None:
        agent = Agent(Talker("done").model, capabilities=[ours[number]])
        if number == 0:
            task = asyncio.create_task(run(agent, "question", message_history=past(1)))
            while not notes.asked:
                await asyncio.sleep(0.01)
            begun.set()
            await asyncio.sleep(0.2)
            task.cancel()
            await asyncio.wait({task})
            return
        begun.wait(300)
        await run(agent, "question", message_history=past(1))
        assert "Goal" in (ours[1].last_view or pytest.fail("no view")).summary

    assert in_threads(work, 2) == []
    assert (notes.asked, notes.cancelled) == (2, 1)


@pytest.fixture(params=["file", pytest.param("postgres", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A record that processes share."""
    return request.getfixturevalue("postgres_url") if request.param == "postgres" else str(tmp_path / "record.db")


@pytest.mark.parametrize("fails", [False, True])
def test_event_loops_that_share_a_record_wait_for_the_answer_of_the_first(
    place: str, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single_flight, "CLAIM_S", 3_600.0)  # the first blocks its event loop, and renews nothing
    asked, waits = threading.Event(), threading.Event()

    def first(_: int) -> str:
        asked.set()
        assert waits.wait(300)
        if fails:
            raise RuntimeError("no answer")
        return "- **Goal**: survive, says the first"

    def second(_: int) -> str:
        waits.set()
        return "- **Goal**: survive, says the second"

    stores = [open_place(place) for _ in range(2)]
    perform: Any = stores[1].perform

    async def watched(*arguments: Any, **named: Any) -> Any:
        done = await perform(*arguments, **named)
        if done is False:  # the claim of a call
            waits.set()
        return done

    stores[1].perform = watched
    notes, talkers = [Notes(first), Notes(second)], [Talker("done"), Talker("done")]

    async def work(number: int) -> None:
        if number:
            assert await asyncio.to_thread(asked.wait, 300)
        ours = compiler(notes[number], budget=BUDGET, store=stores[number])
        await run(Agent(talkers[number].model, capabilities=[ours]), "question", message_history=past(1))
        await stores[number].close()

    assert in_threads(work, 2) == []
    says = "second" if fails else "first"
    assert [writer.asked for writer in notes] == [1, int(fails)]
    assert [f"says the {says}" in talker.last.text for talker in talkers] == [not fails, True]

    async def on_record() -> None:
        views = await stores[0].views()
        used = [view.compile for view in views if view.compile is not None and view.compile.summary is not None]
        assert {row.raw_output for row in used} == {f"- **Goal**: survive, says the {says}"}
        assert len(views) == 2 and len({view.summary_id for view in views}) == 1 + fails
        assert await stores[0].verify() == ()
        await stores[0].close()

    asyncio.run(on_record())


async def test_a_claim_is_short_and_renewed_while_the_model_is_called(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single_flight, "CLAIM_S", 0.3)
    store, ends, asked = open_place(place), asyncio.Event(), asyncio.Event()

    async def answer(messages: Any, info: Any) -> ModelResponse:
        asked.set()
        await ends.wait()
        return ModelResponse(parts=[TextPart("- **Goal**: survive")])

    ours = compiler(None, model=FunctionModel(answer), budget=BUDGET, store=store)
    going = asyncio.ensure_future(
        run(Agent(Talker("done").model, capabilities=[ours]), "question", message_history=past(1))
    )
    await asyncio.wait({going, asyncio.ensure_future(asked.wait())}, return_when=asyncio.FIRST_COMPLETED)
    seen: set[float] = set()
    while len(seen) < 3 and not going.done():
        until, now = await store.perform(
            lambda db: (db.execute("SELECT max(until) FROM claims").fetchone()[0], db.clock())
        )
        seen |= {until} if until is not None else set()
        assert until is None or until <= now + 0.3
        await asyncio.sleep(0.05)
    ends.set()
    await going
    assert len(seen) == 3
    await store.close()


PROCESS = """
import asyncio, sys
from pydantic_ai import Agent
from tests.support.agents import Notes, Talker, compiler, run
from tests.support.histories import long_history
async def main():
    heard = []
    ours = compiler(Notes(), budget=3_000, store=sys.argv[1], on_error=heard.append)
    messages = long_history(20)
    for turn in range(12):
        talker = Talker("done")
        agent = Agent(talker.model, capabilities=[ours])
        done = await run(agent, f"question {turn}", message_history=messages, conversation_id=sys.argv[2])
        messages = done.messages
    assert not heard, heard
    assert await ours.transcript(sys.argv[2]) == messages
asyncio.run(main())
"""


async def test_concurrent_processes_on_one_file_lose_nothing(tmp_path: Path) -> None:
    file = tmp_path / "record.db"
    started = [
        subprocess.Popen(
            [python(), "-W", "error", "-c", PROCESS, str(file), name],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("one", "two")
    ]
    ends = [(process.communicate(timeout=240)[1], process.returncode) for process in started]
    assert [code for _, code in ends] == [0, 0], ends
    store = SQLiteStore(file)
    assert {(info.session_id, info.requests) for info in await store.sessions()} == {
        ("one", 12),
        ("two", 12),
    }
    assert await store.verify() == ()
    await store.close()


async def test_the_file_stays_open_between_runs_and_is_closed_once_nobody_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "IDLE_S", 0.2)
    ours = compiler(Notes(), budget=BUDGET, store=tmp_path / "record.db")

    def opened() -> list[str]:
        return [name for name in map(_target, Path("/proc/self/fd").iterdir()) if str(tmp_path) in name]

    def answer(messages: Any, info: Any) -> Any:
        seen.append(bool(opened()))
        return "done"

    seen: list[bool] = []
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("this system has no /proc to count open files with")
    agents = [Agent(Talker(answer).model, capabilities=[ours]) for _ in range(3)]
    await asyncio.gather(*(run(agent, "hello") for agent in agents))
    assert seen == [True] * 3
    await ours.views()
    assert opened()
    while opened():  # a file that is never closed ends in the time limit of the test
        await asyncio.sleep(0.05)
    await run(agents[0], "hello again")
    assert opened()
    await ours.aclose()
    assert opened() == []


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""
