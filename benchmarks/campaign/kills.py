"""Processes killed at any moment: acknowledged work must survive, and the work must continue.

Each case forks a child that works and writes a line for everything it has acknowledged. The child is killed shortly
after one of these lines. Then everything is opened again, as by a restarted program.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from benchmarks.campaign.case import Case, rotation
from benchmarks.campaign.drawn import Drawn
from benchmarks.campaign.strict import in_order
from context_compiler import ContextCompiler, ContextManager, SQLiteStore
from context_compiler.chat import ChatSession
from context_compiler.layers import Layers
from context_compiler.manager import SQLiteMemory
from context_compiler.pipeline import Event, Outcome, SQLiteRuns, Stage, read_checkpoint, resume_pipeline, run_pipeline

Tell = Callable[[str], None]
Work = Callable[[Path, Drawn, Tell], Coroutine[Any, Any, None]]
Checks = Coroutine[Any, Any, None] | None

LONGEST_S = 0.01
"""Maximum seconds between the last awaited line and the kill."""


def killed(case: Case, work: Work) -> list[str]:
    """Run work in a child, kill it, and return the lines that it acknowledged before."""
    heard, said = os.pipe()
    wanted, pause, seed = case.random.randint(0, 25), case.random.uniform(0, LONGEST_S), case.random.random()
    child = os.fork()
    if child == 0:
        _be_killed(work, case.folder, Random(seed), said)
    os.close(said)
    lines = _lines_until_killed(child, heard, wanted, pause)
    os.close(heard)
    case.count("kills")
    case.count("acknowledged before a kill", len(lines))
    return lines


def _be_killed(work: Work, folder: Path, random: Random, said: int) -> None:
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        asyncio.run(work(folder, Drawn(random, hostile=0), lambda line: _write(said, line)))
    except BaseException as error:
        _write(said, f"error {type(error).__name__}: {error}")
    finally:
        os._exit(0)


def _write(said: int, line: str) -> None:
    os.write(said, f"{line}\n".encode())


def _lines_until_killed(child: int, heard: int, wanted: int, pause: float) -> list[str]:
    found = b""
    while found.count(b"\n") < wanted and (more := os.read(heard, 65_536)):
        found += more
    time.sleep(pause)
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(heard, 65_536):
        found += more
    return found.decode().splitlines()


def _failed(case: Case, lines: list[str]) -> bool:
    errors = [line for line in lines if line.startswith("error ")]
    case.check(not errors, "workers that failed", lambda: errors[0])
    return bool(errors)


# --- runs of an agent


def _answering(drawn: Drawn) -> FunctionModel:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked = any(part.part_kind == "user-prompt" for part in messages[-1].parts)
        if asked and info.function_tools and drawn.sometimes(0.4):
            return ModelResponse(parts=[ToolCallPart("look", {"path": drawn.fact()}, drawn.call_id())])
        return ModelResponse(parts=[TextPart(f"A{drawn.random.randrange(10**9)} {drawn.text(80)}")])

    return FunctionModel(answer, model_name="worker")


def _look(path: str) -> str:
    return f"{path} has many lines. " * 20


async def _runs(folder: Path, drawn: Drawn, tell: Tell) -> None:
    views: list[Any] = []
    ours = ContextCompiler(budget=1_500, model="none", store=folder / "context.db", system=None, on_view=views.append)
    agent = Agent(_answering(drawn), tools=[_look], capabilities=[ours])
    histories: dict[str, list[ModelMessage]] = {}
    for _ in range(10_000):
        name = drawn.random.choice(("one", "two"))
        marker, prompt = drawn.prompt()
        result = await agent.run(prompt, message_history=histories.get(name), conversation_id=name)
        histories[name] = result.all_messages()
        rows = ",".join(str(view.record.id) for view in views)
        views.clear()
        tell(f"{name} {marker} {result.output.split(' ')[0]} {rows}")


def runs(case: Case) -> Checks:
    """Kill an agent between or within its runs."""
    lines = killed(case, _runs)
    return None if _failed(case, lines) else _check_runs(case, lines)


async def _check_runs(case: Case, lines: list[str]) -> None:
    store = SQLiteStore(case.folder / "context.db")
    defects = await store.verify()
    case.check(not defects, "defects that verify finds", lambda: str(defects[:2]))
    there = {view.id for view in await store.views()}
    for line in lines:
        name, marker, answer, rows = line.split(" ")
        lost = [row for row in rows.split(",") if int(row) not in there]
        case.check(not lost, "acknowledged and lost", f"rows {lost} of {name}, {marker}")
    await store.close()
    errors: list[Exception] = []
    ours = ContextCompiler(
        budget=1_500, model="none", store=case.folder / "context.db", system=None, on_error=errors.append
    )
    for name in ("one", "two"):
        kept = await ours.transcript(name)
        said = str([part for _, part in in_order(kept)])
        gone = [
            line
            for line in lines
            if line.startswith(f"{name} ") and not all(word in said for word in line.split(" ")[1:3])
        ]
        case.check(not gone, "acknowledged and lost", lambda: f"turns of {name}: {gone[:2]}")  # noqa: B023
        while kept and not (kept[-1].kind == "response" and kept[-1].text):
            kept = kept[:-1]  # removes what a killed run had begun
        agent = Agent(_answering(Drawn(case.random)), capabilities=[ours])
        await agent.run("And now?", message_history=kept, conversation_id=name)
    case.check(not errors, "errors after a kill", lambda: repr(errors[:1]))


# --- a chat


async def _chat(folder: Path, drawn: Drawn, tell: Tell) -> None:
    chat = _chat_in(folder, drawn)
    for _ in range(10_000):
        marker, _ = drawn.prompt()
        reply = await chat.say(f"{marker} what is {drawn.fact()}? {drawn.text(40)}")
        tell(f"{marker} {reply.text.split(' ')[0]}")


def _chat_in(folder: Path, drawn: Drawn, notices: list[Any] | None = None) -> ChatSession:
    async def stream(messages: list[ModelMessage], info: AgentInfo) -> Any:
        yield f"A{drawn.random.randrange(10**9)} "
        await asyncio.sleep(0)
        yield drawn.text(60)

    return ChatSession(
        Agent(FunctionModel(stream_function=stream, model_name="worker")),
        "talk",
        endless=True,
        folder=folder / "Chat_Sessions",
        store=folder / "context.db",
        system=folder / "system",
        budget=1_500,
        model="none",
        notice=(notices if notices is not None else []).append,
    )


def chat(case: Case) -> Checks:
    """Kill a chat between or within its answers."""
    lines = killed(case, _chat)
    return None if _failed(case, lines) else _check_chat(case, lines)


async def _check_chat(case: Case, lines: list[str]) -> None:
    notices: list[Any] = []
    session = _chat_in(case.folder, Drawn(case.random, hostile=0), notices)
    await session.say("And now?")
    await session.close()
    said = str([part for _, part in in_order(session.messages)])
    page = (case.folder / "Chat_Sessions" / "talk.md").read_text(encoding="utf-8")
    for place, text in (("history", said), ("transcript", page)):
        gone = [line for line in lines if not all(word in text for word in line.split(" "))]
        case.check(not gone, "acknowledged and lost", lambda: f"turns of the chat's {place}: {gone[:2]}")  # noqa: B023
    case.check(page.count("And now?") == 1, "acknowledged and lost", "the turn after the restart")


# --- a pipeline

LOOP = """digraph g { goal="mend it"
start [shape=Mdiamond]; done [shape=Msquare]; plan [prompt="Plan"]; work [prompt="Do it"]; check [prompt="Check"]
start -> plan -> work -> check
check -> work [condition="context.left!=0"]; check -> done [condition="context.left=0"] }"""
ROUNDS = 12


def _handle(stage: Stage) -> Outcome:
    name = stage.node.name
    if name == "check":
        return Outcome(context_updates={"left": max(0, ROUNDS - stage.visit)}, notes=f"round {stage.visit}")
    return Outcome(context_updates={f"seen.{name}": stage.visit}, notes="done " * 40)


def _pipeline_in(where: str) -> Work:
    async def work(folder: Path, drawn: Drawn, tell: Tell) -> None:
        def hear(event: Event) -> None:
            if event.kind == "checkpoint_saved":
                tell(f"{event.data['number']}")

        await run_pipeline(LOOP, run_id="r", handlers={"codergen": _handle}, on_event=hear, **_places(folder, where))
        await asyncio.sleep(60)

    return work


def _places(folder: Path, where: str) -> dict[str, Any]:
    return {"logs_root": folder / "run"} if where == "folder" else {"runs": folder / "runs.db"}


def pipeline(case: Case) -> Checks:
    """Kill a pipeline at any stage, in a folder or in SQLite, and resume it to the same end as an uninterrupted one."""
    where = case.random.choice(("folder", "sqlite"))
    lines = killed(case, _pipeline_in(where))
    return None if _failed(case, lines) else _check_pipeline(case, where, lines)


async def _check_pipeline(case: Case, where: str, lines: list[str]) -> None:
    places, last = _places(case.folder, where), max(map(int, lines), default=-1)
    if where == "folder":
        state = read_checkpoint(case.folder / "run")
        resumed: Any = case.folder / "run"
    else:
        store = SQLiteRuns(case.folder / "runs.db")
        state = await store.load("r")
        await store.close()
        resumed = "r"
    saved = -1 if state is None else state.sequence
    case.check(saved >= last, "acknowledged and lost", f"pipeline in {where}: step {saved}, acknowledged {last}")
    if state is None:
        return
    end = await resume_pipeline(resumed, handlers={"codergen": _handle}, **places)
    wanted = ("start", "plan", *("work", "check") * ROUNDS, "done")
    case.check(
        end.ok and end.completed == wanted, "resumed to another end", lambda: f"{where}: {end.status}, {end.completed}"
    )


# --- a manager and layers


async def _session(folder: Path, drawn: Drawn, tell: Tell) -> None:
    memory = SQLiteMemory("s", folder / "manager.db")
    manager = ContextManager.with_versioning(memory, memory, "none")
    layers = Layers(folder / "layers.db")
    for number in range(10_000):
        await manager.process_turn(f"T{number} {drawn.text(60)}")
        manager.add_response(drawn.text(60))
        async with layers.turn("s", f"L{number}") as turn:
            turn.registry.register_read("parts", number, drawn.text(5))
            turn.answered(drawn.text(20))
        tell(str(number))


def sessions(case: Case) -> Checks:
    """Kill a manager and layers at any turn."""
    lines = killed(case, _session)
    return None if _failed(case, lines) else _check_session(case, len(lines))


async def _check_session(case: Case, acknowledged: int) -> None:
    memory = SQLiteMemory("s", case.folder / "manager.db")
    manager = ContextManager.with_versioning(memory, memory, "none")
    await manager.resume()
    case.check(
        manager.turn_count >= acknowledged,
        "acknowledged and lost",
        f"manager: {manager.turn_count} of {acknowledged} turns",
    )
    await memory.close()
    layers = Layers(case.folder / "layers.db")
    kept = [one["user"] for one in (await layers.conversation("s"))["recent_turns"]]
    last = int(kept[-1][1:]) + 1 if kept else 0
    case.check(last >= acknowledged, "acknowledged and lost", f"layers: {last} of {acknowledged} turns")
    await layers.close()


kill = rotation(runs, chat, pipeline, runs, sessions)
