"""The same checks without a live agent: one-shot views, the history processor, a manager, and layers."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo

from benchmarks.campaign.case import Case
from benchmarks.campaign.conversations import BUDGETS, tools_of
from benchmarks.campaign.drawn import SHARED, Drawn
from benchmarks.campaign.rules import DECLARED, Given, check_rules, given_rules
from benchmarks.campaign.strict import COUNTER, READER, StrictModel, difference, in_order, merged, plain, refusals
from context_compiler import (
    ContextConfig,
    ContextManager,
    MemoryStore,
    SQLiteStore,
    build_compiling_history_processor,
    compile_view,
)
from context_compiler.chat import ChatSession
from context_compiler.layers import Layers
from context_compiler.manager import SQLiteMemory


async def one_shot(case: Case) -> None:
    """Check `compile_view` on random histories."""
    drawn = Drawn(case.random)
    history = drawn.history(case.random.choice((0, 1, 4, 20)))
    _, prompt = drawn.prompt()
    history = [*history, ModelRequest(parts=[UserPromptPart(prompt)])]
    before = plain(history)
    rules = case.random.choice(((), (DECLARED,)))
    for _ in range(3):
        budget = case.random.randint(*case.random.choice(BUDGETS))
        store = MemoryStore()
        template = case.random.choice(("extractive", "chat_compiler"))
        view = await compile_view(history, template, budget, store=store, system=None, session="s", rules=rules)
        case.count("one-shot views")
        where = f"[{template}, budget {budget}, {len(history)} messages] {view.status}: "
        counted = READER.read(view.messages).tokens
        case.check(
            max(view.tokens, counted) <= budget or view.status == "floor_over_budget",
            "requests over budget",
            f"{where}{counted} tokens, {view.tokens} by its own count",
        )
        broken = list(refusals(merged(view.messages), shared=SHARED))
        case.check(not broken, "broken pairs or shapes", f"{where}{broken[:3]}")
        if view.status != "floor_over_budget":
            in_force = [*given_rules(history), *map(Given, rules)]
            check_rules(case, where, in_force, view.messages, view.drops, room=budget, free=budget - counted)
        kept = view.record and view.record.view_tip
        row = await store.chain(kept) if kept else None
        case.check(row is not None, "requests unrecorded", where)
        case.check(not await store.verify(), "defects that verify finds", where)
        case.check(plain(history) == before, "changed transcripts", where)


async def processed(case: Case) -> None:
    """Check a history processor, where the host stores views."""
    drawn, random = Drawn(case.random), case.random
    path = case.folder / "context.db"
    store = SQLiteStore(path) if drawn.sometimes(0.4) else MemoryStore()
    budget = random.randint(*random.choice(BUDGETS[1:]))
    errors, said = list[Exception](), list[str]()
    processor = build_compiling_history_processor(
        budget=budget, model="none", store=store, system=None, on_error=errors.append, record_timeout=60
    )
    left = 0

    def script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        nonlocal left
        left -= 1
        if left >= 0:
            calls = [ToolCallPart("look", drawn.arguments(), drawn.call_id()) for _ in range(random.choice((1, 1, 2)))]
            said.extend(call.tool_call_id for call in calls)
            return ModelResponse(parts=calls)
        answer = f"A{len(said)} {drawn.text()}"
        said.append(answer)
        return ModelResponse(parts=[TextPart(answer)])

    strict = StrictModel(script)
    agent = Agent(
        strict.model, tools=tools_of(drawn, deferred=False), capabilities=[ProcessHistory(processor)], retries=9
    )
    history: list[ModelMessage] = []
    where = f"[processor, budget {budget}] "
    for _ in range(random.choice((2, 5, 10))):
        left, (marker, prompt) = random.choice((0, 0, 1, 2)), drawn.prompt()
        said.append(marker)
        asked = len(strict.sent)
        result = await agent.run(prompt, message_history=history, conversation_id="talk")
        history = result.all_messages()
        case.count("requests of a processor", len(strict.sent) - asked)
        for sent in strict.sent[asked:]:
            over = sent.tokens > budget and not errors
            case.check(
                not over, "requests over budget", f"{where}{sent.tokens} tokens, {sent.overhead} beside the messages"
            )
            broken = list(refusals(sent.messages, shared=SHARED))
            case.check(not broken, "broken pairs or shapes", f"{where}{broken[:3]}")
        kept = await processor.transcript("talk")
        spoken = [name for part in in_order(kept) for name in _spoken(part[1])]
        want = [text if text[0] == "c" else text.split(" ")[0] for text in said]
        case.check(spoken == want, "transcripts that differ", lambda: f"{where}{difference(spoken, want)}")  # noqa: B023
    for error in errors:
        case.check(type(error).__name__ == "BudgetError", "unexpected errors", f"{where}{error!r}")
    case.check(not await store.verify(), "defects that verify finds")
    await store.close()


def _spoken(part: dict[str, Any]) -> list[str]:
    """Return the marker of a prompt or answer, or the id of a call."""
    if part["part_kind"] == "tool-call":
        return [part["tool_call_id"]]
    if part["part_kind"] not in ("user-prompt", "text"):
        return []
    text: Any = part["content"]
    text = text if isinstance(text, str) else text[0] if isinstance(text[0], str) else ""
    first = text.split(" ")[0]
    return [first] if first[:1] in "QA" and first[1:2].isdigit() else []


async def rewritten(case: Case) -> None:
    """Check a chat whose transcript another program saves with other line ends between two sessions."""
    drawn, random = Drawn(case.random, hostile=0), case.random
    notices, told = list[str](), list[str]()
    record = drawn.sometimes(0.5)

    for _ in range(random.choice((2, 3, 5))):
        chat = ChatSession(
            Agent(StrictModel(lambda messages, info: drawn.answer()).model),
            "talk",
            endless=True,
            budget=random.randint(900, 4_000),
            folder=case.folder / "Chat_Sessions",
            store=case.folder / "context.db",
            system=case.folder / "system",
            notice=notices.append,
        )
        await chat.open()
        for _ in range(random.choice((1, 3, 6))):
            marker, prompt = drawn.prompt()
            told.append(marker)
            await chat.say(prompt if isinstance(prompt, str) else prompt[0])
        kept = [name for part in in_order(chat.messages) for name in _spoken(part[1]) if name[0] == "Q"]
        await chat.close()
        case.check(kept == told, "turns lost", f"[chat, record {record}] {kept} of {told}; {notices[:2]}")
        [path] = (case.folder / "Chat_Sessions").rglob("talk.md")
        text = path.read_bytes().replace(b"\r\n", b"\n")
        case.check(text.count(b"**User:**") == len(told), "turns lost", f"[chat, file] {len(told)} turns")
        ends, mark = random.choice((b"\n", b"\r\n")), random.choice((b"", b"\xef\xbb\xbf"))
        path.write_bytes(mark + text.removeprefix(b"\xef\xbb\xbf").replace(b"\n", ends))
        case.count("chats with other line ends")
        if not record:
            for file in case.folder.glob("context.db*"):
                file.unlink()
    expected = ("are unusable", "(record_timeout)", "lost its middle")  # its answers are no summaries; a busy machine
    unexpected = [notice for notice in notices if not any(words in notice for words in expected)]
    case.check(not unexpected, "unexpected errors", lambda: str(unexpected[:2]))


async def managed(case: Case) -> None:
    """Check a `ContextManager` with its file: turns, restarts, summaries, checkpoints, rollbacks."""
    drawn, random, path = Drawn(case.random), case.random, case.folder / "manager.db"
    most = random.choice((600, 2_000, 8_000))
    errors = list[Exception]()

    async def write(prompt: str) -> str:
        if drawn.sometimes(0.1):
            raise RuntimeError("the writer is down")
        return f"They spoke of {drawn.fact()}."

    def opened() -> tuple[SQLiteMemory, ContextManager]:
        memory = SQLiteMemory("s", path)
        config = ContextConfig(max_tokens=most, checkpoint_interval=random.choice((2, 10)))
        return memory, ContextManager.with_versioning(memory, memory, write, config, on_error=errors.append)

    memory, manager = opened()
    turns = 0
    for number in range(random.choice((3, 10, 30))):
        if drawn.sometimes(0.1):
            await memory.close()
            memory, manager = opened()
        text = f"T{number} {drawn.text()}"
        await manager.process_turn(text)
        turns += 1
        case.count("turns of a manager")
        if drawn.sometimes(0.9):
            manager.add_response(f"R{number} {drawn.text()}")
        where = f"[manager, {most} tokens, turn {number}] "
        counted = READER.read(manager.get_context_messages()).tokens
        case.check(counted <= most + COUNTER.text(text) + 400, "requests over budget", f"{where}{counted} tokens")
        case.check(manager.turn_count == turns, "turns lost", f"{where}{manager.turn_count} of {turns}")
        if drawn.sometimes(0.05) and manager.next_checkpoint:
            turns -= (await manager.rollback()).turns_lost
            case.check(
                manager.turn_count == turns, "turns lost", f"{where}rolled back: {manager.turn_count} of {turns}"
            )
    await memory.close()
    for error in errors:
        fine = "writer is down" in str(error) or "writer is down" in str(error.__cause__)
        case.check(fine, "unexpected errors", f"[manager] {error!r}")


async def attached(case: Case) -> None:
    """Check a manager on an agent: restarts and failed runs, with the agent's own history or without one."""
    drawn, random, path = Drawn(case.random, hostile=0), case.random, case.folder / "manager.db"
    most, process, keep = random.choice((1_000, 4_000)), drawn.sometimes(0.4), drawn.sometimes(0.5)
    errors, told, history = list[Exception](), list[str](), list[ModelMessage]()
    calls, fails = 0, False

    def opened() -> tuple[SQLiteMemory, ContextManager]:
        memory = SQLiteMemory("s", path)
        config = ContextConfig(max_tokens=most)
        return memory, ContextManager.with_versioning(memory, memory, "none", config, on_error=errors.append)

    def script(messages: list[ModelMessage], info: AgentInfo) -> Any:
        nonlocal calls
        calls -= 1
        if calls >= 0:
            return ModelResponse(parts=[ToolCallPart("look", drawn.arguments(), drawn.call_id())])
        if fails:
            return ModelHTTPError(500, "strict", body={"error": "down"})
        told.append(f"A{len(told)}")
        return ModelResponse(parts=[TextPart(f"{told[-1]} {drawn.text()}")])

    memory, manager = opened()
    strict = StrictModel(script)
    for number in range(random.choice((3, 8, 15))):
        if drawn.sometimes(0.25):
            await memory.close()
            memory, manager = opened()
        capability: Any = ProcessHistory(manager.as_history_processor()) if process else manager.as_capability()
        agent = Agent(strict.model, tools=tools_of(drawn, deferred=False), capabilities=[capability], retries=9)
        calls, fails, (marker, prompt) = random.choice((0, 0, 1, 3)), drawn.sometimes(0.15), drawn.prompt()
        told.append(marker)
        asked = len(strict.sent)
        with suppress(ModelHTTPError):
            result = await agent.run(prompt, message_history=history if keep or process else None)
            history = result.all_messages()
        where = f"[manager of an agent, {most} tokens, processor {process}, history {keep}, run {number}] "
        for sent in strict.sent[asked:]:
            broken = list(refusals(sent.messages, shared=SHARED))
            case.check(not broken, "broken pairs or shapes", f"{where}{broken[:3]}")
        case.count("runs with a manager")
        kept = [name for part in in_order(manager.transcript()) for name in _spoken(part[1]) if name[0] in "QA"]
        want = told[:-1] if process and told[-1][0] == "A" else told  # a processor sees an answer in the next run
        case.check(kept == want, "turns lost", lambda: f"{where}{difference(kept, want)}")  # noqa: B023
    await memory.close()
    case.check(not errors, "unexpected errors", lambda: f"[manager of an agent] {errors[0]!r}")


async def layered(case: Case) -> None:
    """Check `Layers` with its file: turns of four nodes, restarts, blocked and failed turns."""
    drawn, random, path = Drawn(case.random), case.random, case.folder / "layers.db"
    errors = list[Exception]()
    layers = Layers(path, on_error=errors.append)
    told = list[str]()
    for number in range(random.choice((2, 8, 20))):
        if drawn.sometimes(0.15):
            await layers.close()
            layers = Layers(path, on_error=errors.append)
        text = f"T{number} {drawn.text(80)}"
        async with layers.turn("s", text) as turn:
            for _ in range(random.choice((0, 1, 3, 40))):
                key = random.randint(1, 10_000)
                turn.registry.register_read("parts", key, drawn.text(8), data={"id": key, "note": drawn.text(60)})
            for role in ("understand", "think", "act", "reply"):
                prompt = turn.prompt(role, "Go on.")
                case.count("prompts of nodes")
                tokens = COUNTER.text(prompt)
                case.check(tokens < 60_000, "requests over budget", f"[layers, {role}] {tokens} tokens")
            turn.decided("plan_direct", drawn.text(20))
            turn.did("read", drawn.text(20), subdomain="parts", result=[{"id": 1}])
            if drawn.sometimes(0.1):
                turn.blocked(drawn.text(20))
            else:
                turn.answered(drawn.text())
        told.append(text)
        kept = [turn["user"] for turn in (await layers.conversation("s"))["recent_turns"]]
        case.check(
            kept and [said.split(" ")[0] for said in kept] == [said.split(" ")[0] for said in told[-len(kept) :]],
            "turns lost",
            f"[layers, turn {number}] {kept}",
        )
    await layers.close()
    for error in errors:
        case.check(False, "unexpected errors", f"[layers] {error!r}")
