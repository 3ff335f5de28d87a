"""`compile_context`: an agent has its own conversation compiled, once a turn, where that saves something."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, Tool, UsageLimits
from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.messages import ModelMessage, ModelRequest, ToolCallPart

from context_compiler import ContextCompiler, SQLiteStore, resilience
from context_compiler.compiler.view import View
from tests.support.agents import Notes, Talker, compiler, run
from tests.support.histories import long_history, prose

NOTES = "- **Goal**: tickets 4711 and 4712."
LONG = long_history(240)[:-1]
"""A history so long that its view is made in a thread."""
ASK = [("compile_context", {"focus": "the tickets"})]


def look(path: str) -> str:
    return f"{path}: {prose(len(path), 150)}"


class Working:
    """An agent that has the tool and follows a script."""

    def __init__(self, *steps: Any, notes: Notes | None = None, **wanted: Any) -> None:
        self.views: list[View] = []
        self.errors: list[Exception] = []
        self.notes = notes or Notes(NOTES)
        self.talker = Talker(steps)
        options = {"budget": 40_000, "recall": 0, "compile_tool": True, **wanted}
        self.ours = compiler(self.notes, on_view=self.views.append, on_error=self.errors.append, **options)
        self.agent = Agent(self.talker.model, tools=[look], capabilities=[self.ours])

    async def turn(self, prompt: str, history: list[ModelMessage] | None = None, **given: Any) -> list[ModelMessage]:
        given = {"message_history": history or [], "conversation_id": "work", **given}
        return (await run(self.agent, prompt, **given)).messages


def answers(messages: list[ModelMessage], tool: str = "compile_context") -> list[str]:
    parts = [part for message in messages if isinstance(message, ModelRequest) for part in message.parts]
    return [str(part.content) for part in parts if part.part_kind == "tool-return" and part.tool_name == tool]


async def test_the_next_request_of_the_run_uses_the_requested_compile() -> None:
    work = Working(ASK, "done", "ok")
    messages = await work.turn("Compile, please.", long_history(20)[:-1])
    assert [view.status for view in work.views] == ["raw", "compiled"] and not work.errors
    first, second = (sent.tokens for sent in work.talker.sent)
    assert second < first / 2 and "4711" in work.talker.last.text and work.notes.asked == 1
    assert "WHAT TO KEEP ===\nthe tickets" in work.notes.prompts[0]
    [told] = answers(messages)
    assert told.startswith("From the next request on, ") and "Go on with the task." in told
    record = work.views[-1].record
    assert record is not None and record.compile is not None and record.compile.raw_output == NOTES
    await work.turn("And now?", messages)
    assert work.views[-1].status == "cycle" and work.notes.asked == 1
    assert (await work.ours.undo_compile("work")).done


async def test_the_whole_conversation_is_compiled_if_the_application_gives_a_window(tmp_path: Path) -> None:
    work = Working("noted", ASK, "done", store=tmp_path / "context.db")
    messages = await work.turn("The ticket is 4713.", long_history(20)[:-1])
    shown = messages[-8:]
    while not isinstance(shown[0], ModelRequest) or any(part.part_kind != "user-prompt" for part in shown[0].parts):
        shown = messages[-len(shown) - 1 :]
    answered = await work.turn("Compile, please.", shown)
    [told] = answers(answered)
    assert told.startswith("From the next request on, ") and work.notes.asked == 1
    assert work.views[-1].status == "compiled" and not work.errors
    assert int(told.partition("instead of ")[2].split(". ")[0].replace(",", "")) > 5_000, "not the window alone"
    record = work.views[-1].record
    assert record is not None and record.compile is not None and record.compile.raw_output == NOTES


async def test_the_tool_compiles_at_most_once_per_turn() -> None:
    work = Working(ASK, ASK, ASK, "done", ASK, "done")
    messages = await work.turn("Compile, please.", long_history(20)[:-1])
    assert work.notes.asked == 1
    assert [told.startswith("Nothing was compiled: this turn was already compiled") for told in answers(messages)] == [
        False,
        True,
        True,
    ]
    messages = await work.turn("Again.", messages)
    assert "it would save at most" in answers(messages)[-1] and work.notes.asked == 1


async def test_the_tool_refuses_if_it_would_save_little() -> None:
    work = Working(ASK, "done")
    messages = await work.turn("Compile, please.")
    assert "it would save at most 0 of" in answers(messages)[0] and work.notes.asked == 0
    assert [view.status for view in work.views] == ["raw", "raw"]


async def test_old_tool_exchanges_of_the_same_turn_go_too() -> None:
    steps = [[("look", {"path": f"file_{number}"})] for number in range(8)]
    work = Working(*steps, ASK, "done")
    messages = await work.turn("Read all files.")
    assert len(answers(messages, "look")) == 8 and answers(messages)[0].startswith("From the next request on")
    assert len(answers(work.talker.last.messages, "look")) == 4 and "file_7:" in work.talker.last.text
    assert "Read all files." in work.talker.last.text and work.talker.last.tokens < 0.75 * work.talker.sent[-2].tokens


@pytest.mark.parametrize("notes", [Notes(RuntimeError("no")), Notes(" ")], ids=["fails", "empty"])
async def test_a_failure_changes_nothing_or_quotes(notes: Notes) -> None:
    work = Working(ASK, "done", notes=notes)
    messages = await work.turn("Compile, please.", long_history(20)[:-1])
    [told] = answers(messages)
    if work.errors:
        assert "Nothing has changed" in told and [view.status for view in work.views] == ["raw", "raw"]
    else:
        assert told.startswith("From the next request on") and "QUOTED" in work.talker.last.text


class Deferring(Working):
    """One whose agent asks for a deployment together with the compile."""

    def __init__(self, *more: Any, **wanted: Any) -> None:
        super().__init__([*ASK, ("deploy", {})], *more, **wanted)
        tools = [look, Tool(deploy, requires_approval=True)]
        self.agent = Agent(
            self.talker.model, tools=tools, output_type=[str, DeferredToolRequests], capabilities=[self.ours]
        )

    async def approve(self, messages: list[ModelMessage]) -> list[ModelMessage]:
        """The run that goes on with the deployment."""
        [call] = [part for part in messages[-2].parts if isinstance(part, ToolCallPart) and part.tool_name == "deploy"]
        results = DeferredToolResults(approvals={call.tool_call_id: True})
        given = {"message_history": messages, "deferred_tool_results": results, "conversation_id": "work"}
        return (await run(self.agent, None, **given)).messages


def deploy() -> str:
    return "deployed"


@pytest.mark.parametrize(
    ("record", "restarted"), [("full", False), ("full", True), ("metadata", False), ("off", False)]
)
async def test_a_compile_that_its_run_did_not_use_begins_the_next_one(
    record: str, restarted: bool, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"store": tmp_path / "context.db", "record": record}
    work = Deferring("done", "ok", "fine", **options)
    messages = await work.turn("Deploy it.", long_history(20)[:-1])
    assert answers(messages)[0].startswith("From the next request on") and work.views[-1].status == "raw"
    if restarted:
        work = Deferring(notes=work.notes, **options)
        work.talker.say(["done", "ok", "fine"])
    messages = await work.approve(messages)
    assert answers(messages, "deploy") == ["deployed"] and work.views[-1].status == "cycle"
    assert work.talker.last.tokens < 5_000 and "4711" in work.talker.last.text
    await work.turn("And now?", messages)
    assert work.views[-1].status == "cycle" and work.notes.asked == 1
    assert (await work.ours.undo_compile("work")).done
    await work.turn("And then?", messages)
    assert work.views[-1].status == "raw" and not work.errors
    if record != "off":
        [made] = await SQLiteStore(tmp_path / "context.db").summaries("work")
        assert made.usage["input_tokens"] == 100


async def test_a_compile_of_a_run_that_fails_begins_the_next_one() -> None:
    work, past = Working(ASK, "done"), long_history(20)[:-1]
    with pytest.raises(UsageLimitExceeded):
        await work.turn("Compile, please.", past, usage_limits=UsageLimits(request_limit=1))
    messages = await work.turn("Compile, please.", past)
    assert work.views[-1].status == "cycle" and work.notes.asked == 1 and not work.errors
    assert len(messages) == len(past) + 2


async def test_a_compile_by_hand_meanwhile_counts_and_that_of_the_agent_keeps_its_cost(tmp_path: Path) -> None:
    work = Deferring("done", store=tmp_path / "context.db")
    given = {"message_history": long_history(20)[:-1], "conversation_id": "work"}
    async with work.agent.iter("Deploy it.", **given) as steps:
        async for node in steps:
            if Agent.is_end_node(node):
                assert (await work.ours.compile_now("work")).done
    assert steps.result is not None
    await work.approve(steps.result.all_messages())
    assert work.views[-1].status == "cycle" and not work.errors
    store = SQLiteStore(tmp_path / "context.db")
    assert len(await store.summaries("work")) == 2 and len(await store.actions("work")) == 1


async def test_a_template_that_breaks_while_the_agent_works_fails_the_tool_and_not_the_run(tmp_path: Path) -> None:
    written = tmp_path / "ContextTemplates" / "mine.md"
    written.parent.mkdir()
    written.write_text("Notes on what was decided: {{ recent_turns }}")
    work = Working(ASK, ASK, "done", "ok", template="mine", system=tmp_path)
    written.unlink()
    messages = await work.turn("Compile, please.", long_history(20)[:-1])
    first, second = answers(messages)
    assert first == "Nothing was compiled: it failed. Nothing has changed. Go on with the task."
    assert second == first and {type(error).__name__ for error in work.errors} == {"TemplateError"}
    assert [view.status for view in work.views] == ["fallback"] * 3


async def test_a_compile_that_has_no_time_to_search_quotes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = count()
    monkeypatch.setattr(resilience, "thread_time", lambda: next(ticks))
    limit = 8 * len(LONG) // resilience.STEP
    work = Working(ASK, "done", model="none", budget=1_000_000, timeout=limit, counter=lambda text: len(text) // 4)
    messages = await work.turn("Compile, please.", LONG)
    late = f"reading and searching a history takes more than {limit} s (timeout)"
    assert [str(error) for error in work.errors] == [late]
    assert answers(messages)[0].startswith("From the next request on") and "QUOTED" not in work.talker.last.text


async def test_after_an_undo_the_tool_does_not_overrule_the_user() -> None:
    work = Working("ok", "done", ASK, "done")
    messages = await work.turn("Hello.", long_history(20)[:-1])
    assert (await work.ours.compile_now("work")).done and (await work.ours.undo_compile("work")).done
    messages = await work.turn("Fine.", messages)
    messages = await work.turn("Compile.", messages)
    assert "the user has undone the last compile" in answers(messages)[0]


async def test_an_agent_has_the_tool_only_on_request() -> None:
    work = Working("ok", compile_tool=False)
    await work.turn("Hello.")
    assert "compile_context" not in work.talker.last.tools
    dry = Working(ASK, "done", dry_run=True)
    assert "cannot be done in this run" in answers(await dry.turn("Hello.", long_history(20)[:-1]))[0]
    with pytest.raises(ValueError, match="compile_tool"):
        ContextCompiler(compile_tool="yes")  # pyright: ignore[reportArgumentType]
